"""How a wish changes what a set remembers, and what is left of a plan that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_cli.folder import Wish
from brokerset_cli.running import wished, without_new
from brokerset_spec.manifest import default_manifest
from brokerset_spec.plan import LocalPlan, PlanRefused, plan_local
from brokerset_spec.set_memory import SetMemory


def _plan(memory: SetMemory) -> LocalPlan:
    return plan_local(default_manifest("set"), Path("/d"), memory=memory, is_free=lambda _: True)


def test_a_wish_changes_only_what_it_names() -> None:
    before = _plan(SetMemory("u")).memory

    controllers = wished(before, Wish("w", (0, 1)))
    brokers = wished(before, Wish("w", brokers={"set-0": (0, 4)}))

    assert [each.node_id for each in controllers.controllers] == [0, 1]
    assert controllers.groups == before.groups
    assert brokers.controllers == before.controllers
    assert brokers.groups["set-0"].numbers == (0, 4)


@pytest.mark.parametrize("brokers", [{"other": (0,)}, {"set-0": ()}, {"set-0": tuple(range(10))}])
def test_a_wish_that_makes_no_sense_is_refused(brokers: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(PlanRefused):
        wished(_plan(SetMemory("u")).memory, Wish("w", brokers=brokers))


def test_when_a_new_process_does_not_start_no_new_one_stays_and_none_that_left_returns() -> None:
    before = _plan(SetMemory("u"))
    plan = _plan(wished(before.memory, Wish("w", (0, 1, 3), {"set-0": (0, 2, 5)})))

    left = without_new(before, plan)

    assert [process.name for process in left.processes] == [
        "controller-0",
        "controller-1",
        "set-0-0",
        "set-0-2",
    ]
    assert left.memory.groups["set-0"].numbers == (0, 2)
    assert [each.node_id for each in left.memory.controllers] == [0, 1]
    assert left.memory.next_controller_id == 4
