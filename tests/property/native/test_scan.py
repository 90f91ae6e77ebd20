"""The native core's scans, hashes and properties answer as Python's do, over random and damaged bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.store.dispatch import derived, has_unit, index_keys, tags_code_of
from brokerset_broker.store.recovery import scan
from brokerset_formats import native
from brokerset_formats.dledger import BLANK as ENTRY_BEGIN
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_NORMAL
from brokerset_formats.hashing import index_hash, java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.index_file import ENTRY, IndexTable, file_size
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import find_property
from brokerset_formats.queue_units import UNIT
from brokerset_formats.records import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    RECORD_SIZE_MIN,
    Record,
    RecordHead,
    encode_record,
    magic_for,
)
from brokerset_rig.examples import examples

core = native.core
pytestmark = pytest.mark.skipif(core is None, reason="there is no native core")

START = 1 << 20
V4, V6 = Host(bytes([10, 0, 0, 1]), 10911), Host(bytes(15) + b"\1", 10911)

PIECES = [
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"\1",
    b"\2",
    b"\2TAGS\1",
    b"\2KEYS\1",
    b"\2UNIQ_KEY\1",
    b"__CRC32#\1",
]
PIECES += [b" ", b"a", b"B", b"\0", "é".encode(), "😀".encode(), b"\xff", b"\xed\xa0\x80", b"DELAY\x013\2"]
pieces = st.sampled_from(PIECES)
raws = st.lists(pieces | st.binary(max_size=9), max_size=12).map(b"".join)
endings = st.sampled_from([b""] * 8 + [b"\0"])


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.text() | st.text(alphabet=st.characters(max_codepoint=127)), st.text())
@examples(500)
def test_hashes_of_texts_are_those_of_python(topic: str, key: str) -> None:
    assert core is not None

    found = core.java_hash(key.encode()), core.index_hash(topic.encode(), key.encode())

    assert found == (java_hash(key), index_hash(f"{topic}#{key}"))


@given(st.binary(), st.binary())
@examples(250)
def test_what_is_no_text_has_no_hash(topic: bytes, key: bytes) -> None:
    assert core is not None

    assert (core.java_hash(key) is None) == (not is_text(key))
    assert (core.index_hash(topic, key) is None) == (not (is_text(topic) and is_text(key)))


@given(raws)
@examples(1500)
def test_properties_are_found_as_by_python(raw: bytes) -> None:
    assert core is not None

    found = core.derived(raw)

    tags = find_property(raw, b"TAGS")
    assert found == (None if tags and not is_text(tags) else (tags_code_of(raw), *index_keys(raw)))
    assert found is None or found == derived(raw)
    for name in (b"UNIQ_KEY", b"KEYS", b"TAGS", b"a", b""):
        assert core.find_property(raw, name) == find_property(raw, name)


records = st.builds(
    lambda topic, **fields: Record(topic=topic, magic=magic_for(topic.encode()), **fields),
    topic=st.sampled_from(["T", "Topic", "é", "%RETRY%g", SCHEDULE_TOPIC, "T" * 127, "T" * 128, "T\0"]),
    queue_id=st.sampled_from([0, 0, 1, -1]),
    queue_offset=st.just(0),
    offset=st.just(0),
    sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12, 0x100]),
    born_timestamp=st.just(1),
    born_host=st.sampled_from([V4, V4, V6]),
    store_timestamp=st.integers(0, 5_000) | st.integers(-(2**63), 2**63 - 1),
    store_host=st.sampled_from([V4, V4, V6]),
    body=st.binary(max_size=40),
    properties=st.tuples(raws, endings).map(b"".join),
)


def log_of(messages: list[tuple[Record, bool]], rolls: random.Random, entry_head: int) -> bytearray:
    """A log from offset `START`, mostly in order."""
    data = bytearray()
    numbers: dict[tuple[str, int], int] = {}
    for message, with_crc in messages:
        queue = message.topic, message.queue_id
        number = numbers.get(queue, rolls.choice([0, 1, 7]))
        number += rolls.random() < 0.03
        offset = START + len(data) + entry_head + (rolls.random() < 0.02)
        if rolls.random() < 0.03:  # as many as can be before it, or one more
            number = offset // RECORD_SIZE_MIN + rolls.randrange(2)
        record = encode_record(replace(message, queue_offset=number, offset=offset), property_crc=with_crc)
        if entry_head:
            data += ENTRY_BEGIN.pack(MAGIC_NORMAL, entry_head + len(record)) + bytes(entry_head - 8)
        data += record
        numbers[queue] = number + has_unit(message.sys_flag)
    data += rolls.choice([b"", bytes(50), BLANK.pack(100, MAGIC_BLANK) + bytes(92)])
    return data


def damage(data: bytearray, rolls: random.Random) -> None:
    for _ in range(rolls.choice([0, 0, 0, 1, 2])):
        position = rolls.randrange(len(data))
        kind = rolls.randrange(4)
        if kind == 0:
            data[position] ^= 1 << rolls.randrange(8)
        elif kind == 1:
            data[position] = rolls.choice([0, 1, 2, 255])
        elif kind == 2:
            del data[position:]
            data += bytes(len(data) == 0)
        else:
            end = min(position + rolls.randrange(1, 200), len(data))
            data[position:end] = bytes(end - position)


class Walk:
    """What Python makes of plain records: an independent model on Python's own functions."""

    def __init__(self) -> None:
        self.end = 0
        self.count = 0
        self.newest = -(2**63)
        self.next: dict[tuple[bytes, int], int] = {}
        self.runs: dict[tuple[bytes, int], list[RecordHead]] = {}
        self.entries = b""

    def take(self, head: RecordHead, *, units: bool, index: bool) -> bool:
        """False if the record is not plain."""
        unit = units and has_unit(head.sys_flag)
        entry = index and head.sys_flag & 12 != 12
        if unit or entry:
            tags = find_property(head.properties, b"TAGS")
            if head.topic == SCHEDULE_TOPIC.encode() or not is_text(head.topic) or not is_text(tags or b""):
                return False
            if unit and self.next.get((head.topic, head.queue_id), head.queue_offset) != head.queue_offset:
                return False
        entries = b""
        if entry:
            _, uniq_key, keys = derived(head.properties)
            for key in [uniq_key or b"", *(keys or b"").split(b" ")]:
                if not is_text(key):
                    return False
                if key:
                    hashed = index_hash(f"{head.topic.decode()}#{key.decode()}")
                    entries += ENTRY.pack(hashed, head.offset, head.store_timestamp)
        if unit:
            self.next[head.topic, head.queue_id] = head.queue_offset + 1
            self.runs.setdefault((head.topic, head.queue_id), []).append(head)
        self.entries += entries
        self.newest = max(self.newest, head.store_timestamp)
        self.count += 1
        return True

    def answer(self) -> tuple[object, ...] | None:
        if not self.count:
            return None
        runs = []
        for (topic, queue_id), heads in self.runs.items():
            codes = [tags_code_of(head.properties) for head in heads]
            packed = [
                UNIT.pack(head.offset, head.size, code) for head, code in zip(heads, codes, strict=True)
            ]
            code = codes[0] if len(set(codes)) == 1 else None
            first, last = heads[0], heads[-1]
            end = last.offset + last.size
            runs.append((topic, queue_id, first.queue_offset, first.offset, end, b"".join(packed), code))
        return self.end, self.newest, runs, self.entries


