"""What the dispatcher of a broker makes of records: queue units and index keys, whole arrays at a time.

`verify` compares a store with it, `migrate` writes it. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from brokerset_formats.hashing import index_hash, java_hash
from brokerset_formats.records import SysFlag
from brokerset_spark.kernels import KERNELS, Heads, Texts
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""`messageDelayLevel` of RocketMQ, unless a broker sets another."""

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PREFIXES_KEPT: Final = 65_536
_POWERS: Final = np.ones(32_768, np.uint32)
_POWERS[1:] = np.multiply.accumulate(np.full(32_767, 31, np.uint32), dtype=np.uint32)
"""31 to the power of each length that properties can have, modulo 2^32."""


def topic_text(name: bytes) -> str:
    """A topic for reports and paths; damaged bytes are escaped."""
    return name.decode(errors="backslashreplace")


def parse_delays(levels: str) -> list[int]:
    """Milliseconds of each delay level, from the first; ValueError names what cannot be read."""
    found = []
    for word in levels.split():
        if word[-1] not in _UNITS or not word[:-1].isdigit():
            raise ValueError(f"delay level {word!r}: write a number and one of s, m, h, d")
        found.append(int(word[:-1]) * _UNITS[word[-1]])
    return found


def is_dispatched(heads: Heads) -> Bools:
    """Which records get a queue unit: half messages and rolled back ones do not."""
    found: Bools = (heads.sys_flag & SysFlag.TRANSACTION_PREPARED) == 0
    return found


def tags_codes(data: Bytes, heads: Heads, delayed: Int64s, delays: Sequence[int]) -> tuple[Int64s, Bools]:
    """The tags code of each record's unit, and whether it is a time of delivery instead of a hash.

    `delayed` are the rows of the records that wait for their delivery.
    """
    found = KERNELS.java_hashes(data, KERNELS.find_property(data, heads, b"TAGS")).astype(np.int64)
    is_time = np.zeros(len(found), np.bool_)
    if not len(delayed):
        return found, is_time
    levels = KERNELS.find_property(data, heads, b"DELAY")
    for row in delayed.tolist():
        level = int_property(data, int(levels.starts[row]), int(levels.sizes[row]), digits_max=9)
        if level > 0:
            found[row] = int(heads.store_timestamp[row]) + delays[min(level, len(delays)) - 1]
            is_time[row] = True
    return found, is_time


def int_property(data: Bytes, start: int, size: int, *, digits_max: int = 18) -> int:
    """A property that is a number; -1 for none, and for what is no number."""
    text = data[start : start + size].tobytes() if start >= 0 else b""
    return int(text) if text.isdigit() and len(text) <= digits_max else -1


# -- the index ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of records, in the order in which the dispatcher puts them into the index."""

    rows: Int64s
    """Number of the record."""

    hashes: Int64s
    required: Bools
    """False for tags, which RocketMQ indexes from 5.4 on, and brokerset does not."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One property that is indexed: `topic` + `between` + a value."""

    name: bytes
    between: str
    words: bool
    """Whether the value is several keys, separated by spaces."""

    required: bool


_KINDS: Final = (
    _Kind(b"UNIQ_KEY", "#", words=False, required=True),
    _Kind(b"KEYS", "#", words=True, required=True),
    _Kind(b"TAGS", "#T#", words=False, required=False),
)
"""Source: `IndexService.buildIndex` of RocketMQ 5.5."""


def index_keys(data: Bytes, heads: Heads, names: Sequence[bytes], topics: Int32s | Int64s) -> Keys:
    """UNIQ_KEY, each word of KEYS, and the tags of each record, but for rolled back ones.

    `topics` are the numbers of the records' topics in `names`.
    """
    live = (heads.sys_flag & SysFlag.TRANSACTION_MASK) != SysFlag.TRANSACTION_ROLLBACK
    rows: list[Int64s] = []
    hashes: list[Int64s] = []
    required: list[Bools] = []
    found = KERNELS.find_properties(data, heads, [kind.name for kind in _KINDS])
    for kind, texts in zip(_KINDS, found, strict=True):
        have = np.flatnonzero((texts.starts >= 0) & live)
        plain = _is_plain(data, Texts(texts.starts[have], texts.sizes[have]), kind.words)
        chosen, rest = have[plain], have[~plain]
        prefixes = np.array([_prefix(name, kind.between) for name in names], np.uint32)
        tails = KERNELS.java_hashes(data, Texts(texts.starts[chosen], texts.sizes[chosen]))
        # hash(a + b) = hash(a) * 31 ** len(b) + hash(b)
        whole = prefixes[topics[chosen]] * _POWERS[texts.sizes[chosen]] + tails.view(np.uint32)
        signed = whole.view(np.int32).astype(np.int64)
        words = [
            (row, index_hash(f"{names[topics[row]].decode(errors='replace')}{kind.between}{word}"))
            for row in rest.tolist()
            for word in _words(data, int(texts.starts[row]), int(texts.sizes[row]), kind.words)
        ]
        odd = np.array(words, np.int64).reshape(-1, 2)
        rows += [chosen, odd[:, 0]]
        hashes += [np.where(signed == -(2**31), 0, np.abs(signed)), odd[:, 1]]
        required.append(np.full(len(chosen) + len(odd), kind.required))
    all_rows = np.concatenate(rows)
    order = np.argsort(all_rows, kind="stable")
    return Keys(all_rows[order], np.concatenate(hashes)[order], np.concatenate(required)[order])


@lru_cache(_PREFIXES_KEPT)
def _prefix(name: bytes, between: str) -> int:
    """Hash of what stands before the key."""
    return java_hash(name.decode(errors="replace") + between) & 0xFFFFFFFF


def _words(data: Bytes, start: int, size: int, several: bool) -> list[str]:
    text = data[start : start + size].tobytes().decode(errors="replace")
    return [word for word in text.split(" ") if word] if several else [text]


def _is_plain(data: Bytes, texts: Texts, one_word: bool) -> Bools:
    """Which texts are ASCII, and with `one_word` without spaces: their hash can be put together."""
    if not len(texts.starts):
        return np.empty(0, np.bool_)
    sizes = texts.sizes.astype(np.int64)
    begins = np.cumsum(sizes) - sizes
    chosen = data[np.arange(int(sizes.sum())) + np.repeat(texts.starts - begins, sizes)]
    odd = (chosen >= 0x80) | (chosen == 0x20) if one_word else chosen >= 0x80
    plain: Bools = ~np.logical_or.reduceat(odd, begins)
    return plain
