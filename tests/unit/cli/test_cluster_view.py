"""What `status` finds wrong with controllers and groups, and how it tells scripts."""

from __future__ import annotations

import pytest

from brokerset_cli.cluster_view import ControllersView, controller_problems, view_json
from brokerset_client.controller_admin import ControllerObservation
from brokerset_protocol.bodies.controllers import (
    ControllerMember,
    ControllerStatus,
    GroupState,
    ReplicaState,
)

LEADER = ControllerStatus(
    0, "leader", 3, 0, True, 9, 9, 9, 0, (ControllerMember(0, "h:1", "h:2", voter=True, match_index=9),)
)
OBSERVED = ControllerObservation("h:2", LEADER)


def _group(standing: str, master_id: int | None = 1) -> GroupState:
    replica = ReplicaState(1, "h:3", "", 1, None, standing)
    advice = None if standing == "alive" else "start replica 1"
    return GroupState("C", "orders-0", None, 1, 2, master_id, 4, (1,), 1, (), (), (replica,), advice)


@pytest.mark.parametrize(
    ("group", "problems"),
    [
        (_group("alive"), []),
        (_group("unknown"), []),
        (_group("dead"), ["orders-0/1 is master and dead: start replica 1"]),
        (_group("dead", None), ["orders-0 has no master: start replica 1"]),
    ],
    ids=["alive", "not-heard-yet", "dead", "none"],
)
def test_a_group_whose_master_is_dead_or_missing_is_a_problem_with_the_way_out(
    group: GroupState, problems: list[str]
) -> None:
    assert controller_problems(ControllersView((OBSERVED,), (group,), LEADER), None) == problems


def test_an_address_that_is_no_controller_is_said_to_be_none() -> None:
    other = ControllerObservation("h:10911", None, "is no controller of brokerset")

    found = controller_problems(ControllersView((OBSERVED, other), (), LEADER), None)

    assert found == ["controller at h:10911 gives no status: is no controller of brokerset"]


def test_every_key_is_always_there_for_scripts() -> None:
    silent = ControllerObservation("h:9", None, "did not answer")
    view = ControllersView((OBSERVED, silent), (_group("alive"), _group("dead", None)), LEADER)

    found = view_json(view, {})

    assert set(found["controllers"][0]) == set(found["controllers"][1])
    assert set(found["groups"][0]) == set(found["groups"][1])
    assert found["groups"][1]["masterId"] is None
    assert found["groups"][0]["replicas"][0]["logEpoch"] is None
