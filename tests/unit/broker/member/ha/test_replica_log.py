"""The message store as a replica: leading, following, confirming, cutting, beginning again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import GetStatus, MessageStore, PutStatus, StoreRefused, folder, log_recovery
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.store.removal import Removal, RemovalFile
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_formats.hosts import Host
from brokerset_formats.records import SysFlag
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

SEGMENT = 4_096
V4 = Host.from_text("10.0.0.1", 1).encode()
V6 = Host.from_text("::1", 1).encode()


class Replicas:
    """Opens stores that replicate, and lets go of those that a test leaves open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.stores: list[MessageStore] = []

    def settings(self, name: str, **changes: Any) -> BrokerSettings:
        values: dict[str, Any] = {
            "store_path_root_dir": self.root / name,
            "mapped_file_size_commit_log": SEGMENT,
            "mapped_file_size_consume_queue": 200,
            "max_hash_slot_num": 20,
            "max_index_num": 40,
            "max_message_size": 2_000,
        }
        return BrokerSettings(**(values | changes))

    def open(self, name: str, **changes: Any) -> StoreReplicaLog:
        store = MessageStore(self.settings(name, **changes), self.clock)
        log = StoreReplicaLog(store)
        store.load()
        self.stores.append(store)
        return log


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    """Stores below a temporary folder."""
    made = Replicas(tmp_path)
    yield made
    for store in made.stores:
        store.abandon()


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options))

    return run


def store_of(log: StoreReplicaLog) -> MessageStore:
    return log._store


def append(
    log: StoreReplicaLog,
    body: bytes = b"body",
    properties: bytes = b"KEYS\x01k\x02",
    *,
    topic: str = "T",
    queue_id: int = 0,
    sys_flag: int = 0,
    born_host: bytes = V4,
) -> int:
    """Returns the offset behind the message."""
    appended = store_of(log).append(
        topic, queue_id, body, properties, flag=0, sys_flag=sys_flag, born_timestamp=0, born_host=born_host
    )
    return appended.offset + appended.size


def send(
    leader: StoreReplicaLog, follower: StoreReplicaLog, *, until: int | None = None, chunk: int = 700
) -> None:
    """Bring the follower the bytes that it lacks, up to an offset."""
    end = leader.max_offset if until is None else until
    while follower.received_end < end:
        data = leader.view(follower.received_end, min(chunk, end - follower.received_end))
        while data:
            room = follower.room(len(data))
            size = len(room)
            room[:] = data[:size]
            follower.received(size)
            data = data[size:]


def confirm_all(*logs: StoreReplicaLog) -> None:
    """Let everything be read, as it is in a group when all in sync have it."""
    for log in logs:
        log.confirm(log.max_offset)


def units(log: StoreReplicaLog) -> dict[tuple[str, int], list[tuple[int, int, int] | None]]:
    store = store_of(log)
    return {
        (topic, queue_id): [
            store.unit(topic, queue_id, number)
            for number in range(store.queue_min(topic, queue_id), store.queue_end(topic, queue_id))
        ]
        for topic, ids in sorted(store.queues().items())
        for queue_id in ids
        if store.queue_end(topic, queue_id)
    }


def assert_equal(leader: StoreReplicaLog, follower: StoreReplicaLog) -> None:
    """Byte for byte the same log, and the same queues."""
    assert (follower.min_offset, follower.max_offset) == (leader.min_offset, leader.max_offset)
    for file in store_of(leader).log.files.files:
        twin = store_of(follower).log.files.find(file.start)
        end = min(file.end, leader.max_offset) - file.start
        if end > 0:
            assert twin is not None
            assert twin.view[:end] == file.view[:end]
            assert not any(twin.view[end:])
    assert units(follower) == units(leader)


