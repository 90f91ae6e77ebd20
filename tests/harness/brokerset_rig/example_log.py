"""A small log with records of every kind, for tests of kernels."""

from __future__ import annotations

import numpy as np

from brokerset_formats.hosts import Host
from brokerset_formats.records import MAGIC_V1, MAGIC_V2, Record, encode_record
from brokerset_spark.kernels.contract import Bytes

BASE = 4096
"""Offset of `example_log`."""


def example_log() -> Bytes:
    """Twenty records of both versions, with hosts of both kinds; every other one with a property CRC."""
    data = b""
    for number in range(20):
        record = Record(
            magic=MAGIC_V2 if number % 3 == 0 else MAGIC_V1,
            queue_id=number % 4,
            queue_offset=number,
            offset=BASE + len(data),
            born_timestamp=1_700_000_000_000,
            born_host=Host(bytes(16 if number % 4 == 1 else 4), 54321),
            store_timestamp=1_700_000_000_000 + number,
            store_host=Host(bytes(16 if number % 5 == 1 else 4), 10911),
            body=b"body" * number,
            topic="Täglich😀",
            properties=f"KEYS\x01k{number}\x02TAGS\x01TagA\x02".encode(),
        )
        data += encode_record(record, property_crc=number % 2 == 0)
    return np.frombuffer(data, np.uint8)
