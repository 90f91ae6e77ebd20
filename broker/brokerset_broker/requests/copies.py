"""Copies of messages that a group could not process: for its retry topic, or its dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.ordered_parts import OrderedStore
from brokerset_broker.requests.send_refusals import refusal
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import StoreRefused
from brokerset_broker.store.property_edits import edit_properties
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.names import dlq_topic
from brokerset_formats.properties import Property, decode_properties
from brokerset_formats.records import Record, decode_record
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry when the client leaves it to the broker: 10 s."""

_NO_TIMES: Final = dict.fromkeys(
    (Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS), None
)
"""The delay level of a copy wins over a time of its message, as in Java."""


class MessageCopies:
    """Reads a message of the log, and stores it again under another topic."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: OrderedStore,
        topics: TopicManager,
        levels: DelayLevels,
        stats: BrokerStats,
        traffic: Traffic,
    ) -> None:
        self._live = live
        self._store = store
        self._topics = topics
        self._levels = levels
        self._stats = stats
        self._traffic = traffic

    def read(self, offset: int) -> Record:
        """The message at an offset of the log. Raises `Rejected`."""
        data = self._store.read(offset)
        if data is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return message_at(data, offset)

    def retry(self, record: Record, level: int, place: Callable[[], tuple[str, int]]) -> int:
        """Store a copy for the queue that `place` names, after the delay of a level.

        Level 0 leaves the delay to the broker. Returns the end of the copy in the log. Raises `Rejected`.
        """
        changes = {**self._changes(record), **_NO_TIMES}
        topic, queue_id = place()
        raw = edit_properties(record.properties, changes)
        level = level or FIRST_RETRY_LEVEL + record.reconsume_times
        topic, queue_id, raw = self._levels.put_aside(topic, queue_id, level, raw)
        return self._append(record, topic, queue_id, raw)

    def dead_letter(self, record: Record, group: str) -> int:
        """Store a copy among the group's dead letters; returns its end in the log. Raises `Rejected`."""
        if self._topics.create_dlq(group) is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"topic[{dlq_topic(group)}] not exist")
        self._traffic.dead_letter(group, record.topic)
        changes = {**self._changes(record), Property.DELAY: "0"}
        return self._append(record, dlq_topic(group), 0, edit_properties(record.properties, changes))

    def _changes(self, record: Record) -> dict[str, str | None]:
        properties = decode_properties(record.properties)
        origin = encode_offset_id(self._host(), record.offset)
        return {
            Property.RETRY_TOPIC: properties.get(Property.RETRY_TOPIC, record.topic),
            Property.ORIGIN_MESSAGE_ID: properties.get(Property.ORIGIN_MESSAGE_ID, origin),
            Property.WAIT: "false",
        }

    def _append(self, record: Record, topic: str, queue_id: int, raw: bytes) -> int:
        try:
            appended = self._store.append(
                topic,
                queue_id,
                record.body,
                raw,
                flag=record.flag,
                sys_flag=record.sys_flag,
                born_timestamp=record.born_timestamp,
                born_host=record.born_host.encode(),
                reconsume_times=record.reconsume_times + 1,
            )
        except StoreRefused as refused:
            self._stats.put_failed += 1
            raise refusal(refused, self._live.current.max_message_size) from None
        return appended.end

    def _host(self) -> Host:
        settings = self._live.current
        return Host.from_text(settings.broker_ip1, settings.listen_port)


def message_at(data: bytes | memoryview, offset: int) -> Record:
    """The message that begins at an offset of the log, whose bytes are `data`. Raises `Rejected`."""
    try:
        record = decode_record(data)
    except FormatError as error:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}: {error}"
        ) from None
    if record.offset != offset:  # something inside of a message that looks like one
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
    return record
