"""Kernels against `pure` on a small log, where they will run: the build of an image calls it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.hosts import Host
from brokerset_formats.queue_units import UNIT
from brokerset_formats.records import MAGIC_V1, MAGIC_V2, Record, encode_record
from brokerset_spark.kernels.choice import chosen
from brokerset_spark.kernels.contract import GROUP_SUMS, Bytes, Texts
from brokerset_spark.kernels.pure import Kernels

BASE = 4096
"""Offset of `example_log`."""


def example_log(*, property_crcs: bool = True) -> Bytes:
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
        data += encode_record(record, property_crc=property_crcs and number % 2 == 0)
    return np.frombuffer(data, np.uint8)


def _values(kernels: Kernels) -> Iterator[list[object]]:
    """What each function gives, as plain values."""
    data = example_log()
    walked = kernels.walk(data, 0, len(data), BASE, final=True, crc=True)
    yield [each.tolist() for each in walked[:2]] + [walked.position, walked.stop]
    yield [kernels.resync(data, start, len(data), BASE) for start in range(0, len(data), 97)]
    heads = kernels.heads(data, walked.starts)
    yield [each.tolist() for each in heads]
    for texts in (kernels.find_property(data, heads, b"KEYS"), Texts(heads.topic, heads.topic_size)):
        yield [each.tolist() for each in texts] + [kernels.java_hashes(data, texts).tolist()]
    for texts in kernels.find_properties(data, heads, (b"TAGS", b"", b"KEYS")):
        yield [each.tolist() for each in texts]
    hosts = Texts(heads.store_host, np.where(heads.sys_flag & 0x20, 20, 8).astype(np.int32))
    yield [each.tolist() for each in kernels.copy_texts(data, kernels.find_property(data, heads, b"TAGS"))]
    yield [each.tolist() for each in kernels.hex_texts(data, hosts, Texts(heads.topic, heads.topic_size))]
    yield [each.tolist() for each in kernels.number_texts(data, hosts)]
    codes = np.arange(len(walked.starts)) - 3
    rows = zip(walked.starts.tolist(), walked.sizes.tolist(), codes.tolist(), strict=True)
    units = b"".join(UNIT.pack(*each) for each in rows)
    yield [
        kernels.count_fitting(
            np.frombuffer(units, np.uint8), np.arange(len(codes)), walked.starts, walked.sizes, codes, least
        )
        for least in (-3, -2)
    ]
    pairs = kernels.split_properties(data, heads.properties, heads.properties_size)
    yield [each.tolist() for each in pairs[:5]] + [pairs.repeated]
    data = example_log(property_crcs=False)  # entries change offsets, which such a CRC covers
    walked = kernels.walk(data, 0, len(data), BASE, final=True, crc=True)
    positions = walked.starts + np.arange(len(walked.starts)) * ENTRY_HEAD_SIZE
    entries = np.zeros(len(data) + len(walked.starts) * ENTRY_HEAD_SIZE, np.uint8)
    kernels.to_entries(data, walked.starts, walked.sizes, entries, positions, 0, first_index=7, term=2)
    yield [entries.tobytes()]
    found = kernels.walk_entries(entries, 0, len(entries), 0, index=7, final=True, crc=True)
    yield [each.tolist() for each in found[:5]] + [found.position, found.stop]
    yield [kernels.resync_entries(entries, start, len(entries), 0) for start in range(0, len(entries), 97)]
    heads = kernels.heads(data, walked.starts)
    numbers = kernels.new_groups().number(data, Texts(heads.topic, heads.topic_size), heads.queue_id)
    sums = np.zeros((len(numbers), GROUP_SUMS), np.int64)
    kernels.sum_groups(numbers, numbers > 0, walked.sizes, heads, sums)
    yield [numbers.tolist(), sums.tolist()]
    back = np.zeros(len(data), np.uint8)
    packed = kernels.pack(data, walked.starts, walked.sizes, back, 0)
    yield [*packed, back.tobytes(), kernels.find_crcs(data, walked.starts, walked.sizes).tolist()]
    kernels.to_records(entries, found.starts + ENTRY_HEAD_SIZE, walked.sizes, back, walked.starts, BASE)
    yield [back.tobytes() == data.tobytes()]


def check(name: str | None = None) -> Kernels:
    """The kernels of this name (None: the best); RuntimeError if they do not give what `pure` gives."""
    kernels = chosen(name)
    for number, (got, expected) in enumerate(zip(_values(kernels), _values(Kernels()), strict=True)):
        if got != expected:
            raise RuntimeError(f"the {kernels.NAME} kernels are wrong on this host (step {number}); use pure")
    return kernels


def warm() -> None:
    """Compile everything into numba's cache, and run it once: for the build of an image.

    Call it with the same `NUMBA_CACHE_DIR`, `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` as later processes: the
    cache finds its files by all of them. RuntimeError if the kernels do not give what `pure` gives.
    """
    check("compiled")
