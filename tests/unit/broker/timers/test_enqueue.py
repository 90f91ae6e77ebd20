"""Which slot a message belongs to, and what becomes of it when it is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.timers.enqueue import (
    DeliverNow,
    Link,
    NoRoom,
    NotReached,
    RollNow,
    Skip,
    TakeDecision,
    decide_take,
    make_unit,
    slot_of,
)
from brokerset_broker.timers.messages import TimedMessage
from brokerset_broker.timers.progress import Progress, Step, TimerState
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.timer_files import decode_timer_unit

SETTINGS = TimerSettings()
NOW = 1_795_251_847_000
HOUR = 3_600_000
DAY = 24 * HOUR


def message(wait_ms: int, stored_ms: int = NOW + 230, queue_offset: int = 7) -> TimedMessage:
    return TimedMessage(queue_offset, SETTINGS.floor(stored_ms) + wait_ms, stored_ms, "fx-delay", 0, "U")


def decide(
    taken: TimedMessage, read_ms: int = NOW, queue_offset: int = 7, leads: bool = True
) -> TakeDecision:
    state = TimerState(Progress((Step(queue_offset, read_ms),)), 7, 0, NOW, leads)
    return decide_take(taken, state, SETTINGS)


@pytest.mark.parametrize(
    ("wait", "slot", "rolls"),
    [
        (HOUR, HOUR, False),
        (2 * DAY - 1000, 2 * DAY - 1000, False),
        (2 * DAY, DAY, True),
        (2 * DAY + 16 * HOUR - 1000, DAY, True),
        (2 * DAY + 16 * HOUR, 2 * DAY, True),
        (3 * DAY, 2 * DAY, True),
        (30 * DAY, 2 * DAY, True),
    ],
)
def test_what_waits_for_two_days_or_more_rolls(wait: int, slot: int, rolls: bool) -> None:
    """Half a window where less than a third of it would remain, else a whole one, as in Java."""
    assert slot_of(message(wait), SETTINGS) == (NOW + slot, rolls)


@given(st.integers(0, 400 * DAY), st.integers(2, 700_000), st.sampled_from([100, 200, 500, 1000]))
def test_a_roll_comes_well_before_the_time_and_fits_the_wheel(wait: int, window: int, precision: int) -> None:
    settings = TimerSettings(precision_ms=precision, roll_window_slots=window)
    taken = TimedMessage(0, settings.floor(NOW + wait), NOW, "t", 0)

    slot, rolls = slot_of(taken, settings)

    assert slot % precision == 0
    assert slot - NOW < settings.wheel_slots * precision
    if rolls:
        assert taken.out_ms - slot >= settings.window_slots // 3 * precision
    else:
        assert slot == taken.out_ms


def test_a_message_gets_a_unit_as_java_writes_it() -> None:
    """Golden: the unit of a Java store."""
    link = decide(message(86_399_000))
    assert link == Link(1795338246000, False)

    unit = make_unit(
        message(86_399_000), link, previous_position=-1, write_ms=NOW, offset=2_677_798, size=970
    )

    golden = "00000034ffffffffffffffff00000001000001a1fd593f5805265818000000000028dc26000003ca821e74c8"
    assert unit.encode().hex() == golden + "0" * 16
    assert decode_timer_unit(unit.encode()) == unit


def test_the_bits_of_a_unit_tell_rolls_and_recalls() -> None:
    recall = replace(message(3 * DAY), delete_key="U")

    link = decide(recall)

    assert isinstance(link, Link)
    unit = make_unit(recall, link, previous_position=52, write_ms=NOW, offset=0, size=1)
    assert (unit.magic, unit.rolls, unit.deletes, unit.slot_ms) == (7, True, True, NOW + 2 * DAY)


def test_a_message_whose_slot_is_over_goes_at_once() -> None:
    """One that would have rolled rolls now; a recall is too late."""
    late, early_roll = message(1000, NOW - 9000), message(3 * DAY, NOW - 5 * DAY)

    assert decide(late) == DeliverNow()
    assert decide(early_roll) == RollNow()
    assert decide(replace(late, delete_key="U")) == Skip()
    assert decide(replace(early_roll, delete_key="U")) == RollNow()


def test_a_slot_that_is_not_read_yet_takes_what_is_due() -> None:
    """However far the clock is: so the progress alone tells which messages are done."""
    assert decide(message(1000, NOW - 9000), read_ms=NOW - 8000) == Link(NOW - 8000, False)


def test_what_the_old_master_has_done_is_skipped_and_the_rest_is_linked() -> None:
    assert decide(message(1000, NOW - 9000), queue_offset=8) == Skip()
    assert decide(message(5000), queue_offset=8) == Link(NOW + 5000, False)


def test_a_slave_waits_for_its_master() -> None:
    assert decide(message(5000), leads=False) == NotReached()
    assert decide(message(5000), leads=False, queue_offset=8) == Link(NOW + 5000, False)


def test_a_recall_stays_in_a_slot_of_which_a_part_is_done() -> None:
    """What it recalls may be a copy behind it in the queue, which is not done."""
    progress = Progress((Step(8, NOW + 1000), Step(20, NOW)))
    state = TimerState(progress, 7, 0, NOW)
    taken = message(0)

    assert decide_take(taken, state, SETTINGS) == Skip()
    assert decide_take(replace(taken, delete_key="U"), state, SETTINGS) == Link(NOW, False)


def test_a_message_beyond_the_wheel_waits() -> None:
    """After a week and more without reading; Java loses what was due before."""
    assert decide(message(HOUR), read_ms=NOW - 14 * DAY) == NoRoom(NOW + HOUR - 14 * DAY + 1000)
    assert isinstance(decide(message(HOUR), read_ms=NOW - 13 * DAY), Link)


def test_a_roll_that_java_may_have_left_goes_to_the_slot_that_is_read() -> None:
    progress = Progress((Step(8, NOW),), 600_000, NOW + 2 * DAY)
    state = TimerState(progress, 7, 0, NOW)

    assert decide_take(message(3 * DAY, NOW - 2 * DAY - 5000), state, SETTINGS) == Link(NOW, True)
    assert decide_take(message(3 * DAY, NOW - 2 * DAY - 700_000), state, SETTINGS) == Skip()
