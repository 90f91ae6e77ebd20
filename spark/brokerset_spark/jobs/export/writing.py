"""The task of an export: one range of a log into files of its own folder."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict

from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.export.partitions import Partitions
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.json_values import CAMEL, from_value
from brokerset_spark.kernels import Stop
from brokerset_spark.sources.batches import Batches, Filter, Source, chosen, reason_of
from brokerset_spark.sources.columns import MESSAGE_COLUMNS, arrow_schema, schema_of
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, damaged_ranges, read_range
from brokerset_spark.stores.tail import is_expired

TASK: Final = "brokerset_spark.jobs.export.writing:write_range"

PIECE: Final = 16 << 20
"""Bytes of the log in one batch: with many topics, sorting 16 MiB costs less than four times 4."""

DATA: Final = "data"
"""Folder of the staging folder that tasks write to."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a task reads, and how it writes it."""

    __pydantic_config__: ClassVar = CAMEL | ConfigDict(extra="forbid")
    """Also of the values inside: a row with other names is refused, or its filter would be lost."""

    task: int
    """Its number."""

    url: str
    range: Range
    filter: Filter
    staging: str
    options: ExportOptions
    broker_name: str | None
    epochs: tuple[tuple[int, int], ...]


def write_range(row: Row) -> Iterator[Result]:
    """Read the range and write its files; what was written, and which parts could not be read.

    Each attempt has a folder of its own, so a repeated one meets nothing of those before; what a failed one
    leaves is deleted here, or with the staging folder.
    """
    task = from_value(Task, row)
    attempt = f"{task.task:06d}-{uuid.uuid4().hex}"
    folder = Path(task.staging) / DATA / attempt
    folder.mkdir(parents=True)
    try:
        yield Result({"task": task.task, "attempt": attempt, **_write(task, folder)})
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(task: Task, folder: Path) -> dict[str, Any]:
    options, wanted, columns = task.options, task.range, task.options.file_columns
    schema = arrow_schema(schema_of(MESSAGE_COLUMNS, [each.name for each in columns]))
    source = Source(wanted.path, task.broker_name, task.epochs)
    batches = Batches(schema, source, task.filter, open_bodies=options.decompress)
    partitions = Partitions(
        folder,
        schema,
        compression=options.compression,
        name=f"part-{wanted.start:020d}",
        metadata={
            "brokerset.columns": "\n".join(f"{each.name}: {each.summary}" for each in columns),
            "brokerset.store": task.url,
        },
    )
    store = open_folder(task.url)
    damages: list[tuple[int, int, str]] = []
    outcome = Outcome(wanted.start, wanted.start)
    read = 0
    try:
        for chunk in read_range(
            store,
            wanted,
            outcome,
            crc=options.verify_crc,
            resync=options.on_corrupt == "skip",
            throttle=Throttle(options.bytes_per_second),
            drop_cache=True,
            piece=PIECE,
        ):
            read += chunk.end - chunk.begin
            unreadable: list[tuple[int, int, str]] = []
            for topic, day, part in batches.by_topic_and_day(chunk):
                for some, batch in _built(batches, part, unreadable):
                    offsets = some.base + some.starts
                    partitions.add(topic, day, batch, int(offsets[0]), int(offsets[-1]))
            damages += sorted(unreadable)
            if damages and options.on_corrupt == "fail":
                break
        found = damaged_ranges(store, wanted, outcome)
        damages += [(begin, end, reason_of(stop)) for begin, end, stop in found]
        files = partitions.close()
    except FileNotFoundError:
        reason = "expired" if is_expired(store, wanted) else "missing-file"
        partitions.abandon()
        shutil.rmtree(folder)
        folder.mkdir()
        return {"files": [], "damages": [(wanted.start, wanted.end, reason)], "end": wanted.end, "bytes": 0}
    except BaseException:
        partitions.abandon()
        raise
    finally:
        store.close()
    return {"files": files, "damages": damages, "end": _end(wanted, outcome), "bytes": read}


def _end(wanted: Range, outcome: Outcome) -> int:
    """Where whoever goes on has to begin: where a record begins, or a file."""
    if outcome.stop is Stop.SHORT:
        return outcome.end
    return wanted.base + wanted.size if outcome.stop is Stop.BLANK else max(wanted.end, outcome.end)


def _built(
    batches: Batches, part: Chunk, damages: list[tuple[int, int, str]]
) -> Iterator[tuple[Chunk, pa.RecordBatch]]:
    """The records as batches; one whose body cannot be opened is left out and told, and no other."""
    try:
        batch = batches.build_all(part)
    except ValueError:
        count = len(part.starts)
        if count == 1:
            begin = part.base + int(part.starts[0])
            damages.append((begin, begin + int(part.sizes[0]), "body-unreadable"))
            return
        for rows in (np.arange(count // 2), np.arange(count // 2, count)):
            yield from _built(batches, chosen(part, rows), damages)
        return
    yield part, batch
