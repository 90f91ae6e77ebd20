"""The API server by its official client: how one gets there, and what failures tell people to do."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.kubernetes.conftest import FakeCluster

from brokerset_cli.kubernetes import kube_api
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Trouble, refusal
from brokerset_kube.kinds import BROKER_SET, POD
from brokerset_rig.fake_kube import Fault

PROGRAM_API = "client.authentication.k8s.io/v1"


def status(reason: str, message: str, **details: str) -> bytes:
    """A Status, as the API server answers with when it refuses."""
    return json.dumps({"kind": "Status", "reason": reason, "message": message, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "content", "trouble"),
    [
        (401, status("Unauthorized", "Unauthorized"), Trouble.LOGIN),
        (403, status("Forbidden", 'pods is forbidden: User "u" cannot list'), Trouble.FORBIDDEN),
        (404, b"404 page not found\n", Trouble.NOT_INSTALLED),
        (404, status("NotFound", "the server could not find the requested resource"), Trouble.NOT_INSTALLED),
        (404, status("NotFound", 'brokersets.brokerset.io "x" not found', name="x"), Trouble.NOT_FOUND),
        (409, status("Conflict", "the object has been modified"), Trouble.CONFLICT),
        (429, status("TooManyRequests", "later"), Trouble.UNREACHABLE),
        (500, status("InternalError", "etcdserver: request timed out"), Trouble.UNREACHABLE),
        (503, b"", Trouble.UNREACHABLE),
        (504, status("Timeout", "too long"), Trouble.UNREACHABLE),
        (400, status("BadRequest", "something new"), Trouble.OTHER),
        (500, b"[1]", Trouble.OTHER),
    ],
)
def test_failures_are_told_apart(code: int, content: bytes, trouble: Trouble) -> None:
    """Each kind of failure needs other advice."""
    assert refusal(code, content).trouble is trouble


def test_people_read_the_servers_sentence_or_at_least_something() -> None:
    """One line says what is wrong; what surrounds it is for developers."""
    assert refusal(409, status("Conflict", "changed by others")).message == "changed by others"
    assert refusal(502, b"<html>\n  bad\n</html>").message == "<html> bad </html>"
    assert refusal(500, b"").message == "the API server answered with 500"


def write_config(path: Path, url: str, user: dict[str, Any]) -> Path:
    """A kubeconfig with two contexts: `here` leads to the server as this user, `away` nowhere."""
    contexts = [
        {"name": "here", "context": {"cluster": "here", "user": "u"}},
        {"name": "away", "context": {"cluster": "away", "user": "u", "namespace": "far"}},
    ]
    clusters = [
        {"name": "here", "cluster": {"server": url}},
        {"name": "away", "cluster": {"server": "http://127.0.0.1:1"}},
    ]
    users = [{"name": "u", "user": user}]
    path.write_text(json.dumps({"contexts": contexts, "clusters": clusters, "users": users}))
    return path


def program(folder: Path, script: str) -> dict[str, Any]:
    """A user whom a program logs in."""
    path = folder / "log-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": PROGRAM_API, "command": str(path), "interactiveMode": "Never"}}


def credential(token: str) -> str:
    """What a program prints that has logged in."""
    found = {"apiVersion": PROGRAM_API, "kind": "ExecCredential", "status": {"token": token}}
    return f"echo '{json.dumps(found)}'"


def test_what_the_user_chose_counts(cluster: FakeCluster, tmp_path: Path) -> None:
    """File, context, namespace and another user; a look at all namespaces leaves the namespace out."""
    cluster.kube.tokens = {"secret"}
    path = write_config(tmp_path / "other", cluster.kube.url, {"token": "secret"})

    with closing(KubeApi("shop", "here", str(path), "jane")) as api:
        api.objects(POD)
        everywhere = api.objects(BROKER_SET, all_namespaces=True)
        assert [call.namespace for call in cluster.kube.calls] == ["shop", ""]
        assert {call.user for call in cluster.kube.calls} == {"jane"}
        assert len(everywhere) == 1
        assert api.within("billing").objects(POD) == []
    with closing(KubeApi(None, "away", str(path))) as api:
        assert api.namespace == "far"
        with pytest.raises(ApiFailed, match=r"http://127\.0\.0\.1:1 does not answer: .*refused") as raised:
            api.objects(POD)
        assert raised.value.trouble is Trouble.UNREACHABLE
    with closing(KubeApi(None, "here", str(path))) as api:
        assert api.namespace == "default"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--context", "nope"), "nope"),
        (("--kubeconfig", "/nowhere/config"), "there is no kubeconfig /nowhere/config"),
        (("--kubeconfig", __file__), "cannot be used"),
    ],
)
def test_a_context_that_is_not_there_is_named(
    cluster: FakeCluster, arguments: tuple[str, str], says: str
) -> None:
    """A kubeconfig that is none, or has no such context, is no traceback."""
    result = cluster.run("status", "orders", *arguments)

    assert result.exit_code == 1
    assert says in result.output
    assert "kubectl config get-contexts" in result.output


def test_without_the_official_client_people_are_told_how_to_get_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra, and without it only these commands do not work."""
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    assert "the official client of Kubernetes is not installed" in result.output
    assert "pip install 'brokerset[kubectl]'" in result.output


