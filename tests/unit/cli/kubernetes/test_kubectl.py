"""kubectl as a subprocess: what is called, and what its failures tell people to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.kubernetes.conftest import FakeCluster

from brokerset_cli.kubernetes.kubectl import Kubectl, KubectlFailed, Trouble, classify, main_line


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host?",
            Trouble.UNREACHABLE,
        ),
        ("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout", Trouble.UNREACHABLE),
        (
            "Unable to connect to the server: getting credentials: exec: executable aws not found",
            Trouble.LOGIN,
        ),
        ("error: You must be logged in to the server (Unauthorized)", Trouble.LOGIN),
        (
            'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods"',
            Trouble.FORBIDDEN,
        ),
        ('error: the server doesn\'t have a resource type "brokersets"', Trouble.NOT_INSTALLED),
        ('Error from server (NotFound): brokersets.brokerset.io "x" not found', Trouble.NOT_FOUND),
        (
            "Error from server (Conflict): Operation cannot be fulfilled on brokersets.brokerset.io",
            Trouble.CONFLICT,
        ),
        (
            "Error in configuration: context was not found for specified context: nope",
            Trouble.BAD_CONTEXT,
        ),
        ("error: stat /nonexistent: no such file or directory", Trouble.BAD_CONTEXT),
        ("error: something new", Trouble.OTHER),
    ],
)
def test_failures_are_told_apart(text: str, trouble: Trouble) -> None:
    """Each kind of failure needs other advice."""
    assert classify(text) is trouble


def test_log_lines_of_kubectls_libraries_are_not_shown() -> None:
    """One line says what is wrong; the five before it are for developers."""
    noise = 'E1121 23:22:22.591267   30830 memcache.go:265] "Unhandled Error" err="…"\n' * 5

    assert main_line(f"{noise}error: You must be logged in\n") == "You must be logged in"
    assert main_line(noise).startswith("E1121"), "if there is nothing else it is better than nothing"
    assert main_line("") == "kubectl gave no reason"


def test_what_the_user_chose_stands_on_every_call() -> None:
    """They are kubectl's own options; a look at all namespaces leaves the namespace out."""
    kubectl = Kubectl("shop", "prod", "/k", "jane", program="kubectl")

    assert kubectl.command("get", "pods") == [
        "kubectl",
        "--context=prod",
        "--kubeconfig=/k",
        "--as=jane",
        "--namespace=shop",
        "get",
        "pods",
    ]
    assert "--namespace=shop" not in kubectl.command("get", "pods", everywhere=True)


def test_without_kubectl_people_are_told_how_to_name_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing program is no traceback."""
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl")

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    assert "kubectl could not be started: /nowhere/kubectl" in result.output
    assert "the variable KUBECTL" in result.output


def test_a_set_that_is_not_there_is_answered_with_those_that_are(cluster: FakeCluster) -> None:
    """A slip of the pen or a wrong namespace is seen at once."""
    result = cluster.run("status", "odrers")

    assert result.exit_code == 1
    assert "namespace shop has no BrokerSet 'odrers'; it has orders" in result.output
    assert "choose a namespace with -n" in result.output


def test_who_may_get_but_not_list_is_told_that_there_is_none(cluster: FakeCluster) -> None:
    """The second look is only for the advice, and its failure is not what is wrong."""
    (cluster.folder / "set.json").unlink()
    cluster.fails_list('Error from server (Forbidden): User "u" cannot list resource "brokersets"')

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    assert "Error: namespace shop has no BrokerSet 'orders'\n" in result.output


def test_in_a_pod_there_is_no_context_to_name(cluster: FakeCluster) -> None:
    """kubectl has a namespace then, but says nothing about it."""
    cluster.fails("config", "error: current-context must exist in order to minify")

    assert "namespace of this kubectl has no BrokerSet 'x'" in cluster.run("status", "x").output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'Error from server (Forbidden): User "u" cannot get resource "brokersets"',
            "docs/kubectl-plugin.md",
        ),
        ('error: the server doesn\'t have a resource type "brokersets"', "helm install"),
        ("Unable to connect to the server: i/o timeout", "kubectl version"),
        ("error: You must be logged in to the server (Unauthorized)", "log in to the cluster"),
    ],
)
def test_errors_say_what_to_do(cluster: FakeCluster, text: str, says: str) -> None:
    """Whatever kubectl says, the second line is what to do next."""
    cluster.fails("get", text)

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    assert "What to do: " in result.output
    assert says in result.output


def test_a_kubectl_that_hangs_is_ended(tmp_path: Path) -> None:
    """A login that waits for an answer that nobody gives does not hang scripts."""
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    program.chmod(0o755)

    with pytest.raises(KubectlFailed, match="was not done after") as raised:
        Kubectl(program=str(program)).run("get", "pods", seconds=0.2)

    assert raised.value.trouble is Trouble.TIMEOUT


def test_an_answer_that_is_no_object_is_an_error(cluster: FakeCluster) -> None:
    """What is called kubectl may be something else."""
    with pytest.raises(KubectlFailed, match="did not write an object"):
        Kubectl(program="/bin/echo").read("get", "pods")
