"""Transactions of one broker: what producers and consumers see, and what becomes of them after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from brokerset_broker.app import Broker
from brokerset_formats import fastjson
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import decode_record, encode_record
from brokerset_rig.local_servers import Setup
from brokerset_rig.transaction_client import COMMIT, ROLLBACK, UNKNOWN, TransactionClient, transaction_client

SOON: dict[str, Any] = {"transaction_time_out": 0, "transaction_check_interval": 50}
"""Settings with which open transactions are checked at once."""


@asynccontextmanager
async def pair(setup: Setup, **changes: Any) -> AsyncIterator[tuple[Broker, TransactionClient]]:
    async with setup.broker(**changes) as broker, transaction_client(broker.port) as client:
        yield broker, client


async def test_a_committed_message_is_delivered_in_javas_form(setup: Setup) -> None:
    """Golden 29: the final record has sysFlag 8, names its half, and no longer where it belongs."""

    async with pair(setup) as (_, client):
        await client.create_topic("t")
        half = await client.send_half(
            "t", b"paid", "K0", queue_id=3, properties={"KEYS": "k", "TAGS": "A"}, g=1_700_000_000_000
        )
        assert half.queue_offset == 0
        assert (await client.pull("t", 0, queue_id=3)).code == 19

        assert (await client.end(half, COMMIT)).code == 0

        record = (await client.wait_for("t", 0, queue_id=3, expression="A"))[0]
        assert (record.body, record.queue_id, record.queue_offset, record.sys_flag) == (b"paid", 3, 0, 8)
        assert record.prepared_transaction_offset == half.offset
        assert record.born_timestamp == 1_700_000_000_000
        assert setup.properties(record) == {
            "CLUSTER": "DefaultCluster", "KEYS": "k", "MSG_REGION": "DefaultRegion", "PGROUP": "pg",
            "TAGS": "A", "TRACE_ON": "true", "TRAN_MSG": "true", "UNIQ_KEY": "K0", "WAIT": "true",
            "__transactionId__": "K0",
        }  # fmt: skip


async def test_a_half_message_is_an_ordinary_record_of_the_half_topic_as_javas_is(setup: Setup) -> None:
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"x", "K0", queue_id=2, h=7)

        record = setup.records(await client.pull(HALF_TOPIC, 0))[0]

        assert (record.body, record.queue_id, record.sys_flag, record.flag) == (b"x", 0, 0, 7)
        assert record.offset == half.offset
        found = setup.properties(record)
        assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("t", "2")
        assert found["__transactionId__"] == "K0"
        assert broker.transaction_log.counts.topics["t"].open == 1


async def test_both_ways_of_storing_half_messages_store_the_same(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way of the standard clients, and the one that takes any message."""

    async with pair(setup) as (_, client):
        await client.create_topic("t")
        given = {"KEYS": "k", "TAGS": "A", "größe": "ß"}
        for patched in (False, True):
            if patched:
                monkeypatch.setattr("brokerset_broker.requests.send.is_plain_half", lambda *_: False)
            await client.send_half("t", b"x", "K0", queue_id=2, properties=given, h=7, f=4, g=1_000)

        first, second = setup.records(await client.pull(HALF_TOPIC, 0))
        places: dict[str, Any] = {"queue_offset": 0, "offset": 0, "store_timestamp": 0}
        assert replace(first, **places) == replace(second, **places)


async def test_a_rolled_back_message_is_never_delivered_and_named_in_an_op_record(setup: Setup) -> None:
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"no", "K0")

        assert (await client.end(half, ROLLBACK)).code == 0

        op = setup.records(await client.pull(OP_HALF_TOPIC, 0))[0]
        assert (op.body, setup.properties(op)) == (b"0,", {"WAIT": "true", "TAGS": "d"})
        assert (await client.pull("t", 0)).code == 19
        assert broker.store.queue_max("t", 0) == 0


async def test_a_transaction_ends_once(setup: Setup) -> None:
    """The same end again is done, and stores nothing; the other one is refused."""

    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        committed = await client.send_half("t", b"1", "K1")
        dropped = await client.send_half("t", b"2", "K2")
        for _ in range(3):
            assert (await client.end(committed, COMMIT)).code == 0
            assert (await client.end(dropped, ROLLBACK)).code == 0
        refused = [await client.end(committed, ROLLBACK), await client.end(dropped, COMMIT)]

        assert [reply.code for reply in refused] == [1, 1]
        assert [reply.remark for reply in refused] == [
            "the transaction was committed before",
            "the transaction was rolled back before",
        ]
        assert broker.store.queue_max("t", 0) == 1
        assert broker.store.queue_max(OP_HALF_TOPIC, 0) == 2


