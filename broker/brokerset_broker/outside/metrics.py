"""Prometheus metrics under the names of RocketMQ 5 (BrokerMetricsConstant, DefaultStoreMetricsConstant).

Nothing is computed while messages flow: a scrape reads counters that the broker keeps anyway. The metrics
library is loaded with this module, so import it only when somebody scrapes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from brokerset_broker.member.dledger.ledger_member import LedgerMember
from brokerset_broker.member.group_member import GroupMember
from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.role import Role
from brokerset_broker.outside.lag_metrics import Lags
from brokerset_broker.outside.ledger_metrics import ledger_families
from brokerset_broker.outside.name_servers import Registrar
from brokerset_broker.outside.ordered_metrics import ordered_families
from brokerset_broker.outside.pop_metrics import pop_families
from brokerset_broker.outside.pop_overview import PopOverview
from brokerset_broker.outside.replication_metrics import replication_families
from brokerset_broker.outside.timer_metrics import timer_families
from brokerset_broker.outside.transaction_metrics import transaction_families
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.requests.pop.progress import PopProgress
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.traffic import TopicTraffic, Traffic
from brokerset_broker.services.timers.service import TimerService
from brokerset_broker.services.transaction_checks import TransactionChecks
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.retention_task import disk_use
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.producers import ProducerTable
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import native
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group
from brokerset_formats.records import store_timestamp_at
from brokerset_protocol.codes import LANGUAGE_NAMES
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

SIZE_BOUNDS: Final = (
    (10, "1024"),
    (12, "4096"),
    (19, "524288"),
    (20, "1048576"),
    (21, "2097152"),
    (22, "4194304"),
)
"""Java's buckets of message sizes: 1K, 4K, 512K, 1M, 2M, 4M, with their binary logarithms."""

PROTOCOL: Final = "remoting"

CONSUME_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
"""RocketMQ's labels of the ways in which a group consumes."""

