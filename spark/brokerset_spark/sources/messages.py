"""`rocketmq-store`: the messages of store folders, as a batch and as a stream.

`pushFilters` is left alone on purpose. In Spark 4.3 a filter that one query pushes stays in the reader that
all queries of a DataFrame share, and the next query silently gets fewer rows. Options prune instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from brokerset_spark.sources.columns import arrow_schema, schema_of
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.sources.options import (
    LATEST,
    MessageOptions,
    checked_schema,
    read_message_options,
)
from brokerset_spark.sources.plan import Piece, expand, opened_store, plan_pieces, plan_store
from brokerset_spark.sources.reader import PiecePartition, read_piece
from brokerset_spark.sources.replicas import one_of_each
from brokerset_spark.sources.stream import MessageStream

NAME: Final = "rocketmq-store"


class StoreSource(DataSource):
    """Messages of RocketMQ stores."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return NAME

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        options = read_message_options(NAME, self.options)
        return schema_of(options.all_columns, options.columns)

    def reader(self, schema: StructType) -> MessageReader:
        """For a batch query; `schema` is the user's, or ours."""
        options = self._checked(schema)
        if options.starting_offsets == LATEST:
            raise OptionsError(NAME, ["startingOffsets=latest would read nothing; it is for streams"])
        return MessageReader(options, schema)

    def streamReader(self, schema: StructType) -> MessageStream:
        """For a stream."""
        return MessageStream(self._checked(schema), schema)

    def _checked(self, schema: StructType) -> MessageOptions:
        options = read_message_options(NAME, self.options)
        checked_schema(NAME, schema, options.all_columns)
        return options


class CommitLogSource(StoreSource):
    """The same under the name of what it reads."""

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return "rocketmq-commitlog"


class MessageReader(DataSourceReader):
    """Plans on the driver, reads in tasks; pickled in between, so it holds nothing that is open."""

    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """One for each range of at most `splitSize` bytes."""
        found: list[InputPartition] = []
        for url in one_of_each(expand(self._options.paths), self._options.replicas):
            with opened_store(url) as (folder, facts):
                store = plan_store(folder, facts, self._options)
                found += [PiecePartition(each) for each in plan_pieces(folder, store, self._options)]
        return found or [PiecePartition(Piece("", (), self._options.wanted))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of one piece."""
        assert isinstance(partition, PiecePartition)
        return read_piece(partition.piece, self._options, self._schema)
