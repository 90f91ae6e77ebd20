"""Transactions, timer messages, their recall and traces, from the client library to a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_cli.message_traces import read_traces, trace_rows
from brokerset_client import (
    Admin,
    ClientError,
    ConsumeFromWhere,
    EndStatus,
    HalfMessage,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    RequestRefused,
    TopicConfig,
    TraceSettings,
    TransactionProducer,
    TransactionState,
)
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, TRACE_TOPIC
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until

SOON = TraceSettings(flush_seconds=0.01)
SETTINGS: dict[str, Any] = {
    "transaction_time_out": 0,
    "transaction_check_interval": 50,
    "recall_message_enable": True,
    "trace_topic_enable": True,
}


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[str, Broker]]:
    """A name server, and a broker with a topic `t` that it knows."""
    async with running_name_server(folder) as server:
        namesrv = f"{HOST}:{server.port}"
        async with running_broker(folder / "store", namesrv_addr=namesrv, **SETTINGS) as broker:
            broker.topics.update(TopicConfig("t", 1, 1))
            await until(lambda: broker.registrar.registered)
            yield namesrv, broker


def consumer(namesrv: str, seen: list[bytes], trace: TraceSettings | None = None) -> PushConsumer:
    async def listener(message: MessageView) -> None:
        seen.append(message.body)

    made = PushConsumer(
        "g",
        namesrv=namesrv,
        listener=listener,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        trace=trace,
    )
    made.subscribe("t")
    return made


def always(state: TransactionState) -> Callable[[HalfMessage], Awaitable[TransactionState]]:
    async def local(_: HalfMessage) -> TransactionState:
        return state

    return local


async def test_consumers_see_what_was_committed(tmp_path: Path) -> None:
    """By `send_in_transaction`, by a block, or by a check; and nothing of what was rolled back."""
    seen: list[bytes] = []
    asked: list[bytes] = []

    async def check(message: MessageView) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT if message.body == b"by check" else TransactionState.ROLLBACK

    async with (
        cluster(tmp_path) as (namesrv, _),
        TransactionProducer("p", namesrv=namesrv, check=check) as producer,
        consumer(namesrv, seen),
    ):
        results = {
            body: await producer.send_in_transaction(Message(topic="t", body=body), always(state))
            for body, state in {
                b"committed": TransactionState.COMMIT,
                b"rolled back": TransactionState.ROLLBACK,
                b"by check": TransactionState.UNKNOWN,
                b"not by check": TransactionState.UNKNOWN,
            }.items()
        }
        async with producer.transaction(Message(topic="t", body=b"block 1")) as transaction:
            await transaction.send(Message(topic="t", body=b"block 2"))
        with pytest.raises(RuntimeError):
            await failing_block(producer)
        await until(lambda: len(seen) >= 4 and len(asked) >= 2)
        await producer.send(Message(topic="t", body=b"last"))
        await until(lambda: seen[-1] == b"last")

    assert sorted(seen) == [b"block 1", b"block 2", b"by check", b"committed", b"last"]
    assert set(asked) == {b"by check", b"not by check"}
    assert results[b"committed"].end is results[b"rolled back"].end is EndStatus.CONFIRMED


async def failing_block(producer: TransactionProducer) -> None:
    async with producer.transaction(Message(topic="t", body=b"never")):
        raise RuntimeError


async def test_a_long_local_work_is_not_decided_by_a_check(tmp_path: Path) -> None:
    """The broker asks while it runs; the handler, which would say rollback, does not hear of it."""
    seen: list[bytes] = []
    asked: list[bytes] = []

    async def check(message: MessageView) -> TransactionState:
        asked.append(message.body)
        return TransactionState.ROLLBACK

    async with (
        cluster(tmp_path) as (namesrv, _),
        TransactionProducer("p", namesrv=namesrv, check=check) as producer,
        consumer(namesrv, seen),
    ):

        async def local(half: HalfMessage) -> TransactionState:
            def was_asked() -> bool:
                return producer._open[half.transaction_id].connection is not None

            await until(was_asked)
            return TransactionState.COMMIT

        result = await producer.send_in_transaction(Message(topic="t", body=b"long"), local)
        await until(lambda: seen == [b"long"])

    assert result.end is EndStatus.CONFIRMED
    assert not asked


async def test_a_timer_message_comes_later_or_is_taken_back(tmp_path: Path) -> None:
    """The one that was recalled does not come; a handle that was tampered with is refused."""
    seen: list[bytes] = []
    async with (
        cluster(tmp_path) as (namesrv, _),
        Producer("p", namesrv=namesrv) as producer,
        consumer(namesrv, seen),
    ):
        gone = await producer.send(Message(topic="t", body=b"gone"), delay=2)
        later = await producer.send(Message(topic="t", body=b"later"), delay=2)
        now = await producer.send(Message(topic="t", body=b"now"))
        assert gone.recall_handle is not None
        assert later.recall_handle is not None
        assert now.recall_handle is None
        assert await producer.recall("t", gone.recall_handle) == gone.message_id
        await until(lambda: seen == [b"now"])
        await until(lambda: seen == [b"now", b"later"])
        with pytest.raises(RequestRefused):
            await producer.recall("t", later.recall_handle)


async def test_what_happened_to_a_message_can_be_traced(tmp_path: Path) -> None:
    """A half message, its end after a check, and its consumption, found by its id."""
    seen: list[bytes] = []

    async def check(_: MessageView) -> TransactionState:
        return TransactionState.COMMIT

    async with (
        cluster(tmp_path) as (namesrv, _),
        TransactionProducer("p", namesrv=namesrv, check=check, trace=SOON) as producer,
    ):
        async with consumer(namesrv, seen, SOON):
            result = await producer.send_in_transaction(
                Message(topic="t", body=b"x", keys=("k",)), always(TransactionState.UNKNOWN)
            )
            await until(lambda: len(seen) == 1)
        async with Admin(namesrv=namesrv) as admin:

            async def found() -> list[str]:
                messages = await admin.query_by_key(TRACE_TOPIC, result.transaction_id)
                rows = trace_rows(result.transaction_id, read_traces(messages))
                return [f"{row.what}: {row.result}" for row in rows]

            rows: list[str] = []
            async with asyncio.timeout(10):
                while len(rows) < 4:
                    rows = await found()

    assert rows[0].startswith(f"sent as half message: stored by {HOST}:")
    assert sorted(rows[1:]) == ["consumed: success", "ended after a check: commit", "ended: unknown"]


async def test_what_was_given_up_is_checked_again(tmp_path: Path) -> None:
    """No producer answers, so that the message is given up; after that one does, and consumers get it."""
    seen: list[bytes] = []

    async def unknown(_: MessageView) -> TransactionState:
        return TransactionState.UNKNOWN

    async def commit(_: MessageView) -> TransactionState:
        return TransactionState.COMMIT

    async with cluster(tmp_path) as (namesrv, broker), Admin(namesrv=namesrv) as admin:
        broker.live.update({"transactionCheckMax": "1"})
        async with TransactionProducer("p", namesrv=namesrv, check=unknown) as producer:
            sent = await producer.send_in_transaction(
                Message(topic="t", body=b"x"), always(TransactionState.UNKNOWN)
            )
            await until(lambda: broker.transactions.given_up == 1)
        with pytest.raises(ClientError):
            await admin.resume_check("AC11000100010001000100010001")

        broker.live.update({"transactionCheckMax": "15"})
        async with (
            TransactionProducer("p", namesrv=namesrv, check=commit, topics=["t"]),
            consumer(namesrv, seen),
        ):
            while CHECK_MAX_TIME_TOPIC not in await admin.topics():
                broker.registrar.register_again()
            resumed = await admin.resume_check(sent.transaction_id)
            await until(lambda: seen == [b"x"])

    assert resumed.property_text("REAL_TOPIC") == "t"
