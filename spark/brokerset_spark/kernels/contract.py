"""What the kernels give: values, names and limits that both implementations share.

All positions are indexes into the buffer at hand; all offsets are those of the whole log (`base` + position).
Formats: `brokerset_formats.records`, `brokerset_formats.dledger`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]

CONFIRMATIONS: int = 8
"""Records that must follow each other before a record found by `resync` is believed."""

MAGIC_LEDGER_MAX: int = 3
"""Entries of DLedger 0.4 and later may have 2 (no-op) or 3 (configuration); with 1 they hold a record."""

INDEX_MAX: int = 2**63 - 2
"""Of an entry: the next one has a number, too."""

ENTRY_MAX: int = 2**31 - 1
"""Bytes of an entry: the size is a signed number of 32 bits."""

OFFSET_MAX: int = 2**63 - 1


class Stop(IntEnum):
    """Why a walk ended at its `position`."""

    RANGE_END = 0
    """The next record, if any, begins at or behind the end of the range."""

    SHORT = 1
    """The buffer ends inside what would be next: read more bytes, and go on from `position`."""

    BLANK = 2
    """A blank record: the file ends here."""

    EMPTY = 3
    """Zeros where a record would begin: most likely the end of the log."""

    BAD_MAGIC = 4
    BAD_SIZE = 5
    """The record does not fit what is left of the file, or is shorter than its fixed part."""

    BAD_LENGTHS = 6
    """The lengths inside do not add up to its size."""

    BAD_OFFSET = 7
    """It says that it belongs elsewhere (physicalOffset, or pos of an entry)."""

    BAD_CRC = 8
    """The body does not match its CRC."""

    BAD_INDEX = 9
    """The index of an entry does not follow on the one before, or index or term is negative."""


PROBLEMS = frozenset(
    {Stop.BAD_MAGIC, Stop.BAD_SIZE, Stop.BAD_LENGTHS, Stop.BAD_OFFSET, Stop.BAD_CRC, Stop.BAD_INDEX}
)
"""Stops that mean damage, unless they lie at the end of the log."""


class Walked(NamedTuple):
    """Whole, consistent records, one after the other."""

    starts: Int64s
    """Position of each record."""

    sizes: Int32s
    position: int
    """Where the walk stopped: behind the last of them."""

    stop: Stop


class Entries(NamedTuple):
    """Whole, consistent entries of a DLedger, one after the other."""

    starts: Int64s
    """Position of each entry; its record begins 48 behind."""

    sizes: Int32s
    """Of the entries, heads included."""

    indexes: Int64s
    terms: Int64s
    are_records: Bools
    """False for entries that hold no message: magic 2 or 3, or an empty body."""

    position: int
    stop: Stop


class Heads(NamedTuple):
    """The fixed fields of records, one array for each, and where the others lie in the buffer."""

    body_crc: Int32s
    queue_id: Int32s
    flag: Int32s
    queue_offset: Int64s
    offset: Int64s
    """physicalOffset, as the record says."""

    sys_flag: Int32s
    born_timestamp: Int64s
    store_timestamp: Int64s
    reconsume_times: Int32s
    prepared_transaction_offset: Int64s
    born_host: Int64s
    """Position of address and port; 8 bytes, or 20 with sysFlag 0x10."""

    store_host: Int64s
    """The same; 20 bytes with sysFlag 0x20."""

    body: Int64s
    body_size: Int32s
    topic: Int64s
    topic_size: Int32s
    properties: Int64s
    properties_size: Int32s


class Texts(NamedTuple):
    """Parts of the buffer; a start of -1 means that there is none."""

    starts: Int64s
    sizes: Int32s


class Laid(NamedTuple):
    """Texts one behind the other, divided at `offsets`; these are one more than the texts."""

    flat: Bytes
    offsets: Int32s


class Numbered(NamedTuple):
    """Texts by number: equal ones have the same, counted in the order in which they first appear."""

    codes: Int32s
    """Of each text."""

    firsts: Int64s
    """For each number, which text is the first that has it."""


class Packed(NamedTuple):
    """What `pack` has copied."""

    size: int
    named: int
    """Records that name a half message."""

    crcs: int
    """Records with a CRC over the whole record."""


GROUP_SUMS: int = 7
"""Columns of a group: records, bytes, sums of CRCs and of queue offsets, lowest and highest queue offset,
last physicalOffset."""

PAIRS_COMPARED: int = 64
"""Pairs of one record whose names `split_properties` compares with each other."""


class Pairs(NamedTuple):
    """Names and values of properties, copied one behind the other; they are divided at `*_offsets`."""

    offsets: Int32s
    """Number of the first pair of each record, and the number of all pairs."""

    names: Bytes
    name_offsets: Int32s
    values: Bytes
    value_offsets: Int32s
    repeated: bool
    """Whether a record has a name twice, or more than `PAIRS_COMPARED` pairs."""
