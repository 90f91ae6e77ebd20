"""What an export takes, and which exports are the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.columns import MESSAGE_COLUMNS, Column
from brokerset_spark.stores.tail import TailBound

Compression = Literal["zstd", "snappy", "lz4", "gzip", "none"]

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
        names, known = (
            [name.lower() for name in self.columns],
            {each.name.lower() for each in MESSAGE_COLUMNS},
        )
        unknown = [name for name in self.columns if name.lower() not in known]
        there = ", ".join(each.name for each in MESSAGE_COLUMNS)
        alone = "topic alone is no column of a file, it is the name of a folder; give another one as well"
        wanted = self.wanted
        checks = (
            (unknown, f"there is no column {', '.join(unknown)}; there are {there}"),
            (len(set(names)) < len(names), "a column is named twice"),
            (set(names) == {TOPIC}, alone),
            (self.topics and self.topic_pattern, "give topics or a pattern, not both"),
            (wanted.start_ms > wanted.end_ms, "the time range ends before it begins"),
            (wanted.start_offset > wanted.end_offset, "the range of offsets ends before it begins"),
            (
                self.split_size < SPLIT_SIZE_MIN,
                f"a split of {self.split_size} bytes; {SPLIT_SIZE_MIN} is the least",
            ),
        )
        return [said for wrong, said in checks if wrong]

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
