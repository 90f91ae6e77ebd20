"""How the service elects when everybody in sync lost its page cache."""

from __future__ import annotations

import pytest

from brokerset_controller.liveness import ReplicaKey
from brokerset_controller.replicas.election import FIRST_AFTER_LOSS, LOST_CACHES_OUTSIDER
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_protocol.codes import RequestCode
from brokerset_rig.controller_bench import CLUSTER, GROUP, Bench, FakeBroker, make_bench

EPOCH = 2
"""Of the first master: one above what the brokers' logs have."""


async def after_a_loss_of_power(bench: Bench) -> FakeBroker:
    """1, the master, and 2 were in sync, and come back with less; returns 3, which nobody has heard."""
    for broker_id in (1, 2, 3):
        await bench.join(broker_id, f"n{broker_id}")
        await bench.beat(broker_id, f"n{broker_id}")
    assert (await bench.elect(1)).code == 0
    await bench.in_sync(1, {1, 2})
    bench.liveness.forget(ReplicaKey(GROUP, 3))
    for broker_id in (1, 2):
        again = FakeBroker(broker_id, f"m{broker_id}", epoch=EPOCH, max_offset=80)
        bench.net.brokers[f"10.0.0.{broker_id}:10911"] = again
    outsider = bench.net.brokers["10.0.0.3:10911"]
    outsider.epoch, outsider.max_offset = EPOCH, 90
    bench.clock.advance(11_000)  # what leases there were have ended
    for broker_id in (1, 2):
        answer = await bench.register(
            broker_id,
            f"m{broker_id}",
            last_nonce=f"n{broker_id}",
            log_epoch=EPOCH,
            log_offset=80,
            lost_cache=True,
        )
        assert answer.code == 0, answer.remark
    return outsider


async def rebuilt(bench: Bench, *ids: int) -> None:
    """The controllers know these replicas, started as `nN`, from the brokers alone."""
    state = GroupState(
        CLUSTER, GROUP, None, len(ids), max(ids) + 1, None, EPOCH, (), 0, (), (),
        tuple(ReplicaState(i, f"10.0.0.{i}:10911", f"c{i}", 1, f"n{i}", "unknown") for i in ids),
    )  # fmt: skip
    for i in ids:
        bench.net.brokers[f"10.0.0.{i}:10911"] = FakeBroker(i, f"n{i}", epoch=EPOCH, max_offset=100 - i)
    answer = await bench.ask(RequestCode.BROKERSET_REBUILD_GROUP, None, state.to_json())
    assert answer.code == 0, answer.remark


async def elected(bench: Bench) -> list[tuple[int, str]]:
    """Where what may be lost begins, and why, once the rebuilt group has its first master."""
    async with bench.running():
        await bench.until(lambda: bench.machine.groups[GROUP].master_id is not None)
    return [(loss.from_offset, loss.reason) for loss in bench.machine.groups[GROUP].losses]


async def test_a_rebuilt_group_hears_of_a_lost_page_cache_before_the_broker_registers() -> None:
    """The answer to the question who is there says it."""

    bench = make_bench()
    await rebuilt(bench, 1, 2)
    bench.net.brokers["10.0.0.2:10911"].lost_cache = True

    assert await elected(bench) == [(99, FIRST_AFTER_LOSS)]


@pytest.mark.parametrize("heard", ["registration", "heartbeat", "later process"])
async def test_a_rebuilt_group_hears_of_a_lost_page_cache_whichever_way(heard: str) -> None:
    """Though the broker's answer to the question, which may be older, does not say it."""

    bench = make_bench()
    await rebuilt(bench, 1, 2)
    more = {"log_epoch": EPOCH, "log_offset": 98, "lost_cache": True}
    if heard == "registration":
        answer = await bench.register(2, "n2", **more)
    elif heard == "heartbeat":
        answer = await bench.beat(2, "n2", lost_cache=True)
    else:
        bench.net.brokers["10.0.0.2:10911"].nonce = "m2"
        answer = await bench.register(2, "m2", last_nonce="n2", **more)
    assert answer.code == 0, answer.remark

    assert await elected(bench) == [(99, FIRST_AFTER_LOSS)]


async def test_a_volume_that_is_older_than_its_last_process_counts_as_lost_after_a_rebuild() -> None:
    """The leader heard how far the log went."""

    bench = make_bench()
    await rebuilt(bench, 1, 2)
    assert (await bench.register(2, "n2", log_epoch=EPOCH, log_offset=500)).code == 0
    bench.net.brokers["10.0.0.2:10911"].nonce = "m2"
    answer = await bench.register(2, "m2", last_nonce="n2", log_epoch=EPOCH, log_offset=98)
    assert answer.code == 0, answer.remark

    assert await elected(bench) == [(99, FIRST_AFTER_LOSS)]


async def test_a_rebuilt_group_that_kept_its_page_caches_has_lost_nothing() -> None:
    """Nothing is recorded; nor for a volume of another program, of which nobody knows."""

    bench = make_bench()
    await rebuilt(bench, 1, 2)
    more = {"log_epoch": EPOCH, "log_offset": 98, "lost_cache": True, "adopt": True}
    assert (await bench.register(2, "n2", **more)).code == 0

    assert await elected(bench) == []


async def test_who_was_not_in_sync_is_asked_where_its_log_ends() -> None:
    """It answers, has the most, and is elected; what may be lost is behind its end."""

    bench = make_bench()
    outsider = await after_a_loss_of_power(bench)

    async with bench.running():
        await bench.until(lambda: bench.machine.groups[GROUP].master_id is not None)

    group = bench.machine.groups[GROUP]
    assert outsider.asked > 0
    assert (group.master_id, set(group.sync_state_set)) == (3, {3})
    assert [(loss.from_offset, loss.reason) for loss in group.losses] == [(90, LOST_CACHES_OUTSIDER)]


async def test_who_was_not_in_sync_and_does_not_answer_is_not_waited_for() -> None:
    """Its port refuses."""

    bench = make_bench()
    await after_a_loss_of_power(bench)
    del bench.net.brokers["10.0.0.3:10911"]

    async with bench.running():
        await bench.until(lambda: bench.machine.groups[GROUP].master_id is not None)

    group = bench.machine.groups[GROUP]
    assert group.master_id == 1
    assert [loss.from_offset for loss in group.losses] == [80]
