"""Compiled and pure kernels give the same for whatever a log may hold, and agree with the formats library."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, LedgerEntry, decode_entry
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31, java_hash
from brokerset_formats.hosts import Host
from brokerset_formats.properties import find_property
from brokerset_formats.records import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Blank,
    Record,
    RecordError,
    RecordProblem,
    check_record,
    decode_record,
    encode_record,
)
from brokerset_rig.both_kernels import COMPILED, PURE, EitherKernels
from brokerset_spark.kernels import Stop, Texts
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.sources import gathering

pytestmark = pytest.mark.long

pure, compiled = PURE, COMPILED

IPV6 = Host.from_text("fd00::7", 10911)
IPV4 = Host.from_text("10.0.0.1", 54321)
TOPICS = ["T", "TopicTest", "Täglich", "😀", "%RETRY%" + "g" * 120]
PROPERTIES = [
    b"",
    b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02",
    b"TAGS\x01a\x02TAGS\x01b\x02",
    b"TAGS\x01last",
    b"\x01x\x02TAGS\x02TAGS\x01\x02XTAGS\x01no\x02",
    "TAGS\x01größe😀\x02".encode(),
    b"TAGS\x01\xff\xed\xa0\x80\xf0\x9f\x02",
]


@dataclass(frozen=True)
class Piece:
    """What becomes one record of a log."""

    magic: int
    topic: str
    properties: bytes
    born: Host
    store: Host
    body: bytes
    copies: str
    """`record`, `log`: the body is a copy of the record before, or of all that was written before."""

    bad_crc: bool
    property_crc: bool
    empty_entry: int = 0
    """In a DLedger: magic of an entry without message instead of the record; 0 for none."""


pieces = st.builds(
    Piece,
    magic=st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]),
    topic=st.sampled_from(TOPICS),
    properties=st.sampled_from(PROPERTIES),
    born=st.sampled_from([IPV4, IPV6]),
    store=st.sampled_from([IPV4, IPV6]),
    body=st.one_of(
        st.just(b""),
        st.binary(max_size=40),
        st.integers(0, 400).map(bytes),
        st.just(b"\xda\xa3\x20\xa7" * 30),
    ),
    copies=st.sampled_from(["", "", "", "record", "log"]),
    bad_crc=st.sampled_from([False] * 15 + [True]),
    property_crc=st.booleans(),
    empty_entry=st.sampled_from([0] * 7 + [2, 3]),
)
bases = st.sampled_from([0, 4096, 1 << 30, (1 << 62) + 1, 2**63 - 2000, 2**63, 10**20 - 1])
tails = st.sampled_from(["", "blank", "zeros", "torn", "noise", "marks"])
damages = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 200), st.integers(1, 255)), max_size=3)


def tail(kind: str, before: bytes) -> bytes:
    """What stands behind the last record."""
    match kind:
        case "blank":
            return BLANK.pack(300, MAGIC_BLANK) + before[:292]
        case "zeros":
            return bytes(300)
        case "torn":
            return before[: len(before) // 2]
        case "noise":
            return bytes(range(1, 200))
        case "marks":
            return b"\xda\xa3\x20\xa7\xda\xa3\x20\xab\0\0\0\1" * 20
        case _:
            return b""


def as_record(piece: Piece, number: int, offset: int, before: bytes, last: bytes) -> bytes:
    body = {"record": last, "log": before[:3000]}.get(piece.copies, piece.body)
    record = Record(
        magic=piece.magic,
        queue_id=number % 4,
        flag=number - 2,
        queue_offset=number * 7,
        offset=offset & (2**63 - 1),
        sys_flag=0x0C0,
        born_timestamp=1_700_000_000_000 + number,
        born_host=piece.born,
        store_timestamp=1_700_000_000_123 + number,
        store_host=piece.store,
        reconsume_times=number % 3,
        prepared_transaction_offset=number,
        body=body,
        topic=piece.topic,
        properties=piece.properties,
        body_crc=12345 if piece.bad_crc else crc31(body),
    )
    return encode_record(record, property_crc=piece.property_crc)


def with_damage(data: bytearray, starts: list[int], wanted: list[tuple[int, int, int]]) -> Bytes:
    """Bytes changed near the beginnings of records, where the lengths are."""
    for where, further, change in wanted:
        place = (starts[where % len(starts)] if starts else 0) + further
        if place < len(data):
            data[place] ^= change
    return np.frombuffer(bytes(data), np.uint8)


@st.composite
def logs(draw: st.DrawFn) -> tuple[Bytes, int]:
    """A commit log, perhaps damaged, and the offset of its first byte."""
    base, data, starts, last = draw(bases), bytearray(), list[int](), b""
    for number, piece in enumerate(draw(st.lists(pieces, max_size=14))):
        starts.append(len(data))
        last = as_record(piece, number, base + len(data), bytes(data), last)
        data += last
    data += tail(draw(tails), bytes(data))
    return with_damage(data, starts, draw(damages)), base


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[Bytes, int]:
    """The same of a DLedger."""
    base, data, starts, last = draw(bases), bytearray(), list[int](), b""
    index = draw(st.sampled_from([0, 7, 2**63 - 10]))
    for number, piece in enumerate(draw(st.lists(pieces, max_size=14))):
        starts.append(len(data))
        last = as_record(piece, number, base + len(data) + ENTRY_HEAD_SIZE, bytes(data), last)
        position = (base + len(data)) & (2**63 - 1)
        body = last if not piece.empty_entry else piece.body
        entry = LedgerEntry(
            (index + number) & (2**63 - 1), number // 4, position, body, piece.empty_entry or 1
        )
        data += entry.encode()
    end = draw(tails)
    data += struct.pack(">ii", -1, 300) + bytes(292) if end == "blank" else tail(end, bytes(data))
    return with_damage(data, starts, draw(damages)), base


def assert_same(first: Iterable[Any], second: Iterable[Any]) -> None:
    for one, other in zip(first, second, strict=True):
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist()
        else:
            assert one == other
            assert type(one) is type(other)


@given(logs(), st.data(), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_walk(log: tuple[Bytes, int], choices: st.DataObject, final: bool, crc: bool) -> None:
    """Both find the same records and stop at the same place for the same reason, from wherever they begin."""
    data, base = log
    start = choices.draw(
        st.sampled_from([0, 0, *pure.walk(data, 0, len(data), base, final=False, crc=False).starts.tolist()])
    )
    end = choices.draw(st.sampled_from([len(data), len(data) // 2, len(data) + 1000, 0]))

    expected = pure.walk(data, start, end, base, final=final, crc=crc)

    assert_same(compiled.walk(data, start, end, base, final=final, crc=crc), expected)


@given(logs())
@settings(max_examples=300)
def test_walk_accepts_what_the_formats_accept(log: tuple[Bytes, int]) -> None:
    """The walk ends where `check_record` sees no record, or at a wrong offset or CRC."""
    data, base = log
    raw, position, starts, stop = data.tobytes(), 0, list[int](), Stop.RANGE_END
    while position < len(raw):
        head = check_record(raw, position, len(raw), verify_crc=False)
        if isinstance(head, Blank):
            stop = Stop.BLANK
            break
        if isinstance(head, RecordProblem):
            stop = Stop.EMPTY if head.is_empty or len(raw) - position < 8 else Stop.BAD_LENGTHS
            break
        if head.offset != base + position:
            stop = Stop.BAD_OFFSET
            break
        right = check_record(raw, position, len(raw), verify_crc=True)
        if isinstance(right, RecordProblem) and "CRC" in right.reason:
            stop = Stop.BAD_CRC
            break
        starts.append(position)
        position += head.size

    for kernels in (pure, compiled):
        found = kernels.walk(data, 0, len(data), base, final=True, crc=True)

        lengths = {Stop.BAD_MAGIC, Stop.BAD_SIZE, Stop.BAD_LENGTHS}
        assert found.starts.tolist() == starts
        assert found.position == position
        assert found.stop is stop or (stop is Stop.BAD_LENGTHS and found.stop in lengths)


@given(logs())
@settings(max_examples=300)
def test_heads(log: tuple[Bytes, int]) -> None:
    """Both take the same out of a record, and it is what `decode_record` has."""
    data, base = log
    starts = pure.walk(data, 0, len(data), base, final=False, crc=False).starts

    found = compiled.heads(data, starts)

    assert_same(found, pure.heads(data, starts))
    raw = data.tobytes()
    for number, start in enumerate(starts.tolist()):
        try:
            record = decode_record(raw, start)
        except RecordError:
            continue  # damage made a topic that is no text
        row = {name: int(column[number]) for name, column in found._asdict().items()}
        assert raw[row["body"] :][: row["body_size"]] == record.body
        assert raw[row["topic"] :][: row["topic_size"]] == record.topic.encode()
        assert raw[row["properties"] :][: row["properties_size"]] == record.properties
        assert Host.decode(raw, row["born_host"], bool(row["sys_flag"] & 0x10)) == record.born_host
        assert Host.decode(raw, row["store_host"], bool(row["sys_flag"] & 0x20)) == record.store_host
        assert row["body_crc"] & 0xFFFFFFFF == record.body_crc
        for name in (
            "queue_id", "flag", "queue_offset", "offset", "sys_flag", "born_timestamp", "store_timestamp",
            "reconsume_times", "prepared_transaction_offset",
        ):  # fmt: skip
            assert row[name] == getattr(record, name), name


@given(logs(), st.lists(st.integers(-5, 3000), max_size=5))
@settings(max_examples=200)
def test_heads_of_anything(log: tuple[Bytes, int], wanted: list[int]) -> None:
    """Where no record is, both refuse or both read the same; nothing outside is read."""
    data, starts = log[0], np.array(wanted, np.int64)
    try:
        expected = pure.heads(data, starts)
    except ValueError:
        with pytest.raises(ValueError, match="does not fit the buffer"):
            compiled.heads(data, starts)
    else:
        assert_same(compiled.heads(data, starts), expected)


@given(logs(), st.sampled_from([b"TAGS", b"KEYS", b"T", b"", b"\x01", b"TAGS\x01a"]))
@settings(max_examples=200)
def test_properties(log: tuple[Bytes, int], name: bytes) -> None:
    """Both find the same value of a property, and it hashes as Java does it."""
    data, base = log
    starts = pure.walk(data, 0, len(data), base, final=False, crc=False).starts
    heads = pure.heads(data, starts)

    found = compiled.find_property(data, heads, name)
    hashes = compiled.java_hashes(data, found)

    assert_same(found, pure.find_property(data, heads, name))
    assert hashes.dtype == np.int32
    for number in range(len(starts)):
        start, size = int(found.starts[number]), int(found.sizes[number])
        text = data[start : start + size].tobytes().decode(errors="replace") if start >= 0 else ""
        assert hashes[number] == java_hash(text)


@given(st.lists(st.sampled_from([b"TAGS", b"\x01", b"\x02", b"v", b"T"]), max_size=12).map(b"".join))
@settings(max_examples=300)
def test_last_value(raw: bytes) -> None:
    """Of bytes of any shape: the value of the last chunk with the name, as a Java map has it."""
    data = np.frombuffer(b"xx" + raw + b"TAGS\x01outside\x02", np.uint8)
    empty = pure.heads(np.empty(0, np.uint8), np.empty(0, np.int64))
    heads = empty._replace(properties=np.array([2], np.int64), properties_size=np.array([len(raw)], np.int32))
    expected = b""
    for chunk in raw.split(b"\x02"):
        key, mark, value = chunk.partition(b"\x01")
        expected = value if key == b"TAGS" and mark and value else expected

    for kernels in (pure, compiled):
        texts = kernels.find_property(data, heads, b"TAGS")
        start, size = int(texts.starts[0]), int(texts.sizes[0])
        assert (data[start : start + size].tobytes() if start >= 0 else b"") == expected
        if raw.count(b"TAGS") == 1:
            assert (find_property(raw, b"TAGS") or b"") == expected


RAW_PROPERTIES = st.one_of(
    st.sampled_from(PROPERTIES),
    st.lists(
        st.sampled_from([b"TAGS", b"KEYS", b"\x01", b"\x02", b"v", b"T", b"long value", b"\x80\x82\x03"]),
        max_size=24,
    ).map(b"".join),
    st.integers(60, 70).map(lambda count: b"".join(b"n%d\x01v\x02" % number for number in range(count))),
)


def texts_of(raws: list[bytes]) -> tuple[Bytes, Texts]:
    """Data that hold these texts between other bytes."""
    data = b""
    starts = []
    for raw in raws:
        data += b"\x01x"
        starts.append(len(data))
        data += raw
    sizes = np.array([len(raw) for raw in raws], np.int32)
    return np.frombuffer(data + b"T\x01v", np.uint8), Texts(np.array(starts, np.int64), sizes)


@given(
    st.lists(RAW_PROPERTIES, max_size=6),
    st.lists(st.sampled_from([b"TAGS", b"KEYS", b"T", b"", b"n1", b"TA\x01", b"TAGSTAGS"]), max_size=4),
)
@settings(max_examples=400)
def test_several_properties(raws: list[bytes], names: list[bytes]) -> None:
    """In one pass each name is found where a search for it alone finds it, by both kernels."""
    data, texts = texts_of(raws)
    empty = pure.heads(np.empty(0, np.uint8), np.empty(0, np.int64))
    heads = empty._replace(properties=texts.starts, properties_size=texts.sizes)

    found = compiled.find_properties(data, heads, names)

    assert len(found) == len(names)
    for name, each, same in zip(names, found, pure.find_properties(data, heads, names), strict=True):
        assert_same(each, pure.find_property(data, heads, name))
        assert_same(same, each)
        assert_same(compiled.find_property(data, heads, name), each)


@given(st.lists(RAW_PROPERTIES, max_size=6))
@settings(max_examples=400)
def test_split_properties(raws: list[bytes]) -> None:
    """Both give all whole pairs in their order, and say when a name may be there twice."""
    data, texts = texts_of(raws)

    for kernels in (pure, compiled):
        found = kernels.split_properties(data, texts.starts, texts.sizes)

        repeated = False
        assert len(found.offsets) == len(raws) + 1
        for number, raw in enumerate(raws):
            pairs = [chunk.partition(b"\x01")[::2] for chunk in raw.split(b"\x02")]
            wanted = [pair for pair in pairs if all(pair)]
            got = [
                (
                    found.names[found.name_offsets[at] : found.name_offsets[at + 1]].tobytes(),
                    found.values[found.value_offsets[at] : found.value_offsets[at + 1]].tobytes(),
                )
                for at in range(found.offsets[number], found.offsets[number + 1])
            ]
            assert got == wanted
            repeated |= len(dict(wanted)) < len(wanted) or len(wanted) > 64
        assert found.repeated is repeated


@given(st.lists(RAW_PROPERTIES, max_size=6))
@settings(max_examples=300)
def test_property_maps(raws: list[bytes]) -> None:
    """A record's map in a frame is that of the formats library, whatever its properties are."""
    kind = pa.map_(pa.string(), pa.string())

    sizes = np.array([len(each) for each in raws], np.int32)
    texts = Texts(8 + np.cumsum(sizes, dtype=np.int64) - sizes, sizes)
    flat = np.frombuffer(b"left out" + b"".join(raws), np.uint8)
    maps = gathering.property_maps(flat, texts, kind)
    maps.validate(full=True)

    assert len(maps) == len(raws)
    for raw, got in zip(raws, maps.to_pylist(), strict=True):
        wanted: dict[str, str] = {}
        for chunk in raw.split(b"\x02"):
            name, _, value = chunk.partition(b"\x01")
            if name and value:
                wanted.pop(name.decode(errors="replace"), None)
                wanted[name.decode(errors="replace")] = value.decode(errors="replace")
        assert got == list(wanted.items())


