"""Timer messages over changes of the master: never lost, at most once more, whoever knew what."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerset_broker.services.timers.files import TimerFiles
from brokerset_broker.services.timers.service import TimerService
from brokerset_broker.store.results import Appended
from brokerset_broker.timers.recovery import Recovered
from brokerset_rig.timer_replicas import TimerReplica
from brokerset_rig.waiting import until
from brokerset_runtime.clock import ManualClock

START_MS = 1_795_251_847_000


class Group:
    """Makes replicas in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(START_MS)
        self.made: list[TimerReplica] = []

    def make(self, name: str, **settings: Any) -> TimerReplica:
        replica = TimerReplica(self.folder / name, self.clock, **settings)
        self.made.append(replica)
        return replica


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    yield found
    for replica in found.made:
        replica.crash()


async def pair(group: Group) -> tuple[TimerReplica, TimerReplica]:
    """A master with five messages that wait, of which a slave knows by the progress."""
    master, slave = group.make("a"), group.make("b")
    await slave.metadata.start_following()
    await master.lead(1)
    for number in range(5):
        master.put(f"m{number}", 60 + number)
    await master.settled()
    master.record()
    await master.copy_to(slave)
    await slave.settled()
    return master, slave


async def test_a_slave_keeps_a_wheel_and_delivers_nothing(group: Group) -> None:
    """It takes what the master has taken, and waits for the rest, though it has the messages."""
    master, slave = await pair(group)
    master.put("unknown", 60)
    await master.copy_to(slave)
    group.clock.advance(70_000)
    await slave.settled()

    assert (master.taken, slave.taken) == (6, 5)
    assert slave.delivered() == Counter()


async def test_a_slave_that_nobody_tells_the_progress_does_not_keep_the_log(group: Group) -> None:
    """A Java master without timers never does. The log is then kept as long as the settings say, which is
    logged once; a silence without messages, or a short one, changes nothing."""
    master, slave = await pair(group)
    hour_ms = 3_600_000
    begin = slave.timers.needed_from()
    assert begin < slave.log.max_offset

    group.clock.advance(71 * hour_ms)
    master.put("later", 60)
    await master.copy_to(slave)
    assert slave.timers.needed_from() == begin
    group.clock.advance(9 * hour_ms)
    assert slave.timers.needed_from() == begin  # nothing was received since then

    master.put("last", 60)
    await master.copy_to(slave)
    with capture_logs() as logged:
        for _ in range(2):
            assert slave.timers.needed_from() > slave.log.max_offset
    assert [each["log_level"] for each in logged] == ["warning"]
    assert master.timers.needed_from() <= master.log.max_offset

    progress = slave.timers.progress()
    assert progress is not None
    slave.timers.put(progress)
    assert slave.timers.needed_from() == begin


async def test_the_next_master_delivers_what_the_last_one_did_not_tell(group: Group) -> None:
    """What was delivered and recorded comes once; what was not recorded comes again; nothing is lost."""
    master, slave = await pair(group)
    group.clock.advance(62_500)
    await master.settled()
    master.record()
    await master.copy_to(slave)
    group.clock.advance(2_000)
    await master.settled()
    delivered_without_record = master.delivered()
    master.crash()
    await slave.lead(2)
    await slave.settled()
    group.clock.advance(10_000)
    await slave.settled()

    assert sum(delivered_without_record.values()) == 5
    assert slave.delivered() == Counter({f"m{n}": 1 for n in range(5)})


async def test_deliveries_that_were_replicated_without_their_record_come_once_more(group: Group) -> None:
    master, slave = await pair(group)
    group.clock.advance(70_000)
    await master.settled()
    await master.copy_to(slave)
    master.crash()
    await slave.lead(2)
    await slave.settled()

    assert slave.delivered() == Counter({f"m{n}": 2 for n in range(5)})


async def test_a_master_that_is_deposed_takes_back_what_its_group_does_not_have(group: Group) -> None:
    """Its wheel has no units of messages that the next master has not taken, or stored at all; so it can
    follow, and lead again, and each message comes once."""
    master, slave = await pair(group)
    confirmed = master.log.max_offset
    for number in range(5, 8):
        master.put(f"m{number}", 60 + number)
    await master.settled()
    assert master.taken == 8
    await master.stop_leading()
    taken_after = master.taken
    await master.truncate(confirmed)
    await slave.lead(2)
    slave.put("new", 60)
    await slave.settled()
    slave.record()
    await slave.copy_to(master)
    await master.settled()
    await slave.stop_leading()
    await master.lead(3)
    group.clock.advance(100_000)
    await master.settled()

    assert (taken_after, master.taken) == (5, 6)
    assert master.delivered() == Counter({"m0": 1, "m1": 1, "m2": 1, "m3": 1, "m4": 1, "new": 1})


async def test_a_restarted_replica_goes_on_from_the_stamp(group: Group) -> None:
    """Files and stamp have what was confirmed, and no more; then the log goes on."""
    master, slave = await pair(group)
    await slave.timers.persist()
    await slave.metadata.write_stamp()
    slave.crash()
    group.clock.advance(61_500)
    await master.settled()
    master.record()
    again = group.make("b")
    await again.metadata.start_following()
    await master.copy_to(again)
    await again.settled()
    master.crash()
    await again.lead(2)
    group.clock.advance(10_000)
    await again.settled()

    assert again.delivered() == Counter({f"m{n}": 1 for n in range(5)})


