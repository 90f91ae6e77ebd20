"""Consume queues as files of a store: how far they go, and what single units say."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_formats.queue_units import UNIT_SIZE, QueueUnit, decode_unit, first_that
from brokerset_spark.stores.folder import StoreFolder, read_bytes
from brokerset_spark.stores.layout import QueueFiles


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Queue offsets `[first, end)` have units that point to messages."""

    first: int
    end: int


def read_unit(folder: StoreFolder, queue: QueueFiles, queue_offset: int) -> QueueUnit | None:
    """The unit of one queue offset; None if no file holds it."""
    file = queue.log.at(queue_offset * UNIT_SIZE)
    if file is None or queue_offset < 0:
        return None
    raw = read_bytes(folder, file.path, queue_offset * UNIT_SIZE - file.base, UNIT_SIZE)
    return decode_unit(raw) if len(raw) == UNIT_SIZE else None


def measure_queue(folder: StoreFolder, queue: QueueFiles, first_offset: int) -> QueueSpan:
    """Which queue offsets have a message at or behind `first_offset`, where the log begins.

    Units are searched by halves: in a queue, blank ones come first, then those with ascending offsets, then
    zeros.
    """
    log = queue.log
    if not log.files:
        return QueueSpan(0, 0)

    def unit(number: int) -> QueueUnit:
        return read_unit(folder, queue, number) or QueueUnit(0, 0, 0)

    low, high = log.first // UNIT_SIZE, log.end // UNIT_SIZE
    end = first_that(low, high, lambda number: not unit(number).is_valid)
    first = first_that(
        low, end, lambda number: not unit(number).is_blank and unit(number).offset >= first_offset
    )
    return QueueSpan(first, end)
