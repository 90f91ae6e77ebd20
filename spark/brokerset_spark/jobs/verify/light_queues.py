"""Light message queues (`%LMQ%…`): a message names further queues of its broker in a property, and has a unit
in each of them.

`INNER_MULTI_DISPATCH` has the names, `INNER_MULTI_QUEUE_OFFSET` the queue offsets, both separated by commas.
For everything that follows, such a unit is one of a queue like all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from brokerset_formats.names import RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX
from brokerset_spark.jobs.running import Result
from brokerset_spark.jobs.verify.columns import Columns, Topics
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.kernels import KERNELS, Heads
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import QUEUES
from brokerset_spark.stores.reading import Chunk

PREFIX: Final = "%LMQ%"
QUEUE_ID: Final = 0
"""Light queues have only this one."""

_NAMES, _OFFSETS = b"INNER_MULTI_DISPATCH", b"INNER_MULTI_QUEUE_OFFSET"
_PROGRESS: Final = "config/lmqConsumerOffset.json"
_OFFSET_MAX: Final = 2**59
"""A queue offset that has a place in a file of the queue."""


def has_light_queues(folder: StoreFolder) -> bool:
    """Whether the broker had light queues: one is there, or the file with their progress."""
    if any(name.startswith(PREFIX) for name in folder.folders(QUEUES)):
        return True
    return any(facts.path == _PROGRESS for facts in folder.files("config"))


def light_columns(
    chunk: Chunk, heads: Heads, columns: Columns, topics: Topics, path: str
) -> tuple[Columns | None, list[Result]]:
    """A row for each unit that a record of the chunk must have in a light queue; and findings.

    Names that are not those of light queues, or cannot be those of folders, are passed over as Java does.
    """
    names, offsets = KERNELS.find_properties(chunk.data, heads, (_NAMES, _OFFSETS))
    dispatched = np.array([_is_dispatched(name) for name in topics.names], np.bool_)
    have = (names.starts >= 0) & (offsets.starts >= 0) & columns.queued
    have &= dispatched[columns.topic] if len(dispatched) else False
    numbers: list[int] = []
    queues: list[int] = []
    queue_offsets: list[int] = []
    found: list[Result] = []
    for number in np.flatnonzero(have).tolist():
        queue_names = _words(chunk, int(names.starts[number]), int(names.sizes[number]))
        numerals = _words(chunk, int(offsets.starts[number]), int(offsets.sizes[number]))
        if not queue_names or not numerals:
            continue
        problem = _problem(queue_names, numerals)
        if problem:
            at = int(columns.offset[number])
            text = f"its queues {_text(queue_names)} and queue offsets {_text(numerals)}: {problem}"
            found.append(finding("lmq-property", text, path, at, at + int(columns.size[number])))
            continue
        for name, numeral in zip(queue_names, numerals, strict=True):
            if name.startswith(PREFIX.encode()) and b"/" not in name:
                numbers.append(number)
                queues.append(topics.number(name))
                queue_offsets.append(int(numeral))
    if not numbers:
        return None, found
    chosen = np.array(numbers, np.int64)
    light = replace(
        columns.of(chosen),
        topic=np.array(queues, np.int32),
        queue_id=np.full(len(chosen), QUEUE_ID, np.int32),
        queue_offset=np.array(queue_offsets, np.int64),
        delayed=np.zeros(len(chosen), np.bool_),
    )
    return light, found


def _is_dispatched(topic: bytes) -> bool:
    """Whether Java puts messages of this topic into light queues: not retries, not what still waits."""
    text = topic.decode(errors="replace")
    return not text.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX)) and text != SCHEDULE_TOPIC


def _words(chunk: Chunk, start: int, size: int) -> list[bytes]:
    """The parts between commas; empty ones at the end do not count, as in Java."""
    words = chunk.data[start : start + size].tobytes().split(b",")
    while words and not words[-1]:
        words.pop()
    return words


def _problem(names: list[bytes], numerals: list[bytes]) -> str:
    if len(names) != len(numerals):
        return f"{len(numerals)} queue offsets for {len(names)} queues"
    for name, numeral in zip(names, numerals, strict=True):
        if not name.startswith(PREFIX.encode()):
            continue
        if not numeral.isdigit() or len(numeral) > 18 or int(numeral) > _OFFSET_MAX:
            return f"{numeral.decode(errors='backslashreplace')!r} is no queue offset"
    return ""


def _text(words: list[bytes]) -> str:
    return b",".join(words).decode(errors="backslashreplace")
