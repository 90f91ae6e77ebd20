"""Extended units (`consumequeue_ext`): what a queue unit points to if it has an address for a tags code.

An address is the offset of an extended unit in the files of its queue, plus -2^63. The unit: size (16 bits,
the whole), tags code, store time of the message, size of a bit map, bit map (`ConsumeQueueExt` of Java).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.verify.columns import Columns
from brokerset_spark.jobs.verify.comparing import first_differences, runs_of
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.kernels.contract import Bools, Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, read_log

EXTENDED: Final = "consumequeue_ext"
ADDRESS_BASE: Final = -(2**63)

HEAD: Final = np.dtype([("size", ">i2"), ("tags", ">i8"), ("time", ">i8"), ("map", ">i2")])
WINDOW: Final = 1 << 20
"""Bytes of a file that are read together."""

SAID_MAX: Final = 64
"""Runs of units that one call reports; the rest is counted in one more finding."""

_WRONG, _NOWHERE = 1, 2


class ExtendedUnits:
    """The extended units of any queue of a store; lists of files are read once."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._logs: dict[tuple[str, int], Log] = {}

    def log(self, topic: str, queue_id: int) -> Log:
        """The files of one queue; none if it has no extended units."""
        key = (topic, queue_id)
        if key not in self._logs:
            self._logs[key] = read_log(self._folder, f"{EXTENDED}/{topic}/{queue_id}")
        return self._logs[key]

    def path_of(self, topic: str, queue_id: int, position: int) -> str:
        """The file that has this byte of the queue's files."""
        file = self.log(topic, queue_id).at(position)
        return f"{EXTENDED}/{topic}/{queue_id}" if file is None else file.path

    def heads(self, topic: str, queue_id: int, positions: Int64s) -> tuple[NDArray[np.void], Bools]:
        """What is at these offsets of the queue's files, zeros where nothing is; and where a file is.

        Positions may be in any order; a unit's head never lies in two files.
        """
        found = np.zeros(len(positions), HEAD)
        inside = np.zeros(len(positions), np.bool_)
        for file in self.log(topic, queue_id).files:
            base = file.base
            here = np.flatnonzero((positions >= base) & (positions < file.end))
            inside[here] = True
            order = here[np.argsort(positions[here], kind="stable")]
            windows = (positions[order] - base) // WINDOW
            for group in np.split(order, np.flatnonzero(np.diff(windows)) + 1) if len(order) else []:
                first, last = int(positions[group[0]]) - base, int(positions[group[-1]]) - base
                data = np.zeros(last - first + HEAD.itemsize, np.uint8)  # zeros behind the file's end
                self._folder.read_into(file.path, first, data.data)
                heads = np.ndarray((last - first + 1,), HEAD, data, strides=(1,))
                found[group] = heads[positions[group] - base - first]
        return found, inside


def check_extended(
    extended: ExtendedUnits,
    topic: str,
    queue_id: int,
    path: str,
    numbers: Int64s,
    addresses: NDArray[Any],
    records: Columns,
) -> Iterator[dict[str, Any]]:
    """Findings about the extended units of queue units that are right otherwise.

    `numbers` are the queue offsets of these units, `path` is the file of the first one.
    """
    positions = addresses.astype(np.int64) - ADDRESS_BASE
    heads, inside = extended.heads(topic, queue_id, positions)
    sizes = HEAD.itemsize + heads["map"].astype(np.int64)
    wanted = {"size": sizes, "tags": records.tags_code, "time": records.time}
    wrong = (first_differences(heads, wanted) > 0) | (heads["map"] < 0)
    runs = list(runs_of(np.where(inside, wrong * np.int8(_WRONG), np.int8(_NOWHERE))))
    name = f"{topic}/{queue_id}"
    for at, end, kind in runs[:SAID_MAX]:
        number, position = int(numbers[at]), int(positions[at])
        many = f", and {end - at - 1} behind it" if end - at > 1 else ""
        if kind == _NOWHERE:
            text = f"unit {number} of {name}{many}: no file has its extended unit, at {position}"
            yield finding("ext-missing", text, path, number).row
            continue
        text = f"of unit {number} of {name}{many}: "
        text += _difference(heads[at], int(records.tags_code[at]), int(records.time[at]))
        yield finding("ext-unit", text, extended.path_of(topic, queue_id, position), position).row
    if len(runs) > SAID_MAX:
        rest = sum(end - at for at, end, _ in runs[SAID_MAX:])
        text = f"{rest} more units of {name} do not agree with their extended units"
        yield finding("ext-unit", text, path, int(numbers[runs[SAID_MAX][0]])).row


def _difference(head: np.void, tags: int, time: int) -> str:
    size, map_size = int(head["size"]), int(head["map"])
    if not any(int(head[name]) for name in ("size", "tags", "time", "map")):
        return "zeros instead of an extended unit"
    if map_size < 0 or size != HEAD.itemsize + map_size:
        return f"{size} bytes, with a bit map of {map_size}"
    if int(head["tags"]) != tags:
        return f"it has tags code {int(head['tags'])}, the record {tags}"
    return f"it has store time {int(head['time'])}, the record {time}"


def extended_folders(folder: StoreFolder) -> list[tuple[str, str]]:
    """Folders with extended units, and what they are for people."""
    return [
        (f"{EXTENDED}/{topic}/{name}", f"the extended units of {topic}/{name}")
        for topic in folder.folders(EXTENDED)
        for name in folder.folders(f"{EXTENDED}/{topic}")
    ]
