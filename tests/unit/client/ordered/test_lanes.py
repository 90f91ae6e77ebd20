"""Lanes of one partition: what runs, what waits, what is acknowledged."""

from __future__ import annotations

from brokerset_client.ordered.consuming.lanes import LaneLimits, Lanes


def lanes_of(*lanes: int, limits: LaneLimits | None = None, position: int = 1) -> Lanes[str]:
    """One message for each number, of that lane, from queue offset `position` on."""
    made: Lanes[str] = Lanes(position, limits or LaneLimits())
    made.add(
        ((position + n, lane, f"m{position + n}") for n, lane in enumerate(lanes)), position + len(lanes)
    )
    return made


def offsets_taken(lanes: Lanes[str], now: float = 0.0) -> list[int]:
    found = []
    while (taken := lanes.take(now)) is not None:
        found.append(taken.pull_sequence)
    return found


def test_one_message_of_a_lane_runs_at_a_time() -> None:
    """The second of a lane starts when the first is done; other lanes do not wait (statement 37)."""
    lanes = lanes_of(5, 5, 7)

    assert offsets_taken(lanes) == [1, 3]
    lanes.done(1)

    assert offsets_taken(lanes) == [2]


def test_completion_out_of_order_is_acknowledged_once_and_whole() -> None:
    """Completing 3, 2, 1 gives the range [1, 3], and nothing before (statement 43)."""
    lanes = lanes_of(1, 2, 3)
    offsets_taken(lanes)

    lanes.done(3)
    lanes.done(2)
    before = lanes.ack_range
    lanes.done(1)

    assert before is None
    assert lanes.ack_range == (1, 3)
    lanes.acknowledged(4)
    assert lanes.ack_range is None


def test_a_failed_message_stays_first_and_stops_its_lane_alone() -> None:
    """After a failure the same message comes again, later ones of the lane wait, others go on
    (statement 38)."""
    lanes = lanes_of(5, 5, 7)
    offsets_taken(lanes)

    lanes.failed(1, now=0.0, retry_at=2.0)
    lanes.done(3)

    assert offsets_taken(lanes, now=1.9) == []
    assert lanes.next_retry == 2.0
    again = lanes.take(2.0)
    assert again is not None
    assert (again.pull_sequence, again.attempt) == (1, 2)
    assert lanes.ack_range is None


def test_attempts_are_counted_until_the_message_is_done() -> None:
    """The attempt grows with each failure, and begins again with the next message of the lane
    (statement 38)."""
    lanes = lanes_of(5, 5)
    for failures in range(3):
        taken = lanes.take(float(failures))
        assert taken is not None
        assert taken.attempt == failures + 1
        lanes.failed(1, now=float(failures), retry_at=failures + 1.0)

    assert [(each.attempts, each.since, each.waiting) for each in lanes.blocked()] == [(3, 0.0, 1)]
    offsets_taken(lanes, now=9.0)
    lanes.done(1)
    following = lanes.take(9.0)

    assert following is not None
    assert (following.pull_sequence, following.attempt) == (2, 1)
    assert list(lanes.blocked()) == []


def test_what_was_put_back_is_no_failure() -> None:
    """A message whose result did not count comes again as the same attempt."""
    lanes = lanes_of(5)
    assert offsets_taken(lanes) == [1]

    lanes.put_back(1)
    taken = lanes.take(0.0)

    assert taken is not None
    assert (taken.pull_sequence, taken.attempt) == (1, 1)


def test_queue_offsets_without_a_message_count_as_done() -> None:
    """What a filter or retention took leaves no gap in the acks (statements 43, 64)."""
    lanes: Lanes[str] = Lanes(10, LaneLimits())

    lanes.add([(12, 1, "m12"), (15, 2, "m15")], 20)
    offsets_taken(lanes)
    lanes.done(15)
    assert lanes.ack_range == (10, 11)
    lanes.done(12)

    assert lanes.ack_range == (10, 19)
    assert lanes.pulled_to == 20


def test_messages_that_came_before_are_dropped() -> None:
    """A repeated answer to a pull adds nothing."""
    lanes = lanes_of(1, 2)

    lanes.add([(1, 1, "m1"), (2, 2, "m2"), (3, 3, "m3")], 4)

    assert offsets_taken(lanes) == [1, 2, 3]
    assert lanes.unhandled == 3