PROCESS: Final = ProcessCollector(registry=None)
"""Memory, CPU time, files and start of this process, read from the system when somebody scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """The parts of a broker that metrics are read from."""

    settings: Callable[[], BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicManager
    groups: GroupManager
    offsets: OffsetManager
    consumers: ConsumerTable
    producers: ProducerTable
    admission: Admission
    parked_pulls: ParkedPulls
    stats: BrokerStats
    traffic: Traffic
    registrar: Registrar
    connections: ConnectionCounts
    ordered: OrderedTables
    ordered_counters: OrderedCounters
    transactions: TransactionChecks
    member: GroupMember | None
    """None without controllers."""

    ledger: LedgerMember | None
    """None where the broker is no member of a DLedger group."""

    timers: TimerService
    pops: PopOverview
    pop_progress: PopProgress


class ConnectionCounts(Protocol):
    """What the server of the remoting protocol has to count."""

    def waiting_sends(self) -> int:
        """Requests in flight that are neither parked pulls nor replies."""

    def waiting_replies(self) -> int:
        """Replies on their way to clients."""

    def connection_count(self) -> int:
        """Open remoting connections."""

    def requests_denied(self) -> Mapping[str, int]:
        """Requests that access control has refused since the start, by kind of check."""

    def former_password_requests(self) -> int:
        """Requests that were signed with former passwords, since the start."""

    def connections_turned_away(self) -> tuple[int, int]:
        """Connections refused above the limit, and closed for unreadable bytes, since the start."""


def registry(broker: MetricSources) -> CollectorRegistry:
    """A registry that shows one broker."""
    found = CollectorRegistry()
    found.register(BrokerCollector(broker))
    return found


class BrokerCollector(Collector):
    """Reads a broker's counters when it is scraped."""

    def __init__(self, broker: MetricSources) -> None:
        self._broker = broker
        settings = broker.settings()
        self._labels = {
            "cluster": settings.broker_cluster_name,
            "node_type": "broker",
            "node_id": settings.broker_name,
        }

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked when somebody scrapes."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Everything that there is to show."""
        yield from self._broker_state()
        yield from self._traffic_in()
        yield from self._traffic_out()
        if self._broker.settings().enable_transaction_metrics:
            yield from transaction_families(self._broker.transactions, self._labels)
        yield from self._connections()
        broker = self._broker
        lags = Lags(
            store=broker.store, topics=broker.topics, offsets=broker.offsets, clock=broker.clock,
            pops=broker.pop_progress,
        )  # fmt: skip
        yield from lags.families(self._labels)
        yield from self._store()
        yield from timer_families(self._broker.timers, self._labels)
        yield from pop_families(self._broker.pops, self._labels)
        yield from self._disk()
        yield from self._process()

    # -- pieces -------------------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, value: float, **labels: str) -> Metric:
        keys = [*self._labels, *labels]
        family = GaugeMetricFamily(f"rocketmq_{name}", text, labels=keys)
        family.add_metric([*self._labels.values(), *labels.values()], value)
        return family

    def _gauges(self, name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"rocketmq_{name}", text, labels=[*self._labels, *labels])

    def _own_gauges(self, name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"brokerset_broker_{name}", text, labels=[*self._labels, *labels])

    def _counters(self, name: str, text: str, labels: list[str]) -> CounterMetricFamily:
        return CounterMetricFamily(f"rocketmq_{name}", text, labels=[*self._labels, *labels])

    def _values(self, *labels: str) -> list[str]:
        return [*self._labels.values(), *labels]

    def _is_system(self, topic: str) -> str:
        return "true" if self._broker.topics.is_system(topic) else "false"

    def _broker_state(self) -> Iterator[Metric]:
        broker = self._broker
        yield self._gauge(
            "broker_permission", "Bits of the whole broker: 4 read, 2 write.", broker.admission.permission
        )
        yield self._gauge("topic_number", "Topics of the broker.", len(broker.topics))
        yield self._gauge("consumer_group_number", "Consumer groups of the broker.", len(broker.groups))
        watermark = self._gauges(
            "processor_watermark", "Requests that wait inside the broker.", ["processor"]
        )
        watermark.add_metric(self._values("send"), broker.connections.waiting_sends())
        watermark.add_metric(self._values("pull"), len(broker.parked_pulls))
        watermark.add_metric(self._values("reply"), broker.connections.waiting_replies())
        yield watermark
        yield from self._own_state()

    def _own_state(self) -> Iterator[Metric]:
        """What RocketMQ does not show; hence under our own prefix."""
        broker = self._broker
        connections = GaugeMetricFamily(
            "brokerset_broker_connections", "Open remoting connections.", labels=[*self._labels]
        )
        connections.add_metric(self._values(), broker.connections.connection_count())
        yield connections
        refused, unreadable = broker.connections.connections_turned_away()
        for name, text, value in (
            ("connections_refused", "Connections above the limit.", refused),
            ("protocol_errors", "Connections closed for unreadable bytes.", unreadable),
        ):
            counter = CounterMetricFamily(f"brokerset_broker_{name}", text, labels=[*self._labels])
            counter.add_metric(self._values(), value)
            yield counter
        denied = CounterMetricFamily(
            "brokerset_broker_requests_denied",
            "Requests that access control refused: no right signature, or no right.",
            labels=[*self._labels, "check"],
        )
        counts = broker.connections.requests_denied()
        for check in ("authentication", "authorization"):
            denied.add_metric(self._values(check), counts.get(check, 0))
        yield denied
        former = CounterMetricFamily(
            "brokerset_broker_former_password_requests",
            "Requests that were signed with the former password of their user, and let in.",
            labels=[*self._labels],
        )
        former.add_metric(self._values(), broker.connections.former_password_requests())
        yield former
        name_servers = GaugeMetricFamily(
            "brokerset_broker_registered",
            "Whether a name server knows this broker.",
            labels=[*self._labels, "name_server"],
        )
        core = self._own_gauges("native_core", "Whether the native core moves the bytes.", ["version"])
        core.add_metric(self._values(native.version), native.core is not None)
        yield core
        light = self._own_gauges("light_queues", "Light queues, those of lite topics among them.", [])
        light.add_metric(self._values(), len(broker.store.queues_table.light))
        yield light
        registered = set(broker.registrar.registered)
        for address in broker.registrar.addresses:
            name_servers.add_metric(self._values(address), address in registered)
        yield name_servers
        yield from ordered_families(broker.ordered, broker.ordered_counters, self._labels)
        yield from self._membership()
        if self._broker.member is not None:
            yield from replication_families(self._broker.member, self._labels)
        if self._broker.ledger is not None:
            yield from ledger_families(self._broker.ledger, self._labels)

    def _membership(self) -> Iterator[Metric]:
        """What controllers say of this broker; nothing without them."""
        if self._broker.member is None:
            return
        membership = self._broker.member.membership
        roles = self._own_gauges("role", "Whether the broker has this role.", ["role"])
        for role in Role:
            roles.add_metric(self._values(role.value), membership.role is role)
        yield roles
        for name, text, value in (
            ("master_epoch", "Master epoch that the broker knows.", membership.now.epoch),
            ("incarnation", "Starts of the broker that were committed.", membership.incarnation or 0),
            ("replica_id", "Id that the controllers gave, 0 before.", membership.broker_id or 0),
            ("member", "Whether the controllers know this process.", membership.registered),
        ):
            gauge = self._own_gauges(name, text, [])
            gauge.add_metric(self._values(), value)
            yield gauge
        ages = self._own_gauges(
            "controller_heartbeat_age_seconds",
            "Seconds since a controller answered a heartbeat.",
            ["controller"],
        )
        for address, age in membership.heartbeat_ages.items():
            ages.add_metric(self._values(address), age)
        yield ages
        problems = self._own_gauges(
            "membership_problem", "Whether this keeps the broker out of service.", ["problem"]
        )
        problem = membership.problem
        for kind in ProblemKind:
            problems.add_metric(self._values(kind.value), problem is not None and problem.kind is kind)
        yield problems

    def _traffic_in(self) -> Iterator[Metric]:
        labels = ["topic", "message_type", "is_system"]
        messages = self._counters("messages_in", "Messages that were sent.", labels)
        size = self._counters("throughput_in", "Bytes of the records that were sent.", labels)
        sizes = HistogramMetricFamily(
            "rocketmq_message_size", "Bytes of the records that were sent.", labels=[*self._labels, *labels]
        )
        for (topic, kind), traffic in list(self._broker.traffic.incoming.items()):
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or not any(traffic.sizes):
                continue
            values = self._values(topic, kind, self._is_system(topic))
            messages.add_metric(values, traffic.messages_in)
            size.add_metric(values, traffic.bytes_in)
            sizes.add_metric(values, buckets(traffic), sum_value=traffic.bytes_in)
        yield messages
        yield size
        yield sizes
        dead = self._counters(
            "send_to_dlq_messages",
            "Messages that a group gave up.",
            ["consumer_group", "topic", "is_system"],
        )
        for (group, topic), count in list(self._broker.traffic.dead_lettered.items()):
            dead.add_metric(self._values(group, topic, self._is_system(topic)), count)
        yield dead

    def _traffic_out(self) -> Iterator[Metric]:
        labels = ["topic", "consumer_group", "is_system"]
        messages = self._counters("messages_out", "Messages that were pulled.", labels)
        size = self._counters("throughput_out", "Bytes of the records that were pulled.", labels)
        for group, topic, flow in list(self._broker.stats.groups()):
            if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                continue
            values = self._values(topic, group, self._is_system(topic))
            messages.add_metric(values, flow.messages)
            size.add_metric(values, flow.size)
        yield messages
        yield size

    def _connections(self) -> Iterator[Metric]:
        producers: dict[tuple[str, str], int] = {}
        for _, clients in self._broker.producers.groups():
            for client in clients:
                key = (LANGUAGE_NAMES.get(client.language, "OTHER").lower(), str(client.version))
                producers[key] = producers.get(key, 0) + 1
        family = self._gauges(
            "producer_connections", "Connected producers.", ["language", "version", "protocol_type"]
        )
        for (language, version), count in producers.items():
            family.add_metric(self._values(language, version, PROTOCOL), count)
        yield family
        family = self._gauges(
            "consumer_connections",
            "Connected consumers.",
            ["consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"],
        )
        for group in self._broker.consumers.groups():
            members: dict[tuple[str, str], int] = {}
            for client in group.members.values():
                key = (LANGUAGE_NAMES.get(client.language, "OTHER").lower(), str(client.version))
                members[key] = members.get(key, 0) + 1
            mode = CONSUME_MODES.get(group.consume_type, "push")
            system = "true" if is_system_group(group.name) else "false"
            for (language, version), count in members.items():
                family.add_metric(self._values(group.name, language, version, mode, PROTOCOL, system), count)
        yield family

    def _store(self) -> Iterator[Metric]:
        store = self._broker.store
        medium = {"storage_type": "local", "storage_medium": "disk"}
        yield self._gauge(
            "storage_size", "Bytes of the commit log.", store.max_offset - store.min_offset, **medium
        )
        yield self._gauge(
            "storage_flush_behind_bytes",
            "Bytes of the log that are not on the disk.",
            store.max_offset - store.flushed_offset,
            **medium,
        )
        yield self._gauge(
            "storage_dispatch_behind_bytes", "Bytes of the log that are in no queue yet.", 0, **medium
        )
        oldest = self._oldest_store_time()
        yield self._gauge(
            "storage_message_reserve_time",
            "Milliseconds since the oldest message was stored.",
            self._broker.clock.now_ms() - oldest if oldest > 0 else 0,
            **medium,
        )

    def _disk(self) -> Iterator[Metric]:
        settings = self._broker.settings()
        folder = settings.store_path_commit_log or settings.store_path_root_dir / "commitlog"
        used = self._own_gauges("disk_used_bytes", "Bytes in use on the commit log's file system.", [])
        available = self._own_gauges(
            "disk_available_bytes", "Bytes that can still be written to the commit log's file system.", []
        )
        try:
            found = disk_use(folder)
        except OSError:
            found = None  # the retention task logs it
        if found is not None:
            used.add_metric(self._values(), found.used)
            available.add_metric(self._values(), found.available)
        yield used
        yield available

    def _process(self) -> Iterator[Metric]:
        for family in PROCESS.collect():
            family.samples = [sample._replace(labels=dict(self._labels)) for sample in family.samples]
            yield family

    def _oldest_store_time(self) -> int:
        """Store time of the first record of the log, 0 if there is none (or only the end mark of a file)."""
        record = self._broker.store.read(self._broker.store.min_offset)
        try:
            return store_timestamp_at(record, 0) if record is not None and len(record) > 64 else 0
        except struct.error:
            return 0


def buckets(traffic: TopicTraffic) -> list[tuple[str, float]]:
    """The cumulated classes of message sizes, with Java's bounds."""
    found: list[tuple[str, float]] = [
        (text, float(sum(traffic.sizes[: power + 1]))) for power, text in SIZE_BOUNDS
    ]
    found.append(("+Inf", float(sum(traffic.sizes))))
    return found
