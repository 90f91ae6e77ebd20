"""Passes of checks over small half topics, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from brokerset_broker.transactions.check_pass import (
    Answer,
    Append,
    CanAsk,
    CheckLimits,
    GivenUp,
    NoHalf,
    NotAppended,
    Pause,
    Place,
    ReadHalf,
    SaveProgress,
    SendCheck,
    check_pass,
    check_request,
)
from brokerset_broker.transactions.resolved import Ending, Resolved, State
from brokerset_formats.hosts import Host
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record, decode_record
from brokerset_formats.transactions import Message

HOST = Host(b"\x7f\x00\x00\x01", 10911)
NOW = 1_000_000
LONG_AGO = NOW - 60_000
LIMITS = CheckLimits()


def taken(_message: Message) -> NotAppended | None:
    return None


@dataclass
class Store:
    """A half topic, what else was appended, and what is known of both."""

    halves: dict[int, Record] = field(default_factory=dict)
    given_up: list[Message] = field(default_factory=list)
    checks: list[Record] = field(default_factory=list)
    reports: list[GivenUp] = field(default_factory=list)
    steps: list[object] = field(default_factory=list)
    resolved: Resolved = field(default_factory=Resolved)
    ops: int = 0
    connected: bool = True
    refuse: Callable[[Message], NotAppended | None] = taken
    while_read: Callable[[int], None] = lambda _queue_offset: None

    def half(self, *, stored: int = LONG_AGO, born: int | None = None, **properties: str) -> Record:
        number = len(self.halves)
        known = {"PGROUP": "pg", "UNIQ_KEY": f"K{number}", "REAL_TOPIC": "orders", "REAL_QID": "5"}
        return self.store_half(
            Message(
                topic=HALF_TOPIC,
                queue_id=0,
                body=b"%d" % number,
                properties=encode_properties({**known, **properties}),
                flag=7,
                reconsume_times=2,
                born_timestamp=stored if born is None else born,
                born_host=HOST,
            ),
            stored,
        )

    def store_half(self, message: Message, stored: int) -> Record:
        number = max(self.halves, default=-1) + 1
        record = Record(
            queue_id=0,
            queue_offset=number,
            offset=1_000 * number,
            flag=message.flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=stored,
            store_host=HOST,
            reconsume_times=message.reconsume_times,
            body=message.body,
            topic=message.topic,
            properties=message.properties,
        )
        self.halves[number] = record
        self.resolved.half_stored(record)
        return record

    def commit(self, half: Record) -> None:
        """Its final record, and the op record behind it."""
        self.resolved.final_stored(half.offset)
        self.write_ops()

    def write_ops(self) -> None:
        self.resolved.op_stored(self.ops, self.resolved.ops_to_write())
        self.ops += 1

    def check(self, limits: CheckLimits = LIMITS, now: int = NOW) -> None:
        self.resolved.loaded()
        steps = check_pass(self.resolved, limits, started_ms=now)
        answer: Answer = None
        while True:
            try:
                step = next(steps) if answer is None else steps.send(answer)
            except StopIteration:
                return
            self.steps.append(step)
            answer = self._answer(step, now)

    def _answer(self, step: object, now: int) -> Answer:
        match step:
            case ReadHalf(queue_offset):
                self.while_read(queue_offset)
                following = min(
                    (each for each in self.halves if each > queue_offset), default=queue_offset + 1
                )
                return self.halves.get(queue_offset) or NoHalf(following, "gone")
            case Append(message=message):
                if (refusal := self.refuse(message)) is not None:
                    return refusal
                if message.topic == HALF_TOPIC:
                    copy = self.store_half(message, now)
                    return Place(copy.queue_offset, copy.offset, copy.store_timestamp)
                self.given_up.append(message)
                return Place(len(self.given_up), 0, now)
            case CanAsk():
                return self.connected
            case SendCheck(half):
                self.checks.append(half)
            case GivenUp():
                self.reports.append(step)
            case _:
                pass
        return None

    @property
    def progress(self) -> int:
        return self.resolved.half_progress


@pytest.fixture
def store() -> Store:
    return Store()


def check_times(record: Record | Message) -> str | None:
    return decode_properties(record.properties).get("TRANSACTION_CHECK_TIMES")


def test_an_open_half_is_copied_and_its_producer_asked(store: Store) -> None:
    """Under the place of the copy; nothing of the half is lost."""
    half = store.half()

    store.check()

    [copy] = store.checks
    assert copy == store.halves[1]
    assert (copy.body, copy.flag, copy.reconsume_times) == (half.body, 7, 2)
    assert check_times(copy) == "1"
    assert store.resolved.state_at(1) is State.OPEN
    assert store.steps[-1] == SaveProgress(1, 0)


def test_an_answer_to_the_old_copy_ends_the_new_one(store: Store) -> None:
    """The producer's own commit may be late, after some checks; Java goes on asking (issue 8158)."""
    half = store.half()
    store.check()

    assert store.resolved.ending_of(half) is None
    store.resolved.final_stored(store.resolved.newest_copy(half))

    assert store.resolved.ending_of(half) is Ending.COMMITTED
    assert store.resolved.ops_to_write() == (1,)


