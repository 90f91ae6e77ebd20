"""Changes of topics, groups and progress as values, and as bodies of records of the metadata topic. Pure.

The bytes are described in docs/metadata-log.md. Each change overwrites, removes, or adds where absent; so
what a sequence of changes leaves for a key is decided by the last of them that names it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Final

import orjson

from brokerset_acl.access_book import acls_of, users_of
from brokerset_acl.policies import Acl
from brokerset_acl.users import User
from brokerset_broker.tables.ordered.state import changes_of
from brokerset_broker.tables.ordered.values import (
    FencesPut,
    ProducersPut,
    SharedAcksPut,
    SubjectsPut,
    claim_name,
    fences_to_json,
    part_to_json,
    ranges_to_json,
    subject_to_json,
)
from brokerset_broker.tables.pop.order_lock import LockChanges, OrderLock, lock_changes_of, locks_in_parts
from brokerset_broker.tables.pop.values import RequestMode
from brokerset_broker.timers.progress import Progress
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig, fields
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.names import SYSTEM_TOPIC_PREFIX
from brokerset_formats.properties import Property, encode_properties

METADATA_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}BROKERSET_METADATA"
"""The topic of all records; its prefix makes it a system topic for RocketMQ's brokers, too."""

METADATA_QUEUE_ID: Final = 0

MAGIC: Final = b"BSM1"
VERSION: Final = 1

HEAD: Final = struct.Struct(">4sBBHI")
"""Magic, version, kind, 0, bytes of the payload."""

RECORD_BYTES_MAX: Final = 128 * 1024
"""Payload of a record of changes; more becomes several records. One entry may be larger by itself."""

Offsets = Mapping[str, Mapping[int, int]]
"""`topic@group` -> queue id -> queue offset."""


class Kind(IntEnum):
    """What a record is."""

    TOPICS = 1
    TOPICS_DELETED = 2
    GROUPS = 3
    GROUPS_DELETED = 4
    FORBIDDEN = 5
    OFFSETS = 6
    RESETS = 7
    OFFSETS_REMOVED = 8
    DELAY = 9
    SUBJECTS = 10
    FENCES = 11
    PRODUCERS = 12
    SHARED_ACKS = 13
    REQUEST_MODES = 14
    TIMERS = 15
    SNAPSHOT_BEGIN = 16
    SNAPSHOT_CHUNK = 17
    SNAPSHOT_END = 18
    POP_ORDER = 19
    ACCESS = 20


class UnknownVersion(FormatError):
    """A record of a version that this program does not know: its meaning cannot be guessed."""


@dataclass(frozen=True, slots=True)
class TopicsPut:
    """Topics with all their settings; with `if_absent` those that exist stay as they are."""

    topics: tuple[TopicConfig, ...]
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """Topics that go, with their offsets and their queues."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupsPut:
    """Groups with all their settings; with `if_absent` those that exist stay as they are."""

    groups: tuple[SubscriptionGroupConfig, ...]
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class GroupsDeleted:
    """Groups that go, with their forbidden topics; their offsets stay."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForbiddenPut:
    """Group -> topic -> mask of what it may not do: all masks of each group that is named."""

    masks: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class OffsetsPut:
    """Consumer offsets, and resets that a consumer was told, which come first."""

    offsets: Offsets
    resets_taken: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResetsPut:
    """Offsets set from outside: the next pull of each queue is told."""

    resets: Offsets


@dataclass(frozen=True, slots=True)
class OffsetsRemoved:
    """Groups whose offsets go, of all topics."""

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DelayPut:
    """Delay level -> queue offset of the next message to deliver."""

    levels: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TimersPut:
    """Which timer messages are done; see `brokerset_broker/timers/DESIGN.md`."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class RequestModesPut:
    """How groups get the messages of a topic, by `topic@group`."""

    modes: Mapping[str, RequestMode]


@dataclass(frozen=True, slots=True)
class OrderLocksPut:
    """What ordered pops have given out, by `topic@group` and queue id; None where that is over."""

    locks: LockChanges


@dataclass(frozen=True, slots=True)
class AccessPut:
    """Users by name and policies by subject; None where one is deleted. Users come first."""

    users: Mapping[str, User | None]
    acls: Mapping[str, Acl | None]


Change = (
    TopicsPut
    | TopicsDeleted
    | GroupsPut
    | GroupsDeleted
    | ForbiddenPut
    | OffsetsPut
    | ResetsPut
    | OffsetsRemoved
    | DelayPut
    | TimersPut
    | RequestModesPut
    | OrderLocksPut
    | AccessPut
    | SubjectsPut
    | FencesPut
    | ProducersPut
    | SharedAcksPut
)


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    """A snapshot begins. It is named by the queue offset of this record."""

    epoch: int
    replay_from: int
    """Offset in the log from which on records must be replayed; -1 for this record's own."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of a snapshot's content, not parsed yet."""

    begin: int
    """Queue offset of the snapshot's first record."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """A snapshot is complete if what lies between has these counts and this checksum."""

    begin: int
    replay_from: int
    """Offset in the log; here never -1."""

    chunks: int
    entries: int
    checksum: int
    """CRC-32 over the payloads of all chunks."""

    replaces: bool = False
    """Whether everybody takes it over, because its writer knows more than the log says."""


