"""How the service elects when everybody in sync lost its page cache."""

from __future__ import annotations

import asyncio

from brokerset_controller.liveness import ReplicaKey
from brokerset_controller.replicas.election import LOST_CACHES_OUTSIDER
from brokerset_rig.controller_bench import GROUP, Bench, FakeBroker, make_bench

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


def test_who_was_not_in_sync_is_asked_where_its_log_ends() -> None:
    """It answers, has the most, and is elected; what may be lost is behind its end."""

    async def scene() -> None:
        bench = make_bench()
        outsider = await after_a_loss_of_power(bench)

        async with bench.running():
            await bench.until(lambda: bench.machine.groups[GROUP].master_id is not None)

        group = bench.machine.groups[GROUP]
        assert outsider.asked > 0
        assert (group.master_id, set(group.sync_state_set)) == (3, {3})
        assert [(loss.from_offset, loss.reason) for loss in group.losses] == [(90, LOST_CACHES_OUTSIDER)]

    asyncio.run(scene())


def test_who_was_not_in_sync_and_does_not_answer_is_not_waited_for() -> None:
    """Its port refuses."""

    async def scene() -> None:
        bench = make_bench()
        await after_a_loss_of_power(bench)
        del bench.net.brokers["10.0.0.3:10911"]

        async with bench.running():
            await bench.until(lambda: bench.machine.groups[GROUP].master_id is not None)

        group = bench.machine.groups[GROUP]
        assert group.master_id == 1
        assert [loss.from_offset for loss in group.losses] == [80]

    asyncio.run(scene())
