"""Metrics of POP, under RocketMQ's names (`PopMetricsManager`), and what it lacks under ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from brokerset_broker.outside.pop_overview import PopOverview
from brokerset_broker.outside.replication_metrics import Families

OVERDUE_MAX: Final = 20_000
"""Check points that one scrape counts as overdue; a scrape must not stop the broker."""


def pop_families(pops: PopOverview, common: Mapping[str, str]) -> Iterator[Metric]:
    """Everything that there is to show of a broker's pops."""
    yield from _rocketmq_gauges(pops, common)
    yield from _rocketmq_counters(pops, common)
    make = Families(common)
    points = pops.points
    yield make.gauge("pop_known", "Whether the broker leads and knows all messages in flight.", pops.is_known)
    yield make.gauge("pop_in_flight", "Popped messages that are not acked.", points.in_flight)
    yield make.gauge(
        "pop_check_points_limit", "Open check points above which pops are refused.", pops.check_points_max
    )
    yield make.gauge(
        "pop_next_due_seconds", "Seconds until messages in flight become visible again.", pops.next_due()
    )
    yield make.gauge(
        "pop_early_acks",
        "Check points of a Java master that are not there yet, but acked.",
        points.early_count,
    )
    yield make.gauges("pop_waiting", "Requests that wait for messages.", "request", pops.waiting())
    yield make.gauge(
        "pop_ordered_locked", "Queues that groups have messages of, popped in order.", pops.locked_queues()
    )
    yield make.counter("pop_acked", "Messages that were acked.", pops.acked)
    yield make.counters(
        "pop_acks_refused",
        "Acks and changes of messages that were not the caller's.",
        "reason",
        pops.counts.refused_acks,
    )
    yield make.counter("pop_check_points_copied", "Open check points that were appended again.", pops.copied)


def _rocketmq_gauges(pops: PopOverview, common: Mapping[str, str]) -> Iterator[Metric]:
    for name, text, value in (
        ("offset_buffer_size", "Positions of groups that are not committed yet.", pops.uncommitted),
        ("checkpoint_buffer_size", "Open check points.", pops.points.count),
    ):
        gauge = GaugeMetricFamily(f"rocketmq_pop_{name}", text, labels=list(common))
        gauge.add_metric(list(common.values()), value)
        yield gauge
    names = [*common, "queue_id"]
    lag = GaugeMetricFamily(
        "rocketmq_pop_revive_lag", "Check points that are overdue; up to 20,000.", labels=names
    )
    latency = GaugeMetricFamily(
        "rocketmq_pop_revive_latency", "Milliseconds since the oldest of them was due.", labels=names
    )
    for queue_id, (count, late_ms) in pops.overdue(OVERDUE_MAX).items():
        lag.add_metric([*common.values(), str(queue_id)], count)
        latency.add_metric([*common.values(), str(queue_id)], late_ms)
    yield lag
    yield latency


def _rocketmq_counters(pops: PopOverview, common: Mapping[str, str]) -> Iterator[Metric]:
    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        keys = [*common, "consumer_group", "topic", *labels]
        return CounterMetricFamily(f"rocketmq_pop_revive_{name}", text, labels=keys)

    def fill(family: CounterMetricFamily, samples: Iterable[tuple[tuple[object, ...], int]]) -> Metric:
        for labels, value in samples:
            family.add_metric([*common.values(), *map(str, labels)], value)
        return family

    counts = pops.counts
    put = counter(
        "in_message", "Records that were put into the revive topic.", "revive_message_type", "put_status"
    )
    stored = (((*of, "PUT_OK"), count) for of, count in list(counts.stored.items()))
    yield fill(put, (*stored, *counts.not_stored.items()))
    out = counter(
        "out_message", "Check points whose time was over before all was acked.", "queue_id",
        "revive_message_type",
    )  # fmt: skip
    yield fill(out, (((*of, "CK"), count) for of, count in list(counts.expired.items())))
    yield fill(
        counter("retry_messages", "Messages that were put into retry topics.", "put_status"),
        list(counts.revived.items()),
    )
    scans = HistogramMetricFamily(
        "rocketmq_pop_buffer_scan_time_consume",
        "Milliseconds of a search for what is due, and of its revival.",
        labels=list(common),
    )
    scans.add_metric(list(common.values()), counts.steps.buckets(), sum_value=counts.steps.sum_ms)
    yield scans
