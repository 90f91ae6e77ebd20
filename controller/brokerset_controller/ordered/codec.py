"""Events of subjects, and subjects in a snapshot, as JSON lists in the manner of the broker groups' codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

import orjson

from brokerset_controller import strict_json as read
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
from brokerset_controller.ordered.state import ConsumerGroup, Member, Ownership, Partition, Subject, Tombstone
from brokerset_formats.order_keys import LOGICAL_PARTITIONS, Range
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy, PartitionStatus

ORDERED_VERSION: Final = 4
"""The format of the controllers' log that has subjects first."""

_K = TypeVar("_K")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)
_FromJson = Callable[[object], object]
_ToJson = Callable[[object], object]


def encode_event(event: Event) -> bytes:
    """The bytes of one log entry."""
    plan = _PLANS[type(event).__name__][1]
    values = [to_json(getattr(event, name)) for name, _, to_json in plan]
    return orjson.dumps([ORDERED_VERSION, type(event).__name__, *values])


def event_of(values: list[object]) -> Event | None:
    """The event that stands behind the version of an entry; None if it is none of a subject.

    Raises `ValueError` that says what is wrong with it.
    """
    if not values or not isinstance(values[0], str) or values[0] not in _PLANS:
        return None
    kind, plan = _PLANS[values[0]]
    found = []
    about = f"{values[0]} of the subject {read.shown(values[1]) if len(values) > 1 else 'without a name'}"
    for (name, from_json, _), value in zip(plan, read.parts(values[1:], about, len(plan)), strict=True):
        try:
            found.append(from_json(value))
        except ValueError as error:
            raise ValueError(f"{name} in {about}: {error}") from None
    return kind(*found)  # type: ignore[arg-type]  # each value was read as its field's type


def subject_values(subject: Subject) -> list[object]:
    """A subject in a snapshot; the same for the same subject."""
    return [
        subject.name,
        subject.order.value,
        list(subject.route),
        subject.version,
        subject.generation,
        subject.next_partition_id,
        subject.epoch,
        subject.group_version,
        sorted(subject.next_queue_ids.items()),
        [_partition_values(each) for _, each in sorted(subject.partitions.items())],
        [_group_values(each) for _, each in sorted(subject.groups.items())],
    ]


def subject_of(value: object) -> Subject:
    """A subject of a snapshot. Raises `ValueError` that says what is wrong with it."""
    name, *rest = read.parts(value, "a subject", 11)
    try:
        return _subject(read.text(name), rest)
    except ValueError as error:
        raise ValueError(f"the subject {read.shown(name)}: {error}") from None


def _subject(name: str, values: list[object]) -> Subject:
    order, route, version, generation, partition_id, epoch, group_version, queues, partitions, groups = values
    subject = Subject(
        name,
        _one_of(OrderStrategy)(order),
        _route(route),
        read.count(version),
        read.count(generation),
        read.count(partition_id),
        read.count(epoch),
        read.count(group_version),
        _queues(queues),
        _by(lambda each: each.partition_id, [_partition(each) for each in read.items(partitions)]),
        _by(lambda each: each.name, [_group(each) for each in read.items(groups)]),
    )
    for each in subject.partitions.values():
        if (
            each.partition_id >= subject.next_partition_id
            or each.queue_id >= subject.next_queue_ids.get(each.broker_group, 0)
            or each.generation > subject.generation
        ):
            raise ValueError(f"partition {each.partition_id} has numbers that were not given yet")
    for group in subject.groups.values():
        _check_group(subject, group)
    return subject


def _check_group(subject: Subject, group: ConsumerGroup) -> None:
    strangers = {each.session for each in group.ownerships.values()} - set(group.members)
    if strangers or not set(group.ownerships) | group.drained <= set(subject.partitions):
        raise ValueError(f"the group {read.shown(group.name)} names members or partitions that are not there")
    if not group.finished <= group.drained:
        raise ValueError(f"the group {read.shown(group.name)} has finished what it has not drained")
    if max([group.epoch, *(each.epoch for each in group.ownerships.values())]) > subject.epoch:
        raise ValueError(f"the group {read.shown(group.name)} has epochs that were not given yet")


def tombstone_values(tombstone: Tombstone) -> list[object]:
    """What is left of a deleted subject in a snapshot; the same for the same one."""
    return [
        tombstone.name,
        tombstone.order.value,
        tombstone.version,
        tombstone.generation,
        tombstone.next_partition_id,
        tombstone.epoch,
        tombstone.group_version,
        sorted(tombstone.next_queue_ids.items()),
        sorted(tombstone.unclean),
    ]


def tombstone_of(value: object) -> Tombstone:
    """What is left of a deleted subject. Raises `ValueError` that says what is wrong with it."""
    name, order, version, generation, partition_id, epoch, group_version, queues, unclean = read.parts(
        value, "a deleted subject", 9
    )
    try:
        tombstone = Tombstone(
            read.text(name),
            _one_of(OrderStrategy)(order),
            read.count(version),
            read.count(generation),
            read.count(partition_id),
            read.count(epoch),
            read.count(group_version),
            _queues(queues),
            frozenset(_route(unclean)),
        )
        if not tombstone.unclean <= set(tombstone.next_queue_ids):
            raise ValueError("it is to be deleted where it never was")
    except ValueError as error:
        raise ValueError(f"the deleted subject {read.shown(name)}: {error}") from None
    return tombstone