def test_resolved_halves_are_passed_without_being_read(store: Store) -> None:
    for number in range(4):
        store.resolved.final_stored(store.half().offset)
        store.resolved.op_stored(number, [number])

    store.check()

    assert store.steps == [SaveProgress(4, 4)]


def test_ops_are_passed_when_all_that_they_name_is(store: Store) -> None:
    """The first op names a half at the progress, so a restart has to read it again."""
    store.half()
    store.half(stored=NOW)
    store.resolved.op_stored(0, [0, 1])
    store.half(stored=NOW)
    store.resolved.op_stored(1, [2])
    store.resolved.follow(1)

    assert store.resolved.op_progress == 0
    store.resolved.follow(2)
    assert store.resolved.op_progress == 1
    store.resolved.follow(3)
    assert store.resolved.op_progress == 2


@pytest.mark.parametrize(("age", "asked"), [(6_000, False), (6_001, True)])
def test_young_halves_are_left_alone(store: Store, age: int, asked: bool) -> None:
    """By the time of storing: a producer's clock that is behind or ahead changes nothing."""
    for born in (0, NOW, NOW + 3_600_000):
        store.half(stored=NOW - age, born=born)

    store.check()

    assert len(store.checks) == (3 if asked else 0)
    assert store.progress == (3 if asked else 0)


