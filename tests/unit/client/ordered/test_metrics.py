"""What measurements of clients become in a registry."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from brokerset_client.ordered import metrics as ordered_metrics
from brokerset_client.ordered.client import ClientMeasurements
from brokerset_client.ordered.consuming.measurements import (
    BlockedKey,
    PartitionMeasurements,
    SubscriptionMeasurements,
)
from brokerset_client.ordered.metrics import OrderedMetrics, member_state
from brokerset_client.ordered.producing.measurements import ProducerMeasurements

BLOCKED = BlockedKey(
    logical_partition=7,
    key="order-17",
    queue_offset=5,
    attempts=3,
    blocked_seconds=12.5,
    waiting=2,
    reason="the ledger is closed",
)
PARTITION = PartitionMeasurements(
    partition_id=3,
    topic="orders",
    broker_group="broker-a",
    queue_id=1,
    epoch=17,
    state="consuming",
    position=5,
    pulled_to=12,
    lag=9,
    unhandled=4,
    running=2,
    blocked=(BLOCKED,),
)
RETRY = replace(PARTITION, topic="%RETRY%billing%orders", lag=-1, unhandled=0, running=0, blocked=())
MEMBER = SubscriptionMeasurements(
    subject="orders",
    group="billing",
    session="s1",
    order_strategy="Strict",
    consume_strategy="Exclusive",
    generation=1,
    version=4,
    permission_seconds=21.0,
    paused=False,
    problem=None,
    refused=False,
    handled=100,
    failed=3,
    sent_back=0,
    dead=0,
    skipped=0,
    too_late=0,
    acks=40,
    fenced=0,
    resynced=0,
    expired=0,
    partitions=(PARTITION, RETRY),
)
PRODUCER = ProducerMeasurements(
    subject="orders",
    producer_id="p-1",
    epoch=2,
    unconfirmed=6,
    parked=4,
    oldest_seconds=1.5,
    confirmed=50,
    failed=1,
    retried=7,
    unknown=5,
)
OF_GROUP = {"subject": "orders", "consumer_group": "billing"}
OF_SUBJECT = {"subject": "orders"}


class Client:
    """A client that measures what the test says."""

    def __init__(
        self,
        subscriptions: tuple[SubscriptionMeasurements, ...] = (),
        producers: tuple[ProducerMeasurements, ...] = (),
    ) -> None:
        self.now = ClientMeasurements(subscriptions, producers)
        self.threads: list[threading.Thread] = []

    def measurements(self) -> ClientMeasurements:
        self.threads.append(threading.current_thread())
        return self.now


def value(registry: CollectorRegistry, name: str, labels: dict[str, str]) -> float | None:
    return registry.get_sample_value(f"brokerset_client_ordered_{name}", labels)


async def test_what_a_member_measures_is_shown_by_subject_group_and_partition() -> None:
    """Lag of each queue, unless it is unknown; sums, and the time of the key that is blocked for longest."""
    registry = CollectorRegistry()
    OrderedMetrics(Client((MEMBER,)), registry=registry)

    assert value(registry, "lag_messages", {**OF_GROUP, "partition": "3", "retry": "false"}) == 9
    assert value(registry, "lag_messages", {**OF_GROUP, "partition": "3", "retry": "true"}) is None
    assert value(registry, "partitions", {**OF_GROUP, "state": "consuming"}) == 2
    assert value(registry, "members", {**OF_GROUP, "state": "consuming"}) == 1
    assert value(registry, "members", {**OF_GROUP, "state": "waiting"}) == 0
    assert value(registry, "permission_seconds", OF_GROUP) == 21
    assert value(registry, "blocked_lanes", OF_GROUP) == 1
    assert value(registry, "blocked_seconds", OF_GROUP) == 12.5
    assert value(registry, "handled_messages_total", OF_GROUP) == 100
    assert value(registry, "failed_attempts_total", OF_GROUP) == 3


async def test_what_producers_measure_is_shown_by_subject() -> None:
    """Two producers of a subject are one sample: sums, and the age of the oldest message."""
    registry = CollectorRegistry()
    other = replace(PRODUCER, producer_id="p-2", oldest_seconds=30.0, parked=1)
    OrderedMetrics(Client(producers=(PRODUCER,)), Client(producers=(other,)), registry=registry)

    assert value(registry, "unconfirmed_messages", OF_SUBJECT) == 12
    assert value(registry, "parked_messages", OF_SUBJECT) == 5
    assert value(registry, "unconfirmed_seconds", OF_SUBJECT) == 30
    assert value(registry, "retried_sends_total", OF_SUBJECT) == 14
    assert value(registry, "unknown_outcomes_total", OF_SUBJECT) == 10


async def test_two_members_of_a_group_in_one_process_are_one_sample_of_each_name() -> None:
    """Prometheus drops samples whose labels come twice: counts are added, the least permission counts."""
    registry = CollectorRegistry()
    other = replace(MEMBER, session="s2", permission_seconds=0.0, partitions=(replace(PARTITION, lag=4),))
    OrderedMetrics(Client((MEMBER, other)), registry=registry)

    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]

    assert len(set(names)) == len(names)
    assert value(registry, "permission_seconds", OF_GROUP) == 0
    assert value(registry, "lag_messages", {**OF_GROUP, "partition": "3", "retry": "false"}) == 9
    assert value(registry, "members", {**OF_GROUP, "state": "waiting"}) == 1
    assert value(registry, "handled_messages_total", OF_GROUP) == 200


async def test_counters_never_fall_when_members_and_producers_end() -> None:
    """What one has counted stays after its end; its successor, or one that began again, adds to it."""
    registry = CollectorRegistry()
    client = Client((MEMBER,), (PRODUCER,))
    OrderedMetrics(client, registry=registry)
    seen = []
    for now in (
        ClientMeasurements((MEMBER,), (PRODUCER,)),
        ClientMeasurements((), ()),
        ClientMeasurements((replace(MEMBER, session="s2", handled=5),), (replace(PRODUCER, confirmed=2),)),
        ClientMeasurements((replace(MEMBER, session="s2", handled=8),), (replace(PRODUCER, confirmed=4),)),
    ):
        client.now = now
        generate_latest(registry)
        seen.append(
            (
                value(registry, "handled_messages_total", OF_GROUP),
                value(registry, "confirmed_messages_total", OF_SUBJECT),
            )
        )

    assert seen == [(100, 50), (100, 50), (105, 52), (108, 54)]


@pytest.mark.parametrize(
    ("member", "state"),
    [
        (MEMBER, "consuming"),
        (replace(MEMBER, paused=True), "paused"),
        (replace(MEMBER, paused=True, permission_seconds=0.0), "waiting"),
        (replace(MEMBER, refused=True, permission_seconds=0.0), "refused"),
    ],
)
def test_a_member_has_the_state_that_says_why_it_does_nothing(
    member: SubscriptionMeasurements, state: str
) -> None:
    """A refusal is shown before a missing permission, and that before a pause."""
    assert member_state(member) == state


async def test_a_scrape_of_another_thread_reads_in_the_loop_of_the_clients() -> None:
    """What members do changes while another thread would read it."""
    registry = CollectorRegistry()
    client = Client((MEMBER,))
    OrderedMetrics(client, registry=registry)
    client.threads.clear()

    text = await asyncio.to_thread(generate_latest, registry)

    assert b'brokerset_client_ordered_running_handlers{consumer_group="billing",subject="orders"} 2.0' in text
    assert client.threads == [threading.current_thread()]


def test_a_loop_that_does_not_answer_or_has_ended_leaves_the_scrape_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application's other metrics are shown all the same."""
    monkeypatch.setattr(ordered_metrics, "SCRAPE_SECONDS", 0.05)
    loop = asyncio.new_event_loop()

    async def made() -> OrderedMetrics:
        return OrderedMetrics(Client((MEMBER,)), registry=CollectorRegistry())

    collector = loop.run_until_complete(made())
    stopped = collector.collect()
    loop.close()
    closed = collector.collect()

    assert stopped == closed == []


async def test_a_registry_takes_one_collector_until_it_is_closed() -> None:
    """A second one would show every name twice."""
    registry = CollectorRegistry(auto_describe=True)
    first = OrderedMetrics(Client((MEMBER,)), registry=registry)

    with pytest.raises(ValueError, match="Duplicated"):
        OrderedMetrics(Client((MEMBER,)), registry=registry)
    first.close()
    OrderedMetrics(Client(), registry=registry)

    assert value(registry, "members", {**OF_GROUP, "state": "consuming"}) is None
