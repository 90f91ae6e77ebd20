"""First task: read the files of a source, check every record, count what stays, and keep where it lies.

A row is one file of the source's log, the result what `Scanned` holds. The offsets and sizes of the records
that
stay go to a scratch file: the planner reads them one file after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.jobs.migrate import tallies
from brokerset_spark.jobs.migrate.cloning import write_scratch
from brokerset_spark.jobs.migrate.selecting import PIECE, Chooser, Selection
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.json_values import from_value
from brokerset_spark.kernels import KERNELS, Stop
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, read_range

TASK = "brokerset_spark.jobs.migrate.scanning:scan"


@dataclass(frozen=True, slots=True)
class Kept:
    """Records of one file that stay."""

    offsets: Int64s
    """Of the records; in a DLedger 48 behind their entries."""

    sizes: Int32s
    prepared: Int64s
    """Offsets of half messages that some of them name."""

    @staticmethod
    def named(path: Path, count: int) -> Int64s:
        """Only `prepared` of a scratch file."""
        return np.fromfile(path, np.int64, offset=count * 12)

    @classmethod
    def read(cls, path: Path, count: int) -> Kept:
        """From the scratch file."""
        raw = path.read_bytes()
        return cls(
            np.frombuffer(raw, np.int64, count),
            np.frombuffer(raw, np.int32, count, count * 8),
            np.frombuffer(raw, np.int64, -1, count * 12),
        )


def scan(row: Row) -> Iterator[Result]:
    """See the module."""
    folder = open_folder(row["source"])
    try:
        yield Result(examine(folder, row, Throttle(row["rate"]))[0])
    finally:
        folder.close()


def examine(
    folder: StoreFolder, row: Row, throttle: Throttle, taking: Callable[[Bytes], None] | None = None
) -> tuple[dict[str, Any], Outcome]:
    """Read a file and check it; `taking` gets all bytes of its records, in their order."""
    selection = from_value(Selection, row["selection"])
    entries: bool = row["entries"]
    wanted = Range(
        row["path"], row["base"], row["size"], row["start"], row["end"], entries, row["bound"], True
    )
    outcome = Outcome(wanted.start, wanted.start)
    chooser = Chooser(selection)
    dropped: dict[str, int] = {}
    pieces: list[tuple[Int64s, Int32s, Int64s]] = []
    others = _Others()
    terms: list[list[int]] = []
    count = left_out = left_out_size = crcs = largest = 0
    first_stored = last_stored = -1
    for chunk in read_range(folder, wanted, outcome, crc=True, throttle=throttle, piece=PIECE):
        if taking is not None:
            taking(chunk.data[chunk.begin - chunk.base : chunk.end - chunk.base])
        if entries:
            others.add(chunk)
            _add_terms(terms, chunk)
        if not len(chunk.starts):
            continue
        heads = KERNELS.heads(chunk.data, chunk.starts)
        numbers, mask = chooser.choose(chunk, heads, dropped)
        starts, sizes, offsets = chunk.starts, chunk.sizes, heads.offset
        stored, prepared = heads.store_timestamp, heads.prepared_transaction_offset
        kept = chooser.groups.add(numbers, heads, sizes, mask)
        count += len(mask)
        if kept < len(mask):
            rows = np.flatnonzero(mask)
            left_out += len(mask) - kept
            left_out_size += int(sizes.sum(dtype=np.int64) - sizes[rows].sum(dtype=np.int64))
            if not kept:
                continue
            starts, sizes, offsets = starts[rows], sizes[rows], offsets[rows]
            stored, prepared = stored[rows], prepared[rows]
        if row["scratch"]:
            pieces.append((offsets, sizes, prepared[prepared != 0]))
        crcs += len(KERNELS.find_crcs(chunk.data, starts, sizes))
        largest = max(largest, int(sizes.max()))
        first_stored = int(stored[0]) if first_stored < 0 else first_stored
        last_stored = int(stored[-1])
    files = []
    if row["scratch"]:
        parts = [np.concatenate([piece[i] for piece in pieces]) for i in range(3)] if pieces else []
        files = [write_scratch(row["staging"], row["scratch"], parts, throttle)]
    found = {
        "key": row["key"],
        "path": row["path"],
        "end": outcome.end,
        "closed": outcome.stop is Stop.BLANK or outcome.end == wanted.base + wanted.size,
        "stop": int(outcome.stop),
        "records": count,
        "leftOut": left_out,
        "leftOutBytes": left_out_size,
        "noMessage": others.count,
        "noMessageBytes": others.size,
        "dropped": dropped,
        "tallies": tallies.to_rows(chooser.groups.tallies()),
        "terms": terms,
        "propertyCrcs": crcs,
        "largest": largest,
        "firstStored": first_stored,
        "lastStored": last_stored,
        "bytesRead": outcome.end - wanted.start,
        "files": files,
    }
    return found, outcome


class _Others:
    """Counts entries of a DLedger that hold no message."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0

    def add(self, chunk: Chunk) -> None:
        held = int(chunk.sizes.sum(dtype=np.int64)) + ENTRY_HEAD_SIZE * len(chunk.sizes)
        if chunk.end - chunk.begin == held:
            return
        self.size += chunk.end - chunk.begin - held
        walked = KERNELS.walk_entries(
            chunk.data,
            chunk.begin - chunk.base,
            chunk.end - chunk.base,
            chunk.base,
            index=-1,
            final=False,
            crc=False,
        )
        self.count += len(walked.starts) - len(chunk.starts)


def _add_terms(terms: list[list[int]], chunk: Chunk) -> None:
    """Offsets of the records that begin a new term."""
    if chunk.terms is None or not len(chunk.terms):
        return
    changes = np.flatnonzero(np.concatenate(([True], chunk.terms[1:] != chunk.terms[:-1])))
    for number in changes.tolist():
        if not terms or terms[-1][0] != int(chunk.terms[number]):
            terms.append([int(chunk.terms[number]), chunk.base + int(chunk.starts[number])])
