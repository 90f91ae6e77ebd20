"""Copies of stores for tests that damage them: where each record and its fields are, and what `verify` says."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brokerset_formats.properties import decode_properties
from brokerset_formats.records import MAGIC_V1, Record, decode_record
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify

Said = list[tuple[str, str, int | None]]
"""Code, file and offset of findings."""


@dataclass(frozen=True)
class Found:
    """A record of a store, and where it is in its file."""

    path: str
    position: int
    record: Record

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.record.properties)

    @property
    def fields(self) -> dict[str, tuple[int, int]]:
        """Position in the file and length of each field, by name, as the table of the format has them."""
        record, found, at = self.record, dict[str, tuple[int, int]](), self.position
        for name, size in (
            ("size", 4), ("magic", 4), ("crc", 4), ("queueId", 4), ("flag", 4), ("queueOffset", 8),
            ("physicalOffset", 8), ("sysFlag", 4), ("bornTimestamp", 8),
            ("bornHost", 20 if record.born_host.v6 else 8), ("storeTimestamp", 8), ("storeHost", 8),
            ("reconsumeTimes", 4), ("preparedOffset", 8), ("bodyLength", 4), ("body", len(record.body)),
            ("topicLength", 1), ("topic", len(record.topic)), ("propertiesLength", 2),
            ("properties", len(record.properties)),
        ):  # fmt: skip
            found[name] = (at, size)
            at += size
        assert at == self.position + record.size
        return found


def said_in(report: Report) -> Said:
    return [(each.code, each.file, each.offset) for each in report.findings]


@dataclass(frozen=True)
class StoreCopy:
    """A store that may be damaged."""

    root: Path

    @classmethod
    def of(cls, store: Path, target: Path) -> StoreCopy:
        """A copy of this one; what was at the target goes."""
        shutil.rmtree(target, ignore_errors=True)
        return cls(Path(shutil.copytree(store, target)))

    def read(self, path: str, position: int, size: int) -> bytes:
        with (self.root / path).open("rb") as file:
            file.seek(position)
            return file.read(size)

    def write(self, path: str, position: int, data: bytes) -> None:
        with (self.root / path).open("r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, path: str, position: int, bit: int) -> None:
        (byte,) = self.read(path, position, 1)
        self.write(path, position, bytes([byte ^ 1 << bit]))

    def check(self, range_bytes: int = 1 << 26) -> Report:
        return verify(LocalRunner(), str(self.root), VerifyOptions(range_bytes=range_bytes))

    def said(self, range_bytes: int = 1 << 26) -> Said:
        return said_in(self.check(range_bytes))

    def records(self) -> Iterator[Found]:
        for file in sorted((self.root / "commitlog").iterdir()):
            data, position = file.read_bytes(), 0
            while struct.unpack_from(">I", data, position + 4)[0] == MAGIC_V1:
                size = struct.unpack_from(">i", data, position)[0]
                record = decode_record(data[position : position + size])
                yield Found(f"commitlog/{file.name}", position, record)
                position += size
