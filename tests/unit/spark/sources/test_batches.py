"""Every column of every record is what decoding the record gives."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import MAGIC_V2, Record, SysFlag, decode_record
from brokerset_rig.made_stores import STORES, message, unpack_fixture, write_log
from brokerset_spark.sources.batches import Batches, Filter, Source
from brokerset_spark.sources.columns import (
    DAMAGE,
    EPOCH_COLUMNS,
    INDEX_COLUMNS,
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    arrow_schema,
    schema_of,
    with_text_properties,
)
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.reading import Chunk, Outcome, read_range, split
from brokerset_spark.stores.tail import bound_of

ALL = Filter(system_topics=True)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FULL = arrow_schema(schema_of(MESSAGE_COLUMNS))


def chunks(store: Path, piece: int = 1 << 16) -> Iterator[tuple[str, Chunk]]:
    folder = LocalFolder(store)
    facts = look(folder)
    bound = bound_of(folder, facts, mode="end").offset
    for log, entries in ((facts.commit_log, False), (facts.ledger, True)):
        for wanted in split(log.files, 1 << 20, entries=entries, bound=bound):
            for chunk in read_range(folder, wanted, Outcome(0, 0), piece=piece):
                yield wanted.path, chunk


def time_of(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def row_of(record: Record, data: bytes, file: str) -> dict[str, Any]:
    properties = decode_properties(record.properties)
    return {
        "topic": record.topic,
        "flag": record.flag,
        "body": record.body,
        "properties": properties,
        "brokerName": "broker-x",
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "bornTimestamp": time_of(record.born_timestamp),
        "storeTimestamp": time_of(record.store_timestamp),
        "commitLogOffset": record.offset,
        "storeSize": len(data),
        "bodyCRC": record.body_crc,
        "sysFlag": record.sys_flag,
        "bornHost": record.born_host.text,
        "storeHost": record.store_host.text,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "epoch": None if record.offset < 500 else 3 if record.offset < 5000 else 7,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "msgId": properties.get("UNIQ_KEY"),
        "offsetMsgId": encode_offset_id(record.store_host, record.offset),
        "file": file,
    }


def compare(store: Path) -> int:
    count = 0
    for file, chunk in chunks(store):
        source = Source(file, "broker-x", ((3, 500), (7, 5000)))
        batch = Batches(FULL, source, ALL).build(chunk)
        assert batch is not None
        batch.validate(full=True)
        rows = batch.to_pylist(maps_as_pydicts="strict")
        for row, start, size in zip(rows, chunk.starts.tolist(), chunk.sizes.tolist(), strict=True):
            data = chunk.data[start : start + size].tobytes()
            assert row == row_of(decode_record(data), data, file)
            count += 1
    return count


@pytest.mark.parametrize(("archive", "broker"), STORES)
def test_records_of_java(tmp_path: Path, archive: str, broker: str) -> None:
    """Records that the Java broker wrote."""
    assert compare(unpack_fixture(tmp_path, archive) / broker / "store") > 600


def test_made_records(tmp_path: Path) -> None:
    """Both record versions, IPv6 hosts, empty parts, properties that need care."""
    odd = [
        b"",
        b"\x02",
        b"\x01\x02",
        b"a\x01\x02",
        b"\x01b\x02",
        b"TAGS\x01last",
        b"K\x01v",
        b"\x02\x02K\x01v\x02",
        b"TAGS\x01one\x02TAGS\x01two\x02",
        b"TAGS\x01one\x02TAGS\x01\x02",
        b"a\x01b\x01c\x02",
        b"KEYS",
        "grün\x01weiß\x02KEYS\x01ä b\x02".encode(),
        b"x\x01\xff\xfe\x02TAGS\x01ok\x02",
        b"\x02K\x01v\x02TAGS\x01\xc3",
        b"".join(b"n%d\x01v%d\x02" % (n, n) for n in range(300)),
    ]
    records = [message(n, properties=properties) for n, properties in enumerate(odd)]
    records += [message(n, body=b"") for n in range(20)]
    records += [message(n, topic="t" * 200, magic=MAGIC_V2) for n in range(20)]
    records += [message(n, reconsume_times=n, prepared_transaction_offset=n << 40) for n in range(20)]
    for entries in (False, True):
        store = tmp_path / str(entries)
        write_log(store, records, file_size=1 << 14, entries=entries)
        assert compare(store) == len(records)


def built(store: Path, names: list[str], wanted: Filter = ALL, **options: Any) -> list[dict[str, Any]]:
    columns = with_text_properties(MESSAGE_COLUMNS) if options.pop("text", False) else MESSAGE_COLUMNS
    schema = arrow_schema(schema_of((*columns, DAMAGE), names))
    rows: list[dict[str, Any]] = []
    for file, chunk in chunks(store):
        batch = Batches(schema, Source(file), wanted, **options).build(chunk)
        rows += batch.to_pylist() if batch is not None else []
    return rows


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    """Columns come in the asked order, and properties as text if asked."""
    records = [message(n) for n in range(10)]
    write_log(tmp_path, records)

    rows = built(tmp_path, ["properties", "queueId", "damage"], text=True)

    assert [list(row) for row in rows] == [["properties", "queueId", "damage"]] * 10
    assert [row["properties"].encode() for row in rows] == [each.properties for each in records]
    assert {row["damage"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (Filter(), lambda r: not r.topic.startswith("%")),
        (Filter(topics=("orders", "%RETRY%group")), lambda r: r.topic in ("orders", "%RETRY%group")),
        (Filter(topic_pattern="[op].*s"), lambda r: r.topic in ("orders", "payments")),
        (Filter(queue_ids=(1, 3), system_topics=True), lambda r: r.queue_id in (1, 3)),
        (
            Filter(start_ms=1_795_000_000_103, end_ms=1_795_000_000_203, system_topics=True),
            lambda r: 1_795_000_000_103 <= r.store_timestamp < 1_795_000_000_203,
        ),
        (Filter(start_offset=1000, end_offset=5000, system_topics=True), lambda r: 1000 <= r.offset < 5000),
        (
            Filter(queue_starts=(("orders", 0, 4),), queue_ends=(("payments", 1, 6),), system_topics=True),
            lambda r: (
                (r.topic != "orders" or r.queue_offset >= 4) and (r.topic != "payments" or r.queue_offset < 6)
            ),
        ),
        (Filter(topics=("nothing",)), lambda r: False),
    ],
)
def test_filters(tmp_path: Path, wanted: Filter, holds: Any) -> None:
    """A filter keeps exactly the messages that it describes."""
    places = write_log(tmp_path, [message(n) for n in range(80)])

    rows = built(tmp_path, ["commitLogOffset"], wanted)

    assert [row["commitLogOffset"] for row in rows] == [p.offset for p in places if holds(p.record)]


DAY_MS = 86_400_000
TIMES = (0, DAY_MS - 1, DAY_MS, -1, 40 * DAY_MS + 5, 2**63 // 1000, -(2**63), 2**63 // 1000 - 1)
"""Around the ends of days, before 1970, and such that Spark cannot hold: three of them."""


@pytest.mark.parametrize(("times", "topics"), [(TIMES, 3), (TIMES, 1), (TIMES[:2], 3), (TIMES[:2], 1)])
def test_records_apart_by_topic_and_day(tmp_path: Path, times: tuple[int, ...], topics: int) -> None:
    """Each wanted record is in the part of its topic and day, in the order of the log, and in no other."""
    records = [
        message(n, topic=f"topic-{n % topics}", queue_id=n % 2, store_timestamp=times[n % len(times)])
        for n in range(48)
    ]
    places = write_log(tmp_path, records)
    wanted = Filter(queue_ids=(1,), topics=("topic-0", "topic-1"))
    schema = arrow_schema(schema_of(MESSAGE_COLUMNS, ["topic", "storeTimestamp", "commitLogOffset"]))
    batches = Batches(schema, Source(""), wanted)
    expected: dict[tuple[str, int | None], list[int]] = {}
    for place in places:
        time = place.record.store_timestamp
        day = time // DAY_MS if abs(time) <= 2**63 // 1000 - 1 else None
        if place.record.queue_id == 1 and place.record.topic in wanted.topics:
            expected.setdefault((place.record.topic, day), []).append(place.offset)

    found: dict[tuple[str, int | None], list[int]] = {}
    for _, chunk in chunks(tmp_path):
        for topic, day, part in batches.by_topic_and_day(chunk):
            batch = batches.build_all(part)
            assert set(batch.column("topic").to_pylist()) == {topic}
            assert (batch.column("storeTimestamp").null_count == len(batch)) is (day is None)
            found.setdefault((topic, day), []).extend(batch.column("commitLogOffset").to_pylist())

    assert found == expected


def compressed(body: bytes, codec: str) -> bytes:
    if codec == "zlib":
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def test_epochs(tmp_path: Path) -> None:
    """A record belongs to the epoch that starts with it; those before the first epoch to none."""
    places = write_log(tmp_path, [message(n) for n in range(9)])
    epochs = ((2, places[3].offset), (5, places[6].offset))
    schema = arrow_schema(schema_of(MESSAGE_COLUMNS, ["epoch"]))

    ((_, chunk),) = chunks(tmp_path)
    batch = Batches(schema, Source("", None, epochs), ALL).build(chunk)

    assert batch is not None
    assert batch.column("epoch").to_pylist() == [None] * 3 + [2] * 3 + [5] * 3


def test_opened_bodies(tmp_path: Path) -> None:
    """Bodies of all compressions are opened if asked for; others stay as they are."""
    body = b"hello " * 1000
    kinds = [
        (body, 0),
        (compressed(body, "zlib"), SysFlag.COMPRESSED),
        (compressed(body, "zlib"), SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB),
        (compressed(body, "lz4"), SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4),
        (compressed(body, "zstd"), SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD),
        (body, SysFlag.COMPRESSION_ZSTD),
    ]
    records = [message(n, body=stored, sys_flag=flag) for n, (stored, flag) in enumerate(kinds)]
    write_log(tmp_path, records, file_size=1 << 15)

    assert [row["body"] for row in built(tmp_path, ["body"], open_bodies=True)] == [body] * 6
    assert [row["body"] for row in built(tmp_path, ["body"])] == [stored for stored, _ in kinds]


@pytest.mark.parametrize("kind", [0, SysFlag.COMPRESSION_LZ4, SysFlag.COMPRESSION_ZSTD, 0x400])
def test_bodies_that_cannot_be_opened(tmp_path: Path, kind: int) -> None:
    """A body that is not what its flag says is named by its offset."""
    places = write_log(
        tmp_path, [message(0), message(1, body=b"no such format", sys_flag=SysFlag.COMPRESSED | kind)]
    )

    with pytest.raises(ValueError, match=f"body of the record at {places[1].offset}"):
        built(tmp_path, ["body"], open_bodies=True)


def test_times_that_spark_cannot_hold(tmp_path: Path) -> None:
    """A producer's clock may say anything: what is no time of Spark's is null, and disturbs nobody."""
    write_log(tmp_path, [message(n, born_timestamp=time) for n, time in enumerate((2**62, -(2**63), 0, 5))])

    rows = built(tmp_path, ["bornTimestamp"])

    assert [row["bornTimestamp"] for row in rows] == [None, None, EPOCH, time_of(5)]


def test_row_of_damage() -> None:
    """A damaged range is a row with its place and reason, and null in the columns of messages."""
    schema = arrow_schema(schema_of((*MESSAGE_COLUMNS, DAMAGE)))

    (row,) = Batches(schema, Source("commitlog/0", "broker-a"), ALL).damage(100, 350, "bad-crc").to_pylist()

    assert {name: value for name, value in row.items() if value is not None} == {
        "commitLogOffset": 100,
        "storeSize": 250,
        "brokerName": "broker-a",
        "file": "commitlog/0",
        "damage": "bad-crc",
    }


@pytest.mark.parametrize(
    "columns",
    [MESSAGE_COLUMNS, with_text_properties(MESSAGE_COLUMNS), QUEUE_COLUMNS, EPOCH_COLUMNS, INDEX_COLUMNS],
)
def test_schemas_are_those_that_spark_expects(columns: Any) -> None:
    """Spark compares the first batch of a task with this schema."""
    schema = schema_of(columns)

    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))
