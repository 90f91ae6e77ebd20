"""The plan of a set that has joined another cluster, or is about to leave it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_spec.plan import PlanRefused, PortsTaken, PortWishes
from brokerset_spec.set_memory import GroupMemory, JoinedCluster, SetMemory

from .planning import brokers_of, controllers_of, plan_of


def joined(controllers: str = "c:1;c:2", name_servers: str = "n:1;n:2", **known: Any) -> SetMemory:
    return SetMemory("u1", joined_cluster_of=JoinedCluster(controllers, name_servers), **known)


def test_whose_the_brokers_are_follows_from_what_is_remembered() -> None:
    assert SetMemory("u").under_own_controllers
    assert not joined().under_own_controllers
    assert not joined(controllers="c:1").with_first_controllers(3).under_own_controllers
    assert joined(controllers="").under_own_controllers


def test_a_joined_set_runs_controllers_of_its_own_next_to_those_that_its_brokers_belong_to() -> None:
    """They form a group of their own, and only their name servers are used, together with the others."""
    plan = plan_of(memory=joined().with_first_controllers(3))

    assert [(p.name, p.namesrv_address) for p in plan.controllers] == [
        ("controller-0", "127.0.0.1:9876"),
        ("controller-1", "127.0.0.1:9886"),
        ("controller-2", "127.0.0.1:9896"),
    ]
    assert not any(s.raft_join for s in controllers_of(plan))
    assert controllers_of(plan)[0].controller_peers == "n0-127.0.0.1:9878;n1-127.0.0.1:9888;n2-127.0.0.1:9898"
    assert plan.namesrv_address == "n:1;n:2;127.0.0.1:9876;127.0.0.1:9886;127.0.0.1:9896"
    assert plan.controller_address == "c:1;c:2"
    assert {(s.namesrv_addr, s.controller_addr) for s in brokers_of(plan)} == {
        (plan.namesrv_address, plan.controller_address)
    }


def test_a_joined_set_without_controllers_uses_the_other_clusters_alone() -> None:
    plan = plan_of(memory=joined())

    assert plan.controllers == ()
    assert (plan.namesrv_address, plan.controller_address) == ("n:1;n:2", "c:1;c:2")
    assert {(s.namesrv_addr, s.controller_addr) for s in brokers_of(plan)} == {("n:1;n:2", "c:1;c:2")}


def test_brokers_under_controllers_of_their_own_may_register_with_other_name_servers_as_well() -> None:
    """Each name server is named once, also one that the other cluster and the set have in common."""
    known = plan_of(memory=joined(name_servers="n:1; 127.0.0.1:9886 ;").with_first_controllers(2)).memory
    before = plan_of(memory=replace(known, joined_cluster_of=JoinedCluster("", "n:1; 127.0.0.1:9886 ;")))

    after = plan_of(memory=replace(before.memory, joined_cluster_of=None))

    assert before.namesrv_address == "n:1;127.0.0.1:9886;127.0.0.1:9876"
    assert before.controller_address == "127.0.0.1:9878;127.0.0.1:9888"
    assert {(s.namesrv_addr, s.controller_addr) for s in brokers_of(before)} == {
        (before.namesrv_address, before.controller_address)
    }
    assert after.namesrv_address == "127.0.0.1:9876;127.0.0.1:9886"
    assert [p.ports for p in after.controllers] == [p.ports for p in before.controllers]


@pytest.mark.parametrize(
    ("memory", "says", "controllers"),
    [
        (joined(), "no controllers and name servers are run: the brokers belong to those at c:1;c:2", 0),
        (
            joined().with_first_controllers(2),
            "the brokers belong to the controllers at c:1;c:2; controllers of this set run next to them",
            2,
        ),
        (
            joined(controllers=""),
            "the brokers belong to the controllers of this set, and still register with the name servers at "
            "n:1;n:2",
            3,
        ),
    ],
    ids=["joined", "own next to them", "own"],
)
def test_a_note_says_which_cluster_the_set_has_joined(memory: SetMemory, says: str, controllers: int) -> None:
    plan = plan_of(memory=memory)

    (note,) = plan.notes  # and nothing about the number of controllers in the manifest
    assert says in note
    assert len(plan.controllers) == controllers


def test_the_name_server_of_a_joined_set_takes_the_next_free_port_unless_one_is_wished_for() -> None:
    """Nobody looks for it at 9876, where another cluster's may be."""
    new = joined().with_first_controllers(2)

    def is_free(port: int) -> bool:
        return port not in (9876, 9888)

    chosen = plan_of(memory=new, is_free=is_free)
    again = plan_of(memory=chosen.memory)
    wished = plan_of(memory=new, wishes=PortWishes(namesrv=25000))
    with pytest.raises(PortsTaken) as caught:
        plan_of(memory=new, wishes=PortWishes(namesrv=9876), is_free=is_free)

    assert [p.namesrv_address[-4:] for p in chosen.controllers] == ["9896", "9906"]
    assert again == chosen
    assert [p.namesrv_address[-5:] for p in wished.controllers] == ["25000", "25010"]
    assert caught.value.port == 9876


