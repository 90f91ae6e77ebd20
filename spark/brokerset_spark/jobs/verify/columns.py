"""What the checks of queues and index need of records: columns, from a chunk of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from brokerset_formats.hashing import index_hash, java_hash
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_spark.kernels import Heads, Kernels, Texts
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s
from brokerset_spark.stores.reading import Chunk

TAGS_PROPERTY = b"TAGS"


@dataclass(slots=True)
class Topics:
    """Topics by number, in the order in which they were met."""

    names: list[bytes] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)

    def number(self, name: bytes) -> int:
        """Of this topic, a new one for a new topic."""
        found = self.numbers.get(name)
        if found is None:
            found = self.numbers[name] = len(self.names)
            self.names.append(name)
        return found


@dataclass(frozen=True, slots=True)
class Columns:
    """Records in the order of the log."""

    topic: Int32s
    """Number in `Topics`."""

    queue_id: Int32s
    queue_offset: Int64s
    offset: Int64s
    size: Int32s
    time: Int64s
    tags_code: Int64s
    """What the unit must have."""

    delayed: Bools
    """Whether `tags_code` is a time of delivery."""

    queued: Bools
    """Whether the record must have a unit of 20 bytes: no half or rolled back record, no inner batch."""


def topic_numbers(data: Bytes, heads: Heads, topics: Topics, kernels: Kernels) -> Int32s:
    """The number of each record's topic."""
    codes, firsts = kernels.number_texts(data, Texts(heads.topic, heads.topic_size))
    bounds = zip(heads.topic[firsts].tolist(), heads.topic_size[firsts].tolist(), strict=True)
    numbers = [topics.number(data[start : start + size].tobytes()) for start, size in bounds]
    if numbers == list(range(len(numbers))):
        return codes
    found: Int32s = np.array(numbers, np.int32)[codes]
    return found


def columns_of(
    chunk: Chunk, heads: Heads, topics: Topics, delays: list[int], tag_texts: Texts, kernels: Kernels
) -> Columns:
    """The columns of a chunk's records, whose TAGS are `tag_texts`."""
    data = chunk.data
    numbers = topic_numbers(data, heads, topics, kernels)
    tags = kernels.java_hashes(data, tag_texts).astype(np.int64)
    delayed = np.zeros(len(numbers), np.bool_)
    schedule = topics.numbers.get(SCHEDULE_TOPIC.encode())
    if schedule is not None:
        at_topic = np.flatnonzero(numbers == schedule)
        if len(at_topic):
            _deliver_times(data, heads, at_topic, delays, tags, delayed, kernels)
    kind = heads.sys_flag & 0xC
    queued = ((kind == 0) | (kind == 8)) & ((heads.sys_flag & 0x80) == 0)
    return Columns(
        topic=numbers,
        queue_id=heads.queue_id.copy(),
        queue_offset=heads.queue_offset.copy(),
        offset=chunk.base + chunk.starts,
        size=chunk.sizes.copy(),
        time=heads.store_timestamp.copy(),
        tags_code=tags,
        delayed=delayed,
        queued=queued,
    )


def _deliver_times(
    data: Bytes,
    heads: Heads,
    chosen: Int64s,
    delays: list[int],
    tags: Int64s,
    delayed: Bools,
    kernels: Kernels,
) -> None:
    levels = kernels.find_property(data, heads, b"DELAY")
    for number in chosen.tolist():
        start, size = int(levels.starts[number]), int(levels.sizes[number])
        text = data[start : start + size].tobytes() if start >= 0 else b""
        if text.isdigit() and len(text) < 10 and int(text) > 0:
            level = min(int(text), len(delays))
            tags[number] = int(heads.store_timestamp[number]) + delays[level - 1]
            delayed[number] = True


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of records as the index may have them, in the order of the log."""

    hashes: Int64s
    offset: Int64s
    time: Int64s
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


_KINDS = (
    _Kind(b"UNIQ_KEY", "#", words=False, required=True),
    _Kind(b"KEYS", "#", words=True, required=True),
    _Kind(b"TAGS", "#T#", words=False, required=False),
)
_POWERS = np.ones(32_768, np.uint32)
_POWERS[1:] = np.multiply.accumulate(np.full(32_767, 31, np.uint32), dtype=np.uint32)


def keys_of(chunk: Chunk, heads: Heads, columns: Columns, topics: Topics, kernels: Kernels) -> Keys:
    """UNIQ_KEY, each word of KEYS, and the tags of each record, but for rolled back ones."""
    data = chunk.data
    live = (heads.sys_flag & 0xC) != 0xC
    parts: list[tuple[Int64s, Int64s, bool]] = []
    found = kernels.find_properties(data, heads, [kind.name for kind in _KINDS])
    for kind, texts in zip(_KINDS, found, strict=True):
        have = np.flatnonzero((texts.starts >= 0) & live)
        if len(have):
            plain = have[_is_plain(data, texts.starts[have], texts.sizes[have], kind.words)]
            parts.append((plain, _hashes(data, texts, plain, columns, topics, kind, kernels), kind.required))
            rest = np.setdiff1d(have, plain, assume_unique=True)
            parts.append((*_by_word(data, texts, rest, columns, topics, kind), kind.required))
    if not parts:
        empty = np.empty(0, np.int64)
        return Keys(empty, empty, empty, np.empty(0, np.bool_))
    numbers = np.concatenate([part[0] for part in parts])
    hashes = np.concatenate([part[1] for part in parts])
    required = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    return Keys(hashes[order], columns.offset[numbers], columns.time[numbers], required[order])


def _is_plain(data: Bytes, starts: Int64s, sizes: Int32s, words: bool) -> Bools:
    """Which texts are ASCII, and one word if spaces separate words: their hash can be put together."""
    odd = (data >= 0x80) | (data == 0x20) if words else data >= 0x80
    marks = np.zeros(len(data) + 1, np.int32)
    np.cumsum(odd, out=marks[1:])
    plain: Bools = marks[starts + sizes] == marks[starts]
    return plain


def _hashes(
    data: Bytes, texts: Texts, chosen: Int64s, columns: Columns, topics: Topics, kind: _Kind, kernels: Kernels
) -> Int64s:
    """`index_hash` of topic and key, from the hashes of both: hash(a + b) = hash(a) * 31 ** len(b) +
    hash(b)."""
    seeds = np.array(
        [java_hash(name.decode(errors="replace") + kind.between) & 0xFFFFFFFF for name in topics.names],
        np.uint32,
    )
    hashes = kernels.java_hashes(data, Texts(texts.starts[chosen], texts.sizes[chosen]))
    whole = seeds[columns.topic[chosen]] * _POWERS[texts.sizes[chosen]] + hashes.view(np.uint32)
    signed = whole.view(np.int32).astype(np.int64)
    return np.where(signed == -(2**31), 0, np.abs(signed))


def _by_word(
    data: Bytes, texts: Texts, chosen: Int64s, columns: Columns, topics: Topics, kind: _Kind
) -> tuple[Int64s, Int64s]:
    numbers, hashes = [], []
    for number in chosen.tolist():
        start, size = int(texts.starts[number]), int(texts.sizes[number])
        text = data[start : start + size].tobytes().decode(errors="replace")
        topic = topics.names[int(columns.topic[number])].decode(errors="replace")
        for word in text.split(" ") if kind.words else [text]:
            if word:
                numbers.append(number)
                hashes.append(index_hash(f"{topic}{kind.between}{word}"))
    return np.array(numbers, np.int64), np.array(hashes, np.int64)
