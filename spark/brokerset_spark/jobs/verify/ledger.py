"""Entries of a DLedger against its index file: each unit must have place, size, index and term of its
entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from brokerset_formats.dledger import INDEX_UNIT_SIZE, MAGIC_NORMAL
from brokerset_spark.jobs.running import Result
from brokerset_spark.jobs.verify.comparing import first_differences
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.stores.units import UnitFiles

SAID_MAX: Final = 200


def check_units(
    index: UnitFiles,
    chunk: Chunk,
    previous: tuple[int, int] | None,
    *,
    has_index: bool = True,
) -> tuple[list[Result], tuple[int, int] | None, tuple[int, int] | None]:
    """Findings for the entries of a chunk, and (index, term) of its first and of its last one.

    `previous` are index and term of the entry before, if it was read.
    """
    begin, end = chunk.begin - chunk.base, chunk.end - chunk.base
    entries = KERNELS.walk_entries(chunk.data, begin, end, chunk.base, index=-1, final=False, crc=False)
    if len(entries.starts) == 0:
        return [], None, previous
    positions = chunk.base + entries.starts
    found = list(_terms(index, entries.indexes, entries.terms, positions, previous))
    if has_index:  # an archive has none
        found += _compare(index, entries.indexes, entries.terms, positions, entries.sizes.astype(np.int64))
    last = (int(entries.indexes[-1]), int(entries.terms[-1]))
    return found, (int(entries.indexes[0]), int(entries.terms[0])), last


def _terms(
    index: UnitFiles, indexes: Int64s, terms: Int64s, positions: Int64s, previous: tuple[int, int] | None
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


def _unit_differs(index: UnitFiles, number: int, term: int) -> bool:
    return int(index.read(number, 1)[0]["term"]) != term


def _compare(
    index: UnitFiles, indexes: Int64s, terms: Int64s, positions: Int64s, sizes: Int64s
) -> Iterator[Result]:
    units = index.read(int(indexes[0]), len(indexes))
    wanted = {
        "magic": np.full(len(units), MAGIC_NORMAL), "position": positions, "size": sizes, "index": indexes,
        "term": terms,
    }  # fmt: skip
    for number in np.flatnonzero(first_differences(units, wanted))[:SAID_MAX].tolist():
        unit, place = units[number], int(indexes[number])
        text = (
            f"the unit of entry {int(indexes[number])} (term {int(terms[number])}, "
            f"{int(sizes[number])} bytes at "
            f"{int(positions[number])}) says index {int(unit['index'])}, term {int(unit['term'])}, "
            f"{int(unit['size'])} bytes at {int(unit['position'])}"
        )
        yield finding("ledger-unit", text, index.path_of(place), place * INDEX_UNIT_SIZE)
