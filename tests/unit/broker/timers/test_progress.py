"""What a group has done: steps, their bytes, and where a broker stands."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.timers.progress import (
    JAVA_ROLL_LAG_MS,
    STEPS_MAX,
    Progress,
    Step,
    TimerState,
)
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.config import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import TimerCheckpoint, decode_timer_checkpoint

SETTINGS = TimerSettings()
NOW = 1_795_251_847_000

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["taken", "passed", "delivered", "rewound"]),
        st.integers(0, 12),
        st.integers(0, 12),
    ),
    max_size=30,
)


def changed(progress: Progress, what: str, queue_offset: int, slots: int) -> Progress:
    match what:
        case "taken":
            return progress.taken(queue_offset)
        case "passed":
            return progress.passed(slots * 1000)
        case "delivered":
            return progress.delivered(queue_offset, progress.read_ms + 1000)
        case _:
            return progress.rewound(slots * 1000)


@given(CHANGES)
def test_what_is_done_stays_done_and_nothing_else_is(changes: list[tuple[str, int, int]]) -> None:
    """Against a set of all pairs of queue offset and slot that a change has covered."""
    progress, done = Progress((Step(0, 0),)), set[tuple[int, int]]()
    for what, queue_offset, slots in changes:
        progress = changed(progress, what, queue_offset, slots)
        limits = {"passed": progress.read_ms, "delivered": progress.read_ms + 1000, "taken": progress.read_ms}
        end = limits.get(what, 0)
        below = min(queue_offset, progress.queue_offset) if what == "delivered" else progress.queue_offset
        done |= {(q, slot * 1000) for q in range(below) for slot in range(end // 1000)}

    found = {(q, slot * 1000) for q in range(14) for slot in range(15) if progress.is_done(q, slot * 1000)}

    if len(progress.steps) < STEPS_MAX:
        assert found == done
    assert found <= done
    assert Progress.decode(progress.encode()) == progress


def test_of_too_many_steps_the_oldest_go() -> None:
    """Each time the clock is set back a step stays until it has caught up."""
    progress = Progress((Step(0, 100_000),))
    for number in range(40):
        progress = progress.taken(number).rewound(99_000 - number * 1000)

    assert len(progress.steps) == STEPS_MAX
    assert (progress.queue_offset, progress.read_ms) == (39, 60_000)
    assert progress.passed(200_000).steps == (Step(39, 200_000),)


@given(st.binary(max_size=120))
def test_any_bytes_give_a_progress_or_a_format_error(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        Progress.decode(data)


def test_a_progress_of_another_version_or_in_disorder_is_refused() -> None:
    data = Progress((Step(3, 9000), Step(5, 7000))).encode()

    with pytest.raises(FormatError, match="version 2"):
        Progress.decode(b"\x02" + data[1:])
    with pytest.raises(FormatError, match="disorder"):
        Progress.decode(data[:18] + data[34:] + data[18:34])
    with pytest.raises(FormatError, match="2 steps in"):
        Progress.decode(data[:-1])


def test_the_progress_of_a_java_master_leaves_its_rolls_open() -> None:
    """It took messages some time after they were stored, so its rolls may lie in later slots than ours."""
    progress = Progress.of_java(TimerCheckpoint(NOW, 52, 7, 7), NOW, SETTINGS)

    assert (progress.queue_offset, progress.read_ms) == (7, NOW)
    assert progress.is_done(6, NOW - 1000)
    assert not progress.is_done(6, NOW - 1000, rolls=True)
    assert progress.is_done(6, NOW - JAVA_ROLL_LAG_MS - 1000, rolls=True)
    later = progress.passed(progress.roll_lag_until_ms + 1000)
    assert later.is_done(6, progress.roll_lag_until_ms, rolls=True)
    assert Progress.of_java(TimerCheckpoint(), NOW + 7, SETTINGS).steps == (Step(0, NOW),)


def test_a_slave_takes_what_the_master_took_and_reads_nothing() -> None:
    state = TimerState(Progress((Step(5, NOW),)), 3, 156).at(NOW + 5000, SETTINGS)

    assert not state.may_read
    assert state.progress.read_ms == NOW
    assert not state.must_take_back
    assert state.learned(Progress((Step(2, NOW),))).must_take_back


def test_a_new_master_reads_when_it_has_taken_what_was_there() -> None:
    """What the old one took may be due, and what it rolled is not to be rolled twice."""
    state = TimerState(Progress((Step(5, NOW),)), 3, 156).promoted(7).at(NOW + 2000, SETTINGS)

    assert not state.may_read
    taken = state.taken(6, 312)
    assert (taken.may_read, taken.progress.queue_offset) == (False, 6)
    assert taken.taken(7, 364).may_read


def test_without_room_for_a_message_just_so_much_is_read_that_there_is_room() -> None:
    """Reading on would pass the slot of what waits to be taken, and of its recall."""
    state = TimerState(Progress((Step(5, NOW),)), 5, 260).promoted(7).at(NOW + 90_000, SETTINGS)

    limited = state.no_room(NOW + 1000)

    assert limited.may_read
    read = limited.passed(NOW + 50_000)
    assert (read.progress.read_ms, read.may_read) == (NOW + 1000, False)
    assert read.taken(6, 312).taken(7, 364).may_read


def test_slots_that_are_passed_for_room_claim_nothing_that_was_not_taken() -> None:
    """A restart finds the clock set back, and a message that was taken before has no room."""
    progress = Progress((Step(6, NOW + 9000), Step(8, NOW)))
    state = TimerState(progress, 7, 364).promoted(9).at(NOW + 90_000, SETTINGS)

    read = state.no_room(NOW + 1000).passed(NOW + 1000)

    assert read.progress.steps == (Step(6, NOW + 9000), Step(7, NOW + 1000))


def test_what_a_demoted_master_did_alone_is_taken_back() -> None:
    state = TimerState(Progress((Step(9, NOW + 3000),)), 9, 468, leads=True)

    demoted = state.demoted(Progress((Step(5, NOW),)))

    assert demoted.must_take_back
    assert not demoted.took_back(5, 260).must_take_back


def test_slots_are_passed_only_when_they_have_ended() -> None:
    state = TimerState(Progress((Step(0, NOW),)), 0, 0).promoted(0).at(NOW + 2999, SETTINGS)

    assert state.passed(NOW + 50_000).progress.read_ms == NOW + 2000
    assert not state.passed(NOW + 2000).may_read


def test_a_clock_that_was_set_back_reads_slots_again_and_knows_what_is_done() -> None:
    state = TimerState(Progress((Step(4, NOW),)), 4, 208, leads=True).at(NOW - 10_000, SETTINGS)

    assert state.progress.read_ms == NOW - 10_000
    assert state.progress.is_done(3, NOW - 5000)
    assert not state.progress.is_done(4, NOW - 5000)


def test_the_checkpoint_says_it_to_java_and_to_us() -> None:
    state = TimerState(Progress((Step(9, NOW + 1000), Step(12, NOW))), 10, 520, leads=True)

    read = decode_timer_checkpoint(state.checkpoint(468, DataVersion(1, 2, 3)).encode())

    assert (read.last_read_ms, read.log_flush_position) == (NOW, 468)
    assert (read.queue_offset, read.master_queue_offset) == (10, 12)
    assert Progress.decode(read.own) == state.progress
