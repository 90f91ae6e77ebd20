"""The reducer of one store: its ranges, one after the other, become what is known of its queues. Pure.

What is kept does not grow with the store: sums, a row for each logical partition, and the state of each
producer in each queue. The driver gets all of that once, without the states of producers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brokerset_spark.jobs.order.concerns import NAMED_MAX, Code, Concern, anomaly_concern
from brokerset_spark.jobs.order.generations import StoredPartition
from brokerset_spark.jobs.order.parts import Example, RangePart
from brokerset_spark.jobs.order.streams import Anomaly, Run, Stream
from brokerset_spark.jobs.order.tables import LOGICAL, Table, group, joined, least_hashes
from brokerset_spark.jobs.report import JobFailed

STREAMS_MAX: Final = 500_000
"""Producers in queues of a store that are followed, about 1 KB each."""

_EXAMPLES_SHOWN: Final = 3

_PARTS_APART: Final = 16
"""Tables of ranges that are put together at once."""

_BAD: Final = {
    "absent": (Code.STAMP, "have no order stamp"),
    "unreadable": (Code.STAMP, "have an order stamp that cannot be read"),
    "misplaced": (Code.KEY, "have a logical partition that is not that of their key"),
}


@dataclass(slots=True)
class QueueFold:
    """A queue so far."""

    topic: str
    queue_id: int
    complete: bool
    """Whether its first message is there; else the oldest ones have expired."""

    first_place: int
    last_place: int
    first_time: int
    last_time: int
    records: int = 0
    keyed: int = 0
    bad: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_BAD, 0))
    examples: dict[str, list[Example]] = field(default_factory=lambda: {kind: [] for kind in _BAD})
    partition: int | None = None
    """The id that its first stamp has."""

    foreign: int = 0
    """Messages with another id."""

    streams: dict[str, Stream] = field(default_factory=dict)
    """Until `StoreFold.close`."""

    producers: frozenset[str] = frozenset()
    """From then on."""

    @property
    def stamped(self) -> int:
        """Messages with a stamp that can be read."""
        return self.records - self.bad["absent"] - self.bad["unreadable"]

    def take(self, row: Table) -> None:
        """A row of `tables.QUEUE`."""
        self.records += int(row["records"])
        self.keyed += int(row["keyed"])
        for kind in _BAD:
            self.bad[kind] += int(row[kind])
        self.last_place = max(self.last_place, int(row["last_place"]))
        self.first_time = min(self.first_time, int(row["first_time"]))
        self.last_time = max(self.last_time, int(row["last_time"]))


class StoreFold:
    """One store. Ranges must come in the order of its log."""

    def __init__(self, url: str, broker: str | None, live: bool) -> None:
        """`broker`: the broker group, if it is known; `live`: a broker may be writing the store."""
        self.url, self.broker, self._live = url, broker, live
        self.queues: list[QueueFold] = []
        self.hashes: dict[str, NDArray[np.uint64]] = {}
        """Of keys, by topic."""

        self.said: list[tuple[int, Concern]] = []
        """What ranges show, with their numbers: `NAMED_MAX` of a code and queue."""

        self.ended: list[Concern] = []
        """What only the end shows, and how many more there are of what is named."""

        self._named: Counter[tuple[str, str, int | None]] = Counter()
        self._unnamed: Counter[tuple[str, str, int | None]] = Counter()
        self._number: int | None = None
        self._numbers: dict[tuple[str, int], int] = {}
        self._logical: list[Table] = []
        self._streams = 0

    def take(self, part: RangePart) -> None:
        """The next range. JobFailed if there are more producers than `STREAMS_MAX`."""
        self._number = part.number
        numbers = self._number_queues(part)
        for example in part.examples:
            known = self.queues[numbers[example.group]].examples[example.kind]
            if len(known) < _EXAMPLES_SHOWN:
                known.append(example)
        rows = zip(*(part.runs[name].tolist() for name in part.runs.dtype.names or ()), strict=True)
        for queue, producer, partition, epoch, first, last, first_place, last_place, offset, time in rows:
            run = Run(
                partition, epoch, first, last, first_place, last_place, offset, time,
                part.run_keys.get(offset),
            )  # fmt: skip
            self._judge(self.queues[numbers[queue]], part.producers[producer], run)
        for number, messages in part.unjudged.items():
            self._give_up(self.queues[numbers[number]], messages)
        if len(part.logical):
            table = part.logical.copy()
            table["queue"] = np.array(numbers, np.int64)[table["queue"]]
            self._logical.append(table)
            if len(self._logical) >= _PARTS_APART:
                self._logical = [group(joined(LOGICAL, self._logical))]
        for topic, hashes in part.hashes.items():
            before = self.hashes.get(topic, np.empty(0, np.uint64))
            self.hashes[topic] = least_hashes(before, hashes)

    def close(self) -> None:
        """No range follows: find what only the end shows, and keep of producers their names."""
        self._number = None
        self._logical = [group(joined(LOGICAL, self._logical))]
        for queue in self.queues:
            self._say_missing(queue)
            for concern in self._bad_records(queue):
                self._say(concern)
            queue.producers, queue.streams = frozenset(queue.streams), {}
        self.ended += [
            Concern(
                code=code, subject=subject, text="", messages=messages, store=self.url, queue_id=queue_id,
                unnamed=self._named[subject, code, queue_id] - NAMED_MAX,
            )
            for (subject, code, queue_id), messages in self._unnamed.items()
        ]  # fmt: skip

    def partitions(self, is_subject: Callable[[str], bool]) -> list[StoredPartition]:
        """Those of subjects, after `close`."""
        (logical,) = self._logical
        found = []
        for number, queue in enumerate(self.queues):
            if is_subject(queue.topic) and queue.partition is not None:
                found.append(
                    StoredPartition(
                        subject=queue.topic, partition_id=queue.partition, store=self.url, broker=self.broker,
                        queue_id=queue.queue_id, first_place=queue.first_place, last_place=queue.last_place,
                        logical=logical[logical["queue"] == number], live=self._live,
                    )
                )  # fmt: skip
        return found

    def _number_queues(self, part: RangePart) -> list[int]:
        """The number here of each queue of a range; -1 for those of which it has no record."""
        numbers = [-1] * len(part.groups)
        for row in part.queues:
            topic, queue_id = name = part.groups[int(row["queue"])]
            if name not in self._numbers:
                self._numbers[name] = len(self.queues)
                first = int(row["first_place"])
                self.queues.append(
                    QueueFold(
                        topic, queue_id, complete=first == 0, first_place=first, last_place=first,
                        first_time=int(row["first_time"]), last_time=int(row["last_time"]),
                    )
                )  # fmt: skip
            numbers[int(row["queue"])] = self._numbers[name]
            self.queues[self._numbers[name]].take(row)
        return numbers

    def _judge(self, queue: QueueFold, producer: str, run: Run) -> None:
        if queue.partition is None:
            queue.partition = run.partition_id
        if run.partition_id != queue.partition:
            queue.foreign += run.messages
            text = (
                f"producer {producer}, epoch {run.epoch}: {run.messages} messages from queue offset "
                f"{run.first_place} on (record at {run.offset:,} of the log) have stamps of partition "
                f"{run.partition_id}, and the queue is partition {queue.partition}"
            )
            self._say(self._about(queue, Code.PARTITION, text, run.first_place, run.messages))
            return
        stream = queue.streams.get(producer)
        if stream is None:
            self._streams += 1
            if self._streams > STREAMS_MAX:
                advice = "name fewer subjects at once with --subject"
                raise JobFailed(f"{self.url} has more than {STREAMS_MAX:,} producers in its queues", advice)
            stream = queue.streams[producer] = Stream(queue.complete)
        for anomaly in stream.take(run):
            self._say_anomaly(queue, producer, anomaly)

    def _say(self, concern: Concern) -> None:
        key = concern.subject, concern.code, concern.queue_id
        self._named[key] += 1
        if self._named[key] > NAMED_MAX:
            self._unnamed[key] += concern.messages
        elif self._number is None:
            self.ended.append(concern)
        else:
            self.said.append((self._number, concern))

    def _say_missing(self, queue: QueueFold) -> None:
        for producer, stream in queue.streams.items():
            for anomaly in stream.finish():
                self._say_anomaly(queue, producer, anomaly)

    def _say_anomaly(self, queue: QueueFold, producer: str, anomaly: Anomaly) -> None:
        self._say(anomaly_concern(anomaly, producer, queue.topic, self.url, queue.queue_id))

    def _give_up(self, queue: QueueFold, messages: int) -> None:
        """What follows is judged as if everything before had expired."""
        text = (
            f"{messages} messages of one range were not judged: their sequences are interrupted too often; "
            "what stands behind them is judged again"
        )
        self._say(self._about(queue, Code.UNJUDGED, text, None, messages))
        self._say_missing(queue)
        self._streams -= len(queue.streams)
        queue.streams, queue.complete = {}, False

    def _bad_records(self, queue: QueueFold) -> Iterator[Concern]:
        for kind, (code, what) in _BAD.items():
            count = queue.bad[kind]
            if count:
                examples = queue.examples[kind]
                named = "; ".join(
                    f"queue offset {each.place} (record at {each.offset:,} of the log"
                    f"{f', {each.text}' if each.text else ''})"
                    for each in examples
                )
                text = f"{count} of {queue.records} messages {what}: {named or 'too many to name one'}"
                place = examples[0].place if examples else None
                yield self._about(queue, code, text, place, count)

    def _about(self, queue: QueueFold, code: str, text: str, place: int | None, messages: int) -> Concern:
        return Concern(
            code=code, subject=queue.topic, text=text, messages=messages, store=self.url,
            queue_id=queue.queue_id, place=place,
        )  # fmt: skip