@pytest.mark.parametrize("kernels", [pure, compiled])
@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, -1), (0, 11), (9, 2)])
def test_split_outside(kernels: EitherKernels, start: int, size: int) -> None:
    """A text that leaves the data is refused and not read."""
    data = np.zeros(10, np.uint8)

    with pytest.raises(ValueError, match="text 1 does not fit"):
        kernels.split_properties(data, np.array([0, start], np.int64), np.array([1, size], np.int32))


@given(
    st.lists(st.one_of(st.binary(max_size=8), st.text(max_size=5).map(str.encode)), max_size=4).map(b"".join)
)
@settings(max_examples=500)
def test_hash_of_any_bytes(raw: bytes) -> None:
    """What is no UTF-8 becomes as many U+FFFD as Python's decoder makes of it."""
    data = np.frombuffer(b"\x80" + raw + b"\x80", np.uint8)
    texts = Texts(np.array([1, -1], np.int64), np.array([len(raw), 3], np.int32))

    expected = [java_hash(raw.decode(errors="replace")), 0]

    assert compiled.java_hashes(data, texts).tolist() == expected
    assert pure.java_hashes(data, texts).tolist() == expected


@given(logs(), st.data())
@settings(max_examples=200)
def test_resync(log: tuple[Bytes, int], choices: st.DataObject) -> None:
    """Both find the same first sure record in any range of any log."""
    data, base = log
    start = choices.draw(st.integers(0, len(data) + 3))
    end = choices.draw(st.sampled_from([len(data), len(data) + 10, start + 100]))

    assert compiled.resync(data, start, end, base) == pure.resync(data, start, end, base)


