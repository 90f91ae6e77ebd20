"""Timer files: golden bytes of a Java broker, and what damaged bytes give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.config import DataVersion
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import java_hash
from brokerset_formats.timer_files import (
    OWN_PART_SIZE_MAX,
    SLOT_SIZE,
    TIMER_UNIT_SIZE,
    WHEEL_SLOTS,
    Slot,
    TimerCheckpoint,
    TimerCount,
    TimerMetrics,
    TimerUnit,
    base_and_delay,
    decode_slot,
    decode_timer_checkpoint,
    decode_timer_unit,
    encode_timer_blank,
    fits_in_file,
    is_timer_blank,
    last_unit_position,
    out_time,
    valid_precision,
)

GOLDEN_UNIT = bytes.fromhex(
    "00000034ffffffffffffffff00000001000001a1fd593f5805265818000000000028dc26000003ca821e74c80000000000000000"
)
UNIT = TimerUnit(-1, 1, 1795251847000, 86_399_000, 2_677_798, 970, java_hash("fx-delay"))
CHECKPOINT = TimerCheckpoint(1795251873000, 52, 1, 1, DataVersion(33, 0, 1795251873204))

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
POSITIVE = st.integers(1, 2**31 - 1)


def test_the_unit_of_a_java_broker_is_read_and_written() -> None:
    """Golden: TIMER_DELAY_SEC=86400, out at 1795338246000, a record of 970 bytes."""
    assert decode_timer_unit(GOLDEN_UNIT) == UNIT
    assert UNIT.encode() == GOLDEN_UNIT
    assert (UNIT.slot_ms, UNIT.rolls, UNIT.deletes) == (1795338246000, False, False)


@pytest.mark.parametrize("archive", ["classic", "killed"])
def test_the_files_of_a_java_store_belong_together(unpack: Callable[[str, str], Path], archive: str) -> None:
    """The wheel has one slot, whose chain is the log's one unit; checkpoint and counts say the same."""
    store = unpack(archive, "broker-0/store")
    wheel = (store / "timerwheel").read_bytes()
    log = (store / "timerlog" / f"{0:020}").read_bytes()
    checkpoint_bytes = (store / "config" / "timercheck").read_bytes()

    unit = decode_timer_unit(log)
    number = unit.slot_ms // 1000
    slot = decode_slot(wheel, number % (2 * WHEEL_SLOTS) * SLOT_SIZE)
    checkpoint = decode_timer_checkpoint(checkpoint_bytes)
    metrics = TimerMetrics.decode((store / "config" / "timermetrics").read_bytes())

    assert len(wheel) == 2 * WHEEL_SLOTS * SLOT_SIZE == 38_707_200
    assert slot == Slot(number, 0, 0, 1, 0)
    assert slot.encode() == wheel[number % (2 * WHEEL_SLOTS) * SLOT_SIZE :][:SLOT_SIZE]
    assert wheel.count(0) > len(wheel) - SLOT_SIZE
    assert (checkpoint.log_flush_position, checkpoint.queue_offset) == (TIMER_UNIT_SIZE, 1)
    assert checkpoint.encode() == checkpoint_bytes
    assert {topic: item.count for topic, item in metrics.counts.items()} == {"fx-delay": 1}
    with pytest.raises(FormatError, match="52 bytes, not 0"):
        decode_timer_unit(log, TIMER_UNIT_SIZE)


def test_the_checkpoint_of_a_java_broker_is_seven_longs() -> None:
    data = bytes.fromhex(
        "000001a1fd59a4e80000000000000034000000000000000100000000000000010000000000000000000001a1fd59a5b4"
        "0000000000000021"
    )

    assert CHECKPOINT.encode_body() == data
    assert decode_timer_checkpoint(data) == CHECKPOINT
    assert CHECKPOINT.encode() == data.ljust(4096, b"\0")


def test_metrics_are_written_as_java_writes_them() -> None:
    metrics = TimerMetrics(DataVersion(1, 0, 1795251847030), {"fx-delay": TimerCount(1, 1795251847030)})

    assert metrics.encode() == (
        b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1795251847030},'
        b'"timingCount":{"fx-delay":{"count":1,"timeStamp":1795251847030}}}'
    )
    assert TimerMetrics.decode(metrics.encode()) == metrics


def test_our_part_of_the_checkpoint_goes_when_java_writes_the_file() -> None:
    """Java changes the first 56 bytes and leaves the rest of its mapped file as it is."""
    ours = TimerCheckpoint(1000, 52, 7, 7, own=b"progress")
    data = ours.encode()

    assert decode_timer_checkpoint(data) == ours
    assert decode_timer_checkpoint(CHECKPOINT.encode_body() + data[56:]) == CHECKPOINT


