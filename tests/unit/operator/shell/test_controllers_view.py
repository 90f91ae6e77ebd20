"""What the answers of controllers say of their group."""

from __future__ import annotations

import pytest

from brokerset_operator.controllers_view import view_of
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus


@pytest.mark.parametrize(
    ("heard", "counts"), [(True, True), (False, False), (None, True)], ids=["heard", "unheard", "not said"]
)
def test_a_controller_that_the_leader_does_not_hear_has_not_caught_up(
    heard: bool | None, counts: bool
) -> None:
    """Its index may be that of the process before: one that cannot connect to others would pass for fine."""
    members = tuple(ControllerMember(n, "", "", True, 9, heard if n == 2 else True) for n in range(3))
    status = ControllerStatus(0, "leader", 1, 0, True, 9, 9, 9, 0, members)

    assert (2 in view_of({0: status}, 0).caught_up) is counts
    assert 1 in view_of({0: status}, 0).caught_up
