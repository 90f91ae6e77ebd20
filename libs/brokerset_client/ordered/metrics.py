"""What the ordered producers and consumers of a process measure, for Prometheus.

async with OrderedClient("127.0.0.1:9876") as client:
    OrderedMetrics(client)  # in prometheus_client's own registry
    prometheus_client.start_http_server(8000)

Nothing is counted for it while messages flow: a scrape reads `OrderedClient.measurements`. Labels are
subjects, consumer groups and partitions, of which a subject has 1,024 at most. Keys, sessions and producers
are no labels, for there is no bound to them. docs/metrics.md lists all names. The command `consume` imports
this module, and nothing else in brokerset: applications without metrics do not load the library.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Final, Protocol

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from brokerset_client.ordered.client import ClientMeasurements
from brokerset_client.ordered.consuming.measurements import SubscriptionMeasurements
from brokerset_client.ordered.producing.measurements import ProducerMeasurements

SCRAPE_SECONDS: Final = 2.0
"""How long a scrape from another thread waits for the clients' loop; then it shows nothing of theirs."""

MEMBER_STATES: Final = ("consuming", "paused", "refused", "waiting")
PARTITION_STATES: Final = ("starting", "consuming", "stopping", "drained", "released", "fenced")

_PREFIX: Final = "brokerset_client_ordered_"
_OF_CONSUMER: Final = ("subject", "consumer_group")
_OF_PRODUCER: Final = ("subject",)

Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, float]]
Merge = Callable[[list[float]], float]


class Measured(Protocol):
    """The part of `OrderedClient` that is used."""

    def measurements(self) -> ClientMeasurements:
        """Snapshots of all that runs."""


