"""Timer files of a rewritten store: which messages wait, and where they lie now.

`timerlog` names messages by their offset in the log, `timerwheel` units of the timer log by position. So
the wheel
stays, and the offsets in the timer log are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.migrate.cloning import described, set_mtime, write_file
from brokerset_spark.jobs.migrate.placing import Moves
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder, read_all
from brokerset_spark.stores.layout import LogFile, read_log

LOG: Final = "timerlog"
WHEEL: Final = "timerwheel"
CHECK: Final = "config/timercheck"

UNIT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written", ">i8"),
        ("delay", ">i4"),
        ("offset", ">i8"),
        ("record", ">i4"),
        ("topic", ">i4"),
        ("reserved", ">i8"),
    ]
)
assert UNIT.itemsize == 52
_LONGS: Final = 7


@dataclass(slots=True)
class Timers:
    """The timer log of a source."""

    files: list[tuple[LogFile, NDArray[Any]]]
    """Its files and the units in them."""

    read_until_ms: int
    """Messages that were due before were delivered."""

    @property
    def offsets(self) -> Int64s:
        """Of all messages that the timer log names."""
        return np.concatenate(
            [np.empty(0, np.int64), *(units["offset"].astype(np.int64) for _, units in self.files)]
        )

    def waiting(self, units: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these units are about messages that are still due."""
        due: NDArray[np.bool_] = units["written"] + units["delay"] >= self.read_until_ms
        return due

    def lost(self, moves: Moves) -> int:
        """How many messages that are still due are not in the new log."""
        total = 0
        for _, units in self.files:
            total += int(
                np.count_nonzero(self.waiting(units) & (moves.look_up(units["offset"].astype(np.int64)) < 0))
            )
        return total


def read_timers(folder: StoreFolder) -> Timers:
    """The timer log; FormatError if its files cannot be read."""
    check = read_all(folder, CHECK) or b""
    read_until = int.from_bytes(check[:8], "big") if len(check) >= 8 * _LONGS else 0
    files = []
    for file in read_log(folder, LOG).files:
        buffer = np.zeros(file.size, np.uint8)
        count = folder.read_into(file.path, 0, buffer.data)
        units = buffer[: count // UNIT.itemsize * UNIT.itemsize].view(UNIT)
        whole = units["size"] == UNIT.itemsize
        used = len(units) if whole.all() else int(np.argmin(whole))
        if used < len(units) and int(units["size"][used]) not in (0, file.size - used * UNIT.itemsize):
            raise FormatError(f"{file.path}: no unit of a timer log at {used * UNIT.itemsize}")
        files.append((file, units[:used]))
    return Timers(files, read_until)


def write_timer_log(staging: Path, source: Path, timers: Timers, moves: Moves) -> list[dict[str, Any]]:
    """The timer log with the new offsets; messages that are gone (delivered long ago) get offset 0."""
    files = []
    for file, units in timers.files:
        data = np.fromfile(source / file.path, np.uint8)
        new = data[: len(units) * UNIT.itemsize].view(UNIT)
        new["offset"] = np.maximum(moves.look_up(units["offset"].astype(np.int64)), 0)
        path = staging / "store" / file.path
        write_file(path, [data])
        set_mtime(path, file.mtime_ms)
        files.append(described(str(staging), path))
    return files