def fill(log: StoreReplicaLog, count: int = 30) -> None:
    """All kinds of records: several queues, both address families, long topics, transactions, big bodies."""
    for number in range(count):
        append(
            log,
            b"%d" % number * (1 + number % 90),
            b"UNIQ_KEY\x01id-%d\x02KEYS\x01a b\x02TAGS\x01%c\x02" % (number, 65 + number % 3),
            topic=("T", "T", "%RETRY%" + "g" * 130, "SCHEDULE_TOPIC_XXXX")[number % 4],
            queue_id=number % 3,
            sys_flag=SysFlag.TRANSACTION_PREPARED if number % 7 == 3 else 0,
            born_host=V6 if number % 5 == 2 else V4,
        )


def conforms(log: StoreReplicaLog) -> ReplicaLog:
    """The type checker proves that the class has all of the protocol."""
    return log


@pytest.mark.parametrize("chunk", [1, 7, 100, 5_000])
def test_a_follower_has_the_same_bytes_queues_and_index(replicas: Replicas, chunk: int) -> None:
    """Whatever the chunks: log, queues and index answer as the leader's."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    fill(leader)

    send(leader, follower, chunk=chunk)

    assert follower.failure() is None
    assert_equal(leader, follower)
    confirm_all(leader, follower)
    for key in ("a", "b", "id-5"):
        found = store_of(leader).query("T", key, 64, 0, 2**62).records
        assert found
        assert store_of(follower).query("T", key, 64, 0, 2**62).records == found


def test_appends_and_bytes_exclude_each_other(replicas: Replicas) -> None:
    """A log that follows refuses messages; one that leads has no room for bytes."""
    log = replicas.open("a")

    with pytest.raises(ReplicaLogFailed):
        log.room(10)
    log.follow()
    with pytest.raises(StoreRefused) as refused:
        append(log)
    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    log.lead()
    assert append(log) == log.max_offset


async def test_consumers_read_only_what_is_confirmed(replicas: Replicas) -> None:
    """Neither pulls, nor the end of a queue, nor arrivals, nor messages by offset or key go behind what is
    confirmed."""

    log = replicas.open("a")
    store = store_of(log)
    arrivals: list[tuple[str, int]] = []
    confirmed: list[int] = []

    store.start()
    store.on_arrival = lambda topic, queue_id, number, tags: arrivals.append((topic, number))
    log.on_confirmed(confirmed.append)
    first = append(log)
    append(log)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert store.get("T", 0, 0, 10, 1000).status is GetStatus.NO_MESSAGE_IN_QUEUE or not store.queue_max(
        "T", 0
    )
    assert (store.queue_max("T", 0), store.queue_end("T", 0)) == (0, 2)
    assert not store.query("T", "k", 10, 0, 2**62).records
    assert store.read_announced(0) is None
    assert store.earliest_store_time("T", 0) is None
    assert StoreQueries(store).units("T", 0, 0, 10) == []
    log.confirm(first)
    log.confirm(first - 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert store.get("T", 0, 0, 10, 1000).message_count == 1
    assert store.get("T", 0, 1, 10, 1000).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert (store.queue_max("T", 0), log.confirmed_offset) == (1, first)
    assert store.queue_offset_by_time("T", 0, 2**62) == 1
    assert len(store.query("T", "k", 10, 0, 2**62).records) == 1
    assert (store.read_announced(0) is None, store.read_announced(first) is None) == (False, True)
    assert store.earliest_store_time("T", 0) is not None
    assert len(StoreQueries(store).units("T", 0, 0, 10)) == 1
    assert arrivals[-1] == ("T", 1)
    assert confirmed == [first]


def test_a_confirmed_offset_behind_the_end_counts_as_records_come(replicas: Replicas) -> None:
    """What the master confirmed before the bytes came is readable as soon as they are dispatched."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    first = append(leader)
    second = append(leader)
    append(leader)

    follower.confirm(second)
    assert follower.confirmed_offset == 0
    send(leader, follower, until=first)
    assert follower.confirmed_offset == first
    send(leader, follower)

    assert follower.confirmed_offset == second


