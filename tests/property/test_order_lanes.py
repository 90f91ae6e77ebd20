"""Lanes of a partition against a naive model: whatever completes or fails, and in whatever order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_client.ordered.consuming.lanes import LaneLimits, Lanes

BATCH = 7

limits = st.builds(
    LaneLimits,
    unhandled_max=st.integers(1, 15),
    span_max=st.integers(5, 60),
    running_max=st.integers(1, 6),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), bounds=limits, start=st.integers(0, 1_000))
def test_lanes_agree_with_a_naive_model(data: st.DataObject, bounds: LaneLimits, start: int) -> None:
    """Per lane the order of the queue, acks without a gap and never beyond what is done, bounds kept, and
    everything handled in the end (statements 37, 38, 43, 44)."""
    lanes: Lanes[int] = Lanes(start, bounds)
    lane_of: dict[int, int] = {}
    done: set[int] = set()
    running: list[int] = []
    completed: dict[int, list[int]] = {}
    now = 0.0

    def check() -> None:
        unhandled = [offset for offset in lane_of if offset not in done]
        expected = min(unhandled, default=lanes.pulled_to)
        assert lanes.handled_to == expected
        assert lanes.ack_range == ((lanes.position, expected - 1) if expected > lanes.position else None)
        assert lanes.unhandled + lanes.shed_count == len(unhandled)
        assert lanes.unhandled <= bounds.unhandled_max - 1 + BATCH
        assert lanes.pulled_to - lanes.position <= bounds.span_max - 1 + 3 * BATCH
        assert lanes.running == len(running) <= bounds.running_max

    def take() -> None:
        taken = lanes.take(now)
        if taken is None:
            return
        same = [o for o, lane in lane_of.items() if lane == taken.lane and o not in done]
        assert taken.pull_sequence == min(same), "the first of its lane that is not done"
        assert taken.item == taken.pull_sequence
        assert all(lane_of[other] != taken.lane for other in running), "one of a lane at a time"
        running.append(taken.pull_sequence)

    def finish(offset: int) -> None:
        lanes.done(offset)
        done.add(offset)
        completed.setdefault(lane_of[offset], []).append(offset)

    def refill() -> None:
        first = lanes.wanted
        if first is not None and lanes.unhandled >= bounds.unhandled_max:
            lanes.shed()
        if first is None or lanes.unhandled >= bounds.unhandled_max:
            return
        found = [offset for offset in range(first, lanes.pulled_to) if offset in lane_of][:BATCH]
        assert found[0] == first, "what is wanted was pulled before"
        lanes.refill([(offset, lane_of[offset], offset) for offset in found], first, found[-1] + 1)

    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(
            st.sampled_from(["pull", "take", "done", "fail", "put back", "ack", "wait", "shed", "refill"])
        ):
            case "pull" if lanes.has_room:
                steps = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 4)), max_size=BATCH))
                messages, offset = [], lanes.pulled_to - 1
                for step, lane in steps:
                    offset += step
                    messages.append((offset, lane, offset))
                    lane_of[offset] = lane
                lanes.add(messages, offset + 1)
            case "take":
                take()
            case "done" if running:
                finish(running.pop(data.draw(st.integers(0, len(running) - 1))))
            case "fail" if running:
                offset = running.pop(data.draw(st.integers(0, len(running) - 1)))
                lanes.failed(offset, now, now + data.draw(st.integers(0, 3)))
            case "put back" if running:
                lanes.put_back(running.pop(data.draw(st.integers(0, len(running) - 1))))
            case "ack" if lanes.ack_range is not None:
                first, last = lanes.ack_range
                assert first == lanes.position
                lanes.acknowledged(data.draw(st.integers(first, last + 1)))
            case "shed":
                lanes.shed()
            case "refill":
                refill()
            case "wait":
                now += 1.0
        check()

    now += 10.0
    for _ in range(2 * len(lane_of) + 1):
        refill()
        take()
        if running:
            finish(running.pop())
    check()
    assert done == set(lane_of)
    assert all(offsets == sorted(offsets) for offsets in completed.values())
