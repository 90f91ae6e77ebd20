"""The part of `pure_kernels` over texts: properties, hashes, copies, numbers; and over units with rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from brokerset_formats.hashing import java_hash
from brokerset_spark.kernels.contract import (
    PAIRS_COMPARED,
    Bytes,
    Heads,
    Int32s,
    Int64s,
    Laid,
    Numbered,
    Pairs,
    Texts,
)
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


def _joined(texts: list[bytes]) -> tuple[Bytes, Int32s]:
    """All texts, and where they begin and end."""
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64).astype(np.int32)
    return np.frombuffer(b"".join(texts), np.uint8), ends


class GroupNumbers:
    """Numbers the groups (topic and queue id) of records in the order in which they appear."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, int], int] = {}
        self._groups: list[tuple[bytes, int]] = []

    def number(self, data: Bytes, topics: Texts, queue_ids: Int32s) -> Int64s:
        """The group of each record. ValueError if a topic leaves the data."""
        found = np.empty(len(queue_ids), np.int64)
        check_texts(data, topics.starts, topics.sizes)
        pieces = zip(_pieces(data, topics), queue_ids.tolist(), strict=True)
        for number, (piece, queue_id) in enumerate(pieces):
            key = (bytes(piece), queue_id)
            if key not in self._known:
                self._known[key] = len(self._groups)
                self._groups.append(key)
            found[number] = self._known[key]
        return found

    def group(self, number: int) -> tuple[bytes, int]:
        """Topic and queue id of a group."""
        return self._groups[number]

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self._groups)


class TextKernels:
    """The kernels over texts; see `pure_kernels.PureKernels`."""

    def copy_texts(self, data: Bytes, texts: Texts) -> Laid:
        """Copies of these texts; an empty one where there is none.

        ValueError if a text leaves the data, or for 2 GiB of texts.
        """
        return _laid(list(_pieces(data, texts)))

    def hex_texts(self, data: Bytes, heads: Texts, tails: Texts) -> Laid:
        """The bytes of each text of `heads`, and of that of `tails` behind it, as upper-case digits.

        ValueError as `copy_texts`.
        """
        firsts, seconds = list(_pieces(data, heads)), list(_pieces(data, tails))
        check_total(2 * sum(map(len, firsts)) + 2 * sum(map(len, seconds)))
        both = zip(firsts, seconds, strict=True)
        return _laid([(first.hex() + second.hex()).upper().encode() for first, second in both])

    def number_texts(self, data: Bytes, texts: Texts) -> Numbered:
        """Number texts; where there is none it counts as an empty one. ValueError if one leaves the data."""
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
        self, units: Bytes, rows: Int64s, offsets: Int64s, sizes: Int32s, codes: Int64s, least_code: int
    ) -> int:
        """How many queue units, from the first one on, are what rows of the columns say.

        `units` are as many as `rows`, 20 bytes each; unit n must have offset, size and code of row `rows[n]`,
        and a code of at least `least_code`. ValueError if there are fewer units, or no such row.
        """
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

    def new_groups(self) -> GroupNumbers:
        """Without any group yet."""
        return GroupNumbers()

    def find_property(self, data: Bytes, heads: Heads, name: bytes) -> Texts:
        """Value of one property in each record; of several with the same name the last one, as Java's map."""
        return self.find_properties(data, heads, (name,))[0]

    def find_properties(self, data: Bytes, heads: Heads, names: Sequence[bytes]) -> list[Texts]:
        """`find_property` for several names, in one pass over the properties."""
        count, view = len(heads.properties), data.data
        found = {name: Texts(np.full(count, -1, np.int64), np.zeros(count, np.int32)) for name in names}
        rows = zip(heads.properties.tolist(), heads.properties_size.tolist(), strict=True)
        for number, (start, size) in enumerate(rows):
            if start < 0 or size < 0 or start + size > len(view):
                raise text_misfit(number)
            for chunk in bytes(view[start : start + size]).split(b"\x02"):
                key, _, value = chunk.partition(b"\x01")
                if key and value and (texts := found.get(key)) is not None:
                    texts.starts[number], texts.sizes[number] = start + len(key) + 1, len(value)
                start += len(chunk) + 1
        return [found[name] for name in names]

    def split_properties(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Pairs:
        """All pairs of texts that are properties (`name 0x01 value 0x02`, repeated), in their order.

        Pairs without name or value are left out. ValueError if a text leaves the data, or for 2 GiB of texts.
        """
        check_texts(data, starts, sizes)
        view = data.data
        names: list[bytes] = []
        values: list[bytes] = []
        offsets = [0]
        repeated = False
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            for chunk in bytes(view[start : start + size]).split(b"\x02"):
                name, _, value = chunk.partition(b"\x01")
                if name and value:
                    names.append(name)
                    values.append(value)
            own = names[offsets[-1] :]
            repeated = repeated or len(own) > PAIRS_COMPARED or len(set(own)) < len(own)
            offsets.append(len(names))
        return Pairs(np.array(offsets, np.int32), *_joined(names), *_joined(values), repeated)

    def java_hashes(self, data: Bytes, texts: Texts) -> Int32s:
        """`String.hashCode` of UTF-8 texts; 0 where there is none. U+FFFD for what is no UTF-8."""
        return np.array(
            [java_hash(bytes(each).decode(errors="replace")) for each in _pieces(data, texts)], np.int32
        )
