"""The interop verbs of `tests/peers/java/Interop.java`, driven by our own client against any name server.

    python tests/interop/scenarios.py --namesrv 127.0.0.1:9876 [--golden tests/peers/golden] [NAME ...]

Every scenario makes topics and groups of its own run, asserts what must hold, and returns what it saw, under
the keys of the golden file of the same name. With `--golden` both are compared. A scenario runs those it
builds upon first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from brokerset_client import (
    Admin,
    ClientError,
    ConsumeFromWhere,
    ConsumeStatus,
    EndStatus,
    HalfMessage,
    Later,
    Message,
    MessageInvalid,
    MessageModel,
    MessageQueue,
    MessageView,
    Producer,
    PullConsumer,
    PullResult,
    PullStatus,
    PushConsumer,
    PushSettings,
    Replier,
    RequestRefused,
    SendResult,
    SendRetry,
    TopicConfig,
    TopicNotFound,
    TransactionProducer,
    TransactionState,
    Verdict,
)
from brokerset_client.consumer_admin import ConsumerAdmin
from brokerset_client.timers import timed
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.names import dlq_topic
from brokerset_protocol.bodies.heartbeat import ExpressionType

Observed = dict[str, object]

WAIT_SECONDS = 60.0
"""Bound of every wait for a delivery."""

COUNT = 48

ADDED_BY_JAVA_CLIENT = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
"""Properties that Java's consumer puts into the messages it hands out; no broker stores them."""

COMPRESSED = 1


class Run:
    """One pass over the scenarios against one name server."""

    def __init__(self, namesrv: str, suffix: str | None = None) -> None:
        self.namesrv = namesrv
        self.suffix = suffix if suffix is not None else f"-{time.time_ns() // 1_000_000:x}"
        self.results: dict[str, Observed] = {}
        self.took: dict[str, float] = {}

    def name(self, text: str) -> str:
        """A topic or group of this run."""
        return text + self.suffix

    def admin(self) -> Admin:
        return Admin(namesrv=self.namesrv)

    def producer(self, group: str = "it") -> Producer:
        return Producer(self.name(f"{group}-producer"), namesrv=self.namesrv, timeout=10.0)

    def consumer(
        self,
        group: str,
        *,
        listener: Callable[[MessageView], Awaitable[Verdict]],
        orderly: bool = False,
        model: MessageModel = MessageModel.CLUSTERING,
        settings: PushSettings | None = None,
    ) -> PushConsumer:
        return PushConsumer(
            self.name(group),
            namesrv=self.namesrv,
            listener=listener,
            orderly=orderly,
            model=model,
            settings=settings,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )

    def message(self, topic: str, number: int, size: int = 0) -> Message:
        """Message `number` of a run: tag A/B/C, key, three properties, as Interop.java makes it."""
        return Message(
            topic=self.name(topic),
            body=f"body-{number}".encode().ljust(size, b"."),
            tags=tag(number),
            keys=(f"k-{number}",),
            properties={"i": str(number), "shard": f"s{number % 4}", "name": f"näme-{number}"},
        )

    async def need(self, scenario: str) -> Observed:
        """What an earlier scenario saw; it runs now if it has not yet."""
        if scenario not in self.results:
            started = time.monotonic()
            self.results[scenario] = await SCENARIOS[scenario](self)
            self.took[scenario] = time.monotonic() - started
        return self.results[scenario]

    async def read(self, topics: Sequence[str], group: str, count: int) -> list[MessageView]:
        """Read with a plain push consumer until `count` messages came, and a little longer."""
        got: list[MessageView] = []
        arrived = asyncio.Condition()

        async def listen(message: MessageView) -> None:
            async with arrived:
                got.append(message)
                arrived.notify_all()

        consumer = self.consumer(group, listener=listen)
        for topic in topics:
            consumer.subscribe(self.name(topic))
        async with consumer:
            async with asyncio.timeout(WAIT_SECONDS), arrived:
                await arrived.wait_for(lambda: len(got) >= count)
            await asyncio.sleep(0.3)  # whatever would come too often
        return got


def tag(number: int) -> str:
    return "ABC"[number % 3]


def text(message: MessageView) -> str:
    body = message.body.decode()
    return f"{body[: body.index('..')]}+{len(body)}" if ".." in body else body


def number_of(body: str) -> int:
    return int(body.partition("body-")[2].partition("+")[0])


def in_order(messages: Sequence[MessageView]) -> list[str]:
    return sorted((text(message) for message in messages), key=lambda body: (number_of(body), body))


def shape(message: MessageView, run: Run) -> Observed:
    return {
        "topic": message.topic.removesuffix(run.suffix),
        "tags": message.tags,
        "keys": " ".join(message.keys),
        "flag": message.flag,
        "sysFlag": message.sys_flag & ~COMPRESSED,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": "0" if message.prepared_transaction_offset == 0 else "not 0",
        "properties": sorted(message.properties),
    }


