"""From what a name server says about a topic to the queues to send to and to read from.

Sources: `MQClientInstance.topicRouteData2TopicPublishInfo`, `…SubscribeInfo`, `TopicPublishInfo`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from brokerset_formats.config import Permission
from brokerset_formats.hashing import java_hash
from brokerset_formats.names import DEFAULT_TOPIC
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.bodies.routes import MASTER_ID, TopicRouteData
from brokerset_protocol.queue_allocation import readable_queues

AUTO_CREATE_TOPIC = DEFAULT_TOPIC
"""Template topic: its route serves for topics that do not exist yet and shall be created by the first
send."""

AUTO_CREATE_QUEUES = 4
"""Queues of a topic that is created by sending to it, unless the template has fewer."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the queues of one topic are."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    """Writable queues of brokers that have a master."""

    subscribe_queues: tuple[MessageQueue, ...]
    """Readable queues; their broker may have slaves only."""

    addresses: Mapping[str, Mapping[int, str]]
    """broker name -> broker id -> `host:port`."""

    created_on_send: bool = False
    """The topic does not exist: this is the template's route."""

    clusters: tuple[str, ...] = ()
    """The clusters that its brokers belong to."""

    def master(self, broker_name: str) -> str | None:
        """The address that takes writes, if the broker has one now."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """An address to read from: the wished one, else the master, else any replica (smallest id)."""
        replicas = self.addresses.get(broker_name)
        if not replicas:
            return None
        if broker_id in replicas:
            return replicas[broker_id]
        return replicas[min(replicas)]


def route_of(topic: str, data: TopicRouteData) -> Route:
    """The queues that `data` offers for `topic`, in the order in which Java clients number them."""
    addresses = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    if data.order_topic_conf:
        publish = _ordered_queues(topic, data.order_topic_conf)
    else:
        publish = [
            MessageQueue(topic, queue.broker_name, queue_id)
            for queue in sorted(data.queue_datas, key=lambda queue: queue.broker_name)
            if queue.perm & Permission.WRITE and MASTER_ID in addresses.get(queue.broker_name, {})
            for queue_id in range(queue.write_queue_nums)
        ]
    subscribe = readable_queues(topic, data.queue_datas)
    clusters = tuple(sorted({broker.cluster for broker in data.broker_datas if broker.cluster}))
    return Route(topic, tuple(publish), tuple(subscribe), addresses, clusters=clusters)


def template_route(topic: str, template: TopicRouteData) -> Route:
    """The route of a topic that its first message shall create, from the route of `AUTO_CREATE_TOPIC`."""
    limited = []
    for queue in template.queue_datas:
        count = min(AUTO_CREATE_QUEUES, queue.read_queue_nums)
        limited.append(replace(queue, read_queue_nums=count, write_queue_nums=count))
    made = route_of(topic, replace(template, queue_datas=tuple(limited)))
    return replace(made, created_on_send=True)


class QueueRing:
    """Takes the queues of a topic in turn, and goes around brokers that failed."""

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def choose(
        self, queues: Sequence[MessageQueue], avoid: Container[str] = frozenset()
    ) -> MessageQueue | None:
        """The next queue whose broker is not in `avoid`; if all are, the next one anyway; None without
        queues."""
        if not queues:
            return None
        for _ in range(len(queues)):
            queue = queues[self._next % len(queues)]
            self._next += 1
            if queue.broker_name not in avoid:
                return queue
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue


class Quarantine:
    """Brokers that just failed, each until some time: new sends prefer the others meanwhile."""

    __slots__ = ("_seconds", "_until")

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def report(self, broker_name: str, now: float) -> None:
        """`broker_name` failed at `now` (monotonic seconds)."""
        self._until[broker_name] = now + self._seconds

    def absolve(self, broker_name: str) -> None:
        """It answered."""
        self._until.pop(broker_name, None)

    def members(self, now: float) -> frozenset[str]:
        """Whom to avoid at `now`."""
        if not self._until:
            return frozenset()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return frozenset(self._until)


def queue_of_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of all messages with this key, as `SelectMessageQueueByHash` chooses.

    It changes when the number of queues changes: strict order across that needs an ordered subject.
    """
    # Java's % keeps the sign of the hash, of which the selector takes the absolute value: the same as this.
    return queues[abs(java_hash(key)) % len(queues)]


def _ordered_queues(topic: str, order_conf: str) -> list[MessageQueue]:
    """Queues from `broker-a:4;broker-b:4`; entries that cannot be read are left out."""
    queues = []
    for entry in order_conf.split(";"):
        broker_name, _, count = entry.rpartition(":")
        if broker_name and count.isdecimal():
            queues += [MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count))]
    return queues