class OrderedMetrics(Collector):
    """Shows what clients measure in a registry, until `close`. All its clients belong to the running loop.

    A registry takes one of them: give all clients of a process to it. It may be scraped from any thread.
    """

    def __init__(self, *clients: Measured, registry: CollectorRegistry | None = None) -> None:
        """`registry`: the application's own; without one prometheus_client's `REGISTRY`.

        Raises `ValueError` if the registry has such metrics already, `RuntimeError` without a running loop.
        """
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._registry = REGISTRY if registry is None else registry
        self._totals: dict[str, _Totals] = {}
        self._registry.register(self)

    def close(self) -> None:
        """Leave the registry."""
        self._registry.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """The families, so that the registry finds out that their names are taken."""
        return self.collect()

    def collect(self) -> list[Metric]:
        """All families with their samples; none if the loop does not answer, or has ended."""
        try:
            if asyncio.get_running_loop() is self._loop:
                return list(self._families())
        except RuntimeError:
            pass  # a thread without a loop
        answer: Future[list[Metric]] = Future()

        def take() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(list(self._families()))
                except Exception as error:  # the scrape fails with it, and not the application's loop
                    answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(take)
        except RuntimeError:
            return []  # the loop is closed
        try:
            return answer.result(SCRAPE_SECONDS)
        except TimeoutError:
            answer.cancel()
            return []

    def _families(self) -> Iterator[Metric]:
        measured = [client.measurements() for client in self._clients]
        yield from self._of_consumers([each for client in measured for each in client.subscriptions])
        yield from self._of_producers([each for client in measured for each in client.producers])

    def _of_consumers(self, members: list[SubscriptionMeasurements]) -> Iterator[Metric]:
        labelled: list[tuple[Labels, SubscriptionMeasurements]] = [
            ((member.subject, member.group), member) for member in members
        ]
        queues = [(labels, queue) for labels, member in labelled for queue in member.partitions]
        yield _gauge(
            "members",
            "Members of consumer groups in this process, by what they may do.",
            (*_OF_CONSUMER, "state"),
            (
                ((*labels, state), member_state(member) == state)
                for labels, member in labelled
                for state in MEMBER_STATES
            ),
        )
        yield _gauge(
            "partitions",
            "Queues that members in this process have, of partitions and for retry, by state.",
            (*_OF_CONSUMER, "state"),
            (
                ((*labels, state), sum(queue.state == state for queue in member.partitions))
                for labels, member in labelled
                for state in PARTITION_STATES
            ),
        )
        yield _gauge(
            "lag_messages",
            "Messages of a queue that are not acknowledged.",
            (*_OF_CONSUMER, "partition", "retry"),
            (
                ((*labels, str(queue.partition_id), str(queue.topic != labels[0]).lower()), queue.lag)
                for labels, queue in queues
                if queue.lag >= 0
            ),
            max,
        )
        for name, text, value, merged in _CONSUMER_GAUGES:
            yield _gauge(
                name, text, _OF_CONSUMER, ((labels, value(each)) for labels, each in labelled), merged
            )
        for name, text, count in _CONSUMER_COUNTERS:
            now = {(member.session, labels): getattr(member, count) for labels, member in labelled}
            yield self._counter(name, text, _OF_CONSUMER, now)

    def _of_producers(self, producers: list[ProducerMeasurements]) -> Iterator[Metric]:
        labelled: list[tuple[Labels, ProducerMeasurements]] = [
            ((producer.subject,), producer) for producer in producers
        ]
        for name, text, value, merged in _PRODUCER_GAUGES:
            samples = ((labels, getattr(producer, value)) for labels, producer in labelled)
            yield _gauge(name, text, _OF_PRODUCER, samples, merged)
        for name, text, count in _PRODUCER_COUNTERS:
            now = {(producer.producer_id, labels): getattr(producer, count) for labels, producer in labelled}
            yield self._counter(name, text, _OF_PRODUCER, now)

    def _counter(
        self, name: str, text: str, labels: Labels, now: Mapping[tuple[str, Labels], int]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
        for values, total in self._totals.setdefault(name, _Totals()).take(now).items():
            family.add_metric(values, total)
        return family


_CONSUMER_GAUGES: Final[tuple[tuple[str, str, Callable[[SubscriptionMeasurements], float], Merge], ...]] = (
    (
        "permission_seconds",
        "What is left of the permission to consume.",
        lambda member: member.permission_seconds,
        min,
    ),
    (
        "unhandled_messages",
        "Messages that were pulled, and are not handled.",
        lambda member: sum(queue.unhandled for queue in member.partitions),
        sum,
    ),
    (
        "running_handlers",
        "Handlers that run.",
        lambda member: sum(queue.running for queue in member.partitions),
        sum,
    ),
    (
        "blocked_lanes",
        "Logical partitions that wait for a message whose handler fails.",
        lambda member: sum(len(queue.blocked) for queue in member.partitions),
        sum,
    ),
    (
        "blocked_seconds",
        "Since the message that blocks a logical partition for longest failed first.",
        lambda member: max(
            (each.blocked_seconds for queue in member.partitions for each in queue.blocked), default=0.0
        ),
        max,
    ),
)
"""Name, meaning, value of a member, and how those of several members are joined."""

_CONSUMER_COUNTERS: Final = (
    ("handled_messages", "Messages that were handled.", "handled"),
    ("failed_attempts", "Attempts to handle a message that failed.", "failed"),
    ("sent_back_messages", "Messages that were put into the retry topic.", "sent_back"),
    ("dead_messages", "Messages that were put into the dead letters.", "dead"),
    ("skipped_messages", "Messages that were given up without a copy.", "skipped"),
    ("late_attempts", "Attempts to handle a message that ended without the permission.", "too_late"),
    ("expired_messages", "Messages that retention had taken before they were consumed.", "expired"),
    ("acks", "Acknowledgements that were confirmed; each is of a range of messages.", "acks"),
    ("fenced_queues", "Queues that a newer owner had taken before this one stopped.", "fenced"),
    ("resyncs", "Positions that were not the broker's: its log had lost its end, or was reset.", "resynced"),
)
"""Name, meaning, and field of `SubscriptionMeasurements`."""

_PRODUCER_GAUGES: Final[tuple[tuple[str, str, str, Merge], ...]] = (
    (
        "unconfirmed_messages",
        "Messages that were accepted, and are neither confirmed nor failed.",
        "unconfirmed",
        sum,
    ),
    ("parked_messages", "Of those, messages that have no partition to go to yet.", "parked", sum),
    ("unconfirmed_seconds", "Since the oldest unconfirmed message was accepted.", "oldest_seconds", max),
)
_PRODUCER_COUNTERS: Final = (
    ("confirmed_messages", "Messages that brokers have confirmed.", "confirmed"),
    ("failed_messages", "Messages that producers gave up; their senders have the error.", "failed"),
    ("retried_sends", "Requests to brokers that were sent again.", "retried"),
    ("unknown_outcomes", "Requests to brokers that ended without saying what became of them.", "unknown"),
)


def member_state(member: SubscriptionMeasurements) -> str:
    """What a member may do, one of `MEMBER_STATES`; `waiting`: it has no permission."""
    if member.refused:
        return "refused"
    if member.permission_seconds <= 0:
        return "waiting"
    return "paused" if member.paused else "consuming"


class _Totals:
    """Sums of counters by labels that never fall, although those who count come and go."""

    def __init__(self) -> None:
        self._ended: dict[Labels, int] = {}
        self._last: dict[tuple[str, Labels], int] = {}

    def take(self, now: Mapping[tuple[str, Labels], int]) -> dict[Labels, int]:
        """The sums, with what each one who counts has now; one whose count has fallen began again."""
        for (who, labels), count in self._last.items():
            if now.get((who, labels), 0) < count:
                self._ended[labels] = self._ended.get(labels, 0) + count
        self._last = dict(now)
        sums = dict(self._ended)
        for (_, labels), count in now.items():
            sums[labels] = sums.get(labels, 0) + count
        return sums


def _gauge(
    name: str,
    text: str,
    labels: Labels,
    samples: Samples,
    merged: Merge = sum,
) -> GaugeMetricFamily:
    """A family with one sample for each set of labels: `merged` joins those of several members."""
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    found: dict[Labels, list[float]] = {}
    for values, value in samples:
        found.setdefault(values, []).append(value)
    for values, several in found.items():
        family.add_metric(values, merged(several))
    return family


__all__ = ["MEMBER_STATES", "PARTITION_STATES", "OrderedMetrics", "member_state"]
