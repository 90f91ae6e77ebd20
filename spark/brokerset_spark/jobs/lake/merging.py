"""Large files instead of small ones, for formats whose libraries do not do it themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from brokerset_spark.jobs.lake.files import Layout, TableFile, WrittenFile, day_number

ENOUGH: Final = 0.75
"""Part of the wanted size from which a file is left as it is."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of a table."""

    path: str
    size: int
    topic: str
    day: str
    """Empty for times that no calendar has."""


def groups_of(files: Iterable[Piece], target_bytes: int) -> list[list[Piece]]:
    """Files of one topic and day that are to be one file of at most about `target_bytes`."""
    parts: dict[tuple[str, str], list[Piece]] = defaultdict(list)
    for each in files:
        if each.size < target_bytes * ENOUGH:
            parts[each.topic, each.day].append(each)
    groups = []
    for _, found in sorted(parts.items()):
        group: list[Piece] = []
        size = 0
        for each in sorted(found, key=lambda piece: (piece.size, piece.path)):
            if group and size + each.size > target_bytes:
                groups.append(group)
                group, size = [], 0
            group.append(each)
            size += each.size
        groups.append(group)
    return [each for each in groups if len(each) > 1]


def merged(layout: Layout, files: fs.FileSystem, paths: Sequence[str], day: str) -> WrittenFile:
    """One new file with the rows of those at `paths`, which have fewer columns, if any. A row group at a
    time.

    The old files stay. What was written of the new one is deleted if that fails.
    """
    made = TableFile(layout, day_number(day))
    try:
        for batch in _batches(files, paths):
            made.add(_widened(batch, layout.schema))
        return made.close()
    except BaseException:
        made.abandon()
        raise


def _batches(files: fs.FileSystem, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with files.open_input_file(path) as stream, pq.ParquetFile(stream) as parquet:
            for group in range(parquet.num_row_groups):
                yield from parquet.read_row_group(group).to_batches()


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """With all columns of the schema, nulls for those that the file lacks."""
    there = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
    columns = [
        there[each.name].cast(each.type) if each.name in there else pa.nulls(len(batch), each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
