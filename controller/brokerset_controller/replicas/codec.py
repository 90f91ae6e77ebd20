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

FIRST_VERSION: Final = 1
"""The oldest format that is read: without fences."""

_GROUP_PARTS: Final = 13
"""Values of a group in the first version; the second has its fenced replicas behind them, the third its
unproven ones behind these."""

_SHOWN_MAX = 60
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
    values = _versioned(data, "an event")
    if not values or not isinstance(values[0], str) or values[0] not in _BY_NAME:
        raise ValueError(f"{_shown(values[:1])} is no kind of event that this version knows")
    kind = _BY_NAME[values[0]]
    plan = _KINDS[kind]
    if kind is ReplicaStarted and len(values) == len(plan):
        values = [*values, False]  # written before there was `unclean`, its last field, or without need of it
    if len(values) != len(plan) + 1:
        raise ValueError(f"{kind.__name__} has {len(values) - 1} fields instead of {len(plan)}")
    found = []
    for (name, read, _), value in zip(plan, values[1:], strict=True):
        try:
            found.append(read(value))
        except ValueError as error:
            raise ValueError(f"{name} of {kind.__name__}: {error}") from None
    return kind(*found)  # type: ignore[arg-type]  # each value was read as its field's type


def encode_groups(groups: Iterable[Group]) -> bytes:
    """The bytes of a snapshot: all groups, sorted by name."""
    listed = sorted(groups, key=lambda group: group.broker_name)
    version = max(map(_version_of_group, listed), default=FIRST_VERSION)
    return orjson.dumps([version, [_group_values(group) for group in listed]])


def _version_of(event: Event) -> int:
    match event:
        case FencingChanged():
            return FENCES_VERSION
        case ReplicaStarted(unclean=True):
            return FORMAT_VERSION
        case GroupRebuilt(group):
            return _version_of_group(group)
        case _:
            return FIRST_VERSION


def _version_of_group(group: Group) -> int:
    if group.unproven:
        return FORMAT_VERSION
    return FENCES_VERSION if group.fenced else FIRST_VERSION


def decode_groups(data: bytes) -> dict[str, Group]:
    """Read a snapshot into groups by name. Raises `ValueError` that says what is wrong with it."""
    values = _versioned(data, "a snapshot")
    if len(values) != 1:
        raise ValueError(f"a snapshot of {len(values)} parts instead of one")
    groups: dict[str, Group] = {}
    for value in _list(values[0]):
        group = _group(value)
        if group.broker_name in groups:
            raise ValueError(f"the group {group.broker_name[:_SHOWN_MAX]!r} is there twice")
        groups[group.broker_name] = group
    return groups


def _versioned(data: bytes, what: str) -> list[object]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{what} that is no JSON: {error}") from None
    if not isinstance(value, list) or not value or type(value[0]) is not int:
        raise ValueError(f"{_shown(value)} is no versioned list, so not {what}")
    if not FIRST_VERSION <= value[0] <= FORMAT_VERSION:
        raise ValueError(
            f"{what} of the format {value[0]}; this version reads up to {FORMAT_VERSION}: run the newer one"
        )
    return value[1:]


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_MAX]


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"{_shown(value)} is no text")
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _number(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{_shown(value)} is no number")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{_shown(value)} is no number from 0 on")
    return value


def _optional_count(value: object) -> int | None:
    return None if value is None else _count(value)


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def _list(value: object) -> list[object]:
    if type(value) is not list:
        raise ValueError(f"{_shown(value)} is no list")
    return value


def _ids(value: object) -> frozenset[int]:
    listed = [_count(item) for item in _list(value)]
    found = frozenset(listed)
    if len(found) != len(listed):
        raise ValueError(f"{_shown(value)} names an id twice")
    return found


def _parts(value: object, what: str, count: int) -> list[object]:
    parts = _list(value)
    if len(parts) != count:
        raise ValueError(f"{what} has {len(parts)} fields instead of {count}")
    return parts


def _loss(value: object) -> PossibleLoss:
    epoch, broker_id, from_offset, reason = _parts(value, "a possible loss", 4)
    return PossibleLoss(_count(epoch), _count(broker_id), _number(from_offset), _text(reason))


def _optional_loss(value: object) -> PossibleLoss | None:
    return None if value is None else _loss(value)


def _loss_values(loss: PossibleLoss) -> list[object]:
    return [loss.master_epoch, loss.broker_id, loss.from_offset, loss.reason]


def _replicas(value: object) -> Mapping[int, Replica]:
    found: dict[int, Replica] = {}
    for item in _list(value):
        broker_id, address, check_code, nonce, incarnation = _parts(item, "a replica", 5)
        replica = Replica(
            _count(broker_id), _text(address), _text(check_code), _optional_text(nonce), _count(incarnation)
        )
        if replica.broker_id in found:
            raise ValueError(f"replica {replica.broker_id} is there twice")
        found[replica.broker_id] = replica
    return MappingProxyType(dict(sorted(found.items())))


def _group(value: object) -> Group:
    parts = _list(value)
    if len(parts) in (_GROUP_PARTS, _GROUP_PARTS + 1):
        parts = [*parts, [], []][: _GROUP_PARTS + 2]
    parts = _parts(parts, "a group", _GROUP_PARTS + 2)
    group = Group(
        _text(parts[0]),
        _text(parts[1]),
        _optional_text(parts[2]),
        _count(parts[3]),
        _count(parts[4]),
        _replicas(parts[5]),
        _optional_count(parts[6]),
        _count(parts[7]),
        _ids(parts[8]),
        _count(parts[9]),
        _ids(parts[10]),
        tuple([_loss(item) for item in _list(parts[11])]),
        _ids(parts[12]),
        _ids(parts[13]),
        _ids(parts[14]),
    )
    members = group.replicas.keys()
    named = group.sync_state_set | group.suspects | group.fenced
    if not named <= members or not (group.master_id is None or group.master_id in members):
        raise ValueError(f"the group {_shown(group.broker_name)} names replicas that it does not have")
    if not group.unproven <= group.suspects:
        raise ValueError(f"the group {_shown(group.broker_name)} has unproven replicas that are no suspects")
    if any(broker_id >= group.next_broker_id for broker_id in members):
        raise ValueError(f"the group {_shown(group.broker_name)} has ids above its next one")
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
    "cluster_name": (_text, _same),
    "broker_name": (_text, _same),
    "owner": (_optional_text, _same),
    "expected_replicas": (_count, _same),
    "broker_id": (_count, _same),
    "address": (_text, _same),
    "check_code": (_text, _same),
    "nonce": (_text, _same),
    "log_epoch": (_count, _same),
    "expected_nonce": (_optional_text, _same),
    "lost_cache": (_flag, _same),
    "fenced": (_flag, _same),
    "master_id": (_count, _same),
    "master_epoch": (_count, _same),
    "sync_state_set_epoch": (_count, _same),
    "new_set": (_ids, _sorted_ids),
    "new_epoch": (_count, _same),
    "expected_master_epoch": (_count, _same),
    "expected_set_epoch": (_count, _same),
    "unclean": (_flag, _same),
    "reason": (_text, _same),
    "loss": (_optional_loss, _optional_loss_values),
    "broker_ids": (_ids, _sorted_ids),
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
