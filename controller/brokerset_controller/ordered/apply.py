"""What a committed event does to a subject. Each guard is checked here, on every controller alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch
from types import MappingProxyType

from brokerset_controller.ordered.events import (
    Drained,
    Event,
    GenerationPrepared,
    GroupRemoved,
    MemberJoined,
    MemberLeft,
    PartitionRetired,
    PartitionSealed,
    Reassigned,
    Released,
    SubjectCreated,
    SubjectDeleted,
)
from brokerset_controller.ordered.state import (
    GROUPS_MAX,
    MEMBERS_MAX,
    PARTITIONS_KEPT_MAX,
    SHARED_EPOCH,
    ConsumerGroup,
    Member,
    Ownership,
    Partition,
    Subject,
)
from brokerset_formats.order_keys import LOGICAL_PARTITIONS, overlap, partition_ranges
from brokerset_protocol.subject_words import ConsumeStrategy, PartitionStatus


class GuardFailed(Exception):
    """A guard does not hold any more; nothing changed."""


def apply(subject: Subject | None, event: Event) -> Subject | None:
    """The subject after an event; None when it is none any more. Raises `GuardFailed`."""
    if isinstance(event, SubjectCreated | GenerationPrepared):
        _check_plan(event)
    if isinstance(event, SubjectCreated):
        if subject is not None:
            raise GuardFailed(f"there is a subject {event.subject}")
        return _with_generation(Subject(event.subject, event.order, event.route), event.partitions, 0)
    if subject is None:
        raise GuardFailed(f"there is no subject {event.subject}")
    return _applied(event, subject)


@singledispatch
def _applied(event: Event, subject: Subject) -> Subject | None:
    raise AssertionError(f"{event} is no event of a subject")


# Partitions.


def _check_plan(event: SubjectCreated | GenerationPrepared) -> None:
    if not 1 <= event.partitions <= LOGICAL_PARTITIONS:
        raise GuardFailed(f"{event.partitions} partitions; a subject has 1 to {LOGICAL_PARTITIONS}")
    if not event.route:
        raise GuardFailed("there is no broker group to put partitions on")


def _with_generation(subject: Subject, count: int, generation: int) -> Subject:
    """Add partitions: open if there is nothing that they inherit from; those before are to be sealed."""
    before = [each for each in subject.partitions.values() if each.status is PartitionStatus.OPEN]
    partitions = {
        number: replace(each, status=PartitionStatus.SEALING) if each in before else each
        for number, each in subject.partitions.items()
    }
    queues = dict(subject.next_queue_ids)
    for number, keys in enumerate(partition_ranges(count)):
        place = subject.route[number % len(subject.route)]
        queue_id = queues.get(place, 0)
        queues[place] = queue_id + 1
        inherits = frozenset(each.partition_id for each in before if overlap(each.keys, keys))
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
    return replace(
        subject,
        generation=generation,
        next_partition_id=subject.next_partition_id + count,
        next_queue_ids=MappingProxyType(queues),
        partitions=MappingProxyType(partitions),
    )


@_applied.register
def _(event: GenerationPrepared, subject: Subject) -> Subject:
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
    if partition.status is not PartitionStatus.SEALING:
        raise GuardFailed(f"partition {event.partition_id} is {partition.status}, not to be sealed")
    sealed = replace(partition, status=PartitionStatus.SEALED, sealed_end=event.end)
    partitions = {**subject.partitions, event.partition_id: sealed}
    for each in subject.inheritors(partition):
        if all(_is_sealed(partitions.get(ancestor)) for ancestor in each.inherits):
            partitions[each.partition_id] = replace(each, status=PartitionStatus.OPEN)
    return replace(subject, partitions=MappingProxyType(partitions))


def _is_sealed(partition: Partition | None) -> bool:
    return partition is None or partition.status is PartitionStatus.SEALED


@_applied.register
def _(event: PartitionRetired, subject: Subject) -> Subject:
    partition = _partition(subject, event.partition_id)
    if partition.status is not PartitionStatus.SEALED:
        raise GuardFailed(f"partition {event.partition_id} is {partition.status}, not sealed")
    if any(each.status is PartitionStatus.PREPARED for each in subject.inheritors(partition)):
        raise GuardFailed(f"partitions that inherit from {event.partition_id} are not open yet")
    behind = [each.name for each in subject.groups.values() if event.partition_id not in each.drained]
    if behind:
        raise GuardFailed(f"{', '.join(behind)} have not handled all of partition {event.partition_id}")
    partitions = {number: each for number, each in subject.partitions.items() if each is not partition}
    groups = {
        name: replace(each, drained=each.drained - {event.partition_id})
        for name, each in subject.groups.items()
    }
    return replace(subject, partitions=MappingProxyType(partitions), groups=MappingProxyType(groups))


def _partition(subject: Subject, partition_id: int) -> Partition:
    partition = subject.partitions.get(partition_id)
    if partition is None:
        raise GuardFailed(f"{subject.name} has no partition {partition_id}")
    return partition


# Groups of consumers.


@_applied.register
def _(event: MemberJoined, subject: Subject) -> Subject:
    group = subject.groups.get(event.group)
    if group is None:
        if len(subject.groups) >= GROUPS_MAX:
            raise GuardFailed(f"a subject has at most {GROUPS_MAX} groups")
        group = ConsumerGroup(event.group, event.strategy)
    if group.strategy is not event.strategy:
        raise GuardFailed(f"the group {event.group} consumes {group.strategy}, not {event.strategy}")
    if event.session in group.members:
        return subject
    if len(group.members) >= MEMBERS_MAX:
        raise GuardFailed(f"a group has at most {MEMBERS_MAX} members")
    members = {**group.members, event.session: Member(event.session, event.client_id)}
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
    return _with_group(
        subject, group, ownerships=_where(group, lambda number, _: number != event.partition_id)
    )


@_applied.register
def _(event: Drained, subject: Subject) -> Subject:
    group, partition = _consumed(subject, event), _partition(subject, event.partition_id)
    if partition.sealed_end is None or event.position < partition.sealed_end:
        raise GuardFailed(f"partition {event.partition_id} is not drained at {event.position}")
    return _with_group(
        subject,
        group,
        drained=group.drained | {event.partition_id},
        ownerships=_where(group, lambda number, _: number != event.partition_id),
    )


@_applied.register
def _(event: GroupRemoved, subject: Subject) -> Subject:
    group = _group(subject, event.group)
    if group.members:
        raise GuardFailed(f"the group {event.group} has {len(group.members)} members")
    groups = {name: each for name, each in subject.groups.items() if name != event.group}
    return replace(subject, groups=MappingProxyType(groups))


@_applied.register
def _(event: SubjectDeleted, subject: Subject) -> None:
    consumed = [name for name, each in subject.groups.items() if each.members]
    if consumed:
        raise GuardFailed(f"{', '.join(consumed)} consume {subject.name}; stop their members first")


def _group(subject: Subject, name: str) -> ConsumerGroup:
    group = subject.groups.get(name)
    if group is None:
        raise GuardFailed(f"{subject.name} has no group {name}")
    return group


def _consumed(subject: Subject, event: Drained) -> ConsumerGroup:
    """The group, if the event is of who consumes the partition now."""
    group = _group(subject, event.group)
    if group.strategy is not ConsumeStrategy.SHARED:
        return _owned(subject, event)
    if event.epoch != SHARED_EPOCH or event.partition_id not in subject.assignable(group):
        raise GuardFailed(f"{group.name} does not consume partition {event.partition_id} by {event.epoch}")
    return group


def _owned(subject: Subject, event: Released | Drained) -> ConsumerGroup:
    """The group, if the event is of the ownership that is in force."""
    group = _group(subject, event.group)
    ownership = group.ownerships.get(event.partition_id)
    if ownership is None or ownership.epoch != event.epoch:
        raise GuardFailed(f"partition {event.partition_id} is not owned by epoch {event.epoch}")
    return group


def _where(group: ConsumerGroup, keep: Callable[[int, Ownership], bool]) -> Mapping[int, Ownership]:
    return MappingProxyType({number: each for number, each in group.ownerships.items() if keep(number, each)})


def _with_group(subject: Subject, group: ConsumerGroup, **changes: object) -> Subject:
    changed = replace(group, version=group.version + 1, **changes)  # type: ignore[arg-type]  # its fields
    return replace(subject, groups=MappingProxyType({**subject.groups, group.name: changed}))
