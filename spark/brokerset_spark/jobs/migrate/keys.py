"""Hashes of the keys that an index holds for each record. No I/O."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.hashing import index_hash, java_hash
from brokerset_formats.records import SysFlag
from brokerset_spark.jobs.migrate.tallies import Names
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bools, Bytes, Heads, Int32s, Int64s, Texts

_POWERS_KEPT: Final = 32_768
_PREFIXES_KEPT: Final = 65_536
_SPACE: Final = 0x20
_LAST: Final = 2**40
"""Behind all words that the keys of one record can have."""


def _powers() -> NDArray[np.uint32]:
    found = np.empty(_POWERS_KEPT, np.uint32)
    value = 1
    for number in range(_POWERS_KEPT):
        found[number] = value
        value = value * 31 & 0xFFFFFFFF
    return found


_POWERS: Final = _powers()
"""31 to the power of each length that properties can have, modulo 2**32."""


def key_hashes(
    data: Bytes, heads: Heads, names: Names, ids: NDArray[np.intp]
) -> tuple[NDArray[np.intp], Int32s]:
    """Record (its number) and hash of each key, in the order in which RocketMQ puts them.

    First the unique id, then each word of the keys, then the tags; rolled back transactions have none. The
    hash
    is of `topic#key`, and `topic#T#tags` (source: `IndexService.buildIndex` of RocketMQ 5.5): that of the
    first
    part times a power of 31, and that of the second.
    """
    indexed = (heads.sys_flag & SysFlag.TRANSACTION_MASK) != SysFlag.TRANSACTION_ROLLBACK
    prefixes = _prefixes(names, "#")
    unique_texts, keys, tag_texts = KERNELS.find_properties(data, heads, (b"UNIQ_KEY", b"KEYS", b"TAGS"))
    unique = _hashes(data, unique_texts, prefixes[ids])
    unique_rows = np.flatnonzero(indexed & (unique[0] >= 0))
    plain, special = _split(data, keys, indexed)
    single = _hashes(data, Texts(keys.starts[plain], keys.sizes[plain]), prefixes[ids[plain]])
    tags = _hashes(data, tag_texts, _prefixes(names, "#T#")[ids])
    tagged = np.flatnonzero(indexed & (tags[0] >= 0))
    rows = [unique_rows, plain, tagged]
    hashes = [unique[1][unique_rows], single[1], tags[1][tagged]]
    ranks = [np.zeros(len(unique_rows), np.int64), np.ones(len(plain), np.int64), np.full(len(tagged), _LAST)]
    for row in special.tolist():
        start, size = int(keys.starts[row]), int(keys.sizes[row])
        topic = names[ids[row]].decode(errors="replace")
        words = [
            word for word in data[start : start + size].tobytes().decode(errors="replace").split(" ") if word
        ]
        rows.append(np.full(len(words), row, np.intp))
        hashes.append(np.array([index_hash(f"{topic}#{word}") for word in words], np.int32))
        ranks.append(np.arange(1, len(words) + 1))
    all_rows, all_ranks = np.concatenate(rows), np.concatenate(ranks)
    order = np.lexsort((all_ranks, all_rows))
    return all_rows[order], np.concatenate(hashes).astype(np.int32)[order]


def _prefixes(names: Names, mark: str) -> NDArray[np.uint32]:
    """Hash of what stands before the key, for each topic."""
    return np.array([_prefix(name, mark) for name in names], np.uint32)


@lru_cache(_PREFIXES_KEPT)
def _prefix(name: bytes, mark: str) -> int:
    return java_hash(f"{name.decode(errors='replace')}{mark}") & 0xFFFFFFFF


def _split(data: Bytes, keys: Texts, indexed: NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
    """Records with one key, and those with several or with spaces around it."""
    there = np.flatnonzero(indexed & (keys.starts >= 0) & (keys.sizes > 0))
    with_space = _holds(data, Texts(keys.starts[there], keys.sizes[there]), _SPACE, _SPACE)
    return there[~with_space], there[with_space]


def _holds(data: Bytes, texts: Texts, low: int, high: int) -> Bools:
    """Which texts hold a byte from `low` to `high`; only the texts are looked at."""
    found = np.zeros(len(texts.starts), np.bool_)
    rows = np.flatnonzero((texts.starts >= 0) & (texts.sizes > 0))
    if len(rows):
        sizes = texts.sizes[rows].astype(np.int64)
        begins = np.cumsum(sizes) - sizes
        chosen = data[np.arange(int(sizes.sum())) + np.repeat(texts.starts[rows] - begins, sizes)]
        found[rows] = np.logical_or.reduceat((chosen >= low) & (chosen <= high), begins)
    return found


def _hashes(data: Bytes, texts: Texts, prefixes: NDArray[np.uint32]) -> tuple[Int64s, Int32s]:
    """Starts of the texts, and the hash of prefix and text as an index has it; texts may be missing."""
    inner = KERNELS.java_hashes(data, texts).astype(np.int64).astype(np.uint32)
    lengths = _utf16_lengths(data, texts)
    values = (prefixes * _POWERS[lengths] + inner).astype(np.int32).astype(np.int64)
    absolute = np.where(values == -(2**31), 0, np.abs(values))
    return texts.starts, absolute.astype(np.int32)


def _utf16_lengths(data: Bytes, texts: Texts) -> Int64s:
    """Length of each text as Java counts it; that of its bytes where they are ASCII."""
    lengths = texts.sizes.astype(np.int64)
    for number in np.flatnonzero(_holds(data, texts, 0x80, 0xFF)).tolist():
        start = int(texts.starts[number])
        text = data[start : start + int(texts.sizes[number])].tobytes().decode(errors="replace")
        lengths[number] = len(text.encode("utf-16-le")) // 2
    return lengths
