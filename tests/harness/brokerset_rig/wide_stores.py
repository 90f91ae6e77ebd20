"""Stores with many files and many queues, and few bytes in each: what a job does for each of them, not for bytes."""

from __future__ import annotations

import struct
from itertools import cycle
from pathlib import Path

import numpy as np

from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.hashing import java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import BLANK, BLANK_SIZE_MIN, MAGIC_BLANK, Record, encode_record

HOST = Host(bytes([127, 0, 0, 1]), 10911)
UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
QUEUES_EACH = 8
"""Queues of one topic."""

UNITS_EACH = 4_096
"""Room in a queue's file."""

TIME = 1_760_000_000_000

_PLACES = struct.Struct(">qq")
_PLACES_AT = 20
"""Queue offset and offset in a record, which follow magic, CRC of the body, queue id and flag."""


def write_wide_store(
    folder: Path, *, files: int, file_bytes: int, queues: int, body: int = 80, broker_id: int = 1
) -> int:
    """A closed store of so many whole files, whose records go to the queues in turn; how many records it has."""
    log = folder / "commitlog"
    log.mkdir(parents=True)
    templates = [bytearray(encode_record(_record(queue, body))) for queue in range(queues)]
    units: list[list[tuple[int, int, int]]] = [[] for _ in range(queues)]
    in_turn, tags_code = cycle(range(queues)), java_hash("Tag")
    queue = next(in_turn)
    for number in range(files):
        base, data = number * file_bytes, bytearray()
        while len(data) + len(templates[queue]) + BLANK_SIZE_MIN <= file_bytes:
            offset = base + len(data)
            data += templates[queue]
            _PLACES.pack_into(data, offset - base + _PLACES_AT, len(units[queue]), offset)
            units[queue].append((offset, len(templates[queue]), tags_code))
            queue = next(in_turn)
        data += BLANK.pack(file_bytes - len(data), MAGIC_BLANK)
        (log / f"{base:020d}").write_bytes(data.ljust(file_bytes, b"\0"))
    for queue, mine in enumerate(units):
        place = folder / "consumequeue" / f"topic-{queue // QUEUES_EACH}" / str(queue % QUEUES_EACH)
        place.mkdir(parents=True)
        packed = np.array(mine, UNIT).tobytes()
        (place / f"{0:020d}").write_bytes(packed.ljust(UNITS_EACH * UNIT.itemsize, b"\0"))
    (folder / "brokerIdentity").write_bytes(BrokerIdentity("cluster", "broker-a", broker_id).encode())
    (folder / "checkpoint").write_bytes(StoreCheckpoint(confirm_phy_offset=files * file_bytes).encode())
    return sum(map(len, units))


def _record(queue: int, body: int) -> Record:
    return Record(
        queue_id=queue % QUEUES_EACH, queue_offset=0, offset=0, born_timestamp=TIME, born_host=HOST,
        store_timestamp=TIME, store_host=HOST, body=b"." * body, topic=f"topic-{queue // QUEUES_EACH}",
        properties=encode_properties({"TAGS": "Tag"}),
    )  # fmt: skip