async def test_a_new_replica_has_everything_from_the_log(group: Group) -> None:
    """Wheel and log are made from the messages, the progress from the records."""
    master, _ = await pair(group)
    group.clock.advance(62_500)
    await master.settled()
    master.record()
    late = group.make("c")
    await late.metadata.start_following()
    await master.copy_to(late)
    await late.settled()
    master.crash()
    await late.lead(2)
    group.clock.advance(10_000)
    await late.settled()

    assert late.delivered() == Counter({f"m{n}": 1 for n in range(5)})


async def test_what_java_slaves_learn_is_confirmed(group: Group) -> None:
    """60 never says of a delivery that is not confirmed that it was made."""
    master, slave = await pair(group)
    before = master.timers.checkpoint()
    group.clock.advance(70_000)
    await master.settled()
    master.record()
    unconfirmed = master.timers.checkpoint()
    await master.copy_to(slave)
    confirmed = master.timers.checkpoint()

    assert unconfirmed.last_read_ms == before.last_read_ms
    assert confirmed.last_read_ms > START_MS + 64_000


async def test_the_stamp_alone_tells_what_was_done(group: Group) -> None:
    """A replica whose `timercheck` is gone, and whose log has no record behind the stamp."""
    master, slave = await pair(group)
    group.clock.advance(62_500)
    await master.settled()
    master.record()
    await master.copy_to(slave)
    await slave.settled()
    await slave.timers.persist()
    await slave.metadata.write_stamp()
    slave.crash()
    (group.folder / "b" / "config" / "timercheck").unlink()
    again = group.make("b")
    await again.lead(2)
    group.clock.advance(10_000)
    await again.settled()

    assert again.delivered() == Counter({f"m{n}": 1 for n in range(5)})


async def test_what_a_deposed_master_delivered_alone_is_delivered_again(group: Group) -> None:
    """Its deliveries were truncated, and nobody made them again before it leads once more."""
    master, slave = await pair(group)
    confirmed = master.log.max_offset
    group.clock.advance(70_000)
    await master.settled()
    assert sum(master.delivered().values()) == 5
    await master.stop_leading()
    await master.truncate(confirmed)
    await slave.lead(2)
    await slave.copy_to(master)
    slave.crash()
    await master.lead(3)
    await master.settled()

    assert master.delivered() == Counter({f"m{n}": 1 for n in range(5)})


async def test_messages_with_one_key_roll_each_for_itself(group: Group) -> None:
    """A key is no proof that a copy is that of this message: an application may send one message to two
    topics, or pass its properties on. What a master put aside again itself says nothing of others."""
    master = group.make("a", timer_roll_window_slot=10)
    await master.lead(1)
    for number in range(100):
        master.put(f"m{number}", 60, key="same")
    await master.settled()
    for _ in range(70):
        group.clock.advance(1_000)
        await master.settled()

    assert master.delivered() == Counter({f"m{n}": 1 for n in range(100)})


async def test_a_truncation_while_the_files_are_opened_costs_no_message(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that starts truncates its log and receives it again, before its wheel is at work: it takes
    again what it has no units of any more."""
    master, slave = await pair(group)
    begin = slave.log.max_offset
    for number in range(5, 8):
        master.put(f"m{number}", 60 + number)
    await master.settled()
    master.record()
    await master.copy_to(slave)
    await until(lambda: slave.taken == 8)
    known = slave.timers.progress()
    assert known is not None
    await slave.timers.persist()
    slave.crash()

    may_open = threading.Event()
    open_files = TimerService._open_files

    def opening(self: TimerService, queue_offset_max: int) -> Recovered:
        may_open.wait()
        return open_files(self, queue_offset_max)

    monkeypatch.setattr(TimerService, "_open_files", opening)
    again = group.make("b")
    await again.metadata.start_following()
    again.timers.put(known)
    await asyncio.sleep(0)  # its task begins to open them
    await again.truncate(begin)
    await master.copy_to(again)
    may_open.set()
    await again.settled()
    master.crash()
    await again.lead(2)
    group.clock.advance(80_000)
    await again.settled()

    assert again.delivered() == Counter({f"m{n}": 1 for n in range(8)})


async def test_a_turn_ends_in_time_however_large_messages_are(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is asked after each message, for one of four megabytes takes milliseconds."""
    master = group.make("a")
    await master.lead(1)
    for number in range(40):
        master.put(f"m{number}", 1)
    await master.settled()
    group.clock.advance(3_000)
    append = master.store.append

    def slow(*parts: Any, **fields: Any) -> Appended:
        group.clock.advance(1)
        return append(*parts, **fields)

    monkeypatch.setattr(master.store, "append", slow)
    work, delivered = master.timers.work, 0
    assert work is not None
    while delivered < 40:
        work.turn(0.002)
        now = master.delivered().total()
        assert now - delivered <= 2
        delivered = now


async def test_units_that_are_replaced_while_they_are_flushed_are_flushed_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deposed master takes units back, and leads again, while a thread syncs those that were there."""
    master, _ = await pair(group)
    confirmed = master.log.max_offset
    for number in range(5, 8):
        master.put(f"m{number}", 60 + number)
    await master.settled()
    begun, may_end = threading.Event(), threading.Event()
    sync = TimerFiles.sync

    def syncing(self: TimerFiles, begin: int, end: int) -> None:
        sync(self, begin, end)
        begun.set()
        may_end.wait()

    monkeypatch.setattr(TimerFiles, "sync", syncing)
    flushing = asyncio.create_task(master.timers.persist())
    await until(begun.is_set)
    await master.stop_leading()
    await master.truncate(confirmed)
    await master.lead(2)
    for number in range(5, 8):
        master.put(f"other{number}", 60 + number)
    await master.settled()
    may_end.set()
    await flushing

    work = master.timers.work
    assert work is not None
    assert (work.state.log_position, work.flushed_position) == (8 * 52, 5 * 52)
