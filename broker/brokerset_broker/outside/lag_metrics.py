"""How far consumer groups are behind, under the names of RocketMQ 5 (`ConsumerLagCalculator`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from brokerset_broker.requests.pop.progress import PopProgress
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.names import is_retry_topic
from brokerset_formats.pop.names import normal_topic
from brokerset_runtime.clock import Clock

LAGS_MAX: Final = 20_000
"""Queues whose lag one scrape shows; a scrape must not stop the broker."""


class _Lag:
    """What a group has not consumed of a topic."""

    __slots__ = ("behind", "in_flight", "oldest_ms", "ready")

    def __init__(self) -> None:
        self.behind = self.in_flight = self.ready = self.oldest_ms = 0

    def add(self, in_flight: int, ready: int, behind: int, oldest_ms: int) -> None:
        self.behind += behind
        self.in_flight += in_flight
        self.ready += ready
        self.oldest_ms = max(self.oldest_ms, oldest_ms)


class Lags:
    """Reads store and offsets when somebody scrapes."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicManager,
        offsets: OffsetManager,
        clock: Clock,
        pops: PopProgress,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._pops = pops

    def families(self, common: Mapping[str, str]) -> Iterator[Metric]:
        """Lag, messages in flight, ready messages, and the age of the oldest one not consumed."""
        names = [*common, "consumer_group", "topic", "is_retry", "is_system"]

        def family(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"rocketmq_consumer_{name}", text, labels=names)

        lag = family("lag_messages", "Messages that a group has not consumed.")
        flight = family("inflight_messages", "Messages handed out and not yet acknowledged.")
        ready = family("ready_messages", "Messages that a group has not been given.")
        waiting = family("lag_latency", "Milliseconds since the oldest message not consumed was stored.")
        for (group, topic, is_retry), found in self._found().items():
            system = str(self._topics.is_system(topic)).lower()
            values = [*common.values(), group, topic, str(is_retry).lower(), system]
            lag.add_metric(values, found.behind)
            flight.add_metric(values, found.in_flight)
            ready.add_metric(values, found.ready)
            waiting.add_metric(values, found.oldest_ms)
        yield from (lag, flight, ready, waiting)

    def _found(self) -> dict[tuple[str, str, bool], _Lag]:
        """By group, topic, and whether they are messages that come again.

        What comes again to a group that pops is shown with the topic that it is from, as RocketMQ does.
        """
        found: dict[tuple[str, str, bool], _Lag] = {}
        all_queues = dict(self._store.queues())
        budget = LAGS_MAX
        unread: dict[str, set[str]] = {}
        for topic, group in self._pops.retry_topics():
            if topic in all_queues:
                unread.setdefault(topic, set()).add(group)
        for topic, queues in all_queues.items():
            groups = self._offsets.groups_of(topic)
            for group in {*groups, *unread.get(topic, ())}:
                budget -= len(queues)
                if budget < 0:
                    return found
                key = group, normal_topic(group, topic), is_retry_topic(topic)
                lag = found.get(key)
                if lag is None:
                    lag = found[key] = _Lag()
                begins = 0 if group in unread.get(topic, ()) else None
                self._add(lag, group, topic, queues, begins)
        return found

    def _add(self, lag: _Lag, group: str, topic: str, queues: Iterable[int], begins: int | None) -> None:
        """`begins`: where a group begins that has no offset; queues without one count for nothing if None."""
        store, offsets = self._store, self._offsets
        for queue_id in queues:
            first, end = store.queue_min(topic, queue_id), store.queue_max(topic, queue_id)
            committed = offsets.query(group, topic, queue_id)
            popped = self._pops.of(topic, group, queue_id, committed)
            if popped is not None:
                ready = max(0, end - max(popped.position, first)) + popped.ready_again
                in_flight, oldest = popped.in_flight, popped.oldest
            else:
                committed = begins if committed is None else committed
                if committed is None:
                    continue
                oldest = committed
                missing = max(0, end - max(committed, first))
                pulled = offsets.query_pull(group, topic, queue_id)
                in_flight = 0 if pulled is None else min(max(pulled - max(committed, first), 0), missing)
                ready = missing - in_flight
            behind = ready + in_flight
            if behind > 0:
                stored_ms = store.store_time_at(topic, queue_id, max(oldest, first))
                age = 0 if stored_ms is None or stored_ms <= 0 else self._clock.now_ms() - stored_ms
                lag.add(in_flight, ready, behind, max(0, age))
