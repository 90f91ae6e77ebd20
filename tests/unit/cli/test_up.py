"""`up` and `down` before anything is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.folder import DataFolder
from brokerset_cli.main import main
from brokerset_cli.set_tls import make_tls, processes_file, use_tls_of, use_tls_of_own
from brokerset_cli.up import choose_ports
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE
from brokerset_spec.local_ports import PortWishes
from brokerset_spec.manifest import default_manifest
from brokerset_spec.plan import controller_data_folder
from brokerset_spec.set_memory import ControllerMemory, SetMemory


def _run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    return result.exit_code, result.output


def test_a_bad_manifest_is_answered_with_all_its_problems_and_nothing_is_started(tmp_path: Path) -> None:
    head = "apiVersion: brokerset.io/v1alpha1\nkind: BrokerSet\nmetadata: {name: X}\n"
    manifest = head + "spec: {tls: {secretName: s}}\n"

    code, output = _run("up", "-f", "-", "--data", str(tmp_path / "d"), stdin=manifest)

    assert code == 1
    assert "  - metadata.name: is not a name" in output
    assert "  - spec.tls.secretName: names a Secret, which only Kubernetes has" in output
    assert "nothing was started" in output
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("up", "-f", "/none.yaml"), 1, "/none.yaml cannot be read: No such file or directory"),
        (("send", "hello", "--namesrv", "somewhere"), 2, "'somewhere' is not HOST:PORT"),
        (("group", "create", "CID_RMQ_SYS_mine"), 2, "made by brokers for themselves"),
    ],
    ids=["missing-manifest", "no-address", "group-of-the-system"],
)
def test_what_cannot_be_done_is_named(arguments: tuple[str, ...], code: int, says: str) -> None:
    found, output = _run(*arguments)

    assert (found, says in output) == (code, True), output


@pytest.mark.parametrize("name", ["authority", "client-authority"])
def test_a_damaged_authority_is_said_and_nothing_is_started(tmp_path: Path, name: str) -> None:
    """Others trust it, so a new one is not made in silence."""
    DataFolder(tmp_path / "d").claim(default_manifest().metadata.name).release()
    folder = tmp_path / "d" / "tls"
    folder.mkdir()
    for ending in ("pem", "key"):
        (folder / f"{name}.{ending}").write_bytes(b"")

    code, output = _run("up", "--tls", "--data", str(tmp_path / "d"))

    assert code == 1
    assert f"an authority in {folder} cannot be used: {name}.pem, {name}.key: " in output
    assert "restore its .pem and .key" in output
    assert not (folder / "processes.properties").exists()


def test_a_damaged_file_of_access_control_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    """Brokers know the old passwords, so new ones are not made in silence."""
    DataFolder(tmp_path / "d").claim(default_manifest().metadata.name).release()
    folder = tmp_path / "d" / "acl"
    folder.mkdir()
    (folder / "tools.yml").write_bytes(b"")

    code, output = _run("up", "--acl", "--data", str(tmp_path / "d"))

    assert code == 1
    assert f"a file in {folder} cannot be used: tools.yml has no accessKey" in output
    assert not (folder / "settings.json").exists()


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_a_set_is_asked_as_its_folder_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """TLS that the environment names for another set would let `up` wait in vain for its own."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "/elsewhere/clients.properties")
    if secure:
        make_tls(tmp_path, ["127.0.0.1"])

    use_tls_of(tmp_path)
    assert os.environ[ENVIRONMENT_VARIABLE] == "/elsewhere/clients.properties"
    use_tls_of_own(tmp_path)

    assert os.environ.get(ENVIRONMENT_VARIABLE) == (str(processes_file(tmp_path)) if secure else None)


def test_a_busy_port_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        code, output = _run("up", "--data", str(tmp_path / "d"), "--namesrv-port", str(port))

    assert code == 1
    assert f"port {port}, which the name server needs, is taken by process " in output
    assert "--namesrv-port" in output


def test_down_touches_no_folder_that_is_not_brokersets(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("x")

    code, output = _run("down", "--data", str(tmp_path), "--purge", "--yes")

    assert code == 1
    assert "is not a folder of brokerset" in output
    assert (tmp_path / "keep").exists()


def test_a_command_without_a_cluster_says_how_to_get_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

        code, output = _run("send", "hello", "--namesrv", address)

    assert code == 1
    assert "no name server answered" in output
    assert "start a set with `brokerset up`" in output


@pytest.mark.parametrize("ports", [(), ("--broker-port", "0"), ("--namesrv-port", "0")])
@pytest.mark.parametrize("host", ["192.0.2.1", "::1", "no such host"])
def test_a_host_that_is_none_of_this_machine_is_named(
    tmp_path: Path, host: str, ports: tuple[str, ...]
) -> None:
    code, output = _run("up", "--data", str(tmp_path / "d"), "--host", host, *ports)

    assert code == 1
    assert f"cannot listen on {host}: " in output
    assert "give an IPv4 address of this machine with --host" in output


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "d" / "controllers" / "controller-0" / "controller.conf").mkdir(parents=True)
    (tmp_path / "d" / "brokerset-folder.json").write_text('{"brokerSet": "brokerset"}')
    ports = [f"--{name}-port=0" for name in ("namesrv", "broker", "http")]

    code, output = _run("up", "--data", str(tmp_path / "d"), *ports)

    assert code == 1
    assert "controller.conf" in output
    assert "give another folder with --data" in output