def test_our_part_that_is_damaged_or_too_large_does_not_count() -> None:
    data = bytearray(TimerCheckpoint(1000, own=b"progress").encode())
    data[2048 + 16] ^= 1

    assert decode_timer_checkpoint(data).own == b""
    with pytest.raises(FormatError, match="do not fit"):
        TimerCheckpoint(own=bytes(OWN_PART_SIZE_MAX + 1)).encode()
    full = TimerCheckpoint(own=b"x" * OWN_PART_SIZE_MAX)
    assert decode_timer_checkpoint(full.encode()) == full


@pytest.mark.parametrize(
    ("deliver", "precision", "out"),
    [
        (1795338247030, 1000, 1795338247000),
        (1795338247000, 1000, 1795338246000),
        (1700000060001, 1000, 1700000060000),
        (1700000060050, 100, 1700000060000),
        (1700000060100, 100, 1700000060000),
    ],
)
def test_the_time_of_the_slot_is_rounded_as_java_does(deliver: int, precision: int, out: int) -> None:
    """An exact multiple goes back by a whole precision; anything else is floored."""
    assert out_time(deliver, precision) == out


@given(st.integers(1, 2**50), st.sampled_from([100, 200, 500, 1000]))
def test_a_slot_that_has_ended_is_never_early_and_hardly_late(deliver: int, precision: int) -> None:
    out = out_time(deliver, precision)

    assert out % precision == 0
    assert 0 <= out + precision - deliver < precision


@given(st.integers(1, 2**50), st.sampled_from([100, 200, 500, 1000]))
def test_a_recall_comes_into_the_slot_of_its_target(deliver: int, precision: int) -> None:
    """The handle's time is the slot's plus 1."""
    out = out_time(deliver, precision)

    assert out_time(out + 1, precision) == out


@pytest.mark.parametrize(("wanted", "used"), [(50, 100), (100, 100), (499, 200), (500, 500), (5000, 1000)])
def test_the_precision_is_one_of_four(wanted: int, used: int) -> None:
    assert valid_precision(wanted) == used


@given(I64, st.integers(0, 2**62), st.integers(0, 2**62), I32, I32)
def test_every_slot_is_read_as_it_was_written(
    number: int, first: int, last: int, count: int, magic: int
) -> None:
    slot = Slot(number, first, last, count, magic)

    assert decode_slot(b"?" + slot.encode(), 1) == slot


@given(
    st.builds(
        TimerUnit,
        previous_position=st.integers(-1, 2**62),
        magic=st.sampled_from([1, 3, 5, 7]),
        base_ms=I64,
        delay_ms=I32,
        offset=st.integers(0, 2**62),
        size=POSITIVE,
        topic_hash=I32,
        reserved=I64,
    )
)
def test_every_unit_is_read_as_it_was_written(unit: TimerUnit) -> None:
    assert decode_timer_unit(b"??" + unit.encode(), 2) == unit


@given(st.binary(max_size=120), st.integers(-60, 120))
def test_any_bytes_give_a_unit_or_a_format_error(data: bytes, position: int) -> None:
    for decode in (decode_timer_unit, decode_slot):
        with contextlib.suppress(FormatError):
            decode(data, position)
    with contextlib.suppress(FormatError):
        decode_timer_checkpoint(data)


@given(I64.map(abs), I64.map(abs))
def test_base_and_delay_give_the_slot_and_fit(slot: int, write: int) -> None:
    """A delay of more than 24 days, after a jump of the clock, once overflowed in Java (issue 5376)."""
    base, delay = base_and_delay(slot, write)

    assert base + delay == slot
    assert -(2**31) <= delay < 2**31


def test_a_file_ends_in_a_blank() -> None:
    """Golden: `i32 rest, i64 0, i32 0xCBD43194` where 16 + 52 bytes do not remain."""
    assert encode_timer_blank(60) == bytes.fromhex("0000003c0000000000000000cbd43194")
    assert is_timer_blank(encode_timer_blank(60))
    assert not is_timer_blank(GOLDEN_UNIT)
    assert not is_timer_blank(encode_timer_blank(60)[:-1])


@given(st.integers(200, 100_000))
def test_the_last_unit_of_a_file_is_where_no_further_one_fits(file_bytes: int) -> None:
    last = last_unit_position(file_bytes)

    assert fits_in_file(last, file_bytes)
    assert not fits_in_file(last + TIMER_UNIT_SIZE, file_bytes)
