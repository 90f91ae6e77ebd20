"""Reads a store's files record by record with `brokerset_formats` alone: a second opinion on what jobs made of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from brokerset_formats.dledger import ENTRY_HEAD_SIZE, LedgerBlank, decode_entry
from brokerset_formats.errors import FormatError
from brokerset_formats.queue_units import BLANK_SIZE, UNIT_SIZE, decode_unit
from brokerset_formats.records import (
    PROPERTY_CRC_SIZE,
    Blank,
    Record,
    RecordHead,
    check_record,
    decode_record,
    ends_with_property_crc,
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A record, where it lies, and its bytes without its two offsets and the CRC over them."""

    record: Record
    offset: int
    size: int
    content: bytes
    term: int = -1


def _content(raw: bytes) -> bytes:
    """Without physicalOffset (at 28), preparedTransactionOffset (before the body's length), and a CRC of both."""
    if ends_with_property_crc(raw[-PROPERTY_CRC_SIZE - 1 :]):
        raw = raw[:-PROPERTY_CRC_SIZE]
    sys_flag = struct.unpack_from(">i", raw, 36)[0]
    prepared = 76 + 12 * (bool(sys_flag & 0x10) + bool(sys_flag & 0x20))
    return raw[:28] + bytes(8) + raw[36:prepared] + bytes(8) + raw[prepared + 8 :]


def _stored(data: bytes, position: int, limit: int, base: int, term: int = -1) -> Stored | None:
    head = check_record(data, position, limit, verify_crc=True)
    if not isinstance(head, RecordHead):
        return None
    raw = data[position : position + head.size]
    record = decode_record(raw)
    assert record.offset == base + position, "a record says where it lies"
    return Stored(record, base + position, head.size, _content(raw), term)


def stored_at(data: bytes, position: int) -> Stored:
    """The record at a position of what a broker answered; its offset is the one that it says."""
    record = decode_record(data, position)
    return Stored(record, record.offset, record.size, _content(data[position : position + record.size]))


def read_commit_log(store: Path) -> list[Stored]:
    """All records of `commitlog/`, up to the first thing that is none."""
    found: list[Stored] = []
    for path in sorted((store / "commitlog").glob("*")):
        data, base, position = path.read_bytes(), int(path.name), 0
        while True:
            each = _stored(data, position, len(data), base)
            if each is None:
                break
            found.append(each)
            position += each.size
        if not isinstance(check_record(data, position, len(data), verify_crc=True), Blank):
            break
    return found


def read_ledger(store: Path) -> list[Stored]:
    """All messages of the DLedger of a store; AssertionError if its entries are not in a row."""
    found: list[Stored] = []
    index = None
    for path in sorted(store.glob("dledger-*/data/*")):
        data, base, position = path.read_bytes(), int(path.name), 0
        while position + 8 <= len(data):
            try:
                entry = decode_entry(data, position)
            except FormatError:
                return found
            if isinstance(entry, LedgerBlank):
                assert entry.size == len(data) - position
                assert not any(data[position + 8 :])
                break
            assert entry.position == base + position
            assert entry.index == (entry.index if index is None else index)
            index = entry.index + 1
            each = _stored(data, position + ENTRY_HEAD_SIZE, position + entry.size, base, entry.term)
            if each is not None:
                found.append(each)
            position += entry.size
    return found


def read_store(store: Path) -> list[Stored]:
    """The whole log: the commit log, then the DLedger behind it."""
    return read_commit_log(store) + read_ledger(store)


def read_queue(folder: Path) -> tuple[int, dict[int, tuple[int, int, int]]]:
    """The queue offset behind the last unit, and offset, size and tags code of each message by queue offset."""
    end, units = 0, {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for position in range(0, len(data), UNIT_SIZE):
            unit = decode_unit(data, position)
            if not unit.is_valid:
                break
            end = (int(path.name) + position) // UNIT_SIZE + 1
            if unit.size != BLANK_SIZE:
                units[end - 1] = (unit.offset, unit.size, unit.tags_code)
    return end, units


def queue_problems(store: Path) -> list[str]:
    """Where queues and log disagree: every message in its queue, every unit a message, without gaps."""
    by_offset = {each.offset: each for each in read_store(store)}
    first = min(by_offset)
    pointed: set[int] = set()
    found = []
    for folder in sorted((store / "consumequeue").glob("*/*")):
        end, units = read_queue(folder)
        live = {number: unit for number, unit in units.items() if unit[0] >= first}
        if live and sorted(live) != list(range(min(live), end)):
            found.append(f"{folder}: gaps")
        for number, (offset, size, _) in live.items():
            each = by_offset.get(offset)
            pointed.add(offset)
            if each is None or each.size != size or each.record.queue_offset != number:
                found.append(f"{folder}: unit {number} points to {offset}, where {each} lies")
            elif (each.record.topic, str(each.record.queue_id)) != (folder.parent.name, folder.name):
                found.append(f"{folder}: unit {number} points to a message of {each.record.topic}")
    missing = by_offset.keys() - pointed
    if missing:
        found.append(f"{len(missing)} messages are in no queue, the first at {min(missing)}")
    return found
