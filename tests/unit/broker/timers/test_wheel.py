"""The wheel: slots by time over a buffer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.timers.settings import TimerSettings
from brokerset_broker.timers.wheel import TimerWheel
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import NO_POSITION, Slot, TimerUnit

SETTINGS = TimerSettings(wheel_slots=32)
TURN_MS = 64_000
NOW = 1_795_251_847_000


def unit(slot_ms: int, previous: int = NO_POSITION, magic: int = 1) -> TimerUnit:
    return TimerUnit(previous, magic, slot_ms - 5, 5, 0, 100, 0)


def wheel() -> TimerWheel:
    return TimerWheel(bytearray(SETTINGS.wheel_bytes), SETTINGS)


def test_a_wheel_of_another_precision_has_the_same_size() -> None:
    assert TimerSettings(precision_ms=100).wheel_bytes == TimerSettings().wheel_bytes == 38_707_200
    assert TimerSettings().wheel_ms == 14 * 24 * 3600 * 1000
    with pytest.raises(FormatError, match="38707200 bytes, not 64"):
        TimerWheel(bytearray(64), TimerSettings())


@pytest.mark.parametrize(("wanted", "used"), [(172_800, 172_800), (1, 604_740), (604_741, 604_740), (2, 2)])
def test_a_roll_window_that_does_not_fit_is_the_largest(wanted: int, used: int) -> None:
    assert TimerSettings(roll_window_slots=wanted).window_slots == used


def test_units_of_a_slot_are_a_chain_with_a_count() -> None:
    """A unit that deletes counts one less."""
    slots = wheel()

    slots.link(unit(NOW), 0)
    slots.link(unit(NOW + 999, 0), 52)
    slots.link(unit(NOW, 52, magic=5), 104)

    assert slots.slot(NOW + 500) == Slot(NOW // 1000, 0, 104, 1)
    assert (slots.count(NOW), slots.last_position(NOW)) == (1, 104)
    assert (slots.count(NOW + 1000), slots.last_position(NOW + 1000)) == (0, NO_POSITION)


def test_a_slot_of_the_turn_before_is_empty_and_is_taken_over() -> None:
    slots = wheel()
    slots.link(unit(NOW), 0)

    assert slots.slot(NOW + TURN_MS) is None
    slots.link(unit(NOW + TURN_MS), 52)

    assert slots.slot(NOW) is None
    assert slots.slot(NOW + TURN_MS) == Slot((NOW + TURN_MS) // 1000, 52, 52, 1)


def test_a_time_beyond_the_wheel_is_not_held() -> None:
    slots = wheel()

    assert slots.holds(NOW + TURN_MS - 1, NOW)
    assert not slots.holds(NOW + TURN_MS, NOW)


def test_a_unit_is_taken_away_again_as_if_it_had_never_been() -> None:
    buffer = bytearray(SETTINGS.wheel_bytes)
    slots = TimerWheel(buffer, SETTINGS)
    slots.link(unit(NOW), 0)
    before = bytes(buffer)

    slots.link(unit(NOW, 0), 52)
    assert not slots.unlink(unit(NOW), 0), "it is not the newest"
    assert slots.unlink(unit(NOW, 0), 52)

    assert bytes(buffer) == before
    assert slots.unlink(unit(NOW), 0)
    assert slots.slot(NOW) is None


@given(st.sets(st.integers(0, 63)), st.integers(0, 63), st.integers(0, 200))
def test_the_next_used_slot_is_that_of_a_search_one_by_one(used: set[int], start: int, length: int) -> None:
    slots = wheel()
    for number in used:
        slots.link(unit(NOW + number * 1000), number * 52)
    first, until = NOW + start * 1000, NOW + (start + length) * 1000

    expected = next((t for t in range(first, until, 1000) if slots.slot(t) is not None), until)

    assert slots.next_used(first, until) == expected


@given(st.lists(st.tuples(st.integers(0, 63), st.booleans()), max_size=40), st.integers(0, 63))
def test_what_waits_is_counted_by_the_time_left(puts: list[tuple[int, bool]], start: int) -> None:
    slots = wheel()
    for position, (number, deletes) in enumerate(puts):
        slots.link(unit(NOW + number * 1000, magic=5 if deletes else 1), position * 52)
    changes = [(number - start, -1 if deletes else 1) for number, deletes in puts if number >= start]

    assert slots.waiting(NOW + start * 1000) == sum(change for _, change in changes)
    assert slots.distribution(NOW + start * 1000, (5, 60)) == {
        5: sum(change for number, change in changes if number < 5),
        60: sum(change for number, change in changes if 5 <= number < 60),
    }


def test_slots_that_name_lost_units_are_emptied() -> None:
    """Those whose chain began in what is left tell where to link again from."""
    slots = wheel()
    slots.link(unit(NOW), 52)
    slots.link(unit(NOW + 1000), 104)
    slots.link(unit(NOW, 52), 156)
    slots.link(unit(NOW + 2000), 208)

    assert slots.reset_beyond(156) == 52
    assert [slots.last_position(NOW + t * 1000) for t in range(3)] == [NO_POSITION, 104, NO_POSITION]
    assert slots.reset_beyond(156) is None
    slots.clear()
    assert slots.waiting(NOW) == 0
