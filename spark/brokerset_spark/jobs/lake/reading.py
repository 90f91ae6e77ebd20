"""A task's side of a range of the lake: the wire source's reader, with the policy of a table.

A query fails for what is missing. A table goes on, with a control row that says what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from brokerset_client.calls import PulledRecords
from brokerset_client.errors import ClientError
from brokerset_spark.jobs.lake.ranges import Control, Event
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.stores.reading import Chunk
from brokerset_spark.topics.client_thread import ClientThread
from brokerset_spark.topics.offsets import QueueKey
from brokerset_spark.topics.options import ReadFrom
from brokerset_spark.topics.planning import Range
from brokerset_spark.topics.reading import Loss, RangeReader

_EVENTS = {Loss.EXPIRED: Event.EXPIRED, Loss.GAP: Event.GAP, Loss.RECREATED: Event.RECREATED}


class _OtherQueue(Exception):
    """The range is one of a queue that is not there any more."""


@dataclass(slots=True)
class RangeOutcome:
    """What became of a range, complete when it is read to its end. Its reader's policy."""

    messages: int = 0
    control: list[Control] = field(default_factory=list)
    read_from: ReadFrom = "auto"
    patience_seconds: float = 120.0
    """How long a pull waits for a broker that serves it: longer than a failover."""

    def lost(self, key: QueueKey, kind: Loss, first: int, last: int, text: str) -> None:
        """A control row. What may come back is not given up: JobFailed."""
        if kind not in _EVENTS:
            raise JobFailed(f"{key}: {text}", "run the export again: it goes on from its last commit")
        self.control.append(Control(_EVENTS[kind], key, first, last, "while it was being read"))
        if kind is Loss.RECREATED:
            raise _OtherQueue

    def late(self, key: QueueKey, place: int, end: int, last: ClientError | PulledRecords) -> None:
        """JobFailed: what was planned is confirmed, so somebody has it."""
        said = last if isinstance(last, ClientError) else f"the queue ends at {last.max_queue_offset}"
        raise JobFailed(
            f"{key} cannot be read at {place} of {end}: {said}",
            "look at the broker group (`brokerset status`), then run the export again: it goes on from its "
            "last commit",
        )


def read_queue(client: ClientThread, wanted: Range, outcome: RangeOutcome) -> Iterator[Chunk]:
    """Every message of the range, once, in order; nothing if it is one of another queue now. JobFailed if it
    cannot be read."""
    with closing(RangeReader(client, wanted, outcome)) as reader:
        try:
            for chunk in reader.chunks():
                outcome.messages += len(chunk.starts)
                yield chunk
        except _OtherQueue:
            return
        except ClientError as error:
            raise JobFailed(f"{wanted.key}: {error}", "run the export again") from error
        except ValueError as error:  # of a damaged answer
            advice = "repair that broker's store, or let another replica be its master, then run it again"
            raise JobFailed(str(error), advice) from error
