"""What a task does: reads its piece of a store, and gives batches."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from brokerset_spark.sources.batches import Batches, Source, reason_of
from brokerset_spark.sources.by_queue import UnitGroup, by_file, read_group
from brokerset_spark.sources.options import MessageOptions
from brokerset_spark.sources.plan import Piece, StoreDamaged
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, damaged_ranges, read_range, split
from brokerset_spark.stores.tail import is_expired

_LOG: Final = logging.getLogger("brokerset_spark")
__all__ = ["EXPIRED", "MISSING", "DataLost", "PiecePartition", "StoreDamaged", "read_piece"]

EXPIRED: Final = "expired"
MISSING: Final = "missing-file"


@dataclass
class PiecePartition(InputPartition):
    """One task's piece, as Spark carries it."""

    piece: Piece


class DataLost(ValueError):
    """A file that was planned to be read is gone."""


def read_piece(piece: Piece, options: MessageOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of the wanted messages, and rows for damage if asked for.

    StoreDamaged and DataLost as the options say; OSError as from the store.
    """
    for path, begin, end in piece.missing:
        if options.damage_rows:
            yield _batches(piece, path, options, schema).damage(begin, end, MISSING)
    if not piece.ranges and not piece.groups:
        return
    piece = replace(piece, url=_replica(piece))
    with closing(open_folder(piece.url)) as folder:
        throttle = Throttle(options.bytes_per_second) if options.bytes_per_second else None
        for group in piece.groups:
            yield from _read_group(folder, piece, group, options, schema, throttle)
        for wanted in piece.ranges:
            damaged = yield from _read(folder, piece, wanted, options, schema, throttle)
            if damaged and options.on_corrupt == "stop":
                return


def _replica(piece: Piece) -> str:
    """The store to read: an attempt after a failure takes another replica, if there is one."""
    replicas = (piece.url, *piece.others)
    return replicas[_attempt() % len(replicas)] if piece.others else piece.url


def _attempt() -> int:
    """How often this task was tried before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _batches(piece: Piece, path: str, options: MessageOptions, schema: pa.Schema) -> Batches:
    source = Source(path, piece.broker_name, piece.epochs)
    return Batches(schema, source, piece.wanted, open_bodies=options.decompress)


def _read_group(
    folder: StoreFolder,
    piece: Piece,
    group: UnitGroup,
    options: MessageOptions,
    schema: pa.Schema,
    throttle: Throttle | None,
) -> Iterator[pa.RecordBatch]:
    """The records of a group of units; if one does not fit, those of its stretch of the log."""
    assert piece.log is not None, "pieces with groups have it"
    try:
        chunk = read_group(folder, piece.log, group, crc=options.verify_crc, throttle=throttle)
    except FileNotFoundError:  # of a queue, or of the log, which says what that means
        chunk = None
    if chunk is not None:
        parts = [chunk]
        if "file" in [name.lower() for name in schema.names]:
            parts = list(by_file(chunk, piece.log))
        for part in parts:
            file = piece.log.at(int(part.begin))
            batch = _batches(piece, file.path if file is not None else "", options, schema).build(part)
            if batch is not None:
                yield batch
        return
    _LOG.warning(
        "%s: units %d to %d of queue %s/%d do not fit their records; the log is read from %d to %d",
        piece.url, group.first, group.end, group.topic, group.queue_id, group.log_begin, group.log_end,
    )  # fmt: skip
    wanted = replace(
        piece.wanted,
        topics=(group.topic,),
        queue_ids=(group.queue_id,),
        start_offset=max(piece.wanted.start_offset, group.log_begin),
        end_offset=min(piece.wanted.end_offset, group.log_end),
    )
    stretch = replace(piece, wanted=wanted)
    ranges = split(
        piece.log.files, options.split_size, bound=piece.bound, start=group.log_begin, end=group.log_end
    )
    for each in ranges:
        yield from _read(folder, stretch, each, options, schema, throttle)


def _read(
    folder: StoreFolder,
    piece: Piece,
    wanted: Range,
    options: MessageOptions,
    schema: pa.Schema,
    throttle: Throttle | None,
) -> Generator[pa.RecordBatch, None, bool]:
    batches = _batches(piece, wanted.path, options, schema)
    outcome = Outcome(wanted.start, wanted.start)
    try:
        for chunk in read_range(
            folder,
            wanted,
            outcome,
            crc=options.verify_crc,
            resync=options.on_corrupt == "skip",
            throttle=throttle,
            drop_cache=options.drop_cache,
            piece=options.batch_bytes,
        ):
            batch = batches.build(chunk)
            if batch is not None:
                yield batch
        found = damaged_ranges(folder, wanted, outcome)
        named = [(begin, end, reason_of(stop)) for begin, end, stop in found]
    except FileNotFoundError as error:
        named = [_gone(folder, piece, wanted, options, error)]
    for begin, end, reason in named:
        if reason not in (EXPIRED, MISSING) and options.on_corrupt == "fail":
            raise StoreDamaged(
                f"{piece.url}/{wanted.path}: no record can be read at {begin} ({reason}); up to {end} is "
                "damaged. Read around it with onCorrupt=skip, see it with damagedRanges=rows, or look "
                "closer with `brokerset store verify`"
            )
        _LOG.warning("%s/%s: passed over %d to %d: %s", piece.url, wanted.path, begin, end, reason)
        if options.damage_rows:
            yield batches.damage(begin, end, reason)
    return bool(named)


def _gone(
    folder: StoreFolder, piece: Piece, wanted: Range, options: MessageOptions, error: FileNotFoundError
) -> tuple[int, int, str]:
    """A file that was there when the query was planned. It may have expired in between."""
    expired = is_expired(folder, wanted)
    if options.fail_on_data_loss:
        raise DataLost(
            f"{piece.url}/{wanted.path} is gone: "
            + ("it expired since the query was planned" if expired else "and files before it are still there")
            + ". Load the store again, or read what is left with failOnDataLoss=false"
        ) from error
    return wanted.start, wanted.end, EXPIRED if expired else MISSING
