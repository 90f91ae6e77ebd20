"""Clients come, tell what they want, and go; administrators ask who is there.

Source: `ClientManageProcessor`, `ConsumerManageProcessor`, `DefaultConsumerIdsChangeListener`. Codes 34,
35, 38, 46, 203, 204, 328; sends 40.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from brokerset_broker.filters import FilterError
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.tables.channels import CLIENT_ID_SIZE_MAX, Client
from brokerset_broker.tables.consumer_filters import ConsumerFilters, is_sql
from brokerset_broker.tables.consumers import Change, ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.producers import ProducerTable
from brokerset_broker.tables.topics import TopicManager
from brokerset_protocol import headers
from brokerset_protocol.bodies import connections as bodies
from brokerset_protocol.bodies.heartbeat import (
    CheckClientRequest,
    ConsumerData,
    ExpressionType,
    HeartbeatData,
)
from brokerset_protocol.bodies.queues import ConsumerIdList
from brokerset_protocol.codes import LANGUAGE_NAMES, RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subscriptions import parse
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply

log = structlog.get_logger(__name__)

GROUPS_PER_CLIENT_MAX = 1_000
"""Groups of one kind in one heartbeat; a heartbeat with more is refused."""

PRODUCER_GROUP_SIZE_MAX = 255
"""Characters of a producer group's name."""

EXPIRE_SECONDS = 10.0
"""Time between two searches for clients without heartbeats, as in Java."""

UNIT_SUBSCRIPTION_FLAG = 2
"""Bit of a topic's system flag: consumed by unit (`TopicSysFlag.buildSysFlag(false, true)`)."""


