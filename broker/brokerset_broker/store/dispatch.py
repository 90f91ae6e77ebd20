"""From a record of the log to its consume queue unit and its index entries."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

import structlog

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.index import IndexService
from brokerset_formats.hashing import java_hash
from brokerset_formats.index_file import ENTRY
from brokerset_formats.light_queues import QUEUE_ID, dispatched_queues
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import find_property
from brokerset_formats.records import RecordHead, SysFlag

log = structlog.get_logger(__name__)

TAGS_CACHE_MAX = 4096
"""Texts of tags whose hash is remembered; the table is cleared when it is full."""

CATCH_UP_RECORDS = 5_000
"""Records that one attempt indexes after the index had no room; about 20 ms."""

_UNIQ_KEY = b"UNIQ_KEY\x01"
_UNIQ_KEY_SIZE = len(_UNIQ_KEY)
_KEYS = b"KEYS\x01"
_TAGS = b"TAGS\x01"
_DELAY = b"DELAY\x01"

_tags_codes: dict[bytes, int] = {}

RESTS_CACHE_MAX = 4096
"""Properties behind the UNIQ_KEY whose tags code is remembered; the table is cleared when it is full."""

REST_SIZE_MAX = 256
"""Bytes of the longest ones that are remembered."""

_rests: dict[bytes, int] = {}


Derived: TypeAlias = tuple[int, bytes | None, bytes | None]
"""Of the properties of an ordinary message: tags code, client-made id, keys."""


def property_value(raw: bytes, needle: bytes) -> bytes | None:
    """`find_property` for the usual cases, faster; `needle` is the name with the 0x01 behind it."""
    start = raw.rfind(needle)
    if start < 0:
        return None
    if start and raw[start - 1] != 2:
        return find_property(raw, needle[:-1])
    start += len(needle)
    end = raw.find(b"\x02", start)
    return raw[start:end] if end > start else find_property(raw, needle[:-1])


def tags_code_of(properties: bytes) -> int:
    """The tags code of an ordinary message: the hash of its whole TAGS property, 0 without one."""
    if properties.rfind(_TAGS) < 0:  # on such short bytes `rfind` is twice as fast as `in`
        return 0
    tags = property_value(properties, _TAGS)
    if not tags:
        return 0
    code = _tags_codes.get(tags)
    if code is None:
        if len(_tags_codes) >= TAGS_CACHE_MAX:
            _tags_codes.clear()
        code = _tags_codes[tags] = java_hash(tags.decode("utf-8", "replace"))
    return code


def index_keys(properties: bytes) -> tuple[bytes | None, bytes | None]:
    """What a message is indexed under: its UNIQ_KEY and its KEYS."""
    start = properties.find(_UNIQ_KEY)
    if start < 0:
        uniq_key = None
    elif start and properties[start - 1] != 2:
        uniq_key = find_property(properties, b"UNIQ_KEY")
    else:
        start += _UNIQ_KEY_SIZE
        end = properties.find(b"\x02", start)
        uniq_key = properties[start:end] if end >= 0 else properties[start:]
    return uniq_key, property_value(properties, _KEYS) if _KEYS in properties else None


def derived(properties: bytes) -> Derived:
    """`tags_code_of` and `index_keys` at once, and faster for messages that differ in their UNIQ_KEY only."""
    if properties[:_UNIQ_KEY_SIZE] == _UNIQ_KEY:
        end = properties.find(b"\x02", _UNIQ_KEY_SIZE)
        if end > 0:
            rest = properties[end:]
            code = _rests.get(rest)
            uniq_key = properties[_UNIQ_KEY_SIZE:end]
            if code is not None and b"\x01" not in uniq_key:  # no other property can begin in it
                return code, uniq_key, None
            if len(rest) <= REST_SIZE_MAX and _KEYS not in rest and b"\x01" not in uniq_key:
                if len(_rests) >= RESTS_CACHE_MAX:
                    _rests.clear()
                code = _rests[rest] = tags_code_of(properties)
                return code, uniq_key, None
    return tags_code_of(properties), *index_keys(properties)


def derived_of_batch(properties_of_all: Sequence[bytes]) -> list[Derived]:
    """`derived` of several messages, faster where one differs from another in its UNIQ_KEY only."""
    found: list[Derived] = []
    code, rest, stop = 0, b"", 0
    for properties in properties_of_all:
        uniq_key = properties[_UNIQ_KEY_SIZE:stop]
        if (
            properties[stop:] == rest
            and properties[:_UNIQ_KEY_SIZE] == _UNIQ_KEY
            and uniq_key.isalnum()  # so it has no separator, and `rest` is all that follows it
        ):
            found.append((code, uniq_key, None))
            continue
        new = derived(properties)
        found.append(new)
        end = properties.find(b"\x02", _UNIQ_KEY_SIZE)
        if end > 0 and new[2] is None and properties[:_UNIQ_KEY_SIZE] == _UNIQ_KEY:
            code, rest = new[0], properties[end:]
            stop = -len(rest)
    return found


def has_unit(sys_flag: int) -> bool:
    """Whether a record gets a consume queue unit: prepared and rolled back messages (old brokers) do not."""
    return sys_flag & SysFlag.TRANSACTION_MASK not in (
        SysFlag.TRANSACTION_PREPARED,
        SysFlag.TRANSACTION_ROLLBACK,
    )


class Dispatcher:
    """Makes what is derived from the log. Putting a record that was put before changes nothing."""

    def __init__(self, queues: ConsumeQueues, index: IndexService | None, delays: DelayLevels) -> None:
        self._queues = queues
        self._index = index
        self._delays = delays
        self._begun: set[ConsumeQueue] = set()  # they had no units before records were put
        self.index_missing_from: int | None = None
        """Offset from which the index lacks messages, because the disk was full; None if it is complete."""

    def tags_code(self, topic: str, properties: bytes, store_timestamp: int) -> int:
        """What the unit of a record carries: in the delay topic the time of delivery, else the tags' hash."""
        if topic == SCHEDULE_TOPIC:
            level = property_value(properties, _DELAY)
            if level is not None and level.isdigit() and int(level) > 0:
                number = min(int(level), self._delays.highest)
                return store_timestamp + self._delays.delay_ms(number)
        return tags_code_of(properties)

    def put_index(self, topic: str, properties: bytes, offset: int, store_timestamp: int) -> None:
        """Index a message. If there is no room, remember that; messages are not refused for it here."""
        self.put_index_keys(topic, *index_keys(properties), offset, store_timestamp)

    def put_index_keys(
        self, topic: str, uniq_key: bytes | None, keys: bytes | None, offset: int, store_timestamp: int
    ) -> None:
        """`put_index` for a message whose client-made id and keys are known."""
        index = self._index
        if index is None or self.index_missing_from is not None or (uniq_key is None and keys is None):
            return
        try:
            index.put_keys(topic, uniq_key, keys, offset, store_timestamp)
        except StoreRefused as refusal:
            self.index_missing_from = offset
            log.error("the key index has no room", reason=refusal.reason, offset=offset)

    def put_index_batch(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, int]], store_timestamp: int
    ) -> None:
        """`put_index` for the messages of one batch: client-made id, keys, offset of each."""
        index = self._index
        if index is None or self.index_missing_from is not None:
            return
        try:
            index.put_batch(topic, messages, store_timestamp)
        except StoreRefused as refusal:
            self.index_missing_from = messages[0][2]
            log.error("the key index has no room", reason=refusal.reason, offset=messages[0][2])

    def put_index_run(self, messages: Sequence[tuple[str, bytes | None, bytes | None, int, int]]) -> None:
        """`put_index` for neighbours of the log: topic, client-made id, keys, offset, store time of each."""
        index = self._index
        if index is None or self.index_missing_from is not None:
            return
        try:
            index.put_run(messages)
        except StoreRefused as refusal:
            self.index_missing_from = messages[0][3]
            log.error("the key index has no room", reason=refusal.reason, offset=messages[0][3])

    def put_index_entries(self, entries: bytes) -> None:
        """`put_index` for neighbours of the log whose keys the native core has hashed."""
        index = self._index
        if not entries or index is None or self.index_missing_from is not None:
            return
        try:
            index.put_entries(entries)
        except StoreRefused as refusal:
            self.index_missing_from = ENTRY.unpack_from(entries)[1]
            log.error("the key index has no room", reason=refusal.reason, offset=self.index_missing_from)

    def truncate(self, offset: int) -> None:
        """The log was truncated at `offset`: what the index lacks behind it is not there any more."""
        if self.index_missing_from is not None and self.index_missing_from >= offset:
            self.index_missing_from = None

    @property
    def has_index(self) -> bool:
        """Whether keys are indexed at all."""
        return self._index is not None

    def catch_up_index(self, commit_log: CommitLog) -> bool:
        """Index up to `CATCH_UP_RECORDS` messages that it had no room for; False if it still has none."""
        missing = self.index_missing_from
        if missing is None:
            return True
        self.index_missing_from = None
        for done, head in enumerate(commit_log.records(max(missing, commit_log.min_offset))):
            if done >= CATCH_UP_RECORDS:
                self.index_missing_from = head.offset
                break
            self.put_index_of(head)
            if self.index_missing_from is not None:
                return False
        return True

    def put(
        self,
        head: RecordHead,
        *,
        from_master: bool = False,
        only: Container[ConsumeQueue] | None = None,
    ) -> list[ConsumeQueue]:
        """Put a record that was read from the log; returns those of its queues that have grown.

        `from_master`: a master numbers a queue from 0 only when it has none, so then ours is emptied.
        `only`: the others of its queues are left alone. StoreRefused if the disk has no room.
        """
        try:
            topic = head.topic.decode()
        except UnicodeDecodeError:
            log.error("record with an unreadable topic is in no queue", offset=head.offset)
            return []
        grown = []
        if has_unit(head.sys_flag):
            code = self.tags_code(topic, head.properties, head.store_timestamp)
            places = [
                (topic, head.queue_id, head.queue_offset),
                *(
                    (name, QUEUE_ID, number)
                    for name, number in dispatched_queues(head.topic, head.properties)
                ),
            ]
            for name, queue_id, queue_offset in places:
                if only is not None and self._queues.table.get((name, queue_id)) not in only:
                    continue
                queue = self._queues.open(name, queue_id)
                if self._put_unit(queue, head, queue_offset, code, from_master):
                    grown.append(queue)
        self.put_index_of(head)
        return grown

    def put_index_of(self, head: RecordHead) -> None:
        """Index a record that was read from the log, unless it was rolled back."""
        if head.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK:
            topic = head.topic.decode("utf-8", "replace")
            self.put_index(topic, head.properties, head.offset, head.store_timestamp)

    def _put_unit(
        self, queue: ConsumeQueue, head: RecordHead, queue_offset: int, tags_code: int, from_master: bool
    ) -> bool:
        """Put the unit of a record into one of its queues; whether that has grown."""
        if head.offset + head.size <= queue.last_end:
            return False
        topic, queue_id = queue.topic, queue.queue_id
        if queue.next_offset == 0:
            self._begun.add(queue)
        elif queue_offset == 0 and (from_master or queue in self._begun):
            log.info("a queue started from scratch", topic=topic, queue_id=queue_id, offset=head.offset)
            queue.restart()
        if queue_offset < queue.next_offset:
            log.error(
                "two records claim one queue offset; the later one cannot be consumed",
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                offset=head.offset,
            )
            return False
        if queue_offset > queue.next_offset:
            if queue.next_offset == 0:
                queue.begin_at(queue_offset)
            else:
                log.error(
                    "messages of a queue are missing in the log",
                    topic=topic,
                    queue_id=queue_id,
                    first=queue.next_offset,
                    next=queue_offset,
                )
                queue.skip_to(queue_offset, head.offset)
        if queue.position >= queue.room_end:
            queue.make_room(1)
        queue.put(head.offset, head.size, tags_code)
        return True