def test_a_confirmed_offset_inside_a_record_leaves_that_record_out(replicas: Replicas) -> None:
    """As a Java master tells it; the end of the record before is what counts."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    first = append(leader)
    second = append(leader)

    follower.confirm(first + 5, partial=True)
    send(leader, follower)

    assert follower.confirmed_offset == first
    follower.confirm(second + 5, partial=True)
    assert follower.confirmed_offset == second


def test_alone_in_the_set_everything_is_readable_at_once(replicas: Replicas) -> None:
    """With `confirm_appends` no message waits for a confirmation, and afterwards none is taken back."""
    log = replicas.open("a")
    log.confirm_appends(True)

    end = append(log)

    assert log.confirmed_offset == end
    assert store_of(log).queue_max("T", 0) == 1
    log.confirm_appends(False)
    append(log)
    assert log.confirmed_offset == end
    assert store_of(log).queue_max("T", 0) == 1


@on_loop
async def test_the_confirmed_offset_survives_restarts(replicas: Replicas) -> None:
    """It is in the checkpoint where Java has it, and never behind the log that is found."""
    log = replicas.open("a")
    first = append(log)
    append(log)
    log.confirm(first)
    await store_of(log).close()

    again = replicas.open("a")

    assert again.confirmed_offset == first
    data = (replicas.root / "a" / "checkpoint").read_bytes()
    assert int.from_bytes(data[32:40], "big") == first


@pytest.mark.parametrize("position", [4, 28, 88, 3])
def test_a_wrong_record_stops_the_following(replicas: Replicas, position: int) -> None:
    """Magic, place, CRC or size: the failure names file and offset, and what came before stays."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    first = append(leader)
    append(leader)
    damaged = bytearray(leader.view(0, leader.max_offset))
    damaged[first + position] ^= 1
    if position == 3:
        damaged[first : first + 4] = b"\x7f\0\0\0"

    room = follower.room(len(damaged))
    room[:] = damaged
    follower.received(len(damaged))

    problem = follower.failure()
    assert problem is not None
    assert f"(offset {first} of the log)" in problem
    assert "commitlog" in problem
    assert (follower.max_offset, follower.acknowledged_end) == (first, first)
    with pytest.raises(ReplicaLogFailed):
        follower.room(10)


def test_a_disk_that_takes_no_more_counts_what_it_took(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chunk that is written in part the part counts and the link is told; the rest comes again later."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    whole = bytes(leader.view(0, append(leader)))
    taken = [100]

    def full(descriptor: int, data: memoryview, position: int) -> int:
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwritev(descriptor, [data[: taken.pop()]], position)

    follower.room(len(whole))[:] = whole
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ReplicaLogFailed, match="took 100 of"):
            follower.received(len(whole))
        assert follower.received_end == 100
        follower.room(10)
        with pytest.raises(ReplicaLogFailed, match="No space left"):
            follower.received(10)
    assert (follower.received_end, follower.acknowledged_end, follower.max_offset) == (100, 100, 0)
    rest = whole[100:]
    follower.room(len(rest))[:] = rest
    follower.received(len(rest))

    assert follower.max_offset == len(whole)
    assert bytes(follower.view(0, len(whole))) == whole


