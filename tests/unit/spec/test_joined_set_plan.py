"""The plan of a set that is a guest of another cluster, or is about to leave it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.manifest import read_manifest
from brokerset_spec.plan import LocalPlan, PlanRefused, PortsTaken, PortWishes, plan_local
from brokerset_spec.set_memory import GroupMemory, GuestOf, SetMemory


def _plan(
    *,
    memory: SetMemory,
    is_free: Callable[[int], bool] = lambda _: True,
    wishes: PortWishes | None = None,
    host: str = "127.0.0.1",
    with_data: Collection[int] | None = None,
) -> LocalPlan:
    manifest = read_manifest(
        {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    )
    return plan_local(
        manifest,
        Path("/data"),
        memory=memory,
        is_free=is_free,
        wishes=wishes,
        host=host,
        with_data=with_data,
    )


def _brokers(plan: LocalPlan) -> list[BrokerSettings]:
    return [p.settings for p in plan.brokers if isinstance(p.settings, BrokerSettings)]


def _controllers(plan: LocalPlan) -> list[ControllerSettings]:
    return [p.settings for p in plan.controllers if isinstance(p.settings, ControllerSettings)]


def _guest(controllers: str = "c:1;c:2", name_servers: str = "n:1;n:2", **known: Any) -> SetMemory:
    return SetMemory("u1", joined_cluster_of=GuestOf(controllers, name_servers), **known)


def test_whose_the_brokers_are_follows_from_what_is_remembered() -> None:
    assert SetMemory("u").under_own_controllers
    assert not _guest().under_own_controllers
    assert not _guest(controllers="c:1").with_first_controllers(3).under_own_controllers
    assert _guest(controllers="").under_own_controllers


def test_a_guest_runs_controllers_of_its_own_beside_those_that_its_brokers_belong_to() -> None:
    """They form a group of their own, and only their name servers are used, together with the others."""
    plan = _plan(memory=_guest().with_first_controllers(3))

    assert [(p.name, p.namesrv_address) for p in plan.controllers] == [
        ("controller-0", "127.0.0.1:9876"),
        ("controller-1", "127.0.0.1:9886"),
        ("controller-2", "127.0.0.1:9896"),
    ]
    assert not any(s.raft_join for s in _controllers(plan))
    assert _controllers(plan)[0].controller_peers == "n0-127.0.0.1:9878;n1-127.0.0.1:9888;n2-127.0.0.1:9898"
    assert plan.namesrv_address == "n:1;n:2;127.0.0.1:9876;127.0.0.1:9886;127.0.0.1:9896"
    assert plan.controller_address == "c:1;c:2"
    assert {(s.namesrv_addr, s.controller_addr) for s in _brokers(plan)} == {
        (plan.namesrv_address, plan.controller_address)
    }


def test_a_guest_without_controllers_uses_the_other_clusters_alone() -> None:
    plan = _plan(memory=_guest())

    assert plan.controllers == ()
    assert (plan.namesrv_address, plan.controller_address) == ("n:1;n:2", "c:1;c:2")
    assert {(s.namesrv_addr, s.controller_addr) for s in _brokers(plan)} == {("n:1;n:2", "c:1;c:2")}


def test_brokers_under_controllers_of_their_own_may_register_with_other_name_servers_as_well() -> None:
    """Each name server is named once, also one that the other cluster and the set have in common."""
    guest = _plan(memory=_guest(name_servers="n:1; 127.0.0.1:9886 ;").with_first_controllers(2)).memory
    before = _plan(memory=replace(guest, joined_cluster_of=GuestOf("", "n:1; 127.0.0.1:9886 ;")))

    after = _plan(memory=replace(before.memory, joined_cluster_of=None))

    assert before.namesrv_address == "n:1;127.0.0.1:9886;127.0.0.1:9876"
    assert before.controller_address == "127.0.0.1:9878;127.0.0.1:9888"
    assert {(s.namesrv_addr, s.controller_addr) for s in _brokers(before)} == {
        (before.namesrv_address, before.controller_address)
    }
    assert after.namesrv_address == "127.0.0.1:9876;127.0.0.1:9886"
    assert [p.ports for p in after.controllers] == [p.ports for p in before.controllers]


@pytest.mark.parametrize(
    ("memory", "says", "controllers"),
    [
        (_guest(), "no controllers and name servers are run: the brokers belong to those at c:1;c:2", 0),
        (
            _guest().with_first_controllers(2),
            "the brokers belong to the controllers at c:1;c:2; controllers of this set run beside them",
            2,
        ),
        (
            _guest(controllers=""),
            "the brokers belong to the controllers of this set, and still register with the name servers at "
            "n:1;n:2",
            3,
        ),
    ],
    ids=["guest", "beside", "own"],
)
def test_it_is_said_whose_guest_a_set_is(memory: SetMemory, says: str, controllers: int) -> None:
    plan = _plan(memory=memory)

    (note,) = plan.notes  # and nothing about the number of controllers in the manifest
    assert says in note
    assert len(plan.controllers) == controllers


def test_the_name_server_of_a_guest_takes_the_next_free_port_unless_one_is_wished_for() -> None:
    """Nobody looks for it at 9876, where another cluster's may be."""
    new = _guest().with_first_controllers(2)

    def beside(port: int) -> bool:
        return port not in (9876, 9888)

    chosen = _plan(memory=new, is_free=beside)
    again = _plan(memory=chosen.memory)
    wished = _plan(memory=new, wishes=PortWishes(namesrv=25000))
    with pytest.raises(PortsTaken) as caught:
        _plan(memory=new, wishes=PortWishes(namesrv=9876), is_free=beside)

    assert [p.namesrv_address[-4:] for p in chosen.controllers] == ["9896", "9906"]
    assert again == chosen
    assert [p.namesrv_address[-5:] for p in wished.controllers] == ["25000", "25010"]
    assert caught.value.port == 9876


