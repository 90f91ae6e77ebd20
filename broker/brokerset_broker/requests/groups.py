"""Administration of consumer groups, and how far they are.

Source: `AdminBrokerProcessor`. Codes 200, 201, 207, 208, 225, 303, 317, 352, 353.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import (
    ChangeLog,
    check_changeable,
    group_key,
    page_of,
)
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.metadata.records import (
    Change,
    ForbiddenPut,
    GroupsDeleted,
    GroupsPut,
    OffsetsRemoved,
)
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import fastjson, names
from brokerset_formats.config import GroupTable, SubscriptionGroupConfig, TopicConfig
from brokerset_formats.hosts import Host
from brokerset_protocol import headers
from brokerset_protocol.bodies.metadata import (
    GroupForbidden,
    SubscriptionGroupList,
    subscription_group_config,
)
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpan,
    OffsetWrapper,
    QueueTimeSpan,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, Handler

Popped = Callable[[str, str, int, int | None], tuple[int | None, int]]
"""Of a topic, a group, a queue id and the consumer offset: what to show for that, and messages in flight."""


class GroupProcessor:
    """Creates, changes, deletes and describes consumer groups."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        admission: Admission,
        store: StoreQueries,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        consumers: ConsumerTable,
        locks: QueueLocks,
        stats: BrokerStats,
        changes: ChangeLog,
        wake_topic: Callable[[str], None] = lambda _: None,
        popped: Popped = lambda _topic, _group, _queue_id, offset: (offset, 0),
    ) -> None:
        """`changes` makes changes of the table safe before they are answered. `wake_topic` lets the parked
        pulls of a topic run again. `popped`: see `PopProgress.reported`."""
        self._wake_topic = wake_topic
        self._popped = popped
        self._live = live
        self._changes = changes
        self._clock = clock
        self._admission = admission
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._locks = locks
        self._stats = stats

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
        }

    # -- changes ------------------------------------------------------------------------------------------

    def update(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        check_changeable(self._admission)
        config = subscription_group_config(command.body)
        return self._change(command, [config])

    def update_list(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all names are checked before the first change."""
        check_changeable(self._admission)
        wanted = SubscriptionGroupList.from_json(command.body).group_config_list
        for config in wanted:
            problem = names.check_group(config.group_name)
            if problem is not None:
                raise _illegal(problem)
        return self._change(command, wanted)

    async def _change(self, command: Command, wanted: Sequence[SubscriptionGroupConfig]) -> Command:
        await self._changes.change(
            [group_key(config.group_name) for config in wanted], partial(self._decide_update, wanted)
        )
        for config in wanted:
            if not config.consume_enable:
                self._answer_parked(config.group_name)
        return command.reply()

    def _answer_parked(self, group: str) -> None:
        """Let no pull of a group wait that may not consume any more: it would be given the next message."""
        entry = self._consumers.group(group)
        topics = set(self._offsets.topics_of(group)) | set(() if entry is None else entry.subscriptions)
        for topic in sorted(topics):
            self._wake_topic(topic)

    def _decide_update(self, wanted: Sequence[SubscriptionGroupConfig]) -> Sequence[Change]:
        found = [self._plan_update(config) for config in wanted]
        changed = tuple(config for config in found if config is not None)
        return [GroupsPut(changed)] if changed else []

    def _plan_update(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig | None:
        """What a configuration makes whose attributes are changes: their keys begin with + or -."""
        current = self._groups.get(config.group_name)
        if config.subscription_data_set is None and current is not None:
            config = replace(config, subscription_data_set=current.subscription_data_set)
        return self._groups.plan_update(config, config.attributes)

    def delete(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """DELETE_SUBSCRIPTIONGROUP (207); its offsets stay unless the request says otherwise."""
        check_changeable(self._admission)
        header = headers.DeleteSubscriptionGroup.from_ext(command.ext)
        group = header.group_name
        if names.is_system_group(group):
            raise _illegal(f"The group[{group}] belongs to the system and cannot be deleted.")
        return self._delete(command, group, header.clean_offset)

    async def _delete(self, command: Command, group: str, clean_offset: bool) -> Command:
        changes: list[Change] = [GroupsDeleted((group,))]
        if clean_offset:
            changes.append(OffsetsRemoved((group,)))
        await self._changes.change([group_key(group)], lambda: changes)
        self._locks.forget_group(group)
        self._stats.forget_group(group)
        return command.reply()

    async def forbid(self, connection: Connection, command: Command) -> Command:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether the group may read the topic; can change it."""
        header = headers.UpdateGroupForbidden.from_ext(command.ext)
        if header.readable is not None:
            check_changeable(self._admission)
            if self._groups.get(header.group) is None or self._topics.get(header.topic) is None:
                raise _illegal(f"group[{header.group}] or topic[{header.topic}] not exist")
            await self._changes.change([group_key(header.group)], partial(self._decide_forbidden, header))
        readable = not self._groups.is_read_forbidden(header.group, header.topic)
        body = GroupForbidden(header.group, header.topic, readable).to_json()
        return command.reply(remark="", body=body)

    def _decide_forbidden(self, header: headers.UpdateGroupForbidden) -> Sequence[Change]:
        masks = self._groups.plan_forbidden(header.group, header.topic, not header.readable)
        before = self._groups.forbidden_of(header.group)
        return [] if masks == before else [ForbiddenPut({header.group: masks})]

    # -- queries ----------------------------------------------------------------------------------------

    def all_groups(self, connection: Connection, command: Command) -> Command:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): subscriptionGroup.json, whole or a page of it."""
        header = headers.GetAllSubscriptionGroup.from_ext(command.ext)
        table = self._groups.table()
        page = page_of(
            list(table.groups),
            header.group_seq,
            header.max_group_num,
            table.data_version,
            header.data_version,
        )
        part = GroupTable(
            table.data_version,
            {group: table.groups[group] for group in page},
            {group: table.forbidden[group] for group in page if group in table.forbidden},
        )
        ext = {"totalGroupNum": str(len(table.groups))}
        ext.update(self._changes.answer_ext())
        return command.reply(ext=ext, body=fastjson.dumps(part.to_json()))

    def config(self, connection: Connection, command: Command) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""
        config = self._groups.get_or_create(headers.GetSubscriptionGroupConfig.from_ext(command.ext).group)
        if config is None:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return command.reply(body=fastjson.dumps(config.to_json()))

    def consume_stats(self, connection: Connection, command: Command) -> Command:
        """GET_CONSUME_STATS (208)."""
        header = headers.GetConsumeStats.from_ext(command.ext)
        group = header.consumer_group
        listed = [topic for topic in (header.topic_list or "").split(";") if topic]
        topics = listed or ([header.topic] if header.topic else self._offsets.topics_of(group))
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        for config in self._consumed(group, topics):
            table.update(self._progress(group, config, config.read_queue_nums))
            tps += self._stats.group_get_tps(group, config.topic_name)
        return command.reply(body=ConsumeStats(table, tps).to_json())

    def all_consume_stats(self, connection: Connection, command: Command) -> Command:
        """GET_BROKER_CONSUME_STATS (317)."""
        ordered_only = headers.GetConsumeStatsInBroker.from_ext(command.ext).is_order
        groups: list[dict[str, tuple[ConsumeStats, ...]]] = []
        behind = in_flight = 0
        for group in self._groups:
            name = group.group_name
            found = []
            for config in self._consumed(name, self._offsets.topics_of(name)):
                if ordered_only and not config.order:
                    continue
                table = self._progress(name, config, config.write_queue_nums)
                behind += sum(entry.broker_offset - entry.consumer_offset for entry in table.values())
                in_flight += sum(entry.pull_offset - entry.consumer_offset for entry in table.values())
                found.append(ConsumeStats(table, self._stats.group_get_tps(name, config.topic_name)))
            groups.append({name: tuple(found)})
        settings = self._live.current
        address = Host.from_text(settings.broker_ip1, settings.listen_port).text
        body = ConsumeStatsList(address, tuple(groups), _as_long(behind), _as_long(in_flight))
        return command.reply(body=body.to_json())

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterable[TopicConfig]:
        """Those topics that exist and that the group, if it is online, still subscribes to."""
        online = self._consumers.subscription_count(group) > 0
        for topic in topics:
            config = self._topics.get(topic)
            if config is not None and not (online and self._consumers.subscription(group, topic) is None):
                yield config

    def _progress(self, group: str, config: TopicConfig, queues: int) -> dict[MessageQueue, OffsetWrapper]:
        """Administrators take `pull_offset` less `consumer_offset` for what is in flight."""
        topic, name = config.topic_name, self._live.current.broker_name
        table = {}
        for queue_id in range(queues):
            committed, in_flight = self._popped(
                topic, group, queue_id, self._offsets.query(group, topic, queue_id)
            )
            consumed = committed or 0
            pulled = max(consumed, self._offsets.query_pull(group, topic, queue_id) or 0)
            pulled = max(pulled, consumed + in_flight)
            last_ms = self._store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else 0
            table[MessageQueue(topic, name, queue_id)] = OffsetWrapper(
                self._store.queue_max(topic, queue_id), consumed, pulled, max(0, last_ms)
            )
        return table

    def time_span(self, connection: Connection, command: Command) -> Command:
        """QUERY_CONSUME_TIME_SPAN (303)."""
        header = headers.QueryConsumeTimeSpan.from_ext(command.ext)
        topic = header.topic
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        spans = [self._span(header.group, topic, queue) for queue in range(config.write_queue_nums)]
        return command.reply(body=ConsumeTimeSpan(tuple(spans)).to_json())

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        end = store.queue_max(topic, queue_id)
        first_ms = store.earliest_store_time(topic, queue_id)
        consumed = self._offsets.query(group, topic, queue_id) or 0
        consumed_ms = store.store_time_at(topic, queue_id, consumed - 1) if consumed > 0 else first_ms
        delay_ms = 0
        if consumed < end:
            delay_ms = self._clock.now_ms() - store.store_time_at(topic, queue_id, consumed)
        return QueueTimeSpan(
            MessageQueue(topic, self._live.current.broker_name, queue_id),
            first_ms,
            store.store_time_at(topic, queue_id, end - 1) if end > 0 else -1,
            consumed_ms,
            delay_ms,
        )


def _as_long(total: int) -> int:
    """A sum as Java's `long` can hold it: clients may commit offsets far beyond the end of a queue."""
    return max(-(2**63), min(total, 2**63 - 1))


def _illegal(remark: str) -> Rejected:
    return Rejected(ResponseCode.INVALID_PARAMETER, remark)
