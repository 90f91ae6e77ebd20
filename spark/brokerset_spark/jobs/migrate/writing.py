"""Second task: write one file of the new log. No loop over records but in the kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from brokerset_formats import dledger, records
from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_runtime.files import sync_folder
from brokerset_spark.jobs.migrate.cloning import set_mtime, write_all
from brokerset_spark.jobs.migrate.placing import Moves
from brokerset_spark.jobs.migrate.selecting import (
    PREPARED_BEFORE_BODY,
    ContentDigest,
    Selection,
    put_longs,
    renew_property_crcs,
)
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s
from brokerset_spark.stores.folder import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range

TASK: Final = "brokerset_spark.jobs.migrate.writing:write"


def write(row: Row) -> Iterator[Result]:
    """See the module; the row is one file, made of pieces of the source's files."""
    target = Path(row["staging"]) / row["path"]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(row["staging"]) / "scratch" / f"{target.name}.{target.parent.name}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, row["size"])
        log = _Writer(descriptor, row)
        for piece in row["pieces"]:
            log.take(piece)
        log.close()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if log.last_stored >= 0:
        set_mtime(part, log.last_stored)
    os.replace(part, target)
    sync_folder(target.parent)
    yield Result(
        {
            "key": row["key"],
            "content": log.content.hexdigest(),
            "lastStored": log.last_stored,
            "lostPrepared": log.lost_prepared,
            "renewedCrcs": log.renewed,
            "bytesRead": log.read,
            "files": [
                {
                    "path": row["path"],
                    "size": row["size"],
                    "used": log.written,
                    "digest": log.digest.hexdigest(),
                }
            ],
        }
    )


class _Writer:
    """Appends records to a file."""

    def __init__(self, descriptor: int, row: Row) -> None:
        self._descriptor, self._row = descriptor, row
        self._folder = open_folder(row["source"])
        self._selection = Selection.from_row(row["selection"])
        self._head = ENTRY_HEAD_SIZE if row["ledger"] else 0
        self._moves = _read_moves(row)
        self._throttle = Throttle(row["rate"])
        self.written = 0
        self.count = 0
        self.read = 0
        self.last_stored = -1
        self.lost_prepared = 0
        self.renewed = 0
        self.digest = xxhash.xxh3_128()
        self.content = ContentDigest()

    def take(self, piece: Row) -> None:
        """Read a piece of a source file and write what is chosen of it."""
        wanted = Range(
            piece["path"],
            piece["base"],
            piece["size"],
            piece["start"],
            piece["end"],
            piece["entries"],
            bound=piece["end"],
            exact_start=True,
        )
        outcome = Outcome(wanted.start, wanted.start)
        before = self.count
        for chunk in read_range(self._folder, wanted, outcome, throttle=self._throttle):
            rows = np.flatnonzero(self._selection.mask(chunk))
            if len(rows):
                self._put(chunk.data, chunk.starts[rows], chunk.sizes[rows])
        if self.count - before != piece["count"] or outcome.end != piece["end"]:
            raise ValueError(
                f"{piece['path']} has changed since it was scanned: {self.count - before} records up to"
                f" {outcome.end} instead of {piece['count']} up to {piece['end']}"
            )
        self.read += piece["end"] - piece["start"]

    def _put(self, data: Bytes, starts: Int64s, sizes: Int32s) -> None:
        long_sizes = sizes.astype(np.int64) + self._head
        ends = np.cumsum(long_sizes)
        positions = ends - long_sizes
        out = np.empty(int(ends[-1]), np.uint8)
        base = self._row["base"] + self.written
        if self._head:
            first = self._row["firstIndex"] + self.count
            KERNELS.to_entries(
                data, starts, sizes, out, positions, base, first_index=first, term=self._row["term"]
            )
        else:
            KERNELS.to_records(data, starts, sizes, out, positions, base)
        heads = self.content.add(data, starts, sizes)
        assert heads is not None, "there are records"
        inside = positions + self._head
        named = np.flatnonzero(heads.prepared_transaction_offset)
        if len(named):
            new = self._moves.look_up(heads.prepared_transaction_offset[named])
            self.lost_prepared += int(np.count_nonzero(new < 0))
            at = heads.body[named] - starts[named] + inside[named] - PREPARED_BEFORE_BODY
            put_longs(out, at, np.maximum(new, 0))
        self.renewed += renew_property_crcs(out, inside, sizes)
        self.digest.update(out.data)
        write_all(self._descriptor, out.data, self.written)
        self.written += len(out)
        self.count += len(starts)
        self.last_stored = max(self.last_stored, int(heads.store_timestamp[-1]))

    def close(self) -> None:
        """Check that the plan was met, and write the blank record."""
        row = self._row
        if (self.written, self.count) != (row["used"], row["count"]):
            raise ValueError(
                f"{row['path']}: {self.count} records of {self.written} bytes were written where the plan has"
                f" {row['count']} of {row['used']}"
            )
        if row["closed"]:
            mark = blank_mark(row["size"] - self.written, ledger=row["ledger"])
            self.digest.update(mark)
            write_all(self._descriptor, mark, self.written)
            self.written += len(mark)
        self._folder.close()


def blank_mark(free: int, *, ledger: bool) -> bytes:
    """What ends a file with so many free bytes."""
    return dledger.LedgerBlank(free).encode() if ledger else records.BLANK.pack(free, records.MAGIC_BLANK)


def _read_moves(row: Row) -> Moves:
    """The new offsets of half messages, as the planner found them."""
    if not row["moves"]:
        return Moves.wanted(np.empty(0, np.int64))
    table = np.fromfile(Path(row["staging"]) / row["moves"], np.int64).reshape(2, -1)
    return Moves(table[0], table[1])
