"""What a committed event does to a subject. Each guard is checked here, on every controller alike."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch
from types import MappingProxyType

from brokerset_controller.ordered import limits
from brokerset_controller.ordered.events import (
    Drained,
    Event,
    GenerationPrepared,
    GroupRemoved,
    MemberJoined,
    MemberLeft,
    PartitionRetired,
    PartitionSealed,
    ProducerStarted,
    QueuesDeleted,
    Reassigned,
    Released,
    RetriesFinished,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.limits import GROUPS_MAX, MEMBERS_MAX, PARTITIONS_KEPT_MAX
from brokerset_controller.ordered.state import (
    ConsumerGroup,
    Entry,
    Member,
    Ownership,
    Partition,
    Subject,
    Tombstone,
)
from brokerset_formats.order_keys import overlap, partition_ranges
from brokerset_protocol.subject_words import PartitionStatus


class GuardFailed(Exception):
    """A guard does not hold any more; nothing changed."""


def apply(entry: Entry | None, event: Event) -> Entry:
    """What stands behind the name after an event. Raises `GuardFailed`, with the name of the subject."""
    try:
        return _after(entry, event)
    except GuardFailed as failed:
        raise GuardFailed(f"{event.subject}: {failed}") from None


def _after(entry: Entry | None, event: Event) -> Entry:
    match event, entry:
        case SubjectCreated(), _:
            return _created(entry, event)
        case QueuesDeleted(), Tombstone():
            return _cleaned(entry, event)
        case QueuesDeleted(), _:
            raise GuardFailed("it is no deleted subject")
        case _, Subject():
            return _applied(event, entry)
        case _:
            raise GuardFailed("there is no such subject")


@singledispatch
def _applied(event: Event, subject: Subject) -> Entry:
    raise AssertionError(f"{event} is no event of a subject")


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise GuardFailed(problem)


# Subjects.


def _created(entry: Entry | None, event: SubjectCreated) -> Subject:
    if isinstance(entry, Subject):
        raise GuardFailed("there is such a subject")
    if entry is not None and entry.unclean:
        raise GuardFailed(f"what is left of it is being deleted on {', '.join(sorted(entry.unclean))}")
    _refuse(limits.subject_problem(event.subject))
    _refuse(limits.count_problem(event.partitions))
    if entry is None:
        _refuse(limits.route_problem(event.route))
        return _with_generation(Subject(event.subject, event.order, event.route), event.partitions, 0)
    _refuse(limits.route_problem(event.route, entry.next_queue_ids))
    again = Subject(
        event.subject,
        event.order,
        event.route,
        version=entry.version,
        next_partition_id=entry.next_partition_id,
        epoch=entry.epoch,
        group_version=entry.group_version,
        next_queue_ids=entry.next_queue_ids,
    )
    return _with_generation(again, event.partitions, entry.generation + 1)


def _cleaned(tombstone: Tombstone, event: QueuesDeleted) -> Tombstone:
    if event.version != tombstone.version or event.broker_group not in tombstone.unclean:
        raise GuardFailed(f"nothing is to be deleted on {event.broker_group}")
    return replace(tombstone, unclean=tombstone.unclean - {event.broker_group})


@_applied.register
def _(event: ProducerStarted, subject: Subject) -> Subject:
    return replace(subject, epoch=subject.epoch + 1)


@_applied.register
def _(event: SubjectDeleted, subject: Subject) -> Tombstone:
    consumed = [name for name, each in subject.groups.items() if each.members]
    if consumed:
        raise GuardFailed(f"{', '.join(consumed)} consume it; stop their members first")
    return Tombstone(
        name=subject.name,
        order=subject.order,
        version=subject.version + 1,
        generation=subject.generation,
        next_partition_id=subject.next_partition_id,
        epoch=subject.epoch,
        group_version=max(subject.group_version, *(each.version for each in subject.groups.values()), 0),
        next_queue_ids=subject.next_queue_ids,
        unclean=frozenset(subject.next_queue_ids),
    )


# Partitions.


def _with_generation(subject: Subject, count: int, generation: int) -> Subject:
    """Add partitions: open if there is nothing that they inherit from; those before are to be sealed."""
    before = sorted(
        (each for each in subject.partitions.values() if each.status is PartitionStatus.OPEN),
        key=lambda each: each.keys,
    )
    starts = [each.keys[0] for each in before]
    partitions = {
        number: replace(each, status=PartitionStatus.SEALING) if each.status is PartitionStatus.OPEN else each
        for number, each in subject.partitions.items()
    }
    queues = dict(subject.next_queue_ids)
    for number, keys in enumerate(partition_ranges(count)):
        place = subject.route[number % len(subject.route)]
        queue_id = queues.get(place, 0)
        if queue_id >= limits.QUEUES_MAX:
            raise GuardFailed(
                f"it has had {queue_id} queues on {place}, and a broker's topic has no more; name a route of"
                " other broker groups, or go on with another subject"
            )
        queues[place] = queue_id + 1
        # Their ranges are disjoint, so those that overlap stand side by side.
        near = before[max(bisect_right(starts, keys[0]) - 1, 0) : bisect_left(starts, keys[1])]
        inherits = frozenset(each.partition_id for each in near if overlap(each.keys, keys))
        partition_id = subject.next_partition_id + number
        partitions[partition_id] = Partition(
            partition_id,
            generation,
            keys,
            place,
            queue_id,
            PartitionStatus.PREPARED if inherits else PartitionStatus.OPEN,
            inherits,
        )
    numbered = replace(
        subject,
        generation=generation,
        next_partition_id=subject.next_partition_id + count,
        next_queue_ids=MappingProxyType(queues),
    )
    return _with_partitions(numbered, partitions)


def _with_partitions(subject: Subject, partitions: dict[int, Partition]) -> Subject:
    """Other partitions: another version for producers and brokers, and for each group of consumers."""
    groups = {name: replace(each, version=each.version + 1) for name, each in subject.groups.items()}
    return replace(
        subject,
        version=subject.version + 1,
        partitions=MappingProxyType(partitions),
        groups=MappingProxyType(groups),
    )


@_applied.register
def _(event: GenerationPrepared, subject: Subject) -> Subject:
    _refuse(limits.count_problem(event.partitions))
    _refuse(limits.route_problem(event.route, subject.next_queue_ids))
    if subject.generation != event.expected_generation:
        raise GuardFailed(f"the generation is {subject.generation}, not {event.expected_generation}")
    if subject.is_scaling:
        raise GuardFailed(f"generation {subject.generation} is not open yet")
    if len(subject.partitions) + event.partitions > PARTITIONS_KEPT_MAX:
        raise GuardFailed(f"a subject keeps at most {PARTITIONS_KEPT_MAX} partitions; retire drained ones")
    return _with_generation(
        replace(subject, route=event.route), event.partitions, event.expected_generation + 1
    )


@_applied.register
def _(event: PartitionSealed, subject: Subject) -> Subject:
    partition = _partition(subject, event.partition_id)
    moved = (
        partition.status is PartitionStatus.SEALED
        and event.master_epoch > partition.sealed_epoch
        and event.end != partition.sealed_end
    )
    if partition.status is not PartitionStatus.SEALING and not moved:
        raise GuardFailed(f"partition {event.partition_id} is {partition.status}, not to be sealed")
    sealed = replace(
        partition, status=PartitionStatus.SEALED, sealed_end=event.end, sealed_epoch=event.master_epoch
    )
    partitions = {**subject.partitions, event.partition_id: sealed}
    for each in subject.inheritors(partition):
        if each.status is PartitionStatus.PREPARED and all(
            _is_sealed(partitions.get(ancestor)) for ancestor in each.inherits
        ):
            partitions[each.partition_id] = replace(each, status=PartitionStatus.OPEN)
    return _with_partitions(subject, partitions)


def _is_sealed(partition: Partition | None) -> bool:
    return partition is None or partition.status is PartitionStatus.SEALED


@_applied.register
def _(event: PartitionRetired, subject: Subject) -> Subject:
    partition = _partition(subject, event.partition_id)
    if partition.status is not PartitionStatus.SEALED:
        raise GuardFailed(f"partition {event.partition_id} is {partition.status}, not sealed")
    if any(each.status is PartitionStatus.PREPARED for each in subject.inheritors(partition)):
        raise GuardFailed(f"partitions that inherit from {event.partition_id} are not open yet")
    behind = [each.name for each in subject.groups.values() if event.partition_id not in each.finished]
    if behind:
        raise GuardFailed(f"{', '.join(behind)} have not finished partition {event.partition_id}")
    partitions = {number: each for number, each in subject.partitions.items() if each is not partition}
    gone = {event.partition_id}
    groups = {
        name: replace(each, drained=each.drained - gone, finished=each.finished - gone)
        for name, each in subject.groups.items()
    }
    return _with_partitions(replace(subject, groups=MappingProxyType(groups)), partitions)


def _partition(subject: Subject, partition_id: int) -> Partition:
    partition = subject.partitions.get(partition_id)
    if partition is None:
        raise GuardFailed(f"it has no partition {partition_id}")
    return partition


# Groups of consumers.


@_applied.register
def _(event: MemberJoined, subject: Subject) -> Subject:
    group = subject.groups.get(event.group)
    _refuse(limits.session_problem(event.session, event.client_id))
    _refuse(limits.permission_problem(event.permission_ms))
    if group is None:
        _refuse(limits.consumer_group_problem(event.group))
        if len(subject.groups) >= GROUPS_MAX:
            raise GuardFailed(f"a subject has at most {GROUPS_MAX} groups")
        group = ConsumerGroup(event.group, event.strategy, version=subject.group_version)
        if group.is_shared:
            subject = replace(subject, epoch=subject.epoch + 1)
            group = replace(group, epoch=subject.epoch)
    if group.strategy is not event.strategy:
        raise GuardFailed(f"the group {event.group} consumes {group.strategy}, not {event.strategy}")
    if event.session in group.members:
        return subject
    if len(group.members) >= MEMBERS_MAX:
        raise GuardFailed(f"a group has at most {MEMBERS_MAX} members")
    joined = Member(event.session, event.client_id, event.permission_ms)
    members = {**group.members, event.session: joined}
    return _with_group(subject, group, members=MappingProxyType(members))


@_applied.register
def _(event: MemberLeft, subject: Subject) -> Subject:
    group = _group(subject, event.group)
    if event.session not in group.members:
        raise GuardFailed(f"{event.session} is no member of {event.group}")
    members = {session: each for session, each in group.members.items() if session != event.session}
    ownerships = _where(group, lambda _, each: each.session != event.session)
    return _with_group(subject, group, members=MappingProxyType(members), ownerships=ownerships)


@_applied.register
def _(event: Reassigned, subject: Subject) -> Subject:
    group = _group(subject, event.group)
    if group.version != event.expected_version:
        raise GuardFailed(f"the assignment of {event.group} is another one already")
    ownerships = dict(group.ownerships)
    for partition_id in event.revoked:
        if partition_id not in ownerships:
            raise GuardFailed(f"nobody owns partition {partition_id}")
        ownerships[partition_id] = replace(ownerships[partition_id], revoked=True)
    epoch, assignable = subject.epoch, subject.assignable(group)
    for partition_id, session in sorted(event.granted.items()):
        if partition_id in ownerships or partition_id not in assignable or session not in group.members:
            raise GuardFailed(f"partition {partition_id} cannot be given to {session}")
        epoch += 1
        ownerships[partition_id] = Ownership(session, epoch)
    return _with_group(replace(subject, epoch=epoch), group, ownerships=MappingProxyType(ownerships))


@_applied.register
def _(event: Released, subject: Subject) -> Subject:
    group = _owned(subject, event)
    return _with_group(subject, group, ownerships=_without(group, event.partition_id))


@_applied.register
def _(event: Drained, subject: Subject) -> Subject:
    group, partition = _consumed(subject, event), _partition(subject, event.partition_id)
    if partition.sealed_end is None or event.position < partition.sealed_end:
        raise GuardFailed(f"partition {event.partition_id} is not drained at {event.position}")
    if event.partition_id in group.drained:
        raise GuardFailed(f"{group.name} has drained partition {event.partition_id} already")
    drained = replace(group, drained=group.drained | {event.partition_id})
    if subject.has_retries(group):
        return _with_group(subject, drained)
    return _finished(subject, drained, event.partition_id)


@_applied.register
def _(event: RetriesFinished, subject: Subject) -> Subject:
    group = _consumed(subject, event)
    if event.partition_id not in group.drained:
        raise GuardFailed(f"{group.name} has not drained partition {event.partition_id}")
    return _finished(subject, group, event.partition_id)


def _finished(subject: Subject, group: ConsumerGroup, partition_id: int) -> Subject:
    return _with_group(
        subject, group, finished=group.finished | {partition_id}, ownerships=_without(group, partition_id)
    )


@_applied.register
def _(event: GroupRemoved, subject: Subject) -> Subject:
    group = _group(subject, event.group)
    if group.members:
        raise GuardFailed(f"the group {event.group} has {len(group.members)} members")
    groups = {name: each for name, each in subject.groups.items() if name != event.group}
    version = max(subject.group_version, group.version)
    return replace(subject, groups=MappingProxyType(groups), group_version=version)


def _group(subject: Subject, name: str) -> ConsumerGroup:
    group = subject.groups.get(name)
    if group is None:
        raise GuardFailed(f"it has no group {name}")
    return group


def _consumed(subject: Subject, event: Drained | RetriesFinished) -> ConsumerGroup:
    """The group, if the event is of who consumes the partition now."""
    group = _group(subject, event.group)
    if not group.is_shared:
        return _owned(subject, event)
    if event.epoch != group.epoch or not subject.is_assignable(group, event.partition_id):
        raise GuardFailed(f"{group.name} does not consume partition {event.partition_id} by {event.epoch}")
    return group


def _owned(subject: Subject, event: Released | Drained | RetriesFinished) -> ConsumerGroup:
    """The group, if the event is of the ownership that is in force."""
    group = _group(subject, event.group)
    ownership = group.ownerships.get(event.partition_id)
    if ownership is None or ownership.epoch != event.epoch:
        raise GuardFailed(f"partition {event.partition_id} is not owned by epoch {event.epoch}")
    return group


def _without(group: ConsumerGroup, partition_id: int) -> Mapping[int, Ownership]:
    return _where(group, lambda number, _: number != partition_id)


def _where(group: ConsumerGroup, keep: Callable[[int, Ownership], bool]) -> Mapping[int, Ownership]:
    return MappingProxyType({number: each for number, each in group.ownerships.items() if keep(number, each)})


def _with_group(subject: Subject, group: ConsumerGroup, **changes: object) -> Subject:
    changed = replace(group, version=group.version + 1, **changes)  # type: ignore[arg-type]  # its fields
    return replace(subject, groups=MappingProxyType({**subject.groups, group.name: changed}))
