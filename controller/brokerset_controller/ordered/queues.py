"""What each broker group shall have of a subject, and what its answers are as events."""

from __future__ import annotations

from brokerset_controller.ordered.events import Event, PartitionSealed, QueuesDeleted
from brokerset_controller.ordered.state import Entry, Partition, Subject, Tombstone
from brokerset_protocol.bodies.ordered import SubjectQueue, SubjectQueues
from brokerset_protocol.subject_words import PartitionStatus

_SEALED = (PartitionStatus.SEALING, PartitionStatus.SEALED)


def broker_groups_of(entry: Entry | None) -> tuple[str, ...]:
    """The broker groups that shall have something of a subject, or delete it, in order."""
    match entry:
        case Subject():
            return tuple(sorted({each.broker_group for each in entry.partitions.values()}))
        case Tombstone():
            return tuple(sorted(entry.unclean))
        case None:
            return ()


def queues_of(entry: Entry | None, broker_group: str) -> SubjectQueues | None:
    """What a broker group shall have of a subject; None if it is not concerned.

    A partition that is to be sealed is `Sealed` for its broker: there is nothing between the two.
    """
    if broker_group not in broker_groups_of(entry):
        return None
    if isinstance(entry, Tombstone):
        return SubjectQueues(entry.name, entry.order, entry.version, deleted=True)
    assert entry is not None, "nothing is on no broker group"
    queues = sorted(_on(entry, broker_group), key=lambda each: each.queue_id)
    return SubjectQueues(
        entry.name,
        entry.order,
        entry.version,
        queues=tuple(SubjectQueue(each.queue_id, each.partition_id, _state(each)) for each in queues),
    )


def waits_for_end(entry: Entry | None, broker_group: str) -> bool:
    """Whether the controllers wait for what only the broker group can say."""
    if isinstance(entry, Tombstone):
        return broker_group in entry.unclean
    return entry is not None and any(
        each.status is PartitionStatus.SEALING for each in _on(entry, broker_group)
    )


def answered(
    entry: Entry | None, broker_group: str, pushed: SubjectQueues, answer: SubjectQueues, master_epoch: int
) -> list[Event]:
    """What a broker's answer to `pushed` makes to be agreed on: ends of partitions, or that it has deleted.

    Of an answer to something else, or about queues that are not sealed, nothing.
    """
    if answer.subject != pushed.subject or answer.version != pushed.version:
        return []
    if isinstance(entry, Tombstone):
        clean = pushed.deleted and answer.deleted and pushed.version == entry.version
        return [QueuesDeleted(entry.name, broker_group, entry.version)] if clean else []
    if entry is None or pushed.deleted:
        return []
    ends = {
        (each.partition_id, each.queue_id): each.end
        for each in answer.queues
        if each.state is PartitionStatus.SEALED and each.end is not None and each.end >= 0
    }
    found: list[Event] = []
    for partition in sorted(_on(entry, broker_group), key=lambda each: each.partition_id):
        end = ends.get((partition.partition_id, partition.queue_id))
        if end is None or partition.status not in _SEALED:
            continue
        if partition.status is PartitionStatus.SEALING or (
            end != partition.sealed_end and master_epoch > partition.sealed_epoch
        ):
            found.append(PartitionSealed(entry.name, partition.partition_id, end, master_epoch))
    return found


def _on(subject: Subject, broker_group: str) -> list[Partition]:
    return [each for each in subject.partitions.values() if each.broker_group == broker_group]


def _state(partition: Partition) -> PartitionStatus:
    return PartitionStatus.SEALED if partition.status in _SEALED else partition.status
