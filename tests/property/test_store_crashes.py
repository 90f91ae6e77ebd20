"""Crashes: torn tails, lost pages and flipped bits at random places lose nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brokerset_broker.store import MessageStore, StoreCorrupt
from brokerset_formats.batches import BatchItem
from brokerset_formats.records import decode_record
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

SEGMENT = 16_384
PAGE = 4096


@dataclass
class Written:
    """What a store was given before it crashed."""

    root: Path
    messages: list[tuple[int, int, int]] = field(default_factory=list)
    """Offset, size and number of each message, in order."""
    flushed: int = 0
    """Acknowledged: on disk, and the checkpoint says so."""
    end: int = 0


def open_store(root: Path, *, accept_damage: bool = False) -> MessageStore:
    settings = BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=20,
        max_index_num=60,
    )
    store = MessageStore(settings, ManualClock())
    try:
        store.load(accept_damage=accept_damage)
    except BaseException:
        store.abandon()
        raise
    return store


def write(root: Path, rng: random.Random) -> Written:
    """Messages in three queues, some as batches, with checkpoints in between; then the store is let go."""
    written = Written(root)
    store = open_store(root)

    async def work() -> None:
        number = 0
        for _ in range(rng.randrange(10, 60)):
            count = rng.choice((1, 1, 1, 5))
            items = [
                BatchItem(0, (b"%d" % n).ljust(rng.randrange(10, 1500), b"."), b"UNIQ_KEY\x01id-%d\x02" % n)
                for n in range(number, number + count)
            ]
            batch = store.append_batch(
                "T", rng.randrange(3), items, sys_flag=0, born_timestamp=0, born_host=bytes(8)
            )
            for n, offset in enumerate(batch.offsets, number):
                written.messages.append((offset, len(store.read(offset) or b""), n))
            number += count
            if rng.random() < 0.1:
                await store.checkpoint()
                written.flushed = store.max_offset

    asyncio.run(work())
    written.end = store.max_offset
    store.abandon()
    return written


def log_file(root: Path, offset: int) -> tuple[Path, int]:
    return root / "commitlog" / f"{offset - offset % SEGMENT:020d}", offset % SEGMENT


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(position)
        stream.write(data)


def check(store: MessageStore, written: Written, at_least: int) -> list[int]:
    """Queues are dense, queues and index agree with the log, and messages below `at_least` are all there."""
    present: dict[int, bytes] = {}
    for queue_id in store.queues().get("T", []):
        for queue_offset in range(store.queue_min("T", queue_id), store.queue_max("T", queue_id)):
            unit = store.unit("T", queue_id, queue_offset)
            assert unit is not None
            raw = store.read(unit[0], unit[1])
            assert raw is not None
            record = decode_record(raw, verify_crc=True)
            assert (record.offset, record.queue_id, record.queue_offset) == (unit[0], queue_id, queue_offset)
            key = record.properties.split(b"\x02")[0].partition(b"\x01")[2].decode()
            found = store.query("T", key, 64, 0, 2**62).records
            assert unit[0] in {decode_record(candidate).offset for candidate in found}
            present[unit[0]] = record.body
    for offset, size, number in written.messages:
        if offset + size <= at_least:
            assert present[offset].startswith(b"%d" % number)
        if offset + size > store.max_offset:
            assert offset not in present
    assert len(present) == sum(1 for offset, size, _ in written.messages if offset + size <= store.max_offset)
    return sorted(present)


def go_on(root: Path, written: Written) -> None:
    """The recovered store takes messages, and a clean restart keeps everything."""
    store = open_store(root)
    at_least = store.max_offset
    before = [store.queue_max("T", queue_id) for queue_id in range(3)]
    for queue_id in range(3):
        appended = store.append(
            "T",
            queue_id,
            b"after",
            b"UNIQ_KEY\x01after\x02",
            flag=0,
            sys_flag=0,
            born_timestamp=0,
            born_host=bytes(8),
        )
        assert appended.queue_offset == before[queue_id]
    asyncio.run(store.close())
    store = open_store(root)
    assert [store.queue_max("T", queue_id) for queue_id in range(3)] == [count + 1 for count in before]
    kept = [message for message in written.messages if message[0] + message[1] <= at_least]
    for offset, size, _ in kept:
        decode_record(store.read(offset, size) or b"", verify_crc=True)
    store.abandon()


def power_failure(root: Path, written: Written, rng: random.Random) -> int:
    """Lose pages that were not synced: of the log from a random place on, and any of queues and index.

    Returns the offset from which the log was lost.
    """
    lost_from = rng.randrange(written.flushed, written.end + 1)
    for path in sorted((root / "commitlog").iterdir()):
        start = int(path.name)
        if start + SEGMENT > lost_from:
            begin = max(lost_from - start, 0)
            kept_pages = bytearray(path.read_bytes())
            kept_pages[begin:] = bytes(SEGMENT - begin)
            path.write_bytes(kept_pages)
    for path in (root / "consumequeue").rglob("0" * 10 + "*"):
        if rng.random() < 0.5:
            synced = synced_units(root, written, path)
            data = bytearray(path.read_bytes())
            for position in range(0, len(data), 20):
                if position >= synced and rng.random() < 0.5:
                    data[position : position + 20] = bytes(20)
            path.write_bytes(data)
    (root / "abort").write_text("1\nanother boot\n")
    return lost_from


def synced_units(root: Path, written: Written, path: Path) -> int:
    """Bytes of a queue file whose units point below what the last checkpoint covered."""
    data = path.read_bytes()
    count = 0
    for position in range(0, len(data), 20):
        offset, size = (
            int.from_bytes(data[position : position + 8], "big"),
            data[position + 8 : position + 12],
        )
        if int.from_bytes(size, "big") == 0 or offset >= written.flushed:
            break
        count = position + 20
    return count


@pytest.mark.parametrize("seed", range(25))
def test_a_power_failure_loses_only_what_was_not_flushed(tmp_path: Path, seed: int) -> None:
    """Whatever pages are lost behind the checkpoint: all before it is there, and everything agrees."""
    rng = random.Random(seed)
    written = write(tmp_path / "store", rng)
    lost_from = power_failure(written.root, written, rng)

    store = open_store(written.root)

    assert written.flushed <= store.max_offset
    whole = [offset + size for offset, size, _ in written.messages if offset + size <= lost_from]
    check(store, written, max([written.flushed, *whole]))
    store.abandon()
    go_on(written.root, written)


@pytest.mark.parametrize("seed", range(25))
def test_a_torn_tail_is_cut_at_the_last_whole_record(tmp_path: Path, seed: int) -> None:
    """A copy of a living store, torn inside a record that was not flushed, opens without complaint."""
    rng = random.Random(1000 + seed)
    written = write(tmp_path / "store", rng)
    shutil.copytree(written.root, tmp_path / "copy")
    tail = [message for message in written.messages if message[0] >= written.flushed]
    if not tail:
        return
    offset, size, _ = rng.choice(tail)
    cut = offset + rng.randrange(1, size)
    for path in sorted((tmp_path / "copy" / "commitlog").iterdir()):
        start = int(path.name)
        if start + SEGMENT > cut:
            change(path, max(cut - start, 0), bytes(SEGMENT - max(cut - start, 0)))

    store = open_store(tmp_path / "copy")

    assert store.max_offset == offset or store.max_offset % SEGMENT == 0
    check(store, written, offset)
    path, position = log_file(tmp_path / "copy", store.max_offset)
    assert not path.exists() or not any(path.read_bytes()[position:])
    store.abandon()
    go_on(tmp_path / "copy", written)


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_are_never_passed_over_silently(tmp_path: Path, seed: int) -> None:
    """In a body that was flushed: refused. Behind it: cut, with a copy kept. Accepted, the store is sound."""
    rng = random.Random(2000 + seed)
    written = write(tmp_path / "store", rng)
    root = written.root
    offset, size, _ = rng.choice(written.messages)
    path, position = log_file(root, offset)
    body_position = position + 88 + rng.randrange(0, 8)
    flipped = path.read_bytes()[body_position] ^ (1 << rng.randrange(8))
    change(path, body_position, bytes([flipped]))
    follows = any(other > offset for other, _, _ in written.messages)

    if offset < written.flushed:
        with pytest.raises(StoreCorrupt) as refused:
            open_store(root)
        assert (refused.value.path, refused.value.position) == (path, position)
        store = open_store(root, accept_damage=True)
    else:
        store = open_store(root)

    assert store.max_offset == offset
    assert (root / "commitlog.damaged" / f"{offset:020d}").exists() is follows or offset < written.flushed
    check(store, written, offset)
    store.abandon()
    go_on(root, written)
    assert size > 0
