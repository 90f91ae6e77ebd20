"""Route choice: which queues a route offers, and which one is next."""

from __future__ import annotations

import pytest

from brokerset_client.routes import Quarantine, QueueRing, queue_of_key, route_of, template_route
from brokerset_formats.hashing import java_hash
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.bodies.routes import BrokerData, QueueData, TopicRouteData

MASTER = {0: "h:1"}


def data(
    *queues: QueueData, brokers: dict[str, dict[int, str]] | None = None, order: str | None = None
) -> TopicRouteData:
    known = brokers if brokers is not None else {queue.broker_name: MASTER for queue in queues}
    return TopicRouteData(
        queues,
        tuple(BrokerData("c", name, replicas) for name, replicas in known.items()),
        order_topic_conf=order,
    )


def names(queues: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_queues_are_numbered_broker_by_broker_in_the_order_of_their_names() -> None:
    route = route_of("t", data(QueueData("b", 2, 1, 6), QueueData("a", 1, 2, 6)))

    assert names(route.publish_queues) == ["a0", "a1", "b0"]
    assert names(route.subscribe_queues) == ["a0", "b0", "b1"]


@pytest.mark.parametrize(
    ("perm", "publish", "subscribe"), [(6, 1, 1), (4, 0, 1), (2, 1, 0), (0, 0, 0), (7, 1, 1)]
)
def test_permissions_decide_what_a_queue_is_for(perm: int, publish: int, subscribe: int) -> None:
    route = route_of("t", data(QueueData("a", 1, 1, perm)))

    assert (len(route.publish_queues), len(route.subscribe_queues)) == (publish, subscribe)


@pytest.mark.parametrize("brokers", [{}, {"a": {1: "h:2"}}])
def test_a_broker_without_a_master_can_be_read_but_not_written(brokers: dict[str, dict[int, str]]) -> None:
    route = route_of("t", data(QueueData("a", 1, 1, 6), brokers=brokers))

    assert route.publish_queues == ()
    assert names(route.subscribe_queues) == ["a0"]
    assert route.master("a") is None


def test_a_reader_goes_where_it_is_told_or_to_whoever_is_left() -> None:
    both = route_of("t", data(QueueData("a", 1, 1, 6), brokers={"a": {0: "h:0", 2: "h:2"}}))
    slaves = route_of("t", data(QueueData("a", 1, 1, 6), brokers={"a": {3: "h:3", 2: "h:2"}}))

    assert [both.reader("a", broker_id) for broker_id in (0, 2, 9)] == ["h:0", "h:2", "h:0"]
    assert slaves.reader("a") == "h:2"
    assert both.reader("nobody") is None


def test_an_order_configuration_names_the_queues_to_send_to() -> None:
    route = route_of("t", data(QueueData("a", 8, 8, 6), order="b:1;a:2;;x:y"))

    assert names(route.publish_queues) == ["b0", "a0", "a1"]


def test_the_template_gives_at_most_four_queues() -> None:
    route = template_route("new", data(QueueData("a", 8, 8, 7), QueueData("b", 2, 8, 7)))

    assert names(route.publish_queues) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert route.created_on_send
    assert {queue.topic for queue in route.publish_queues} == {"new"}


def test_the_ring_takes_turns_and_goes_around_failed_brokers() -> None:
    queues = [MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]
    ring = QueueRing()

    turns = [ring.choose(queues) for _ in range(5)]
    around = [ring.choose(queues, {"a"}) for _ in range(4)]

    assert turns == [*queues, queues[0]]
    assert {queue.broker_name for queue in around if queue} == {"b"}
    assert ring.choose(queues, {"a", "b"}) is not None
    assert ring.choose([]) is None


def test_a_failed_broker_is_avoided_for_a_while() -> None:
    quarantine = Quarantine(seconds=1.0)
    quarantine.report("a", now=10.0)
    quarantine.report("b", now=10.5)

    assert quarantine.members(10.9) == {"a", "b"}
    assert quarantine.members(11.2) == {"b"}
    quarantine.absolve("b")
    assert quarantine.members(11.2) == frozenset()


@pytest.mark.parametrize("key", ["", "order-1", "näme", "polygenelubricants"])
def test_a_key_goes_to_the_queue_that_java_hashes_it_to(key: str) -> None:
    """The last key has the smallest 32-bit number as its hash, of which Java's abs would be negative."""
    queues = [MessageQueue("t", "a", number) for number in range(7)]

    assert queue_of_key(queues, key) is queues[abs(java_hash(key)) % 7]