async def test_ends_of_one_turn_share_an_op_record(setup: Setup) -> None:
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        halves = [await client.send_half("t", b"%d" % n, f"K{n}") for n in range(20)]

        for half in halves:
            client.end_one_way(half, COMMIT)
        records = await client.wait_for("t", 0)

        assert len(records) == 20
        assert broker.store.queue_max(OP_HALF_TOPIC, 0) < 10


async def test_ends_that_name_something_else_get_javas_answers(setup: Setup) -> None:
    async with pair(setup) as (_, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"x", "K0")
        await client.send("t", b"plain")

        async def answer(kind: int = COMMIT, **changes: Any) -> tuple[int, str | None]:
            reply = await client.end(half, kind, **changes)
            return reply.code, reply.remark

        assert await answer(commitLogOffset=10**9) == (1, "Find prepared transaction message failed")
        assert await answer(commitLogOffset=half.offset + 1) == (
            1,
            "Find prepared transaction message failed",
        )
        assert await answer(producerGroup="other") == (1, "The producer group wrong")
        assert await answer(tranStateTableOffset=1) == (1, "The transaction state table offset wrong")
        assert await answer(msgId="other", transactionId="other") == (1, "The transaction id wrong")
        assert await answer(kind=4) == (1, "commitOrRollback field wrong")
        assert await answer() == (0, None)


async def test_an_offset_of_a_forged_half_inside_of_a_message_is_none(setup: Setup) -> None:
    """Who sends the bytes of a half as a body cannot commit them in the name of another transaction."""

    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"x", "K0")
        forged = bytearray(bytes(broker.store.read(half.offset) or b""))
        body_begin = 88  # of a record with IPv4 hosts
        inside = broker.store.max_offset + body_begin
        forged[28:36] = inside.to_bytes(8, "big")
        await client.send("t", bytes(forged))
        assert bytes(broker.store.read(inside) or b"") == bytes(forged)

        reply = await client.end(half, COMMIT, commitLogOffset=inside)

        assert (reply.code, reply.remark) == (1, "Find prepared transaction message failed")


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"PGROUP": ""}, 13),
        ({"DELAY": "3"}, 13),
        ({"TIMER_DELAY_SEC": "9"}, 13),
        ({"TIMER_DELIVER_MS": "1800000000000"}, 13),
    ],
)
async def test_halves_that_could_not_be_served_are_refused(
    setup: Setup, properties: dict[str, str], code: int
) -> None:
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        before = broker.store.max_offset

        reply = await client.half_reply("t", b"x", "K0", properties=properties)

        assert (reply.code, broker.store.max_offset) == (code, before)


async def test_half_messages_are_refused_where_the_settings_say_so(setup: Setup) -> None:
    async with pair(setup, reject_transaction_message=True) as (_, client):
        await client.create_topic("t")

        reply = await client.half_reply("t", b"x", "K0")

        assert reply.code == 16
        assert reply.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


async def test_producers_are_asked_about_what_they_did_not_end(setup: Setup) -> None:
    """1.8 of the reference: where the answer goes, and the message as it was sent, with its counter."""

    async with pair(setup, **SOON) as (broker, client):
        await client.create_topic("t")
        first = await client.send_half("t", b"open", "K0", queue_id=1, properties={"TAGS": "C"})

        question = await client.asked()

        assert question.fields["topic"] == HALF_TOPIC
        assert question.fields["transactionId"] == question.fields["msgId"] == "K0"
        assert question.fields["bname"] == "broker-a"
        assert question.half.queue_offset == first.queue_offset + 1
        assert (question.record.topic, question.record.queue_id) == ("t", 1)
        assert setup.properties(question.record)["TRANSACTION_CHECK_TIMES"] == "1"

        client.end_one_way(question.half, COMMIT, check=True)
        record = (await client.wait_for("t", 0, queue_id=1))[0]
        assert (record.body, setup.properties(record)["TRANSACTION_CHECK_TIMES"]) == (b"open", "1")
        assert (await client.end(first, COMMIT)).code == 0
        assert broker.store.queue_max("t", 1) == 1


async def test_a_producer_that_does_not_know_is_asked_again(setup: Setup) -> None:
    async with pair(setup, **SOON) as (_, client):
        await client.create_topic("t")
        await client.send_half("t", b"x", "K0")
        times = []
        for _ in range(3):
            question = await client.asked()
            client.end_one_way(question.half, UNKNOWN, check=True)
            times.append(setup.properties(question.record)["TRANSACTION_CHECK_TIMES"])

        assert times == ["1", "2", "3"]


