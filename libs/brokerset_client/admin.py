"""What an administrator asks brokers and name servers: topics, groups, clusters, progress, stored messages.

Source: `DefaultMQAdminExtImpl`. Everything raises `ClientError`s; a change that concerns several brokers is
made at one after the other, and what was done before an error stays done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brokerset_client import calls
from brokerset_client.errors import ClientError, GroupOffline, NoQueue, RequestRefused, TopicNotFound
from brokerset_client.instance import ClientInstance, readable
from brokerset_client.instance_user import InstanceUser
from brokerset_client.messages import MessageView, split_records
from brokerset_client.positions import reader_address
from brokerset_formats import fastjson, names
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import decode_offset_id
from brokerset_protocol import headers
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.bodies.connections import ConsumerConnection, ConsumerRunningInfo, ProducerConnection
from brokerset_protocol.bodies.metadata import topic_config
from brokerset_protocol.bodies.queues import GroupList, KVTable, MessageQueue, ResetOffsetBody, TopicList
from brokerset_protocol.bodies.registration import TopicConfigTable
from brokerset_protocol.bodies.routes import ClusterInfo, TopicRouteData
from brokerset_protocol.bodies.stats import ConsumeStats, OffsetWrapper, TopicOffset, TopicStats
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.errors import Rejected

ADMIN_SECONDS = 5.0
"""Time-out of one request (Java's `timeoutMillis` of the admin client)."""

QUERY_SECONDS_BEFORE = 36 * 3600 * 1000
"""How far back a query by unique id looks, as Java's does."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is in one queue."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp_ms: int
    in_flight: int = 0
    """Messages that consumers have, and have not acknowledged. They are no lag of a group that pops: its
    consumer offset moves when messages are handed out."""

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return self.broker_offset - self.consumer_offset


class Admin(InstanceUser):
    """Administrative requests over one client instance; use it with `async with`."""

    def __init__(
        self,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance: ClientInstance | None = None,
        timeout: float = ADMIN_SECONDS,
    ) -> None:
        super().__init__(namesrv, instance)
        self._timeout = timeout

    # -- clusters and brokers -----------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """All broker groups with their addresses, and the clusters that they form."""
        answer = await self.instance.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return readable(ClusterInfo.from_json, answer.body)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """broker name -> address of its master, of one cluster or of all. Raises `RequestRefused` for no
        cluster."""
        info = await self.cluster_info()
        wanted: Iterable[str] = info.broker_addr_table
        if cluster is not None:
            if cluster not in info.cluster_addr_table:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"no cluster {cluster!r}, only {', '.join(sorted(info.cluster_addr_table)) or 'none'}",
                )
            wanted = info.cluster_addr_table[cluster]
        found = {}
        for broker_name in sorted(wanted):
            data = info.broker_addr_table.get(broker_name)
            address = None if data is None else data.master_address()
            if address is not None:
                found[broker_name] = address
        return found

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO (28): the broker's measurements, all as text."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return readable(KVTable.from_json, answer).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """GET_BROKER_CONFIG (26): the settings in use."""
        return readable(properties_text.from_text, await self._ask(address, RequestCode.GET_BROKER_CONFIG))

    async def update_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """UPDATE_BROKER_CONFIG (25): change settings that can be changed while it runs."""
        await self._ask(
            address, RequestCode.UPDATE_BROKER_CONFIG, body=properties_text.to_text(dict(changes))
        )

    # -- topics -------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """All topics that the name server knows, system topics among them."""
        answer = await self.instance.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(readable(TopicList.from_json, answer.body).topic_list)

    async def topic_configs(self, address: str) -> Mapping[str, TopicConfig]:
        """GET_ALL_TOPIC_CONFIG (21): all topics of one broker, by name, with their settings."""
        answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return readable(TopicConfigTable.from_json, answer).topics

    async def topic_config(self, topic: str, address: str) -> TopicConfig:
        """GET_TOPIC_CONFIG (351): a topic as one broker has it."""
        answer = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, headers.GetTopicConfig(topic=topic))
        return readable(topic_config, answer)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Where the topic is. Raises `TopicNotFound`."""
        return await self.instance.route_data(topic)

    async def create_topic(
        self, config: TopicConfig, *, cluster: str | None = None, address: str | None = None
    ) -> None:
        """Create or change a topic at every master of a cluster (of all by default), or at one address."""
        header = headers.CreateTopic(
            topic=config.topic_name,
            default_topic=names.DEFAULT_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"{name}={value}" for name, value in config.attributes.items()) or None,
        )
        for target in await self._targets(cluster, address):
            await self._ask(target, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self.instance.forget_route(config.topic_name)

    async def wait_for_route(
        self, topic: str, write_queues: int = 1, timeout: float = 30.0
    ) -> TopicRouteData:
        """Wait until the name server shows `topic` with at least so many writable queues in sum.

        Raises `TopicNotFound` if that takes longer than `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        data = await self.topic_route(topic)
                    except TopicNotFound:
                        pass
                    else:
                        if sum(queue.write_queue_nums for queue in data.queue_datas) >= write_queues:
                            return data
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TopicNotFound(topic) from None

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages at all brokers, masters and slaves, and forget it at all name
        servers."""
        info = await self.cluster_info()
        for broker_name in sorted(await self.masters(cluster)):
            for address in info.broker_addr_table[broker_name].broker_addrs.values():
                await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, headers.DeleteTopic(topic=topic))
        header = headers.DeleteTopicFromNamesrv(topic=topic, cluster_name=cluster)
        for address in self.instance.name_servers:
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        self.instance.forget_route(topic)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """The ends of every queue, from the master of each broker. Raises `TopicNotFound`."""
        found: dict[MessageQueue, TopicOffset] = {}
        header = headers.GetTopicStatsInfo(topic=topic)
        for address in await self._masters_of(topic):
            body = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            found |= readable(TopicStats.from_json, body).offset_table
        return dict(sorted(found.items()))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): the groups that consume or have consumed it."""
        found: set[str] = set()
        for address in await self._masters_of(topic):
            body = await self._ask(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, headers.QueryTopicConsumeByWho(topic=topic)
            )
            found.update(readable(GroupList.from_json, body).group_list)
        return sorted(found)

    # -- groups -------------------------------------------------------------------------------------------

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, address: str | None = None
    ) -> None:
        """Create or change a consumer group at every master of a cluster (of all by default), or at one
        address."""
        body = fastjson.dumps(config.to_json())
        for target in await self._targets(cluster, address):
            await self._ask(target, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(
        self, group: str, *, clean_offsets: bool = True, cluster: str | None = None
    ) -> None:
        """Delete a consumer group, by default with its offsets."""
        header = headers.DeleteSubscriptionGroup(group_name=group, clean_offset=clean_offsets)
        for target in await self._targets(cluster, None):
            await self._ask(target, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352): the group as the broker has it."""
        body = await self._ask(
            address,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            headers.GetSubscriptionGroupConfig(group=group),
        )
        return readable(_group_config, body)

    async def groups(self, cluster: str | None = None, *, address: str | None = None) -> list[str]:
        """The names of all groups of the masters of a cluster, or of all, or of one broker."""
        found: set[str] = set()
        for target in await self._targets(cluster, address):
            body = await self._ask(target, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found.update(readable(_group_names, body))
        return sorted(found)

    async def consume_progress(self, group: str, topic: str | None = None) -> list[GroupProgress]:
        """How far the group is, queue by queue. Raises `GroupOffline` if no broker has an offset of it.

        Raises `TopicNotFound` (of its retry topic) for a group that never existed. One that pops without
        heartbeats has no such topic; all masters are asked then.
        """
        header = headers.GetConsumeStats(consumer_group=group, topic=topic)
        found: dict[MessageQueue, OffsetWrapper] = {}
        missing: TopicNotFound | None = None
        try:
            addresses = await self._masters_of(topic or names.retry_topic(group))
        except TopicNotFound as error:
            if topic is not None:
                raise
            missing, addresses = error, await self._targets(None, None)
        for address in addresses:
            body = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
            found |= readable(ConsumeStats.from_json, body).offset_table
        if missing is not None and not found:
            raise missing
        if not found:
            raise GroupOffline(f"no broker has an offset of group {group!r}: it has not consumed yet")
        return [
            GroupProgress(
                queue,
                offset.broker_offset,
                offset.consumer_offset,
                offset.last_timestamp,
                max(0, offset.pull_offset - offset.consumer_offset),
            )
            for queue, offset in sorted(found.items())
        ]

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let the group go on from what was stored at that time or later; -1: from the end. Gives the offsets
        back."""
        header = headers.ResetOffset(group=group, topic=topic, timestamp=timestamp_ms, is_force=force)
        return await self._reset(topic, header)

    async def reset_queue_offset(
        self, group: str, queue: MessageQueue, queue_offset: int
    ) -> dict[MessageQueue, int]:
        """Let the group go on at `queue_offset` of one queue."""
        header = headers.ResetOffset(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=queue_offset,
            timestamp=0,
            is_force=True,
        )
        address = await self._master(queue.topic, queue.broker_name)
        body = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return readable(ResetOffsetBody.from_json, body).offset_table

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Who consumes for the group now. Raises `RequestRefused` (CONSUMER_NOT_ONLINE) if nobody does."""
        problem: ClientError | None = None
        header = headers.GetConsumerConnectionList(consumer_group=group)
        for address in await self._masters_of(names.retry_topic(group)):
            try:
                body = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except RequestRefused as error:
                problem = error
                continue
            return readable(ConsumerConnection.from_json, body)
        raise problem or GroupOffline(f"no broker knows group {group!r}")

    async def producer_connections(self, group: str, address: str) -> ProducerConnection:
        """Who produces for the group over the broker at `address` now. Raises `RequestRefused` if nobody
        does."""
        header = headers.GetProducerConnectionList(producer_group=group)
        body = await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return readable(ProducerConnection.from_json, body)

    async def consumer_running_info(self, group: str, client_id: str, address: str) -> ConsumerRunningInfo:
        """Let the broker at `address` ask one member of the group for its state."""
        header = headers.GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
        body = await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return readable(ConsumerRunningInfo.from_json, body)

    # -- queues and messages ------------------------------------------------------------------------------

    async def max_offset(self, queue: MessageQueue) -> int:
        """What the next message of `queue` will get."""
        return await calls.max_offset(self.instance, await reader_address(self.instance, queue), queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest queue offset that is still there."""
        return await calls.min_offset(self.instance, await reader_address(self.instance, queue), queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message of `queue` that was stored at that time or later."""
        address = await reader_address(self.instance, queue)
        return await calls.offset_at(self.instance, address, queue, timestamp_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message of `queue` was stored, in milliseconds; -1 if there is none."""
        address = await reader_address(self.instance, queue)
        return await calls.earliest_store_time(self.instance, address, queue)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = 32,
        begin_ms: int = 0,
        end_ms: int | None = None,
        unique: bool = False,
    ) -> list[MessageView]:
        """Messages with that key (or, `unique`, with that client id), by store time. Empty if there are
        none."""
        if end_ms is None:
            end_ms = self.instance.clock.now_ms() + 3_600_000
        header = headers.QueryMessage(
            topic=topic,
            key=key,
            max_num=messages_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=True if unique else None,
        )
        route = await self.instance.route(topic)
        found: list[MessageView] = []
        for broker_name in route.addresses:
            address = route.reader(broker_name)
            if address is None:
                continue
            answer = await self.instance.request(
                address,
                RequestCode.QUERY_MESSAGE,
                header,
                timeout=self._timeout,
                accept=(ResponseCode.QUERY_NOT_FOUND,),
            )
            if answer.code == ResponseCode.SUCCESS:
                found += split_records(answer.body, broker_name)
        # The index knows hashes only.
        found = [
            message
            for message in found
            if (key == message.message_id if unique else key in message.keys) and message.topic == topic
        ]
        return sorted(found, key=lambda message: message.store_timestamp)[:messages_max]

    async def message_by_id(self, topic: str, message_id: str) -> MessageView:
        """A message by the broker's id, or by the producer's. Raises `RequestRefused` if there is none."""
        try:
            host, offset = decode_offset_id(message_id)
        except FormatError:
            pass
        else:
            # Ids of both kinds look alike; only a broker at that address can tell.
            known = {
                address
                for data in (await self.cluster_info()).broker_addr_table.values()
                for address in data.broker_addrs.values()
            }
            if host.text in known:
                body = await self._ask(
                    host.text,
                    RequestCode.VIEW_MESSAGE_BY_ID,
                    headers.ViewMessage(offset=offset, topic=topic),
                )
                return split_records(body)[0]
        found = await self.query_by_key(topic, message_id, unique=True)
        if not found:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE, f"no message {message_id!r} in topic {topic!r}: check id and topic"
            )
        return found[0]

    async def resume_check(self, message_id: str) -> MessageView:
        """Have a half message that was given up checked again, by the id of its broker or its producer.

        Raises `RequestRefused` if no given-up message has the id, or its broker cannot resume it.
        """
        given_up = await self.message_by_id(names.CHECK_MAX_TIME_TOPIC, message_id)
        owner = given_up.store_host.text
        for data in (await self.cluster_info()).broker_addr_table.values():
            if data.broker_name == given_up.broker_name or owner in data.broker_addrs.values():
                master = data.master_address()
                break
        else:
            master = None
        if master is None:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the group of {owner} has no master; try again later",
            )
        header = headers.ResumeCheckHalfMessage(
            topic=names.CHECK_MAX_TIME_TOPIC, msg_id=given_up.offset_message_id
        )
        await self._ask(master, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
        return given_up

    # -- name server ----------------------------------------------------------------------------------------

    async def kv_get(self, namespace: str, key: str) -> str | None:
        """A value of the name servers' own configuration; None if it is not there."""
        answer = await self.instance.ask_name_server(
            RequestCode.GET_KV_CONFIG,
            headers.GetKVConfig(namespace=namespace, key=key),
            accept=(ResponseCode.QUERY_NOT_FOUND,),
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return headers.GetKVConfigResponse.from_ext(answer.ext).value

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        header = headers.PutKVConfig(namespace=namespace, key=key, value=value)
        for address in self.instance.name_servers:
            await self._ask(address, RequestCode.PUT_KV_CONFIG, header)

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Delete a value at every name server."""
        header = headers.DeleteKVConfig(namespace=namespace, key=key)
        for address in self.instance.name_servers:
            await self._ask(address, RequestCode.DELETE_KV_CONFIG, header)

    # -- inside -------------------------------------------------------------------------------------------

    async def _ask(
        self, address: str, code: RequestCode, header: headers.Header | None = None, body: bytes = b""
    ) -> bytes:
        return (await self.instance.request(address, code, header, body, timeout=self._timeout)).body

    async def _targets(self, cluster: str | None, address: str | None) -> list[str]:
        if address is not None:
            return [address]
        found = list((await self.masters(cluster)).values())
        if not found:
            raise NoQueue(
                "the name servers know no master broker: start one, or wait until it has registered"
            )
        return found

    async def _masters_of(self, topic: str) -> list[str]:
        route = await self.instance.route(topic, fresh=True)
        found = [master for name in route.addresses if (master := route.master(name)) is not None]
        if not found:
            raise NoQueue(f"no broker of topic {topic!r} has a master now")
        return found

    async def _master(self, topic: str, broker_name: str) -> str:
        address = (await self.instance.route(topic, fresh=True)).master(broker_name)
        if address is None:
            raise NoQueue(f"broker {broker_name!r} of topic {topic!r} has no master now")
        return address

    async def _reset(self, topic: str, header: headers.ResetOffset) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}
        for address in await self._masters_of(topic):
            body = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            found |= readable(ResetOffsetBody.from_json, body).offset_table
        return dict(sorted(found.items()))


def _group_config(body: bytes) -> SubscriptionGroupConfig:
    try:
        return SubscriptionGroupConfig.from_json(_table(body))
    except FormatError as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _group_names(body: bytes) -> list[str]:
    return list(_table(_table(body).get("subscriptionGroupTable")))


def _table(value: object) -> dict[str, object]:
    if isinstance(value, bytes):
        try:
            value = fastjson.loads(value)
        except FormatError as error:
            raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
    if not isinstance(value, dict):
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"{str(value)[:80]!r} is no JSON object")
    return value
