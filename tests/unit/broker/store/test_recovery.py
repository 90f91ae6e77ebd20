"""Starting again: after a clean exit, after a crash, with a torn tail, and with damage."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import MessageStore, StoreCorrupt
from brokerset_broker.store.recovery import (
    FirstRecord,
    Verdict,
    judge_end,
    record_within,
    start_after_clean_exit,
    start_after_crash,
)
from brokerset_broker.store.segments import MappedFile
from brokerset_formats.checkpoints import StoreCheckpoint, SyncedOffsets
from brokerset_formats.records import RecordHead, decode_record, encode_record
from brokerset_rig.made_stores import message

Stores = Any  # the class of conftest.py, which cannot be imported by name


def close(store: MessageStore) -> None:
    asyncio.run(store.close())


def fill(stores: Stores, store: MessageStore, first: int, count: int, size: int = 1000) -> list[int]:
    offsets = []
    for number in range(first, first + count):
        key = b"UNIQ_KEY\x01id-%d\x02" % number
        offsets.append(stores.append(store, (b"%d" % number).ljust(size), key, queue_id=number % 3).offset)
        stores.clock.advance(10)
    return offsets


def check(store: MessageStore, count: int) -> None:
    """All messages from 0 to `count` are in log, queues and index, and nothing else."""
    for number in range(count):
        unit = store.unit("T", number % 3, number // 3)
        assert unit is not None, number
        record = decode_record(store.read(unit[0], unit[1]) or b"", verify_crc=True)
        assert record.body.strip() == b"%d" % number
        assert record.queue_offset == number // 3
        found = store.query("T", f"id-{number}", 32, 0, 2**62).records
        assert unit[0] in {decode_record(raw).offset for raw in found}, number
    assert [store.queue_max("T", queue_id) for queue_id in range(3)] == [
        len(range(queue_id, count, 3)) for queue_id in range(3)
    ]


def log_path(stores: Stores, start: int = 0) -> Path:
    return Path(stores.root / "commitlog" / f"{start:020d}")


def remove_from(stores: Stores, start: int) -> None:
    for path in (stores.root / "commitlog").iterdir():
        if int(path.name) >= start:
            path.unlink()


def write_at(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(position)
        stream.write(data)


def test_a_clean_exit_leaves_nothing_to_do(stores: Stores) -> None:
    """Everything is there after the next start, numbers and offsets go on, and no mark of a crash is left."""
    store = stores.open()
    fill(stores, store, 0, 100)
    end = store.max_offset
    assert (stores.root / "abort").read_text().splitlines()[0] == str(os.getpid())
    close(store)
    assert not (stores.root / "abort").exists()

    store = stores.open()

    assert store.max_offset == store.flushed_offset == end
    check(store, 100)
    fill(stores, store, 100, 100)
    check(store, 200)
    close(store)
    store = stores.open()
    check(store, 200)


def test_a_store_closed_without_the_mark_counts_as_not_closed(stores: Stores) -> None:
    """Everything is on the disk, but the next start is told of a crash that somebody still has to hear of."""
    store = stores.open()
    fill(stores, store, 0, 100)
    asyncio.run(store.close(cleanly=False))

    store = stores.open()

    assert not store.closed_cleanly
    check(store, 100)
    close(store)
    assert stores.open().closed_cleanly


def test_a_killed_process_loses_nothing(stores: Stores) -> None:
    """What was appended is there, flushed or not, as long as the machine runs on."""
    store = stores.open()
    fill(stores, store, 0, 100)
    end = store.max_offset
    stores.abandon_all()
    assert (stores.root / "abort").exists()

    store = stores.open()

    assert store.max_offset == end
    check(store, 100)


@pytest.mark.parametrize("lost", ["consumequeue", "index", "both"])
def test_derived_files_are_rebuilt(stores: Stores, lost: str) -> None:
    """Without queues, checkpoint and a clean exit, everything comes from the log again."""
    store = stores.open()
    fill(stores, store, 0, 100)
    stores.abandon_all()
    for name in ("consumequeue", "index") if lost == "both" else (lost,):
        shutil.rmtree(stores.root / name)
    (stores.root / "checkpoint").unlink()

    check(stores.open(), 100)


def test_a_torn_tail_is_cut(stores: Stores) -> None:
    """A record that is not whole goes, the bytes behind it become zeros, and its numbers are given again."""
    store = stores.open()
    offsets = fill(stores, store, 0, 50)
    stores.abandon_all()
    write_at(log_path(stores), offsets[-1] + 300, bytes(500))

    store = stores.open()

    assert store.max_offset == offsets[-1]
    check(store, 49)
    assert not any(log_path(stores).read_bytes()[offsets[-1] :])
    assert not (stores.root / "commitlog.damaged").exists()
    fill(stores, store, 49, 10)
    check(store, 59)


def test_garbage_behind_the_end_is_cut(stores: Stores) -> None:
    """Bytes that are no record are not kept where records will be."""
    store = stores.open()
    fill(stores, store, 0, 10)
    end = store.max_offset
    stores.abandon_all()
    write_at(log_path(stores), end, b"\x00\x00\x00\x64" + b"garbage" * 100)

    store = stores.open()

    assert store.max_offset == end
    assert not any(log_path(stores).read_bytes()[end:])
    check(store, 10)


async def _checkpoint(store: MessageStore) -> None:
    await store.checkpoint()


def test_damage_before_what_was_flushed_stops_the_start(stores: Stores) -> None:
    """Nothing is cut off silently: the error names the place, a copy is kept, going on must be asked for."""
    store = stores.open()
    offsets = fill(stores, store, 0, 40)
    asyncio.run(_checkpoint(store))
    stores.abandon_all()
    write_at(log_path(stores), offsets[20] + 300, b"\xff\xff")
    before = log_path(stores).read_bytes()

    with pytest.raises(StoreCorrupt, match="does not match its CRC") as error:
        stores.open()

    assert (error.value.path, error.value.position) == (log_path(stores), offsets[20])
    assert f"whole records follow from offset {offsets[21]}" in str(error.value)
    assert log_path(stores).read_bytes() == before
    kept = (stores.root / "commitlog.damaged" / f"{offsets[20]:020d}").read_bytes()
    assert kept.rstrip(b"\0") == before[offsets[20] :].rstrip(b"\0")

    store = stores.open(accept_damage=True)
    assert store.max_offset == offsets[20]
    check(store, 20)
    fill(stores, store, 20, 5)
    close(store)
    check(stores.open(), 25)


def test_a_lost_page_in_the_middle_of_properties_stops_the_start(stores: Stores) -> None:
    """Zeros inside of long properties that were surely on the disk; the body and all lengths are right."""
    store = stores.open(enable_controller_mode=True)
    offsets = [stores.append(store, properties=b"K\x01" + b"v" * 12_000 + b"\x02").offset for _ in range(3)]
    asyncio.run(_checkpoint(store))
    stores.abandon_all()
    write_at(log_path(stores), 16_384, bytes(4096))
    assert offsets[1] + 200 < 16_384 < 16_384 + 4096 < offsets[2] - 30

    with pytest.raises(StoreCorrupt, match="does not match the CRC in its properties") as error:
        stores.open(enable_controller_mode=True)

    assert error.value.position == offsets[1]
    assert stores.open(enable_controller_mode=True, check_crc_on_recover=False).max_offset > offsets[2]


def test_a_lost_page_that_nobody_was_told_of_is_cut(stores: Stores) -> None:
    """The log ends before the record whose properties a power failure tore; what follows is kept."""
    store = stores.open(enable_controller_mode=True)
    offsets = [stores.append(store, properties=b"K\x01" + b"v" * 12_000 + b"\x02").offset for _ in range(3)]
    stores.abandon_all()
    write_at(log_path(stores), 16_384, bytes(4096))

    assert stores.open(enable_controller_mode=True).max_offset == offsets[1]
    assert (stores.root / "commitlog.damaged" / f"{offsets[1]:020d}").exists()


def test_logs_with_and_without_property_crcs_are_read(stores: Stores) -> None:
    """A log that was begun without them, and goes on with them and without again."""
    for first, crc in ((0, False), (10, True), (20, False), (30, True)):
        fill(stores, stores.open(enabled_append_prop_crc=crc), first, 10)
        stores.abandon_all()
        check(stores.open(enabled_append_prop_crc=not crc), first + 10)
        stores.abandon_all()


def test_damage_in_an_earlier_file_keeps_the_later_ones(stores: Stores) -> None:
    """The copy has everything from the damage on, over files, so that tools can read it."""
    store = stores.open()
    offsets = fill(stores, store, 0, 60, size=1500)
    second = next(n for n, offset in enumerate(offsets) if offset >= 65_536)
    asyncio.run(_checkpoint(store))
    end = store.max_offset
    stores.abandon_all()
    (stores.root / "checkpoint").unlink()  # so that recovery begins with the first file
    write_at(log_path(stores), offsets[10] + 300, b"\xff\xff")
    later = log_path(stores, 65_536).read_bytes()

    store = stores.open(accept_damage=True)

    assert store.max_offset == offsets[10]
    check(store, 10)
    kept = (stores.root / "commitlog.damaged" / f"{offsets[10]:020d}").read_bytes()
    assert kept[65_536 - offsets[10] :][: end - 65_536] == later[: end - 65_536]
    assert not log_path(stores, 65_536).exists()
    assert second > 10


def test_a_lost_file_is_noticed(stores: Stores) -> None:
    """A log that ends before what was surely on disk is damage, too."""
    store = stores.open()
    fill(stores, store, 0, 60, size=1500)
    asyncio.run(_checkpoint(store))
    stores.abandon_all()
    remove_from(stores, 65_536)

    with pytest.raises(StoreCorrupt, match="was on disk"):
        stores.open()


def test_pages_written_out_of_order_are_a_tail(stores: Stores) -> None:
    """After a power failure a hole may be followed by whole records that nobody was told about: they go."""
    store = stores.open()
    fill(stores, store, 0, 20)
    asyncio.run(_checkpoint(store))
    offsets = fill(stores, store, 20, 20)
    stores.abandon_all()
    write_at(log_path(stores), offsets[10], bytes(1500))
    forget_boot(stores)

    store = stores.open()

    assert store.max_offset == offsets[10]
    check(store, 30)
    assert (stores.root / "commitlog.damaged" / f"{offsets[10]:020d}").exists()


def forget_boot(stores: Stores) -> None:
    """As if the machine had been started again since."""
    (stores.root / "abort").write_text("1\nanother boot\n")


def test_lost_pages_of_queues_and_index_do_not_matter(stores: Stores) -> None:
    """After a power failure, what was not synced of the derived files is made again."""
    store = stores.open()
    fill(stores, store, 0, 20)
    asyncio.run(_checkpoint(store))
    fill(stores, store, 20, 30)
    stores.abandon_all()
    for queue_id in range(3):
        for path in (stores.root / "consumequeue" / "T" / str(queue_id)).iterdir():
            first = int(path.name) // 20
            keep = max(0, min(10, 7 - first)) * 20
            path.write_bytes(path.read_bytes()[:keep] + b"\x01" * (200 - keep))
    forget_boot(stores)

    store = stores.open()

    check(store, 50)


def test_what_a_killed_process_left_in_the_page_cache_is_synced(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start after a kill syncs queues from their beginning: its checkpoint says that all is on disk."""
    store = stores.open()
    fill(stores, store, 0, 60)
    asyncio.run(_hasty_checkpoint(store))
    store.abandon()
    synced: dict[Path, list[tuple[int, int]]] = {}

    def note(file: MappedFile, begin: int, end: int) -> None:
        synced.setdefault(file.path, []).append((begin, end))

    monkeypatch.setattr(MappedFile, "sync", note)

    stores.open()

    for queue_id in range(3):
        folder = stores.root / "consumequeue" / "T" / str(queue_id)
        assert [synced[path][0] for path in sorted(folder.iterdir())] == [(0, 200), (0, 200)]