def test_controllers_of_a_guest_that_lost_all_data_start_anew_and_its_brokers_stay_where_they_are() -> None:
    first = _plan(memory=_guest().with_first_controllers(2), host="10.0.0.9", wishes=PortWishes(25000))
    memory = first.memory.with_started((0, 1))

    plan = _plan(memory=memory, with_data=(), host="10.0.0.9")
    with pytest.raises(PlanRefused, match=r"the brokers of this data folder .* 10\.0\.0\.9, not 127"):
        _plan(memory=memory, with_data=())
    with pytest.raises(PortsTaken) as caught:
        _plan(memory=memory, with_data=(), host="10.0.0.9", is_free=lambda port: port != 25000)

    assert plan.namesrv_address == first.namesrv_address
    assert [p.node_id for p in plan.controllers] == [2, 3]
    assert any("no broker belongs to them yet" in note for note in plan.notes)
    assert not any("rebuild" in note for note in plan.notes)
    assert caught.value.port == 25000


def test_a_controller_of_a_guest_that_lost_its_data_stays_out() -> None:
    memory = _plan(memory=_guest().with_first_controllers(3)).memory.with_started((0, 1, 2))

    plan = _plan(memory=memory, with_data={0, 2})

    assert [p.node_id for p in plan.controllers] == [0, 2]
    assert any(
        "Replace it while the others run and the brokers belong to them" in note for note in plan.notes
    )
    assert all("spec.controllers.replicas" not in note for note in plan.notes)


def test_a_guests_memory_reads_back_as_it_was_written() -> None:
    memory = _plan(memory=_guest().with_first_controllers(2), host="10.0.0.9").memory
    older = {key: value for key, value in memory.to_json().items() if key != "listenHost"}

    assert SetMemory.from_json(memory.to_json()) == memory
    assert SetMemory.from_json(older) == replace(memory, listen_host="")
    assert SetMemory.from_json(
        replace(memory, joined_cluster_of=GuestOf("", "n:1")).to_json()
    ).under_own_controllers


@pytest.mark.parametrize(
    ("joined_cluster_of", "numbers"),
    [
        (GuestOf("c:1", "n:1"), (0, 1, 2)),
        (GuestOf("", "n:1"), (0, 1)),
        (None, (0, 1, 2)),
    ],
)
def test_no_broker_is_added_while_controllers_change(
    joined_cluster_of: GuestOf | None, numbers: tuple[int, ...]
) -> None:
    """Our controllers would take an empty one, the first that they hear of, for the beginning of a new group.

    The manifest's larger number counts before, and again behind it.
    """
    groups = {"orders-0": GroupMemory((0, 1), 2)}
    memory = SetMemory("u1", joined_cluster_of=joined_cluster_of, groups=groups).with_first_controllers(3)

    plan = _plan(memory=memory)

    assert list(plan.memory.groups) == ["orders-0"]
    assert plan.memory.groups["orders-0"].numbers == numbers
    assert len(plan.brokers) == len(numbers)
    after = _plan(memory=replace(plan.memory, joined_cluster_of=None))
    assert after.memory.groups["orders-0"].numbers == (0, 1, 2)