def test_help_says_what_the_default_folder_is_and_how_to_change_it() -> None:
    _, output = _run("status", "--help")

    text = " ".join(output.split())
    assert "[default: ./brokerset-data]" in text
    assert "BROKERSET_DATA" in text
    assert "BROKERSET_NAMESRV" in text


def test_a_port_that_controllers_keep_is_named_when_it_is_taken(tmp_path: Path) -> None:
    """They know each other by it, so no other port is taken, and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        folder = _set_in(tmp_path, port)
        memory = folder.memory()
        (folder.path / "manifest.json").write_text(_manifest_of("orders"))

        code, output = _run("up", "--data", str(folder.path), "--broker-port", "0", "--http-port", "0")

    assert code == 1
    assert f"port {port}, which controller-0 needs, is taken by process " in output
    assert "it keeps that port, since others know it by it" in output
    assert folder.memory() == memory


def _set_in(tmp_path: Path, port: int, **known: str) -> DataFolder:
    """A folder in which a set has run, whose controller keeps a port that is taken: `up` starts nothing."""
    folder = DataFolder(tmp_path / "d")
    folder.claim("orders").release()
    kept = ControllerMemory(0, port, port + 1, port + 2, started=True)
    folder.write_memory(SetMemory("u", "127.0.0.1", (kept,), 1, **known))  # type: ignore[arg-type]  # texts
    data = controller_data_folder(folder.path, 0)
    data.mkdir(parents=True)
    (data / "hard-state").write_bytes(b"x")
    return folder


def _manifest_of(name: str) -> str:
    return f"apiVersion: brokerset.io/v1alpha1\nkind: BrokerSet\nmetadata: {{name: {name}}}\nspec: {{}}\n"


def test_without_a_manifest_the_one_of_the_last_start_is_run_again(tmp_path: Path) -> None:
    """Only that of the folder's set; without one the default manifest is another set's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        folder = _set_in(tmp_path, int(server.getsockname()[1]))
        ask = ("up", "--data", str(folder.path), "--broker-port", "0", "--http-port", "0")
        _, without = _run(*ask)
        (folder.path / "manifest.json").write_text(_manifest_of("bills"))
        _, of_another = _run(*ask)
        (folder.path / "manifest.json").write_text(_manifest_of("orders"))
        _, stored = _run(*ask)
        _, given = _run(*ask, "-f", "-", stdin=_manifest_of("bills"))

    assert "belongs to the BrokerSet 'orders', not to 'brokerset'" in without
    assert "belongs to the BrokerSet 'orders', not to 'brokerset'" in of_another
    assert "which controller-0 needs, is taken" in stored
    assert "belongs to the BrokerSet 'orders', not to 'bills'" in given


def test_without_a_host_the_one_of_the_last_start_is_taken_and_another_one_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = int(server.getsockname()[1])
        folder = _set_in(tmp_path, port, listen_host="192.0.2.1")
        (folder.path / "manifest.json").write_text(_manifest_of("orders"))
        ask = ("up", "--data", str(folder.path), "--broker-port", "0", "--http-port", "0")
        _, last = _run(*ask)
        folder.write_memory(SetMemory("u", "127.0.0.9", folder.memory().controllers, 1))
        _, older = _run(*ask)
        _, given = _run(*ask, "--host", "127.0.0.1")

    assert "cannot listen on 192.0.2.1" in last
    assert f"port {port}, which controller-0 needs, is taken by process " in older
    assert "know each other by the address 127.0.0.9, not 127.0.0.1" in given


def test_a_start_that_was_refused_leaves_the_manifest_of_the_last_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        folder = _set_in(tmp_path, int(server.getsockname()[1]))
        (folder.path / "manifest.json").write_text(_manifest_of("orders"))
        changed = _manifest_of("orders").replace("{}", "{replicas: 1}")
        for options in ((), ("--detach",)):
            code, _ = _run("up", "--data", str(folder.path), "-f", "-", *options, stdin=changed)
            assert code == 1

    assert (folder.path / "manifest.json").read_text() == _manifest_of("orders")


def test_a_free_port_for_brokers_is_far_from_those_that_controllers_of_the_folder_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody listens on those while the set is down, so that they look free."""
    offered = iter([20_003, 20_150, 19_801, 20_300])
    monkeypatch.setattr("brokerset_cli.up.free_port", lambda host, *offsets: next(offered))

    chosen = choose_ports("127.0.0.1", PortWishes(0, 0), kept=(20_000, 20_010))

    assert chosen == PortWishes(None, 20_300, None)
