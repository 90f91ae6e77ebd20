"""What the kernels give: values, names and limits that both implementations share.

All positions are indexes into the buffer at hand; all offsets are those of the whole log (`base` + position).
Formats: `brokerset_formats.records`, `brokerset_formats.dledger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

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


class GroupNumbers(Protocol):
    """Numbers the groups (topic and queue id) of records in the order in which they appear."""

    def number(self, data: Bytes, topics: Texts, queue_ids: Int32s) -> Int64s:
        """The group of each record. ValueError if a topic leaves the data."""
        ...

    def group(self, number: int) -> tuple[bytes, int]:
        """Topic and queue id of a group."""
        ...

    def __len__(self) -> int:
        """How many groups there are."""
        ...


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


class Kernels(Protocol):
    """The functions of a module of kernels. None of them changes its input, but for `out`.

    Arrays are contiguous. No bytes are bad enough for an exception; ValueError means that positions or sizes
    that were handed in leave the buffer, or that a number does not fit its field.
    """

    NAME: str
    """`pure` or `compiled`."""

    def crc31(self, data: Bytes) -> int:
        """CRC-32 & 0x7FFFFFFF."""
        ...

    def walk(self, data: Bytes, start: int, end: int, base: int, *, final: bool, crc: bool) -> Walked:
        """Records that begin in `[start, end)`, up to the first that is not whole and consistent.

        With `final` the file ends where the data end, and what does not fit is a problem, not `SHORT`. With
        `crc` records are checked against the CRC at the end of their properties, or bodies against theirs.
        Everything else that can be checked is: magic, size, lengths, physicalOffset == base + position.
        """
        ...

    def walk_entries(
        self, data: Bytes, start: int, end: int, base: int, *, index: int, final: bool, crc: bool
    ) -> Entries:
        """The same for the entries of a DLedger; `index` is what the first one must have, -1 for any.

        An entry of magic 1 with a body must hold one whole record: a message whose magic is damaged is a
        problem, and no entry without message.
        """
        ...

    def resync(self, data: Bytes, start: int, end: int, base: int) -> int:
        """Position of the first record in `[start, end)` that is surely one, or a negative number.

        Sure is what gives itself the right offset and is followed by `CONFIRMATIONS` more, or by fewer (but
        one) and a blank record, zeros, or the end of the data. -1: there is none; `-2 - p`: none either, but
        the data end inside what begins at `p`, and more of them may show a record there. The last 7 bytes are
        too few to tell: whoever reads on keeps them.
        """
        ...

    def resync_entries(self, data: Bytes, start: int, end: int, base: int) -> int:
        """The same for entries."""
        ...

    def heads(self, data: Bytes, starts: Int64s) -> Heads:
        """Fixed fields of records that `walk` found. ValueError if a record leaves the data."""
        ...

    def find_property(self, data: Bytes, heads: Heads, name: bytes) -> Texts:
        """Value of one property in each record; of several with the same name the last one, as Java's map."""
        ...

    def find_properties(self, data: Bytes, heads: Heads, names: Sequence[bytes]) -> list[Texts]:
        """`find_property` for several names, in one pass over the properties."""
        ...

    def split_properties(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Pairs:
        """All pairs of texts that are properties (`name 0x01 value 0x02`, repeated), in their order.

        Pairs without name or value are left out. ValueError if a text leaves the data, or for 2 GiB of texts.
        """
        ...

    def copy_texts(self, data: Bytes, texts: Texts) -> Laid:
        """Copies of these texts; an empty one where there is none.

        ValueError if a text leaves the data, or for 2 GiB of texts.
        """
        ...

    def hex_texts(self, data: Bytes, heads: Texts, tails: Texts) -> Laid:
        """The bytes of each text of `heads`, and of that of `tails` behind it, as upper-case digits.

        ValueError as `copy_texts`.
        """
        ...

    def number_texts(self, data: Bytes, texts: Texts) -> Numbered:
        """Number texts; where there is none it counts as an empty one. ValueError if one leaves the data."""
        ...

    def count_fitting(
        self, units: Bytes, rows: Int64s, offsets: Int64s, sizes: Int32s, codes: Int64s, least_code: int
    ) -> int:
        """How many queue units, from the first one on, are what rows of the columns say.

        `units` are as many as `rows`, 20 bytes each; unit n must have offset, size and code of row `rows[n]`,
        and a code of at least `least_code`. ValueError if there are fewer units, or no such row.
        """
        ...

    def new_groups(self) -> GroupNumbers:
        """Without any group yet."""
        ...

    def sum_groups(self, groups: Int64s, wanted: Bools, sizes: Int32s, heads: Heads, sums: Int64s) -> int:
        """Add the wanted records to the rows of their groups, see `GROUP_SUMS`; how many there were."""
        ...

    def find_crcs(self, data: Bytes, starts: Int64s, sizes: Int32s) -> Int64s:
        """Numbers of the records that end with a CRC over the whole record. ValueError as `to_records`."""
        ...

    def pack(self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, total: int) -> Packed:
        """Copy records one behind the other, with zeros for what a migration changes.

        These are the offset of a half message, and the CRC over the whole record; physicalOffset becomes
        `total` + the position in `out`. ValueError as `to_records`.
        """
        ...

    def java_hashes(self, data: Bytes, texts: Texts) -> Int32s:
        """`String.hashCode` of UTF-8 texts; 0 where there is none. U+FFFD for what is no UTF-8."""
        ...

    def to_entries(
        self,
        data: Bytes,
        starts: Int64s,
        sizes: Int32s,
        out: Bytes,
        positions: Int64s,
        out_base: int,
        *,
        first_index: int,
        term: int,
    ) -> None:
        """Write records as DLedger entries to positions of `out`, whose first byte has offset `out_base`.

        physicalOffset becomes the offset of the record inside its entry. ValueError if a row does not fit;
        those before it may have been written.
        """
        ...

    def to_records(
        self, data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, positions: Int64s, out_base: int
    ) -> None:
        """Write records to these positions of `out`; physicalOffset becomes `out_base` + position.

        ValueError as `to_entries`.
        """
        ...
