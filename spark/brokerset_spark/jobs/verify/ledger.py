"""Entries of a DLedger against its index file: each unit must have place, size, index and term of its
entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.dledger import INDEX_UNIT_SIZE
from brokerset_spark.jobs.running import Result
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.kernels import Kernels
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import LogFile
from brokerset_spark.stores.reading import Chunk

UNIT: Final = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
SAID_MAX: Final = 200


class LedgerIndex:
    """The index files of a DLedger; byte `index x 32` of their log is the unit of an entry."""

    def __init__(self, folder: StoreFolder, files: list[LogFile]) -> None:
        self._folder, self._files = folder, files

    def read(self, first: int, count: int) -> NDArray[np.void]:
        """Units of the entries `[first, first + count)`; zeros where there is no file."""
        found = np.zeros(count, UNIT)
        raw = found.view(np.uint8).data
        begin, end = first * INDEX_UNIT_SIZE, (first + count) * INDEX_UNIT_SIZE
        for file in self._files:
            low, high = max(begin, file.base), min(end, file.end)
            if low < high:
                self._folder.read_into(file.path, low - file.base, raw[low - begin : high - begin])
        return found

    def place(self, index: int) -> tuple[str, int]:
        """Path and byte offset in the index log of an entry's unit."""
        position = index * INDEX_UNIT_SIZE
        for file in self._files:
            if file.base <= position < file.end:
                return file.path, position
        return (self._files[-1].path if self._files else "index"), position


def check_units(
    index: LedgerIndex, chunk: Chunk, kernels: Kernels, previous: tuple[int, int] | None
) -> tuple[list[Result], tuple[int, int] | None, tuple[int, int] | None]:
    """Findings for the entries of a chunk, and (index, term) of its first and of its last one.

    `previous` are index and term of the entry before, if it was read.
    """
    begin, end = chunk.begin - chunk.base, chunk.end - chunk.base
    entries = kernels.walk_entries(chunk.data, begin, end, chunk.base, index=-1, final=False, crc=False)
    if len(entries.starts) == 0:
        return [], None, previous
    positions = chunk.base + entries.starts
    found = list(_terms(index, entries.indexes, entries.terms, positions, previous))
    found += _compare(index, entries.indexes, entries.terms, positions, entries.sizes.astype(np.int64))
    last = (int(entries.indexes[-1]), int(entries.terms[-1]))
    return found, (int(entries.indexes[0]), int(entries.terms[0])), last


def _terms(
    index: LedgerIndex, indexes: Int64s, terms: Int64s, positions: Int64s, previous: tuple[int, int] | None
) -> Iterator[Result]:
    before = np.concatenate([[previous[1] if previous else terms[0]], terms[:-1]])
    for number in np.flatnonzero(terms < before)[:SAID_MAX].tolist():
        culprit = number
        if number and _unit_differs(index, int(indexes[number - 1]), int(terms[number - 1])):
            culprit = number - 1  # not this term is too low: the one before is too high
        text = (
            f"entry {int(indexes[culprit])} has term {int(terms[culprit])}, out of order with its neighbours"
        )
        yield finding("entry-term", text, "", int(positions[culprit]))


def _unit_differs(index: LedgerIndex, number: int, term: int) -> bool:
    return int(index.read(number, 1)[0]["term"]) != term


def _compare(
    index: LedgerIndex, indexes: Int64s, terms: Int64s, positions: Int64s, sizes: Int64s
) -> Iterator[Result]:
    units = index.read(int(indexes[0]), len(indexes))
    wrong = (
        (units["magic"] != 1)
        | (units["position"] != positions)
        | (units["size"] != sizes)
        | (units["index"] != indexes)
        | (units["term"] != terms)
    )
    for number in np.flatnonzero(wrong)[:SAID_MAX].tolist():
        unit = units[number]
        path, place = index.place(int(indexes[number]))
        text = (
            f"the unit of entry {int(indexes[number])} (term {int(terms[number])}, "
            f"{int(sizes[number])} bytes at "
            f"{int(positions[number])}) says index {int(unit['index'])}, term {int(unit['term'])}, "
            f"{int(unit['size'])} bytes at {int(unit['position'])}"
        )
        yield finding("ledger-unit", text, path, place)