@on_loop
async def test_what_is_confirmed_while_bytes_are_gathered_is_not_lost(replicas: Replicas) -> None:
    """It counts when they are dispatched, at the latest when what was received is finished."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    store_of(follower).start()
    follower.follow()
    first = append(leader)
    second = append(leader)
    send(leader, follower, until=second)
    follower.confirm(first)
    assert follower.confirmed_offset == 0

    await follower.finish_received()

    assert (follower.max_offset, follower.confirmed_offset) == (second, first)


def test_a_lost_page_in_the_middle_of_properties_stops_the_following(replicas: Replicas) -> None:
    """A master whose disk lost it sends zeros inside of long properties: its replica does not take them."""
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 65_536, "enable_controller_mode": True}
    leader, follower = replicas.open("leader", **sizes), replicas.open("follower", **sizes)
    follower.follow()
    first = append(leader)
    append(leader, properties=b"K\x01" + b"v" * 12_000 + b"\x02")
    append(leader)
    damaged = bytearray(leader.view(0, leader.max_offset))
    damaged[4096:8192] = bytes(4096)

    room = follower.room(len(damaged))
    room[:] = damaged
    follower.received(len(damaged))

    assert f"(offset {first} of the log): the record does not match the CRC in its properties" in str(
        follower.failure()
    )
    assert (follower.max_offset, follower.acknowledged_end) == (first, first)


@pytest.mark.parametrize("chunk", [7, 5_000])
def test_records_with_and_without_property_crcs_are_received(replicas: Replicas, chunk: int) -> None:
    """All kinds of records of masters with either setting, with the same queues and index as theirs."""
    follower = replicas.open("follower", enable_controller_mode=True)
    leader = replicas.open("leader", enabled_append_prop_crc=True)
    follower.follow()
    fill(leader, 15)
    store_of(leader).appends_crc = False
    fill(leader, 15)

    send(leader, follower, chunk=chunk)

    assert follower.failure() is None
    assert_equal(leader, follower)
    confirm_all(leader, follower)
    for key in ("a", "b", "id-5"):
        found = store_of(leader).query("T", key, 64, 0, 2**62).records
        assert found
        assert store_of(follower).query("T", key, 64, 0, 2**62).records == found


@on_loop
async def test_a_failed_log_can_be_cut_and_receives_again(replicas: Replicas) -> None:
    """After the cut the same place takes the right bytes."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    first = append(leader)
    append(leader)
    room = follower.room(first + 100)
    room[:] = bytes(leader.view(0, first)) + b"x" * 100
    follower.received(first + 100)
    assert follower.failure() is not None
    with pytest.raises(ReplicaLogFailed):
        await follower.finish_received()

    await follower.truncate(first, keep_copy=False)
    send(leader, follower)

    assert_equal(leader, follower)


@on_loop
async def test_finishing_drops_a_record_that_is_not_whole(replicas: Replicas) -> None:
    """Its bytes are gone from the file, too, and the log can lead from its last whole record."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    first = append(leader)
    second = append(leader)
    send(leader, follower, until=second - 1)
    assert (follower.max_offset, follower.received_end) == (first, second - 1)

    assert await follower.finish_received() == first

    file = store_of(follower).log.files.files[0]
    assert not any(file.view[first:])
    follower.lead()
    append(follower, b"another")
    assert store_of(follower).queue_end("T", 0) == 2


@pytest.mark.parametrize("keep_copy", [True, False])
@on_loop
async def test_a_cut_removes_records_queues_and_index_for_good(replicas: Replicas, keep_copy: bool) -> None:
    """Also after a restart: queue offsets go on densely, and nothing removed is found."""
    log = replicas.open("a")
    ends = []
    for number in range(60):
        ends.append(append(log, b"x" * 100, b"KEYS\x01k%d\x02" % number, queue_id=number % 2))
    log.confirm(ends[40])
    removed = bytes(log.view(ends[19], 500))
    log.follow()

    await log.truncate(ends[19], keep_copy=keep_copy)

    store = store_of(log)
    assert (log.max_offset, log.received_end, log.confirmed_offset) == (ends[19],) * 3
    assert [store.queue_end("T", queue_id) for queue_id in (0, 1)] == [10, 10]
    assert store.query("T", "k30", 10, 0, 2**62).records == []
    assert len(store.query("T", "k3", 10, 0, 2**62).records) == 1
    assert store.read(ends[19], 10) is None
    copies = sorted((replicas.root / "a").glob("commitlog.damaged/*"))
    assert len(copies) == keep_copy
    if keep_copy:
        assert copies[0].read_bytes().startswith(removed)
    store.abandon()
    again = replicas.open("a")
    assert (again.max_offset, again.confirmed_offset) == (ends[19], ends[19])
    append(again, queue_id=1)
    assert store_of(again).queue_end("T", 1) == 11


@on_loop
async def test_a_cut_is_refused_where_no_record_begins(replicas: Replicas) -> None:
    """Nothing changes then."""
    log = replicas.open("a")
    first = append(log)
    append(log)
    log.follow()

    for offset in (first + 1, log.max_offset + 1):
        with pytest.raises(ReplicaLogFailed):
            await log.truncate(offset, keep_copy=False)

    assert store_of(log).queue_end("T", 0) == 2


@pytest.mark.parametrize("step", range(6))
@on_loop
async def test_a_crash_in_a_cut_leaves_the_old_end_or_the_new_one(
    replicas: Replicas, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before each system call that the cut makes on the disk: the next start is sound."""
    log = replicas.open("a")
    ends = [append(log, b"x" * 300, queue_id=number % 2) for number in range(40)]
    log.follow()
    await store_of(log).checkpoint()
    calls = 0

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > step:
                raise OSError(5, "the process dies here")
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patches:
        for name in ("unlink", "replace", "pwrite"):
            patches.setattr(os, name, dying(getattr(os, name)))
        with pytest.raises(ReplicaLogFailed):
            await log.truncate(ends[10], keep_copy=False)
    store_of(log).abandon()

    again = replicas.open("a")

    assert again.max_offset in (ends[10], ends[-1])
    count = 11 if again.max_offset == ends[10] else 40
    assert sum(store_of(again).queue_end("T", queue_id) for queue_id in (0, 1)) == count
    assert not (replicas.root / "a" / "removal").exists()


