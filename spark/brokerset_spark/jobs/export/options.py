"""What an export takes, and which exports are the same. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.columns import MESSAGE_COLUMNS, Column
from brokerset_spark.stores.tail import TailBound

Compression = Literal["zstd", "snappy", "lz4", "gzip", "none"]
COMPRESSIONS: Final[tuple[Compression, ...]] = ("zstd", "snappy", "lz4", "gzip", "none")

OnCorrupt = Literal["fail", "skip"]

SPLIT_SIZE: Final = 512 << 20
"""Bytes of the log in one task: half a file of the usual size, so that files of Parquet are not too small."""

SPLIT_SIZE_MIN: Final = 1 << 16

TOPIC: Final = "topic"
"""The column that is the name of a folder and not in the files: readers that find it in both refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Which messages, and how they are written."""

    topics: tuple[str, ...] = ()
    """All but those of the system if empty."""

    topic_pattern: str = ""
    system_topics: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    """Store times in `[start_ms, end_ms)`."""

    start_offset: int | None = None
    end_offset: int | None = None
    """Offsets of the log: records that begin in `[start_offset, end_offset)`."""

    columns: tuple[str, ...] = ()
    """All if empty."""

    decompress: bool = False
    compression: Compression = "zstd"
    on_corrupt: OnCorrupt = "fail"
    verify_crc: bool = True
    broker_name: str | None = None
    split_size: int = SPLIT_SIZE
    tail_bound: TailBound = "auto"
    confirmed_offset: int | None = None
    bytes_per_second: int = 0
    """Of one task; 0 for no limit."""

    def problems(self) -> list[str]:
        """What is wrong with them; a sentence for each."""
        found = []
        known = {each.name.lower() for each in MESSAGE_COLUMNS}
        unknown = [name for name in self.columns if name.lower() not in known]
        if unknown:
            there = ", ".join(each.name for each in MESSAGE_COLUMNS)
            found.append(f"there is no column {', '.join(unknown)}; there are {there}")
        if len({name.lower() for name in self.columns}) < len(self.columns):
            found.append("a column is named twice")
        if self.columns and {name.lower() for name in self.columns} == {TOPIC}:
            found.append(
                "topic alone is no column of a file, it is the name of a folder; give another one as well"
            )
        if self.topics and self.topic_pattern:
            found.append("give topics or a pattern, not both")
        if self.start_ms is not None and self.end_ms is not None and self.start_ms > self.end_ms:
            found.append("the time range ends before it begins")
        if (
            self.start_offset is not None
            and self.end_offset is not None
            and self.start_offset > self.end_offset
        ):
            found.append("the range of offsets ends before it begins")
        if self.split_size < SPLIT_SIZE_MIN:
            found.append(f"a split of {self.split_size} bytes; {SPLIT_SIZE_MIN} is the least")
        return found

    @property
    def wanted(self) -> Filter:
        """Which messages."""
        return Filter(
            topics=self.topics,
            topic_pattern=self.topic_pattern,
            system_topics=self.system_topics,
            start_offset=self.start_offset or 0,
            end_offset=2**63 - 1 if self.end_offset is None else self.end_offset,
            start_ms=-(2**63) if self.start_ms is None else self.start_ms,
            end_ms=2**63 - 1 if self.end_ms is None else self.end_ms,
        )

    @property
    def file_columns(self) -> tuple[Column, ...]:
        """The columns of the files, in the order of the names."""
        by_name = {each.name.lower(): each for each in MESSAGE_COLUMNS}
        names = self.columns or tuple(each.name for each in MESSAGE_COLUMNS)
        return tuple(by_name[name.lower()] for name in names if name.lower() != TOPIC)

    def content(self) -> dict[str, Any]:
        """What decides about the content of the files, as the manifest has it."""
        return {
            "topics": list(self.topics),
            "topicPattern": self.topic_pattern,
            "includeSystemTopics": self.system_topics,
            "startingTimestamp": self.start_ms,
            "endingTimestamp": self.end_ms,
            "startingOffset": self.start_offset,
            "endingOffset": self.end_offset,
            "columns": [each.name for each in self.file_columns],
            "decompress": self.decompress,
            "compression": self.compression,
            "onCorrupt": self.on_corrupt,
            "verifyCrc": self.verify_crc,
            "brokerName": self.broker_name,
        }

    def shape(self) -> dict[str, Any]:
        """What must be the same in all parts of one dataset."""
        names = ("topics", "topicPattern", "includeSystemTopics", "columns", "decompress")
        return {name: value for name, value in self.content().items() if name in names}

    def to_row(self) -> dict[str, Any]:
        """As JSON values, for tasks."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ExportOptions:
        """The reverse of `to_row`."""
        return cls(**{**row, "topics": tuple(row["topics"]), "columns": tuple(row["columns"])})
