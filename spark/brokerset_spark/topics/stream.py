"""`rocketmq` as a stream: what Spark asks in each batch, answered by brokers and `following`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from brokerset_client.errors import ClientError
from brokerset_spark.topics.brokers import Questions
from brokerset_spark.topics.client_thread import ClientThread, client_of
from brokerset_spark.topics.columns import wire_schema
from brokerset_spark.topics.following import Seen, Step, advanced, batch_between, next_step
from brokerset_spark.topics.offsets import EARLIEST, LATEST, QueueKey, StreamOffset, partition_numbers
from brokerset_spark.topics.options import SourceOptions
from brokerset_spark.topics.planning import Range, divided
from brokerset_spark.topics.reading import DataLost, read_ranges
from brokerset_spark.topics.starting import BrokersSilent, check_all_answer, first_offsets

_LOG: Final = logging.getLogger("brokerset_spark")
BELIEVE_SECONDS: Final = 5.0
"""How long a loss is seen before it is believed: a broker that has just become master builds its queues, and
one that starts registers its topics."""

AGAIN_SECONDS: Final = 0.25
SHOW_AGAIN_SECONDS: Final = 30.0
"""Pause after progress could not be stored."""


@dataclass
class RangesPartition(InputPartition):
    """What one task reads, as Spark carries it."""

    ranges: tuple[Range, ...]


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one process next to the driver; all that it must know again is in offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = wire_schema(schema)
        self._target: dict[QueueKey, int] | None = None
        self._asking: Questions | None = None
        self._batch_at: float | None = None
        """When the last batch was planned, on a monotonic clock; None before the first."""
        self._shown: dict[QueueKey, int] = {}
        """The progress of `groupId`, as it was stored last."""
        self._show_at = 0.0
        """Not before: a broker that is away shall not delay each batch."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: `startingOffsets`, or times."""
        return self._client.run(self._initial()).to_json()

    async def _initial(self) -> StreamOffset:
        deadline = asyncio.get_running_loop().time() + BELIEVE_SECONDS
        while True:
            seen = await self._questions.observe(self._options.assigned)
            if self._options.starting != EARLIEST:
                # What is not seen now would be new later, and be read from its beginning.
                check_all_answer(seen, self._options)
            places = await first_offsets(self._questions, self._options, seen.ends, LATEST)
            marks, unsure = await self._questions.confirmed(
                {key: place for key, place in places.items() if place > seen.ends[key].first}
            )
            if not unsure or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(AGAIN_SECONDS)
        if unsure and self._options.fail_on_data_loss:
            key = min(unsure)
            raise BrokersSilent(
                f"{key}: its broker does not give record {places[key] - 1}, behind which the stream is to "
                "begin: replicas have not confirmed it, and it may disappear; start the query again when "
                "they have, or begin at another offset"
            )
        return StreamOffset(places, {key: mark for key, mark in marks.items() if mark is not None})

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`, over all queues."""
        most = self._options.offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes; `start` if there is nothing. DataLost as `failOnDataLoss` says."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        begin = StreamOffset.from_json(start)
        self._show(begin)  # Spark asks when the batch before has ended, and commits it with the next one only
        end = self._client.run(self._latest(begin, most))
        return start if end is begin else end.to_json()

    async def _latest(self, start: StreamOffset, most: int) -> StreamOffset:
        step = await self._step(start, most)
        for text in step.losses:
            self._lost(text)
        if not step.losses and self._is_too_little(step):
            return start
        found = await self._sure(start, step)
        if found is not start:
            self._batch_at = time.monotonic()
        return found

    def _is_too_little(self, step: Step) -> bool:
        """Whether a batch waits for more, by `minOffsetsPerTrigger` and `maxTriggerDelay`."""
        least = self._options.offsets_per_trigger_min
        if not least or self._target is not None or self._batch_at is None:
            return False
        found = sum(end - step.begins[key] for key, end in step.ends.items())
        late = time.monotonic() - self._batch_at >= self._options.trigger_delay_seconds
        return found < least and not late

    async def _step(self, start: StreamOffset, most: int) -> Step:
        """What is next, with losses only if they stay."""
        deadline = asyncio.get_running_loop().time() + BELIEVE_SECONDS
        while True:
            seen = await self._questions.observe(start.offsets.keys() | self._options.assigned)
            changed = await self._changed(start, seen)
            step = next_step(start, seen, changed=changed, most=most, target=self._target)
            if not step.losses or asyncio.get_running_loop().time() > deadline:
                return step
            await asyncio.sleep(AGAIN_SECONDS)

    async def _changed(self, start: StreamOffset, seen: Seen) -> frozenset[QueueKey]:
        """Queues with something new whose record before the stream's offset is another one."""
        asked = {
            key: start.offsets[key]
            for key in start.marks
            if key in seen.ends and seen.ends[key].first < start.offsets[key] < seen.ends[key].last
        }
        marks = await self._questions.marks(asked)
        return frozenset(key for key, mark in marks.items() if mark is not None and mark != start.marks[key])

    async def _sure(self, start: StreamOffset, step: Step) -> StreamOffset:
        """The offset behind a step, without queues whose last record brokers do not give yet: it is not
        confirmed, and may disappear with its broker."""
        moved = {key: end for key, end in step.ends.items() if end > step.begins[key]}
        marks, unsure = await self._questions.confirmed(moved)
        ends = {key: step.begins[key] if key in unsure else end for key, end in step.ends.items()}
        step = replace(step, ends=ends)
        return advanced(start, step, {key: mark for key, mark in marks.items() if mark is not None})

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{text}. Start the query with a new checkpointLocation, or go on with what there is with "
                "failOnDataLoss=false"
            )
        _LOG.warning("%s; going on with what there is (failOnDataLoss=false)", text)

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything that is there now, and nothing that comes later."""
        seen = self._client.run(self._questions.observe(self._options.assigned))
        self._target = {key: ends.last for key, ends in seen.ends.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Ranges between two offsets, so a batch is always the same. Brokers are asked for nothing but the
        settings of topics that this process does not know yet: whether they are compacted."""
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        numbers = partition_numbers(until.offsets)
        places = batch_between(begin, until)
        holes = self._client.run(self._questions.compacted({key.topic for key in places}))
        ranges = [
            Range(
                key,
                *places[key],
                numbers[key],
                None if key in until.begins else begin.marks.get(key),
                key.topic in holes,
            )
            for key in sorted(places)
        ]
        tasks = divided(
            ranges,
            tasks_min=self._options.partitions_min,
            records_max=self._options.records_per_partition,
        )
        return [RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of the ranges of a task."""
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Shows people how far the query is."""
        self._show(StreamOffset.from_json(end))

    def _show(self, progress: StreamOffset) -> None:
        """Stores it for `groupId`. A failure is only logged: the checkpoint decides where a query goes on."""
        if not self._options.group or progress.offsets == self._shown or time.monotonic() < self._show_at:
            return
        try:
            self._client.run(self._questions.commit(self._options.group, progress.offsets))
            self._shown = dict(progress.offsets)
        except (ClientError, TimeoutError) as error:
            self._show_at = time.monotonic() + SHOW_AGAIN_SECONDS
            _LOG.warning("the progress of group %s was not stored: %s", self._options.group, error)

    def stop(self) -> None:
        """Nothing is open between calls but the client of this process."""

    @property
    def _client(self) -> ClientThread:
        return client_of(self._options.name_servers)

    @property
    def _questions(self) -> Questions:
        if self._asking is None:
            self._asking = Questions(self._client.instance, self._options)
        return self._asking

    def __getstate__(self) -> dict[str, Any]:
        """What goes to tasks: nothing that belongs to this process."""
        return self.__dict__ | {"_asking": None}
