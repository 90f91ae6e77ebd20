"""The part of `pure` that copies, numbers and compares whole texts, and units with rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from brokerset_spark.kernels.contract import Bytes, GroupNumbers, Int32s, Int64s, Laid, Numbered, Texts
from brokerset_spark.kernels.limits import check_texts, check_total, check_units, row_misfit, text_misfit

_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])


def _pieces(data: Bytes, texts: Texts) -> Iterator[memoryview]:
    """The bytes of each text, none where there is no text; ValueError if one leaves the data."""
    view = data.data
    for number, (start, size) in enumerate(zip(texts.starts.tolist(), texts.sizes.tolist(), strict=True)):
        if start >= 0 and (size < 0 or start + size > len(view)):
            raise text_misfit(number)
        yield view[start : start + size] if start >= 0 else view[:0]


def _laid(pieces: list[memoryview] | list[bytes]) -> Laid:
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    check_total(int(ends[-1]))
    return Laid(np.frombuffer(b"".join(pieces), np.uint8), ends.astype(np.int32))


def copy_texts(data: Bytes, texts: Texts) -> Laid:
    """See `Kernels`."""
    return _laid(list(_pieces(data, texts)))


def hex_texts(data: Bytes, heads: Texts, tails: Texts) -> Laid:
    """See `Kernels`."""
    firsts, seconds = list(_pieces(data, heads)), list(_pieces(data, tails))
    check_total(2 * sum(map(len, firsts)) + 2 * sum(map(len, seconds)))
    both = zip(firsts, seconds, strict=True)
    return _laid([(first.hex() + second.hex()).upper().encode() for first, second in both])


def number_texts(data: Bytes, texts: Texts) -> Numbered:
    """See `Kernels`."""
    numbers: dict[bytes, int] = {}
    firsts: list[int] = []
    codes = np.empty(len(texts.starts), np.int32)
    for number, piece in enumerate(_pieces(data, texts)):
        text = bytes(piece)
        code = numbers.get(text)
        if code is None:
            code = numbers[text] = len(firsts)
            firsts.append(number)
        codes[number] = code
    return Numbered(codes, np.array(firsts, np.int64))


def count_fitting(
    units: Bytes, rows: Int64s, offsets: Int64s, sizes: Int32s, codes: Int64s, least_code: int
) -> int:
    """See `Kernels`."""
    check_units(units, rows, offsets, sizes, codes)
    found = units.view(_UNIT)
    bad = np.flatnonzero((rows < 0) | (rows >= len(offsets)))
    known = int(bad[0]) if len(bad) else len(rows)
    found, there = found[:known], rows[:known]
    fits = (found["offset"] == offsets[there]) & (found["size"] == sizes[there])
    fits &= (found["code"] == codes[there]) & (found["code"] >= least_code)
    if fits.all() and known < len(rows):
        raise row_misfit(known, rows)
    return known if fits.all() else int(fits.argmin())


class _Groups:
    def __init__(self) -> None:
        self._known: dict[tuple[bytes, int], int] = {}
        self._groups: list[tuple[bytes, int]] = []

    def number(self, data: Bytes, topics: Texts, queue_ids: Int32s) -> Int64s:
        found = np.empty(len(queue_ids), np.int64)
        check_texts(data, topics.starts, topics.sizes)
        for number, (piece, queue_id) in enumerate(
            zip(_pieces(data, topics), queue_ids.tolist(), strict=True)
        ):
            key = (bytes(piece), queue_id)
            if key not in self._known:
                self._known[key] = len(self._groups)
                self._groups.append(key)
            found[number] = self._known[key]
        return found

    def group(self, number: int) -> tuple[bytes, int]:
        return self._groups[number]

    def __len__(self) -> int:
        return len(self._groups)


def new_groups() -> GroupNumbers:
    """See `Kernels`."""
    return _Groups()
