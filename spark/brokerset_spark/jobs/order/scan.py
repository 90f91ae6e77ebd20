"""The task: read one range of a log, and put what its messages say of their order into tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_formats.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_formats.properties import Property
from brokerset_spark.jobs.dispatch import is_dispatched, topic_text
from brokerset_spark.jobs.order.parts import (
    EXAMPLES_EACH_MAX,
    EXAMPLES_MAX,
    KEY_SHOWN,
    KEYS_NAMED_MAX,
    RUNS_MAX,
    Example,
    RangePart,
)
from brokerset_spark.jobs.order.stamps import Stamps, parse_stamps
from brokerset_spark.jobs.order.tables import (
    LOGICAL,
    QUEUE,
    RUN,
    Table,
    fuse,
    group,
    hash_texts,
    joined,
    least_hashes,
    rows_of,
)
from brokerset_spark.jobs.passed_over import ReadOn
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.scan import range_of
from brokerset_spark.kernels import KERNELS, Heads, Texts
from brokerset_spark.kernels.contract import Bools, Bytes, Int64s
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Throttle

TASK: Final = "brokerset_spark.jobs.order.scan:scan_range"

_PROPERTIES: Final = (Property.ORDER_STAMP.encode(), Property.SHARDING_KEY.encode())
_STAMP_SHOWN: Final = 120
"""Characters of a stamp that cannot be read."""

_CHUNKS_APART: Final = 16
"""Chunks whose tables are put together at once."""

_RUNS_AT_ONCE: Final = 4_096
"""So many runs are put together with those of each chunk."""


def is_subject_name(topic: str) -> bool:
    """Whether a topic can be a subject: none of the system's, and none for retries or dead letters."""
    return not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_"))


