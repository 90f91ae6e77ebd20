"""How a wish changes what a set remembers, and what is left of a plan that failed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.folder import DataFolder, Wish
from brokerset_cli.running import Run, not_lost, wished, without_new
from brokerset_spec.manifest import default_manifest
from brokerset_spec.plan import LocalPlan, PlanRefused, plan_local
from brokerset_spec.set_memory import JoinedCluster, SetMemory


def _plan(memory: SetMemory) -> LocalPlan:
    return plan_local(default_manifest("set"), Path("/d"), memory=memory, is_free=lambda _: True)


def test_a_wish_changes_only_what_it_names() -> None:
    before = _plan(SetMemory("u")).memory

    controllers = wished(before, Wish((0, 1)))
    brokers = wished(before, Wish(brokers={"set-0": (0, 4)}))

    assert [each.node_id for each in controllers.controllers] == [0, 1]
    assert controllers.groups == before.groups
    assert brokers.controllers == before.controllers
    assert brokers.groups["set-0"].numbers == (0, 4)


@pytest.mark.parametrize("brokers", [{"other": (0,)}, {"set-0": ()}, {"set-0": tuple(range(10))}])
def test_a_wish_that_makes_no_sense_is_refused(brokers: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(PlanRefused):
        wished(_plan(SetMemory("u")).memory, Wish(brokers=brokers))


def test_when_a_new_process_does_not_start_no_new_one_stays_and_none_that_left_returns() -> None:
    before = _plan(SetMemory("u"))
    plan = _plan(wished(before.memory, Wish((0, 1, 3), {"set-0": (0, 2, 5)})))

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


def _again(before: LocalPlan, wish: Wish) -> LocalPlan:
    memory = wished(before.memory, wish)
    return plan_local(
        default_manifest("set"),
        Path("/d"),
        memory=memory,
        is_free=lambda _: True,
        with_data=not_lost(before, memory),
    )


def test_a_controller_that_lost_its_data_is_not_started_by_a_wish_for_something_else() -> None:
    """It forgot its votes; only a new one may take its place."""
    memory = _plan(SetMemory("u")).memory.with_started((0, 1, 2))
    before = plan_local(
        default_manifest("set"), Path("/d"), memory=memory, is_free=lambda _: True, with_data={0, 2}
    )

    brokers = _again(before, Wish(brokers={"set-0": (0, 1, 2, 3)}))
    replaced = _again(before, Wish((0, 2, 3)))

    assert [p.node_id for p in before.controllers] == [0, 2]
    assert [p.node_id for p in brokers.controllers] == [0, 2]
    assert len(brokers.brokers) == 4
    assert [p.node_id for p in replaced.controllers] == [0, 2, 3]


def test_the_first_controllers_of_a_guest_are_planned_as_they_are_wished_for() -> None:
    plan = _again(_plan(_joined()), Wish(own_controllers=3))

    assert [p.node_id for p in plan.controllers] == [0, 1, 2]
    assert [each.joins for each in plan.memory.controllers] == [False] * 3


def _joined(controllers: str = "c:1") -> SetMemory:
    return _plan(SetMemory("u", joined_cluster_of=JoinedCluster(controllers, "n:1"))).memory


def test_a_guest_gets_controllers_of_its_own_once_and_they_form_a_group_together() -> None:
    before = _joined()

    first = wished(before, Wish(own_controllers=3))
    again = wished(_plan(first).memory, Wish(own_controllers=5))

    assert [(each.node_id, each.joins) for each in first.controllers] == [(0, False), (1, False), (2, False)]
    assert first.joined_cluster_of == before.joined_cluster_of
    assert again == _plan(first).memory


@pytest.mark.parametrize("number", [0, 8])
def test_a_guest_runs_no_more_controllers_than_any_set(number: int) -> None:
    with pytest.raises(PlanRefused, match=f"{number} controllers are to run next to"):
        wished(_joined(), Wish(own_controllers=number))


def test_a_set_that_is_no_guest_needs_no_controllers_beside_its_own() -> None:
    with pytest.raises(PlanRefused, match="no guest of another cluster") as caught:
        wished(_plan(SetMemory("u")).memory, Wish(own_controllers=3))

    assert "controller scale" in caught.value.advice


def test_controllers_are_added_and_removed_only_where_the_brokers_belong_to_them() -> None:
    alone, beside = _joined(), wished(_joined(), Wish(own_controllers=3))
    own = replace(beside, joined_cluster_of=JoinedCluster("", "n:1"))

    with pytest.raises(PlanRefused, match="controllers at c:1; it runs none itself"):
        wished(alone, Wish((0, 1)))
    with pytest.raises(PlanRefused, match="controllers at c:1; it runs some next to them"):
        wished(beside, Wish((0, 1)))
    assert [each.node_id for each in wished(own, Wish((0, 1))).controllers] == [0, 1]


def test_another_clusters_name_servers_are_left_only_after_its_controllers() -> None:
    own = replace(wished(_joined(), Wish(own_controllers=3)), joined_cluster_of=JoinedCluster("", "n:1"))

    after = wished(own, Wish(own_name_servers=True))

    assert after == replace(own, joined_cluster_of=None)
    assert wished(after, Wish(own_name_servers=True)) == after
    with pytest.raises(PlanRefused, match="belong to the controllers at c:1") as caught:
        wished(_joined(), Wish(own_name_servers=True))
    assert "--finish" in caught.value.advice


def test_when_a_guests_controllers_do_not_start_none_stays_and_their_numbers_are_not_used_again() -> None:
    before = _plan(_joined())
    plan = _plan(wished(before.memory, Wish(own_controllers=3)))

    left = without_new(before, plan)

    assert left.processes == before.processes
    assert left.namesrv_address == "n:1"
    assert left.memory.controllers == ()
    assert [each.node_id for each in wished(left.memory, Wish(own_controllers=2)).controllers] == [3, 4]


def _run(tmp_path: Path, memory: SetMemory) -> Run:
    manifest = default_manifest("set")
    plan = plan_local(manifest, tmp_path, memory=memory, is_free=lambda _: True)
    return Run(manifest, plan, DataFolder(tmp_path), "127.0.0.1")


@pytest.mark.parametrize(
    ("joined_cluster_of", "guest", "controllers"),
    [
        (None, False, "127.0.0.1:9878;127.0.0.1:9888;127.0.0.1:9898"),
        (JoinedCluster("c:1", "n:1"), True, "c:1"),
        (JoinedCluster("", "n:1"), False, "127.0.0.1:9878;127.0.0.1:9888;127.0.0.1:9898"),
    ],
)
def test_the_state_says_whether_the_brokers_belong_to_others(
    tmp_path: Path, joined_cluster_of: JoinedCluster | None, guest: bool, controllers: str
) -> None:
    run = _run(tmp_path, SetMemory("u", joined_cluster_of=joined_cluster_of).with_first_controllers(3))

    run.store()

    state = run.folder.read_state()
    assert state is not None
    assert (state.guest, state.controllers) == (guest, controllers)
    own = "127.0.0.1:9876;127.0.0.1:9886;127.0.0.1:9896"
    assert state.namesrv == (own if joined_cluster_of is None else f"n:1;{own}")
