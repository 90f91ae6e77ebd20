"""Prometheus metrics of ordered subjects; RocketMQ has none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from brokerset_broker.outside.replication_metrics import Families
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_protocol.subject_words import PartitionStatus

_STATES = (PartitionStatus.PREPARED, PartitionStatus.OPEN, PartitionStatus.SEALED)


def ordered_families(
    ordered: OrderedTables, counters: OrderedCounters, labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Everything that there is to show of a broker's ordered subjects."""
    make = Families(labels)
    states = [queue.state for subject in ordered.state.subjects.values() for queue in subject.queues.values()]
    yield make.gauge("ordered_subjects", "Ordered subjects of the broker group.", len(ordered.state.subjects))
    yield make.gauges(
        "ordered_queues",
        "Queues of ordered subjects in this state.",
        "state",
        {state.value: states.count(state) for state in _STATES},
    )
    yield make.gauge("ordered_sessions", "Queues that sessions pull from this master.", len(ordered.claims))
    queues = ordered.claims.shared.values()
    yield make.gauge(
        "ordered_shared_sessions",
        "Pull logs of sessions of Shared groups.",
        sum(len(queue.logs) for queue in queues),
    )
    yield make.gauge(
        "ordered_shared_pending",
        "Messages in pull logs of Shared groups that are not acknowledged.",
        sum(queue.pending for queue in queues),
    )
    yield make.counter(
        "ordered_shared_given_again",
        "Messages of Shared groups that one session has left, and another one was given.",
        counters.given_again,
    )
    yield make.counters(
        "ordered_losses", "Signs that confirmed messages of a subject are lost.", "sign", counters.losses
    )
    yield make.counter("ordered_claims", "Queues that sessions have claimed.", counters.claims)
    yield make.counter(
        "ordered_duplicates", "Messages that were sent again, and are stored once.", counters.duplicates
    )
    yield make.counters(
        "ordered_sends_refused",
        "Sends to ordered subjects that stored nothing.",
        "reason",
        counters.refused_sends,
    )
    yield make.counters(
        "ordered_requests_fenced", "Requests refused because another session owns the queue.", "request",
        counters.fenced,
    )  # fmt: skip
