"""How the service gives leases, elects past stuck masters, lets masters hand over, and fences."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_controller.liveness import ReplicaKey
from brokerset_controller.replicas.codec import encode_event
from brokerset_controller.replicas.events import FencingChanged, MasterElected, SyncStateSetAltered
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.headers.controller import (
    BrokerHeartbeatAnswer,
    FenceReplica,
    NotifyBrokerRoleChanged,
)
from brokerset_raft.engine import OutcomeUnknown, Overloaded
from brokerset_rig.controller_bench import GROUP, Bench, FakeBroker, FakeConnection, make_bench

EPOCH = 2
"""Of the first master: one above what the brokers' logs have."""


async def three(bench: Bench, *, nonces: bool = True, all_ack: bool | None = None) -> None:
    """Three brokers, all alive and in sync; 1 is master."""
    for broker_id in (1, 2, 3):
        nonce = f"n{broker_id}" if nonces else None
        await bench.join(broker_id, nonce)
        await bench.beat(broker_id, nonce, connection=FakeConnection(broker_id), all_ack=all_ack)
    assert (await bench.elect(1)).code == 0
    await bench.in_sync(1, {1, 2, 3})


def elected_past_1(broker_id: int) -> MasterElected:
    """What another controller had agreed on."""
    return MasterElected(GROUP, broker_id, EPOCH + 1, EPOCH, 2, False, "", None, f"n{broker_id}")


def read(reply: Command) -> BrokerHeartbeatAnswer:
    assert reply.code == 0, reply.remark
    return BrokerHeartbeatAnswer.from_ext(reply.ext)


async def fence(bench: Bench, broker_id: int, **more: bool) -> Command:
    header = FenceReplica(broker_name=GROUP, broker_id=broker_id, **more)
    return await bench.ask(RequestCode.BROKERSET_FENCE_REPLICA, header)


async def test_the_master_gets_a_lease_behind_a_barrier() -> None:
    """As long as its heartbeat's own time-out; the barrier begins after the heartbeat has arrived."""

    bench = make_bench()
    await three(bench)
    before = bench.engine.barriers

    answer = read(await bench.beat(1, "n1"))

    assert (answer.lease_ms, answer.lease_epoch, answer.fenced) == (3_000, EPOCH, False)
    assert bench.engine.barriers == before + 1
    assert bench.service.measurements.leases == 1
    assert bench.service.view(GROUP).lease_seconds > 0


async def test_heartbeats_of_others_cost_no_barrier() -> None:
    """Slaves hear the epoch, and whether they are fenced; Java's brokers and one-way beats nothing at all."""

    bench = make_bench()
    await three(bench)
    before = bench.engine.barriers

    assert (await bench.beat(2, "n2")).ext == {"fenced": "false", "masterEpoch": str(EPOCH)}
    assert (await bench.beat(1, "n1", flag=FLAG_ONEWAY)).ext == {}
    assert bench.engine.barriers == before

    java = make_bench()
    await three(java, nonces=False)
    before = java.engine.barriers
    assert (await java.beat(1)).ext == {}
    assert java.engine.barriers == before


async def test_a_follower_gives_no_lease() -> None:
    """It answers at once, and says nothing of fences either: it may lag. An epoch that it knows is one."""

    bench = make_bench()
    await three(bench)
    bench.engine.follow(2)
    before = bench.engine.barriers

    assert (await bench.beat(1, "n1")).ext == {"masterEpoch": str(EPOCH)}
    assert (await bench.beat(2, "n2")).ext == {"masterEpoch": str(EPOCH)}
    assert bench.engine.barriers == before


async def test_a_leader_that_is_deposed_meanwhile_gives_none() -> None:
    """The heartbeat is answered all the same."""

    bench = make_bench()
    await three(bench)

    async def deposed() -> None:
        bench.engine.follow(2)

    bench.engine.before_barrier = deposed
    answer = read(await bench.beat(1, "n1"))

    assert answer == BrokerHeartbeatAnswer(master_epoch=EPOCH)
    assert bench.service.measurements.leases_refused == 1


async def test_the_state_after_the_barrier_decides() -> None:
    """What was committed elsewhere before is known then: another master, or a fence."""

    bench = make_bench()
    await three(bench)

    async def elected() -> None:
        bench.engine.commit(encode_event(MasterElected(GROUP, 2, EPOCH + 1, EPOCH, 2, False, "", None, "n2")))

    bench.engine.before_barrier = elected
    overtaken = read(await bench.beat(1, "n1"))
    assert (overtaken.lease_ms, overtaken.master_epoch) == (None, EPOCH + 1)
    assert read(await bench.beat(1, "n1")).lease_ms is None
    assert read(await bench.beat(2, "n2")).lease_epoch == EPOCH + 1


