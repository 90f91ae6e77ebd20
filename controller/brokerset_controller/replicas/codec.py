"""Events and snapshots as bytes: JSON lists that begin with the format's version. Strict in both directions.

An event is `[version, kind, field, …]` with the fields in the order of its class; a snapshot is
`[version, [group, …]]`. The same state gives the same bytes on every controller. Each item is written in the
oldest version that can say it, so that controllers of two versions work together until something new is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Final

import orjson

from brokerset_controller import strict_json as read
from brokerset_controller.replicas.events import (
    BrokerIdApplied,
    Event,
    FencingChanged,
    GroupRebuilt,
    MasterElected,
    MastershipEnded,
    ReplicaAdopted,
    ReplicaMoved,
    ReplicasCleaned,
    ReplicaStarted,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import Group, PossibleLoss, Replica

FORMAT_VERSION: Final = 3
"""Raised with every change of what is written; a controller stops at a newer one rather than guess."""

FENCES_VERSION: Final = 2
"""Without starts that follow an unclean stop."""

_GROUP_PARTS: Final = 13
"""Values of a group in the first version; the second has its fenced replicas behind them, the third its
unproven ones behind these."""

_Read = Callable[[object], object]
_Write = Callable[[object], object]


def encode_event(event: Event) -> bytes:
    """The bytes of one log entry."""
    kind = type(event)
    values = [write(getattr(event, name)) for name, _, write in _KINDS[kind]]
    if isinstance(event, ReplicaStarted) and not event.unclean:
        del values[-1]
    return orjson.dumps([_version_of(event), kind.__name__, *values])


def decode_event(data: bytes) -> Event:
    """Read one log entry. Raises `ValueError` that says what is wrong with it."""
    return event_of(read.versioned(data, "an event", FORMAT_VERSION))


def event_of(values: list[object]) -> Event:
    """The event that stands behind the version of an entry. Raises `ValueError`."""
    if not values or not isinstance(values[0], str) or values[0] not in _BY_NAME:
        raise ValueError(f"{read.shown(values[:1])} is no kind of event that this version knows")
    kind = _BY_NAME[values[0]]
    plan = _KINDS[kind]
    if kind is ReplicaStarted and len(values) == len(plan):
        values = [*values, False]  # written before there was `unclean`, its last field, or without need of it
    if len(values) != len(plan) + 1:
        raise ValueError(f"{kind.__name__} has {len(values) - 1} fields instead of {len(plan)}")
    found = []
    for (name, from_json, _), value in zip(plan, values[1:], strict=True):
        try:
            found.append(from_json(value))
        except ValueError as error:
            raise ValueError(f"{name} of {kind.__name__}: {error}") from None
    return kind(*found)  # type: ignore[arg-type]  # each value was read as its field's type


def encode_groups(groups: Iterable[Group]) -> bytes:
    """The bytes of a snapshot: all groups, sorted by name."""
    listed = sorted(groups, key=lambda group: group.broker_name)
    version = max(map(_version_of_group, listed), default=read.FIRST_VERSION)
    return orjson.dumps([version, group_values(listed)])


def group_values(groups: Iterable[Group]) -> list[object]:
    """All groups in a snapshot, sorted by name."""
    return [_group_values(group) for group in sorted(groups, key=lambda group: group.broker_name)]


def _version_of(event: Event) -> int:
    match event:
        case FencingChanged():
            return FENCES_VERSION
        case ReplicaStarted(unclean=True):
            return FORMAT_VERSION
        case GroupRebuilt(group):
            return _version_of_group(group)
        case _:
            return read.FIRST_VERSION


def _version_of_group(group: Group) -> int:
    if group.unproven:
        return FORMAT_VERSION
    return FENCES_VERSION if group.fenced else read.FIRST_VERSION


def decode_groups(data: bytes) -> dict[str, Group]:
    """Read a snapshot into groups by name. Raises `ValueError` that says what is wrong with it."""
    values = read.versioned(data, "a snapshot", FORMAT_VERSION)
    if len(values) != 1:
        raise ValueError(f"a snapshot of {len(values)} parts instead of one")
    return groups_of(values[0])


def groups_of(listed: object) -> dict[str, Group]:
    """The groups of a snapshot by name. Raises `ValueError`."""
    groups: dict[str, Group] = {}
    for value in read.items(listed):
        group = _group(value)
        if group.broker_name in groups:
            raise ValueError(f"the group {read.shown(group.broker_name)} is there twice")
        groups[group.broker_name] = group
    return groups


def _loss(value: object) -> PossibleLoss:
    epoch, broker_id, from_offset, reason = read.parts(value, "a possible loss", 4)
    return PossibleLoss(read.count(epoch), read.count(broker_id), read.number(from_offset), read.text(reason))


def _optional_loss(value: object) -> PossibleLoss | None:
    return None if value is None else _loss(value)


def _loss_values(loss: PossibleLoss) -> list[object]:
    return [loss.master_epoch, loss.broker_id, loss.from_offset, loss.reason]


def _replicas(value: object) -> Mapping[int, Replica]:
    found: dict[int, Replica] = {}
    for item in read.items(value):
        broker_id, address, check_code, nonce, incarnation = read.parts(item, "a replica", 5)
        replica = Replica(
            read.count(broker_id),
            read.text(address),
            read.text(check_code),
            read.optional_text(nonce),
            read.count(incarnation),
        )
        if replica.broker_id in found:
            raise ValueError(f"replica {replica.broker_id} is there twice")
        found[replica.broker_id] = replica
    return MappingProxyType(dict(sorted(found.items())))


def _group(value: object) -> Group:
    parts = read.items(value)
    if len(parts) in (_GROUP_PARTS, _GROUP_PARTS + 1):
        parts = [*parts, [], []][: _GROUP_PARTS + 2]
    parts = read.parts(parts, "a group", _GROUP_PARTS + 2)
    group = Group(
        read.text(parts[0]),
        read.text(parts[1]),
        read.optional_text(parts[2]),
        read.count(parts[3]),
        read.count(parts[4]),
        _replicas(parts[5]),
        read.optional_count(parts[6]),
        read.count(parts[7]),
        read.ids(parts[8]),
        read.count(parts[9]),
        read.ids(parts[10]),
        tuple([_loss(item) for item in read.items(parts[11])]),
        read.ids(parts[12]),
        read.ids(parts[13]),
        read.ids(parts[14]),
    )
    members = group.replicas.keys()
    named = group.sync_state_set | group.suspects | group.fenced
    if not named <= members or not (group.master_id is None or group.master_id in members):
        raise ValueError(f"the group {read.shown(group.broker_name)} names replicas that it does not have")
    if not group.unproven <= group.suspects:
        raise ValueError(
            f"the group {read.shown(group.broker_name)} has unproven replicas that are no suspects"
        )
    if any(broker_id >= group.next_broker_id for broker_id in members):
        raise ValueError(f"the group {read.shown(group.broker_name)} has ids above its next one")
    return group


def _group_values(group: Group) -> list[object]:
    values: list[object] = [
        group.cluster_name,
        group.broker_name,
        group.owner,
        group.expected_replicas,
        group.next_broker_id,
        [
            [replica.broker_id, replica.address, replica.check_code, replica.nonce, replica.incarnation]
            for _, replica in sorted(group.replicas.items())
        ],
        group.master_id,
        group.master_epoch,
        sorted(group.sync_state_set),
        group.sync_state_set_epoch,
        sorted(group.suspects),
        [_loss_values(loss) for loss in group.losses],
        sorted(group.unclaimed),
    ]
    if group.unproven:
        return [*values, sorted(group.fenced), sorted(group.unproven)]
    return [*values, sorted(group.fenced)] if group.fenced else values


def _same(value: object) -> object:
    return value


def _sorted_ids(value: object) -> object:
    assert isinstance(value, frozenset)
    return sorted(value)


def _optional_loss_values(value: object) -> object:
    return _loss_values(value) if isinstance(value, PossibleLoss) else None


def _group_field_values(value: object) -> object:
    assert isinstance(value, Group)
    return _group_values(value)


# A field of one name has one type, whatever event it is in.
_FIELDS: Final[Mapping[str, tuple[_Read, _Write]]] = {
    "cluster_name": (read.text, _same),
    "broker_name": (read.text, _same),
    "owner": (read.optional_text, _same),
    "expected_replicas": (read.count, _same),
    "broker_id": (read.count, _same),
    "address": (read.text, _same),
    "check_code": (read.text, _same),
    "nonce": (read.text, _same),
    "log_epoch": (read.count, _same),
    "expected_nonce": (read.optional_text, _same),
    "lost_cache": (read.flag, _same),
    "fenced": (read.flag, _same),
    "master_id": (read.count, _same),
    "master_epoch": (read.count, _same),
    "sync_state_set_epoch": (read.count, _same),
    "new_set": (read.ids, _sorted_ids),
    "new_epoch": (read.count, _same),
    "expected_master_epoch": (read.count, _same),
    "expected_set_epoch": (read.count, _same),
    "unclean": (read.flag, _same),
    "reason": (read.text, _same),
    "loss": (_optional_loss, _optional_loss_values),
    "broker_ids": (read.ids, _sorted_ids),
    "group": (_group, _group_field_values),
}

_EVENTS: Final[Sequence[type[Event]]] = (
    BrokerIdApplied,
    ReplicaAdopted,
    ReplicaStarted,
    MastershipEnded,
    ReplicaMoved,
    SyncStateSetAltered,
    MasterElected,
    ReplicasCleaned,
    FencingChanged,
    GroupRebuilt,
)
_BY_NAME: Final[Mapping[str, type[Event]]] = {kind.__name__: kind for kind in _EVENTS}
_KINDS: Final[Mapping[type[Event], tuple[tuple[str, _Read, _Write], ...]]] = {
    kind: tuple((field.name, *_FIELDS[field.name]) for field in fields(kind)) for kind in _EVENTS
}
