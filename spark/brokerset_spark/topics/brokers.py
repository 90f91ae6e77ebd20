"""Questions of the planner to brokers: queues and what they have, offsets by time, marks, progress.

Each function asks for many queues at once; what could not be learned is left out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from brokerset_client import calls
from brokerset_client.admin import Admin
from brokerset_client.errors import ClientError, RequestRefused, TopicNotFound
from brokerset_client.instance import ClientInstance, readable
from brokerset_client.positions import BrokerPositions
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from brokerset_protocol import headers
from brokerset_protocol.bodies.routes import MASTER_ID
from brokerset_protocol.bodies.stats import TopicStats
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics.following import Ends, Seen
from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.options import NAME, SourceOptions
from brokerset_spark.topics.pulls import mark_at, master_of, queue_of

_LOG: Final = logging.getLogger("brokerset_spark")
STATS_SECONDS: Final = 10.0
"""How long a broker is asked for its queues again before it counts as not there."""

AGAIN_SECONDS: Final = 0.1
CONFIRM_MS: Final = 2000
"""How long a broker may wait until it may give the last record of a batch: replicas confirm it meanwhile."""

COMMIT_SECONDS: Final = 10.0
AT_ONCE: Final = 64
"""Requests at one time of one kind."""


class Questions:
    """What a planner asks; remembers only what topics are like."""

    def __init__(self, instance: ClientInstance, options: SourceOptions) -> None:
        self._instance, self._options = instance, options
        self._admin = Admin(instance=instance)
        self._compacted: dict[str, bool] = {}
        self._unsure: dict[QueueKey, float] = {}
        """Since when brokers do not give the last record, by a monotonic clock."""
        self.denied: RequestRefused | None = None
        """What a broker last refused for want of rights; its queues are left out as if it did not answer."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def topics(self) -> list[str]:
        """The topics of the query now. Of a pattern, those of the system, retries and dead letters are left
        out."""
        options = self._options
        if options.assigned:
            return sorted({key.topic for key in options.assigned})
        if not options.topic_pattern:
            return sorted(options.topics)
        return [
            topic
            for topic in await self._admin.topics()
            if re.fullmatch(options.topic_pattern, topic)
            and not is_system_topic(topic)
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_"))
        ]

    async def observe(self, known: Collection[QueueKey] = ()) -> Seen:
        """The queues of the query, and what each has. `known`: queues that the query has read before."""
        parts = await asyncio.gather(*(self._topic(topic) for topic in await self.topics()))
        ends: dict[QueueKey, Ends] = {}
        silent: set[tuple[str, str]] = set()
        for found, unasked in parts:
            ends |= {key: each for key, each in found.items() if self._options.wants(key)}
            silent |= unasked
        missing = [key for key in known if key not in ends]
        absent = {key for key in missing if (key.topic, key.broker) in silent}
        if len(absent) < len(missing):
            alive = await self._living()
            for key in missing:
                if key in absent:
                    continue
                if key.broker not in alive:
                    _LOG.warning("%s: the broker is not registered; its queues are read when it is back", key)
                    absent.add(key)
                elif (left := await self._left_over(key, alive[key.broker])) is not None:
                    ends[key] = left
        for topic, broker in sorted(silent):
            _LOG.warning(
                "topic %s: broker %s does not answer; its queues are read when it does", topic, broker
            )
            absent |= {key for key in self._options.assigned if (key.topic, key.broker) == (topic, broker)}
        return Seen(ends, frozenset(absent), frozenset(silent))

    async def _topic(self, topic: str) -> tuple[dict[QueueKey, Ends], set[tuple[str, str]]]:
        try:
            route = await self._instance.route(topic, fresh=True)
        except TopicNotFound:
            return {}, set()
        if route.created_on_send:
            return {}, set()
        brokers = sorted({queue.broker_name for queue in route.subscribe_queues})
        found = await asyncio.gather(*(self._stats(topic, broker) for broker in brokers))
        ends: dict[QueueKey, Ends] = {}
        silent: set[tuple[str, str]] = set()
        for broker, stats in zip(brokers, found, strict=True):
            if stats is None:
                silent.add((topic, broker))
                continue
            readable_now = {q.queue_id for q in route.subscribe_queues if q.broker_name == broker}
            ends |= {key: each for key, each in stats.items() if key.queue in readable_now}
        return ends, silent

    async def _stats(self, topic: str, broker: str) -> dict[QueueKey, Ends] | None:
        """Of the master: a slave may be behind, and a queue that seems shorter would be taken for another."""
        header = headers.GetTopicStatsInfo(topic=topic)
        deadline = asyncio.get_running_loop().time() + STATS_SECONDS
        while True:
            try:
                route = await self._instance.route(topic)
                master = route.master(broker)
                if master is not None:
                    answer = await self._instance.request(master, RequestCode.GET_TOPIC_STATS_INFO, header)
                    table = readable(TopicStats.from_json, answer.body).offset_table
                    return {
                        QueueKey(topic, broker, queue.queue_id): Ends(
                            max(0, each.min_offset), max(0, each.max_offset)
                        )
                        for queue, each in table.items()
                    }
                reason = "no master"
            except TopicNotFound:
                return {}
            except ClientError as error:
                if isinstance(error, RequestRefused) and error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return {}
                reason = str(error)
                if self._is_denied(error):  # asking again changes nothing
                    deadline = 0.0
            if asyncio.get_running_loop().time() > deadline:
                _LOG.warning("topic %s: broker %s: %s", topic, broker, reason)
                return None
            await asyncio.sleep(AGAIN_SECONDS)
            self._instance.forget_route(topic)

    def _is_denied(self, error: ClientError) -> bool:
        if isinstance(error, RequestRefused) and error.code == ResponseCode.NO_PERMISSION:
            self.denied = error
            return True
        return False

    async def compacted(self, topics: Iterable[str]) -> frozenset[str]:
        """Those whose queues may have holes, as brokers keep only the last message of each key. OptionsError
        for one with batch queues: each of its records holds several messages."""
        for topic in set(topics) - set(self._compacted):
            try:
                route = await self._instance.route(topic)
                address = route.reader(min(route.addresses)) if route.addresses else None
                if address is not None:
                    config = await self._admin.topic_config(topic, address)
                    if config.attributes.get("queue.type", "").upper() == "BATCHCQ":
                        said = "it has batch queues (queue.type=BatchCQ), which cannot be read; leave it out"
                        raise OptionsError(NAME, [f"topic {topic}: {said}"])
                    policy = config.attributes.get("cleanup.policy", "")
                    self._compacted[topic] = policy.upper() == "COMPACTION"
            except ClientError as error:
                self._is_denied(error)
                _LOG.info("topic %s: its settings were not learned: %s", topic, error)
        return frozenset(topic for topic in topics if self._compacted.get(topic))

    async def _living(self) -> dict[str, str]:
        """broker name -> address of its master, where there is one."""
        info = await self._admin.cluster_info()
        return {
            name: data.broker_addrs[MASTER_ID]
            for name, data in info.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }

    async def _left_over(self, key: QueueKey, address: str) -> Ends | None:
        """What a queue has that is no readable one any more: nobody may pull it, but whether the query has
        read all of it can be seen. None if the topic is not there."""
        try:
            await self._admin.topic_config(key.topic, address)
            last = await calls.max_offset(self._instance, address, queue_of(key))
        except ClientError:
            return None
        # What cannot be read is not planned; what was read is no loss.
        return Ends(last, last)

    async def offsets_at(
        self, wanted: Mapping[QueueKey, int], ends: Mapping[QueueKey, Ends]
    ) -> dict[QueueKey, int]:
        """For each queue the first record that was stored at a time or later; its end if there is none."""

        async def one(key: QueueKey, time_ms: int) -> int:
            async with self._slots:
                address = await master_of(self._instance, key)
                has = ends[key]
                if has.first >= has.last:
                    return has.last
                found = await calls.offset_at(self._instance, address, queue_of(key), time_ms)
                found = min(max(found, has.first), has.last)
                # Java names the last record also if it was stored before that time.
                if found == has.last - 1:
                    mark, _ = await mark_at(self._instance, address, key, found, suspend_ms=CONFIRM_MS)
                    if mark is not None and mark.store_ms < time_ms:
                        return has.last
                return found

        found = await asyncio.gather(*(one(key, time_ms) for key, time_ms in wanted.items()))
        return dict(zip(wanted, found, strict=True))

    async def marks(
        self, places: Mapping[QueueKey, int], *, confirm: bool = False
    ) -> dict[QueueKey, Mark | None]:
        """The mark of the record before each offset, None where the master has no such record.

        Queues whose master does not answer are left out. `confirm`: wait a moment for records that are not
        confirmed yet.
        """

        async def one(key: QueueKey) -> Mark | None:
            async with self._slots:
                address = await master_of(self._instance, key)
                mark, _ = await mark_at(
                    self._instance, address, key, places[key] - 1, suspend_ms=CONFIRM_MS if confirm else 0
                )
                return mark

        keys = [key for key, place in places.items() if place > 0]
        answers = await asyncio.gather(*(one(key) for key in keys), return_exceptions=True)
        found: dict[QueueKey, Mark | None] = {}
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, ClientError):
                self._is_denied(answer)
                _LOG.warning("%s: no record before %d was learned: %s", key, places[key], answer)
                self._instance.forget_route(key.topic)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[key] = answer
        return found

    async def confirmed(
        self, ends: Mapping[QueueKey, int]
    ) -> tuple[dict[QueueKey, Mark | None], frozenset[QueueKey]]:
        """The marks of the last records before these ends, and the queues whose last record brokers do not
        give: it is not confirmed, and may disappear with its broker, or cannot be read."""
        marks = await self.marks(ends, confirm=True)
        holes = await self.compacted({key.topic for key in ends})
        unsure = {
            key for key, end in ends.items() if end > 0 and marks.get(key) is None and key.topic not in holes
        }
        now = time.monotonic()
        self._unsure = {key: self._unsure.get(key, now) for key in unsure}
        for key in sorted(unsure):
            _LOG.warning(
                "%s: its broker does not give record %d, the last one: it is not confirmed by replicas, or "
                "cannot be read; the queue waits, since %.0f s",
                key,
                ends[key] - 1,
                now - self._unsure[key],
            )
        return marks, frozenset(unsure)

    async def committed(self, group: str, keys: Iterable[QueueKey]) -> dict[QueueKey, int | None]:
        """Where a group is; None where it has not committed anything."""
        positions = BrokerPositions(self._instance, group)

        async def one(key: QueueKey) -> int | None:
            async with self._slots:
                return await positions.load(queue_of(key), strict=True)

        wanted = list(keys)
        found = await asyncio.gather(*(one(key) for key in wanted))
        return dict(zip(wanted, found, strict=True))

    async def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Store where a group is. The group is made where it is missing. Raises `ClientError`."""
        positions = BrokerPositions(self._instance, group)
        places = {queue_of(key): offset for key, offset in offsets.items()}
        try:
            await positions.save(places, surely=True, seconds=COMMIT_SECONDS)
        except RequestRefused as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            await self._admin.create_group(SubscriptionGroupConfig(group))
            await positions.save(places, surely=True, seconds=COMMIT_SECONDS)
