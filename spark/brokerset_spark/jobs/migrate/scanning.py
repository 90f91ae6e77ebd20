"""First task: read the files of a source, check every record, count what stays, and keep where it lies.

A row is one file of the source's log, the result what `Scanned` holds. The offsets and sizes of the records
that
stay go to a scratch file: the planner reads them one file after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.jobs.migrate import tallies
from brokerset_spark.jobs.migrate.cloning import write_scratch
from brokerset_spark.jobs.migrate.selecting import Selection, property_crcs
from brokerset_spark.jobs.migrate.tallies import Tallies, topic_text
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels import KERNELS, Stop
from brokerset_spark.kernels.contract import Int32s, Int64s
from brokerset_spark.stores.folder import open_folder
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
    selection = Selection.from_row(row["selection"])
    entries: bool = row["entries"]
    wanted = Range(
        row["path"], row["base"], row["size"], row["start"], row["end"], entries, row["bound"], True
    )
    outcome = Outcome(wanted.start, wanted.start)
    kept: Tallies = {}
    dropped: dict[str, int] = {}
    pieces: list[tuple[Int64s, Int32s, Int64s]] = []
    others = _Others()
    terms: list[list[int]] = []
    count = left_out = left_out_size = crcs = largest = 0
    first_stored = last_stored = -1
    throttle = Throttle(row["rate"])
    for chunk in read_range(folder, wanted, outcome, crc=True, throttle=throttle):
        if entries:
            others.add(chunk)
            _add_terms(terms, chunk)
        if not len(chunk.starts):
            continue
        heads = KERNELS.heads(chunk.data, chunk.starts)
        names, ids = tallies.group_topics(chunk.data, heads)
        mask = (heads.offset >= selection.start) & (heads.offset < selection.end)
        chosen = np.array([selection.chooses(topic_text(name)) for name in names], np.bool_)
        if not chosen.all():
            for number in np.flatnonzero(~chosen).tolist():
                gone = int(np.count_nonzero(mask & (ids == number)))
                dropped[topic_text(names[number])] = dropped.get(topic_text(names[number]), 0) + gone
            mask &= chosen[ids]
        tallies.add_records(kept, names, ids, heads, chunk.sizes, mask)
        rows = np.flatnonzero(mask)
        count += len(mask)
        left_out += len(mask) - len(rows)
        left_out_size += int(chunk.sizes.sum(dtype=np.int64) - chunk.sizes[rows].sum(dtype=np.int64))
        if not len(rows):
            continue
        prepared = heads.prepared_transaction_offset[rows]
        pieces.append((heads.offset[rows], chunk.sizes[rows], prepared[prepared != 0]))
        crcs += len(property_crcs(chunk.data, chunk.starts[rows] + chunk.sizes[rows], chunk.sizes[rows]))
        largest = max(largest, int(chunk.sizes[rows].max()))
        first_stored = int(heads.store_timestamp[rows[0]]) if first_stored < 0 else first_stored
        last_stored = int(heads.store_timestamp[rows[-1]])
    folder.close()
    files = []
    if row["scratch"]:
        parts = [np.concatenate([piece[i] for piece in pieces]) for i in range(3)] if pieces else []
        files = [write_scratch(row["staging"], row["scratch"], parts)]
    yield Result(
        {
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
            "tallies": tallies.to_rows(kept),
            "terms": terms,
            "propertyCrcs": crcs,
            "largest": largest,
            "firstStored": first_stored,
            "lastStored": last_stored,
            "bytesRead": outcome.end - wanted.start,
            "files": files,
        }
    )


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


def scan_row(**values: Any) -> Row:
    """A row, with its key."""
    return {"key": f"scan:{values['path']}", **values}
