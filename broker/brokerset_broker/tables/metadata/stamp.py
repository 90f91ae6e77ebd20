"""The stamp of the files in config/: up to which offset of the log they are complete."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import field
from typing import Final

import structlog

from brokerset_broker.tables.metadata import records
from brokerset_broker.timers.progress import Progress
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_runtime.disk import Disk, replace_file

log = structlog.get_logger(__name__)

STAMP_FILE: Final = "brokersetMetadata.json"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The files have everything below `applied_offset`, and maybe more; `epoch` is for people."""

    applied_offset: int
    epoch: int = 0
    resets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Offsets of `topic@group` and queue that were set from outside and wait for a pull: no other file has
    them."""

    timers: Progress | None = None
    """The progress of timer messages as the log up to the offset says; `None` before there were any."""

    def encode(self) -> bytes:
        """The file's bytes."""
        table: dict[str, object] = {
            "appliedOffset": self.applied_offset,
            "epoch": self.epoch,
            "crc": self._crc(),
        }
        if self.resets:
            table["resets"] = {
                key: {str(queue): offset for queue, offset in queues.items()}
                for key, queues in self.resets.items()
            }
        if self.timers is not None:
            table["timers"] = records.timers_to_json(self.timers)
        return records.json_bytes(table)

    def _crc(self) -> int:
        return zlib.crc32(f"{self.applied_offset} {self.epoch}".encode())

    @classmethod
    def decode(cls, data: bytes) -> Stamp:
        """Read the file. Raises FormatError."""
        found = fields.parse_object(data)
        stamp = cls(
            fields.as_integer(found.get("appliedOffset"), "appliedOffset"),
            fields.get_integer(found, "epoch", 0),
            records.offsets_of(found, "resets"),
            records.timers_of(found),
        )
        if fields.as_integer(found.get("crc"), "crc") != stamp._crc():
            raise FormatError("the checksum does not match")
        return stamp


class StampFile:
    """The file. Methods block."""

    def __init__(self, disk: Disk, name: str = STAMP_FILE) -> None:
        self._disk = disk
        self._name = name

    def load(self) -> Stamp | None:
        """The stamp; `None` if there is none that can be read: then the log is asked for more."""
        try:
            return Stamp.decode(self._disk.read(self._name))
        except FileNotFoundError:
            return None
        except FormatError as error:
            log.warning("the metadata stamp cannot be read", file=self._name, reason=str(error))
            return None

    def save(self, stamp: Stamp) -> None:
        """Replace the file durably. Raises OSError."""
        replace_file(self._disk, self._name, stamp.encode())