async def test_no_lease_is_given_while_an_election_is_being_agreed_on() -> None:
    """It was decided by the leases known then; a new one could outlive it."""

    bench = make_bench()
    await three(bench)
    answers: list[BrokerHeartbeatAnswer] = []

    async def meanwhile() -> None:
        answers.append(read(await bench.beat(1, "n1")))

    bench.engine.before_propose = meanwhile
    assert (await bench.elect(2, designate_elect=True)).code == 0

    assert [answer.lease_ms for answer in answers] == [None]
    assert read(await bench.beat(2, "n2")).lease_ms == 3_000


@pytest.mark.parametrize(("error", "blocked"), [(OutcomeUnknown("?"), True), (Overloaded("!"), False)])
async def test_an_election_without_known_outcome_blocks_leases_until_it_is_applied(
    error: Exception, blocked: bool
) -> None:
    """Its entry may be committed yet; one that was never taken blocks nothing."""

    bench = make_bench()
    await three(bench)

    async def fail() -> None:
        raise error

    bench.engine.before_propose = fail
    assert (await bench.elect(2, designate_elect=True)).code in (1, 2)

    assert (read(await bench.beat(1, "n1")).lease_ms is None) is blocked
    late = MasterElected(GROUP, 2, EPOCH + 1, EPOCH, 2, False, "named by an administrator", None, "n2")
    if blocked:
        bench.engine.commit(encode_event(SyncStateSetAltered(GROUP, 1, EPOCH, 2, frozenset({1}))))
        assert read(await bench.beat(1, "n1")).lease_ms is None
        bench.engine.commit(encode_event(late))
        assert bench.machine.groups[GROUP].master_id == 1, "another set came first"
    assert read(await bench.beat(1, "n1")).lease_ms == 3_000


async def test_a_stuck_master_loses_its_lease_and_its_place() -> None:
    """Its heartbeats go on, but the log takes nothing for longer than it might be silent."""

    bench = make_bench()
    await three(bench)
    async with bench.running():
        answer = read(await bench.beat(1, "n1", append_age_ms=3_001))
        assert answer.lease_ms is None
        await bench.until(lambda: bench.machine.groups[GROUP].master_id != 1)

    reasons = bench.service.measurements.election_reasons
    assert any("takes nothing any more" in reason for reason in reasons)


@pytest.mark.parametrize("asked", [False, True])
async def test_who_cannot_lead_is_not_elected_before_its_first_heartbeat(asked: bool) -> None:
    """It would be the only one in sync, and who has everything would come too late: the registration says so,
    or the answer to a new leader's question."""

    bench = make_bench()
    await three(bench)
    for broker_id in (1, 2, 3):
        del bench.net.brokers[f"10.0.0.{broker_id}:10911"]
        bench.liveness.forget(ReplicaKey(GROUP, broker_id))
    bench.clock.advance(11_000)  # what leases there were have ended
    async with bench.running():
        await bench.until(lambda: bench.service.masterless_groups == 1)
        damaged = FakeBroker(2, "m2", append_age_ms=86_400_000)
        bench.net.brokers["10.0.0.2:10911"] = damaged
        answer = await bench.register(
            2, "m2", last_nonce="n2", log_epoch=1, log_offset=50, append_age_ms=86_400_000
        )
        assert answer.code == 0, answer.remark
        if asked:
            bench.liveness.forget(ReplicaKey(GROUP, 2))
            await bench.until(lambda: damaged.asked > 0)
        await asyncio.sleep(0.1)
        assert set(bench.machine.groups[GROUP].sync_state_set) == {1, 2, 3}

        bench.net.brokers["10.0.0.3:10911"] = FakeBroker(3, "m3")
        answer = await bench.register(3, "m3", last_nonce="n3", log_epoch=1, log_offset=100)
        assert answer.code == 0, answer.remark
        await bench.until(lambda: bench.machine.groups[GROUP].master_id == 3)


