"""Transactions when a master crashes: what was answered holds, and each is delivered once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from brokerset_broker.app import Broker
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_rig.crashing_groups import CrashingGroup, controlled_group, dledger_group
from brokerset_rig.local_servers import bodies
from brokerset_rig.transaction_client import COMMIT, ROLLBACK, Half, TransactionClient, transaction_client
from brokerset_rig.waiting import until

pytestmark = pytest.mark.long

Groups: TypeAlias = Callable[..., AbstractAsyncContextManager[CrashingGroup]]

KINDS = pytest.mark.parametrize("groups", [controlled_group, dledger_group])


@asynccontextmanager
async def producer(group: CrashingGroup) -> AsyncIterator[tuple[Broker, TransactionClient]]:
    """A producer that is connected to the master."""
    master = await group.master()
    async with transaction_client(master.port) as client:
        yield master, client


async def mixed(client: TransactionClient) -> list[Half]:
    """Five transactions: committed, rolled back, open, committed, open."""
    await client.create_topic("t", queues=1)
    halves = [await client.send_half("t", b"%d" % n, f"K{n}") for n in range(5)]
    for number, kind in ((0, COMMIT), (1, ROLLBACK), (3, COMMIT)):
        assert (await client.end(halves[number], kind)).code == 0
    return halves


async def delivered(client: TransactionClient, count: int) -> list[bytes]:
    """What consumers get, once there is so much; more would be seen, too."""
    found: list[bytes] = []
    while len(found) < count:
        found += [record.body for record in await client.wait_for("t", len(found))]
    return found + bodies(await client.pull("t", len(found)))


@KINDS
async def test_what_was_answered_holds_after_a_crash_and_what_is_open_goes_on(
    tmp_path: Path, groups: Groups
) -> None:
    """Commits are visible, rollbacks are not, ends that come again change nothing, open ones end."""
    async with groups(tmp_path) as group:
        async with producer(group) as (first, client):
            halves = await mixed(client)
            await group.crash(first)

        async with producer(group) as (second, client):
            assert second is not first
            assert await delivered(client, 2) == [b"0", b"3"]
            for number, kind, other in ((0, COMMIT, ROLLBACK), (1, ROLLBACK, COMMIT)):
                assert (await client.end(halves[number], kind)).code == 0
                assert (await client.end(halves[number], other)).code == 1
            assert (await client.end(halves[2], COMMIT)).code == 0
            assert (await client.end(halves[4], ROLLBACK)).code == 0
            assert await delivered(client, 3) == [b"0", b"3", b"2"]
            assert second.transaction_log.counts.topics["t"].open == 0


@KINDS
async def test_producers_are_asked_by_the_next_master(tmp_path: Path, groups: Groups) -> None:
    settings: dict[str, Any] = {"transaction_time_out": 0, "transaction_check_interval": 100}
    async with groups(tmp_path, **settings) as group:
        async with producer(group) as (first, client):
            await client.create_topic("t", queues=1)
            await client.send_half("t", b"open", "K")
            await client.asked()
            await group.crash(first)

        async with producer(group) as (_, client):
            question = await client.asked()
            assert question.fields["msgId"] == "K"
            assert (await client.end(question.half, COMMIT, check=True)).code == 0
            assert await delivered(client, 1) == [b"open"]


@KINDS
async def test_a_commit_whose_op_record_was_lost_is_not_stored_again(
    tmp_path: Path, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master dies between the final record and the op record of the same turn."""
    async with groups(tmp_path) as group:
        async with producer(group) as (first, client):
            await client.create_topic("t", queues=1)
            half = await client.send_half("t", b"once", "K")
            with monkeypatch.context() as patched:
                patched.setattr(first.transaction_log, "write_ops", lambda: None)
                assert (await client.end(half, COMMIT)).code == 0
                await group.crash(first)

        async with producer(group) as (second, client):
            assert await delivered(client, 1) == [b"once"]
            assert (await client.end(half, COMMIT)).code == 0
            await until(lambda: second.store.queue_max(OP_HALF_TOPIC, 0) == 1)
            assert second.store.queue_max("t", 0) == 1