@on_loop
async def test_a_log_begins_anew_at_the_start_of_a_file(replicas: Replicas) -> None:
    """Everything that was there is gone; queues begin with the number that their first record has."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    fill(leader, 60)
    append(follower, topic="old")
    follower.follow()
    start = store_of(leader).log.files.files[2].start
    leader_files = store_of(leader).log.files

    await follower.begin_at(start)
    assert (follower.min_offset, follower.max_offset, follower.confirmed_offset) == (start,) * 3
    assert units(follower) == {}
    leader_files.remove_first(2)
    store_of(leader).queues_table.correct_min_offsets(start)
    while follower.received_end < leader.max_offset:  # the first bytes must begin a record
        send(leader, follower, chunk=SEGMENT)

    assert follower.failure() is None
    assert (follower.min_offset, follower.max_offset) == (leader.min_offset, leader.max_offset)
    assert units(follower) == units(leader)
    with pytest.raises(ReplicaLogFailed):
        await follower.begin_at(start + 1)


@pytest.mark.parametrize("removal", [Removal(2 * SEGMENT, 0, True), Removal(0, 0)])
def test_a_removal_that_was_begun_is_finished_at_start(replicas: Replicas, removal: Removal) -> None:
    """The file that names it is enough; afterwards it is gone."""
    log = replicas.open("a")
    fill(log, 60)
    store_of(log).abandon()
    RemovalFile(replicas.root / "a").write(removal)

    again = replicas.open("a")

    assert (again.min_offset, again.max_offset) == (removal.offset, removal.offset)
    assert units(again) == {}
    assert RemovalFile(replicas.root / "a").load() is None


def open_descriptors(path: str) -> int:
    """How many descriptors of this process are open to a file; their numbers may be given to other files."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}") == path
    return found


def test_the_parts_of_a_log_as_views_and_open_files(replicas: Replicas) -> None:
    """Both have the same bytes, end with the file, and a descriptor stays open while it is held."""
    log = replicas.open("a")
    fill(log, 60)
    end = log.max_offset

    source = log.source(100, 2 * SEGMENT)
    assert source.size == SEGMENT - 100
    assert os.pread(source.descriptor, source.size, source.position) == bytes(log.view(100, 2 * SEGMENT))
    assert len(log.view(end, 10)) == 0
    with pytest.raises(ReplicaLogFailed):
        log.view(end + 1, 1)
    log.source(SEGMENT + 10, 10)
    assert os.pread(source.descriptor, 1, 0)
    path = os.readlink(f"/proc/self/fd/{source.descriptor}")
    before = open_descriptors(path)
    del source
    assert open_descriptors(path) == before - 1


