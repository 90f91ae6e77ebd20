"""Kernels that copy, number and compare whole texts and units: compiled and pure ones give what they must."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_formats.queue_units import UNIT
from brokerset_rig.both_kernels import COMPILED, PURE, EitherKernels
from brokerset_spark.kernels import Texts
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.sources import gathering

pytestmark = pytest.mark.long

pure, compiled = PURE, COMPILED

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)


@st.composite
def texts_of(draw: st.DrawFn, *, inside: bool = True) -> tuple[Bytes, Texts]:
    """A buffer in which the same few texts lie many times, and places in it, in any order; -1 for none."""
    letters = draw(st.sampled_from([b"a", b"ab", b"abcdefgh", bytes(range(256)), b"\xff\x00"]))
    raw = draw(st.binary(max_size=40)) + letters * draw(st.integers(0, 20)) + draw(st.binary(max_size=9))
    starts, sizes = [], []
    for _ in range(draw(st.integers(0, 30))):
        start = draw(st.integers(-1, len(raw) if inside else len(raw) + 2))
        most = max(len(raw) - start, 0) if inside else 50
        starts.append(start)
        sizes.append(draw(st.integers(0 if inside else -2, most if start >= 0 else 50)))
    texts = Texts(np.array(starts, np.int64), np.array(sizes, np.int32))
    return np.frombuffer(raw, np.uint8), texts


def pieces(data: Bytes, texts: Texts) -> list[bytes]:
    bounds = zip(texts.starts.tolist(), texts.sizes.tolist(), strict=True)
    return [data[at : at + size].tobytes() if at >= 0 else b"" for at, size in bounds]


def cut(flat: Bytes, offsets: Any) -> list[bytes]:
    return [flat[a:b].tobytes() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


@given(texts_of())
@settings(max_examples=300)
def test_copies(made: tuple[Bytes, Texts]) -> None:
    """Texts are copied in their order, as often as they are asked for; as an array, none is null."""
    data, texts = made
    wanted = pieces(data, texts)

    for kernels in (pure, compiled):
        laid = kernels.copy_texts(data, texts)
        assert cut(*laid) == wanted
        assert laid.offsets.dtype == np.int32
    array = gathering.gather(data, texts)
    array.validate(full=True)
    there = (texts.starts >= 0).tolist()
    assert array.to_pylist() == [
        each if is_there else None for each, is_there in zip(wanted, there, strict=True)
    ]


@given(texts_of(), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_digits(made: tuple[Bytes, Texts], dice: Any) -> None:
    """Digits are those of Python, of a text and then of its tail, whatever their sizes are."""
    data, heads = made
    order = list(range(len(heads.starts)))
    dice.shuffle(order)
    tails = Texts(heads.starts[order], heads.sizes[order])
    both = zip(pieces(data, heads), pieces(data, tails), strict=True)
    wanted = [(head + tail).hex().upper().encode() for head, tail in both]

    for kernels in (pure, compiled):
        assert cut(*kernels.hex_texts(data, heads, tails)) == wanted


@given(texts_of())
@settings(max_examples=300)
def test_numbers(made: tuple[Bytes, Texts]) -> None:
    """Equal texts have the same number, different ones another, counted in the order of their appearance."""
    data, texts = made
    found = pieces(data, texts)
    different = list(dict.fromkeys(found))

    for kernels in (pure, compiled):
        codes, firsts = kernels.number_texts(data, texts)
        assert codes.tolist() == [different.index(each) for each in found]
        assert firsts.tolist() == [found.index(each) for each in different]


def test_many_different_texts_are_numbered() -> None:
    """The table of the compiled kernel is large enough when every text is different, and each is found."""
    count = 5_000
    data = np.frombuffer(b"".join(b"%08d" % number for number in range(count)), np.uint8)
    starts = np.tile(np.arange(count, dtype=np.int64) * 8, 2)
    texts = Texts(starts, np.full(2 * count, 8, np.int32))

    codes, firsts = compiled.number_texts(data, texts)

    assert codes.tolist() == [*range(count), *range(count)]
    assert firsts.tolist() == list(range(count))


def outcome(run: Callable[[], Any]) -> Any:
    """What came out, as plain values; the sentence if it was refused."""
    try:
        return [each.tolist() for each in run()]
    except ValueError as error:
        return str(error)


@given(texts_of(inside=False))
@settings(max_examples=500)
def test_texts_outside_the_data_are_refused(made: tuple[Bytes, Texts]) -> None:
    """Both refuse the same texts with the same sentence, and none that lies inside."""
    data, texts = made
    ends = texts.starts + texts.sizes
    is_outside = (texts.starts >= 0) & ((texts.sizes < 0) | (ends > len(data)))
    first = f"text {int(is_outside.argmax())} does not fit the buffer" if is_outside.any() else None

    calls: tuple[Callable[[EitherKernels], Any], ...] = (
        lambda kernels: kernels.copy_texts(data, texts),
        lambda kernels: kernels.hex_texts(data, texts, texts),
        lambda kernels: kernels.number_texts(data, texts),
    )
    for call in calls:
        got, expected = outcome(partial(call, compiled)), outcome(partial(call, pure))
        assert got == expected
        assert isinstance(expected, str) is (first is not None)
        assert first is None or expected == first


def test_two_gib_of_texts_are_refused() -> None:
    """Places of 32 bits cannot cut them: both kinds of kernels say so before they copy anything."""
    data = np.zeros(1 << 20, np.uint8)
    texts = Texts(np.zeros(2_048, np.int64), np.full(2_048, 1 << 20, np.int32))

    for kernels in (pure, compiled):
        with pytest.raises(ValueError, match="2147483648 bytes of texts at once are more than 2147483647"):
            kernels.copy_texts(data, texts)
        half = Texts(texts.starts[:512], texts.sizes[:512])
        with pytest.raises(ValueError, match="2147483648 bytes of texts"):
            kernels.hex_texts(data, half, half)


@given(
    st.lists(st.tuples(LONGS, INTS, LONGS), min_size=1, max_size=12),
    st.data(),
    st.sampled_from([-(2**63), -5, 0]),
)
@settings(max_examples=300)
def test_units_that_fit(columns: list[tuple[int, int, int]], data: st.DataObject, least: int) -> None:
    """Units are counted up to the first that differs from its row in anything, or has too low a code."""
    offsets, sizes, codes = (
        np.array([each[at] for each in columns], kind)
        for at, kind in enumerate((np.int64, np.int32, np.int64))
    )
    rows = np.array(data.draw(st.lists(st.integers(0, len(columns) - 1), max_size=12)), np.int64)
    units = bytearray(b"".join(UNIT.pack(*columns[row]) for row in rows.tolist()))
    for at in data.draw(st.lists(st.integers(0, max(len(units) - 1, 0)), max_size=2)) if units else []:
        units[at] ^= 1
    wanted = 0
    for row in rows.tolist():
        unit = UNIT.unpack_from(units, wanted * UNIT.size)
        if unit != columns[row] or unit[2] < least:
            break
        wanted += 1

    for kernels in (pure, compiled):
        assert (
            kernels.count_fitting(np.frombuffer(units, np.uint8), rows, offsets, sizes, codes, least)
            == wanted
        )


@pytest.mark.parametrize("kernels", [pure, compiled])
def test_units_of_rows_that_are_not_there_are_refused(kernels: EitherKernels) -> None:
    """A row outside the columns is named, unless a unit before it differs; so are wrong lengths."""
    one, sizes = np.array([5], np.int64), np.array([100], np.int32)
    units = np.frombuffer(UNIT.pack(5, 100, 5) * 2, np.uint8)

    for wrong in (-1, 1, 2**62):
        with pytest.raises(ValueError, match=f"unit 1 has row {wrong}, which is not there"):
            kernels.count_fitting(units, np.array([0, wrong]), one, sizes, one, 0)
        assert kernels.count_fitting(units, np.array([0, wrong]), one, sizes, one - 1, 0) == 0
    with pytest.raises(ValueError, match="40 bytes of units for 1 rows"):
        kernels.count_fitting(units, np.array([0]), one, sizes, one, 0)
    with pytest.raises(ValueError, match=r"columns of \[1, 1, 2\]"):
        kernels.count_fitting(units, np.array([0, 0]), one, sizes, np.array([1, 2]), 0)
