"""What `loops` does, without a compiler: the reference, and slow."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.kernels import pure
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s

_PREPARED_BEFORE_BODY: Final = 12
_CRC_NAME: Final = np.frombuffer(b"__CRC32#\x01", np.uint8)
_CRC_SIZE: Final = len(_CRC_NAME) + 11


def find_crcs(data: Bytes, starts: Int64s, sizes: Int32s, found: Int64s) -> int:
    """See `loops.find_crcs`."""
    if not len(starts):
        return 0
    if starts.min() < 0 or sizes.min() < 0 or (starts + sizes).max() > len(data):
        return -1
    ends = starts + sizes
    rows = np.flatnonzero(sizes > _CRC_SIZE)
    rows = rows[data[ends[rows] - 1] == 2]
    if len(rows):
        names = data[(ends[rows] - _CRC_SIZE)[:, None] + np.arange(len(_CRC_NAME))]
        rows = rows[(names == _CRC_NAME).all(axis=1)]
    found[: len(rows)] = rows
    return len(rows)


def pack(data: Bytes, starts: Int64s, sizes: Int32s, out: Bytes, total: int) -> tuple[int, int, int]:
    """See `loops.pack`."""
    ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
    positions = ends - sizes
    try:
        pure.to_records(data, starts, sizes, out, positions, total)
        heads = pure.heads(data, starts)
    except ValueError:
        return -1, 0, 0
    named = np.flatnonzero(heads.prepared_transaction_offset)
    at = heads.body[named] - starts[named] + positions[named] - _PREPARED_BEFORE_BODY
    out[at[:, None] + np.arange(8)] = 0
    crcs = np.empty(len(starts), np.int64)
    count = find_crcs(data, starts, sizes, crcs)
    out[(ends[crcs[:count]] - 11)[:, None] + np.arange(10)] = 0
    return int(ends[-1]) if len(ends) else 0, len(named), count