def heads_of(
    data: bytes, limit: int, entry_head: int, *, verify_crc: bool
) -> Iterator[tuple[int, RecordHead]]:
    position = 0
    while position + entry_head < limit:
        head = next(scan(data[:limit], START, position + entry_head, verify_crc=verify_crc))
        if not isinstance(head, RecordHead):
            return
        if data[position + entry_head + 4 : position + entry_head + 8] != MAGIC_V1.to_bytes(4, "big"):
            return
        if entry_head and ENTRY_BEGIN.unpack_from(data, position) != (MAGIC_NORMAL, entry_head + head.size):
            return
        yield position, head
        position += entry_head + head.size


@given(st.lists(st.tuples(records, st.booleans()), max_size=12), st.integers(0, 2**32))
@examples(1000)
def test_records_are_taken_as_by_python(messages: list[tuple[Record, bool]], seed: int) -> None:
    assert core is not None
    rolls = random.Random(seed)
    entry_head = rolls.choice([0, 0, ENTRY_HEAD_SIZE])
    data = log_of(messages, rolls, entry_head)
    if data:
        damage(data, rolls)
    limit = rolls.choice([len(data), rolls.randrange(len(data) + 1)])
    stop = rolls.choice([limit, rolls.randrange(limit + 1)])
    records_max = rolls.choice([100, rolls.randrange(1, 6)])
    verify_crc, units, index = rolls.random() < 0.8, rolls.random() < 0.8, rolls.random() < 0.8

    taken = core.take_records(
        memoryview(data),
        START,
        0,
        stop=stop,
        limit=limit,
        records_max=records_max,
        entry_head=entry_head,
        verify_crc=verify_crc,
        units=units,
        index=index,
    )

    walk = Walk()
    for position, head in heads_of(bytes(data), limit, entry_head, verify_crc=verify_crc):
        if position >= stop or walk.count >= records_max or not walk.take(head, units=units, index=index):
            break
        walk.end = position + entry_head + head.size
    assert taken == walk.answer()


def test_a_topic_too_long_for_the_first_version_is_left_to_python() -> None:
    assert core is not None
    record = Record(
        queue_id=0,
        queue_offset=0,
        offset=START,
        born_timestamp=1,
        born_host=V4,
        store_timestamp=1,
        store_host=V4,
        body=b"",
        topic="T" * 127,
    )
    data = encode_record(record)
    longer = (len(data) + 1).to_bytes(4, "big") + data[4:88] + b"\x80T" + data[89:]

    ends = []
    for log in (data, longer):
        options = {"stop": 300, "limit": 300, "records_max": 1, "entry_head": 0, "verify_crc": True}
        taken = core.take_records(memoryview(log), START, 0, units=True, index=True, **options)
        ends.append(taken and taken[0])

    assert ends == [len(data), None]


entries_lists = st.lists(
    st.tuples(st.integers(0, 2**31 - 1) | st.integers(0, 9), st.integers(0, 9), st.integers(0, 3_000)),
    max_size=30,
)


@given(entries_lists, st.integers(1, 7), st.integers(2, 20), st.data())
@examples(500)
def test_index_entries_are_put_as_by_python(
    steps: list[tuple[int, int, int]], slots: int, units: int, data: st.DataObject
) -> None:
    files = [bytearray(file_size(slots, units)) for _ in range(2)]
    tables = [IndexTable(file, slots, units) for file in files]
    room = data.draw(st.integers(0, units))
    offset, entries = 0, []
    for key_hash, distance, timestamp in steps:
        offset = max(offset + distance - 2, 0)
        entries.append((key_hash, offset, timestamp))

    done = tables[0].put_entries(b"".join(ENTRY.pack(*entry) for entry in entries), 0, room)

    expected = 0
    for key_hash, offset, timestamp in entries:
        if offset >= tables[1].end_offset:
            if tables[1].next_unit >= room:
                break
            tables[1].put(key_hash, offset, timestamp)
            tables[1].write_header()
        expected += 1
    assert done == expected * ENTRY.size
    assert files[0] == files[1]
