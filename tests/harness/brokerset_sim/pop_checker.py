"""Popped messages on top of what must hold for brokers anyway, whatever kind of group they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from brokerset_formats.pop.handles import parse_handle
from brokerset_formats.pop.names import REVIVE_GROUP, real_topic, revive_topic
from brokerset_protocol.bodies.pop import BatchAckMessages
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig import wire
from brokerset_sim.deferred_checker import DeferredChecker
from brokerset_sim.deferred_group_checker import DeferredGroupChecker, records_between
from brokerset_sim.deferred_world import DeferredNode
from brokerset_sim.history import Violation
from brokerset_sim.ledger_checker import SERVICES
from brokerset_sim.ledger_clients import TOPIC
from brokerset_sim.ledger_node import WALL_BEGIN_MS
from brokerset_sim.log_records import LogRecord, log_record
from brokerset_sim.pop_oracle import CLOSED, PopOracle
from brokerset_sim.pop_order_oracle import PopOrderOracle
from brokerset_sim.pop_plan import CLOCK_SKEW_MS, GROUPS, ORDERED, POINTS_MANY, PopPlan
from brokerset_sim.pop_unpopped import QueuePlace
from brokerset_sim.pop_waits import PopAsked, WaitRules, judged
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_broker.member.role import RoleState
    from brokerset_sim.ledger_node import LedgerNode, SimBroker
    from brokerset_sim.pop_world import PopPart, PopWorld

UNSURE_SECONDS = 0.003
"""Clocks show whole milliseconds."""


class PopRules(DeferredChecker):
    """Gives to the oracles what is answered to poppers, and what becomes committed.

    Another checker stands behind it: it knows what the members of a group owe each other.
    """

    _world: PopPart

    def __init__(self, world: PopPart, plan: PopPlan) -> None:
        super().__init__(world, plan)
        self.pops = PopOracle(TOPIC, GROUPS)
        self.orders = PopOrderOracle()
        self.waits = WaitRules(self, self.pops)
        self._clock_set_at: dict[str, float] = {}
        self._ahead_ms: list[float] = []
        """By how much a clock was ahead of the world's, at the least and at the most."""

    # -- what leaves processes ----------------------------------------------------------------------------

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        """A request leaves."""
        if client.node is None:
            for group, place, pop_time in _acks(request):
                if group == ORDERED:
                    self.orders.ack_asked(place.queue_id, place.queue_offset)
                else:
                    self.pops.ack_asked(group, place, pop_time)
        if request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            until = self._end_of(self._world.loop.time(), int(request.ext["invisibleTime"]))
            place = _place(request)
            if request.ext["consumerGroup"] == ORDERED:
                self.orders.change_asked(place.queue_id, place.queue_offset, until)
            else:
                self.pops.change_asked(request.ext["consumerGroup"], place, until)
        if request.code == RequestCode.POP_MESSAGE and request.ext["consumerGroup"] == ORDERED:
            until = self._end_of(self._world.loop.time(), int(request.ext["invisibleTime"]))
            self.orders.attempt_asked(request.ext["attemptId"], until)
        inner = super().request_sent(client, address, request)
        asked = PopAsked(client, self._world.loop.time(), inner)
        self.waits.sent(request, asked)
        return asked

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""
        if not isinstance(token, PopAsked):
            super().reply_left(server, request, reply, token)
            return
        super().reply_left(server, request, reply, token.inner)
        if isinstance(server.node, DeferredNode) and server.alive and server.node.process is server:
            self._reply_left(server.node, request, reply, token)
        self.waits.forget(token)

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        super().note(kind, *what)
        if kind == "request" and what[2] == RequestCode.NOTIFICATION:
            self.waits.arrived(str(what[1]), self._world.loop.time())

    def _reply_left(self, node: LedgerNode, request: Command, reply: Command, token: PopAsked) -> None:
        if node.leads:
            self.waits.served(node, request, reply)
        if judged(request, reply) and node.leads:
            self._guard(lambda: self._waited(node, request, reply, token))
        if reply.code == ResponseCode.MESSAGE_ILLEGAL and request.code == RequestCode.ACK_MESSAGE:
            self._refused(request, token)
        if reply.code != ResponseCode.SUCCESS:
            return
        match request.code:
            case RequestCode.POP_MESSAGE:
                self._guard(lambda: self._popped(node, request, reply, token))
            case RequestCode.ACK_MESSAGE | RequestCode.BATCH_ACK_MESSAGE:
                self._guard(lambda: self._acked(node, request))
            case RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
                self._guard(lambda: self._changed(node, request, reply, token))
            case _:
                pass

    def _waited(self, node: LedgerNode, request: Command, reply: Command, token: PopAsked) -> None:
        """A broker that leads has answered who takes nothing, or has nothing for a pop."""
        self.read_all()
        broker = node.broker
        if broker is None:
            return
        ordered = request.ext["consumerGroup"] == ORDERED
        match request.code:
            case RequestCode.NOTIFICATION if ordered:
                self.pops.counts[f"order: notified {reply.ext['hasMsg']}"] += 1
            case RequestCode.NOTIFICATION:
                self.waits.notified(node, broker, request, reply, token)
            case RequestCode.PEEK_MESSAGE if not ordered:
                self.waits.peeked(node, broker, request, reply)
            case RequestCode.POLLING_INFO:
                self.waits.counted(node, request, reply)
            case RequestCode.POP_MESSAGE if not ordered and self._world.pop_plan.points_max == POINTS_MANY:
                self.waits.timed_out(node, broker, request, token)
            case _:
                pass

    def _popped(self, node: LedgerNode, request: Command, reply: Command, token: PopAsked) -> None:
        self.read_all()
        group, now = request.ext["consumerGroup"], self._world.loop.time()
        pop_time = int(reply.ext["popTime"])
        since = max(token.at, self._time_of(node, pop_time, token))
        given: dict[str, Any] = {
            "pop_time": pop_time,
            "now": now,
            "since": since,
            "until": self._end_of(since, int(request.ext["invisibleTime"])),
            "server": self._server(node),
            "early": max(0.0, self._ahead_ms[1] - self._ahead_ms[0] - CLOCK_SKEW_MS) / 1_000,
        }
        if group == ORDERED:
            queues: dict[int, list[int]] = {}
            for place, _ in _messages(group, reply):
                queues.setdefault(place.queue_id, []).append(place.queue_offset)
            for queue_id, offsets in queues.items():
                self.orders.given(
                    queue_id,
                    offsets,
                    attempt=request.ext["attemptId"],
                    invisible_ms=int(request.ext["invisibleTime"]),
                    **given,
                )
            return
        for place, body in _messages(group, reply):
            self.pops.given(group, place, body, **given)

    def _acked(self, node: LedgerNode, request: Command) -> None:
        self.read_all()
        now = self._world.loop.time()
        for group, place, pop_time in _acks(request):
            if group == ORDERED:
                self.orders.acknowledged(place.queue_id, place.queue_offset, pop_time, now)
            else:
                self.pops.acknowledged(group, place, pop_time, now, self._server(node))

    def _refused(self, request: Command, token: PopAsked) -> None:
        place = _place(request)
        if request.ext["consumerGroup"] == ORDERED and token.client.node is None:
            self.orders.ack_refused(place.queue_id, place.queue_offset)

    def _changed(self, node: LedgerNode, request: Command, reply: Command, token: PopAsked) -> None:
        self.read_all()
        if "popTime" not in reply.ext:
            return  # of an ordered pop, and acknowledged before
        until = self._end_of(token.at, int(request.ext["invisibleTime"]))
        group, pop_time = request.ext["consumerGroup"], int(reply.ext["popTime"])
        place = _place(request)
        if group == ORDERED:
            self.orders.changed(place.queue_id, place.queue_offset, pop_time, until)
        else:
            self.pops.changed(group, place, pop_time, until, self._server(node))

    def _server(self, node: LedgerNode) -> tuple[str, int]:
        assert node.process is not None
        return node.process.name, self._epoch(node)

    # -- clocks -------------------------------------------------------------------------------------------

    def _end_of(self, since: float, invisible_ms: int) -> float:
        """When an invisible time that runs since then ends at the earliest."""
        return since + invisible_ms / 1_000 / (1 + self._world.plan.drift) - UNSURE_SECONDS

    def _time_of(self, node: LedgerNode, wall_ms: int, token: PopAsked) -> float:
        """When a clock has shown this, of the time since a request left."""
        if self._clock_set_at.get(node.name, -1.0) >= token.at:
            return token.at
        passed_ms = wall_ms - WALL_BEGIN_MS - node.host.clock_error_ms
        return passed_ms / 1_000 / node.clock.rate - UNSURE_SECONDS

    def clock_set(self, node: LedgerNode) -> None:
        """The clock of a host was set a moment ago."""
        super().clock_set(node)
        self._clock_set_at[node.name] = self._world.loop.time()

    def latest_ms(self) -> int:
        """The latest time that any broker's clock has ever shown; notes how far clocks are apart."""
        now_ms = WALL_BEGIN_MS + self._world.loop.time() * 1_000
        ahead = [node.clock.now_ms() - now_ms for node in self._world.nodes]
        self._ahead_ms = [min([*self._ahead_ms[:1], *ahead]), max([*self._ahead_ms[1:], *ahead])]
        return super().latest_ms()

    # -- logs and roles -----------------------------------------------------------------------------------

    def unconfirmed(self, broker: SimBroker) -> Iterator[LogRecord]:
        """What a broker has at the end of its log and nobody knows as confirmed."""
        ledger = broker.store.ledger
        for index in range(max(ledger.committed_index + 1, ledger.begin_index, 0), ledger.end_index + 1):
            entry = ledger.entry(index)
            record = log_record(bytes(entry.body), entry.term)
            if record is not None:
                yield record

    def read_all(self) -> None:
        """Read what has become committed. Raises `Violation`."""
        self.pops.unpopped.now = self._world.loop.time()
        super().read_all()

    def _examine(self, node: LedgerNode, broker: SimBroker) -> None:
        self.pops.unpopped.now = self._world.loop.time()
        if node.process is not None and node.process.paused:
            self.waits.disturbed(node, self._world.loop.time())
        super()._examine(node, broker)
        if node.leads:
            self.waits.examined(broker, self._world.loop.time())

    def _role_taken(self, node: LedgerNode, role: RoleState) -> None:
        self.waits.disturbed(node, self._world.loop.time())
        super()._role_taken(node, role)

    def _became_committed(self, record: LogRecord) -> None:
        super()._became_committed(record)
        self.pops.record(record)
        if record.topic == TOPIC:
            self.orders.stored(record.queue_id, record.queue_offset)

    def _services_ended(self, node: LedgerNode, broker: SimBroker) -> None:
        super()._services_ended(node, broker)
        if broker.pop_log.is_known or broker.pop_log.points.count:
            raise Violation(SERVICES, f"{node.name} does not lead, and knows what is out")

    # -- the end ------------------------------------------------------------------------------------------

    def left_in(self, broker: SimBroker) -> list[str]:
        """What a master still has of pops, though all is acknowledged."""
        points, left = broker.pop_log.points, []
        if points.count or points.in_flight or points.next_due() is not None:
            left.append(f"{points.count} check points with {points.in_flight} messages")
        topic = revive_topic(broker.settings.broker_cluster_name)
        for queue_id in broker.store.queues().get(topic, ()):
            end = broker.store.queue_end(topic, queue_id)
            progress = broker.offsets.query(REVIVE_GROUP, topic, queue_id)
            if end and (progress is None or progress < end - 1):
                left.append(f"progress of revive queue {queue_id} is {progress} of {end}")
        return left

    def ordered_left(self) -> list[str]:
        """What the ordered group has to do still, as oracle and master say."""
        left = [f"{queue_id}/{number}" for queue_id, number in self.orders.missing()]
        leading = [node.broker for node in self._world.nodes if node.leads and node.broker is not None]
        for broker in leading:
            for queue_id in broker.store.queues().get(TOPIC, ()):
                end = broker.store.queue_end(TOPIC, queue_id)
                position = broker.offsets.query(ORDERED, TOPIC, queue_id) or 0
                if position != end:
                    left.append(f"{queue_id} at {position} of {end}")
        return left

    def pops_settled(self) -> None:
        """Nothing more will come. Raises `Violation`."""
        self.pops.settled()
        self.orders.settled()

    def compare(self) -> None:
        """All members run, and nothing is on its way. Raises `Violation`."""
        super().compare()
        self.pops_settled()
        for node in self._world.nodes:
            if node.leads and node.broker is not None and (left := self.left_in(node.broker)):
                raise Violation(CLOSED, f"{node.name} has {left}")


