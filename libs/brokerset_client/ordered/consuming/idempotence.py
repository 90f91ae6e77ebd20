"""For handlers whose effects must not happen twice: a filter of messages that were handled already.

Messages come again when a process crashed, or was cut off, between its effect and its ack. Where effects are
rows of a database, `record_handled` in the transaction of the effects makes them happen once: the row that
says so is committed with them, or not at all. Else a `HandledFilter` skips most repetitions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from brokerset_client.ordered.consuming.handling import HandlingContext
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage

KEPT_MAX: Final = 100_000
"""Messages that a filter in memory remembers."""

CREATE_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS brokerset_handled ("
    "consumer_group VARCHAR(120) NOT NULL, message_id VARCHAR(255) NOT NULL, "
    "PRIMARY KEY (consumer_group, message_id))"
)
"""What `record_handled` needs."""


class HandledFilter(Protocol):
    """Remembers what was handled."""

    async def was_handled(self, message_id: str) -> bool:
        """Whether a handler has completed it before."""

    async def handled(self, message_id: str) -> None:
        """Its handler has completed."""


class MemoryFilter:
    """A filter for repetitions within one process; it remembers the latest `kept_max` messages."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._handled: OrderedDict[str, None] = OrderedDict()

    async def was_handled(self, message_id: str) -> bool:
        """Whether a handler has completed it before."""
        return message_id in self._handled

    async def handled(self, message_id: str) -> None:
        """Its handler has completed."""
        self._handled[message_id] = None
        if len(self._handled) > self._kept_max:
            self._handled.popitem(last=False)


CoroutineHandler = Callable[[OrderedMessage, HandlingContext], Awaitable[None]]


def once(handler: CoroutineHandler, handled: HandledFilter) -> CoroutineHandler:
    """A handler that skips, and thereby acknowledges, what was completed before. It cannot defer."""

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        if not await handled.was_handled(message.message_id):
            await handler(message, context)
            await handled.handled(message.message_id)

    return handle


def record_handled(connection: Any, group: str, message: OrderedMessage) -> bool:
    """Note in the open transaction of `connection` (sqlite3) that the group handles the message.

    False: it did before, so leave the effects out. Commit it together with the effects.
    """
    found = connection.execute(
        "INSERT INTO brokerset_handled (consumer_group, message_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (group, message.message_id),
    )
    return bool(found.rowcount == 1)