def _partition_values(partition: Partition) -> list[object]:
    return [
        partition.partition_id,
        partition.generation,
        list(partition.keys),
        partition.broker_group,
        partition.queue_id,
        partition.status.value,
        sorted(partition.inherits),
        partition.sealed_end,
        partition.sealed_epoch,
    ]


def _partition(value: object) -> Partition:
    number, generation, keys, place, queue_id, status, inherits, end, epoch = read.parts(
        value, "a partition", 9
    )
    return Partition(
        read.count(number),
        read.count(generation),
        _range(keys),
        read.text(place),
        read.count(queue_id),
        _one_of(PartitionStatus)(status),
        read.ids(inherits),
        read.optional_count(end),
        read.count(epoch),
    )


def _range(value: object) -> Range:
    first, end = map(read.count, read.parts(value, "a range", 2))
    if not first < end <= LOGICAL_PARTITIONS:
        raise ValueError(f"{read.shown(value)} is no range of logical partitions")
    return first, end


def _route(value: object) -> tuple[str, ...]:
    names = read.texts(value)
    if len(set(names)) != len(names):
        raise ValueError(f"{read.shown(names)} names a broker group twice")
    return names


def _queues(value: object) -> Mapping[str, int]:
    return _once([_queue(each) for each in read.items(value)])


def _once(pairs: list[tuple[_K, _T]]) -> Mapping[_K, _T]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"{read.shown(pairs)} names one of them twice")
    return MappingProxyType(found)


def _queue(value: object) -> tuple[str, int]:
    place, queue_id = read.parts(value, "a broker group's next queue", 2)
    return read.text(place), read.count(queue_id)


def _group_values(group: ConsumerGroup) -> list[object]:
    return [
        group.name,
        group.strategy.value,
        group.epoch,
        group.version,
        [[each.session, each.client_id, each.permission_ms] for _, each in sorted(group.members.items())],
        [
            [number, each.session, each.epoch, each.revoked]
            for number, each in sorted(group.ownerships.items())
        ],
        sorted(group.drained),
        sorted(group.finished),
    ]


def _group(value: object) -> ConsumerGroup:
    name, strategy, epoch, version, members, ownerships, drained, finished = read.parts(value, "a group", 8)
    return ConsumerGroup(
        read.text(name),
        _one_of(ConsumeStrategy)(strategy),
        read.count(epoch),
        read.count(version),
        _by(lambda each: each.session, [_member(each) for each in read.items(members)]),
        _once([_ownership(each) for each in read.items(ownerships)]),
        read.ids(drained),
        read.ids(finished),
    )


def _member(value: object) -> Member:
    session, client_id, permission_ms = read.parts(value, "a member", 3)
    return Member(read.text(session), read.text(client_id), read.count(permission_ms))


def _ownership(value: object) -> tuple[int, Ownership]:
    number, session, epoch, revoked = read.parts(value, "an ownership", 4)
    return read.count(number), Ownership(read.text(session), read.count(epoch), read.flag(revoked))


def _by(key: Callable[[_T], _K], found: list[_T]) -> Mapping[_K, _T]:
    by_key = {key(each): each for each in found}
    if len(by_key) != len(found):
        raise ValueError("one of a subject's parts is there twice")
    return MappingProxyType(by_key)


def _one_of(kind: type[_E]) -> Callable[[object], _E]:
    return lambda value: kind(read.text(value))


def _granted(value: object) -> Mapping[int, str]:
    pairs = [read.parts(each, "a grant", 2) for each in read.items(value)]
    return _once([(read.count(number), read.text(session)) for number, session in pairs])


def _same(value: object) -> object:
    return value


def _sorted(value: object) -> object:
    assert isinstance(value, frozenset), "sets are written in order"
    return sorted(value)


def _pairs(value: object) -> object:
    assert isinstance(value, Mapping), "mappings are written as pairs"
    return sorted(value.items())


# A field of one name has one type, whatever event it is in.
_FIELDS: Final[Mapping[str, tuple[_FromJson, _ToJson]]] = {
    "subject": (read.text, _same),
    "order": (_one_of(OrderStrategy), str),
    "route": (_route, _same),
    "partitions": (read.count, _same),
    "expected_generation": (read.count, _same),
    "partition_id": (read.count, _same),
    "end": (read.count, _same),
    "group": (read.text, _same),
    "strategy": (_one_of(ConsumeStrategy), str),
    "session": (read.text, _same),
    "client_id": (read.text, _same),
    "permission_ms": (read.count, _same),
    "master_epoch": (read.count, _same),
    "broker_group": (read.text, _same),
    "version": (read.count, _same),
    "expected_version": (read.count, _same),
    "revoked": (read.ids, _sorted),
    "granted": (_granted, _pairs),
    "epoch": (read.count, _same),
    "position": (read.count, _same),
}

_EVENTS: Final[tuple[type[Event], ...]] = (
    SubjectCreated,
    GenerationPrepared,
    PartitionSealed,
    PartitionRetired,
    MemberJoined,
    MemberLeft,
    Reassigned,
    Released,
    Drained,
    RetriesFinished,
    GroupRemoved,
    SubjectDeleted,
    QueuesDeleted,
    ProducerStarted,
)
_PLANS: Final[Mapping[str, tuple[type[Event], tuple[tuple[str, _FromJson, _ToJson], ...]]]] = {
    kind.__name__: (kind, tuple((field.name, *_FIELDS[field.name]) for field in fields(kind)))
    for kind in _EVENTS
}
