"""The byte work of a broker, in Rust. `brokerset_formats.native` imports it, nothing else does."""

from mmap import mmap
from typing import Final

INTERFACE: Final[int]
"""Number of the interface between the Python code and this module; both sides must have the same."""

__version__: Final[str]

def take_records(
    view: memoryview,
    start: int,
    position: int,
    *,
    stop: int,
    limit: int,
    records_max: int,
    entry_head: int,
    verify_crc: bool,
    units: bool,
    index: bool,
) -> tuple[int, int, list[tuple[bytes, int, int, int, int, bytes, int | None]], bytes] | None:
    """Plain records of the file in `view` whose first byte has the offset `start`, from `position` on.

    They begin before `stop` and end before `limit`. None if the first is not plain, or: position behind the
    last, newest store time, runs (topic, queue id, first queue offset, first offset, end of the last record,
    packed units, their tags code or None for several), packed `index_file.ENTRY` of all keys.
    """

def find_magic(view: bytes | bytearray | memoryview, begin: int, end: int, /) -> int | None:
    """Where the first magic of a record begins, at `begin` or behind it, but before `end`."""

def put_index_entries(
    table: object, memory: mmap | bytearray, slots: int, room: int, entries: bytes, done: int, /
) -> int:
    """See `IndexTable.put_entries`; `table` has the header's fields as attributes, `memory` is the file."""

def index_hash(topic: bytes, key: bytes, /) -> int | None:
    """`hashing.index_hash` of a topic and a key in UTF-8; None for other bytes."""

def java_hash(text: bytes, /) -> int | None:
    """`hashing.java_hash` of UTF-8 bytes; None for other bytes."""

def derived(raw: bytes, /) -> tuple[int, bytes | None, bytes | None] | None:
    """Tags code, client-made id and keys of raw properties; None if the tags are not UTF-8."""

def find_property(raw: bytes, name: bytes, /) -> bytes | None:
    """`properties.find_property`."""