def test_what_was_pulled_and_not_handled_is_bounded() -> None:
    """With 100 unhandled nothing is pulled, so a batch of 50 makes 149 at most (statement 44)."""
    limits = LaneLimits(unhandled_max=100, running_max=1_000)
    lanes = lanes_of(*range(99), limits=limits, position=0)
    assert lanes.has_room

    lanes.add(((n, n, f"m{n}") for n in range(99, 149)), 149)

    assert not lanes.has_room
    assert lanes.unhandled == 149 <= limits.unhandled_max + 50
    offsets_taken(lanes)
    for queue_offset in range(50):
        lanes.done(queue_offset)
    assert lanes.has_room


def test_what_is_handled_behind_a_lane_that_stands_still_is_bounded() -> None:
    """A blocked lane lets others go on until `span_max` queue offsets wait for its ack (statement 44)."""
    lanes = lanes_of(*range(20), limits=LaneLimits(span_max=20, running_max=1_000), position=0)
    offsets_taken(lanes)
    for queue_offset in range(1, 20):
        lanes.done(queue_offset)

    assert not lanes.has_room
    lanes.done(0)
    lanes.acknowledged(20)
    assert lanes.has_room


def test_handlers_of_a_partition_are_bounded() -> None:
    """As many messages run as are allowed, and the next one starts when one is done."""
    lanes = lanes_of(*range(5), limits=LaneLimits(running_max=2))
    assert offsets_taken(lanes) == [1, 2]
    assert not lanes.has_ready(0.0)

    lanes.done(2)

    assert offsets_taken(lanes) == [3]


def test_lanes_that_wait_may_be_started_at_once() -> None:
    """An operator who has mended something need not wait for the end of the back-off."""
    lanes = lanes_of(5)
    offsets_taken(lanes)
    lanes.failed(1, now=0.0, retry_at=1_000.0)

    lanes.retry_now()

    assert offsets_taken(lanes, now=0.0) == [1]


def test_what_waits_behind_a_failure_is_shed_and_comes_back() -> None:
    """A blocked lane keeps its first message in memory only, so others have room; what was shed is pulled
    again when its turn comes, and nothing is acknowledged before (statements 38, 43, 44)."""
    limits = LaneLimits(unhandled_max=3)
    lanes = lanes_of(5, 5, 5, limits=limits)
    offsets_taken(lanes)
    lanes.failed(1, now=0.0, retry_at=1.0)
    assert not lanes.has_room

    assert lanes.shed() == 2
    assert lanes.has_room
    lanes.add([(4, 7, "m4")], 5)
    assert offsets_taken(lanes) == [4]
    lanes.done(4)
    assert lanes.wanted is None
    assert offsets_taken(lanes, now=1.0) == [1]
    lanes.done(1)
    assert (lanes.wanted, lanes.ack_range) == (2, (1, 1))

    assert lanes.refill([(2, 5, "m2"), (3, 5, "m3"), (4, 7, "m4")], 2, 5) == 2
    assert offsets_taken(lanes) == [2]
    lanes.done(2)
    assert offsets_taken(lanes) == [3]
    lanes.done(3)
    assert lanes.ack_range == (1, 4)


def test_what_was_shed_and_is_gone_counts_as_done() -> None:
    """Retention may take a message while its lane is blocked; the lane goes on behind it."""
    lanes = lanes_of(5, 5, 5, 5)
    offsets_taken(lanes)
    lanes.failed(1, now=0.0, retry_at=0.0)
    lanes.shed()
    offsets_taken(lanes)
    lanes.done(1)

    assert lanes.refill([(3, 5, "m3")], 2, 4) == 1

    assert offsets_taken(lanes) == [3]
    lanes.done(3)
    assert (lanes.wanted, lanes.handled_to) == (4, 4)


def test_memory_that_is_full_of_what_waits_behind_shed_messages_is_freed() -> None:
    """Later messages of a lane give way to the earlier ones that were shed, so that it goes on
    (statement 38)."""
    limits = LaneLimits(unhandled_max=3)
    lanes = lanes_of(5, 5, 5, limits=limits)
    offsets_taken(lanes)
    lanes.failed(1, now=0.0, retry_at=0.0)
    lanes.shed()
    lanes.add([(offset, 5, f"m{offset}") for offset in (4, 5, 6)], 7)
    offsets_taken(lanes)
    lanes.done(1)
    assert (lanes.wanted, lanes.unhandled, lanes.take(0.0)) == (2, 3, None)

    assert lanes.shed() == 3
    assert lanes.refill([(offset, 5, f"m{offset}") for offset in range(2, 7)], 2, 7) == 5

    for queue_offset in range(2, 7):
        assert offsets_taken(lanes) == [queue_offset]
        lanes.done(queue_offset)
    assert lanes.ack_range == (1, 6)
