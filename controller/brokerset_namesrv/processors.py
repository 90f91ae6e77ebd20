"""What a name server answers to each request code.

Source: RocketMQ's `DefaultRequestProcessor` and `ClientRequestProcessor`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from brokerset_formats import fastjson
from brokerset_formats.config import DataVersion
from brokerset_formats.config.kv import ORDER_TOPIC_NAMESPACE
from brokerset_formats.errors import FormatError
from brokerset_namesrv import registration_bodies
from brokerset_namesrv.config_updates import changed_settings
from brokerset_namesrv.kv_config import KvTable
from brokerset_namesrv.kv_file import KvFile
from brokerset_namesrv.registrations import MinBrokerIdNotice, Refused, Registration, Removals
from brokerset_namesrv.routes import RouteTable
from brokerset_protocol import headers
from brokerset_protocol.bodies.routes import BrokerMemberGroup, BrokerMemberGroupResponse, TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.settings import settings_text
from brokerset_spec.namesrv_settings import NamesrvSettings

log = structlog.get_logger(__name__)

ZONE_NAME = "__ZONE_NAME"
"""Extra header field: the zone of the broker or client."""

ZONE_MODE = "__ZONE_MODE"
"""Extra header field: `true` asks for the brokers of the own zone only."""

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""End of the remark for an unknown topic: tools show it as it is."""


ProvidedEntries = Mapping[tuple[str, str], Callable[[], str | None]]
"""Key-value entries, by namespace and key, that a function answers unless somebody has stored such an entry.
They are in no file and in no list."""


@dataclass(slots=True)
class Counters:
    """What has happened since the start; shown as metrics."""

    routes_found: int = 0
    routes_unknown: int = 0
    registrations: int = 0
    registrations_refused: int = 0
    registrations_ignored: int = 0
    brokers_expired: int = 0
    brokers_disconnected: int = 0
    brokers_unregistered: int = 0
    notices_dropped: int = 0
    requests_denied: Counter[str] = field(default_factory=Counter)
    """By the check that refused them: `authentication`, `authorization`."""