async def test_what_is_never_answered_is_given_up_and_can_be_resumed(setup: Setup) -> None:
    async with pair(setup, transaction_check_max=2, **SOON) as (broker, client):
        await client.create_topic("t")
        first = await client.send_half("t", b"x", "K0")

        given_up = (await client.wait_for(CHECK_MAX_TIME_TOPIC, 0))[0]

        assert broker.topics.get(CHECK_MAX_TIME_TOPIC) is not None
        assert setup.properties(given_up)["REAL_TOPIC"] == "t"
        assert broker.transaction_log.counts.topics["t"].open == 0
        late = await client.end(first, COMMIT)
        assert late.code == 1
        assert "given up" in (late.remark or "")

        while not client.questions.empty():
            client.questions.get_nowait()
        offset_id = first.msg_id[:16] + f"{given_up.offset:016X}"
        assert (await client.call(323, topic=CHECK_MAX_TIME_TOPIC, msgId=offset_id)).code == 0
        question = await client.asked()
        assert setup.properties(question.record)["TRANSACTION_CHECK_TIMES"] == "1"
        assert (await client.end(question.half, COMMIT, check=True)).code == 0
        assert [record.body for record in await client.wait_for("t", 0)] == [b"x"]
        again = await client.call(323, topic=HALF_TOPIC, msgId=first.msg_id)
        assert again.code == 1
        assert (again.remark or "").startswith("Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed.")


async def test_what_is_given_up_is_in_no_light_queue(setup: Setup) -> None:
    """Nobody has committed it; after a commit it is where its producer wants it."""
    wanted = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    serving: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with pair(setup, transaction_check_max=1, **SOON, **serving) as (_, client):
        await client.create_topic("t")
        await client.send_half("t", b"open", "K0", properties=wanted)
        await client.wait_for(CHECK_MAX_TIME_TOPIC, 0)
        committed = await client.send_half("t", b"committed", "K1", properties=wanted)
        assert (await client.end(committed, COMMIT)).code == 0

        assert setup.bodies(await client.pull("%LMQ%a", 0)) == [b"committed"]


async def test_resuming_what_is_no_half_message_is_refused(setup: Setup) -> None:
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        plain = await client.send("t", b"x")
        before = broker.store.max_offset

        for msg_id in (plain.ext["msgId"], plain.ext["msgId"][:16] + "00000000000F4240", "nonsense"):
            reply = await client.call(323, msgId=msg_id)
            assert (reply.code, broker.store.max_offset) == (1, before)


async def test_a_forged_given_up_half_inside_of_a_message_is_not_resumed(setup: Setup) -> None:
    """It could name any topic as its target, also those that only the broker writes: here the op topic."""
    async with pair(setup, **SOON) as (broker, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"x", "K0")
        record = decode_record(broker.store.read(half.offset) or b"")
        assert (await client.end(half, ROLLBACK)).code == 0
        inside = broker.store.max_offset + 88  # behind the head of a record with IPv4 hosts
        properties = record.properties.replace(
            b"REAL_TOPIC\x01t\x02", b"REAL_TOPIC\x01%b\x02" % OP_HALF_TOPIC.encode()
        )
        forged = replace(record, topic=CHECK_MAX_TIME_TOPIC, offset=inside, properties=properties, body=b"0,")
        await client.send("t", encode_record(forged))
        assert decode_record(broker.store.read(inside) or b"").topic == CHECK_MAX_TIME_TOPIC

        reply = await client.call(323, topic=CHECK_MAX_TIME_TOPIC, msgId=f"{half.msg_id[:16]}{inside:016X}")

        assert reply.code == 1
        assert "no record" in (reply.remark or "")


async def test_an_immune_half_is_not_checked_and_a_late_end_of_it_is_refused(setup: Setup) -> None:
    async with pair(setup, **SOON) as (_, client):
        await client.create_topic("t")
        late = await client.send_half(
            "t", b"late", "K0", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, g=1_700_000_000_000
        )
        immune = await client.send_half(
            "t", b"immune", "K1", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}
        )

        question = await client.asked()

        assert question.fields["msgId"] == "K0"
        assert (await client.end(late, COMMIT)).code == 604
        assert (await client.end(immune, COMMIT)).code == 0


