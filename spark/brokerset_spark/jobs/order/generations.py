"""Rules across partitions: ranges of logical partitions, sealed ends, and who inherits from whom. Pure.

A partition takes keyed messages only when all that it inherits from are sealed, and a sealed one takes
nothing any more. So nothing lies behind a sealed end; and in one log the first message of a logical partition
in a newer partition lies behind the last one in an older. Across brokers only their clocks can be compared,
which proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brokerset_protocol.bodies.ordered import PartitionState, SubjectState
from brokerset_protocol.subject_words import PartitionStatus
from brokerset_spark.jobs.order.concerns import Code, Concern
from brokerset_spark.jobs.order.tables import Table
from brokerset_spark.jobs.report import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition as a store has it: the queue whose stamps say its id."""

    subject: str
    partition_id: int
    store: str
    """URL."""

    broker: str | None
    """The broker group, if the store says so."""

    queue_id: int
    first_place: int
    last_place: int
    """Queue offsets."""

    logical: Table
    """Its messages by logical partition (`tables.LOGICAL`)."""

    live: bool
    """Whether a broker may be writing the store, so that its end is not known."""


def check_alone(stored: Sequence[StoredPartition]) -> Iterator[Concern]:
    """What needs no state: a partition is one queue."""
    first: dict[tuple[str, int], StoredPartition] = {}
    for each in stored:
        before = first.setdefault((each.subject, each.partition_id), each)
        if before is not each:
            text = (
                f"partition {each.partition_id} is in queue {each.queue_id} here and in queue "
                f"{before.queue_id} of {before.store}: stamps of one partition in two queues"
            )
            yield _about(each, Code.PARTITION, text, each.first_place)


def check_state(
    state: SubjectState, stored: Sequence[StoredPartition], brokers: Sequence[str | None]
) -> Iterator[Concern]:
    """Compare what stores have of a subject with what the controllers agreed on.

    `brokers` are the broker groups of the stores that were given; a None may be any of them.
    """
    agreed = {each.partition_id: each for each in state.partitions}
    found = {each.partition_id: each for each in stored}
    for each in stored:
        partition = agreed.get(each.partition_id)
        if partition is None:
            text = (
                f"partition {each.partition_id} is not in the state of the subject: it was retired, or the "
                "state is older than the store"
            )
            yield _about(each, Code.UNKNOWN, text, each.first_place)
            continue
        yield from _check_place(each, partition)
        yield from _check_range(each, partition)
        yield from _check_seal(each, partition)
        yield from _check_ancestors(each, partition, agreed, found)
    for partition in state.partitions:
        if partition.broker_group not in brokers and None not in brokers:
            text = (
                f"partition {partition.partition_id} is on {partition.broker_group}, whose store was not "
                "given: nothing is known about it"
            )
            yield Concern(code=Code.NOT_GIVEN, subject=state.name, text=text, queue_id=partition.queue_id)


def _check_place(each: StoredPartition, partition: PartitionState) -> Iterator[Concern]:
    elsewhere = each.broker is not None and each.broker != partition.broker_group
    if each.queue_id != partition.queue_id or elsewhere:
        text = (
            f"partition {each.partition_id} belongs into queue {partition.queue_id} of "
            f"{partition.broker_group}, and is in queue {each.queue_id} of {each.broker or each.store}"
        )
        yield _about(each, Code.PARTITION, text, each.first_place)


def _check_range(each: StoredPartition, partition: PartitionState) -> Iterator[Concern]:
    logical = each.logical["logical"]
    rows = each.logical[(logical < partition.first) | (logical >= partition.end)]
    if len(rows):
        at = rows[np.argmin(rows["first_offset"])]
        count = int(rows["messages"].sum())
        text = (
            f"{count} messages of {len(rows)} logical partitions outside [{partition.first}, "
            f"{partition.end}) of partition {each.partition_id}; the first, of {at['logical']}, at queue "
            f"offset {at['first_place']} (record at {at['first_offset']:,} of the log)"
        )
        yield _about(each, Code.RANGE, text, int(at["first_place"]), count)


def _check_seal(each: StoredPartition, partition: PartitionState) -> Iterator[Concern]:
    if partition.status is not PartitionStatus.SEALED or partition.sealed_end is None:
        return
    end, behind = partition.sealed_end, each.last_place + 1 - partition.sealed_end
    if behind > 0:
        text = (
            f"{behind} messages lie behind {end}, the sealed end of partition {each.partition_id}: consumers "
            "of the partitions that inherit from it did not wait for them"
        )
        yield _about(each, Code.SEAL, text, max(end, each.first_place), behind)
    elif behind < 0:
        text = (
            f"the queue ends at {each.last_place + 1}, before {end}, the sealed end of partition "
            f"{each.partition_id}: {-behind} confirmed messages are not in this store"
        )
        level = Level.WARNING if each.live else None
        yield _about(each, Code.SEAL_SHORT, text, each.last_place + 1, -behind, level)


def _check_ancestors(
    each: StoredPartition,
    partition: PartitionState,
    agreed: Mapping[int, PartitionState],
    found: Mapping[int, StoredPartition],
) -> Iterator[Concern]:
    for number in partition.inherits:
        older, theirs = found.get(number), agreed.get(number)
        if older is None or theirs is None:
            continue
        low, high = max(partition.first, theirs.first), min(partition.end, theirs.end)
        mine, before = _common(each.logical, older.logical, low, high)
        if not len(mine):
            continue
        if each.store == older.store:
            early = mine["first_offset"] < before["last_offset"]
            if early.any():
                row = mine[early][np.argmin(mine["first_offset"][early])]
                count = int(early.sum())
                text = (
                    f"partition {each.partition_id} took messages of {count} logical partitions before the "
                    f"last ones of partition {number}, from which it inherits; the first, of "
                    f"{row['logical']}, at queue offset {row['first_place']} (record at "
                    f"{row['first_offset']:,} of the log): keys were in two partitions at once"
                )
                yield _about(each, Code.GENERATION, text, int(row["first_place"]), count)
            continue
        ahead = before["last_time"] - mine["first_time"]
        if (ahead > 0).any():
            row = mine[np.argmax(ahead)]
            text = (
                f"by the clocks of two brokers partition {each.partition_id} took messages of "
                f"{int((ahead > 0).sum())} logical partitions up to {int(ahead.max())} ms before the last "
                f"ones of partition {number}, from which it inherits: either clocks differ, or keys were in "
                "two partitions at once"
            )
            yield _about(each, Code.TIME, text, int(row["first_place"]))


def _common(mine: Table, before: Table, low: int, high: int) -> tuple[Table, Table]:
    """The rows of logical partitions in `[low, high)` that both have, in the same order."""
    both = np.intersect1d(mine["logical"], before["logical"])
    both = both[(both >= low) & (both < high)]
    return mine[np.isin(mine["logical"], both)], before[np.isin(before["logical"], both)]


def _about(
    each: StoredPartition, code: str, text: str, place: int, messages: int = 0, level: Level | None = None
) -> Concern:
    return Concern(
        code=code, subject=each.subject, text=text, messages=messages, store=each.store,
        queue_id=each.queue_id, place=place, level=level,
    )  # fmt: skip
