"""An index file, compared with a list of everything put."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.index_file import IndexTable, file_size

SLOTS = 3
UNITS = 40


@dataclass(frozen=True)
class Put:
    key_hash: int
    offset: int
    timestamp: int


@st.composite
def histories(draw: st.DrawFn) -> list[Put]:
    """Puts of a log: offsets and times do not go back."""
    offset, timestamp = 0, draw(st.integers(1, 10**6))
    found = []
    for _ in range(draw(st.integers(0, UNITS - 1))):
        offset += draw(st.integers(0, 200))
        timestamp += draw(st.integers(0, 3000))
        found.append(Put(draw(st.integers(0, 8)), offset, timestamp))
    return found


def table_of(puts: list[Put]) -> tuple[bytearray, IndexTable]:
    buffer = bytearray(file_size(SLOTS, UNITS))
    table = IndexTable(buffer, SLOTS, UNITS)
    for put in puts:
        table.put(put.key_hash, put.offset, put.timestamp)
    table.write_header()
    return buffer, table


def naive(puts: list[Put], key_hash: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
    found = []
    for put in reversed(puts):
        second = puts[0].timestamp + (put.timestamp - puts[0].timestamp) // 1000 * 1000
        if put.key_hash == key_hash and begin_ms <= second + 999 and second <= end_ms:
            found.append(put.offset)
    return found[:count_max]


@given(histories(), st.integers(0, 8), st.integers(0, 5), st.data())
def test_queries(puts: list[Put], key_hash: int, count_max: int, data: st.DataObject) -> None:
    """A query finds what a search through all puts finds, also after the file was closed and opened."""
    buffer, table = table_of(puts)
    times = st.sampled_from([put.timestamp for put in puts] or [0])
    begin_ms = data.draw(times) + data.draw(st.sampled_from([-10_000, -1, 0, 1, 998, 999, 1000]))
    arguments = (key_hash, count_max, begin_ms, begin_ms + data.draw(st.integers(0, 20_000)))

    expected = naive(puts, *arguments)

    assert table.query(*arguments) == expected
    assert IndexTable(buffer, SLOTS, UNITS).query(*arguments) == expected


@given(histories(), st.integers(0, 4000))
def test_cuts(puts: list[Put], offset: int) -> None:
    """After a cut the slots are those of a file that never had the later puts."""
    buffer, table = table_of(puts)
    kept = [put for put in puts if put.offset < offset]

    table.truncate(offset)

    expected, fresh = table_of(kept)
    assert buffer[40 : 40 + 4 * SLOTS] == expected[40 : 40 + 4 * SLOTS]
    assert (table.next_unit, table.slots_used) == (fresh.next_unit, fresh.slots_used)
    for key_hash in range(9):
        assert table.query(key_hash, 99, 0, 10**9) == naive(kept, key_hash, 99, 0, 10**9)