Entry = Change | SnapshotBegin | SnapshotChunk | SnapshotEnd


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that means nothing to this program."""

    reason: str


def body(kind: Kind, payload: bytes) -> bytes:
    """The body of a record."""
    return HEAD.pack(MAGIC, VERSION, kind, 0, len(payload)) + payload


def tag(kind: Kind) -> str:
    """The tag of records of a kind, by which they can be found without being read."""
    return kind.name


def properties(kind: Kind) -> bytes:
    """The properties of a record."""
    return encode_properties({Property.TAGS: tag(kind)})


# -- writing ----------------------------------------------------------------------------------------------


def encode(change: Change | SnapshotBegin | SnapshotEnd) -> list[tuple[Kind, bytes]]:
    """Kind and body of the records that say `change`: several if it is large."""
    match change:
        case TopicsPut():
            extra = {"ifAbsent": True} if change.if_absent else {}
            return _lists(Kind.TOPICS, "topics", [topic.to_json() for topic in change.topics], extra)
        case TopicsDeleted():
            return _lists(Kind.TOPICS_DELETED, "topics", change.topics, {})
        case GroupsPut():
            extra = {"ifAbsent": True} if change.if_absent else {}
            return _lists(Kind.GROUPS, "groups", [group.to_json() for group in change.groups], extra)
        case GroupsDeleted():
            return _lists(Kind.GROUPS_DELETED, "groups", change.groups, {})
        case ForbiddenPut():
            masks = [(group, dict(topics)) for group, topics in change.masks.items()]
            return _maps(Kind.FORBIDDEN, "forbidden", masks)
        case OffsetsPut():
            taken = [(key, list(queues)) for key, queues in change.resets_taken.items()]
            found = _maps(Kind.OFFSETS, "resetsTaken", taken)
            return found + _maps(Kind.OFFSETS, "offsets", split_queues(change.offsets))
        case ResetsPut():
            return _maps(Kind.RESETS, "resets", split_queues(change.resets))
        case OffsetsRemoved():
            return _lists(Kind.OFFSETS_REMOVED, "groups", change.groups, {})
        case DelayPut():
            return [_one(Kind.DELAY, {"levels": change.levels})]
        case TimersPut():
            return [_one(Kind.TIMERS, {"timers": timers_to_json(change.progress)})]
        case RequestModesPut():
            modes = [(key, mode.to_json()) for key, mode in change.modes.items()]
            return _maps(Kind.REQUEST_MODES, "requestModes", modes)
        case OrderLocksPut():
            return _maps(Kind.POP_ORDER, "popOrder", list(locks_in_parts(change.locks)))
        case AccessPut():
            users = [(name, user and user.to_json()) for name, user in change.users.items()]
            acls = [(subject, acl and acl.to_json()) for subject, acl in change.acls.items()]
            return _maps(Kind.ACCESS, "users", users) + _maps(Kind.ACCESS, "acls", acls)
        case SubjectsPut():
            subjects = [(topic, subject_to_json(subject)) for topic, subject in change.subjects.items()]
            return _maps(Kind.SUBJECTS, "subjects", subjects)
        case FencesPut():
            fences = [(key, fences_to_json(queues)) for key, queues in change.fences.items()]
            return _maps(Kind.FENCES, "fences", fences)
        case ProducersPut():
            producers = [(key, part_to_json(part)) for key, part in change.queues.items()]
            return _maps(Kind.PRODUCERS, "producers", producers)
        case SharedAcksPut():
            acks = [(claim_name(claim), ranges_to_json(ranges)) for claim, ranges in change.acks.items()]
            return _maps(Kind.SHARED_ACKS, "sharedAcks", acks)
        case SnapshotBegin():
            return [_one(Kind.SNAPSHOT_BEGIN, {"epoch": change.epoch, "from": change.replay_from})]
        case SnapshotEnd():
            return [
                _one(
                    Kind.SNAPSHOT_END,
                    {
                        "begin": change.begin,
                        "from": change.replay_from,
                        "chunks": change.chunks,
                        "entries": change.entries,
                        "checksum": change.checksum,
                        "replaces": change.replaces,
                    },
                )
            ]


def encode_chunk(begin: int, payload: bytes) -> tuple[Kind, bytes]:
    """Kind and body of a chunk's record; `payload` is from `snapshot`."""
    return Kind.SNAPSHOT_CHUNK, body(Kind.SNAPSHOT_CHUNK, begin.to_bytes(8, "big") + payload)