@dataclass(slots=True)
class Processors:
    """The request handlers, on the tables that they share."""

    settings: NamesrvSettings
    table: RouteTable
    kv: KvTable
    kv_file: KvFile
    clock: Clock
    tell: Callable[[tuple[MinBrokerIdNotice, ...]], None]
    """Takes notices that have to be sent; must not wait."""

    counters: Counters = field(default_factory=Counters)
    started: float = 0.0
    """Monotonic seconds of the start, for `needWaitForService`."""

    provided: ProvidedEntries = field(default_factory=dict)

    def handlers(self) -> dict[int, Handler]:
        """The handler of each request code."""
        code = RequestCode
        return {
            code.PUT_KV_CONFIG: self.put_kv,
            code.GET_KV_CONFIG: self.get_kv,
            code.DELETE_KV_CONFIG: self.delete_kv,
            code.GET_KVLIST_BY_NAMESPACE: self.get_kv_namespace,
            code.REGISTER_BROKER: self.register_broker,
            code.UNREGISTER_BROKER: self.unregister_broker,
            code.QUERY_DATA_VERSION: self.query_data_version,
            code.BROKER_HEARTBEAT: self.broker_heartbeat,
            code.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            code.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            code.GET_BROKER_MEMBER_GROUP: self.get_member_group,
            code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            code.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
            code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            code.GET_TOPICS_BY_CLUSTER: self.get_topics_by_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            code.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_sub_topics,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_unit_sub_ununit_topics,
            code.UPDATE_NAMESRV_CONFIG: self.update_config,
            code.GET_NAMESRV_CONFIG: self.get_config,
        }

    def now_ms(self) -> int:
        """Milliseconds of the clock that liveness is measured on."""
        return int(self.clock.monotonic() * 1000)

    # -- brokers ------------------------------------------------------------------------------------------

    def register_broker(self, connection: Connection, command: Command) -> Command:
        """103: a broker tells where it is and which topics it has."""
        header = headers.RegisterBroker.from_ext(command.ext)
        body = self._registered_topics(command, header)
        registration = Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            topics=body.topics,
            data_version=body.data_version,
            filter_servers=body.filter_servers,
            heartbeat_timeout_ms=header.heartbeat_timeout_millis,
            acting_master=header.enable_acting_master,
            zone=command.ext.get(ZONE_NAME),
        )
        result = self.table.register(registration, self.now_ms(), connection)
        bound = log.bind(
            broker=registration.broker_name, id=registration.broker_id, address=registration.address
        )
        if isinstance(result, Refused):
            self.counters.registrations_refused += 1
            bound.warning("refused registration", reason=result.reason)
            raise Rejected(ResponseCode.SYSTEM_ERROR, f"register broker failed: {result.reason}")
        self.tell(result.notices)
        if result.ignored is not None:
            self.counters.registrations_ignored += 1
            bound.warning("ignored registration", reason=result.ignored)
            return command.reply(remark=result.ignored)
        self.counters.registrations += 1
        if result.first:
            bound.info("broker registered", cluster=registration.cluster, topics=len(registration.topics))
        answer = headers.RegisterBrokerResponse(
            ha_server_addr=result.ha_address, master_addr=result.master_address
        )
        order = None
        if self.settings.return_order_topic_config_to_broker:
            order = self.kv.encode_namespace(ORDER_TOPIC_NAMESPACE)
        return command.reply(ext=answer.to_ext(), body=order or b"")

    def _registered_topics(
        self, command: Command, header: headers.RegisterBroker
    ) -> registration_bodies.RegisteredTopics:
        try:
            return registration_bodies.read(
                command.body,
                header.broker_name,
                compressed=header.compressed,
                version=command.version,
                body_crc32=header.body_crc32,
            )
        except Rejected:
            self.counters.registrations_refused += 1
            raise

    def unregister_broker(self, connection: Connection, command: Command) -> Command:
        """104: a broker goes away on purpose."""
        header = headers.UnRegisterBroker.from_ext(command.ext)
        removals = self.table.unregister(
            header.cluster_name, header.broker_name, header.broker_addr, connection
        )
        self.counters.brokers_unregistered += len(removals.removed)
        self.take_removals(removals, "broker unregistered")
        return command.reply()

    def take_removals(self, removals: Removals, event: str) -> None:
        """Log the brokers that left, and have the others told."""
        for removal in removals.removed:
            log.info(event, broker=removal.broker_name, id=removal.broker_id, address=removal.address)
        self.tell(removals.notices)

    def query_data_version(self, connection: Connection, command: Command) -> Command:
        """322: a broker asks whether its topics are up to date here; a sign of life, too."""
        header = headers.QueryDataVersion.from_ext(command.ext)
        asked = _data_version(command.body)
        known = self.table.data_version(header.cluster_name, header.broker_addr)
        self.table.touch(header.cluster_name, header.broker_addr, self.now_ms())
        answer = headers.QueryDataVersionResponse(changed=known is None or known != asked)
        body = fastjson.dumps(known.to_json()) if known is not None else b""
        return command.reply(ext=answer.to_ext(), body=body)

    def broker_heartbeat(self, connection: Connection, command: Command) -> Command:
        """904: a sign of life."""
        header = headers.BrokerHeartbeat.from_ext(command.ext)
        self.table.touch(header.cluster_name, header.broker_addr, self.now_ms())
        return command.reply()

    def get_member_group(self, connection: Connection, command: Command) -> Command:
        """901: the living brokers of a name."""
        header = headers.GetBrokerMemberGroup.from_ext(command.ext)
        addresses = self.table.member_addresses(header.broker_name)
        group = BrokerMemberGroup(header.cluster_name, header.broker_name, addresses)
        return command.reply(body=BrokerMemberGroupResponse(group).to_json())

    # -- routes -------------------------------------------------------------------------------------------

    def get_route(self, connection: Connection, command: Command) -> Command:
        """105: where a topic lives. Always standard JSON, which every client reads."""
        header = headers.GetRouteInfo.from_ext(command.ext)
        waiting = self.waiting_reason()
        if waiting is not None:
            raise Rejected(ResponseCode.SYSTEM_ERROR, waiting)
        topic = header.topic
        order = self.kv.get(ORDER_TOPIC_NAMESPACE, topic) if self.settings.order_message_enable else None
        zone = None
        if command.ext.get(ZONE_MODE, "").lower() == "true":
            zone = command.ext.get(ZONE_NAME, "").strip() or None
        body = self.table.encoded_route(topic, order, zone)
        if body is None:
            self.counters.routes_unknown += 1
            return command.reply(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}{FAQ}",
            )
        self.counters.routes_found += 1
        return command.reply(body=body)

    def waiting_reason(self) -> str | None:
        """Why routes are not handed out yet, or `None`."""
        settings = self.settings
        if not settings.need_wait_for_service:
            return None
        if self.clock.monotonic() - self.started >= settings.wait_seconds_for_service:
            return None
        return "name server not ready"

    def get_cluster_info(self, connection: Connection, command: Command) -> Command:
        """106: all clusters and brokers."""
        return command.reply(body=self.table.cluster_info().to_json())

    # -- topics -------------------------------------------------------------------------------------------

    def get_all_topics(self, connection: Connection, command: Command) -> Command:
        """206: the names of all topics."""
        if not self.settings.enable_all_topic_list:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "disable")
        return command.reply(body=_topic_list(self.table.topics()))

    def get_topics_by_cluster(self, connection: Connection, command: Command) -> Command:
        """224: the topics of one cluster."""
        self._check_topic_list()
        header = headers.GetTopicsByCluster.from_ext(command.ext)
        return command.reply(body=_topic_list(self.table.topics_of_cluster(header.cluster)))

    def get_system_topics(self, connection: Connection, command: Command) -> Command:
        """304: the names of clusters and brokers, and a broker that knows more."""
        names, address = self.table.system_topics()
        return command.reply(body=_topic_list(names, address))

    def get_unit_topics(self, connection: Connection, command: Command) -> Command:
        """311: topics with the unit flag."""
        self._check_topic_list()
        return command.reply(body=_topic_list(self.table.unit_topics(unit=True)))

    def get_unit_sub_topics(self, connection: Connection, command: Command) -> Command:
        """312: topics with unit subscriptions."""
        self._check_topic_list()
        return command.reply(body=_topic_list(self.table.unit_topics(unit_sub=True)))

    def get_unit_sub_ununit_topics(self, connection: Connection, command: Command) -> Command:
        """313: topics with unit subscriptions and without the unit flag."""
        self._check_topic_list()
        return command.reply(body=_topic_list(self.table.unit_topics(unit=False, unit_sub=True)))

    def _check_topic_list(self) -> None:
        if not self.settings.enable_topic_list:
            raise Rejected(ResponseCode.SYSTEM_ERROR, "disable")

    def register_topic(self, connection: Connection, command: Command) -> Command:
        """217: the queues of one topic."""
        header = headers.RegisterTopic.from_ext(command.ext)
        route = TopicRouteData.from_json(command.body)
        return command.reply(remark=self.table.register_topic(header.topic, route.queue_datas))

    def delete_topic(self, connection: Connection, command: Command) -> Command:
        """216: forget a topic, until a broker registers it again."""
        header = headers.DeleteTopicFromNamesrv.from_ext(command.ext)
        self.table.delete_topic(header.topic, header.cluster_name)
        return command.reply()

    def wipe_write_permission(self, connection: Connection, command: Command) -> Command:
        """205: no more writes to a broker name."""
        header = headers.WipeWritePermOfBroker.from_ext(command.ext)
        count = self.table.wipe_write_permission(header.broker_name)
        return command.reply(ext=headers.WipeWritePermOfBrokerResponse(wipe_topic_count=count).to_ext())

    def add_write_permission(self, connection: Connection, command: Command) -> Command:
        """327: writes to a broker name again."""
        header = headers.AddWritePermOfBroker.from_ext(command.ext)
        count = self.table.add_write_permission(header.broker_name)
        return command.reply(ext=headers.AddWritePermOfBrokerResponse(add_topic_count=count).to_ext())

    # -- key-value configuration --------------------------------------------------------------------------

    async def put_kv(self, connection: Connection, command: Command) -> Command:
        """100: set an entry; answered when it is on the disk."""
        header = headers.PutKVConfig.from_ext(command.ext)
        problem = self.kv.put(header.namespace, header.key, header.value)
        if problem is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"entry not stored: {problem}")
        return await self._saved(command, header.namespace, header.key)

    async def delete_kv(self, connection: Connection, command: Command) -> Command:
        """102: remove an entry; answered when that is on the disk."""
        header = headers.DeleteKVConfig.from_ext(command.ext)
        self.kv.delete(header.namespace, header.key)
        return await self._saved(command, header.namespace, header.key)

    async def _saved(self, command: Command, namespace: str, key: str) -> Command:
        if namespace == ORDER_TOPIC_NAMESPACE:
            self.table.forget_route(key)
        try:
            await self.kv_file.save()
        except OSError as error:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"changed in memory, but not on the name server's disk: {error}; repair it and try again",
            ) from error
        return command.reply()

    def get_kv(self, connection: Connection, command: Command) -> Command:
        """101: one entry."""
        header = headers.GetKVConfig.from_ext(command.ext)
        value = self.kv.get(header.namespace, header.key)
        provide = self.provided.get((header.namespace, header.key))
        if value is None and provide is not None:
            value = provide()
        if value is None:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return command.reply(ext=headers.GetKVConfigResponse(value=value).to_ext())

    def get_kv_namespace(self, connection: Connection, command: Command) -> Command:
        """219: all entries of a namespace."""
        header = headers.GetKVListByNamespace.from_ext(command.ext)
        body = self.kv.encode_namespace(header.namespace)
        if body is None:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return command.reply(body=body)

    # -- own settings -------------------------------------------------------------------------------------

    def update_config(self, connection: Connection, command: Command) -> Command:
        """318: change settings, until the next start."""
        changed = changed_settings(self.settings, command.body)
        self.settings = changed
        self.table.use_settings(changed)
        log.info(
            "settings changed", peer=connection.peer, body=command.body[:1000].decode("utf-8", "replace")
        )
        return command.reply()

    def get_config(self, connection: Connection, command: Command) -> Command:
        """319: all settings as properties text."""
        return command.reply(body=settings_text(self.settings).encode())


def _topic_list(topics: list[str], address: str | None = None) -> bytes:
    content: dict[str, object] = {"brokerAddr": address} if address is not None else {}
    content["topicList"] = topics
    return fastjson.dumps(content)


def _data_version(body: bytes) -> DataVersion:
    try:
        fields = fastjson.loads(body, object_keys=False)
        if not isinstance(fields, dict):
            raise FormatError("it is no JSON object")
        return DataVersion.from_json(fields)
    except FormatError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"the data version cannot be read: {error}") from None
