"""All metadata as one value: changed by records, packed into chunks, put together again. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import orjson

from brokerset_acl.access_book import AccessBook, acls_of, users_of
from brokerset_acl.policies import Acl
from brokerset_acl.users import User
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.records import (
    AccessPut,
    Change,
    DelayPut,
    ForbiddenPut,
    GroupsDeleted,
    GroupsPut,
    OffsetsPut,
    OffsetsRemoved,
    OrderLocksPut,
    RequestModesPut,
    ResetsPut,
    SnapshotChunk,
    SnapshotEnd,
    TimersPut,
    TopicsDeleted,
    TopicsPut,
)
from brokerset_broker.tables.ordered.state import OrderedState
from brokerset_broker.tables.ordered.values import FencesPut, ProducersPut, SharedAcksPut, SubjectsPut
from brokerset_broker.tables.pop.order_lock import OrderLock, apply_changes
from brokerset_broker.tables.pop.values import RequestMode, parts_of
from brokerset_broker.timers.progress import Progress
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig, fields

CHUNK_BYTES_MAX: Final = 256 * 1024
"""Payload of one chunk; a single entry may be larger."""

CHUNK_ENTRIES_MAX: Final = 500
"""Entries of one chunk, so that packing it holds up the loop for a few milliseconds at most."""

_Value = TypeVar("_Value")


@dataclass(slots=True)
class MetadataState:
    """Everything that is replicated."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    resets: dict[str, dict[int, int]] = field(default_factory=dict)
    delay: dict[int, int] = field(default_factory=dict)
    queue_ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic -> queue -> number of the next message, where the log may lose all others. In snapshots only."""

    ordered: OrderedState = field(default_factory=OrderedState)

    timers: Progress | None = None
    """Which timer messages are done; `None` before there were any."""

    request_modes: dict[str, RequestMode] = field(default_factory=dict)
    """How groups get messages, by `topic@group`, as far as that was set."""

    order_locks: dict[str, dict[int, OrderLock]] = field(default_factory=dict)
    """What ordered pops have given out, by `topic@group` and queue id."""

    access: AccessBook | None = field(default_factory=AccessBook)
    """Users and policies; `None` from a master that does not say."""

    def apply(self, change: Change) -> None:
        """Change the state; never fails, and doing it twice is doing it once."""
        match change:
            case TopicsPut():
                for topic in change.topics:
                    if not (change.if_absent and topic.topic_name in self.topics):
                        self.topics[topic.topic_name] = topic
            case TopicsDeleted():
                for name in change.topics:
                    self.topics.pop(name, None)
                    self.queue_ends.pop(name, None)
                    self.ordered.forget_topic(name)
                self._forget(lambda topic, _group: topic in change.topics)
                self._forget_pops(lambda topic, _group: topic in change.topics)
            case GroupsPut():
                for group in change.groups:
                    if not (change.if_absent and group.group_name in self.groups):
                        self.groups[group.group_name] = group
            case GroupsDeleted():
                for name in change.groups:
                    self.groups.pop(name, None)
                    self.forbidden.pop(name, None)
                self._forget_pops(lambda _topic, group: group in change.groups)
            case ForbiddenPut():
                for name, masks in change.masks.items():
                    self.forbidden.pop(name, None)
                    if masks:
                        self.forbidden[name] = dict(masks)
            case OffsetsPut():
                for key, taken in change.resets_taken.items():
                    self._take_resets(key, taken)
                for key, queues in change.offsets.items():
                    self.offsets.setdefault(key, {}).update(queues)
            case ResetsPut():
                for key, queues in change.resets.items():
                    self.offsets.setdefault(key, {}).update(queues)
                    self.resets.setdefault(key, {}).update(queues)
                self.ordered.offsets_reset(change.resets)
                known = {key: dict.fromkeys(queues) for key, queues in change.resets.items()}
                apply_changes(self.order_locks, known)
            case OffsetsRemoved():
                self._forget(lambda _topic, group: group in change.groups)
                self.ordered.forget_acks(lambda key: key.group in change.groups)
                _drop(self.order_locks, lambda _topic, group: group in change.groups)
            case DelayPut():
                self.delay.update(change.levels)
            case TimersPut():
                self.timers = change.progress
            case RequestModesPut():
                self.request_modes.update(change.modes)
            case OrderLocksPut():
                apply_changes(self.order_locks, change.locks)
            case AccessPut():
                self.add_access(change.users, change.acls)
            case SubjectsPut() | FencesPut() | ProducersPut() | SharedAcksPut():
                self.ordered.apply(change)

    def add_access(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> None:
        """Take users and policies; None deletes."""
        self.access = AccessBook() if self.access is None else self.access
        self.access.put(users, acls)

    def _take_resets(self, key: str, queues: Iterable[int]) -> None:
        waiting = self.resets.get(key)
        if waiting is None:
            return
        for queue in queues:
            waiting.pop(queue, None)
        if not waiting:
            del self.resets[key]

    def _forget(self, gone: object) -> None:
        assert callable(gone)
        for table in (self.offsets, self.resets):
            for key in [key for key in table if gone(*parts_of(key))]:
                del table[key]

    def _forget_pops(self, gone: Callable[[str, str], bool]) -> None:
        _drop(self.request_modes, gone)
        _drop(self.order_locks, gone)

    def add_chunk(self, payload: bytes) -> int:
        """Add the content of a chunk; returns its entries. Raises FormatError."""
        found = fields.parse_object(payload)
        topics, groups = records.topics_of(found), records.groups_of(found)
        forbidden = records.forbidden_of(found)
        offsets, resets = records.offsets_of(found, "offsets"), records.offsets_of(found, "resets")
        delay = fields.integer_map(fields.get_object(found, "delay"), "delay")
        self.topics.update((topic.topic_name, topic) for topic in topics)
        self.groups.update((group.group_name, group) for group in groups)
        self.forbidden.update(forbidden)
        for key, queues in offsets.items():
            self.offsets.setdefault(key, {}).update(queues)
        for key, queues in resets.items():
            self.resets.setdefault(key, {}).update(queues)
        self.delay.update(delay)
        for topic, ends in records.offsets_of(found, "queueEnds").items():
            self.queue_ends.setdefault(topic, {}).update(ends)
        self.ordered.add_sections(found)
        self.timers = records.timers_of(found) or self.timers
        self.request_modes.update(records.request_modes_of(found))
        apply_changes(self.order_locks, records.order_locks_of(found))
        self.add_access(users_of(found), acls_of(found))
        return sum(map(len, (topics, groups, forbidden, offsets, resets, delay)))


def _drop(table: MutableMapping[str, _Value], gone: Callable[[str, str], bool]) -> None:
    for key in [key for key in table if gone(*parts_of(key))]:
        del table[key]


class ChunkPacker:
    """Packs entries into payloads of bounded size, and counts them for the end mark."""

    __slots__ = ("_count", "_parts", "_size", "checksum", "chunks", "entries")

    def __init__(self) -> None:
        self._parts: dict[str, list[orjson.Fragment] | dict[str, orjson.Fragment]] = {}
        self._size = 0
        self._count = 0
        self.chunks = 0
        self.entries = 0
        self.checksum = 0

    def add_item(self, section: str, item: Mapping[str, object]) -> bytes | None:
        """Add a topic or a group; returns the chunk that was full before, if it was."""
        text = records.json_bytes(item)
        full = self._make_room(len(text))
        part = self._parts.setdefault(section, [])
        assert isinstance(part, list)
        part.append(orjson.Fragment(text))
        return full

    def add_key(self, section: str, key: str, value: object, *, counts: bool = True) -> bytes | None:
        """Add an entry of a map; returns the chunk that was full before, if it was.

        `counts`: as one of the entries of the end mark. Brokers that do not know a section count none of it.
        """
        text = records.json_bytes(value)
        present = self._parts.get(section)
        full = self._make_room(len(key) + len(text) + 4, force=present is not None and key in present)
        part = self._parts.setdefault(section, {})
        assert isinstance(part, dict)
        part[key] = orjson.Fragment(text)
        self.entries -= not counts
        return full

    def _make_room(self, size: int, *, force: bool = False) -> bytes | None:
        full = None
        if self._count and (force or self._size + size > CHUNK_BYTES_MAX or self._count >= CHUNK_ENTRIES_MAX):
            full = self.take()
        self._size += size + 1
        self._count += 1
        return full

    def take(self) -> bytes | None:
        """The chunk as it is, and begin another; `None` if it is empty."""
        if not self._count:
            return None
        payload = records.json_bytes(self._parts)
        self.checksum = zlib.crc32(payload, self.checksum)
        self.chunks += 1
        self.entries += self._count
        self._parts, self._size, self._count = {}, 0, 0
        return payload


class ChunkCheck:
    """Whether the chunks of a snapshot that is passed by are whole, without reading what they say."""

    __slots__ = ("_begin", "_checksum", "_chunks")

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._chunks = 0
        self._checksum = 0

    def add(self, chunk: SnapshotChunk) -> None:
        """A chunk was passed."""
        if chunk.begin == self._begin:
            self._chunks += 1
            self._checksum = zlib.crc32(chunk.payload, self._checksum)

    def matches(self, end: SnapshotEnd) -> bool:
        """Whether the end mark belongs to what was passed."""
        return (end.begin, end.chunks, end.checksum) == (self._begin, self._chunks, self._checksum)


class Assembly:
    """The content of one snapshot while its chunks are read."""

    __slots__ = ("_checksum", "_chunks", "_entries", "begin", "state")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.state = MetadataState()
        self._chunks = 0
        self._entries = 0
        self._checksum = 0

    def add(self, chunk: SnapshotChunk) -> None:
        """Add a chunk in its order; those of other snapshots are passed over. Raises FormatError."""
        if chunk.begin != self.begin:
            return
        self._chunks += 1
        self._checksum = zlib.crc32(chunk.payload, self._checksum)
        self._entries += self.state.add_chunk(chunk.payload)

    def problem(self, end: SnapshotEnd) -> str | None:
        """Why what was read is not what the end mark says; `None` if it is."""
        found = (self._chunks, self._entries, self._checksum)
        wanted = (end.chunks, end.entries, end.checksum)
        if found == wanted:
            return None
        return f"chunks, entries and checksum are {found} and should be {wanted}"
