"""Administration of topics.

Source: `AdminBrokerProcessor`. Codes 17, 18, 21, 202, 215, 300, 305, 316, 343, 345, 351.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import (
    ChangeLog,
    check_changeable,
    page_of,
    topic_key,
)
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.queries import StoreQueries
from brokerset_broker.tables.attributes import parse_changes
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.metadata.records import Change, TopicsDeleted, TopicsPut
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import QUEUES_MAX, TopicManager
from brokerset_formats import fastjson, names
from brokerset_formats.config import DataVersion, TopicConfig, TopicTable
from brokerset_formats.hosts import Host
from brokerset_formats.light_queues import is_light, lite_queue
from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import QuerySubscriptionResponse
from brokerset_protocol.bodies.metadata import TopicConfigList
from brokerset_protocol.bodies.queues import GroupList, MessageQueue, TopicList
from brokerset_protocol.bodies.stats import TopicOffset, TopicStats
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, Handler

log = structlog.get_logger(__name__)

PERM_MAX = 15
"""All permission bits of a topic: inherit, write, read, priority."""


CHILDREN_OF_CHANGE_MAX = 50
"""Lite topics that are deleted at once when their parent goes; files of more would be a pause of the loop."""


class TopicProcessor:
    """Creates, changes, deletes and describes topics."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        admission: Admission,
        store: StoreQueries,
        topics: TopicManager,
        offsets: OffsetManager,
        consumers: ConsumerTable,
        stats: BrokerStats,
        changes: ChangeLog,
        ordered: OrderedTables | None = None,
    ) -> None:
        """`changes` makes changes of the table safe before they are answered; topics of subjects in `ordered`
        are changed by the controllers alone."""
        self._ordered = OrderedTables() if ordered is None else ordered
        self._live = live
        self._changes = changes
        self._admission = admission
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._stats = stats
        self._mapping_version = DataVersion(0, 0, stats.started_ms)

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.config,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.consumed_topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    # -- changes ------------------------------------------------------------------------------------------

    def update(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """UPDATE_AND_CREATE_TOPIC (17)."""
        check_changeable(self._admission)
        header = headers.CreateTopic.from_ext(command.ext)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
        )
        changes = parse_changes(header.attributes)
        self._check(config, changes)
        return self._change(command, [(config, changes)])

    def update_list(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """UPDATE_AND_CREATE_TOPIC_LIST (18): all names and numbers are checked before the first change."""
        check_changeable(self._admission)
        wanted = TopicConfigList.from_json(command.body).topic_config_list
        for config in wanted:
            self._check(config, config.attributes)
        return self._change(command, [(config, config.attributes) for config in wanted])

    async def _change(
        self, command: Command, wanted: Sequence[tuple[TopicConfig, Mapping[str, str]]]
    ) -> Command:
        await self._changes.change(
            [topic_key(config.topic_name) for config, _ in wanted], partial(self._decide_update, wanted)
        )
        return command.reply()

    def _decide_update(self, wanted: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> Sequence[Change]:
        for config, _ in wanted:
            self._refuse_subject(config.topic_name)
        found = [self._topics.plan_update(config, changes) for config, changes in wanted]
        changed = tuple(config for config in found if config is not None)
        return [TopicsPut(changed)] if changed else []

    def _check(self, config: TopicConfig, changes: Mapping[str, str]) -> None:
        """Raise `Rejected` for what no topic may be."""
        problem = names.check_topic(config.topic_name)
        if problem is None and self._topics.is_system(config.topic_name):
            problem = _conflict(config.topic_name)
        mixed = changes.get("+message.type") == "MIXED"
        if problem is None and mixed and not self._live.current.enable_mixed_message_type:
            problem = "MIXED message type is not supported."
        for name, count in (
            ("readQueueNums", config.read_queue_nums),
            ("writeQueueNums", config.write_queue_nums),
        ):
            if problem is None and not 0 <= count <= QUEUES_MAX:
                problem = f"{name}={count}: must be from 0 to {QUEUES_MAX}"
        if problem is None and not 0 <= config.perm <= PERM_MAX:
            problem = f"perm={config.perm}: must be from 0 to {PERM_MAX}"
        if problem is None and config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            problem = f"topicFilterType={config.topic_filter_type[:64]}: must be SINGLE_TAG or MULTI_TAG"
        if problem is not None:
            raise _illegal(problem)

    def delete(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """DELETE_TOPIC_IN_BROKER (215): its queues, offsets and counters go with it."""
        check_changeable(self._admission)
        topic = headers.DeleteTopic.from_ext(command.ext).topic
        if not topic or topic.isspace():
            raise _illegal("The specified topic is blank.")
        if self._topics.is_system(topic):
            raise _illegal(_conflict(topic))
        self._refuse_subject(topic)
        return self._delete(command, topic)

    def _with_retries(self, topic: str) -> list[str]:
        """The topic, after those retry topics that belong to it and a group (POP)."""
        found = []
        for group in self._offsets.groups_of(topic):
            for retry in (names.retry_topic(f"{group}_{topic}"), names.retry_topic(f"{group}+{topic}")):
                if self._topics.get(retry) is not None:
                    found.append(retry)
        return [*found, topic]

    async def _delete(self, command: Command, topic: str) -> Command:
        children = [name for name in self._store.queues() if name.startswith(lite_queue(topic, ""))]
        for begin in range(0, len(children), CHILDREN_OF_CHANGE_MAX):
            part = tuple(children[begin : begin + CHILDREN_OF_CHANGE_MAX])
            gone = TopicsDeleted(part)
            await self._changes.change([topic_key(name) for name in part], partial(_always, gone))
        names = self._with_retries(topic)

        def decide() -> Sequence[Change]:
            self._refuse_subject(topic)
            return [TopicsDeleted(tuple(names))]

        await self._changes.change([topic_key(name) for name in names], decide)
        for name in names:
            self._stats.forget_topic(name)
        return command.reply()

    def _refuse_subject(self, topic: str) -> None:
        if self._ordered.is_subject(topic):
            raise _illegal(
                f"The topic[{topic}] is an ordered subject: its queues are partitions, which the controllers "
                "create, seal and delete. Use `brokerset subject scale` or `brokerset subject delete`."
            )

    def clean_unused(self, connection: Connection, command: Command) -> Command:
        """CLEAN_UNUSED_TOPIC (316): drop queues of topics that are not in the table."""
        check_changeable(self._admission)
        for topic in list(self._store.queues()):
            if self._topics.get(topic) is None and not (self._topics.is_system(topic) or is_light(topic)):
                log.info("queues of an unknown topic are deleted", topic=topic, by=connection.peer)
                self._store.delete_topic(topic)
        return command.reply()

    # -- queries ----------------------------------------------------------------------------------------

    def all_topics(self, connection: Connection, command: Command) -> Command:
        """GET_ALL_TOPIC_CONFIG (21): topics.json, whole or a page, with empty tables of static topics."""
        header = headers.GetAllTopicConfig.from_ext(command.ext)
        table = self._topics.table()
        page = page_of(
            list(table.topics),
            header.topic_seq,
            header.max_topic_num,
            table.data_version,
            header.data_version,
        )
        part = TopicTable(table.data_version, {topic: table.topics[topic] for topic in page})
        body = {
            **part.to_json(),
            "mappingDataVersion": self._mapping_version.to_json(),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        ext = {"totalTopicNum": str(len(table.topics))}
        ext.update(self._changes.answer_ext())
        return command.reply(ext=ext, body=fastjson.dumps(body))

    def config(self, connection: Connection, command: Command) -> Command:
        """GET_TOPIC_CONFIG (351)."""
        topic = headers.GetTopicConfig.from_ext(command.ext).topic
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return command.reply(body=fastjson.dumps(config.to_json()))

    def topic_stats(self, connection: Connection, command: Command) -> Command:
        """GET_TOPIC_STATS_INFO (202)."""
        topic = headers.GetTopicStatsInfo.from_ext(command.ext).topic
        config = self._topics.get(topic)
        if config is None:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        name = self._live.current.broker_name
        table = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            low, high = self._store.queue_min(topic, queue_id), self._store.queue_max(topic, queue_id)
            updated_ms = self._store.store_time_at(topic, queue_id, high - 1) if high > 0 else 0
            table[MessageQueue(topic, name, queue_id)] = TopicOffset(low, high, updated_ms)
        return command.reply(body=TopicStats(table, self._stats.topic_put_tps(topic)).to_json())

    def system_topics(self, connection: Connection, command: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        return command.reply(body=TopicList(tuple(self._topics.system_topics())).to_json())

    def consumed_by(self, connection: Connection, command: Command) -> Command:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that are connected, or were once."""
        topic = headers.QueryTopicConsumeByWho.from_ext(command.ext).topic
        groups = [*self._consumers.groups_of_topic(topic), *self._offsets.groups_of(topic)]
        return command.reply(body=GroupList(tuple(dict.fromkeys(groups))).to_json())

    def consumed_topics(self, connection: Connection, command: Command) -> Command:
        """QUERY_TOPICS_BY_CONSUMER (343)."""
        group = headers.QueryTopicsByConsumer.from_ext(command.ext).group
        settings = self._live.current
        address = Host.from_text(settings.broker_ip1, settings.listen_port).text
        return command.reply(body=TopicList(tuple(self._offsets.topics_of(group)), address).to_json())

    def subscription(self, connection: Connection, command: Command) -> Command:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""
        header = headers.QuerySubscriptionByConsumer.from_ext(command.ext)
        topic = header.topic or ""
        found = self._consumers.subscription(header.group, topic)
        body = QuerySubscriptionResponse(header.group, topic, found.data if found is not None else None)
        return command.reply(body=body.to_json())


def _always(change: Change) -> Sequence[Change]:
    return [change]


def _conflict(topic: str) -> str:
    return f"The topic[{topic}] is conflict with system topic."


def _illegal(remark: str) -> Rejected:
    return Rejected(ResponseCode.INVALID_PARAMETER, remark)