def json_bytes(value: object) -> bytes:
    """JSON as records hold it; integer keys become text."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


QUEUES_MAX: Final = 1_024
"""Queues of one key in one entry; more are split."""


def split_queues(offsets: Offsets) -> list[tuple[str, Mapping[int, int]]]:
    """Keys with their queues; a key with very many queues comes several times."""
    found: list[tuple[str, Mapping[int, int]]] = []
    for key, queues in offsets.items():
        if len(queues) <= QUEUES_MAX:
            found.append((key, queues))
            continue
        items = sorted(queues.items())
        found += [
            (key, dict(items[start : start + QUEUES_MAX])) for start in range(0, len(items), QUEUES_MAX)
        ]
    return found


def _one(kind: Kind, payload: Mapping[str, object]) -> tuple[Kind, bytes]:
    return kind, body(kind, json_bytes(payload))


def _lists(
    kind: Kind, name: str, items: list[dict[str, object]] | tuple[str, ...], extra: Mapping[str, object]
) -> list[tuple[Kind, bytes]]:
    records: list[tuple[Kind, bytes]] = []
    part: list[orjson.Fragment] = []
    size = 0
    for item in items:
        text = json_bytes(item)
        if part and size + len(text) > RECORD_BYTES_MAX:
            records.append(_one(kind, {**extra, name: part}))
            part, size = [], 0
        part.append(orjson.Fragment(text))
        size += len(text) + 1
    if part:
        records.append(_one(kind, {**extra, name: part}))
    return records


def _maps(kind: Kind, name: str, items: Sequence[tuple[str, object]]) -> list[tuple[Kind, bytes]]:
    records: list[tuple[Kind, bytes]] = []
    part: dict[str, orjson.Fragment] = {}
    size = 0
    for key, value in items:
        text = json_bytes(value)
        if part and (size + len(key) + len(text) > RECORD_BYTES_MAX or key in part):
            records.append(_one(kind, {name: part}))
            part, size = {}, 0
        part[key] = orjson.Fragment(text)
        size += len(key) + len(text) + 4
    if part:
        records.append(_one(kind, {name: part}))
    return records


# -- reading ----------------------------------------------------------------------------------------------


def decode(data: bytes | memoryview) -> Entry | Skipped:
    """What a record's body says. Raises `UnknownVersion`, and FormatError for what cannot be read."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        return Skipped("it is no metadata record")
    _, version, number, _, size = HEAD.unpack_from(data)
    if version != VERSION:
        raise UnknownVersion(f"a metadata record of version {version}; this program knows version {VERSION}")
    payload = bytes(data[HEAD.size :])
    if len(payload) != size:
        raise FormatError(f"a metadata record with {len(payload)} bytes of payload instead of {size}")
    try:
        kind = Kind(number)
    except ValueError:
        return Skipped(f"its kind {number} is not known")
    if kind is Kind.SNAPSHOT_CHUNK:
        if size < 8:
            raise FormatError("a snapshot chunk without the number of its snapshot")
        return SnapshotChunk(int.from_bytes(payload[:8], "big"), payload[8:])
    return _decode(kind, fields.parse_object(payload))