@given(ledgers(), st.data())
@settings(max_examples=200)
def test_resync_entries(log: tuple[Bytes, int], choices: st.DataObject) -> None:
    """The same for entries."""
    data, base = log
    start = choices.draw(st.integers(0, len(data) + 3))
    end = choices.draw(st.sampled_from([len(data), len(data) + 10, start + 100]))

    assert compiled.resync_entries(data, start, end, base) == pure.resync_entries(data, start, end, base)


@given(ledgers(), st.data(), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_walk_entries(log: tuple[Bytes, int], choices: st.DataObject, final: bool, crc: bool) -> None:
    """Both find the same entries and stop at the same place for the same reason."""
    data, base = log
    end = choices.draw(st.sampled_from([len(data), len(data) // 2, len(data) + 1000, 0]))
    index = choices.draw(st.sampled_from([-1, -1, 0, 7, 2**63 - 10, 2**64]))

    expected = pure.walk_entries(data, 0, end, base, index=index, final=final, crc=crc)

    assert_same(compiled.walk_entries(data, 0, end, base, index=index, final=final, crc=crc), expected)


@given(ledgers())
@settings(max_examples=300)
def test_walk_entries_accepts_what_the_formats_accept(log: tuple[Bytes, int]) -> None:
    """Entries are whole for `decode_entry`, follow each other, and hold one record or none."""
    data, base = log
    raw, position, index, expected = data.tobytes(), 0, -1, list[tuple[int, int, int, int, bool]]()
    while position < len(raw):
        magic = struct.unpack_from(">i", raw.ljust(position + 4, b"\0"), position)[0]
        if magic not in (1, 2, 3):
            break
        try:  # the library knows the entries of DLedger 0.3 only, which have magic 1
            entry = decode_entry(raw[:position] + b"\0\0\0\1" + raw[position + 4 :], position)
        except FormatError:
            break
        assert isinstance(entry, LedgerEntry)
        if (
            entry.position != base + position
            or (index >= 0 and entry.index != index)
            or entry.index == 2**63 - 1
        ):
            break
        head = check_record(entry.body, 0, len(entry.body), verify_crc=False)
        is_whole = not isinstance(head, Blank | RecordProblem) and head.size == len(entry.body)
        marked = len(entry.body) >= 91 and entry.body[4:8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
        if magic == 1 and entry.body:
            if not is_whole or isinstance(head, Blank | RecordProblem):
                break
            if head.offset != base + position + ENTRY_HEAD_SIZE:
                break
        elif marked:
            break
        expected.append((position, entry.size, entry.index, entry.term, magic == 1 and bool(entry.body)))
        position, index = position + entry.size, entry.index + 1

    for kernels in (pure, compiled):
        found = kernels.walk_entries(data, 0, len(data), base, index=-1, final=True, crc=False)
        assert list(zip(*(each.tolist() for each in found[:5]), strict=True)) == expected
        assert found.position == position


@given(logs(), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 99), st.lists(st.integers(0, 20)))
@settings(max_examples=300)
def test_rewriting(log: tuple[Bytes, int], out_base: int, first: int, term: int, gaps: list[int]) -> None:
    """Both write the same entries; these are found again; back as records they are what was there."""
    data, base = log
    found = pure.walk(data, 0, len(data), base, final=False, crc=False)
    count = len(found.starts)
    gap = np.array((gaps + [0] * count)[:count], np.int64)
    sizes = found.sizes.astype(np.int64) + ENTRY_HEAD_SIZE
    positions = np.cumsum(sizes + gap) - sizes
    size = int(positions[-1] + found.sizes[-1]) + ENTRY_HEAD_SIZE if count else 0
    outs = []
    for kernels in (pure, compiled):
        out = np.full(size, 0x55, np.uint8)
        kernels.to_entries(
            data, found.starts, found.sizes, out, positions, out_base, first_index=first, term=term
        )
        outs.append(out)

    assert outs[0].tobytes() == outs[1].tobytes()
    for number, position in enumerate(positions.tolist()):
        walked = compiled.walk_entries(
            outs[0], position, position + 1, out_base, index=first + number, final=False, crc=False
        )
        assert walked.starts.tolist() == [position]
        assert walked.terms.tolist() == [term]
        assert walked.are_records.tolist() == [True]
    for kernels in (pure, compiled):
        back = data.copy()
        for start, each in zip(found.starts.tolist(), found.sizes.tolist(), strict=True):
            back[start : start + each] = 0
        kernels.to_records(
            outs[0],
            positions + ENTRY_HEAD_SIZE,
            found.sizes,
            back,
            found.starts,
            min(base, 2**63 - 1 - len(data)),
        )
        if base <= 2**63 - 1 - len(data):
            assert back.tobytes() == data.tobytes()


@given(
    st.lists(
        st.tuples(st.integers(-3, 300), st.integers(-3, 300), st.integers(-3, 400)), min_size=1, max_size=3
    ),
    st.integers(0, 300),
)
@settings(max_examples=300)
def test_rewriting_stays_inside(rows: list[tuple[int, int, int]], room: int) -> None:
    """Rows that leave either buffer are refused by both, and nothing behind the output is written."""
    data = np.arange(256, dtype=np.uint8)
    starts, sizes, positions = (np.array(each) for each in zip(*rows, strict=True))
    outcomes = []
    for kernels in (pure, compiled):
        for entries in (True, False):
            around = np.zeros(room + 64, np.uint8)
            out = around[:room]
            try:
                if entries:
                    kernels.to_entries(
                        data, starts, sizes.astype(np.int32), out, positions, 0, first_index=0, term=0
                    )
                else:
                    kernels.to_records(data, starts, sizes.astype(np.int32), out, positions, 0)
                refused = ""
            except ValueError as error:
                refused = str(error)
            assert not around[room:].any()
            outcomes.append((refused, out.tobytes()))

    assert outcomes[:2] == outcomes[2:]


@given(st.binary(max_size=3000), st.integers(0, 40), st.booleans())
@settings(max_examples=300)
def test_noise(raw: bytes, start: int, final: bool) -> None:
    """Of bytes without any order both make the same, which is next to nothing."""
    data = np.frombuffer(raw.replace(b"\x07", b"\0\0\0\x60\xda\xa3\x20\xa7\0\0\0\1"), np.uint8)
    end = len(data)

    assert_same(
        compiled.walk(data, start, end, 0, final=final, crc=True),
        pure.walk(data, start, end, 0, final=final, crc=True),
    )
    assert_same(
        compiled.walk_entries(data, start, end, 0, index=-1, final=final, crc=True),
        pure.walk_entries(data, start, end, 0, index=-1, final=final, crc=True),
    )
    assert compiled.resync(data, start, end, 0) == pure.resync(data, start, end, 0)
    assert compiled.resync_entries(data, start, end, 0) == pure.resync_entries(data, start, end, 0)
