"""How a group on its way out of Java's cluster is seen, and what of it is proposed to our controllers."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.processes import start_ticks
from brokerset_cli.rebuilding import with_next_ids
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adoption_journal import Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.finish_acts import FinishActs
from brokerset_cli.takeover.finish_observation import FinishObserver, as_brokers_say, as_ours_say, owner_of
from brokerset_cli.takeover.finish_plan import Owner
from brokerset_client.broker_facts import BrokerFacts, SlaveFacts
from brokerset_client.controller_admin import BrokerObservation, ControllersUnavailable
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_spec.set_memory import ControllerMemory, GroupMemory, JoinedCluster, SetMemory


def broker(broker_id: int, *, master_epoch: int | None = None) -> BrokerObservation:
    identity = BrokerIdentityAnswer(replica_id=broker_id, master_epoch=master_epoch, log_offset=100)
    return BrokerObservation(f"o:{broker_id}", "c", "g", identity)


def slave(broker_id: int, *, in_sync: bool = True) -> SlaveFacts:
    return SlaveFacts(broker_id, f"o:{broker_id}", 100, 0, in_sync, False)


MASTER = BrokerFacts("o:3", "master", in_sync=(3, 4), replicas=(slave(4),))
OBSERVED = (broker(3, master_epoch=7), broker(4))


def test_brokers_tell_of_a_group_that_no_controller_tells_of() -> None:
    """The master counts both in, and the slave is connected."""
    found = as_brokers_say("g", 2, OBSERVED, {"o:3": MASTER})

    assert found.master_id == 3
    assert found.ready == 2
    assert not found.known


@pytest.mark.parametrize(
    ("observed", "facts", "ready", "master"),
    [
        ((OBSERVED[0],), MASTER, 1, 3),  # the slave does not answer, and nobody can take it out of the set
        (OBSERVED, replace(MASTER, replicas=()), 1, 3),  # it answers, and is not connected
        (OBSERVED, replace(MASTER, replicas=(slave(4, in_sync=False),)), 1, 3),
        (OBSERVED, replace(MASTER, in_sync=(3,)), 1, 3),
        (OBSERVED, replace(MASTER, role="none"), 0, 3),
        (OBSERVED, None, 0, 3),
        ((broker(3), broker(4)), MASTER, 0, None),
        ((), None, 0, None),
    ],
)
def test_who_is_not_surely_in_sync_is_not(
    observed: tuple[BrokerObservation, ...], facts: BrokerFacts | None, ready: int, master: int | None
) -> None:
    """A slave counts that answers, is connected, and is counted in by the master."""
    found = as_brokers_say("g", 2, observed, {} if facts is None else {"o:3": facts})

    assert found.ready == ready
    assert found.master_id == master


def test_of_two_masters_the_newer_one_is_asked() -> None:
    """One that was relieved, and has not heard of it, tells of an old set."""
    observed = (broker(3, master_epoch=7), broker(4, master_epoch=8))
    newer = BrokerFacts("o:4", "master", in_sync=(4,), replicas=())

    found = as_brokers_say("g", 2, observed, {"o:3": MASTER, "o:4": newer})

    assert found.master_id == 4
    assert found.ready == 1


def state(**changes: object) -> GroupState:
    replicas = tuple(ReplicaState(n, f"o:{n}", "code", 1, "nonce", "alive") for n in (3, 4))
    found = GroupState("c", "g", "uid", 2, 5, 3, 8, (3, 4), 2, (), (), replicas)
    return replace(found, **changes)  # type: ignore[arg-type]  # the fields of a group, by name


def test_our_controllers_tell_of_a_group() -> None:
    """A master counts while it lives, a replica while it lives and is in the set."""
    both = as_ours_say(state(), 2)
    alone = as_ours_say(state(sync_state_set=(3,)), 2)
    one, other = state().replicas
    dead = as_ours_say(state(replicas=(replace(one, standing="dead"), other)), 2)

    assert (both.known, both.master_id, both.ready) == (True, 3, 2)
    assert (alone.master_id, alone.ready) == (3, 1)
    assert (dead.master_id, dead.ready) == (None, 1)


@pytest.mark.parametrize(
    ("joined_cluster_of", "standing"),
    [
        (None, Owner.ORDINARY),
        (JoinedCluster("j:9878", "j:9876"), Owner.JOINED),
        (JoinedCluster("", "j:9876"), Owner.OWN),
    ],
)
def test_the_memory_says_whose_the_brokers_are(
    joined_cluster_of: JoinedCluster | None, standing: Owner
) -> None:
    """The same field that `up` plans from."""
    assert owner_of(SetMemory("uid", joined_cluster_of=joined_cluster_of)) is standing


def test_addresses_of_ours_are_in_the_memory() -> None:
    """Of brokers by group, in their order; of controllers and name servers once they were planned."""
    memory = SetMemory(
        "uid",
        host="10.0.0.9",
        controllers=(ControllerMemory(0, 9876, 9877, 9878), ControllerMemory(1, 9886, 9887, 9888)),
        broker_ports={"g-0": 10911, "g-2": 10921, "other-0": 10931},
        groups={"g": GroupMemory((0, 2), 2), "h": GroupMemory((0,), 1)},
    )

    assert joined_set.own_brokers(memory) == {"g": ("10.0.0.9:10911", "10.0.0.9:10921"), "h": ()}
    assert joined_set.own_controllers(memory) == "10.0.0.9:9878;10.0.0.9:9888"
    assert joined_set.own_name_servers(memory) == "10.0.0.9:9876;10.0.0.9:9886"
    assert joined_set.own_name_servers(SetMemory("uid", controllers=(ControllerMemory(0),))) == ""


@pytest.mark.parametrize(("left_out", "expected"), [(None, 2), (1, 1)])
def test_nobody_waits_for_a_controller_that_lost_its_data(
    tmp_path: Path, left_out: int | None, expected: int
) -> None:
    """`up` leaves it out, and it can be replaced only when our brokers belong to the others."""
    folder = DataFolder(tmp_path)
    controllers = (ControllerMemory(0, 9876, 9877, 9878), ControllerMemory(1, 9886, 9887, 9888))
    folder.write_memory(SetMemory("uid", host="10.0.0.9", controllers=controllers))
    processes = tuple(
        ProcessState(
            f"controller-{each.node_id}", "controller", None, "", 0, "", "", "running", 1, 1, 0, 0,
            namesrv=f"10.0.0.9:{each.namesrv_port}",
        )
        for each in controllers
        if each.node_id != left_out
    )  # fmt: skip
    own_pid = os.getpid()
    state = SetState("s", "c", "running", "", own_pid, start_ticks(own_pid), 0, processes)
    folder.write_state(state)

    found = joined_set.name_servers_that_run(folder).split(";")

    assert found == ["10.0.0.9:9876", "10.0.0.9:9886"][:expected]
    folder.write_state(replace(state, pid=0))
    assert joined_set.name_servers_that_run(folder) == "10.0.0.9:9876;10.0.0.9:9886", "nobody knows it"


def test_ids_that_java_gave_are_not_given_again() -> None:
    """Our brokers may have got theirs before Java's latest one did; what they know counts when it is more."""
    found = with_next_ids(
        [state(next_broker_id=5), state(broker_name="h", next_broker_id=9)], {"g": 7, "h": 3}, "uid"
    )

    assert [each.next_broker_id for each in found] == [7, 9]
    assert with_next_ids([state(next_broker_id=5)], {}, "uid") == (state(next_broker_id=5),)
    assert with_next_ids([state(next_broker_id=5)], {"g": 7}, "another set") == (state(next_broker_id=5),)


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_group_that_lacks_a_broker_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """The missing one may have the longest log: nobody is asked until all have said who they are."""
    folder = DataFolder(tmp_path)
    memory = SetMemory(
        "uid", "127.0.0.1", (ControllerMemory(0, 1, 2, 3),), groups={"g": GroupMemory((0, 1), 2)}
    )
    folder.write_memory(memory)
    journal = Journal(tmp_path)

    async def who_answers(*_: object) -> list[BrokerObservation]:
        return [broker(3), broker(4)][:answered]

    monkeypatch.setattr(FinishObserver, "who_answers", who_answers)

    async def rebuild() -> None:
        async with BrokerQueries() as asker:
            found = FinishObserver(folder, journal, asker)
            await FinishActs(folder, journal, asker, found).rebuild(["g"])

    if answered < 2:
        asyncio.run(rebuild())
    else:
        with pytest.raises(ControllersUnavailable):  # they are asked, and nobody listens there
            asyncio.run(rebuild())
