"""The metrics of a name server, read when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from brokerset_namesrv.administration import CHECKS
from brokerset_namesrv.kv_config import KvTable
from brokerset_namesrv.processors import Counters
from brokerset_namesrv.routes import RouteTable
from brokerset_runtime.remoting import RemotingServer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class NamesrvCollector:
    """Turns tables and counters into metric families; registered like any other collector."""

    def __init__(self, table: RouteTable, kv: KvTable, counters: Counters, server: RemotingServer) -> None:
        self._table = table
        self._kv = kv
        self._counters = counters
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        table, counters = self._table, self._counters
        for name, text, value in (
            ("brokers", "Living brokers.", table.broker_count),
            ("broker_groups", "Broker names with at least one living broker.", table.group_count),
            ("topics", "Topics that at least one broker holds.", table.topic_count),
            ("kv_entries", "Entries of the key-value configuration.", self._kv.entry_count),
            ("connections", "Open connections.", len(self._server.connections)),
        ):
            yield GaugeMetricFamily(f"brokerset_namesrv_{name}", text, value=value)
        for name, text, value in (
            ("registrations", "Registrations of brokers that were taken.", counters.registrations),
            ("registrations_refused", "Registrations that were refused.", counters.registrations_refused),
            ("registrations_ignored", "Registrations of stale brokers.", counters.registrations_ignored),
            ("notices_dropped", "Notices of a new smallest broker id not sent.", counters.notices_dropped),
            ("connections_refused", "Connections above the limit.", self._server.refused),
            ("protocol_errors", "Connections closed for unreadable bytes.", self._server.protocol_errors),
        ):
            yield CounterMetricFamily(f"brokerset_namesrv_{name}", text, value=value)
        routes = CounterMetricFamily("brokerset_namesrv_routes", "Route requests.", labels=["result"])
        routes.add_metric(["found"], counters.routes_found)
        routes.add_metric(["unknown"], counters.routes_unknown)
        yield routes
        denied = CounterMetricFamily(
            "brokerset_namesrv_requests_denied",
            "Requests that access control refused: no right signature, or no right.",
            labels=["check"],
        )
        for check in CHECKS:
            denied.add_metric([check], counters.requests_denied.get(check, 0))
        yield denied
        left = CounterMetricFamily("brokerset_namesrv_brokers_left", "Brokers that left.", labels=["reason"])
        left.add_metric(["expired"], counters.brokers_expired)
        left.add_metric(["disconnected"], counters.brokers_disconnected)
        left.add_metric(["unregistered"], counters.brokers_unregistered)
        yield left


def registry(collector: NamesrvCollector) -> CollectorRegistry:
    """A registry of its own, so that several name servers fit into one process."""
    from prometheus_client import CollectorRegistry

    result = CollectorRegistry(auto_describe=False)
    result.register(collector)
    return result