class Collector:
    """Takes the chunks of one range, in the order of the log."""

    def __init__(self, row: Row) -> None:
        self._subjects = frozenset(row["subjects"])
        self._groups = KERNELS.new_groups()
        self._names: list[tuple[str, int]] = []
        self._wanted = np.empty(0, np.bool_)
        self._producers: dict[bytes, int] = {}
        self._tables: dict[str, list[Table]] = {"queues": [], "runs": [], "logical": []}
        self._run_keys: dict[int, str] = {}
        self._topic_names: list[str] = []
        self._topics = np.empty(0, np.int64)
        self._hashes: dict[str, NDArray[np.uint64]] = {}
        self._fresh_hashes: dict[str, list[NDArray[np.uint64]]] = {}
        self._examples: list[Example] = []
        self._named: Counter[tuple[str, int]] = Counter()

    def take(self, chunk: Chunk) -> None:
        """The next chunk."""
        heads = KERNELS.heads(chunk.data, chunk.starts)
        groups = self._groups.number(chunk.data, Texts(heads.topic, heads.topic_size), heads.queue_id)
        self._name_groups()
        rows = np.flatnonzero(self._wanted[groups] & is_dispatched(heads))
        if not len(rows):
            return
        if len(rows) < len(groups):
            heads, groups = Heads._make(each[rows] for each in heads), groups[rows]
        self._take(chunk.data, heads, groups)
        if len(self._tables["queues"]) >= _CHUNKS_APART:
            self._put_together()

    def finish(self, number: int) -> RangePart:
        """Everything that was found."""
        self._put_together()
        runs, unjudged = joined(RUN, self._tables["runs"]), {}
        if len(runs) > RUNS_MAX:
            beyond = group(
                rows_of(
                    LOGICAL, len(runs) - RUNS_MAX, queue=runs["queue"][RUNS_MAX:], logical=0,
                    messages=(runs["last"] - runs["first"] + 1)[RUNS_MAX:], first_place=0, first_offset=0,
                    last_offset=0, first_time=0, last_time=0,
                )
            )  # fmt: skip
            unjudged = dict(zip(beyond["queue"].tolist(), beyond["messages"].tolist(), strict=True))
            runs = runs[:RUNS_MAX]
        offsets = runs["offset"][:KEYS_NAMED_MAX].tolist()
        return RangePart(
            number=number,
            groups=tuple(self._names),
            producers=tuple(each.decode() for each in self._producers),
            queues=joined(QUEUE, self._tables["queues"]),
            runs=runs,
            logical=joined(LOGICAL, self._tables["logical"]),
            run_keys={at: self._run_keys[at] for at in offsets if at in self._run_keys},
            hashes=self._hashes,
            examples=tuple(self._examples),
            unjudged=unjudged,
        )

    def _name_groups(self) -> None:
        for number in range(len(self._names), len(self._groups)):
            topic, queue_id = self._groups.group(number)
            name = topic_text(topic)
            self._names.append((name, queue_id))
            wanted = name in self._subjects if self._subjects else is_subject_name(name)
            self._wanted = np.append(self._wanted, wanted)
            if name not in self._topic_names:
                self._topic_names.append(name)
            self._topics = np.append(self._topics, self._topic_names.index(name))

    def _put_together(self) -> None:
        for name, kind, combine in (
            ("queues", QUEUE, group),
            ("runs", RUN, fuse),
            ("logical", LOGICAL, group),
        ):
            parts = self._tables[name]
            self._tables[name] = [combine(joined(kind, parts))] if parts else []
        if self._tables["runs"]:
            kept = self._tables["runs"][0]["offset"][:KEYS_NAMED_MAX].tolist()
            self._run_keys = {at: self._run_keys[at] for at in kept if at in self._run_keys}
        for topic, fresh in self._fresh_hashes.items():
            before = self._hashes.get(topic, np.empty(0, np.uint64))
            self._hashes[topic] = least_hashes(before, *fresh)
        self._fresh_hashes = {}

    def _take(self, data: Bytes, heads: Heads, groups: Int64s) -> None:
        texts, keys = KERNELS.find_properties(data, heads, _PROPERTIES)
        laid = KERNELS.copy_texts(data, texts)
        stamps = parse_stamps(laid.flat, laid.offsets)
        absent, keyed = texts.starts < 0, keys.starts >= 0
        right = np.abs(KERNELS.java_hashes(data, keys).astype(np.int64)) % LOGICAL_PARTITIONS
        misplaced = stamps.readable & keyed & (right != stamps.logical)
        unreadable = ~absent & ~stamps.readable
        place, offset, time = heads.queue_offset, heads.offset, heads.store_timestamp
        self._tables["queues"].append(
            group(
                rows_of(
                    QUEUE, len(groups), queue=groups, records=1, absent=absent, unreadable=unreadable,
                    misplaced=misplaced, keyed=keyed, first_place=place, last_place=place,
                    first_time=time, last_time=time,
                )
            )
        )  # fmt: skip
        if bool((absent | unreadable | misplaced).any()):
            self._name_bad(data, heads, groups, texts, keys, (absent, unreadable, misplaced), stamps, right)
        good = np.flatnonzero(stamps.readable)
        if not len(good):
            return
        producers = self._number_producers(laid.flat, stamps, good)
        self._tables["logical"].append(
            group(
                rows_of(
                    LOGICAL, len(good), queue=groups[good], logical=stamps.logical[good], messages=1,
                    first_place=place[good], first_offset=offset[good], last_offset=offset[good],
                    first_time=time[good], last_time=time[good],
                )
            )
        )  # fmt: skip
        sequence = stamps.sequence[good]
        runs = fuse(
            rows_of(
                RUN, len(good), queue=groups[good], producer=producers, partition=stamps.partition[good],
                epoch=stamps.epoch[good], first=sequence, last=sequence, first_place=place[good],
                last_place=place[good], offset=offset[good], time=time[good],
            )
        )  # fmt: skip
        self._take_runs(runs)
        self._name_keys(data, keys, offset)
        self._hash_keys(data, keys, groups, np.flatnonzero(keyed & stamps.readable))

    def _number_producers(self, flat: Bytes, stamps: Stamps, good: Int64s) -> Int64s:
        texts = Texts(stamps.producer.starts[good], stamps.producer.sizes[good])
        codes, firsts = KERNELS.number_texts(flat, texts)
        numbers = np.empty(len(firsts), np.int64)
        for code, first in enumerate(firsts.tolist()):
            start = int(texts.starts[first])
            name = flat[start : start + int(texts.sizes[first])].tobytes()
            numbers[code] = self._producers.setdefault(name, len(self._producers))
        found: Int64s = numbers[codes]
        return found

    def _take_runs(self, runs: Table) -> None:
        """Runs that go on from chunk to chunk become one at once, unless there are too many of them."""
        kept = self._tables["runs"]
        if len(kept) == 1 and len(kept[0]) <= _RUNS_AT_ONCE:
            kept[0] = fuse(joined(RUN, [kept[0], runs]))
        else:
            kept.append(runs)

    def _name_keys(self, data: Bytes, keys: Texts, offsets: Int64s) -> None:
        """Keep the key of the first message of each run that begins in this chunk."""
        room = max(0, KEYS_NAMED_MAX - len(self._run_keys))
        newest = self._tables["runs"][-1]["offset"]
        begun = newest[np.searchsorted(newest, offsets[0]) :][:room]
        rows = np.searchsorted(offsets, begun)
        for offset, start, size in zip(
            begun.tolist(), keys.starts[rows].tolist(), keys.sizes[rows].tolist(), strict=True
        ):
            if start >= 0:
                self._run_keys[offset] = _shown(data, start, size, KEY_SHOWN)

    def _hash_keys(self, data: Bytes, keys: Texts, groups: Int64s, rows: Int64s) -> None:
        if not len(rows):
            return
        laid = KERNELS.copy_texts(data, Texts(keys.starts[rows], keys.sizes[rows]))
        hashes = hash_texts(laid.flat, laid.offsets)
        topics = self._topics[groups[rows]]
        for number in np.flatnonzero(np.bincount(topics)).tolist():
            mine = hashes if len(self._topic_names) == 1 else hashes[topics == number]
            self._fresh_hashes.setdefault(self._topic_names[number], []).append(mine)

    def _name_bad(
        self,
        data: Bytes,
        heads: Heads,
        groups: Int64s,
        texts: Texts,
        keys: Texts,
        bad: tuple[Bools, Bools, Bools],
        stamps: Stamps,
        right: Int64s,
    ) -> None:
        for kind, flags in zip(("absent", "unreadable", "misplaced"), bad, strict=True):
            rows = np.flatnonzero(flags)
            _, firsts = np.unique(groups[rows], return_index=True)
            for row in sorted({*rows[firsts].tolist(), *rows[:EXAMPLES_EACH_MAX].tolist()}):
                number = int(groups[row])
                if self._named[kind, number] >= EXAMPLES_EACH_MAX or len(self._examples) >= EXAMPLES_MAX:
                    continue
                text = ""
                if kind == "unreadable":
                    text = repr(_shown(data, int(texts.starts[row]), int(texts.sizes[row]), _STAMP_SHOWN))
                elif kind == "misplaced":
                    key = _shown(data, int(keys.starts[row]), int(keys.sizes[row]), KEY_SHOWN)
                    text = f"key {key!r} belongs to {right[row]}, and the stamp says {stamps.logical[row]}"
                place, offset = int(heads.queue_offset[row]), int(heads.offset[row])
                self._examples.append(Example(kind, number, place, offset, text))
                self._named[kind, number] += 1


def _shown(data: Bytes, start: int, size: int, characters: int) -> str:
    """The beginning of a text, for people."""
    return data[start : start + min(size, 4 * characters)].tobytes().decode(errors="replace")[:characters]


def scan_range(row: Row) -> Iterator[Result]:
    """One range: what was read for the driver, and a `RangePart` for `reducing.Folded`.

    OSError as from the folder, but for a file that is gone.
    """
    collector = Collector(row)
    wanted = replace(range_of(row), exact_bound=row["exact"])
    with closing(open_folder(row["url"])) as folder:
        reading = ReadOn(folder, wanted, Throttle(row["rate"]), drop_cache=row["drop"])
        for chunk in reading.chunks():
            collector.take(chunk)
    number, store = row["number"], {name: row[name] for name in ("url", "broker", "live")}
    yield Result({"number": number, "read": reading.said(row["path"])})
    yield Result(store | {"part": collector.finish(number).pack()}, key=row["url"])
