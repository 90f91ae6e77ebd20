"""Timer log and recovery: where units go, and what is left after a crash or from a Java broker."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.timers.recovery import Recovered, recover, take_back
from brokerset_broker.timers.settings import TimerSettings
from brokerset_broker.timers.timer_log import TimerLog
from brokerset_broker.timers.wheel import TimerWheel
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import (
    TimerCheckpoint,
    TimerUnit,
    decode_timer_checkpoint,
    is_timer_blank,
)

SETTINGS = TimerSettings(wheel_slots=32)
SLOT = 1_795_251_847_000
FILE_BYTES = 52 * 3 + 30
FIXTURES = Path(__file__).parents[3] / "peers" / "fixtures"


class Files:
    """A timer log of small files, with its wheel; the message of number n has queue offset and offset n."""

    def __init__(self) -> None:
        self.files: dict[int, bytearray] = {}
        self.buffer = bytearray(SETTINGS.wheel_bytes)
        self.wheel = TimerWheel(self.buffer, SETTINGS)
        self.log = TimerLog(FILE_BYTES, self.files.get)
        self.end = 0
        self.positions: list[int] = []

    def append(self, slot_ms: int) -> None:
        place = self.log.place(self.end)
        number = len(self.positions)
        unit = TimerUnit(self.wheel.last_position(slot_ms), 1, slot_ms, 0, number, 100, 0)
        for position, data in ((self.end, place.blank), (place.position, unit.encode())):
            base = position - position % FILE_BYTES
            file = self.files.setdefault(base, bytearray(FILE_BYTES))
            file[position - base : position - base + len(data)] = data
        self.wheel.link(unit, place.position)
        self.positions.append(place.position)
        self.end = place.position + 52

    def recover(self, checkpoint: TimerCheckpoint, queue_offset_max: int = 1000) -> Recovered:
        return recover(
            self.wheel,
            self.log,
            checkpoint,
            queue_offset_max=queue_offset_max,
            queue_offset_of=lambda unit: unit.offset,
        )


def ours(flush_position: int, queue_offset: int) -> TimerCheckpoint:
    return TimerCheckpoint(SLOT, flush_position, queue_offset, queue_offset, own=b"x")


def filled(count: int) -> Files:
    files = Files()
    for number in range(count):
        files.append(SLOT + number % 2 * 1000)
    return files


def test_units_fill_files_with_a_blank_at_each_end() -> None:
    files = filled(8)

    assert files.positions == [0, 52, 104, 186, 238, 290, 372, 424]
    assert is_timer_blank(files.files[0], 156)
    assert [position for position, _ in files.log.units(0, files.end)] == files.positions
    assert files.log.valid_end(0) == files.end == 476
    assert [files.log.before(position) for position in (476, 372, 186, 0)] == [424, 290, 104, None]
    assert files.log.file_before(400) == 186


def test_a_unit_that_is_not_there_is_an_error_with_its_position() -> None:
    files = filled(2)

    for position, reason in ((104, "not 0"), (186, "no file"), (-52, "no file")):
        with pytest.raises(FormatError, match=reason) as caught:
            files.log.unit(position)
        assert caught.value.position == position


@given(st.integers(0, 12), st.integers(0, 12))
def test_units_behind_the_checkpoint_are_undone_exactly(kept: int, more: int) -> None:
    """After a kill the wheel is again as it was at the checkpoint, without reading the log."""
    files, before = filled(kept + more), filled(kept)

    recovered = files.recover(ours(before.end, kept))

    place = before.log.place(before.end).position
    assert before.log.place(recovered.log_end).position == place
    assert (recovered.queue_offset, recovered.relinked_from, recovered.is_rebuilt) == (kept, None, False)
    for slot in (SLOT, SLOT + 1000):
        assert files.wheel.slot(slot) == before.wheel.slot(slot)


def test_units_that_were_lost_are_taken_out_of_the_wheel() -> None:
    """Power failed: the wheel's pages were written and the log's were not."""
    files, before = filled(7), filled(5)
    files.files[372][:] = bytes(FILE_BYTES)
    files.files[186][104:] = bytes(FILE_BYTES - 104)

    recovered = files.recover(ours(before.end, 5))

    assert recovered == Recovered(290, 5, 0, False)
    assert files.buffer == before.buffer


def test_an_older_wheel_is_rebuilt_from_the_log() -> None:
    files, whole = filled(9), filled(9)
    files.buffer[:] = filled(2).buffer

    recovered = files.recover(TimerCheckpoint(SLOT, files.end, 9, 9))

    assert recovered.is_rebuilt
    assert files.buffer == whole.buffer


def test_units_that_were_on_disk_and_are_missing_are_taken_again() -> None:
    """The last one below the checkpoint is inspected; then the log is read from its begin."""
    files = filled(7)
    files.files[372][3] ^= 0xFF
    files.files[186][104 + 3] ^= 0xFF

    recovered = files.recover(ours(files.end, 7))

    assert recovered == Recovered(290, 5, 0, False)
    assert files.buffer == filled(5).buffer


def test_what_the_group_does_not_know_of_is_taken_back() -> None:
    files = filled(7)

    recovered = files.recover(ours(files.end, 7), queue_offset_max=2)

    assert (recovered.log_end, recovered.queue_offset) == (104, 2)
    assert files.wheel.waiting(SLOT) == 2


def test_units_of_expired_records_stay_and_those_of_lost_ones_go() -> None:
    files = filled(6)

    end = take_back(
        files.wheel,
        files.log,
        files.end,
        queue_offset=100,
        queue_offset_of=lambda unit: None,
        record_offset_min=4,
    )

    assert end == files.positions[4]


def test_taking_back_in_steps_ends_where_it_ends_at_once() -> None:
    at_once, stepwise = filled(6), filled(6)

    end = take_back(
        at_once.wheel, at_once.log, at_once.end, queue_offset=1, queue_offset_of=lambda unit: unit.offset
    )
    before, found = -1, stepwise.end
    while found != before:
        before = found
        found = take_back(
            stepwise.wheel,
            stepwise.log,
            before,
            queue_offset=1,
            queue_offset_of=lambda unit: unit.offset,
            units_max=2,
        )

    assert found == end < stepwise.end


@pytest.mark.parametrize("archive", ["classic", "killed"])
def test_the_store_of_a_java_broker_is_carried_on(archive: str) -> None:
    """Golden: its one message waits in its slot, and the next one is taken."""
    with tarfile.open(FIXTURES / f"{archive}.tar.xz") as tar:

        def read(name: str) -> bytearray:
            member = tar.extractfile(f"{archive}/broker-0/store/{name}")
            assert member is not None
            return bytearray(member.read())

        buffer, log, check = read("timerwheel"), read(f"timerlog/{0:020}"), read("config/timercheck")
    before = bytes(buffer)
    wheel = TimerWheel(buffer, TimerSettings())

    recovered = recover(
        wheel,
        TimerLog(len(log), {0: log}.get),
        decode_timer_checkpoint(check),
        queue_offset_max=1,
        queue_offset_of=lambda unit: 0,
    )

    assert recovered == Recovered(52, 1, None, False)
    assert buffer == before
    assert wheel.waiting(SLOT) == 1
