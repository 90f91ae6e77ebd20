"""CONSUMER_SEND_MSG_BACK (36): what a consumer could not process comes again later, or is given up."""

from __future__ import annotations

import random
from functools import partial

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.send_refusals import refusal
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.property_edits import edit_properties
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import encode_offset_id
from brokerset_formats.names import dlq_topic, retry_topic
from brokerset_formats.properties import Property, decode_properties
from brokerset_formats.records import Record, decode_record
from brokerset_protocol.codes import VERSION_3_4_9, RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import ConsumerSendMsgBack
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply

FIRST_RETRY_LEVEL = 3
"""Delay level of the first retry when the client leaves it to the broker: 10 s."""


class SendBackProcessor:
    """Puts messages into their group's retry topic, or into its dead-letter topic."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        admission: Admission,
        levels: DelayLevels,
        stats: BrokerStats,
        traffic: Traffic,
    ) -> None:
        self._live = live
        self._store = store
        self._topics = topics
        self._groups = groups
        self._admission = admission
        self._levels = levels
        self._stats = stats
        self._traffic = traffic

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, command: Command) -> Reply:
        """Store the message again under its next topic."""
        header = ConsumerSendMsgBack.from_ext(command.ext)
        self._admission.check_writes()
        config = self._groups.get_or_create(header.group)
        if config is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not self._admission.writable:
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self._admission.name}] sending message is forbidden"
            )
        if config.retry_queue_nums <= 0:
            return command.reply()
        self._check_retry_topic(config)
        record = self._read(header.offset)
        end = self._store_again(record, command, header, config)
        self._stats.group_back(header.group, record.topic).messages += 1
        when_durable = self._admission.when_durable
        if when_durable is None or command.flag & FLAG_ONEWAY:
            return command.reply()
        when_durable(end, partial(self._finish, connection, command))
        return DEFERRED

    def _check_retry_topic(self, config: SubscriptionGroupConfig) -> None:
        topic = self._topics.create_retry(config.group_name, config.retry_queue_nums)
        name = retry_topic(config.group_name)
        if topic is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
        if not topic.writable:
            raise Rejected(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")

    def _read(self, offset: int) -> Record:
        data = self._store.read(offset)
        if data is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        try:
            record = decode_record(data)
        except FormatError as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}: {error}"
            ) from None
        if record.offset != offset:  # something inside of a message that looks like one
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return record

    def _store_again(
        self,
        record: Record,
        command: Command,
        header: ConsumerSendMsgBack,
        config: SubscriptionGroupConfig,
    ) -> int:
        times_max = config.retry_max_times
        if command.version >= VERSION_3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        properties = decode_properties(record.properties)
        origin = encode_offset_id(self._host(), record.offset)
        changes: dict[str, str | None] = {
            Property.RETRY_TOPIC: properties.get(Property.RETRY_TOPIC, record.topic),
            Property.ORIGIN_MESSAGE_ID: properties.get(Property.ORIGIN_MESSAGE_ID, origin),
            Property.WAIT: "false",
        }
        if record.reconsume_times >= times_max or header.delay_level < 0:
            topic, queue_id = self._dead_letter(header.group, record.topic)
            changes[Property.DELAY] = "0"
            raw = edit_properties(record.properties, changes)
        else:
            topic, queue_id = retry_topic(header.group), random.randrange(config.retry_queue_nums)
            level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
            raw = edit_properties(record.properties, changes)
            topic, queue_id, raw = self._levels.put_aside(topic, queue_id, level, raw)
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

    def _dead_letter(self, group: str, topic: str) -> tuple[str, int]:
        if self._topics.create_dlq(group) is None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"topic[{dlq_topic(group)}] not exist")
        self._traffic.dead_letter(group, topic)
        return dlq_topic(group), 0

    def _host(self) -> Host:
        settings = self._live.current
        return Host.from_text(settings.broker_ip1, settings.listen_port)

    @staticmethod
    def _finish(connection: Connection, command: Command, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            connection.answer(command.reply())
        else:
            connection.answer(command.reply(ResponseCode.SYSTEM_ERROR, status.value))