class PopChecker(PopRules, DeferredGroupChecker):
    """What must hold for a group in controller mode, and of its pops."""

    _world: PopWorld

    def unconfirmed(self, broker: SimBroker) -> Iterator[LogRecord]:
        """What a broker has at the end of its log and nobody knows as confirmed."""
        for _, data in records_between(broker, self.end_of(broker), broker.store.log.max_offset):
            record = log_record(data, 0)
            if record is not None:
                yield record


def _place(request: Command) -> QueuePlace:
    """The message that an ack or a change names."""
    ext = request.ext
    return QueuePlace(ext["topic"], int(ext["queueId"]), int(ext["offset"]))


def _acks(request: Command) -> Iterator[tuple[str, QueuePlace, int]]:
    """What a request acknowledges: group, message, and pop time of the handle."""
    if request.code == RequestCode.ACK_MESSAGE:
        pop_time = parse_handle(request.ext["extraInfo"]).pop_time
        yield request.ext["consumerGroup"], _place(request), pop_time
    elif request.code == RequestCode.BATCH_ACK_MESSAGE:
        for ack in BatchAckMessages.from_json(bytes(request.body)).acks:
            topic = real_topic(ack.consumer_group, ack.topic, ack.retry_flag)
            for offset in ack.offsets():
                yield ack.consumer_group, QueuePlace(topic, ack.queue_id, offset), ack.pop_time


def _messages(group: str, reply: Command) -> Iterator[tuple[QueuePlace, bytes]]:
    """What an answer gives: where each message lies, and its body."""
    for stored in wire.records(reply.body):
        handle = stored.properties.partition("POP_CK\x01")[2].partition("\x02")[0]
        flag = parse_handle(handle).retry_flag if handle else 0
        yield QueuePlace(real_topic(group, TOPIC, flag), stored.queue_id, stored.queue_offset), stored.body