@on_loop
async def test_listeners_hear_of_appends_before_consumers_do(replicas: Replicas) -> None:
    """Once for a turn of the loop, with the end of the log."""
    log = replicas.open("a")
    store = store_of(log)
    store.start()
    log.confirm_appends(True)
    heard: list[object] = []
    log.on_appended(heard.append)
    store.on_arrival = lambda topic, queue_id, number, tags: heard.append("arrival")

    append(log)
    append(log)
    for _ in range(3):
        await asyncio.sleep(0)

    assert heard == [log.max_offset, "arrival"]


@on_loop
async def test_with_synchronous_flush_only_the_disk_is_acknowledged(replicas: Replicas) -> None:
    """Bytes count when they are flushed; a listener hears of it."""
    leader = replicas.open("leader")
    follower = replicas.open("follower", flush_disk_type="SYNC_FLUSH")
    store_of(follower).start()
    follower.follow()
    heard = asyncio.Event()
    follower.on_acknowledged(heard.set)
    end = append(leader)

    send(leader, follower)
    assert follower.acknowledged_end == 0
    async with asyncio.timeout(10):
        await heard.wait()

    assert follower.acknowledged_end == end
    assert store_of(follower).append_age_ms is None


def test_a_queue_whose_topic_was_deleted_begins_anew(replicas: Replicas) -> None:
    """The master numbers it from 0 again; a late deletion here leaves what came since."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    for _ in range(5):
        append(leader)
    send(leader, follower)
    deleted_at = leader.max_offset
    store_of(leader).delete_topic("T")
    for _ in range(3):
        append(leader)
    send(leader, follower)

    store_of(follower).delete_topic("T", before=deleted_at)

    assert_equal(leader, follower)
    store_of(follower).delete_topic("T", before=follower.max_offset)
    assert units(follower) == {}


def test_a_full_disk_is_told_and_nothing_has_changed(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call works when there is space again."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    follower.follow()
    append(leader)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(os, "posix_fallocate", full)
        with pytest.raises(ReplicaLogFailed, match="free some disk space"):
            follower.room(10)
        assert not list((replicas.root / "follower" / "commitlog").glob("*"))

    send(leader, follower)
    assert_equal(leader, follower)


@on_loop
async def test_retention_keeps_what_is_still_needed(replicas: Replicas) -> None:
    """No file goes that reaches behind what a snapshot needs, or that is not dispatched yet."""
    log = replicas.open("a", clean_file_forcibly_enable=True, delete_commit_log_files_interval=0)
    fill(log, 200)
    retention = store_of(log).retention
    retention.keep_from = lambda: 2 * SEGMENT + 5
    for file in store_of(log).log.files.files:
        os.utime(file.path, (0, 0))
    retention.request()

    await retention.check()

    assert log.min_offset == 2 * SEGMENT


@on_loop
async def test_closing_dispatches_what_was_received(replicas: Replicas) -> None:
    """A whole record that may have been acknowledged is there at the next start, without any recovery."""
    leader, follower = replicas.open("leader"), replicas.open("follower")
    fill(leader, 60)
    store_of(follower).start()
    follower.follow()
    send(leader, follower, until=leader.max_offset - 3)
    last = follower.max_offset

    await store_of(follower).close()
    again = replicas.open("follower")

    assert again.max_offset > last
    assert again.max_offset < leader.max_offset
    assert store_of(again).closed_cleanly
    again.follow()
    send(leader, again)
    assert_equal(leader, again)


def flip(path: Path, position: int) -> None:
    """A disk changes a byte."""
    with path.open("r+b") as stream:
        stream.seek(position)
        (byte,) = stream.read(1)
        stream.seek(position)
        stream.write(bytes([byte ^ 1]))


@on_loop
async def test_damage_that_a_start_finds_is_left_and_repaired(replicas: Replicas) -> None:
    """A replica opens with its log before the damage, which it names; it takes nothing, is not to be elected,
    and keeps everything, at each start again; cut with a copy it gets the rest from its master."""
    leader, follower = replicas.open("leader"), replicas.open("a")
    follower.follow()
    ends = [append(leader, b"%d" % number) for number in range(60)]
    send(leader, follower)
    await store_of(follower).checkpoint()
    store_of(follower).abandon()
    path = replicas.root / "a" / "commitlog" / f"{0:020d}"
    flip(path, ends[4] + 88)
    before = path.read_bytes()

    for _ in range(2):
        found = replicas.open("a")
        problem = found.failure()
        assert problem is not None
        assert f"(offset {ends[4]} of the log)" in problem
        assert str(path) in problem
        assert f"whole records follow from offset {ends[5]}" in problem
        assert (found.max_offset, found.received_end, found.acknowledged_end) == (ends[4],) * 3
        assert (store_of(found).append_age_ms or 0) > 3_600_000
        found.follow()
        with pytest.raises(ReplicaLogFailed):
            found.room(10)
        with pytest.raises(ReplicaLogFailed):
            await found.finish_received()
        await store_of(found).checkpoint()
        await store_of(found).close()
    assert path.read_bytes() == before

    found = replicas.open("a")
    found.follow()
    await found.truncate(found.max_offset, keep_copy=True)
    assert found.failure() is None
    assert store_of(found).append_age_ms is None
    send(leader, found)
    assert_equal(leader, found)
    [copy] = (replicas.root / "a").glob("commitlog.damaged/*")
    assert copy.read_bytes()[:100] == before[ends[4] : ends[4] + 100]
    await store_of(found).close()
    again = replicas.open("a")
    assert again.failure() is None
    assert_equal(leader, again)


@on_loop
async def test_damage_is_found_again_though_the_machine_runs_on(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of power the first start reads what was not surely in queues on the disk. It leaves the
    damage, so the next one must not trust what this one had in its page cache, and read less."""
    boot = ["before"]
    monkeypatch.setattr(folder, "boot_id", lambda: boot[0])
    monkeypatch.setattr(log_recovery, "LOOK_BACK_BYTES", 0)
    log = replicas.open("a")
    store = store_of(log)
    ends = [append(log, b"%d" % number) for number in range(3)]
    await store.checkpoint()
    ends += [append(log, b"%d" % number) for number in range(3, 20)]
    await store.flusher.flush()
    await store.checkpoints.write(thorough=False)
    append(log)
    store.abandon()
    flip(replicas.root / "a" / "commitlog" / f"{0:020d}", ends[9] + 88)
    boot[0] = "after"

    for _ in range(3):
        found = replicas.open("a")
        assert found.failure() is not None
        assert found.max_offset == ends[9]
        found.follow()
        await store_of(found).close()
        assert not store_of(found).closed_cleanly

    found = replicas.open("a")
    found.follow()
    await found.truncate(found.max_offset, keep_copy=True)
    store_of(found).abandon()
    again = replicas.open("a")
    assert again.failure() is None
    assert (again.max_offset, store_of(again).queue_end("T", 0)) == (ends[9], 10)


