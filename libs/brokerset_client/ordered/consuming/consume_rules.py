"""What differs between a session that has a queue for itself, and one that shares it with others.

The owner of a queue has all of it, so queue offsets are contiguous for it. Who shares a queue is given some
of its messages: the broker numbers them by *pull sequences*, and the session pulls and acknowledges by these.
The rest of a consumer knows pull sequences only, which are queue offsets in an Exclusive group.

A broker gives the messages of a session to others when it has not heard of it for 30 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Protocol

from brokerset_client.messages import MessageView
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage
from brokerset_protocol.subject_words import ConsumeStrategy


class ConsumeRules(Protocol):
    """Of the sessions of one group."""

    shared: bool
    """Whether others consume the same queues at the same time."""

    remembered_seconds: float
    """After the last request that was answered, counted from when it was sent, the session starts handlers
    for so long."""

    silence_seconds: float | None
    """So long after it the session claims again if it has nothing else to ask; None: it need not."""

    def numbered(self, first: int, views: Iterable[MessageView]) -> list[tuple[int, MessageView]]:
        """All messages of an answer to a pull at `first`, each with its pull sequence."""

    def lane(self, pull_sequence: int, message: OrderedMessage) -> int:
        """Messages of one lane are handled one at a time, in their order."""

    def group_position(self, position: int, said: int) -> int:
        """The queue offset below which the group has acknowledged everything, by what the session has, and by
        what the broker `said`; -1: not known."""

    def suspend_ms(self, wanted: int, *, sealed: bool) -> int:
        """How long a broker may keep a pull."""


class ExclusiveRules:
    """The session has the queue for itself until another one claims it."""

    shared = False
    remembered_seconds = math.inf
    silence_seconds: float | None = None

    def numbered(self, first: int, views: Iterable[MessageView]) -> list[tuple[int, MessageView]]:
        """By their queue offsets."""
        return [(view.queue_offset, view) for view in views]

    def lane(self, pull_sequence: int, message: OrderedMessage) -> int:
        """The logical partition: keys keep their order."""
        return message.lane

    def group_position(self, position: int, said: int) -> int:
        """The session's position is the group's."""
        return position

    def suspend_ms(self, wanted: int, *, sealed: bool) -> int:
        """As wanted."""
        return wanted


class SharedRules:
    """The session is given some of the queue's messages, as long as its broker hears of it."""

    shared = True
    remembered_seconds = 25.0
    silence_seconds: float | None = 10.0

    def numbered(self, first: int, views: Iterable[MessageView]) -> list[tuple[int, MessageView]]:
        """One after the other."""
        return list(enumerate(views, first))

    def lane(self, pull_sequence: int, message: OrderedMessage) -> int:
        """Each message has one of its own: nothing waits for another."""
        return pull_sequence

    def group_position(self, position: int, said: int) -> int:
        """The broker alone knows what others have acknowledged."""
        return said

    def suspend_ms(self, wanted: int, *, sealed: bool) -> int:
        """Not for long: answers say how far the others are, which matters soon when there is an end."""
        return min(wanted, 2_000 if sealed else 10_000)


RULES: Final[dict[ConsumeStrategy, ConsumeRules]] = {
    ConsumeStrategy.EXCLUSIVE: ExclusiveRules(),
    ConsumeStrategy.SHARED: SharedRules(),
}
