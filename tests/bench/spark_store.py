"""Stores for benchmarks: `spark_store.py FOLDER [--body N] [--bytes N] [--file-bytes N] [--seed N]`.

Whole and consistent: records of 4 topics with 8 queues each, in files of one size that end in blank records, and the queue units to them.
Bodies are JSON, some of them in V2 records or from IPv6 hosts; keys and offsets differ from record to record. Nothing compressed.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.hashing import java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.records import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Record, encode_record
from brokerset_spark.kernels import KERNELS

TOPICS = ("Orders", "Payments", "TopicTest", "ClickStreamEvents")
QUEUES = 8
POOL = 2048
"""Different records; the others are copies of them with their own offsets, times and keys."""

QUEUE_FILE_UNITS = 300_000
FIRST_TIME = 1_760_000_000_000
PIECE = 32 << 20
UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@dataclass(frozen=True, slots=True)
class Made:
    """What is in a store."""

    folder: Path
    records: int
    bytes: int
    """Of the records, without blanks."""

    files: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Records as they are before they get their own numbers, one behind the other."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int32]
    queues: NDArray[np.int64]
    """Topic x `QUEUES` + queue id."""

    keys: NDArray[np.int64]
    """Position in the record of the last 8 digits of its UNIQ_KEY."""

    times: NDArray[np.int64]
    """Position in the record of its store time."""

    tags_codes: NDArray[np.int64]


def make_pool(body_size: int, seed: int) -> Pool:
    """Records with bodies of about this size."""
    dice = random.Random(seed)
    parts, queues, keys, times, codes = [], [], [], [], []
    for _ in range(POOL):
        topic, queue = dice.randrange(len(TOPICS)), dice.randrange(QUEUES)
        tag = f"Tag{dice.randrange(10)}"
        key = f"7F000001{dice.randrange(1 << 32):08X}{dice.randrange(1 << 32):08X}00000000"
        v6 = dice.random() < 0.02
        record = encode_record(
            Record(
                magic=MAGIC_V2 if dice.random() < 0.02 else MAGIC_V1,
                queue_id=queue,
                queue_offset=0,
                offset=0,
                born_timestamp=FIRST_TIME,
                born_host=Host(bytes(15) + b"\1", 54321) if v6 else Host(b"\x0a\0\0\1", 54321),
                store_timestamp=FIRST_TIME,
                store_host=Host(b"\x7f\0\0\1", 10911),
                body=make_body(dice, max(0, round(body_size * dice.uniform(0.8, 1.2)))),
                topic=TOPICS[topic],
                properties=f"TAGS\x01{tag}\x02WAIT\x01true\x02UNIQ_KEY\x01{key}\x02".encode(),
            )
        )
        parts.append(record)
        queues.append(topic * QUEUES + queue)
        keys.append(len(record) - 9)
        times.append(68 if v6 else 56)
        codes.append(java_hash(tag))
    sizes = np.array([len(each) for each in parts], np.int32)
    return Pool(
        np.frombuffer(b"".join(parts), np.uint8),
        np.cumsum(sizes, dtype=np.int64) - sizes,
        sizes,
        np.array(queues, np.int64),
        np.array(keys, np.int64),
        np.array(times, np.int64),
        np.array(codes, np.int64),
    )


def make_body(dice: random.Random, size: int) -> bytes:
    """JSON text of this size, which compresses about as well as real events do."""
    text = ""
    while len(text) < size:
        number = dice.randrange(1 << 40)
        text += f'{{"id":{number},"user":"u{dice.randrange(1 << 20):x}","amount":{number % 99991 / 100}}},'
    return text[:size].encode()


def make_store(folder: Path, *, body_size: int, total: int, file_size: int, seed: int = 1) -> Made:
    """Fill a folder with about `total` bytes of records. The same arguments give the same bytes."""
    pool, dice = make_pool(body_size, seed), np.random.default_rng(seed)
    (folder / "commitlog").mkdir(parents=True)
    following = np.zeros(len(TOPICS) * QUEUES, np.int64)
    units: list[list[NDArray[np.void]]] = [[] for _ in following]
    records = written = files = 0
    most = int(pool.sizes.max())
    while total - written >= most:
        base = files * file_size
        with (folder / "commitlog" / f"{base:020d}").open("wb") as log:
            log.truncate(file_size)
            room = file_size
            while total - written >= most:
                picked = dice.integers(0, POOL, PIECE // int(pool.sizes.mean()))
                ends = np.cumsum(pool.sizes[picked], dtype=np.int64)
                picked = picked[: np.searchsorted(ends, min(room - BLANK.size, total - written), "right")]
                if len(picked) == 0:
                    break
                offset = base + file_size - room
                data, made = _piece(pool, picked, offset, records, following)
                log.write(data.data)
                for queue in np.unique(pool.queues[picked]).tolist():
                    units[queue].append(made[pool.queues[picked] == queue])
                room -= len(data)
                written += len(data)
                records += len(picked)
                if len(picked) < len(ends):
                    break
            if total - written >= most:
                log.write(BLANK.pack(room, MAGIC_BLANK))
        files += 1
    for number, rows in enumerate(units):
        _write_queue(folder / "consumequeue" / TOPICS[number // QUEUES] / str(number % QUEUES), rows)
    time = FIRST_TIME + records - 1
    (folder / "checkpoint").write_bytes(StoreCheckpoint(time, time).encode())
    return Made(folder, records, written, files)


def _piece(
    pool: Pool, picked: NDArray[np.int64], offset: int, first: int, following: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """Records in a row that begin at an offset, and their queue units."""
    sizes = pool.sizes[picked]
    positions = np.cumsum(sizes, dtype=np.int64) - sizes
    out = np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
    KERNELS.to_records(pool.data, pool.starts[picked], sizes, out, positions, offset)
    longs = np.ndarray((len(out) - 7,), ">i8", out, strides=(1,))
    queues = pool.queues[picked]
    order = np.argsort(queues, kind="stable")
    counts = np.bincount(queues, minlength=len(following))
    queue_offsets = np.empty(len(picked), np.int64)
    queue_offsets[order] = np.arange(len(picked)) - np.repeat(np.cumsum(counts) - counts - following, counts)
    following += counts
    longs[positions + 20] = queue_offsets
    numbers = first + np.arange(len(picked), dtype=np.int64)
    longs[positions + 40] = FIRST_TIME + numbers
    longs[positions + pool.times[picked]] = FIRST_TIME + numbers
    digits = HEX[(numbers[:, None] >> np.arange(28, -1, -4)) & 15]
    out[(positions + pool.keys[picked])[:, None] + np.arange(8)] = digits
    units = np.empty(len(picked), UNIT)
    units["offset"], units["size"], units["tags_code"] = offset + positions, sizes, pool.tags_codes[picked]
    return out, units


def _write_queue(folder: Path, rows: list[NDArray[np.void]]) -> None:
    data = b"".join(each.tobytes() for each in rows)
    folder.mkdir(parents=True)
    size = QUEUE_FILE_UNITS * UNIT.itemsize
    for start in range(0, max(len(data), 1), size):
        with (folder / f"{start:020d}").open("wb") as file:
            file.truncate(size)
            file.write(data[start : start + size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--body", type=int, default=1024, help="mean size of a body")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--file-bytes", type=int, default=1 << 28)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    made = make_store(
        args.folder, body_size=args.body, total=args.bytes, file_size=args.file_bytes, seed=args.seed
    )
    print(f"{made.folder}: {made.records} records, {made.bytes} bytes in {made.files} files")


if __name__ == "__main__":
    main()