def test_immune_halves_are_copied_without_counting_a_check(store: Store) -> None:
    """Java counts it (issue 8311)."""
    store.half(CHECK_IMMUNITY_TIME_IN_SECONDS="300", TRANSACTION_CHECK_TIMES="2")
    limits = CheckLimits(stay_ms=0)

    store.check(limits)
    store.check(limits, NOW + 30_000)
    assert {step.supersedes for step in store.steps if isinstance(step, Append)} == {None}

    assert store.checks == []
    assert [check_times(half) for half in store.halves.values()] == ["2", "2", "2"]
    assert decode_properties(store.halves[2].properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    store.check(now=NOW + 300_000)
    assert [check_times(half) for half in store.checks] == ["3"]


@pytest.mark.parametrize("immune", [False, True])
def test_a_half_of_which_nobody_is_asked_stays_at_its_place(store: Store, immune: bool) -> None:
    """However many passes come, until it has been there for long; then it is moved, and not counted."""
    properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3000"} if immune else {}
    store.half(**properties)  # type: ignore[arg-type]  # no property has the name of a parameter
    store.connected = immune
    limits = CheckLimits(check_max=3)
    for number in range(9):
        store.check(limits, NOW + 60_000 * number)
    assert (len(store.halves), store.progress) == (1, 0)

    store.check(limits, LONG_AGO + limits.stay_ms)
    assert (len(store.halves), store.progress) == (2, 1)
    assert [check_times(half) for half in store.halves.values()] == [None, None]
    assert not store.checks


def test_a_half_of_which_nobody_is_asked_is_moved_behind_many_others(store: Store) -> None:
    """Else nothing behind it could be forgotten."""
    store.half()
    store.connected = False
    limits = CheckLimits(stay_halves_max=3)
    for _ in range(3):
        store.commit(store.half())

    store.check(limits)

    assert (len(store.halves), store.progress) == (5, 4)
    assert check_times(store.halves[4]) is None


@pytest.mark.parametrize("ahead", [0, 10**11])
def test_a_half_without_a_producer_is_given_up_in_the_end(store: Store, ahead: int) -> None:
    """When it is older than the log is kept; by a clock that is years ahead, when it was moved too often."""
    store.half(born=NOW + ahead)
    store.connected = False
    limits = CheckLimits(reserved_ms=3_600_000, stay_ms=600_000)
    hour = 0
    while not store.given_up and hour < 24:
        hour += 1
        store.check(limits, NOW + 3_600_000 * hour)

    assert hour == (limits.check_max + 1 if ahead else 2)
    assert not store.checks
    assert len(store.given_up) == 1


def test_an_immunity_ends_though_the_producer_is_ahead_by_years(store: Store) -> None:
    store.half(born=NOW + 10**11, CHECK_IMMUNITY_TIME_IN_SECONDS="300")

    store.check()

    assert len(store.checks) == 1


@pytest.mark.parametrize("ahead", [0, 10**13], ids=str)
def test_an_immunity_ends_when_the_log_is_not_kept_any_more(store: Store, ahead: int) -> None:
    """Of thousands of years, and by a clock that is as far ahead; else its copies would never end. Its
    producer is asked once before it is given up."""
    store.half(born=NOW + ahead, CHECK_IMMUNITY_TIME_IN_SECONDS=str(10**12))
    limits = CheckLimits(reserved_ms=100_000)
    for number in range(2 + limits.check_max):
        store.check(limits, NOW + 60_000 * number)

    assert store.checks
    assert len(store.given_up) == 1


def test_after_the_last_check_a_half_is_given_up(store: Store) -> None:
    """With all that it had, so that it can be resumed; late answers are refused."""
    store.half()
    limits = CheckLimits(check_max=3)
    for number in range(5):
        store.check(limits, NOW + 30_000 * number)

    [given_up] = store.given_up
    assert [check_times(half) for half in store.checks] == ["1", "2", "3"]
    assert given_up.topic == CHECK_MAX_TIME_TOPIC
    assert decode_properties(given_up.properties)["REAL_TOPIC"] == "orders"
    assert len(store.reports) == 1
    assert len(store.halves) == 4 == store.progress
    assert store.resolved.ending_of(store.halves[0]) is Ending.GIVEN_UP


def test_an_old_half_is_checked_once_before_it_is_given_up(store: Store) -> None:
    """The producer's clock may be days behind."""
    store.half(born=0, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    limits = CheckLimits(reserved_ms=100_000)

    store.check(limits)
    store.check(limits, NOW + 30_000)

    assert len(store.checks) == 1
    assert len(store.given_up) == 1


def test_a_bad_half_does_not_keep_later_ones_from_being_checked(store: Store) -> None:
    """One without a target, and one that cannot be read (issue 9500)."""
    store.half(REAL_QID="x")
    store.half()
    store.half()
    del store.halves[1]

    store.check()

    assert [half.body for half in store.checks] == [b"2"]
    assert [report.queue_offset for report in store.reports] == [0, 1]
    assert len(store.given_up) == 1
    assert store.progress == 3


def test_a_half_that_cannot_be_copied_is_checked_where_it_is(store: Store) -> None:
    """Its properties may be too long for one more; the progress waits for it, later halves do not."""
    bad = store.half()
    store.half()
    store.refuse = lambda message: NotAppended(True, "too long") if message.body == b"0" else None

    store.check()
    store.check(now=NOW + 30_000)

    assert [half.queue_offset for half in store.checks] == [0, 2, 0, 3]
    assert store.progress == 0
    store.commit(bad)
    store.check(now=NOW + 60_000)
    assert store.progress == 4


def test_a_half_that_cannot_even_be_given_up_is_passed(store: Store) -> None:
    store.half(REAL_TOPIC="")
    store.half()
    store.refuse = lambda message: NotAppended(message.body == b"0", "no")

    store.check()

    assert "no" in store.reports[0].reason
    assert store.progress == 1


def test_a_store_that_takes_nothing_ends_the_pass(store: Store) -> None:
    """What came before is saved, and the next pass goes on there."""
    store.commit(store.half())
    store.half()
    store.half()
    store.refuse = lambda message: NotAppended(False, "no role")

    store.check()

    assert store.checks == []
    assert store.progress == 1


def test_the_progress_waits_for_an_op_record_that_the_store_refused(store: Store) -> None:
    """Java goes by op records, and nobody writes one later for what the progress has passed."""
    store.commit(store.half())
    store.resolved.final_stored(store.half().offset)

    store.check()
    refused = store.progress
    store.write_ops()
    store.check()

    assert refused == 1
    assert store.progress == 2


def test_an_interrupted_pass_is_not_repeated(store: Store) -> None:
    """A copy stands for its half though no progress was saved."""
    store.half()
    steps = check_pass(store.resolved, LIMITS, started_ms=NOW)
    assert isinstance(next(steps), ReadHalf)
    assert isinstance(steps.send(store.halves[0]), CanAsk)
    step = steps.send(True)
    assert isinstance(step, Append)
    store.store_half(step.message, NOW)
    steps.close()

    store.check(now=NOW + 1_000)

    assert len(store.halves) == 2
    assert store.progress == 1


def test_a_half_that_is_ended_while_it_is_read_is_not_copied(store: Store) -> None:
    half = store.half()
    store.while_read = lambda _queue_offset: store.resolved.final_stored(half.offset)

    store.check()

    assert len(store.halves) == 1
    assert store.checks == []


@pytest.mark.parametrize("while_read", [False, True])
def test_the_progress_waits_for_the_op_of_a_rollback(store: Store, while_read: bool) -> None:
    """It is no record yet that says so; later halves do not wait."""
    half = store.half()
    store.half()
    if while_read:
        store.while_read = lambda offset: None if offset else store.resolved.rolled_back(half)
    else:
        store.resolved.rolled_back(half)

    store.check()

    assert len(store.checks) == 1
    assert store.progress == 0
    store.resolved.op_stored(0, store.resolved.ops_to_write())
    store.while_read = lambda _queue_offset: None
    store.check(now=NOW + 1)
    assert store.progress == 2


def test_a_gap_does_not_hide_a_rollback_without_an_op(store: Store) -> None:
    halves = [store.half() for _ in range(4)]
    store.resolved.rolled_back(halves[1])
    store.halves = {3: halves[3]}

    store.check()

    assert store.progress == 1
    assert len(store.checks) == 1


def test_a_half_of_nobody_is_found_when_it_is_read(store: Store) -> None:
    """What is not known yet is taken as it is in the store."""
    half = store.half()
    store.half()
    store.resolved = Resolved()
    store.resolved.half_stored(store.halves[1])

    store.check()

    assert [each.body for each in store.checks] == [half.body, b"1"]


def test_long_passes_let_others_have_their_turn(store: Store) -> None:
    for number in range(200):
        store.resolved.final_stored(store.half().offset)
        store.resolved.op_stored(number, [number])
    for _ in range(10):
        store.half()

    store.check(CheckLimits(step_halves_max=64))

    assert sum(isinstance(step, Pause) for step in store.steps) >= 200 // 64 + 10 * 16 // 64 - 1
    assert store.progress == 210


def test_a_resumed_half_is_open_again(store: Store) -> None:
    store.half()
    limits = CheckLimits(check_max=0)
    store.check(limits)

    resumed = store.store_half(replace(store.given_up[0], topic=HALF_TOPIC), NOW)

    assert store.resolved.state_at(resumed.queue_offset) is State.OPEN


def test_a_check_names_the_copy_and_shows_the_message(store: Store) -> None:
    """Header and body as Java's; the header's topic is the half topic."""
    store.half()
    store.check()
    [copy] = store.checks

    header, body = check_request(copy, "broker-a")

    assert header.to_ext() == {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": "1",
        "commitLogOffset": "1000",
        "msgId": "K0",
        "transactionId": "K0",
        "offsetMsgId": "7F00000100002A9F00000000000003E8",
        "bname": "broker-a",
    }
    shown = decode_record(body)
    assert (shown.topic, shown.queue_id, shown.queue_offset, shown.offset) == ("orders", 5, 1, 1_000)
