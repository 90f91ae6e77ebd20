"""Prometheus metrics of transactions, under the names of RocketMQ 5, and what it lacks under ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from brokerset_broker.outside.replication_metrics import Families
from brokerset_broker.services.transaction_checks import TransactionChecks


def transaction_families(transactions: TransactionChecks, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Everything that there is to show of a broker's transactions."""
    keys = [*labels, "topic"]
    counts = transactions.counts
    halves = GaugeMetricFamily(
        "rocketmq_half_messages", "Half messages that wait for their end.", labels=keys
    )
    commits = CounterMetricFamily(
        "rocketmq_commit_messages", "Transactions that were committed.", labels=keys
    )
    rollbacks = CounterMetricFamily(
        "rocketmq_rollback_messages", "Transactions that were rolled back.", labels=keys
    )
    latency = HistogramMetricFamily(
        "rocketmq_finish_message_latency", "Seconds from a message to its commit.", labels=keys
    )
    for topic, each in list(counts.topics.items()):
        values = [*labels.values(), topic]
        halves.add_metric(values, each.open)
        commits.add_metric(values, each.committed)
        rollbacks.add_metric(values, each.rolled_back)
        latency.add_metric(values, counts.latency_buckets(topic), sum_value=each.latency_sum)
    yield from (halves, commits, rollbacks, latency)
    make = Families(labels)
    yield make.counter(
        "transaction_checks", "Questions to producers about transactions.", transactions.checks
    )
    yield make.counter(
        "transactions_given_up",
        "Half messages that are not checked any more, and stay undelivered.",
        transactions.given_up,
    )