def test_where_the_master_alone_acknowledges_failover_waits_for_the_lease() -> None:
    """A silent master may serve until then; a refused connection proves that it does not."""

    async def scene(refused: bool) -> None:
        bench = make_bench()
        await three(bench, all_ack=False)
        bench.clock.advance(11_000)  # the controller before this one is out of the way
        for broker_id in (2, 3):
            await bench.beat(broker_id, f"n{broker_id}", all_ack=False)
        assert read(await bench.beat(1, "n1", all_ack=False)).lease_ms == 3_000
        address = "10.0.0.1:10911"
        if refused:
            del bench.net.brokers[address]
        else:
            bench.net.brokers[address].silent = True
        async with bench.running():
            bench.clock.advance(2_500)
            for broker_id in (2, 3):
                await bench.beat(broker_id, f"n{broker_id}", all_ack=False)
            bench.service.connection_closed(bench.connection)
            for broker_id in (2, 3):
                await bench.beat(broker_id, f"n{broker_id}", all_ack=False)
            if not refused:
                await bench.until(lambda: bench.net.brokers[address].asked > 0)
                await bench.until(lambda: bench.service.masterless_groups == 1)
                assert bench.machine.groups[GROUP].master_id == 1
                bench.clock.advance(600)
            await bench.until(lambda: bench.machine.groups[GROUP].master_id != 1)

    asyncio.run(scene(refused=True))
    asyncio.run(scene(refused=False))


async def test_a_master_hands_over_and_everybody_is_told() -> None:
    """The successor is told at once, and nobody is asked whether it lives while sends are held."""

    bench = make_bench()
    await three(bench)
    bench.service.liveness.closed(FakeConnection(3), 0.0)
    asked = [broker.asked for broker in bench.net.brokers.values()]
    async with bench.running():
        answer = await bench.elect(2, designate_elect=True, handover_epoch=EPOCH, nonce="n1")
        await bench.until(lambda: len(bench.net.told) >= 2)

    assert (answer.code, answer.ext["masterBrokerId"], answer.ext["masterEpoch"]) == (
        0,
        "2",
        str(EPOCH + 1),
    )
    assert [broker.asked for broker in bench.net.brokers.values()] == asked
    told = NotifyBrokerRoleChanged.from_ext(bench.net.told[0][1].ext)
    assert (told.master_broker_id, told.master_nonce) == (2, "n2")
    assert bench.service.measurements.hand_overs == 1
    assert (await bench.elect(3, designate_elect=True, handover_epoch=EPOCH, nonce="n1")).code == (
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    )


async def test_a_fenced_replica_is_told_with_its_heartbeats() -> None:
    """And the master hears at once that the set is another."""

    bench = make_bench()
    await three(bench)
    async with bench.running():
        assert (await fence(bench, 3)).code == 0
        await bench.until(lambda: bool(bench.net.told))

    assert (await bench.beat(3, "n3")).ext == {"fenced": "true", "masterEpoch": str(EPOCH)}
    assert bench.machine.groups[GROUP].sync_state_set == {1, 2}
    told = NotifyBrokerRoleChanged.from_ext(bench.net.told[0][1].ext)
    assert (told.master_epoch, told.sync_state_set_epoch) == (EPOCH, 3)
    assert bench.service.measurements.fences == {"fenced": 1}
    assert (await fence(bench, 3, fenced=False)).code == 0
    assert (await bench.beat(3, "n3")).ext == {"fenced": "false", "masterEpoch": str(EPOCH)}


async def test_a_fence_that_is_refused_says_why() -> None:
    """The master first needs a switchover."""

    bench = make_bench()
    await three(bench)

    answer = await fence(bench, 1)

    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "switchover" in (answer.remark or "")
    bench.engine.follow(2)
    assert (await fence(bench, 3)).code == ResponseCode.CONTROLLER_NOT_LEADER


async def test_a_fence_decided_on_an_old_state_is_decided_anew() -> None:
    """The replica became master while the event was on its way."""

    bench = make_bench()
    await three(bench)

    async def elected() -> None:
        bench.engine.commit(encode_event(MasterElected(GROUP, 3, EPOCH + 1, EPOCH, 2, False, "", None, "n3")))

    bench.engine.before_propose = elected
    answer = await fence(bench, 3)

    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert bench.machine.groups[GROUP].fenced == frozenset()


async def test_a_fenced_replica_gets_no_lease() -> None:
    """It is told to serve nobody."""

    bench = make_bench()
    await three(bench)
    bench.engine.commit(encode_event(FencingChanged(GROUP, 3, True, EPOCH, 2)))

    assert read(await bench.beat(3, "n3")).lease_ms is None
