"""Pull logs of Shared groups, and ranges of acks, against models that remember each message."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.tables.ordered import shared_pulls
from brokerset_broker.tables.ordered.acked_ranges import AckedRanges
from brokerset_broker.tables.ordered.shared_pulls import PullLog, SharedQueue

END = 30
WINDOW = 8
RANGES_MAX = 2
START = 1_000

numbers = st.integers(0, END)
sessions = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("begin"), sessions, numbers),
    st.tuples(st.just("give"), sessions, st.integers(1, 5)),
    st.tuples(st.just("give"), sessions, st.integers(1, 5)),
    st.tuples(st.just("ack"), sessions, st.integers(1, 5)),
    st.tuples(st.just("ack"), sessions, st.integers(-3, 5)),
    st.tuples(st.just("filter"), sessions, st.integers(1, 3)),
    st.tuples(st.just("forget"), sessions, numbers),
    st.tuples(st.just("silent"), sessions, numbers),
    st.tuples(st.just("expire"), sessions, st.integers(0, 5)),
    st.tuples(st.just("take over"), sessions, numbers),
)


class Model:
    """One queue with everything that ever happened to its messages."""

    def __init__(self) -> None:
        self.queue = SharedQueue(7, AckedRanges())
        self.settled: set[int] = set()
        self.given: dict[str, list[int]] = {}
        """What each living session was given by its log, ever."""

        self.done: dict[str, int] = {}
        self.now = 0.0

    def step(self, what: str, session: str, number: int) -> None:
        self.now += 1
        log = self.queue.logs.get(session)
        match what:
            case "begin":
                self.queue.begin(session, START * number, self.now)
                self.given[session], self.done[session] = [], 0
            case "give" if log is not None:
                log.seen = self.now
                for _ in range(number):
                    self._give(session, log)
            case "ack" if log is not None:
                end = max(log.start, min(log.position + number, log.end))
                known = max(end, log.position)  # one that is repeated changes nothing
                self.settled.update(log.given_from(log.position)[: known - log.position])
                log.acknowledge(end)
                self.done[session] = known - log.start
            case "filter":
                self._filter(number)
            case "forget":
                self.queue.forget(session)
                self._gone(session)
            case "silent":
                for name in self.queue.forget_silent(self.now - 4):
                    self._gone(name)
            case "expire":
                oldest = min(self.queue.acked.position + number, END)
                self.queue.expire(oldest)
                self.settled.update(range(oldest))
            case "take over":
                self.take_over()
            case _:
                pass

    def _give(self, session: str, log: PullLog) -> None:
        candidate = self.queue.candidate()
        if candidate is None or candidate[0] >= END:
            return
        queue_offset, again = candidate
        living = self.living()
        assert queue_offset not in living, "given to two sessions"
        assert queue_offset not in self.settled, "given although it is settled"
        assert again == (queue_offset < self.queue.next_new)
        log.give(queue_offset)
        self.given[session].append(queue_offset)

    def _filter(self, number: int) -> None:
        candidate = self.queue.candidate()
        if candidate is None or candidate[0] >= END:
            return
        first, again = candidate
        end = first + 1 if again else min(first + number, END)
        self.queue.settle(first, end)
        self.settled.update(range(first, end))

    def take_over(self) -> None:
        """Another master begins with what is replicated."""
        acked = self.queue.acked
        self.queue = SharedQueue(7, AckedRanges(acked.position, acked.ranges))
        self.given.clear()
        self.done.clear()

    def _gone(self, session: str) -> None:
        self.given.pop(session, None)
        self.done.pop(session, None)

    def living(self) -> list[int]:
        """What sessions have, and have not acknowledged."""
        return [offset for log in self.queue.logs.values() for offset in log.given_from(log.position)]

    def check(self) -> None:
        queue, acked = self.queue, self.queue.acked
        assert {offset for offset in range(END) if offset in acked} == self.settled & set(range(END))
        assert acked.position not in acked
        assert list(acked.ranges) == sorted(acked.ranges)
        for name, log in queue.logs.items():
            assert log.end - log.start == len(self.given[name]), "pull sequences are contiguous"
            assert log.given_from(log.position) == self.given[name][self.done[name] :]
        living = self.living()
        assert len(living) == len(set(living)) == queue.pending
        assert all(offset < acked.position + WINDOW for offset in living if offset not in self.settled)
        free = {offset for offset in range(queue.next_new) if offset not in self.settled} - set(living)
        assert free == set(queue._again), "nothing is lost, and nothing is given again that somebody has"


@given(st.lists(steps, min_size=20, max_size=80))
def test_each_message_goes_to_one_session_until_it_is_acknowledged(
    made: Sequence[tuple[str, str, int]],
) -> None:
    """No message is with two living sessions, none is lost, each log is contiguous, and their size is bounded
    (statement 61); at last one session gets all that is left."""
    with (
        mock.patch.object(shared_pulls, "WINDOW", WINDOW),
        mock.patch.object(shared_pulls, "RANGES_MAX", RANGES_MAX),
    ):
        model = Model()
        for session in "abc":
            model.step("begin", session, ord(session))
        for step in made:
            model.step(*step)
            model.check()
        for session in list(model.queue.logs):
            model.step("forget", session, 0)
        model.step("begin", "a", 1)
        for _ in range(END):
            model.step("give", "a", END)
            model.step("ack", "a", END)
            model.check()

    assert model.queue.acked.position == END
    assert model.queue.acked.ranges == ()


@given(numbers, st.lists(st.tuples(numbers, numbers)))
def test_ranges_are_what_was_added(position: int, added: Sequence[tuple[int, int]]) -> None:
    """A position and ranges above it say what a set of numbers says, in any order, and twice."""
    acked = AckedRanges(position)
    numbers_of = set(range(position))
    for first, end in [*added, *added]:
        acked.add(first, end)
        numbers_of |= set(range(first, end))

    assert {number for number in range(END + 1) if number in acked} == numbers_of
    for number in range(END + 1):
        assert acked.following(number) == next(n for n in range(number, END + 2) if n not in numbers_of)
    flat = [bound for pair in acked.ranges for bound in pair]
    assert flat == sorted(set(flat)), "ranges neither touch nor overlap"
    assert acked.position < min(flat, default=END + 2)
    assert AckedRanges(acked.position, acked.ranges).ranges == acked.ranges