def summary(results: Sequence[SendResult]) -> Observed:
    return {
        "statuses": dict(Counter(result.status.name for result in results)),
        "regionId": results[0].region_id,
        "traceOn": results[0].trace_on,
    }


def consecutive(results: Sequence[SendResult]) -> bool:
    offsets: dict[MessageQueue, list[int]] = {}
    for result in results:
        offsets.setdefault(result.queue, []).append(result.queue_offset)
    return all(sorted(some) == list(range(min(some), min(some) + len(some))) for some in offsets.values())


async def until(check: Callable[[], Awaitable[bool]], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Ask again and again until `check` holds."""
    try:
        async with asyncio.timeout(seconds):
            while not await check():  # noqa: ASYNC110  # what is asked for happens in other processes
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what} did not happen in {seconds} s") from None


# -- topics -------------------------------------------------------------------------------------------------


async def create(run: Run, topic: str, kind: str | None = None) -> Observed:
    async with run.admin() as admin:
        attributes = {"+message.type": kind} if kind else {}
        await admin.create_topic(TopicConfig(run.name(topic), 4, 4, attributes=attributes))
        data = await admin.wait_for_route(run.name(topic), 4)
    assert data.queue_datas[0].write_queue_nums == 4
    return {"queues": 4}


async def route(run: Run, topic: str) -> Observed:
    async with run.admin() as admin:
        # A topic that was made by sending reaches the name server a moment after the send.
        data = await admin.wait_for_route(run.name(topic), 4)
    return {
        "queueDatas": [queue.to_object() for queue in data.queue_datas],
        "brokerDatas": [
            {
                "brokerName": broker.broker_name,
                "cluster": broker.cluster,
                "enableActingMaster": broker.enable_acting_master,
                "ids": sorted(broker.broker_addrs),
            }
            for broker in data.broker_datas
        ],
    }


async def create_topic(run: Run) -> Observed:
    return await create(run, "it-send")


async def topic_route(run: Run) -> Observed:
    await run.need("01-create-topic")
    return await route(run, "it-send")


async def delete_topic(run: Run) -> Observed:
    await run.need("41-create-then-delete")
    async with run.admin() as admin:
        await admin.delete_topic(run.name("it-delete"))
        try:
            await admin.topic_route(run.name("it-delete"))
        except TopicNotFound:
            return {"afterwards": 17}
    raise AssertionError("the topic is still there")


# -- sending ------------------------------------------------------------------------------------------------


async def send_some(run: Run, topic: str, count: int, size: int = 0) -> Observed:
    async with run.producer() as producer:
        results = [await producer.send(run.message(topic, number, size)) for number in range(count)]
    assert consecutive(results), results
    return {"sent": count, "consecutive": True, **summary(results)}


async def send(run: Run) -> Observed:
    await run.need("01-create-topic")
    return await send_some(run, "it-send", COUNT)


async def send_async(run: Run) -> Observed:
    async with run.producer() as producer:
        sent = [await producer.send_async(run.message("it-async", number)) for number in range(COUNT)]
        results = await asyncio.gather(*sent)
    assert consecutive(results), results
    return {"sent": COUNT, "errors": [], "consecutive": True, **summary(results)}


async def create_oneway_topic(run: Run) -> Observed:
    return await create(run, "it-oneway")


async def send_oneway(run: Run) -> Observed:
    await run.need("13-create-oneway-topic")
    async with run.producer() as producer:
        for number in range(COUNT):
            await producer.send_oneway(run.message("it-oneway", number))
        got = await run.read(["it-oneway"], "it-oneway", COUNT)
    assert len(got) == COUNT
    return {"sent": COUNT}


async def auto_created_route(run: Run) -> Observed:
    await run.need("12-send-async")
    return await route(run, "it-async")


async def batch(run: Run) -> Observed:
    async with run.producer() as producer:
        result = await producer.send_batch([run.message("it-batch", number) for number in range(32)])
    got = await run.read(["it-batch"], "it-batch", 32)
    assert len(got) == 32
    first = min(got, key=lambda message: number_of(text(message)))
    return {
        **summary([result]),
        "msgIds": len(result.message_id.split(",")),
        "offsetMsgIds": len(result.offset_message_id.split(",")),
        "bodies": in_order(got),
        "first": shape(first, run),
    }


async def big(run: Run) -> Observed:
    return await send_some(run, "it-big", 4, 20_000)


async def ordered_send(run: Run) -> Observed:
    async with run.producer() as producer:
        results = []
        for number in range(40):

            def choose(queues: Sequence[MessageQueue], number: int = number) -> MessageQueue:
                return queues[number % 4 % len(queues)]

            results.append(await producer.send(run.message("it-ordered", number), choose=choose))
    assert consecutive(results)
    return {"sent": 40, "consecutive": True, **summary(results)}


# -- reading ------------------------------------------------------------------------------------------------


async def offsets(run: Run) -> Observed:
    await run.need("03-send")
    found: dict[str, object] = {}
    total = 0
    async with run.admin() as admin:
        for queue in await admin.topic_stats(run.name("it-send")):
            low, high = await admin.min_offset(queue), await admin.max_offset(queue)
            now_ms = time.time_ns() // 1_000_000
            at_zero, at_now = await admin.offset_at(queue, 0), await admin.offset_at(queue, now_ms + 1000)
            found[str(queue.queue_id)] = [low, high, at_zero, at_now]
            total += high - low
            assert 0 < await admin.earliest_store_time(queue) <= now_ms + 1000
    assert total == COUNT, found
    return {"minMaxAtZeroAtNow": found, "total": total}


async def consume_topic(run: Run, topic: str, group: str, count: int) -> Observed:
    got = await run.read([topic], group, count)
    assert len(got) == count, in_order(got)
    return {
        "bodies": in_order(got),
        "tags": dict(sorted(Counter(str(message.tags) for message in got).items())),
        "queues": sorted({message.queue_id for message in got}),
        "first": shape(min(got, key=lambda message: number_of(text(message))), run),
    }


async def consume(run: Run) -> Observed:
    await run.need("03-send")
    return await consume_topic(run, "it-send", "it-consume", COUNT)


async def big_consume(run: Run) -> Observed:
    await run.need("16-big")
    return await consume_topic(run, "it-big", "it-big", 4)


async def pull(run: Run) -> Observed:
    await run.need("03-send")
    found: dict[str, object] = {}
    total = 0
    async with PullConsumer(run.name("it-pull"), namesrv=run.namesrv, auto_commit=False) as consumer:
        for queue in await consumer.queues(run.name("it-send")):
            steps: list[list[object]] = []
            queue_offset, end = 0, await consumer.max_offset(queue)
            while True:
                result = await consumer.pull(queue, queue_offset, messages_max=2)
                steps.append([queue_offset, *_step(result, len(result.messages))])
                total += len(result.messages)
                if result.status is not PullStatus.FOUND:
                    break
                queue_offset = result.next_queue_offset
            over = await consumer.pull(queue, end + 10, messages_max=2)
            steps.append([end + 10, *_step(over, 0)])
            none = await consumer.pull(queue, 0, expression="no-such-tag")
            steps.append(["no-such-tag", *_step(none, 0)])
            found[str(queue.queue_id)] = {"steps": steps}
    assert total == COUNT, found
    return {"queues": found, "total": total}


def _step(result: PullResult, count: int) -> list[object]:
    return [
        result.status.name,
        result.next_queue_offset,
        result.min_queue_offset,
        result.max_queue_offset,
        count,
    ]


async def lite_pull(run: Run) -> Observed:
    await run.need("03-send")
    got: list[MessageView] = []
    async with PullConsumer(run.name("it-lite"), namesrv=run.namesrv, auto_commit=False) as consumer:
        queues = await consumer.assign_topic(run.name("it-send"))
        await consumer.seek_to_begin()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < COUNT:
                got += await consumer.poll(timeout=1.0)
        await consumer.commit()
        committed = sum([await consumer.committed(queue) or 0 for queue in queues])
    assert len(got) == COUNT
    assert committed == COUNT
    return {"bodies": in_order(got), "committed": committed}


async def filter_tag(run: Run) -> Observed:
    want = [f"body-{number}" for number in range(COUNT) if tag(number) != "B"]
    bodies = await filtered(run, "it-tag", "A || C", ExpressionType.TAG, want)
    return {"expression": "TAG A || C", "bodies": bodies}


async def filter_sql(run: Run) -> Observed:
    expression = "i > 3 AND shard IN ('s0','s1') AND name IS NOT NULL"
    want = [f"body-{number}" for number in range(4, COUNT) if number % 4 < 2]
    bodies = await filtered(run, "it-sql", expression, ExpressionType.SQL92, want)
    return {"expression": f"SQL92 {expression}", "bodies": bodies}


async def filter_bad_sql(run: Run) -> Observed:
    await run.need("03-send")

    async def listen(message: MessageView) -> None:
        raise AssertionError(message)

    consumer = run.consumer("it-bad-sql", listener=listen)
    consumer.subscribe(run.name("it-send"), "i > ", expression_type=ExpressionType.SQL92)
    try:
        async with consumer:
            raise AssertionError("a consumer with a bad expression was started")
    except RequestRefused as refused:
        lines = refused.remark.splitlines()
        return {"code": int(refused.code), "expression": "SQL92 i > ", "message": lines[0]}


async def filtered(run: Run, group: str, expression: str, kind: str, want: list[str]) -> object:
    """The bodies that a group gets of what was sent, in order; no others come."""
    await run.need("03-send")
    got: list[MessageView] = []
    enough = asyncio.Event()

    async def listen(message: MessageView) -> None:
        got.append(message)
        if len(got) >= len(want):
            enough.set()

    consumer = run.consumer(group, listener=listen)
    consumer.subscribe(run.name("it-send"), expression, expression_type=kind)
    async with consumer:
        async with asyncio.timeout(WAIT_SECONDS):
            await enough.wait()
        await asyncio.sleep(0.3)
    assert in_order(got) == want
    return in_order(got)


async def offset_store(run: Run) -> Observed:
    await run.need("03-send")
    group, topic = run.name("it-offset-store"), run.name("it-send")
    await run.read(["it-send"], "it-offset-store", COUNT)
    async with run.admin() as admin:
        committed = 0

        async def stored() -> bool:
            nonlocal committed
            try:
                progress = await admin.consume_progress(group, topic)
            except ClientError:
                return False
            committed = sum(queue.consumer_offset for queue in progress)
            return committed == COUNT

        await until(stored, "storing of all offsets")
        reset = await admin.reset_offsets(group, topic, 0)
    again = await run.read(["it-send"], "it-offset-store", COUNT)
    assert len(again) == COUNT
    return {"committed": committed, "reset": sorted(reset.values()), "again": len(again)}


async def ordered_consume(run: Run) -> Observed:
    await run.need("18-ordered-send")
    per_queue: dict[int, list[int]] = {}
    suspended: set[str] = set()
    done = asyncio.Event()

    async def listen(message: MessageView) -> Verdict:
        number = number_of(text(message))
        if number % 5 == 0 and message.message_id not in suspended:
            suspended.add(message.message_id)
            return Later(suspend_ms=100)
        per_queue.setdefault(message.queue_id, []).append(number)
        if sum(map(len, per_queue.values())) >= 40:
            done.set()
        return ConsumeStatus.SUCCESS

    consumer = run.consumer("it-ordered", listener=listen, orderly=True)
    consumer.subscribe(run.name("it-ordered"))
    async with consumer, asyncio.timeout(WAIT_SECONDS):
        await done.wait()
    assert all(numbers == sorted(set(numbers)) for numbers in per_queue.values()), per_queue
    return {
        "perQueue": {str(queue_id): per_queue[queue_id] for queue_id in sorted(per_queue)},
        "suspended": len(suspended),
    }


async def consume_retry(run: Run) -> Observed:
    seen: list[Observed] = []
    times: list[float] = []
    done = asyncio.Event()

    async def listen(message: MessageView) -> Verdict:
        seen.append(shape(message, run))
        times.append(time.monotonic())
        if len(seen) >= 3:
            done.set()
        return Later(delay_level=1) if message.reconsume_times < 2 else ConsumeStatus.SUCCESS

    async with run.producer() as producer:
        await producer.send(run.message("it-retry", 0))
    consumer = run.consumer("it-retry", listener=listen)
    consumer.subscribe(run.name("it-retry"))
    async with consumer, asyncio.timeout(WAIT_SECONDS):
        await done.wait()
    assert len(seen) == 3, seen
    assert all(after - before >= 0.9 for before, after in pairwise(times)), times
    return {"seen": seen}


async def consume_dlq(run: Run) -> Observed:
    dead = dlq_topic(run.name("it-dlq"))

    async def listen(message: MessageView) -> Verdict:
        return Later(delay_level=1)

    async with run.producer() as producer:
        await producer.send(run.message("it-dlq", 0))
    consumer = run.consumer("it-dlq", listener=listen, settings=PushSettings(max_reconsume_times=1))
    consumer.subscribe(run.name("it-dlq"))
    async with consumer, run.admin() as admin:

        async def arrived() -> bool:
            try:
                stats = await admin.topic_stats(dead)
            except ClientError:
                return False
            return any(ends.max_offset > 0 for ends in stats.values())

        await until(arrived, "the dead letter's arrival")
        queue_datas = [queue.to_object() for queue in (await admin.topic_route(dead)).queue_datas]
    async with PullConsumer(run.name("it-dlq-pull"), namesrv=run.namesrv, auto_commit=False) as puller:
        got: list[MessageView] = []
        for queue in await puller.queues(dead):
            got += (await puller.pull(queue, await puller.min_offset(queue))).messages
    assert len(got) == 1, got
    return {"queueDatas": queue_datas, "dlq": [shape(message, run) for message in got]}


# -- delay, query, broadcast, rebalance
# ---------------------------------------------------------------------------


async def create_delay_topic(run: Run) -> Observed:
    return await create(run, "it-delay", "DELAY")


async def delay(run: Run) -> Observed:
    await run.need("22-create-delay-topic")
    makers = [lambda plain, level=number + 1: replace(plain, delay_level=level) for number in range(2)]
    return await late(run, "it-delay", [1000, 5000], makers, early_ms=100)


async def create_timer_topic(run: Run) -> Observed:
    return await create(run, "it-timer", "DELAY")


async def timer(run: Run) -> Observed:
    await run.need("24-create-timer-topic")
    makers = [
        lambda plain: timed(plain, 3, None),
        lambda plain: timed(plain, timedelta(seconds=4), None),
        lambda plain: timed(plain, None, datetime.now(UTC) + timedelta(seconds=5)),
    ]
    # The wheel of Java's brokers has a step of a second, and they deliver up to one early.
    return await late(run, "it-timer", [3000, 4000, 5000], makers, early_ms=1100)


async def late(
    run: Run,
    topic: str,
    want_ms: Sequence[int],
    makers: Sequence[Callable[[Message], Message]],
    *,
    early_ms: int,
) -> Observed:
    """Send messages that come later, and see when they do."""
    sent: dict[str, float] = {}
    arrived: dict[str, float] = {}
    shapes: dict[str, Observed] = {}
    done = asyncio.Event()

    async def listen(message: MessageView) -> None:
        arrived.setdefault(text(message), time.monotonic())
        shapes[text(message)] = shape(message, run)
        if len(arrived) == len(want_ms):
            done.set()

    consumer = run.consumer(topic, listener=listen)
    consumer.subscribe(run.name(topic))
    async with run.producer() as producer, consumer:
        results = []
        for number, make in enumerate(makers):
            message = make(run.message(topic, number))
            sent[f"body-{number}"] = time.monotonic()
            results.append(await producer.send(message))
        async with asyncio.timeout(WAIT_SECONDS):
            await done.wait()
    for number, wanted in enumerate(want_ms):
        took = (arrived[f"body-{number}"] - sent[f"body-{number}"]) * 1000
        assert wanted - early_ms <= took < wanted + 2500, (number, took)
    return {"wantedMs": list(want_ms), "first": shapes["body-0"], **summary(results)}


async def create_recall_topic(run: Run) -> Observed:
    return await create(run, "it-recall", "DELAY")


async def recall(run: Run) -> Observed:
    """A message that is taken back does not come, while one of the same time does."""
    await run.need("26-create-recall-topic")
    topic = run.name("it-recall")
    got: list[str] = []
    other = asyncio.Event()

    async def listen(message: MessageView) -> None:
        got.append(text(message))
        if text(message) == "body-1":
            other.set()

    consumer = run.consumer("it-recall", listener=listen)
    consumer.subscribe(topic)
    async with run.producer() as producer, consumer:
        gone = await producer.send(run.message("it-recall", 0), delay=4)
        stays = await producer.send(run.message("it-recall", 1), delay=4)
        assert gone.recall_handle is not None
        assert stays.recall_handle is not None
        recalled = await producer.recall(topic, gone.recall_handle)
        async with asyncio.timeout(WAIT_SECONDS):
            await other.wait()
        await asyncio.sleep(1.5)  # the other would come in the same slot, or in the next
    assert got == ["body-1"], got
    return {"recalledSameId": recalled == gone.message_id, "delivered": got.count("body-0")}


async def create_transaction_topic(run: Run) -> Observed:
    return await create(run, "it-transaction", "TRANSACTION")


async def transaction(run: Run) -> Observed:
    """Committed, rolled back, and two whose state is unknown: the check commits one of them."""
    await run.need("28-create-transaction-topic")
    checked: dict[str, Observed] = {}

    async def check(message: MessageView) -> TransactionState:
        checked[text(message)] = shape(message, run)
        return TransactionState.COMMIT if text(message) == "body-2" else TransactionState.ROLLBACK

    states = [
        TransactionState.COMMIT,
        TransactionState.ROLLBACK,
        TransactionState.UNKNOWN,
        TransactionState.UNKNOWN,
    ]
    results = []
    async with TransactionProducer(
        run.name("it-transaction-producer"), check=check, namesrv=run.namesrv, timeout=10.0
    ) as producer:
        for number, state in enumerate(states):

            async def local(half: HalfMessage, state: TransactionState = state) -> TransactionState:
                return state

            message = run.message("it-transaction", number)
            results.append(await producer.send_in_transaction(message, local))
        got = await run.read(["it-transaction"], "it-transaction", 2)

        async def both_checked() -> bool:
            return len(checked) == 2

        await until(both_checked, "the check of body-3")
    assert [result.end for result in results] == [
        EndStatus.CONFIRMED,
        EndStatus.CONFIRMED,
        EndStatus.LEFT_TO_CHECK,
        EndStatus.LEFT_TO_CHECK,
    ]
    shapes = {text(message): shape(message, run) for message in got}
    return {
        "bodies": in_order(got),
        "checked": sorted(checked),
        "committed": shapes["body-0"],
        "committedByCheck": shapes["body-2"],
        "checkedShape": checked["body-3"],
        "statuses": dict(Counter(result.sent.status.name for result in results)),
        "traceOn": results[0].sent.trace_on,
    }


async def query(run: Run) -> Observed:
    topic = run.name("it-query")
    async with run.producer() as producer, run.admin() as admin:
        first = await producer.send(run.message("it-query", 0))
        plain = run.message("it-query", 1)
        second = await producer.send(
            Message(
                topic=topic,
                body=plain.body,
                tags=plain.tags,
                keys=("left", "right"),
                properties=plain.properties,
            )
        )

        async def indexed() -> bool:
            try:
                return bool(await admin.query_by_key(topic, "right"))
            except ClientError:
                return False

        await until(indexed, "indexing")
        by_id = await admin.message_by_id(topic, first.message_id)
        by_offset_id = await admin.message_by_id(topic, second.offset_message_id)
        by_key = sorted({text(message) for message in await admin.query_by_key(topic, "k-0")})
        by_second_key = sorted({text(message) for message in await admin.query_by_key(topic, "right")})
        assert await admin.query_by_key(topic, "missing") == []
    assert text(by_offset_id) == "body-1"
    return {
        "byKey": by_key,
        "bySecondKey": by_second_key,
        "byUniqueId": shape(by_id, run),
        "byOffsetId": text(by_offset_id),
    }


async def broadcast_create(run: Run) -> Observed:
    return await create(run, "it-broadcast")


async def broadcast_send(run: Run) -> Observed:
    await run.need("31-broadcast-create")
    return await send_some(run, "it-broadcast", 16)


async def broadcast(run: Run) -> Observed:
    await run.need("32-broadcast-send")
    got: list[list[MessageView]] = [[], []]
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            for mine in got:

                async def listen(message: MessageView, mine: list[MessageView] = mine) -> None:
                    mine.append(message)

                consumer = run.consumer(
                    "it-broadcast",
                    listener=listen,
                    model=MessageModel.BROADCASTING,
                    settings=PushSettings(offsets_folder=Path(folder)),
                )
                consumer.subscribe(run.name("it-broadcast"))
                await stack.enter_async_context(consumer)

            async def all_there() -> bool:
                return all(len(mine) >= 16 for mine in got)

            await until(all_there, "delivery to both members")
        files = await asyncio.to_thread(lambda: list(Path(folder).glob("*/*/offsets.json")))
    assert len(files) == 2, files
    return {"bodies": [in_order(mine) for mine in got]}


async def rebalance(run: Run) -> Observed:
    await run.need("01-create-topic")
    topic = run.name("it-send")

    async def listen(message: MessageView) -> None:
        return None

    members = [run.consumer("it-rebalance", listener=listen) for _ in range(2)]

    def counts() -> list[int]:
        return [sum(queue.topic == topic for queue in member.assigned) for member in members]

    try:
        for member in members:
            member.subscribe(topic)
            await member.start()

        async def shared() -> bool:
            return counts() == [2, 2]

        await until(shared, "sharing of the queues")
        both = counts()
        await members[1].close()

        async def alone() -> bool:
            return counts()[0] == 4

        await until(alone, "taking over of all queues")
        return {"shared": both, "alone": counts()[0]}
    finally:
        for member in members:
            await member.close()


# -- errors
# -----------------------------------------------------------------------------------------------------


async def errors(run: Run) -> Observed:
    """Golden texts are those of Java's client; here the codes are what counts."""
    await run.need("03-send")
    topic = run.name("it-send")
    async with run.admin() as admin:
        master_name, master = next(iter((await admin.masters()).items()))
        producer = Producer(
            run.name("it-errors"),
            namesrv=run.namesrv,
            timeout=10.0,
            retry=SendRetry(retries=0),
            body_size_max=64 << 20,
            compress_from_bytes=128 << 20,
        )
        async with producer:
            unknown = run.name("no-such-topic")
            plain = run.message("it-send", 0)
            port = int(master.rpartition(":")[2])
            bad_id = encode_offset_id(Host.from_text(master.rpartition(":")[0], port), 1 << 40)
            queue = MessageQueue(topic, master_name, 99)
            tries: dict[str, Callable[[], Awaitable[object]]] = {
                "routeOfUnknownTopic": lambda: admin.topic_route(unknown),
                "queueIdOutOfRange": lambda: producer.send(plain, queue=queue),
                "unknownTopic": lambda: producer.send(Message(topic=unknown + "-2", body=b"x")),
                "systemTopic": lambda: producer.send(Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x")),
                "illegalTopicName": lambda: producer.send(Message(topic="a b", body=b"x")),
                "bodyTooLarge": lambda: producer.send(Message(topic=topic, body=bytes((4 << 20) + 1))),
                "propertiesTooLong": lambda: producer.send(
                    Message(topic=topic, body=b"x", properties={"long": "x" * 32_700})
                ),
                "delayLevelTooHigh": lambda: producer.send(Message(topic=topic, body=b"x", delay_level=99)),
                "consumeStatsOfUnknownGroup": lambda: admin.consume_progress(run.name("no-such-group")),
                "connectionsOfUnknownGroup": lambda: admin.consumer_connections(run.name("no-such-group")),
                "producersOfUnknownGroup": lambda: admin.producer_connections(
                    run.name("no-such-group"), master
                ),
                "viewMessageAtBadOffset": lambda: admin.message_by_id(topic, bad_id),
                "createIllegalTopic": lambda: admin.create_topic(TopicConfig("a b"), address=master),
                "createSystemTopic": lambda: admin.create_topic(TopicConfig("TBW102"), address=master),
                "unknownKvConfig": lambda: admin.kv_get("no-such-namespace", "k"),
            }
            cases = {name: await _outcome(attempt) for name, attempt in tries.items()}
    wanted = {
        "routeOfUnknownTopic": "TopicNotFound",
        "queueIdOutOfRange": "code 29",
        "unknownTopic": "accepted",
        "systemTopic": "MessageInvalid",
        "illegalTopicName": "MessageInvalid",
        "bodyTooLarge": "code 13",
        "propertiesTooLong": "code 13",
        "delayLevelTooHigh": "accepted",
        "consumeStatsOfUnknownGroup": "TopicNotFound",
        "connectionsOfUnknownGroup": "TopicNotFound",
        "producersOfUnknownGroup": "code 1",
        "viewMessageAtBadOffset": "code 1",
        "createIllegalTopic": "code 29",
        "createSystemTopic": "code 29",
        "unknownKvConfig": "accepted",
    }
    assert cases == wanted, {name: case for name, case in cases.items() if case != wanted[name]}
    return {"codes": cases}


async def _outcome(attempt: Callable[[], Awaitable[object]]) -> str:
    try:
        await attempt()
    except RequestRefused as error:
        return f"code {error.code}"
    except (TopicNotFound, MessageInvalid) as error:
        return type(error).__name__
    return "accepted"


async def request_reply_topic(run: Run) -> Observed:
    return await create(run, "it-rpc")


async def request_reply(run: Run) -> Observed:
    await run.need("35-request-reply-topic")
    seen: list[Observed] = []

    async def answer(request: MessageView) -> bytes:
        seen.append(shape(request, run))
        return b"re:" + request.body

    replier = Replier(
        run.name("it-rpc"),
        answer,
        namesrv=run.namesrv,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    replier.subscribe(run.name("it-rpc"))
    async with replier, run.producer("it-rpc") as producer:
        reply = await producer.request(run.message("it-rpc", 0), WAIT_SECONDS)
    assert text(reply) == "re:body-0"
    return {"reply": text(reply), "replyProperties": sorted(reply.properties), "request": seen[0]}


async def create_then_delete(run: Run) -> Observed:
    return await create(run, "it-delete")


async def running_consumer(run: Run) -> Observed:
    """Our consumer while a broker of either make asks it, moves it, and lets it pause."""
    await run.need("03-send")
    group, topic = run.name("it-running"), run.name("it-send")
    got: list[MessageView] = []

    async def listen(message: MessageView) -> None:
        got.append(message)

    consumer = run.consumer("it-running", listener=listen)
    consumer.subscribe(topic)
    async with consumer, run.admin() as admin:
        await waiting(lambda: len(got) >= COUNT, "first reading")
        consumers = ConsumerAdmin(admin)
        (member,) = await consumers.members(group)
        info = await consumers.running_info(group, member, stacks=True)
        direct = await consumers.consume_directly(group, member, got[0])
        await consumer.suspend()
        before = len(got)
        moved = await admin.reset_offsets(group, topic, 0)
        assert len(got) == before
        consumer.resume()
        await waiting(lambda: len(got) >= before + COUNT, "reading after the reset")

        async def is_at_the_end() -> bool:
            progress = await admin.consume_progress(group, topic)
            return not sum(queue.lag for queue in progress)

        await until(is_at_the_end, "offsets at the ends again")
        positions = await consumers.positions(group, topic)
    assert info.jstack is not None
    return {
        "queues": sum(queue.topic == topic for queue in info.mq_table),
        "direct": direct.consume_result.value,
        "moved": sorted(set(moved.values())),
        "again": in_order(got[before:]) == in_order(got[:COUNT]),
        "position": sum(positions[member.client_id].values()),
    }


async def waiting(done: Callable[[], bool], what: str) -> None:
    """Until it is done."""

    async def check() -> bool:
        return done()

    await until(check, what)


SCENARIOS: Final[dict[str, Callable[[Run], Awaitable[Observed]]]] = {
    "01-create-topic": create_topic,
    "02-route": topic_route,
    "03-send": send,
    "04-offsets": offsets,
    "05-consume": consume,
    "06-pull": pull,
    "07-lite-pull": lite_pull,
    "08-filter-tag": filter_tag,
    "09-filter-sql": filter_sql,
    "10-filter-bad-sql": filter_bad_sql,
    "11-offset-store": offset_store,
    "12-send-async": send_async,
    "13-create-oneway-topic": create_oneway_topic,
    "13-send-oneway": send_oneway,
    "14-auto-created-route": auto_created_route,
    "15-batch": batch,
    "16-big": big,
    "17-big-consume": big_consume,
    "18-ordered-send": ordered_send,
    "19-ordered-consume": ordered_consume,
    "20-consume-retry": consume_retry,
    "21-consume-dlq": consume_dlq,
    "22-create-delay-topic": create_delay_topic,
    "23-delay": delay,
    "24-create-timer-topic": create_timer_topic,
    "25-timer": timer,
    "26-create-recall-topic": create_recall_topic,
    "27-recall": recall,
    "28-create-transaction-topic": create_transaction_topic,
    "29-transaction": transaction,
    "30-query": query,
    "31-broadcast-create": broadcast_create,
    "32-broadcast-send": broadcast_send,
    "33-broadcast": broadcast,
    "34-rebalance": rebalance,
    "35-request-reply-topic": request_reply_topic,
    "36-request-reply": request_reply,
    "40-errors": errors,
    "41-create-then-delete": create_then_delete,
    "42-delete-topic": delete_topic,
    "50-running-consumer": running_consumer,
}
"""Under the names of the golden files."""

NOT_COMPARED: Final = {"verb", "ok", "volatile", "cases", "missing"}
"""Keys of golden files that hold texts of Java's client, or differ from run to run."""


def normal(value: object, run: Run) -> object:
    """A golden or observed value without what the two clients or two runs do not share."""
    if isinstance(value, dict):
        return {str(key): normal(inner, run) for key, inner in value.items()}
    if isinstance(value, list):
        return [normal(inner, run) for inner in value if str(inner) not in ADDED_BY_JAVA_CLIENT]
    return value.removesuffix(run.suffix) if isinstance(value, str) else value


def differences(name: str, observed: Observed, golden: Path, run: Run) -> list[str]:
    """What the golden file says otherwise, in words."""
    if not (golden / f"{name}.json").exists():
        return []  # no verb of Java's client does it
    expected = json.loads((golden / f"{name}.json").read_text())
    found = []
    for key, value in expected.items():
        if key in NOT_COMPARED:
            continue
        if key not in observed:
            found.append(f"{key} was not observed")
        elif normal(value, run) != normal(observed[key], run):
            found.append(f"{key}: golden {value!r}, observed {observed[key]!r}")
    return found


async def run_all(namesrv: str, names: Sequence[str], golden: Path | None) -> int:
    """Run the named scenarios (all without names), print a line each, return how many failed."""
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise SystemExit(f"unknown scenarios: {', '.join(unknown)}; known: {', '.join(SCENARIOS)}")
    run = Run(namesrv)
    failed = 0
    for name in names or SCENARIOS:
        try:
            observed = await run.need(name)
            problems = [] if golden is None else differences(name, observed, golden, run)
            assert not problems, "; ".join(problems)
        except (AssertionError, ClientError, TimeoutError, OSError) as error:
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__} {error}", flush=True)
        else:
            print(f"ok    {name} {run.took[name]:.2f}s {json.dumps(observed)[:160]}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--namesrv", default="127.0.0.1:9876", help="host:port, several separated by ;")
    parser.add_argument("--golden", type=Path, help="folder of golden files to compare with")
    parser.add_argument("--verbose", action="store_true", help="show the client's log")
    parser.add_argument("names", nargs="*", help="scenarios to run; all without names")
    arguments = parser.parse_args()
    if not arguments.verbose:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return 1 if asyncio.run(run_all(arguments.namesrv, arguments.names, arguments.golden)) else 0


if __name__ == "__main__":
    sys.exit(main())
