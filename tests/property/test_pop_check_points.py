"""The open check points against a simple model: who has which message, until when."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.pop.check_points import CheckPoints, OpenPoint
from brokerset_broker.pop.fates import Claim, NotYours, Out, Settled, decide_fate
from brokerset_formats.pop.records import CheckPoint

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pop", "ack", "change", "wait", "copy", "reload"]),
        st.integers(0, 40),
        st.integers(1, 5),
    ),
    max_size=60,
)


@dataclass
class World:
    """One group and queue; time in ms, and the revive queue as the records that were appended."""

    now: int = 1_000
    position: int = 0
    points: CheckPoints = field(default_factory=CheckPoints)
    log: list[CheckPoint | tuple[int, int, int]] = field(default_factory=list)
    holders: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Of each message that is out: start and pop time of its handle, and when it becomes visible."""
    acked: set[int] = field(default_factory=set)
    revived: set[int] = field(default_factory=set)
    handles: list[Claim] = field(default_factory=list)

    def append(self, record: CheckPoint) -> OpenPoint | None:
        self.log.append(record)
        return self.points.add(record, 0, len(self.log) - 1, record.visible_time / 1000)

    def record(self, start: int, distances: tuple[int, ...], invisible: int, pop_time: int) -> CheckPoint:
        return CheckPoint(
            topic="t", group="g", queue_id=0, start_offset=start, pop_time=pop_time, invisible_time=invisible,
            broker="b", count=len(distances), distances=distances,
        )  # fmt: skip

    def out(self, record: CheckPoint) -> None:
        for offset in record.offsets:
            self.holders[offset] = (record.start_offset, record.pop_time, record.visible_time)
            self.handles.append(
                Claim("t", "g", 0, record.start_offset, record.pop_time, record.visible_time, offset)
            )

    def pop(self, number: int, count: int) -> None:
        distances = tuple(range(0, count * 2, 2)) if number % 2 else tuple(range(count))
        record = self.record(self.position, distances, 1_000 + number * 50, self.now)
        self.append(record)
        self.out(record)
        self.position = record.offsets[-1] + 1
        self.points.source("t", "g", 0).position = self.position

    def fate(self, claim: Claim) -> object:
        fate = decide_fate(self.points, claim, now_ms=self.now, leads_since_ms=0)
        holds = self.holders.get(claim.offset, (0, 0, 0))[:2] == (claim.start, claim.pop_time)
        assert isinstance(fate, Out) == holds, (fate, claim)
        if fate is Settled.ACKED:
            assert claim.offset not in self.holders
        return fate

    def ack(self, fate: Out, offset: int) -> None:
        self.log.append((fate.point.start, fate.point.pop_time, offset))
        self.points.note_record(0, len(self.log) - 1)
        self.points.ack(fate.point, fate.bit)
        del self.holders[offset]

    def step(self, kind: str, number: int, count: int) -> None:
        self.now += 1
        claim = self.handles[number % len(self.handles)] if self.handles else None
        match kind:
            case "pop":
                self.pop(number, count)
            case "ack" if claim is not None and isinstance(fate := self.fate(claim), Out):
                self.ack(fate, claim.offset)
                self.acked.add(claim.offset)
            case "change" if claim is not None and isinstance(fate := self.fate(claim), Out):
                record = self.record(claim.offset, (0,), count * 300, max(self.now, claim.pop_time + 1))
                self.append(record)
                self.ack(fate, claim.offset)
                self.out(record)
            case "wait":
                self.now += number * 50
                self.revive()
            case "copy":
                queue = self.points.queue(0)
                queue.advance(1_000)
                if (point := queue.open.get(queue.first)) is not None:
                    self.log.append(point.record())
                    self.points.move(point, len(self.log) - 1)
            case "reload":
                self.reload()

    def revive(self) -> None:
        for point in self.points.due(self.now / 1000):
            for offset in point.offsets(point.left):
                holder = self.holders[offset]
                assert holder[:2] == (point.start, point.pop_time)
                assert holder[2] <= self.now, "nothing comes back while somebody has it"
                assert offset not in self.acked | self.revived
                self.revived.add(offset)
                self.ack(Out(point, point.bit_of(offset)), offset)

    def reload(self) -> None:
        first = self.points.queue(0).advance(1_000)
        self.points = points = CheckPoints()
        for place, record in enumerate(self.log):
            if place < first:
                continue
            points.note_record(0, place)
            if isinstance(record, CheckPoint):
                points.add(record, 0, place, record.visible_time / 1000)
                continue
            start, pop_time, offset = record
            point = points.find(points.source("t", "g", 0), start, pop_time)
            if point is not None:
                points.ack(point, point.bit_of(offset))
        points.source("t", "g", 0).position = self.position
        points.queue(0).first = first
        points.queue(0).end = len(self.log)


@given(STEPS)
def test_each_message_has_one_holder_and_none_is_lost(steps: list[tuple[str, int, int]]) -> None:
    """Whatever comes in whatever order: a message is acked once, or comes back once, never both."""
    world = World()

    for kind, number, count in steps:
        world.step(kind, number, count)
        assert world.points.in_flight == len(world.holders)
        assert world.points.count == sum(len(queue.open) for queue in world.points.queues.values())

    world.now += 1_000_000
    world.revive()
    assert not world.holders
    assert (world.points.count, world.points.in_flight, world.points.next_due()) == (0, 0, None)
    assert world.points.queue(0).advance(1_000) == len(world.log)


def test_a_handle_that_nobody_gave_out_is_refused() -> None:
    """An unknown group has popped nothing."""
    claim = Claim("t", "g", 0, 0, 1, 2, 0)

    assert decide_fate(CheckPoints(), claim, now_ms=0, leads_since_ms=0) is NotYours.NEVER_POPPED