async def test_the_state_goes_on_over_a_restart(setup: Setup) -> None:
    """What has ended stays so, what is open is asked about, and neither is delivered twice."""

    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        halves = [await client.send_half("t", b"%d" % n, f"K{n}") for n in range(5)]
        assert (await client.end(halves[0], COMMIT)).code == 0
        assert (await client.end(halves[1], ROLLBACK)).code == 0
        assert (await client.end(halves[3], COMMIT)).code == 0
        counts = broker.transaction_log.counts.topics["t"]
        assert (counts.open, counts.committed, counts.rolled_back) == (2, 2, 1)
    saved = orjson.loads((setup.folder / "config" / "transactionMetrics").read_bytes())
    assert saved["transactionCount"]["t"]["count"] == 2

    async with pair(setup, **SOON) as (broker, client):
        await setup.until(lambda: broker.transaction_log.resolved is not None)
        assert broker.transaction_log.counts.topics["t"].open == 2
        assert [(await client.end(halves[n], COMMIT)).code for n in (0, 1, 3)] == [0, 1, 0]
        assert [(await client.end(halves[n], ROLLBACK)).code for n in (0, 1, 3)] == [1, 0, 1]
        asked = {(await client.asked()).fields["msgId"] for _ in range(2)}
        assert asked == {"K2", "K4"}
        assert broker.store.queue_max("t", 0) == 2


async def test_progress_is_saved_as_offsets_of_javas_group(setup: Setup) -> None:
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        for n in range(3):
            half = await client.send_half("t", b"x", f"K{n}")
            assert (await client.end(half, ROLLBACK)).code == 0

        def saved() -> list[int | None]:
            query = broker.offsets.query
            return [query(TRANSACTION_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC)]

        await setup.until(lambda: saved() == [3, 3])
    table = orjson.loads((setup.folder / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert table[f"{HALF_TOPIC}@{TRANSACTION_GROUP}"] == {"0": 3}


async def test_clients_cannot_move_the_progress(setup: Setup) -> None:
    async with pair(setup) as (broker, client):
        fields: dict[str, Any] = {
            "consumerGroup": TRANSACTION_GROUP,
            "topic": HALF_TOPIC,
            "queueId": 0,
            "commitOffset": 7,
        }

        assert (await client.call(15, **fields)).code == 29

        assert broker.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) is None


async def test_nor_can_administrators(setup: Setup) -> None:
    """A progress that was set ahead would pass an open transaction: its commit would be refused after a
    restart."""
    clone: dict[str, Any] = {"topic": HALF_TOPIC, "destGroup": TRANSACTION_GROUP, "offline": "true"}
    async with pair(setup) as (broker, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"x", "K0")
        await client.call(200, fastjson.dumps(SubscriptionGroupConfig("g").to_json()))
        broker.offsets.commit("g", HALF_TOPIC, 0, 1)

        reset = await client.call(
            222, topic=HALF_TOPIC, group=TRANSACTION_GROUP, timestamp=-1, isForce="true"
        )
        cloned = await client.call(314, srcGroup="g", **clone)

        for refused in (reset, cloned):
            assert refused.code == 1
            assert "the broker's own" in (refused.remark or "")
        assert broker.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) is None
    async with pair(setup) as (_, client):
        assert (await client.end(half, COMMIT)).code == 0


async def test_a_progress_behind_the_queues_is_clamped(setup: Setup) -> None:
    """Its file may outlive the end of the log: new transactions are checked all the same."""

    _write_offsets(setup.folder / "config" / "consumerOffset.json")

    async with pair(setup, **SOON) as (_, client):
        await client.create_topic("t")
        await client.send_half("t", b"x", "K0")

        assert (await client.asked()).fields["msgId"] == "K0"


def _write_offsets(path: Path) -> None:
    path.parent.mkdir(parents=True)
    keys = [f"{topic}@{TRANSACTION_GROUP}" for topic in (HALF_TOPIC, OP_HALF_TOPIC)]
    path.write_bytes(orjson.dumps({"offsetTable": {key: {"0": 1000} for key in keys}}))


async def test_a_commit_to_a_topic_that_is_gone_is_refused(setup: Setup) -> None:
    async with pair(setup) as (_, client):
        await client.create_topic("t")
        half = await client.send_half("t", b"x", "K0")
        assert (await client.call(215, topic="t")).code == 0

        assert (await client.end(half, COMMIT)).code == 17

        await client.create_topic("t")
        assert (await client.end(half, COMMIT)).code == 0


async def test_another_producer_of_the_group_is_asked_when_one_has_gone(setup: Setup) -> None:
    async with setup.broker(**SOON) as broker, transaction_client(broker.port) as other:
        async with transaction_client(broker.port) as first:
            await first.create_topic("t")
            half = await first.send_half("t", b"x", "K0", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"})
            assert half.queue_offset == 0

        question = await asyncio.wait_for(other.asked(), 20)

        assert decode_properties(question.record.properties)["PGROUP"] == "pg"
        assert (await other.end(question.half, COMMIT, check=True)).code == 0