class ClientProcessor:
    """Keeps the client tables up to date and tells consumers when their group has changed."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        topics: TopicManager,
        groups: GroupManager,
        consumers: ConsumerTable,
        producers: ProducerTable,
        changes: ChangeLog,
        filters: ConsumerFilters | None = None,
        left: Callable[[Connection, str], None] | None = None,
    ) -> None:
        """`changes`: a consumer that leaves in order finds its offsets again. `filters`: those by SQL92, if
        they are served. `left` hears which group a consumer leaves that lives on."""
        self._left = left
        self._filters = filters
        self._changes = changes
        self._live = live
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._producers = producers

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    # -- coming and going ---------------------------------------------------------------------------------

    def heartbeat(self, connection: Connection, command: Command) -> Command:
        """HEART_BEAT (34)."""
        data = HeartbeatData.from_json(command.body)
        if len(data.client_id) > CLIENT_ID_SIZE_MAX:
            raise _refused(f"clientID has {len(data.client_id)} characters, at most {CLIENT_ID_SIZE_MAX}")
        for kind, count in (
            ("consumer", len(data.consumer_data_set)),
            ("producer", len(data.producer_data_set)),
        ):
            if count > GROUPS_PER_CLIENT_MAX:
                raise _refused(f"{count} {kind} groups in one heartbeat, at most {GROUPS_PER_CLIENT_MAX}")
        refused: Rejected | None = None
        subscriptions_changed = data.heartbeat_fingerprint == 0
        for consumer in data.consumer_data_set:
            try:
                if self._register_consumer(connection, command, data, consumer):
                    subscriptions_changed = True
            except Rejected as error:
                refused = error
        for producer in data.producer_data_set:
            if not 0 < len(producer.group_name) <= PRODUCER_GROUP_SIZE_MAX:
                refused = _refused(f"the producer group's name has {len(producer.group_name)} characters")
                continue
            self._producers.register(
                producer.group_name, connection, data.client_id, command.language, command.version
            )
        if refused is not None:
            raise refused
        answer = headers.HeartbeatResponse(is_support_heart_beat_v2=True, is_sub_change=subscriptions_changed)
        return command.reply(ext=answer.to_ext())

    def _register_consumer(
        self, connection: Connection, command: Command, data: HeartbeatData, consumer: ConsumerData
    ) -> bool:
        """Note one group of a heartbeat; whether the client should send its subscriptions again (V2)."""
        name = consumer.group_name
        config = self._groups.get_or_create(name)
        if config is None:
            log.warning("heartbeat of a group that may not be created", group=name, peer=connection.peer)
            return False
        if config.retry_queue_nums > 0:
            self._topics.create_retry(
                name,
                config.retry_queue_nums,
                order=any(self._is_ordered(wanted.topic) for wanted in consumer.subscription_data_set),
                topic_sys_flag=UNIT_SUBSCRIPTION_FLAG if consumer.unit_mode else 0,
            )
        change = self._consumers.register(
            name,
            connection,
            data.client_id,
            language=command.language,
            version=command.version,
            consume_type=consumer.consume_type,
            message_model=consumer.message_model,
            consume_from_where=consumer.consume_from_where,
            subscriptions=None if data.without_sub else consumer.subscription_data_set,
        )
        self.announce((change,))
        entry = self._consumers.group(name)
        if self._filters is not None and entry is not None:
            self._filters.register(name, (wanted.data for wanted in entry.subscriptions.values()))
        if entry is None or data.heartbeat_fingerprint == 0:
            return True
        before, entry.fingerprint = entry.fingerprint, data.heartbeat_fingerprint
        unknown = data.without_sub and not entry.subscriptions
        return unknown or (before is not None and before != data.heartbeat_fingerprint)

    def _is_ordered(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.order

    def unregister(self, connection: Connection, command: Command) -> Reply:
        """UNREGISTER_CLIENT (35).

        A consumer has committed its last offsets one-way before; they are as safe as a message by the answer,
        which also comes when they cannot be confirmed in time: the consumer is out all the same.
        """
        header = headers.UnregisterClient.from_ext(command.ext)
        if header.producer_group is not None:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group is not None:
            if self._left is not None:
                self._left(connection, header.consumer_group)
            self.announce((self._consumers.unregister(header.consumer_group, connection),))
            if not command.is_oneway:
                self._changes.when_offsets_confirmed(lambda _status: connection.answer(command.reply()))
                return DEFERRED
        return command.reply()

    def connection_closed(self, connection: Connection) -> None:
        """Take a lost client out of all tables and tell the others; for the server's `on_close`."""
        self._producers.closed(connection)
        self.announce(self._consumers.closed(connection))

    def expire(self) -> None:
        """Take out clients that send no heartbeats any more, though their connection lives."""
        idle_seconds_max = self._live.current.channel_expired_timeout / 1000
        for client in self._producers.expire(idle_seconds_max):
            log.info("producer expired", client=client.client_id, address=client.address)
        changes = self._consumers.expire(idle_seconds_max)
        for change in changes:
            log.info("consumer expired", group=change.group)
        self.announce(changes)

    async def run(self) -> None:
        """Look for expired clients for as long as this task runs."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self.expire()

    def announce(self, changes: Iterable[Change]) -> None:
        """Send NOTIFY_CONSUMER_IDS_CHANGED (40) to whom the changes concern; note who has left."""
        changes = tuple(changes)
        if self._filters is not None:
            for change in changes:
                if change.ended:
                    self._filters.left(change.group)
        if not self._live.current.notify_consumer_ids_changed_enable:
            return
        for change in changes:
            if not change.notify:
                continue
            config = self._groups.get(change.group)
            if config is not None and not config.notify_consumer_ids_changed_enable:
                continue
            ext = headers.NotifyConsumerIdsChanged(consumer_group=change.group).to_ext()
            for channel in change.notify:
                channel.notify(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext))

    # -- questions ----------------------------------------------------------------------------------------

    def consumer_list(self, connection: Connection, command: Command) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP (38)."""
        name = headers.GetConsumerListByGroup.from_ext(command.ext).consumer_group
        entry = self._consumers.group(name)
        if entry is None:
            raise _refused(f"no consumer for this group, {name}")
        return command.reply(body=ConsumerIdList(tuple(entry.client_ids())).to_json())

    def check_client(self, connection: Connection, command: Command) -> Command:
        """CHECK_CLIENT_CONFIG (46): whether this broker can filter by the client's expression."""
        wanted = CheckClientRequest.from_json(command.body).subscription_data
        kind = wanted.expression_type
        if kind not in ("", ExpressionType.TAG):
            if self._filters is None or not is_sql(kind):
                raise _refused(f"The broker does not support consumer to filter message by {kind}")
            try:
                self._filters.compile(wanted.sub_string)
            except FilterError as error:
                raise Rejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.remark) from None
            return command.reply()
        parse(wanted.topic, wanted.sub_string)
        return command.reply()

    def consumer_connections(self, connection: Connection, command: Command) -> Command:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        name = headers.GetConsumerConnectionList.from_ext(command.ext).consumer_group
        entry = self._consumers.group(name)
        if entry is None:
            raise Rejected(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = bodies.ConsumerConnection(
            tuple(map(_connection, entry.members.values())),
            {topic: subscription.data for topic, subscription in entry.subscriptions.items()},
            entry.consume_type,
            entry.message_model,
            entry.consume_from_where,
        )
        return command.reply(body=body.to_json())

    def producer_connections(self, connection: Connection, command: Command) -> Command:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        name = headers.GetProducerConnectionList.from_ext(command.ext).producer_group
        clients = self._producers.clients(name)
        if clients is None:
            raise _refused(f"the producer group[{name}] not exist")
        return command.reply(body=bodies.ProducerConnection(tuple(map(_connection, clients))).to_json())

    def all_producers(self, connection: Connection, command: Command) -> Command:
        """GET_ALL_PRODUCER_INFO (328)."""
        table = {name: tuple(map(self._producer_info, clients)) for name, clients in self._producers.groups()}
        return command.reply(body=bodies.ProducerTable(table).to_json())

    def _producer_info(self, client: Client) -> bodies.ProducerInfo:
        silent_ms = int((self._clock.monotonic() - client.last_seen) * 1000)
        return bodies.ProducerInfo(
            client.client_id,
            f"/{client.address}",
            _language(client),
            client.version,
            self._clock.now_ms() - silent_ms,
        )


def _connection(client: Client) -> bodies.Connection:
    return bodies.Connection(client.client_id, client.address, _language(client), client.version)


def _language(client: Client) -> str:
    return LANGUAGE_NAMES.get(client.language, "OTHER")


def _refused(remark: str) -> Rejected:
    return Rejected(ResponseCode.SYSTEM_ERROR, remark)
