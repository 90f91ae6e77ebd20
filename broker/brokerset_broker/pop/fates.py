"""What becomes of an ack, or of a change of the invisible time: `DESIGN.md` has the table."""

from __future__ import annotations

from enum import Enum
from typing import Final

from brokerset_broker.pop.check_points import CheckPoints, EarlyKey, OpenPoint
from brokerset_formats.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What a handle says of one message."""

    topic: str
    """Where the message lies: the topic, or a retry topic."""
    group: str
    queue_id: int
    start: int
    """Of the check point."""
    pop_time: int
    """Milliseconds since 1970."""
    visible_time: int
    """Milliseconds since 1970."""
    offset: int
    """Queue offset of the message."""

    @property
    def key(self) -> EarlyKey:
        """The name of the check point."""
        return EarlyKey(self.topic, self.group, self.queue_id, self.start, self.pop_time)


@dataclass(frozen=True, slots=True)
class Out:
    """The message is out with this handle: it is acked, or changed, by a record."""

    point: OpenPoint
    bit: int


@dataclass(frozen=True, slots=True)
class Early:
    """A Java master may have popped it: its check point is not there yet, the ack is recorded and waits."""


class Settled(Enum):
    """Nothing is to be done."""

    ACKED = "the message was acked before"


class NotYours(Enum):
    """The message is not the caller's: MESSAGE_ILLEGAL."""

    NO_SUCH_MESSAGE = "the pop that the handle names did not give out this message"
    CHANGED = "the message is out with another handle, of a later change of its invisible time or a later pop"
    NEVER_POPPED = "the group has not popped this message, or what says so was lost"
    EXPIRED = "the handle has expired: the message was acked before, or is given out again"


Fate = Out | Early | Settled | NotYours

EARLY: Final = Early()


def decide_fate(points: CheckPoints, claim: Claim, *, now_ms: int, leads_since_ms: int) -> Fate:
    """`leads_since_ms`: pops after that wall clock time were this master's own."""
    source = points.sources.get((claim.topic, claim.group, claim.queue_id))
    if source is None:
        return NotYours.NEVER_POPPED
    point = points.find(source, claim.start, claim.pop_time)
    if point is not None:
        bit = point.bit_of(claim.offset)
        if not bit:
            return NotYours.NO_SUCH_MESSAGE
        if point.left & bit:
            return Out(point, bit)
    if points.is_out_elsewhere(source, claim.offset, point):
        return NotYours.CHANGED
    if points.is_given_up(claim.key, claim.offset):
        return NotYours.EXPIRED
    if point is not None:
        return Settled.ACKED
    if source.position is None or claim.offset >= source.position:
        return NotYours.NEVER_POPPED
    if claim.visible_time <= max(now_ms, points.came_back_ms):
        return NotYours.EXPIRED
    if points.is_early_acked(claim.key, claim.offset):
        return Settled.ACKED
    if claim.pop_time >= leads_since_ms:
        return Settled.ACKED
    return NotYours.NO_SUCH_MESSAGE if points.has_all_early(claim.key) else EARLY