@KINDS
async def test_the_progress_is_known_to_the_next_master(tmp_path: Path, groups: Groups) -> None:
    """It does not read again what was ended long before."""
    async with groups(tmp_path) as group:
        async with producer(group) as (first, client):
            await client.create_topic("t", queues=1)
            for number in range(20):
                half = await client.send_half("t", b"x", f"K{number}")
                assert (await client.end(half, ROLLBACK)).code == 0
            await until(lambda: first.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 20)
            followers = [each for each in group.brokers.values() if each is not first]
            await until(
                lambda: all(each.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 20 for each in followers)
            )
            await group.crash(first)

        second = await group.master()
        await until(lambda: second.transaction_log.resolved is not None)
        assert second.transaction_log.resolved is not None
        assert second.transaction_log.resolved.half_progress == 20


@KINDS
async def test_the_former_master_follows_and_leads_again(tmp_path: Path, groups: Groups) -> None:
    """Its store is what the others have, so it goes on where they are."""
    async with groups(tmp_path) as group:
        async with producer(group) as (first, client):
            halves = await mixed(client)
            number = next(each for each, broker in group.brokers.items() if broker is first)
            await group.crash(first)
        async with producer(group) as (second, client):
            assert (await client.end(halves[2], COMMIT)).code == 0
        again = await group.start(number)
        await until(lambda: again.store.queue_max("t", 0) == 3)
        await until(lambda: again.store.max_offset == second.store.max_offset)
        if groups is controlled_group:
            await until(lambda: len(second.part.role().sync_state_set) == 2)
        await group.crash(second)

        async with producer(group) as (_, client):
            assert (await client.end(halves[2], ROLLBACK)).code == 1
            assert (await client.end(halves[4], COMMIT)).code == 0
            assert await delivered(client, 4) == [b"0", b"3", b"2", b"4"]


@KINDS
async def test_what_was_given_up_is_there_after_a_crash_and_can_be_resumed(
    tmp_path: Path, groups: Groups
) -> None:
    """The topic for it comes into being before its first message."""
    settings: dict[str, Any] = {
        "transaction_time_out": 0, "transaction_check_interval": 100, "transaction_check_max": 1,
    }  # fmt: skip
    async with groups(tmp_path, **settings) as group:
        async with producer(group) as (first, client):
            await client.create_topic("t", queues=1)
            half = await client.send_half("t", b"late", "K")
            given_up = (await client.wait_for(CHECK_MAX_TIME_TOPIC, 0))[0]
            await group.crash(first)

        async with producer(group) as (second, client):
            assert second.topics.get(CHECK_MAX_TIME_TOPIC) is not None
            offset_id = half.msg_id[:16] + f"{given_up.offset:016X}"
            assert (await client.call(323, topic=CHECK_MAX_TIME_TOPIC, msgId=offset_id)).code == 0
            question = await client.asked()
            assert (await client.end(question.half, COMMIT, check=True)).code == 0
            assert await delivered(client, 1) == [b"late"]


@KINDS
async def test_what_reaches_a_slave_is_passed_on(tmp_path: Path, groups: Groups) -> None:
    """Half messages and ends, also those that nobody waits for: clients have old routes for up to 30 s."""
    async with groups(tmp_path) as group:
        async with producer(group) as (first, client):
            await client.create_topic("t", queues=1)
        slave = next(each for each in group.brokers.values() if each is not first)
        await until(lambda: slave.part.role().master_address)
        await until(lambda: slave.topics.get("t") is not None)

        async with transaction_client(slave.port) as client:
            halves = [await client.send_half("t", b"%d" % n, f"K{n}") for n in range(3)]
            client.end_one_way(halves[0], COMMIT)
            assert (await client.end(halves[1], ROLLBACK)).code == 0
            assert (await client.end(halves[2], COMMIT)).code == 0
            await until(lambda: first.store.queue_max("t", 0) == 2)
            assert slave.transaction_log.resolved is None
