"""Whose a data folder is, and what is stored in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from brokerset_cli.folder import DataFolder, ProcessState, SetState, Wish
from brokerset_cli.main import main
from brokerset_cli.options import controller_address, namesrv_address
from brokerset_cli.output import CommandFailed
from brokerset_cli.processes import start_ticks
from brokerset_spec.set_memory import SetMemory


def _state(pid: int = 0, ticks: int | None = None) -> SetState:
    process = ProcessState(
        name="orders-0-0",
        kind="broker",
        group="orders-0",
        address="127.0.0.1:10911",
        http_port=8080,
        folder="/d/orders-0-0",
        log="/d/logs/orders-0-0.log",
        state="running",
        pid=pid,
        start_ticks=ticks,
        restarts=1,
        started_ms=5,
    )
    return SetState(
        name="orders",
        cluster_name="C",
        phase="running",
        namesrv="127.0.0.1:23876",
        pid=pid,
        start_ticks=ticks,
        started_ms=4,
        processes=(process,),
    )


def test_a_new_folder_is_made_and_marked(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "deep" / "data")

    folder.claim("orders").release()

    assert folder.owner() == "orders"
    folder.claim("orders").release()


def test_a_folder_with_foreign_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")

    with pytest.raises(CommandFailed, match="holds files that are not brokerset's") as caught:
        DataFolder(tmp_path).claim("orders")

    assert str(tmp_path) in caught.value.message
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(CommandFailed, match="nothing was deleted"):
        DataFolder(tmp_path).purge()


def test_a_folder_of_another_set_is_refused_and_its_owner_named(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "d")
    folder.claim("orders").release()
    folder.write_memory(SetMemory(uid="u"))

    with pytest.raises(CommandFailed, match="belongs to the BrokerSet 'orders', not to 'bills'"):
        folder.claim("bills")


def test_a_folder_in_which_every_start_failed_can_become_another_sets(tmp_path: Path) -> None:
    """A typing error in the first `up` must not leave a folder that refuses the second."""
    folder = DataFolder(tmp_path / "d")
    folder.claim("orders").release()

    folder.claim("bills").release()

    assert folder.owner() == "bills"


def test_a_named_folder_without_a_set_is_refused_so_that_no_other_set_is_changed(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["clean", "orders-0", "1", "--yes", "--data", str(tmp_path / "d")])

    assert result.exit_code == 1
    assert f"no set has run in {tmp_path / 'd'}" in result.output


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)

    with pytest.raises(CommandFailed, match="you are 4711"):
        DataFolder(tmp_path / "d").claim("orders")


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")

    with pytest.raises(CommandFailed, match="cannot be used"):
        DataFolder(tmp_path / "f" / "d").claim("orders")


def test_the_state_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)

    folder.write_state(_state())

    assert folder.read_state() == _state()
    assert _state().to_json()["processes"][0]["httpPort"] == 8080


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', "\xff"])
def test_a_damaged_state_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)

    with pytest.raises(CommandFailed, match=r"state\.json cannot be read"):
        DataFolder(tmp_path).read_state()


def test_a_state_of_an_older_version_is_read(tmp_path: Path) -> None:
    value = _state().to_json()
    for name in ("controllers", "wish", "wishProblem", "minInSync"):
        del value[name]
    del value["processes"][0]["ha"]

    assert SetState.from_json(value) == _state()


def test_a_set_has_one_uid_for_ever(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    memory = folder.memory()

    folder.write_memory(memory)

    assert folder.memory() == memory
    assert DataFolder(tmp_path / "other").memory().uid != memory.uid


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 7}'])
def test_a_damaged_memory_is_named_and_not_replaced(tmp_path: Path, text: str) -> None:
    """A new UID would make the brokers strangers to their own controllers."""
    (tmp_path / "set.json").write_text(text)

    with pytest.raises(CommandFailed, match=r"set\.json cannot be read"):
        DataFolder(tmp_path).memory()


def test_a_wish_reads_back_and_one_that_is_damaged_is_none(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    wish = folder.write_wish(Wish((0, 2)))
    first = folder.read_wish()
    other = folder.write_wish(Wish(brokers={"orders-0": (1, 3)}))

    assert first == wish
    assert wish.controllers == (0, 2)
    assert folder.read_wish() == other
    assert (other.controllers, other.brokers) == (None, {"orders-0": (1, 3)})
    (tmp_path / "wish.json").write_text("{")
    assert folder.read_wish() is None


def test_a_process_is_alive_only_with_the_start_that_was_seen() -> None:
    pid = os.getpid()
    ticks = start_ticks(pid)
    assert ticks is not None

    assert _state(pid, ticks).alive
    assert not _state(pid, ticks + 1).alive
    assert not _state(pid, None).alive


@pytest.mark.parametrize(
    ("resolve", "usual", "of_set"),
    [
        (namesrv_address, "127.0.0.1:9876", "127.0.0.1:23876"),
        (controller_address, "127.0.0.1:9878", "127.0.0.1:23878;127.0.0.1:23888"),
    ],
    ids=["name-servers", "controllers"],
)
def test_addresses_are_those_given_then_the_folders_then_the_default(
    tmp_path: Path, resolve: Callable[[str | None, Path], str], usual: str, of_set: str
) -> None:
    before = resolve(None, tmp_path)
    DataFolder(tmp_path).write_state(replace(_state(), controllers="127.0.0.1:23878;127.0.0.1:23888"))

    assert (before, resolve(None, tmp_path)) == (usual, of_set)
    assert resolve("10.0.0.1:1", tmp_path) == "10.0.0.1:1"
    with pytest.raises(click.BadParameter, match="is not HOST:PORT"):
        resolve("somewhere", tmp_path)
