"""CONSUMER_SEND_MSG_BACK (36): what a consumer could not process comes again later, or is given up."""

from __future__ import annotations

import random
from functools import partial

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.access_control import CheckRecord
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.copies import MessageCopies
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.store.delay_levels import DelayLevels
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.names import retry_topic
from brokerset_formats.records import Record
from brokerset_protocol.codes import VERSION_3_4_9, RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import ConsumerSendMsgBack
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply


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
        check_record: CheckRecord | None = None,
    ) -> None:
        """`check_record` says whether a message may be consumed: an offset of the log names no topic."""
        self._check_record = check_record
        self.copies = MessageCopies(
            live=live, store=store, topics=topics, levels=levels, stats=stats, traffic=traffic
        )
        self._topics = topics
        self._groups = groups
        self._admission = admission
        self._stats = stats

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
        record = self.copies.read(header.offset)
        if self._check_record is not None:
            self._check_record(connection, command, record)
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
        if record.reconsume_times >= times_max or header.delay_level < 0:
            return self.copies.dead_letter(record, header.group)
        return self.copies.retry(
            record,
            header.delay_level,
            lambda: (retry_topic(header.group), random.randrange(config.retry_queue_nums)),
        )

    @staticmethod
    def _finish(connection: Connection, command: Command, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            connection.answer(command.reply())
        else:
            connection.answer(command.reply(ResponseCode.SYSTEM_ERROR, status.value))
