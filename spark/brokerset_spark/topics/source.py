"""`rocketmq`: topics of running brokers as a batch. The stream is in `stream.py`, the sink in `sink/`.

`pushFilters` is left alone on purpose, see `sources/messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics.brokers import Questions
from brokerset_spark.topics.client_thread import client_of
from brokerset_spark.topics.columns import check_columns, source_schema, wire_schema
from brokerset_spark.topics.following import Seen
from brokerset_spark.topics.offsets import EARLIEST, LATEST, partition_numbers
from brokerset_spark.topics.options import NAME, SourceOptions, read_options
from brokerset_spark.topics.planning import Range, divided
from brokerset_spark.topics.reading import read_ranges
from brokerset_spark.topics.sink.writers import batch_writer, stream_writer
from brokerset_spark.topics.starting import check_all_answer, first_offsets, last_offsets
from brokerset_spark.topics.stream import RangesPartition, TopicStream


class TopicSource(DataSource):
    """Topics of brokers that run."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return NAME

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        return source_schema(read_options(self.options))

    def reader(self, schema: StructType) -> TopicReader:
        """For a batch query."""
        options = _checked(self.options, schema)
        starts = options.starting
        if LATEST in (starts.values() if isinstance(starts, dict) else (starts,)):
            raise OptionsError(NAME, ["startingOffsets=latest would read nothing; it is for streams"])
        return TopicReader(options, schema)

    def streamReader(self, schema: StructType) -> TopicStream:
        """For a stream."""
        options = _checked(self.options, schema)
        wrong = [name for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
                 if name.lower() in options.given]  # fmt: skip
        if wrong:
            raise OptionsError(f"a stream of {NAME}", [f"{', '.join(wrong)}: a stream has no end"])
        return TopicStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `df.write`."""
        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For `df.writeStream`; the output mode says nothing to a topic."""
        return stream_writer(schema, self.options)


def _checked(options: Mapping[str, str], schema: StructType) -> SourceOptions:
    found = read_options(options)
    check_columns(schema)
    return found


class TopicReader(DataSourceReader):
    """Plans on the driver, reads in tasks; pickled in between, so it has nothing that is open."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = wire_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges between the starting and the ending offsets, as brokers have them now."""
        client = client_of(self._options.name_servers)
        ranges = client.run(self._plan(Questions(client.instance, self._options)))
        tasks = divided(
            ranges,
            tasks_min=self._options.partitions_min,
            records_max=self._options.records_per_partition,
        )
        return [RangesPartition(task) for task in tasks] or [RangesPartition(())]

    async def _plan(self, questions: Questions) -> list[Range]:
        options = self._options
        seen = await questions.observe(options.assigned)
        _check(seen, options, await questions.topics())
        begins = await first_offsets(questions, options, seen.ends, EARLIEST)
        ends = await last_offsets(questions, options, seen.ends)
        crossed = sorted(key for key in ends if begins[key] > ends[key])
        if crossed:
            key = crossed[0]
            said = f"{key}: the starting offset {begins[key]} lies behind the ending offset {ends[key]}"
            raise OptionsError(NAME, [said])
        numbers = partition_numbers(seen.ends)
        holes = await questions.compacted({key.topic for key in seen.ends})
        return [
            Range(key, begins[key], ends[key], numbers[key], holes=key.topic in holes) for key in sorted(ends)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of the ranges of a task."""
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options, self._schema)


def _check(seen: Seen, options: SourceOptions, topics: Sequence[str]) -> None:
    """A batch query that cannot see all queues fails instead of giving less."""
    check_all_answer(seen, options)
    there = {key.topic for key in seen.ends} | {topic for topic, _ in seen.silent}
    missing = [topic for topic in topics if topic not in there]
    if missing and not options.topic_pattern:
        raise OptionsError(NAME, [f"topic {', '.join(missing)}: the name servers know no queue of it"])
    unknown = sorted(key for key in options.assigned if key not in seen.ends and key not in seen.absent)
    if unknown:
        raise OptionsError(NAME, [f"assign: there is no {unknown[0]}"])
