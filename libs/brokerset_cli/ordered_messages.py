"""What `send --order-key` and `consume --ordered` do with ordered subjects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import click
import orjson

from brokerset_cli.client_session import stop_event
from brokerset_cli.consuming import Taken, message_json, message_line
from brokerset_cli.output import CommandFailed
from brokerset_cli.sending import OFFSET_UNKNOWN
from brokerset_client.errors import RequestRefused
from brokerset_client.instance import ClientInstance, readable
from brokerset_client.messages import Message, SendResult, SendStatus
from brokerset_client.ordered import (
    ConsumeStrategy,
    ControllersUnknown,
    InstanceTransport,
    OrderedClient,
    OrderedProducer,
    OrderedSendResult,
    StillQueued,
    SubscriptionOptions,
)
from brokerset_client.ordered.consuming import PulledMessage
from brokerset_protocol.bodies.ordered import SubjectState, SubjectStates
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command

FIND_SECONDS: Final = 3.0
"""How long the controllers may take to say whether a topic is a subject."""

CONFIRM_SECONDS: Final = 30.0
"""A message that is not confirmed so long after it was accepted ends the command."""

STOP_SECONDS: Final = 0.2
"""How often a command that waits for messages sees whether it shall end."""

PULL_MAX: Final = 64
"""Messages that are asked for at once."""


async def find_subject(transport: InstanceTransport, name: str) -> SubjectState | None:
    """The subject of this name, or None: it is a usual topic, or there are no controllers that know subjects.

    Raises `ClientError` if there are some and they do not answer.
    """
    request = Command(RequestCode.BROKERSET_DESCRIBE_SUBJECTS, body=orjson.dumps([name]))
    try:
        answer = await transport.ask_controllers(request, FIND_SECONDS)
    except ControllersUnknown:
        return None
    if answer.code in (ResponseCode.BROKERSET_SUBJECT_UNKNOWN, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefused(answer.code, answer.remark or "no reason given")
    found = readable(SubjectStates.from_json, answer.body).subjects
    return next((state for state in found if state.name == name), None)


class OrderedSends:
    """An ordered producer in the form that `send_all` wants."""

    def __init__(self, producer: OrderedProducer) -> None:
        self._producer = producer

    async def send_async(self, message: Message) -> asyncio.Future[SendResult]:
        """Accept a message; the future fails with `StillQueued` when it is not confirmed in time."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[SendResult] = loop.create_future()
        confirmed = await self._producer.send_async(message, timeout=CONFIRM_SECONDS)

        def too_late() -> None:
            if not answer.done():
                answer.set_exception(
                    StillQueued(f"not confirmed after {CONFIRM_SECONDS:g} s: it may be stored nevertheless")
                )

        def ended(future: asyncio.Future[OrderedSendResult]) -> None:
            timer.cancel()
            error = None if future.cancelled() else future.exception()
            if answer.done():
                return
            if future.cancelled():
                answer.cancel()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(_as_sent(future.result()))

        timer = loop.call_later(CONFIRM_SECONDS, too_late)
        confirmed.add_done_callback(ended)
        return answer

    async def send_batch_async(self, messages: list[Message]) -> asyncio.Future[SendResult]:
        """Ordered producers make their batches themselves."""
        raise NotImplementedError("an ordered producer makes its batches itself")


def _as_sent(result: OrderedSendResult) -> SendResult:
    queue = MessageQueue(result.subject, result.broker_group, result.queue_id)
    offset = OFFSET_UNKNOWN if result.queue_offset is None else result.queue_offset
    return SendResult(SendStatus.SEND_OK, result.message_id, "", queue, offset)


async def take_ordered(
    instance: ClientInstance,
    subject: str,
    group: str,
    *,
    handle: Callable[[PulledMessage], None],
    expression: str = "*",
    shared: bool = False,
    count: int | None = None,
    idle_seconds: float | None = None,
) -> Taken:
    """Join `group` as a member that owns or shares partitions, give messages to `handle`, and leave.

    Ends as `take` does. What was handled is acknowledged; what was not comes again to the next owner.
    Raises `CommandFailed` if the controllers refuse the member, or nothing came for a reason that is known.
    """
    taken = Taken()
    ended = stop_event()
    strategy = ConsumeStrategy.SHARED if shared else ConsumeStrategy.EXCLUSIVE
    options = SubscriptionOptions(tags=expression, consume_strategy=strategy)
    first = last = 0.0
    async with OrderedClient(instance=instance) as client:
        if await find_subject(client.transport, subject) is None:
            raise CommandFailed(
                f"{subject} is no ordered subject",
                "see `brokerset subject list`; without --ordered it is read as a usual topic",
            )
        consumer = client.consumer(group=group)
        async with consumer, consumer.pulling(subject, options) as puller:
            heard = time.perf_counter()
            problem, refused = None, False
            while not ended.is_set() and (count is None or taken.count < count):
                wanted = PULL_MAX if count is None else min(PULL_MAX, count - taken.count)
                for pulled in await puller.pull(wanted, STOP_SECONDS):
                    handle(pulled)
                    pulled.done()
                    last = heard = time.perf_counter()
                    first = first or last
                    taken.count += 1
                (measured,) = consumer.measurements()
                problem, refused = measured.problem, measured.refused
                if refused:
                    break
                if idle_seconds is not None and time.perf_counter() - heard >= idle_seconds:
                    break
    if problem is not None and (refused or not taken.count):
        raise CommandFailed(
            f"{group} could not consume {subject}: {problem}",
            f"see `brokerset subject consumers {subject}` and `brokerset subject describe {subject}`",
        )
    taken.seconds = last - first
    return taken


def ordered_json(pulled: PulledMessage) -> dict[str, Any]:
    """A message for scripts, with its place among those of its key, and the fencing token of its owner."""
    message = pulled.message
    return {
        **message_json(message.view),
        "orderKey": message.key,
        "logicalPartition": message.logical_partition,
        "partition": message.partition_id,
        "sequence": message.sequence,
        "token": pulled.context.epoch,
        "attempt": pulled.context.attempt,
    }


def ordered_line(pulled: PulledMessage) -> str:
    """A message as one line for people: order key, partition, queue offset and fencing token come first."""
    message = pulled.message
    key = "-" if message.key is None else message.key
    head = f"order-key={key} partition={message.partition_id}@{message.queue_offset}"
    token = click.style(f"token={pulled.context.epoch}", dim=True)
    return f"{head} {token} {message_line(message.view)}"