class Arrivals:
    """Which queues got messages since they were last announced.

    An announcement costs more than an append, so it is made once for each queue and turn of the loop.
    """

    def __init__(self) -> None:
        self._pending: list[ConsumeQueue] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def clear(self) -> None:
        """Forget what came: it is gone."""
        for queue in self._pending:
            queue.arrival_pending = False
        self._pending = []

    def note(self, queue: ConsumeQueue, tags_code: int | None) -> None:
        """A message came; `tags_code` None stands for several different ones."""
        if not queue.arrival_pending:
            queue.arrival_pending = True
            queue.arrival_tags = tags_code
            self._pending.append(queue)
        elif queue.arrival_tags != tags_code:
            queue.arrival_tags = None

    def add(self, queues: Sequence[ConsumeQueue]) -> None:
        """These have noted themselves that messages came, and were not noted here before."""
        self._pending.extend(queues)

    def announce(self, readable_end: int, on_arrival: Callable[[str, int, int, int | None], None]) -> None:
        """Tell of all queues that have new messages below `readable_end`; the others stay noted."""
        pending, self._pending = self._pending, []
        for queue in pending:
            if queue.last_end > readable_end:
                self._pending.append(queue)
                readable = queue.end_below(readable_end)
            else:
                queue.arrival_pending = False
                readable = queue.next_offset
            on_arrival(queue.topic, queue.queue_id, readable, queue.arrival_tags)
