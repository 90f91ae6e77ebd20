"""The reducer of an audit of order: the ranges of a store become one fold for the driver."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Final

from brokerset_spark.jobs.order.folding import StoreFold
from brokerset_spark.jobs.order.parts import RangePart
from brokerset_spark.jobs.running import Result, Row

REDUCER: Final = "brokerset_spark.jobs.order.reducing:Folded"


class Folded:
    """The reducer of an audit: all ranges of one store, in the order of its log."""

    def __init__(self) -> None:
        self._fold: StoreFold | None = None

    def take(self, row: Row) -> None:
        """The next range. JobFailed as from `StoreFold.take`."""
        if self._fold is None:
            self._fold = StoreFold(row["url"], row["broker"], row["live"])
        self._fold.take(RangePart.unpack(row["part"]))

    def finish(self) -> Iterator[Result]:
        """One result, `StoreFold` after `close`; none where no range came."""
        if self._fold is not None:
            self._fold.close()
            yield Result({}, pickle.dumps(self._fold))