def test_help_and_other_commands_do_not_load_the_official_client() -> None:
    """It takes longer to load than all the rest, also than asyncio's HTTP, which only few verbs need."""
    code = (
        "import sys; from brokerset_cli.main import load\n"
        "load('kubernetes'); print({'kubernetes', 'urllib3', 'aiohttp'} & sys.modules.keys())"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown == "set()\n"


def test_threads_leave_the_loading_of_the_official_client_to_the_login() -> None:
    """Python ends a deadlock of threads that import parts of one package at a time with an error."""
    code = (
        "import sys; from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Trouble\n"
        "def fails(): raise ApiFailed(Trouble.LOGIN, 'no')\n"
        "api = KubeApi('orders'); api.login.get = fails\n"
        "try: api.request('GET', '/')\n"
        "except ApiFailed: print({'kubernetes', 'urllib3'} & sys.modules.keys())"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown == "set()\n"


def test_a_set_that_is_not_there_is_answered_with_those_that_are(cluster: FakeCluster) -> None:
    """A slip of the pen or a wrong namespace is seen at once."""
    result = cluster.run("status", "odrers")

    assert result.exit_code == 1
    assert "namespace shop has no BrokerSet 'odrers'; it has orders" in result.output
    assert "choose a namespace with -n" in result.output


def test_who_may_get_but_not_list_is_told_that_there_is_none(cluster: FakeCluster) -> None:
    """The second look is only for the advice, and its failure is not what is wrong."""
    cluster.remove("brokersets")
    cluster.kube.forbidden.add(("list", "brokersets"))

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    assert "Error: namespace shop has no BrokerSet 'orders'\n" in result.output


def test_in_a_pod_its_account_counts(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no kubeconfig; the namespace is that of the account."""
    from kubernetes.config import incluster_config

    for name, text in (("token", "t"), ("ca.crt", "c"), ("namespace", "inside\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(kube_api, "ACCOUNT_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "there is no kubeconfig" in cluster.run("status").output

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with closing(KubeApi()) as api:
        assert api.namespace == "inside"
        assert api.login.get()[0].configuration.host == "https://[::1]:443"


@pytest.mark.parametrize(
    ("code", "message", "says"),
    [
        (403, 'User "u" cannot get resource "brokersets"', "docs/kubectl-plugin.md"),
        (404, "the server could not find the requested resource", "helm install"),
        (503, "", "kubectl version"),
        (401, "Unauthorized", "log in to the cluster"),
    ],
)
def test_errors_say_what_to_do(cluster: FakeCluster, code: int, message: str, says: str) -> None:
    """Whatever the server says, the second line is what to do next."""
    cluster.fault("get", "brokersets", code, message)

    result = cluster.run("status", "orders")

    assert result.exit_code == 1
    assert "What to do: " in result.output
    assert says in result.output


def test_a_server_that_is_silent_is_given_up(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request has a time-out, also of one who accepts connections and says nothing."""
    monkeypatch.setattr(kube_api, "READ_SECONDS", 0.2)
    fault = Fault("get", "brokersets", 200, delay=1.0)
    cluster.kube.faults.append(fault)

    result = cluster.run("status", "orders")

    assert fault.times == 0
    assert result.exit_code == 1
    assert "does not answer" in result.output
    assert "kubectl version" in result.output


def test_a_program_logs_in_and_again_when_its_token_is_over(cluster: FakeCluster, tmp_path: Path) -> None:
    """As kubectl does; one whose token never was any good is not asked twice."""
    (tmp_path / "token").write_text("first")
    user = program(
        tmp_path,
        f"token=$(cat {tmp_path}/token); echo x >> {tmp_path}/asked; {credential('TOKEN')}"
        ' | sed "s/TOKEN/$token/"',
    )
    cluster.kube.tokens = {"first"}
    with closing(KubeApi("shop", "here", str(write_config(tmp_path / "c", cluster.kube.url, user)))) as api:
        api.objects(POD)
        api.objects(POD)
        assert (tmp_path / "asked").read_text() == "x\n"

        cluster.kube.tokens = {"second"}
        (tmp_path / "token").write_text("second")
        api.objects(POD)
        assert (tmp_path / "asked").read_text() == "x\n" * 2

        cluster.kube.tokens = {"third"}
        with pytest.raises(ApiFailed) as raised:
            api.objects(POD)
        assert raised.value.trouble is Trouble.LOGIN
        assert (tmp_path / "asked").read_text() == "x\n" * 3


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo no such account >&2; exit 1", "no such account"),
        ("echo hello", "failed to decode process output"),
    ],
)
def test_a_program_that_does_not_log_in_is_an_error(
    cluster: FakeCluster, tmp_path: Path, script: str, says: str
) -> None:
    """Nobody goes on as a user without a name; what the program said is shown."""
    path = write_config(tmp_path / "c", cluster.kube.url, program(tmp_path, script))

    result = cluster.run("status", "orders", "--kubeconfig", str(path), "--context", "here")

    assert result.exit_code == 1
    assert "the login failed: exec: " in result.output
    assert says in result.output
    assert "log in to the cluster" in result.output
    assert not cluster.kube.calls


def test_on_a_terminal_a_program_talks_to_people(cluster: FakeCluster, tmp_path: Path) -> None:
    """It may ask, and what it says is not said again."""
    user = program(tmp_path, "echo code? >&2; read code; echo $code is wrong >&2; exit 1")
    path = write_config(tmp_path / "c", cluster.kube.url, user)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "brokerset_cli.main", "kubernetes", "status", "--context", "here"]
    process = subprocess.Popen(
        [*command, "--kubeconfig", str(path)], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)

    os.write(ours, b"1234\n")
    shown = b""
    with suppress(OSError):  # how a terminal ends
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)

    assert process.wait() == 1
    assert b"1234 is wrong" in shown
    assert b"the login failed: see above" in shown


def test_a_login_that_hangs_is_given_up(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login that waits for an answer that nobody gives does not hang scripts."""
    monkeypatch.setattr(kube_api, "LOGIN_SECONDS", 0.2)
    path = write_config(tmp_path / "c", cluster.kube.url, program(tmp_path, "exec sleep 2"))

    with closing(KubeApi(None, "here", str(path))) as api, pytest.raises(ApiFailed) as raised:
        api.objects(POD)

    assert raised.value.trouble is Trouble.TIMEOUT
    assert "was not done after" in raised.value.message
    for thread in threading.enumerate():
        if thread.name == "login":
            thread.join()


def test_an_answer_that_is_no_object_is_an_error(cluster: FakeCluster) -> None:
    """What listens at the server's address may be something else."""
    cluster.log("orders-0-0", "hello")

    with closing(KubeApi()) as api, pytest.raises(ApiFailed, match="is no API server: 'hello'"):
        api.read(POD.path("shop", "orders-0-0", "log"))
