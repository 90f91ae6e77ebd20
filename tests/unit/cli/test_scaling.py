"""Which steps lead to another number of controllers."""

from __future__ import annotations

import pytest

from brokerset_cli.scaling import ScaleSteps, decide_steps, transfer_target
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus


def _steps(**wanted: tuple[int, ...]) -> ScaleSteps:
    none: dict[str, tuple[int, ...]] = {
        name: () for name in ("forget", "start", "join", "promote", "leave", "stop")
    }
    return ScaleSteps(**{**none, **wanted})


VOTERS = {0: True, 1: True, 2: True}


@pytest.mark.parametrize(
    ("members", "running", "next_id", "wanted", "steps"),
    [
        (VOTERS, (0, 1, 2), 3, 3, _steps()),
        (VOTERS, (0, 1, 2), 3, 5, _steps(start=(3, 4), join=(3, 4), promote=(3, 4))),
        (VOTERS, (0, 1, 2), 7, 4, _steps(start=(7,), join=(7,), promote=(7,))),
        ({**VOTERS, 3: True, 4: True}, (0, 1, 2, 3, 4), 5, 3, _steps(leave=(4, 3), stop=(3, 4))),
        (VOTERS, (0, 1, 2), 3, 1, _steps(leave=(2, 1), stop=(1, 2))),
    ],
    ids=["nothing", "three-to-five", "fresh-numbers", "five-to-three", "three-to-one"],
)
def test_controllers_join_and_leave_one_by_one(
    members: dict[int, bool], running: tuple[int, ...], next_id: int, wanted: int, steps: ScaleSteps
) -> None:
    assert decide_steps(members, running, next_id, wanted) == steps


@pytest.mark.parametrize(
    ("members", "running", "steps"),
    [
        (VOTERS, (0, 1, 2, 3), _steps(stop=(3,))),
        ({**VOTERS, 3: False}, (0, 1, 2, 3), _steps(leave=(3,), stop=(3,))),
        ({0: True, 1: True, 2: False}, (0, 1, 2), _steps(promote=(2,))),
        (VOTERS, (0, 2), _steps(forget=(1,), start=(4,), join=(4,), promote=(4,))),
        ({0: True, 2: True}, (0, 2, 3), _steps(join=(3,), promote=(3,))),
    ],
    ids=["started", "added", "not-promoted", "lost", "started-to-replace"],
)
def test_what_was_left_half_done_is_finished(
    members: dict[int, bool], running: tuple[int, ...], steps: ScaleSteps
) -> None:
    """Of a call that was interrupted, or of a controller that lost its data; three are wanted."""
    assert decide_steps(members, running, 4, 3) == steps


def test_the_leadership_goes_to_the_voter_that_has_most_of_the_log() -> None:
    members = tuple(
        ControllerMember(n, "", "", voter=n != 4, match_index=index)
        for n, index in enumerate((50, 40, 45, 45, 60))
    )
    status = ControllerStatus(0, "leader", 3, 0, True, 50, 50, 50, 0, members)

    assert transfer_target(status, range(5)) == 2
    assert transfer_target(status, (0, 1)) == 1
    assert transfer_target(status, (0, 4)) is None
