"""`brokerset consume --pop`: reads messages by POP, and acknowledges what was shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from brokerset_cli.client_session import stop_event
from brokerset_cli.consuming import Taken, message_json
from brokerset_cli.output import CommandFailed
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.pop.consumer import PopConsumer
from brokerset_client.pop.popped import PoppedMessage
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere, ExpressionType

STOP_SECONDS: Final = 1.0
"""How long a receive waits, and so how long Ctrl-C may take."""

INVISIBLE_SECONDS: Final = 60.0
BATCH: Final = 32


def popped_json(message: PoppedMessage) -> dict[str, Any]:
    """A message for scripts, with the handle that an ack of it needs."""
    return {**message_json(message), "handle": message.handle.encode()}


async def take_popped(
    instance: ClientInstance,
    topic: str,
    group: str,
    *,
    where: ConsumeFromWhere,
    handle: Callable[[PoppedMessage], None],
    expression: str = "*",
    expression_type: str = ExpressionType.TAG,
    ordered: bool = False,
    invisible_seconds: float = INVISIBLE_SECONDS,
    batch: int = BATCH,
    ack: bool = True,
    count: int | None = None,
    idle_seconds: float | None = None,
) -> Taken:
    """Pop messages of `topic` for `group`, hand each to `handle`, and acknowledge what was handled.

    Ends as `take` does. Without `ack` what was handled comes again when its invisible time is over. Raises
    `CommandFailed` if an ack is not taken: what was shown comes again. After a `handle` that raises `OSError`
    (a closed pipe) that message and those behind it are given back.
    """
    taken = Taken()
    ended = stop_event()
    first = last = 0.0
    consumer = PopConsumer(group, instance=instance, ordered=ordered, consume_from=where)
    consumer.subscribe(topic, expression, expression_type=expression_type)
    async with consumer:
        heard = time.perf_counter()
        while not ended.is_set() and (count is None or taken.count < count):
            wanted = batch if count is None else min(batch, count - taken.count)
            wait = STOP_SECONDS if idle_seconds is None else min(STOP_SECONDS, idle_seconds)
            messages = await consumer.receive(wanted, invisible=invisible_seconds, wait=wait)
            shown = 0
            try:
                for message in messages:
                    handle(message)
                    shown += 1
            finally:
                await _settle(consumer, messages[:shown] if ack else [], messages[shown:])
            if messages:
                last = heard = time.perf_counter()
                first = first or last
                taken.count += len(messages)
            elif idle_seconds is not None and time.perf_counter() - heard >= idle_seconds:
                break
    taken.seconds = last - first
    return taken


async def _settle(
    consumer: PopConsumer, done: Sequence[PoppedMessage], rest: Sequence[PoppedMessage]
) -> None:
    results = await asyncio.gather(*map(consumer.ack, done), return_exceptions=True)
    await asyncio.gather(*(consumer.change_invisible(message, 0) for message in rest), return_exceptions=True)
    problems = [result for result in results if isinstance(result, ClientError)]
    if problems:
        raise CommandFailed(
            f"{len(problems)} of {len(done)} messages that were shown are not acknowledged: {problems[0]}",
            "they come again; a longer --invisible gives more time to show them",
        )


def check_pop(
    *, pop: bool, ack: bool, invisible: float | None, batch: int | None, others: dict[str, bool]
) -> None:
    """Refuse options that go with `--pop` only, and `others` (their names, and whether they were given) that
    do not go with it. Raises `UsageError`."""
    if not pop:
        if invisible is not None or batch is not None or not ack:
            raise click.UsageError("--invisible, --batch and --no-ack go with --pop")
        return
    for name, given in others.items():
        if given:
            raise click.UsageError(f"{name} does not go with --pop")