@pytest.mark.parametrize("left", [1, 0])
@on_loop
async def test_files_missing_at_the_end_are_a_damage_that_is_cut(replicas: Replicas, left: int) -> None:
    """There is nothing to remove and no copy to keep; the log ends before them and takes the rest again. A
    store that was closed in order counts as one at work as soon as it is changed."""
    leader, follower = replicas.open("leader"), replicas.open("a")
    follower.follow()
    fill(leader, 60)
    send(leader, follower)
    await store_of(follower).close()
    root = replicas.root / "a"
    files = sorted((root / "commitlog").iterdir())
    assert len(files) > 2
    for path in files[left:]:
        path.unlink()

    for _ in range(2):
        found = replicas.open("a")
        assert found.failure() is not None
        assert found.max_offset == left * SEGMENT
        assert store_of(found).closed_cleanly
        await store_of(found).close()
    found = replicas.open("a")
    found.follow()
    await found.truncate(found.max_offset, keep_copy=True)

    assert found.failure() is None
    assert not list(root.glob("commitlog.damaged/*"))
    assert (root / "abort").exists()
    send(leader, found)
    assert_equal(leader, found)


@on_loop
async def test_a_copy_without_room_leaves_nothing_behind(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut is not made, and trying it again and again fills no disk; nor does a process that dies while it
    copies."""
    log = replicas.open("a")
    ends = [append(log, b"%d" % number) for number in range(9)]
    log.follow()
    damaged = replicas.root / "a" / "commitlog.damaged"
    damaged.mkdir()
    (damaged / f"{5:020d}.partial").write_bytes(b"of before")
    statvfs = os.statvfs

    def full(path: Path) -> os.statvfs_result:
        found = list(statvfs(path))
        found[4] = 0  # f_bavail
        return os.statvfs_result(found)

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", full)
        for _ in range(2):
            with pytest.raises(ReplicaLogFailed, match="no room for a copy"):
                await log.truncate(ends[4], keep_copy=True)
    with monkeypatch.context() as patched:
        patched.setattr(log_recovery, "_copy_data", broken)
        with pytest.raises(ReplicaLogFailed, match="Input/output"):
            await log.truncate(ends[4], keep_copy=True)
    assert list(damaged.iterdir()) == []
    assert log.max_offset == ends[-1]

    await log.truncate(ends[4], keep_copy=True)

    assert [path.name for path in damaged.iterdir()] == [f"{ends[4]:020d}"]


@on_loop
async def test_accepted_damage_is_cut_at_the_start(replicas: Replicas) -> None:
    """As without replication: somebody wants to go on without it."""
    log = replicas.open("a")
    ends = [append(log, b"%d" % number) for number in range(9)]
    await store_of(log).checkpoint()
    store_of(log).abandon()
    flip(replicas.root / "a" / "commitlog" / f"{0:020d}", ends[4] + 88)
    store = MessageStore(replicas.settings("a"), replicas.clock)
    log = StoreReplicaLog(store)
    replicas.stores.append(store)

    store.load(accept_damage=True)

    assert log.failure() is None
    assert log.max_offset == ends[4]


@on_loop
async def test_damage_that_a_cut_finds_is_named(replicas: Replicas) -> None:
    """When no record begins where the log is to be cut, it ends before the record that is damaged."""
    leader, follower = replicas.open("leader"), replicas.open("a")
    follower.follow()
    ends = [append(leader, b"%d" % number) for number in range(9)]
    send(leader, follower)
    path = replicas.root / "a" / "commitlog" / f"{0:020d}"
    flip(path, ends[2] + 88)
    flip(path, ends[5] + 4)

    with pytest.raises(ReplicaLogFailed):
        await follower.truncate(ends[5], keep_copy=False)

    problem = follower.failure()
    assert problem is not None
    assert f"(offset {ends[2]} of the log)" in problem
    assert follower.max_offset == ends[2]
    await follower.truncate(follower.max_offset, keep_copy=True)
    send(leader, follower)
    assert_equal(leader, follower)


def test_a_damaged_record_keeps_a_replica_from_being_elected(replicas: Replicas) -> None:
    """Its store says that it takes nothing any more."""
    leader, follower = replicas.open("leader"), replicas.open("a")
    follower.follow()
    end = append(leader)
    damaged = bytearray(leader.view(0, end))
    damaged[88] ^= 1

    room = follower.room(end)
    room[:] = damaged
    follower.received(end)

    assert (store_of(follower).append_age_ms or 0) > 3_600_000