def _decode(kind: Kind, found: Mapping[str, object]) -> Entry:
    match kind:
        case Kind.TOPICS:
            return TopicsPut(topics_of(found), fields.get_boolean(found, "ifAbsent", False))
        case Kind.TOPICS_DELETED:
            return TopicsDeleted(_names(found, "topics"))
        case Kind.GROUPS:
            return GroupsPut(groups_of(found), fields.get_boolean(found, "ifAbsent", False))
        case Kind.GROUPS_DELETED:
            return GroupsDeleted(_names(found, "groups"))
        case Kind.FORBIDDEN:
            return ForbiddenPut(forbidden_of(found))
        case Kind.OFFSETS:
            taken = {
                key: tuple(fields.as_integer(queue, f"resetsTaken.{key}") for queue in _list(queues, key))
                for key, queues in fields.get_object(found, "resetsTaken").items()
            }
            return OffsetsPut(offsets_of(found, "offsets"), taken)
        case Kind.RESETS:
            return ResetsPut(offsets_of(found, "resets"))
        case Kind.OFFSETS_REMOVED:
            return OffsetsRemoved(_names(found, "groups"))
        case Kind.DELAY:
            return DelayPut(fields.integer_map(fields.get_object(found, "levels"), "levels"))
        case Kind.TIMERS:
            progress = timers_of(found)
            if progress is None:
                raise FormatError("a record of kind TIMERS without its section")
            return TimersPut(progress)
        case Kind.REQUEST_MODES:
            return RequestModesPut(request_modes_of(found))
        case Kind.POP_ORDER:
            return OrderLocksPut(order_locks_of(found))
        case Kind.ACCESS:
            return AccessPut(users_of(found), acls_of(found))
        case Kind.SUBJECTS | Kind.FENCES | Kind.PRODUCERS | Kind.SHARED_ACKS:
            changes = changes_of(found)
            if len(changes) != 1:
                raise FormatError(f"a record of kind {kind.name} without its section")
            return changes[0]
        case Kind.SNAPSHOT_BEGIN:
            integer = fields.get_integer
            return SnapshotBegin(integer(found, "epoch", 0), integer(found, "from", -1))
        case Kind.SNAPSHOT_END:
            begin, start, chunks, entries, checksum = (
                fields.as_integer(found.get(name), name)
                for name in ("begin", "from", "chunks", "entries", "checksum")
            )
            replaces = fields.get_boolean(found, "replaces", False)
            return SnapshotEnd(begin, start, chunks, entries, checksum, replaces)
        case Kind.SNAPSHOT_CHUNK:
            raise AssertionError("chunks have a payload of their own")


def topics_of(found: Mapping[str, object]) -> tuple[TopicConfig, ...]:
    """The field `topics`: a list of RocketMQ's topic settings."""
    return tuple(
        TopicConfig.from_json(fields.as_object(item, "a topic"))
        for item in _list(found.get("topics", []), "topics")
    )


def groups_of(found: Mapping[str, object]) -> tuple[SubscriptionGroupConfig, ...]:
    """The field `groups`: a list of RocketMQ's group settings."""
    return tuple(
        SubscriptionGroupConfig.from_json(fields.as_object(item, "a group"))
        for item in _list(found.get("groups", []), "groups")
    )


def forbidden_of(found: Mapping[str, object]) -> dict[str, dict[str, int]]:
    """The field `forbidden`: group -> topic -> mask."""
    return {
        group: {
            topic: fields.as_integer(mask, f"forbidden.{group}.{topic}")
            for topic, mask in fields.as_object(masks, f"forbidden.{group}").items()
        }
        for group, masks in fields.get_object(found, "forbidden").items()
    }


def offsets_of(found: Mapping[str, object], name: str) -> dict[str, dict[int, int]]:
    """A field that holds offsets."""
    return {
        key: fields.integer_map(queues, f"{name}.{key}")
        for key, queues in fields.get_object(found, name).items()
    }


def request_modes_of(found: Mapping[str, object]) -> dict[str, RequestMode]:
    """The field `requestModes`, by `topic@group`."""
    modes = fields.get_object(found, "requestModes")
    return {key: RequestMode.from_json(mode) for key, mode in modes.items()}


def order_locks_of(found: Mapping[str, object]) -> dict[str, dict[int, OrderLock | None]]:
    """The field `popOrder`, by `topic@group` and queue id."""
    return lock_changes_of(fields.get_object(found, "popOrder"))


def timers_of(found: Mapping[str, object]) -> Progress | None:
    """The field `timers`: a progress; `None` where there is none."""
    section = fields.get_object(found, "timers")
    return Progress.from_json(fields.get_object(section, "progress")) if "progress" in section else None


def timers_to_json(progress: Progress) -> dict[str, object]:
    """The content of the field `timers`."""
    return {"progress": progress.to_json()}


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise FormatError(f"{what} should be a list and is {type(value).__name__}")
    return value


def _names(found: Mapping[str, object], name: str) -> tuple[str, ...]:
    names = _list(found.get(name), name)
    texts = tuple(item for item in names if isinstance(item, str))
    if len(texts) != len(names):
        raise FormatError(f"{name} should hold text only")
    return texts
