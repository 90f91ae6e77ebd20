"""What all table formats of a lake have in common: what a pass commits, and the rows of the control table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from brokerset_spark.jobs.lake.files import WrittenFile
from brokerset_spark.jobs.lake.ranges import Control, Event, Exported
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.json_values import CAMEL, from_value, to_value
from brokerset_spark.topics.offsets import QueueKey

CONTROL: Final = "control"
PARTITIONS: Final = ["topic", "day"]
ONE_AT_A_TIME: Final = "another export to the same target ran at the same time; run one at a time"

CONTROL_SCHEMA: Final = pa.schema(
    [
        pa.field("pass", pa.int64()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("event", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("brokerName", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("startOffset", pa.int64()),
        pa.field("endOffset", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a pass adds, all of it at once."""

    files: Sequence[WrittenFile]
    exported: Mapping[QueueKey, Exported]
    """The new ends; queues that did not move may be left out."""
    control: Sequence[Control]


class LakeTable(Protocol):
    """The tables below one URL, in some format."""

    @property
    def passes(self) -> int:
        """Number of the last commit of ours; 0 before the first."""

    def begin(self) -> str:
        """Begin a pass; how names of its files begin."""

    def close(self) -> None:
        """Give connections back."""

    def exported(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Exported]:
        """What the table has of these queues; those that it does not know are left out."""

    def known_queues(self) -> set[QueueKey]:
        """All queues that a pass has seen, without those that were said to be gone."""

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Columns that the table lacks; of earlier messages they are null. JobFailed for another type."""

    def commit(self, made: Commit) -> int:
        """Files, offsets and control rows at once; the number of the pass.

        JobFailed if another export has committed since the tables were opened: nothing of this one counts.
        """

    def compact(self, target_bytes: int) -> dict[str, Any]:
        """Makes large files of small ones, in each topic and day; readers see the same rows all the time."""

    def vacuum(self, hours: int) -> int:
        """Deletes files that no version of the last `hours` names, of failed attempts too; how many."""


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """What a table has of a queue, as it is written down with a commit."""

    __pydantic_config__: ClassVar = CAMEL

    queue: QueueKey
    exported: Exported
    is_gone: bool = False


@dataclass(slots=True)
class QueueEnds:
    """The ends of all queues after a commit, for formats without a place of their own for them."""

    exported: dict[QueueKey, Exported] = field(default_factory=dict)
    known: set[QueueKey] = field(default_factory=set)
    """Those that are not said to be gone."""

    def after(self, exported: Mapping[QueueKey, Exported], control: Iterable[Control]) -> QueueEnds:
        """The ends when this is committed as well."""
        made = QueueEnds({**self.exported, **exported}, set(self.known))
        for row in control:
            if row.event is Event.QUEUE_GONE:
                made.known.discard(row.queue)
            else:
                made.known.add(row.queue)
        return made

    def rows(self) -> list[dict[str, Any]]:
        """As JSON values."""
        return [
            to_value(QueueEnd(queue, each, queue not in self.known))
            for queue, each in sorted(self.exported.items(), key=lambda item: item[0])
        ]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> QueueEnds:
        """The reverse."""
        found = [from_value(QueueEnd, each) for each in rows]
        return cls(
            {each.queue: each.exported for each in found}, {each.queue for each in found if not each.is_gone}
        )


def control_table(number: int, rows: Sequence[Control]) -> pa.Table:
    """The rows of a pass as the control table has them."""
    now = datetime.now(UTC)
    return pa.Table.from_pylist(
        [
            {
                "pass": number,
                "time": now,
                "event": str(each.event),
                "topic": each.queue.topic,
                "brokerName": each.queue.broker,
                "queueId": each.queue.queue,
                "startOffset": each.start,
                "endOffset": each.end,
                "detail": each.detail,
            }
            for each in rows
        ],
        CONTROL_SCHEMA,
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The same type as we write it: formats name the elements of lists otherwise, and take large strings."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in kind])
    return kind


def missing_columns(there: pa.Schema, wanted: Sequence[pa.Field]) -> pa.Schema:
    """Those of `wanted` that a table lacks; JobFailed if it has one with another type."""
    types = {each.name.lower(): plain_type(each.type) for each in there}
    for each in wanted:
        found = types.get(each.name.lower())
        if found is not None and found != plain_type(each.type):
            raise JobFailed(
                f"column {each.name} of the table is {found}, not {each.type}",
                "give it its type, or export into another target",
            )
    return pa.schema([each for each in wanted if each.name.lower() not in types])
