"""Metrics of timer messages, under RocketMQ's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from brokerset_broker.services.timers.service import TimerService

STORAGE = {"storage_type": "local", "storage_medium": "disk"}
"""Labels that Java gives to everything of its store."""


def timer_families(timers: TimerService, common: Mapping[str, str]) -> Iterator[Metric]:
    """What waits, how far behind the broker is with it, and what came and went since the start."""
    names, values = [*common, *STORAGE], [*common.values(), *STORAGE.values()]
    counts = timers.counts
    for name, text, value in (
        ("enqueue_lag", "Timer messages that are not in the wheel yet.", timers.enqueue_lag()),
        (
            "enqueue_latency",
            "Milliseconds since the oldest of these was stored.",
            timers.enqueue_latency_ms(),
        ),
        ("dequeue_lag", "Messages that wait in the wheel.", counts.total),
        (
            "dequeue_latency",
            "Milliseconds since the slot began that is read or comes next.",
            timers.dequeue_latency_ms(),
        ),
    ):
        gauge = GaugeMetricFamily(f"rocketmq_timer_{name}", text, labels=names)
        gauge.add_metric(values, value)
        yield gauge
    waiting = GaugeMetricFamily(
        "rocketmq_timing_messages", "Messages that wait for their time.", labels=[*names, "topic"]
    )
    for topic, count in counts.waiting().items():
        waiting.add_metric([*values, topic], count)
    yield waiting
    for name, text, by_topic in (
        ("enqueue", "Timer messages that were taken into the wheel.", counts.enqueued),
        ("dequeue", "Timer messages that were delivered.", counts.dequeued),
    ):
        counter = CounterMetricFamily(f"rocketmq_timer_{name}", text, labels=[*names, "topic"])
        for topic, count in list(by_topic.items()):
            counter.add_metric([*values, topic], count)
        yield counter
    snapshot = GaugeMetricFamily(
        "rocketmq_timer_message_snapshot",
        "Messages that are due within so many seconds, and not within the bound before.",
        labels=[*names, "timer_bound_s"],
    )
    for bound, count in timers.snapshot().items():
        snapshot.add_metric([*values, str(bound)], count)
    yield snapshot
