"""Second task: write one file of the new log. No loop over records but in the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from brokerset_formats import dledger, records
from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.jobs.migrate.cloning import part_of
from brokerset_spark.jobs.migrate.output import Output, at_ms
from brokerset_spark.jobs.migrate.placing import Moves
from brokerset_spark.jobs.migrate.selecting import (
    BLOCK,
    PIECE,
    PREPARED_BEFORE_BODY,
    Chooser,
    ContentDigest,
    Selection,
    blocks,
    put_longs,
    renew_property_crcs,
)
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.json_values import from_value
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bytes, Heads, Int32s, Int64s
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, read_range

TASK: Final = "brokerset_spark.jobs.migrate.writing:write"

BLANK_SIZE_MAX: Final = 8
"""Bytes of the blank record that ends a file."""


def write(row: Row) -> Iterator[Result]:
    """See the module; the row is one file, made of pieces of the source's files."""
    target = Path(row["staging"]) / row["path"]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(Path(row["staging"]) / "scratch" / f"{target.name}.{target.parent.name}")
    with Output(part, room=row["used"] + BLANK_SIZE_MAX * row["closed"]) as output:
        log = _Writer(output, row)
        for piece in row["pieces"]:
            log.take(piece)
        log.close()
        output.finish(row["size"], times_ns=at_ms(log.last_stored) if log.last_stored >= 0 else None)
        output.publish(target)
    yield Result(
        {
            "key": row["key"],
            "content": log.content.hexdigest(),
            "lastStored": log.last_stored,
            "lostPrepared": log.lost_prepared,
            "renewedCrcs": log.renewed,
            "bytesRead": log.read,
            "files": [output.described(row["path"], row["size"])],
        }
    )


class Rewriter:
    """Turns records into those of the new log, a block at a time, and hands each block on."""

    def __init__(
        self,
        take: Callable[[memoryview], None],
        *,
        base: int,
        ledger: bool,
        first_index: int = 0,
        term: int = 0,
    ) -> None:
        self._take, self._base, self._term = take, base, term
        self._first_index = first_index
        self.head = ENTRY_HEAD_SIZE if ledger else 0
        self.written = 0
        self.count = 0
        self._out = np.empty(2 * BLOCK, np.uint8)

    def put(
        self,
        data: Bytes,
        starts: Int64s,
        sizes: Int32s,
        amend: Callable[[Bytes, slice, Int64s], None] | None = None,
    ) -> None:
        """Write these records; `amend` may change a block: its bytes, which rows it has, where they begin."""
        long_sizes = sizes.astype(np.int64) + self.head
        for rows, size in blocks(long_sizes):
            if size > len(self._out):
                self._out = np.empty(size, np.uint8)
            out, base = self._out[:size], self._base + self.written
            positions = np.cumsum(long_sizes[rows]) - long_sizes[rows]
            if self.head:
                first = self._first_index + self.count
                KERNELS.to_entries(
                    data, starts[rows], sizes[rows], out, positions, base, first_index=first, term=self._term
                )
            else:
                KERNELS.to_records(data, starts[rows], sizes[rows], out, positions, base)
            if amend is not None:
                amend(out, rows, positions + self.head)
            self._take(out.data)
            self.written += size
            self.count += len(positions)


class _Writer:
    """Appends records to a file."""

    def __init__(self, output: Output, row: Row) -> None:
        self._output, self._row = output, row
        self._folder = open_folder(row["source"])
        self._chooser = Chooser(from_value(Selection, row["selection"]))
        self._log = Rewriter(
            output.put,
            base=row["base"],
            ledger=row["ledger"],
            first_index=row["firstIndex"],
            term=row["term"],
        )
        self._moves = _read_moves(row)
        self._throttle = Throttle(row["rate"])
        self.read = 0
        self.last_stored = -1
        self.lost_prepared = 0
        self.renewed = 0
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
        before = self._log.count
        for chunk in read_range(self._folder, wanted, outcome, throttle=self._throttle, piece=PIECE):
            rows = self._chooser.rows(chunk)
            if rows is None:
                self._put(chunk.data, chunk.starts, chunk.sizes)
            elif len(rows):
                self._put(chunk.data, chunk.starts[rows], chunk.sizes[rows])
        if self._log.count - before != piece["count"] or outcome.end != piece["end"]:
            raise ValueError(
                f"{piece['path']} has changed since it was scanned: {self._log.count - before} records up to"
                f" {outcome.end} instead of {piece['count']} up to {piece['end']}"
            )
        self.read += piece["end"] - piece["start"]

    def _put(self, data: Bytes, starts: Int64s, sizes: Int32s) -> None:
        if not len(starts):
            return
        named, crcs = self.content.add(data, starts, sizes)
        heads = KERNELS.heads(data, starts if named else starts[-1:])
        self.last_stored = max(self.last_stored, int(heads.store_timestamp[-1]))

        def amend(out: Bytes, rows: slice, positions: Int64s) -> None:
            if named:
                self._rename_halves(out, heads, rows, starts[rows], positions)
            if crcs:
                self.renewed += renew_property_crcs(out, positions, sizes[rows])

        self._log.put(data, starts, sizes, amend if named or crcs else None)

    def _rename_halves(
        self, out: Bytes, heads: Heads, rows: slice, starts: Int64s, positions: Int64s
    ) -> None:
        """Write the new offsets of the half messages that records name."""
        old = heads.prepared_transaction_offset[rows]
        named = np.flatnonzero(old)
        new = self._moves.look_up(old[named])
        self.lost_prepared += int(np.count_nonzero(new < 0))
        at = heads.body[rows][named] - starts[named] + positions[named] - PREPARED_BEFORE_BODY
        put_longs(out, at, np.maximum(new, 0))

    def close(self) -> None:
        """Check that the plan was met, and write the blank record."""
        row, log = self._row, self._log
        if (log.written, log.count) != (row["used"], row["count"]):
            raise ValueError(
                f"{row['path']}: {log.count} records of {log.written} bytes were written where the plan has"
                f" {row['count']} of {row['used']}"
            )
        if row["closed"]:
            self._output.put(blank_record(row["size"] - log.written, ledger=row["ledger"]))
        self._folder.close()


def blank_record(free: int, *, ledger: bool) -> bytes:
    """What ends a file with so many free bytes."""
    return dledger.LedgerBlank(free).encode() if ledger else records.BLANK.pack(free, records.MAGIC_BLANK)


def _read_moves(row: Row) -> Moves:
    """The new offsets of half messages, as the planner found them."""
    if not row["moves"]:
        return Moves.wanted(np.empty(0, np.int64))
    table = np.fromfile(Path(row["staging"]) / row["moves"], np.int64).reshape(2, -1)
    return Moves(table[0], table[1])
