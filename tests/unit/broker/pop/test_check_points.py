"""The open check points: what they cost when messages come and go."""

from __future__ import annotations

import sys

from brokerset_broker.pop.check_points import EMPTY_SLOTS_MAX, SLOTS_PER_SECOND, CheckPoints, OpenPoint
from brokerset_broker.pop.fates import EARLY, Claim, NotYours, decide_fate
from brokerset_formats.pop.records import MESSAGES_MAX, CheckPoint


def add(points: CheckPoints, start: int, due: float) -> OpenPoint:
    record = CheckPoint(
        topic="t", group="g", queue_id=0, start_offset=start, pop_time=start, invisible_time=1, broker="b",
        count=1, distances=(0,),
    )  # fmt: skip
    point = points.add(record, 0, start, due)
    assert point is not None
    return point


def test_long_invisible_times_of_acked_messages_cost_nothing() -> None:
    """What was acked leaves nothing in the slots of time behind, though these are hours ahead; what is out
    stays, and is due in its order."""
    points = CheckPoints()
    open_ones = [add(points, number, 50_000.0 - number) for number in range(3)]
    for number in range(20 * EMPTY_SLOTS_MAX):
        points.ack(add(points, 10 + number, 43_000 + number / SLOTS_PER_SECOND), 1)

    assert len(points._slots) <= EMPTY_SLOTS_MAX + len(open_ones) + 1
    assert sys.getsizeof(points._slot_heap) < 100_000
    assert points.next_due() is not None
    assert list(points.overdue(49_999)) == [open_ones[2]]
    assert list(points.due(60_000)) == open_ones[::-1]
    assert points.next_due() is None
    assert points._empty_slots == 0


def test_a_slot_that_was_empty_is_used_again() -> None:
    """A check point in it is due once, also when others have left and come."""
    points = CheckPoints()
    for number in range(5):
        points.ack(add(points, number, 7.0), 1)
    last = add(points, 9, 7.0)
    points.put_off(last, 8.0)
    points.put_off(last, 7.0)

    assert list(points.overdue(9)) == [last]
    assert list(points.due(9)) == [last]


def test_acks_of_a_check_point_that_is_not_there_are_bounded() -> None:
    """A client may name any messages: no check point has more than 32."""
    points = CheckPoints()
    points.source("t", "g", 0).position = 1_000
    fates = []
    for offset in range(2 * MESSAGES_MAX):
        claim = Claim("t", "g", 0, 0, 5, 90_000, offset)
        fates.append(decide_fate(points, claim, now_ms=10, leads_since_ms=10))
        if fates[-1] is EARLY:
            points.ack_early(claim.key, (offset,), claim.visible_time)

    assert fates == [EARLY] * MESSAGES_MAX + [NotYours.NO_SUCH_MESSAGE] * MESSAGES_MAX