def test_controllers_of_a_joined_set_that_lost_all_data_start_from_scratch_and_its_brokers_stay() -> None:
    first = plan_of(memory=joined().with_first_controllers(2), host="10.0.0.9", wishes=PortWishes(25000))
    memory = first.memory.with_started((0, 1))

    plan = plan_of(memory=memory, with_data=(), host="10.0.0.9")
    with pytest.raises(PlanRefused, match=r"the brokers of this data folder .* 10\.0\.0\.9, not 127"):
        plan_of(memory=memory, with_data=())
    with pytest.raises(PortsTaken) as caught:
        plan_of(memory=memory, with_data=(), host="10.0.0.9", is_free=lambda port: port != 25000)

    assert plan.namesrv_address == first.namesrv_address
    assert [p.node_id for p in plan.controllers] == [2, 3]
    assert any("no broker belongs to them yet" in note for note in plan.notes)
    assert not any("rebuild" in note for note in plan.notes)
    assert caught.value.port == 25000


def test_a_controller_of_a_joined_set_that_lost_its_data_stays_out() -> None:
    memory = plan_of(memory=joined().with_first_controllers(3)).memory.with_started((0, 1, 2))

    plan = plan_of(memory=memory, with_data={0, 2})

    assert [p.node_id for p in plan.controllers] == [0, 2]
    assert any(
        "Replace it while the others run and the brokers belong to them" in note for note in plan.notes
    )
    assert all("spec.controllers.replicas" not in note for note in plan.notes)


def test_the_memory_of_a_joined_set_reads_back_as_it_was_written() -> None:
    memory = plan_of(memory=joined().with_first_controllers(2), host="10.0.0.9").memory
    older = {key: value for key, value in memory.to_json().items() if key != "listenHost"}

    assert SetMemory.from_json(memory.to_json()) == memory
    assert SetMemory.from_json(older) == replace(memory, listen_host="")
    assert SetMemory.from_json(
        replace(memory, joined_cluster_of=JoinedCluster("", "n:1")).to_json()
    ).under_own_controllers


@pytest.mark.parametrize(
    ("joined_cluster_of", "numbers"),
    [
        (JoinedCluster("c:1", "n:1"), (0, 1, 2)),
        (JoinedCluster("", "n:1"), (0, 1)),
        (None, (0, 1, 2)),
    ],
)
def test_no_broker_is_added_while_controllers_change(
    joined_cluster_of: JoinedCluster | None, numbers: tuple[int, ...]
) -> None:
    """Our controllers would take an empty one, the first that they hear of, for the beginning of a new group.

    The manifest's larger number counts before, and again behind it.
    """
    groups = {"orders-0": GroupMemory((0, 1), 2)}
    memory = SetMemory("u1", joined_cluster_of=joined_cluster_of, groups=groups).with_first_controllers(3)

    plan = plan_of(memory=memory)

    assert list(plan.memory.groups) == ["orders-0"]
    assert plan.memory.groups["orders-0"].numbers == numbers
    assert len(plan.brokers) == len(numbers)
    after = plan_of(memory=replace(plan.memory, joined_cluster_of=None))
    assert after.memory.groups["orders-0"].numbers == (0, 1, 2)
