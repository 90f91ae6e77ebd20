"""Store folders that become other replicas while their brokers are stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.main import main


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "orders-0-1" / "store"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "commitlog" / "00000000000000000000").write_bytes(b"m")
    (folder / "brokerIdentity").write_text("C#orders-0#2")
    (folder / "brokerIdentity-start").write_text("x")
    (folder / "lock").touch()
    return folder


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["replica", *arguments, "--yes"])
    return result.exit_code, result.output


def _names(folder: Path) -> list[str]:
    return sorted("aside" if path.name.startswith("aside-") else path.name for path in folder.iterdir())


def test_a_replaced_store_keeps_its_messages_and_not_its_identity(store: Path) -> None:
    code, output = _run("replace", str(store))

    assert code == 0, output
    assert _names(store) == ["aside", "commitlog", "lock"]
    assert _names(next(store.glob("aside-*"))) == ["brokerIdentity", "brokerIdentity-start"]
    assert "was orders-0/2" in output
    assert "brokerset replica retire orders-0 2" in output


@pytest.mark.parametrize("arguments", [("replace", "--empty"), ("rehome", "--group", "bills-0")])
def test_an_emptied_store_keeps_nothing_where_a_broker_would_look(
    store: Path, arguments: tuple[str, ...]
) -> None:
    code, output = _run(arguments[0], str(store.parent), *arguments[1:])

    assert code == 0, output
    assert _names(store) == ["aside", "lock"]
    assert (next(store.glob("aside-*")) / "commitlog" / "00000000000000000000").read_bytes() == b"m"


def test_a_store_that_runs_is_not_touched(store: Path) -> None:
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'a+b'); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(store / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        code, output = _run("replace", str(store))

        holder.communicate(b"")
    assert code == 1
    assert f"is locked by process {holder.pid}" in output
    assert _names(store) == ["brokerIdentity", "brokerIdentity-start", "commitlog", "lock"]


def test_a_folder_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")

    code, output = _run("replace", str(tmp_path))

    assert code == 1
    assert f"{tmp_path} is no store of a broker" in output
    assert _names(tmp_path) == ["thesis.txt"]


@pytest.mark.parametrize(
    ("group", "code", "says"),
    [("orders-0", 1, "belongs to orders-0 already"), ("a b", 2, "must be 1 to 127 letters")],
)
def test_a_store_is_not_rehomed_to_nowhere(store: Path, group: str, code: int, says: str) -> None:
    found, output = _run("rehome", str(store), "--group", group)

    assert found == code
    assert says in output
    assert "aside" not in _names(store)


def test_a_garbled_identity_does_not_stand_in_the_way(store: Path) -> None:
    (store / "brokerIdentity").write_text("garbage")

    code, output = _run("replace", str(store))

    assert code == 0, output
    assert "is not cluster#broker#id" in output
    assert "brokerIdentity" not in _names(store)


@pytest.mark.parametrize("arguments", [("clean", "g"), ("clean", "g", "1", "--all")])
def test_clean_needs_ids_or_all(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*arguments])

    assert result.exit_code == 2
    assert "Give the ids of replicas, or --all" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("elect", "g"),
        ("clean", "g", "1", "--yes"),
        ("replica", "retire", "g", "1", "--yes"),
        ("controller", "members"),
        ("controller", "transfer"),
        ("controller", "snapshot"),
        ("controller", "members", "add", "3", "127.0.0.1:1", "127.0.0.1:2"),
        ("controller", "members", "promote", "3"),
        ("controller", "members", "remove", "3"),
    ],
)
def test_controllers_that_are_down_are_named_with_what_to_do(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerset_client.controller_admin.OBSERVE_SECONDS", 0.05)
    result = CliRunner().invoke(main, [*arguments, "--controller", "127.0.0.1:1"])

    assert result.exit_code == 1
    assert "no leading controller was found: " in result.output
    assert "more than half of them must; name others than 127.0.0.1:1 with --controller" in result.output


def test_scaling_needs_a_running_set(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["controller", "scale", "5", "--data", str(tmp_path)])

    assert result.exit_code == 1
    assert f"no set runs in {tmp_path}" in result.output
