"""Index files have Java's bytes."""

from __future__ import annotations

import struct

import pytest

from brokerset_formats import index_file
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import index_hash
from brokerset_formats.index_file import IndexHeader, IndexTable, file_size

K1 = index_hash("TopicTest#k1")
K2 = index_hash("TopicTest#k2")
T0 = 1_700_000_000_123
END = 1 << 62


def filled() -> tuple[bytearray, IndexTable]:
    """The verified file: 8 slots, 16 units, three puts."""
    buffer = bytearray(file_size(8, 16))
    table = IndexTable(buffer, 8, 16)
    table.put(K1, 4096, T0)
    table.put(K2, 4096, T0)
    table.put(K1, 8192, T0 + 5876)
    table.write_header()
    return buffer, table


def test_bytes_of_java() -> None:
    """Header, slots and units of the verified file."""
    buffer, table = filled()

    assert (K1, K2) == (2746024, 2746025)
    assert buffer[:40].hex() == (
        "0000018bcfe5687b0000018bcfe57f6f000000000000100000000000000020000000000200000004"
    )
    assert struct.unpack_from(">8i", buffer, 40) == (3, 2, 0, 0, 0, 0, 0, 0)
    units = buffer[40 + 32 :].hex()
    assert units[:40] == "0" * 40
    assert units[40:80] == "0029e6a800000000000010000000000000000000"
    assert units[80:120] == "0029e6a900000000000010000000000000000000"
    assert units[120:160] == "0029e6a800000000000020000000000500000001"
    assert table.query(K1, 10, 0, END) == [8192, 4096]


def test_size_with_default_settings() -> None:
    """The default file has 420,000,040 bytes."""
    assert file_size(index_file.SLOTS_DEFAULT, index_file.UNITS_DEFAULT) == 420_000_040


def test_a_file_goes_on_where_it_was_closed() -> None:
    """A table over the same bytes knows what was put."""
    buffer, _ = filled()

    again = IndexTable(buffer, 8, 16)

    assert again.next_unit == 4
    assert again.query(K2, 10, 0, END) == [4096]
    assert IndexHeader.decode(buffer).encode() == buffer[:40]


def test_query_by_time_and_count() -> None:
    """Both ends of the time are included, to the second; the newest messages come first."""
    _, table = filled()

    assert table.query(K1, 1, 0, END) == [8192]
    assert table.query(K1, 10, T0 + 6000, END) == []
    assert table.query(K1, 10, T0 + 5999, END) == [8192]
    assert table.query(K1, 10, T0 + 5876, END) == [8192]
    assert table.query(K1, 10, 0, T0 + 4999) == [4096]
    assert table.query(index_hash("TopicTest#k9"), 10, 0, END) == []
    assert table.covers(0, T0)
    assert not table.covers(0, T0 - 1)
    assert not table.covers(T0 + 5877, END)


def test_truncate_undoes_puts_exactly() -> None:
    """After a cut the file is what it was before the later puts, but for bytes that nobody reads."""
    buffer, table = filled()
    before = bytes(buffer)
    table.put(K2, 12000, T0 + 9000)
    table.put(index_hash("TopicTest#other"), 12000, T0 + 9000)
    table.write_header()

    table.truncate(12000)

    assert buffer[16 : 40 + 32] == before[16 : 40 + 32]
    assert table.end_timestamp <= T0 + 5876 + 999
    table.truncate(0)
    assert table.empty
    assert IndexTable(buffer, 8, 16).empty
    assert not any(buffer[40 : 40 + 32])


def test_times_before_the_first_message_count_as_the_first() -> None:
    """Differences are clamped to what a unit can hold."""
    table = IndexTable(bytearray(file_size(1, 4)), 1, 4)
    table.put(5, 100, 5_000_000)
    table.put(5, 200, 1)
    table.put(5, 300, 1 << 50)

    assert table.full
    assert table.query(5, 9, 0, END) == [300, 200, 100]


def test_a_file_of_zeros_is_new() -> None:
    """A process that died before the first put leaves zeros."""
    assert IndexTable(bytearray(file_size(8, 16)), 8, 16).next_unit == 1


def test_damaged_headers() -> None:
    """Numbers that cannot be are refused."""
    buffer, _ = filled()
    for position, value in ((36, 17), (36, -1), (32, 9), (32, -1), (16, -1), (24, 1), (36, 0)):
        damaged = bytearray(buffer)
        struct.pack_into(">i" if position >= 32 else ">q", damaged, position, value)
        with pytest.raises(FormatError):
            IndexTable(damaged, 8, 16)
    with pytest.raises(FormatError):
        IndexTable(buffer, 8, 17)
    with pytest.raises(FormatError):
        IndexHeader.decode(bytearray(39))


def test_damaged_chains_end() -> None:
    """A chain that leads forward or to itself ends the query; a cut finds it out."""
    buffer, table = filled()
    struct.pack_into(">i", buffer, 40 + 32 + 3 * 20 + 16, 3)

    assert table.query(K1, 10, 0, END) == [8192]
    with pytest.raises(FormatError):
        table.truncate(0)


def test_long_chains_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query follows a bounded number of units."""
    monkeypatch.setattr(index_file, "CHAIN_STEPS_MAX", 2)
    table = IndexTable(bytearray(file_size(1, 8)), 1, 8)
    for number in range(5):
        table.put(7, number, number)

    assert table.query(7, 9, 0, END) == [4, 3]


def test_putting_many_at_once_gives_the_same_file_as_one_by_one() -> None:
    """Also where several of them share a slot, and with units there before."""
    buffers = bytearray(file_size(8, 64)), bytearray(file_size(8, 64))
    one, many = IndexTable(buffers[0], 8, 64), IndexTable(buffers[1], 8, 64)
    entries = [(n * 3 % 11, 100 + n) for n in range(40)]
    for table in (one, many):
        table.put(7, 50, 1_000)

    for key_hash, offset in entries:
        one.put(key_hash, offset, 5_999)
    many.put_many(entries[:25], 5_999)
    many.put_many(entries[25:], 5_999)

    one.write_header()
    many.write_header()
    assert buffers[0] == buffers[1]


@pytest.mark.parametrize("again", [False, True])
def test_a_writer_killed_between_slots_and_header_loses_no_older_message(again: bool) -> None:
    """The slots point behind the last unit then; queries and later puts find the way back."""
    buffer = bytearray(file_size(4, 64))
    table = IndexTable(buffer, 4, 64)
    table.put_many([(5, 10), (9, 20), (6, 30)], 1_000)
    table.write_header()
    table.put_many([(5, 40), (9, 50), (6, 60)], 2_000)
    reopened = IndexTable(buffer, 4, 64)
    if again:
        reopened.put_many([(5, 40), (9, 50), (6, 60)], 2_000)

    found = {key: reopened.query(key, 10, 0, 10_000) for key in (5, 9, 6)}

    newest = {5: [40], 9: [50], 6: [60]} if again else {5: [], 9: [], 6: []}
    assert found == {key: newest[key] + [old] for key, old in ((5, 10), (9, 20), (6, 30))}
