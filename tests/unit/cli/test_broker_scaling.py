"""Who leaves when a group gets smaller, and what a call does that was interrupted before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.broker_scaling import is_led, left_over, members_of, next_to_leave, stay_in_sync
from brokerset_cli.folder import CHANGE_LOCK, DataFolder, ProcessState, SetState
from brokerset_cli.main import main
from brokerset_cli.processes import start_ticks
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_rig.held_file import held_by_another_process


def _process(number: int, group: str = "orders-0") -> ProcessState:
    return ProcessState(
        name=f"{group}-{number}",
        kind="broker",
        group=group,
        address=f"h:{number}",
        http_port=0,
        folder="",
        log="",
        state="running",
        pid=1,
        start_ticks=1,
        restarts=0,
        started_ms=0,
    )


def _state(*processes: ProcessState, min_in_sync: int | None = None) -> SetState:
    pid = os.getpid()
    return SetState(
        "orders", "C", "running", "h:9", pid, start_ticks(pid), 0, processes, min_in_sync=min_in_sync
    )


def _replica(broker_id: int, number: int, standing: str = "alive") -> ReplicaState:
    return ReplicaState(broker_id, f"h:{number}", "", 1, None, standing)


THREE = (_replica(1, 0), _replica(2, 1), _replica(3, 2))
GROUP = GroupState("C", "orders-0", None, 3, 4, 1, 7, (1, 2, 3), 9, (), (), THREE)
STATE = _state(_process(2), _process(0), _process(1), _process(0, "other"))


def _running(tmp_path: Path, min_in_sync: int | None = None) -> DataFolder:
    """A folder in which a set of one broker runs, as its state says."""
    folder = DataFolder(tmp_path / "d")
    folder.claim("orders").release()
    state = _state(_process(0), min_in_sync=min_in_sync)
    folder.write_state(replace(state, controllers="127.0.0.1:1"))
    return folder


def _scale(folder: Path, replicas: int) -> tuple[int, str]:
    arguments = ["scale", "orders-0", "--replicas", str(replicas), "--data", str(folder)]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def test_the_brokers_of_a_group_are_matched_with_replicas_by_their_addresses() -> None:
    found = members_of(STATE, replace(GROUP, replicas=THREE[:2]))

    assert [(each.number, each.broker_id) for each in found] == [(0, 1), (1, 2), (2, -1)]


@pytest.mark.parametrize(
    ("group", "number"),
    [
        (GROUP, 2),
        (replace(GROUP, master_id=3), 1),
        (replace(GROUP, sync_state_set=(1, 3)), 1),
        (replace(GROUP, master_id=3, sync_state_set=(2, 3)), 0),
        (replace(GROUP, replicas=THREE[1:], master_id=3), 0),
    ],
    ids=["highest-id", "not-the-master", "who-is-not-in-sync", "not-in-sync-before-highest", "who-has-no-id"],
)
def test_who_matters_least_leaves_first(group: GroupState, number: int) -> None:
    assert next_to_leave(members_of(STATE, group), group).number == number


@pytest.mark.parametrize(
    ("group", "ids"),
    [
        (GROUP, ()),
        (replace(GROUP, replicas=(*THREE, _replica(4, 7, "dead")), fenced=(4,)), (4,)),
        (replace(GROUP, replicas=(*THREE, _replica(4, 7, "dead"))), ()),
        (replace(GROUP, replicas=(*THREE, _replica(4, 7)), fenced=(4,)), ()),
        (replace(GROUP, replicas=(*THREE[:2], _replica(3, 7, "dead")), fenced=(3,)), ()),
    ],
    ids=["nothing", "stopped-and-not-forgotten", "never-fenced", "alive", "maybe-at-another-port"],
)
def test_a_replica_that_an_interrupted_call_stopped_is_forgotten_and_no_other(
    group: GroupState, ids: tuple[int, ...]
) -> None:
    assert left_over(members_of(STATE, group), group) == ids


def test_those_who_stay_in_sync_are_counted_without_the_one_that_leaves() -> None:
    assert stay_in_sync(GROUP, 3) == 2
    assert stay_in_sync(replace(GROUP, sync_state_set=(1, 2)), 3) == 2
    assert stay_in_sync(replace(GROUP, replicas=(*THREE[:1], _replica(2, 1, "dead"), THREE[2])), 3) == 1


@pytest.mark.parametrize(("standing", "led"), [("alive", True), ("dead", False), ("unknown", False)])
def test_nobody_is_taken_out_of_a_group_whose_master_is_not_known_to_live(standing: str, led: bool) -> None:
    assert is_led(replace(GROUP, replicas=(_replica(1, 0, standing), *THREE[1:]))) == led
    assert not is_led(replace(GROUP, master_id=None))


def test_fewer_brokers_than_the_manifest_wants_in_sync_need_a_flag(tmp_path: Path) -> None:
    code, output = _scale(_running(tmp_path, min_in_sync=2).path, 1)

    assert code == 1
    assert "the manifest says minInSyncReplicas: 2, and 1 brokers can never be so many" in output
    assert "--below-minimum" in output


@pytest.mark.parametrize("command", [["scale", "orders-0", "--replicas", "3"], ["controller", "scale", "3"]])
def test_only_one_command_changes_a_set_at_a_time(tmp_path: Path, command: list[str]) -> None:
    """While `adopt` or another `scale` is about it, nothing is asked of the controllers."""
    folder = _running(tmp_path)

    with held_by_another_process(folder.path / CHANGE_LOCK) as holder:
        result = CliRunner().invoke(main, [*command, "--data", str(folder.path)])

    assert result.exit_code == 1
    assert f"another command changes the set in {folder.path}" in result.output
    assert f"process {holder}" in result.output


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    """An error of the system tells what to do, and nothing has changed."""
    folder = _running(tmp_path)
    (folder.path / CHANGE_LOCK).mkdir()

    code, output = _scale(folder.path, 3)

    assert code == 1
    assert f"{folder.path / CHANGE_LOCK} cannot be locked: Is a directory" in output


def test_only_a_set_that_runs_here_can_be_scaled(tmp_path: Path) -> None:
    code, output = _scale(tmp_path / "d", 2)

    assert code == 1
    assert f"no set runs in {tmp_path / 'd'}" in output
    assert not (tmp_path / "d").exists()
