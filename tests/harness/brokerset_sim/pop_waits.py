"""What must hold of requests that take nothing: who waits for messages, and who only looks.

A notification is judged by the log: what a group has not popped, as far as the broker that answers lets it be
read. Of check points that are not confirmed yet the messages count as popped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from brokerset_formats.pop.names import revive_topic
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_sim.history import Violation
from brokerset_sim.log_records import LogRecord, log_record
from brokerset_sim.pop_oracle import PopOracle
from brokerset_sim.pop_unpopped import QueuePlace
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.ledger_node import LedgerNode, SimBroker
    from brokerset_sim.pop_checker import PopRules

NOTIFIED: Final = "nobody hears that there is nothing while there is something to pop"
IN_TIME: Final = "who waits for messages hears of them as soon as there are any"
NAMED: Final = "a notification says that there is something only when there is"
PEEKED: Final = "a peek shows what a pop would give"
WAITING: Final = "no more pops are said to wait than were sent"

LATE_SECONDS: Final = 0.3
"""A message is there for so long, and the only notification that waits is not answered: it is late."""

MOMENT_SECONDS: Final = 0.03
"""What arrives in the moment of an answer may come too late for it; brokers are looked at every 20 ms."""

SIZE_BYTES: Final = 4
AT_ONCE: Final[dict[int, tuple[int, ...]]] = {
    RequestCode.GET_MAX_OFFSET: (ResponseCode.SUCCESS,),
    RequestCode.POLLING_INFO: (ResponseCode.SUCCESS,),
    RequestCode.PEEK_MESSAGE: (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND),
}
"""Requests that are served as soon as there is a lease, and how they are answered then."""


@dataclass(frozen=True, slots=True, eq=False)
class PopAsked:
    """A request that left: when, and what the other rules want to know of it."""

    client: Process
    at: float
    inner: object


class WaitRules:
    """Requests of clients that have no answer yet, and what is answered to those that take nothing."""

    def __init__(self, checker: PopRules, pops: PopOracle) -> None:
        self._checker = checker
        self._pops = pops
        self._pops_sent: dict[PopAsked, tuple[str, int]] = {}
        """Group and queue of each pop that was sent and has no answer."""

        self._notifications: dict[PopAsked, str] = {}
        """The group of each notification that was sent and has no answer."""

        self._arrived: dict[str, float] = {}
        """When the newest notification of a client came to a broker."""

        self._readable: dict[tuple[SimBroker, QueuePlace], float] = {}
        """Since when a broker lets a message be read, as far as that was seen."""

        self._served: dict[str, list[float]] = {}
        """When each process has served somebody who asks with a lease and does not wait."""

        self._disturbed: dict[str, float] = {}
        """When a process was seen stopped, or its role changed, the last time."""

    # -- what leaves processes ----------------------------------------------------------------------------

    def sent(self, request: Command, asked: PopAsked) -> None:
        """A request leaves."""
        if request.code == RequestCode.POP_MESSAGE:
            self._pops_sent[asked] = request.ext["consumerGroup"], int(request.ext["queueId"])
        elif request.code == RequestCode.NOTIFICATION:
            self._notifications[asked] = request.ext["consumerGroup"]

    def forget(self, asked: PopAsked) -> None:
        """A request was answered, and the answer judged."""
        self._pops_sent.pop(asked, None)
        self._notifications.pop(asked, None)

    def examined(self, broker: SimBroker, now: float) -> None:
        """A broker that leads is looked at: notes what can be read there."""
        for place in self._pops.unpopped.places():
            if (broker, place) not in self._readable and _is_readable(broker, place):
                self._readable[broker, place] = now

    def disturbed(self, node: LedgerNode, now: float) -> None:
        """A process does not run, or has another role: it may be late for a while."""
        self._disturbed[node.name] = now

    def arrived(self, client: str, now: float) -> None:
        """A notification comes to a broker: its newest of a client, which asks one after the other."""
        self._arrived[client] = now

    def served(self, node: LedgerNode, request: Command, reply: Command) -> None:
        """A broker that leads has answered; who came before was not kept from its turn by a lapsed lease."""
        codes = AT_ONCE.get(request.code, ())
        if reply.code in codes:
            self._served.setdefault(node.name, []).append(self._pops.unpopped.now)

    def _had_its_turn(self, node: LedgerNode, since: float, until: float) -> bool:
        return any(since < each < until for each in self._served.get(node.name, ()))

    # -- notifications ------------------------------------------------------------------------------------

    def notified(
        self, node: LedgerNode, broker: SimBroker, request: Command, reply: Command, asked: PopAsked
    ) -> None:
        """A notification was answered by a broker that leads. Raises `Violation`."""
        group, has_messages = request.ext["consumerGroup"], reply.ext["hasMsg"] == "true"
        self._pops.counts[f"pop: notified {has_messages}"] += 1
        if not broker.pop_log.is_known:
            return  # positions are those that were committed
        there = self._there(broker, group, int(request.ext["queueId"]))
        if has_messages:
            if not there:
                raise Violation(NAMED, f"{node.name} says that {group} could pop, and there is nothing")
            self._in_time(node, broker, group, there, asked)
            return
        if reply.ext["pollingFull"] == "true" or not _serves(node, broker) or self._passed_on(node, asked):
            return
        lost = self._not_taken(broker, group, there)
        if lost:
            raise Violation(NOTIFIED, f"{node.name} says that {group} has nothing, and there is {lost[:3]}")

    def _passed_on(self, node: LedgerNode, asked: PopAsked) -> bool:
        """Whether the answer may be that of the master before, which a slave asked that leads by now."""
        return self._disturbed.get(node.name, -1.0) >= asked.at

    def _in_time(
        self,
        node: LedgerNode,
        broker: SimBroker,
        group: str,
        there: dict[QueuePlace, float],
        asked: PopAsked,
    ) -> None:
        """A message wakes one of those that wait, so only who waits alone must have heard of it."""
        late = self._pops.unpopped.now - LATE_SECONDS
        since = self._arrived.get(asked.client.name, late)
        if asked.client.node is not None or since >= late or self._disturbed.get(node.name, -1.0) > since:
            return
        if [each for each in self._notifications.values() if each == group] != [group]:
            return
        if not self._had_its_turn(node, since, late):
            return
        self._pops.counts["pop: waited alone"] += 1
        missed = self._not_taken(broker, group, {at: since for at, since in there.items() if since < late})
        if missed:
            raise Violation(IN_TIME, f"{node.name} tells {group} only now of {missed[:3]}")

    def _there(self, broker: SimBroker, group: str, queue_id: int) -> dict[QueuePlace, float]:
        """What the group has not popped, of what the broker lets be read, and since when it does."""
        return {
            place: self._readable.get((broker, place), self._pops.unpopped.now)
            for place in self._pops.unpopped.of(group, queue_id)
            if _is_readable(broker, place)
        }

    def _not_taken(
        self, broker: SimBroker, group: str, there: dict[QueuePlace, float]
    ) -> list[tuple[QueuePlace, float]]:
        there = {at: since for at, since in there.items() if since < self._pops.unpopped.now - MOMENT_SECONDS}
        if not there:
            return []
        taken = dict.fromkeys(self._taken(broker, group))
        return [(place, since) for place, since in there.items() if place not in taken]

    def _taken(self, broker: SimBroker, group: str) -> Iterator[QueuePlace]:
        """What check points name that are not confirmed yet."""
        topic = revive_topic(broker.settings.broker_cluster_name)
        for record in self._checker.unconfirmed(broker):
            if record.topic == topic and record.properties["TAGS"] == "ck":
                body = orjson.loads(record.body)
                if body["c"] == group:
                    for each in body["d"]:
                        yield QueuePlace(body["t"], body["q"], body["so"] + each)

    # -- who only looks -----------------------------------------------------------------------------------

    def peeked(self, node: LedgerNode, broker: SimBroker, request: Command, reply: Command) -> None:
        """Messages were shown by a broker that leads. Raises `Violation`."""
        group = request.ext["consumerGroup"]
        if not broker.pop_log.is_known:
            return  # positions are those that were committed
        taken = dict.fromkeys(self._taken(broker, group))
        for record in records_of(reply.body):
            place = QueuePlace(record.topic, record.queue_id, record.queue_offset)
            if not self._pops.unpopped.is_there(group, place) or place in taken:
                raise Violation(PEEKED, f"{node.name} shows {place} to {group}, which has popped it")
            self._pops.counts["pop: peeked"] += 1

    def counted(self, node: LedgerNode, request: Command, reply: Command) -> None:
        """A broker says how many pops wait. Raises `Violation`."""
        wanted = request.ext["consumerGroup"], int(request.ext["queueId"])
        said, sent = int(reply.ext["pollingNum"]), sum(each == wanted for each in self._pops_sent.values())
        if not 0 <= said <= sent:
            raise Violation(WAITING, f"{node.name} says that {said} pops of {wanted} wait, sent were {sent}")
        self._pops.counts["pop: said to wait"] += said

    # -- pops ---------------------------------------------------------------------------------------------

    def timed_out(self, node: LedgerNode, broker: SimBroker, request: Command, asked: PopAsked) -> None:
        """A pop was answered with nothing by a broker that leads. Raises `Violation`."""
        if not _serves(node, broker) or self._passed_on(node, asked):
            return
        group = request.ext["consumerGroup"]
        lost = self._not_taken(broker, group, self._there(broker, group, int(request.ext["queueId"])))
        if lost:
            raise Violation(
                NOTIFIED, f"{node.name} has nothing for a pop of {group}, and there is {lost[:3]}"
            )


def _is_readable(broker: SimBroker, place: QueuePlace) -> bool:
    return place.queue_offset < broker.store.queue_max(place.topic, place.queue_id)


def _serves(node: LedgerNode, broker: SimBroker) -> bool:
    """Whether a broker gives out messages: one that ends, or whose disk has failed, lets nobody wait."""
    return broker.services.running and not node.files.has_failed


def records_of(data: bytes | memoryview) -> Iterator[LogRecord]:
    """Records one after the other, as an answer has them."""
    data, position = bytes(data), 0
    while position < len(data):
        size = int.from_bytes(data[position : position + SIZE_BYTES])
        record = log_record(data[position : position + size], 0)
        if record is not None:
            yield record
        position += size


def judged(request: Command, reply: Command) -> bool:
    """Whether the rules here say something of this answer."""
    if request.code == RequestCode.POP_MESSAGE:
        return reply.code == ResponseCode.POLLING_TIMEOUT
    return reply.code == ResponseCode.SUCCESS and request.code in (
        RequestCode.NOTIFICATION,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POLLING_INFO,
    )
