"""Reads messages as a member of a group, up to a number, and shows them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from brokerset_cli.client_session import stop_event
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import MessageView
from brokerset_client.push_consumer import PushConsumer
from brokerset_client.push_settings import PushSettings
from brokerset_client.tracing import TraceSettings
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere, ExpressionType

CLOSE_SECONDS: Final = 0.05
"""How long the listener may go on at the end; it waits without end by then, see `take`."""

TEXT_MAX: Final = 2000
"""Characters of a body that people are shown."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a group begins that has no offsets yet."""

    where: ConsumeFromWhere
    timestamp_ms: int | None = None


def parse_start(text: str) -> Start:
    """Read `earliest`, `latest`, a time in ISO 8601, or milliseconds since 1970; raises `ValueError`."""
    if text == "earliest":
        return Start(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    if text == "latest":
        return Start(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    if text.isascii() and text.isdigit():
        return Start(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not earliest, latest, a time like 2026-01-31T08:00, or milliseconds since 1970"
        ) from None
    return Start(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, int(moment.astimezone().timestamp() * 1000))


@dataclass(slots=True)
class Taken:
    """What was read."""

    count: int = 0
    seconds: float = 0.0
    """From the first to the last message."""

    @property
    def per_second(self) -> float:
        """Messages per second; one message has no rate."""
        return (self.count - 1) / self.seconds if self.seconds > 0 else 0.0


async def take(
    instance: ClientInstance,
    topic: str,
    group: str,
    *,
    start: Start,
    handle: Callable[[MessageView], None],
    expression: str = "*",
    expression_type: str = ExpressionType.TAG,
    count: int | None = None,
    idle_seconds: float | None = None,
    enough: Callable[[], bool] = lambda: False,
    answer: Callable[[MessageView], Awaitable[None]] | None = None,
    trace: TraceSettings | None = None,
) -> Taken:
    """Join `group`, hand messages to `handle` one after the other, and leave, with offsets stored.

    Ends after `count` messages, when `enough` says so after one, after `idle_seconds` without one, or at
    Ctrl-C. Exactly the messages that were handled count as consumed: a further one that is here already is
    neither shown nor acknowledged.
    `answer` is awaited for each message behind `handle`; when it fails the message comes again.
    A `handle` that raises `OSError` (a closed pipe) ends the reading; that message is not acknowledged.
    """
    taken = Taken()
    first = last = 0.0
    ended = stop_event()
    arrived = asyncio.Event()
    problems: list[OSError] = []

    async def listener(message: MessageView) -> None:
        nonlocal first, last
        if ended.is_set():
            await asyncio.Event().wait()  # until the consumer closes and cancels it: not consumed
        try:
            handle(message)
        except OSError as error:
            problems.append(error)
            ended.set()
            await asyncio.Event().wait()
        if answer is not None:
            await answer(message)
        last = time.perf_counter()
        first = first or last
        taken.count += 1
        arrived.set()
        if taken.count == count or enough():
            ended.set()

    # One worker: with several, messages beyond the count could be on their way to `handle` already.
    settings = PushSettings(workers=1, batch_max=1, close_timeout=CLOSE_SECONDS)
    consumer = PushConsumer(
        group,
        instance=instance,
        listener=listener,
        consume_from=start.where,
        from_timestamp_ms=start.timestamp_ms,
        settings=settings,
        trace=trace,
    )
    consumer.subscribe(topic, expression, expression_type=expression_type)
    async with consumer:
        await _until_ended(ended, arrived, idle_seconds)
        # The turn in which the listener returned its verdict must be over before offsets are stored.
        await asyncio.sleep(0)
    taken.seconds = last - first
    if problems:
        raise problems[0]
    return taken


async def _until_ended(ended: asyncio.Event, arrived: asyncio.Event, idle_seconds: float | None) -> None:
    while not ended.is_set():
        arrived.clear()
        waiting = [asyncio.create_task(ended.wait()), asyncio.create_task(arrived.wait())]
        done, pending = await asyncio.wait(waiting, timeout=idle_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if not done:
            ended.set()


def message_json(message: MessageView) -> dict[str, Any]:
    """Return a message for scripts; a body that is no UTF-8 is in `bodyBase64`."""
    body = message.body
    try:
        shown: dict[str, Any] = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"bodyBase64": base64.b64encode(body).decode()}
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
        **shown,
    }


def message_line(message: MessageView) -> str:
    """Return a message as one line for people."""
    text = message.body.decode("utf-8", "backslashreplace")
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(message.body):,} bytes)"
    where = f"{message.broker_name}/{message.queue_id}@{message.queue_offset}"
    marks = [f"[{message.tags}]"] if message.tags else []
    marks += [f"key={key}" for key in message.keys]
    return " ".join([click.style(where, dim=True), *marks, text])