async def _hasty_checkpoint(store: MessageStore) -> None:
    """A checkpoint between the thorough ones: it relies on the page cache for queues and index."""
    await store.flush()
    await store.checkpoints.write(thorough=False)


def test_messages_that_the_index_lacks_are_put_after_a_clean_exit(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the index had no room for until the end is found after the next start."""
    store = stores.open()
    fill(stores, store, 0, 10)
    store.dispatcher.index_missing_from = store.max_offset
    fill(stores, store, 10, 10)
    close(store)
    assert not store.query("T", "id-15", 32, 0, 2**62).records

    store = stores.open()

    check(store, 20)
    close(store)


def test_an_impossible_queue_offset_ends_the_log(stores: Stores) -> None:
    """A record that has more predecessors in its queue than the log has room for is damaged, not a gap."""
    store = stores.open()
    offsets = fill(stores, store, 0, 5)
    store.abandon()
    write_at(log_path(stores), offsets[4] + 20, (1 << 40).to_bytes(8, "big"))

    store = stores.open()

    assert store.max_offset == offsets[4]
    check(store, 4)


def test_the_end_at_the_end_of_a_file(stores: Stores) -> None:
    """A blank record as last thing in the log: the next message begins the next file."""
    store = stores.open()
    fill(stores, store, 0, 60, size=1500)
    stores.abandon_all()
    remove_from(stores, 65_536)
    (stores.root / "checkpoint").unlink()

    store = stores.open()

    assert store.max_offset == 65_536
    assert stores.append(store).offset == 65_536


def test_a_deleted_topic_does_not_come_back(stores: Stores) -> None:
    """After a crash, messages of a topic that was deleted before the checkpoint stay out of the queues."""
    store = stores.open()
    fill(stores, store, 0, 10)
    store.delete_topic("T")
    stores.append(store, b"new")
    asyncio.run(_checkpoint(store))
    stores.abandon_all()

    store = stores.open()

    assert store.queues() == {"T": [0]}
    assert store.queue_max("T", 0) == 1


def test_a_topic_that_began_anew_before_a_crash_has_its_new_messages(stores: Stores) -> None:
    """Records of a deleted topic that come back must not take the numbers of what was sent since."""
    store = stores.open()
    fill(stores, store, 0, 6)
    asyncio.run(_checkpoint(store))
    fill(stores, store, 6, 12)
    store.delete_topic("T")
    offsets = [stores.append(store, b"new").offset for _ in range(3)]
    store.abandon()

    store = stores.open()

    units = [store.unit("T", 0, number) for number in range(3)]
    assert [unit[0] for unit in units if unit is not None] == offsets
    assert store.queue_max("T", 0) == 3
    store.abandon()
    assert stores.open().queue_max("T", 0) == 3


def head(store_timestamp: int) -> RecordHead:
    return RecordHead(100, b"T", 0, 0, 5000, 0, store_timestamp, b"")


@pytest.mark.parametrize(
    ("end", "following", "marks", "verdict"),
    [
        (1000, None, SyncedOffsets(1000, 0, 0), Verdict.END),
        (1000, head(9), SyncedOffsets(1000, 0, 0), Verdict.HOLE),
        (999, None, SyncedOffsets(1000, 0, 0), Verdict.DAMAGE),
        (999, head(9), SyncedOffsets(1000, 0, 0), Verdict.DAMAGE),
        (1000, None, None, Verdict.END),
        (1000, head(10), None, Verdict.DAMAGE),
        (1000, head(11), None, Verdict.HOLE),
    ],
)
def test_what_an_end_means(
    end: int, following: RecordHead | None, marks: SyncedOffsets | None, verdict: Verdict
) -> None:
    """Below what was surely on disk it is damage; above, a tail, with or without a hole."""
    checkpoint = StoreCheckpoint(physic_msg_timestamp=10, marks=marks)

    assert judge_end(end, following, checkpoint) is verdict


def test_where_reading_begins() -> None:
    """Java's rules for the first file: by the queues after a clean exit, by time after a crash."""
    files = [FirstRecord(0, 100), FirstRecord(10, 200), FirstRecord(20, 300), FirstRecord(30, 0)]

    assert [start_after_clean_exit(files, end) for end in (0, 10, 19, 40)] == [0, 10, 10, 20]
    assert [start_after_crash(files, time) for time in (0, 100, 250, 999)] == [0, 0, 10, 20]
    assert start_after_clean_exit([], 5) == start_after_crash([], 5) == 0


def test_records_are_found_behind_damage() -> None:
    """Only a record that stands where it says, and is whole, counts."""
    record = message(0, offset=65_536 + 500, body=b"\xda\xa3\x20\xa7" * 5)
    data = encode_record(record)
    buffer = bytearray(2000)
    buffer[100 : 100 + len(data)] = data
    assert record_within(buffer, 65_536, 0, 2000) is None

    buffer[500 : 500 + len(data)] = data

    found = record_within(buffer, 65_536, 0, 2000)
    assert found is not None
    assert found.offset == record.offset
