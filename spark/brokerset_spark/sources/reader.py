"""What a task does: reads its piece of a store, and gives batches."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from brokerset_spark.sources.batches import Batches, Source, reason_of
from brokerset_spark.sources.options import MessageOptions
from brokerset_spark.sources.plan import Piece, StoreDamaged
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Outcome, Range, Throttle, damaged_ranges, read_range
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
    if not piece.ranges:
        return
    with closing(open_folder(piece.url)) as folder:
        throttle = Throttle(options.bytes_per_second) if options.bytes_per_second else None
        for wanted in piece.ranges:
            damaged = yield from _read(folder, piece, wanted, options, schema, throttle)
            if damaged and options.on_corrupt == "stop":
                return


def _batches(piece: Piece, path: str, options: MessageOptions, schema: pa.Schema) -> Batches:
    source = Source(path, piece.broker_name, piece.epochs)
    return Batches(schema, source, piece.wanted, open_bodies=options.decompress)


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
