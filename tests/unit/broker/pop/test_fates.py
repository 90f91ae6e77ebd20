"""What becomes of an ack, by the check points that there are."""

from __future__ import annotations

from brokerset_broker.pop.check_points import CheckPoints, OpenPoint
from brokerset_broker.pop.fates import Claim, NotYours, Out, Settled, decide_fate
from brokerset_formats.pop.records import CheckPoint

POP_TIME = 1_000
INVISIBLE_MS = 500


def add(points: CheckPoints, start: int, pop_time: int = POP_TIME) -> OpenPoint:
    record = CheckPoint(
        topic="t", group="g", queue_id=0, start_offset=start, pop_time=pop_time, invisible_time=INVISIBLE_MS,
        broker="b", count=1, distances=(0,),
    )  # fmt: skip
    point = points.add(record, 0, len(points.queue(0).open), 1.0)
    assert point is not None
    points.source("t", "g", 0).position = start + 1
    return point


def claim(offset: int, pop_time: int = POP_TIME) -> Claim:
    return Claim("t", "g", 0, offset, pop_time, pop_time + INVISIBLE_MS, offset)


def test_a_clock_that_is_set_back_makes_no_old_handle_good() -> None:
    """A message came back when its time was over; the clock is before that time now, and the ack is late."""
    points = CheckPoints()
    points.ack(add(points, 7), 1)

    before = decide_fate(points, claim(7), now_ms=1_300, leads_since_ms=0)
    points.came_back_ms = POP_TIME + INVISIBLE_MS
    after = decide_fate(points, claim(7), now_ms=1_300, leads_since_ms=0)

    assert (before, after) == (Settled.ACKED, NotYours.EXPIRED)


def test_the_handle_from_before_a_change_is_not_good() -> None:
    """The message is out with a later pop time: only the new handle acknowledges it."""
    points = CheckPoints()
    old = add(points, 7)
    new = add(points, 7, POP_TIME + 100)
    points.ack(old, 1)

    assert decide_fate(points, claim(7), now_ms=1_300, leads_since_ms=0) is NotYours.CHANGED
    assert decide_fate(points, claim(7, POP_TIME + 100), now_ms=1_300, leads_since_ms=0) == Out(new, 1)


def test_a_message_that_no_pop_has_reached_is_nobodys() -> None:
    """A handle may name what lies behind the group's position; it was not popped."""
    points = CheckPoints()
    add(points, 7)

    assert decide_fate(points, claim(9), now_ms=1_300, leads_since_ms=0) is NotYours.NEVER_POPPED


def test_a_handle_whose_time_is_over_is_not_good() -> None:
    """No check point is open any more: the message was acknowledged, or is given out again; nobody knows."""
    points = CheckPoints()
    points.ack(add(points, 7), 1)

    end_ms = POP_TIME + INVISIBLE_MS
    assert decide_fate(points, claim(7), now_ms=end_ms - 1, leads_since_ms=0) is Settled.ACKED
    assert decide_fate(points, claim(7), now_ms=end_ms, leads_since_ms=0) is NotYours.EXPIRED
