"""Queries of `format("rocketmq")` without a JVM: the calls that Spark makes, with offsets as JSON and readers pickled."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

from brokerset_spark.topics.source import TopicSource
from brokerset_spark.topics.stream import TopicStream

Rows = list[dict[str, Any]]


def texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark hands them over."""
    return {
        name.lower(): each if isinstance(each, str) else json.dumps(each) for name, each in options.items()
    }


def batch_rows(**options: Any) -> Rows:
    """All rows of a batch query."""
    return [row for task in batch_tasks(**options) for row in task]


def batch_tasks(**options: Any) -> Iterator[Rows]:
    """The same for each task."""
    source = TopicSource(texts(options))
    reader = source.reader(source.schema())
    sent = pickle.dumps((reader, reader.partitions()))
    reader, partitions = pickle.loads(sent)
    for each in partitions:
        yield [row for found in reader.read(each) for row in found.to_pylist()]


class StreamQuery:
    """A stream with a checkpoint: offsets as JSON."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._reader = self._new()
        self.offset: str = json.dumps(self._reader.initialOffset())
        self.batches: list[tuple[str, str]] = []

    def _new(self) -> TopicStream:
        source = TopicSource(texts(self._options))
        return source.streamReader(source.schema())

    def restart(self, **changes: Any) -> None:
        """A new driver that knows nothing but the checkpoint."""
        self._options |= changes
        self._reader = self._new()

    def plan(self) -> str:
        """The offset that the next batch would have."""
        limit = self._reader.getDefaultReadLimit()
        return json.dumps(self._reader.latestOffset(json.loads(self.offset), limit))

    def available_now(self) -> Rows:
        """All batches of a query with `trigger(availableNow=True)`."""
        self._reader.prepareForTriggerAvailableNow()
        found: Rows = []
        while rows := self.next():
            found += rows
        return found

    def next(self) -> Rows | None:
        """The rows of the next batch; None if there is none."""
        end = self.plan()
        if end == self.offset:
            return None
        self.batches.append((self.offset, end))
        rows = self.rows(self.offset, end)
        self.offset = end
        self._reader.commit(json.loads(end))
        return rows

    def rows(self, start: str, end: str) -> Rows:
        """A batch again, or for the first time."""
        partitions = self._reader.partitions(json.loads(start), json.loads(end))
        sent = pickle.dumps((self._reader, list(partitions)))
        reader, pieces = pickle.loads(sent)
        return [row for each in pieces for found in reader.read(each) for row in found.to_pylist()]
