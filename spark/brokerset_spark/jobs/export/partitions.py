"""Batches sorted into Parquet files by topic and day, with bounded memory and few open files. Their folders
have the names that Hive and all that followed it give to topics and days."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from brokerset_spark.jobs.export.options import Compression

ROW_GROUP_BYTES: Final = 64 << 20
"""Arrow bytes of a row group: what readers like, and what one of them costs."""

BUFFERED_BYTES_MAX: Final = 192 << 20
"""Arrow bytes that wait for their row group, of all files together; then the largest lot is written early."""

OPEN_FILES_MAX: Final = 128
"""Files being written; then the one that was not used for longest is finished."""

DICTIONARY_COLUMNS: Final = frozenset(
    {
        "flag",
        "brokerName",
        "queueId",
        "sysFlag",
        "bornHost",
        "storeHost",
        "reconsumeTimes",
        "epoch",
        "tags",
        "file",
    }
)
"""Columns of few values. Of `properties` the names are, too."""

NO_STATISTICS: Final = frozenset({"body", "properties"})
"""Columns whose smallest and largest values help nobody."""

DELTA_COLUMNS: Final = frozenset({"queueOffset", "bornTimestamp", "storeTimestamp", "commitLogOffset"})
"""Numbers that mostly grow: as differences (`DELTA_BINARY_PACKED`) they take half the time and a third of the
space."""

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What readers take for null."""

DAY_MS: Final = 86_400_000
NAME_SIZE_MAX: Final = 200
"""Bytes of an escaped topic; file systems allow 255 for a name, of which `topic=` needs some."""

_KEPT: Final = 160
_SAFE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = (
    (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH).days,
    (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).days,
)

_READ_BYTES: Final = 1 << 20

Key = tuple[str, int | None]


@dataclass(slots=True)
class _Part:
    """One file of a topic and day, while it is written."""

    path: str
    writer: pq.ParquetWriter
    rows: int = 0
    first: int = -1
    last: int = -1


@dataclass(slots=True)
class _Lot:
    """What waits for its row group."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    first: int = -1
    last: int = -1


class Partitions:
    """Writes below one folder; `close` finishes all files and tells what they are."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        *,
        compression: Compression,
        name: str,
        metadata: dict[str, str],
    ) -> None:
        """`schema` is that of the files and of all batches.

        `name` begins the names of files; `metadata` goes into each of them.
        """
        self._folder, self._schema, self._compression = folder, schema, compression
        self._name, self._metadata = name, metadata
        self._lots: dict[Key, _Lot] = {}
        self._open: dict[Key, _Part] = {}
        self._counts: dict[Key, int] = {}
        self._buffered = 0
        self._done: list[dict[str, Any]] = []

    def add(self, topic: str, day: int | None, batch: pa.RecordBatch, first: int, last: int) -> None:
        """Take a batch of one topic and day; `first` and `last` are offsets of its first and last record.

        It, or row groups made of it and others, may be written now or later.
        """
        key = topic, day
        lot = self._lots.setdefault(key, _Lot())
        size = batch.nbytes + 1_024
        lot.batches.append(batch)
        lot.size += size
        lot.first = first if lot.first < 0 else lot.first
        lot.last = last
        self._buffered += size
        if lot.size >= ROW_GROUP_BYTES:
            self._write(key)
        while self._buffered > BUFFERED_BYTES_MAX:
            self._write(max(self._lots, key=lambda key: self._lots[key].size))

    def close(self) -> list[dict[str, Any]]:
        """Finish everything; path below the folder, rows, bytes and digest of each file, in a fixed order."""
        for key in list(self._lots):
            self._write(key)
        for key in list(self._open):
            self._finish(key)
        return sorted(self._done, key=lambda each: each["path"])

    def abandon(self) -> None:
        """Let go of all files after an error."""
        for part in self._open.values():
            part.writer.close()
        self._open.clear()

    def _write(self, key: Key) -> None:
        lot = self._lots.pop(key)
        self._buffered -= lot.size
        part = self._open.pop(key, None) or self._begin(key)
        self._open[key] = part  # the most recently used is the last
        table = pa.Table.from_batches(lot.batches).replace_schema_metadata(part.writer.schema.metadata)
        part.writer.write_table(table, row_group_size=len(table))
        part.rows += len(table)
        part.first = lot.first if part.first < 0 else part.first
        part.last = lot.last
        while len(self._open) > OPEN_FILES_MAX:
            self._finish(next(iter(self._open)))

    def _begin(self, key: Key) -> _Part:
        topic, day = key
        number = self._counts.get(key, 0)
        self._counts[key] = number + 1
        path = f"{topic_folder(topic)}/{date_folder(day)}/{self._name}-{number:04d}.parquet"
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        schema = self._schema.with_metadata({**self._metadata, "brokerset.topic": topic})
        names = [each.name for each in schema]
        dictionaries = [name for name in names if name in DICTIONARY_COLUMNS]
        if "properties" in names and pa.types.is_map(schema.field("properties").type):
            dictionaries.append("properties.key_value.key")
        writer = pq.ParquetWriter(
            target,
            schema,
            version="2.6",
            compression=self._compression,
            compression_level=1 if self._compression == "zstd" else None,
            use_dictionary=dictionaries or False,
            column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in DELTA_COLUMNS} or None,
            write_statistics=[name for name in names if name not in NO_STATISTICS] or False,
        )
        return _Part(path, writer)

    def _finish(self, key: Key) -> None:
        part = self._open.pop(key)
        part.writer.close()
        target = self._folder / part.path
        size, digest = _synced(target)
        rows = pq.read_metadata(target).num_rows
        if rows != part.rows:
            raise OSError(
                f"{target} has {rows} rows instead of {part.rows}: the disk does not keep what is written"
            )
        topic, day = key
        date = date_folder(day).removeprefix("date=")
        self._done.append(
            {
                "path": part.path,
                "topic": topic,
                "date": date,
                "rows": part.rows,
                "bytes": size,
                "digest": f"xxh3-128:{digest}",
                "firstOffset": part.first,
                "lastOffset": part.last,
            }
        )


def _synced(path: Path) -> tuple[int, str]:
    """Bring a file to the disk; its size and digest, read back."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
        return stream.tell(), digest.hexdigest()


def topic_folder(topic: str) -> str:
    """`topic=…`: all but letters, digits, `-`, `_`, `.` as `%XX` of its UTF-8.

    A name that would be too long is cut, and ends with `~` and a digest; then only the manifest and the
    metadata of the files have the whole. Different topics never share a folder.
    """
    pieces = [_escaped(letter) for letter in topic]
    if topic == NULL or not topic.strip("."):  # names that mean something else to some reader
        pieces[:1] = [f"%{ord(topic[0]):02X}"] if topic else [NULL]
    if sum(map(len, pieces)) > NAME_SIZE_MAX:
        digest = hashlib.blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        while sum(map(len, pieces)) > _KEPT:
            pieces.pop()
        pieces.append(f"~{digest}")
    return f"topic={''.join(pieces)}"


def _escaped(letter: str) -> str:
    raw = letter.encode("utf-8", "surrogatepass")
    return letter if raw[0] in _SAFE else "".join(f"%{each:02X}" for each in raw)


def date_folder(day: int | None) -> str:
    """`date=YYYY-MM-DD` of a number of days since 1970; null for days that no calendar has."""
    if day is None or not _DAYS[0] <= day <= _DAYS[1]:
        return f"date={NULL}"
    return f"date={(_EPOCH + timedelta(days=day)).date().isoformat()}"
