"""Reads what passes on the simulated network, and tells the oracle of the world `ordered`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from brokerset_client.messages import split_records
from brokerset_protocol.bodies.ordered import AssignmentBody, OwnedReport, SubjectQueues
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.ordered import PULL_EPOCH, PULL_GROUP_POSITION, PULL_SESSION
from brokerset_raft.messages import Message as RaftMessage
from brokerset_sim.history import Violation
from brokerset_sim.network import Network
from brokerset_sim.ordered_shared import Queue
from brokerset_sim.ordered_time import RatedProcess
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.ordered_world import OrderedWorld

HANDLERS: str = "no handler raises what it should not"

_POSITIONS = (
    RequestCode.BROKERSET_CLAIM_QUEUE,
    RequestCode.BROKERSET_ACKNOWLEDGE,
    RequestCode.BROKERSET_RELEASE_QUEUE,
)

_OF_SESSIONS = (*_POSITIONS, RequestCode.PULL_MESSAGE)
_NOTHING_FOUND = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)

_OWNED = {
    int(RequestCode.BROKERSET_CLAIM_QUEUE): "claim",
    int(RequestCode.BROKERSET_ACKNOWLEDGE): "ack",
    int(RequestCode.PULL_MESSAGE): "pull",
}


@dataclass(frozen=True, slots=True)
class Times:
    """Of one request, by the world's clock."""

    sent: float
    arrived: float = 0.0
    """When the server's process took it up."""


class StampingNetwork(Network):
    """Notes when requests are taken up; some come again much later, as if a proxy had kept them."""

    repeated = 0.0
    """Chance of a request to come again."""

    repeated_max = 3.0
    """Most seconds later."""

    def _arrive(self, link: Any, data: bytes, token: object) -> None:
        super()._arrive(link, data, token)
        if self._chance(self.repeated):
            self._loop.call_later(
                self._random.random() * self.repeated_max, super()._arrive, link, data, token
            )

    def _serve(self, link: Any, command: Command, token: object) -> None:
        assert isinstance(token, Times)
        assert isinstance(self._observer, Watch)
        self._observer.taken_up(link.endpoint.process, command)
        super()._serve(link, command, replace(token, arrived=self._loop.time()))


class Watch:
    """Implements `brokerset_sim.network.Observer`."""

    def __init__(self, world: OrderedWorld) -> None:
        self._world = world
        self.answers: Counter[str] = Counter()
        self._sessions: dict[Process, dict[tuple[str, str], None]] = {}
        """Group and session, by process."""

        self.queues: dict[int, tuple[str, int]] = {}
        """Broker group and queue id of each partition that was assigned."""

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        if request.code == RequestCode.BROKERSET_CONSUMER_HEARTBEAT:
            self._heartbeat_sent(client, request)
        if (key := self._shared_queue(address, request)) is not None and (what := _lets_go(request)):
            self._world.shared.lets_go(client, key, what)
        return Times(self._world.wire.time())

    def taken_up(self, server: Process, request: Command) -> None:
        """A process begins with a request."""
        key = self._shared_queue(server.node.address, request)
        if key is None:
            return
        session, master = _session(request), (server, server.node.broker.epoch)
        if _lets_go(request):
            self._world.shared.log_ends(master, key, session)
        elif request.code == RequestCode.BROKERSET_ACKNOWLEDGE:
            self._world.shared.ack_arrives(master, key, session, int(request.ext["last"]))

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        self.answers[f"answer: {int(request.code)} {reply.code}"] += 1
        if not server.alive:
            return
        if (key := self._shared_queue(server.node.address, request)) is not None:
            self._shared_reply_left(server, key, request, reply, token)
        if reply.code != ResponseCode.SUCCESS:
            return
        code, oracle = request.code, self._world.oracle
        if code in _OWNED and (PULL_EPOCH in request.ext or code != RequestCode.PULL_MESSAGE):
            assert isinstance(token, Times)
            where = (
                request.ext["consumerGroup"],
                server.node.group.name,
                request.ext["topic"],
                int(request.ext["queueId"]),
            )
            epoch = int(request.ext.get(PULL_EPOCH) or request.ext["epoch"])
            oracle.served(_OWNED[code], where, epoch, token.arrived)
        if code == RequestCode.BROKERSET_SUBJECT_QUEUES:
            queues = SubjectQueues.from_json(reply.body)
            for queue in queues.queues:
                if queue.end is not None and queues.subject == oracle.subject:
                    oracle.sealed(server.node.group.name, queue.queue_id, queue.end)
        elif code in _POSITIONS and request.ext.get("topic") == oracle.subject and key is None:
            oracle.position(
                request.ext["consumerGroup"],
                server.node.group.name,
                int(request.ext["queueId"]),
                int(reply.ext["position"]),
            )
        elif code == RequestCode.BROKERSET_SEND_BACK and request.ext.get("topic") == oracle.subject:
            oracle.sent_back(
                request.ext["consumerGroup"],
                server.node.group.name,
                int(request.ext["queueId"]),
                int(request.ext["queueOffset"]),
                dead=request.ext.get("dead") == "true",
            )
        elif code == RequestCode.BROKERSET_CONSUMER_HEARTBEAT:
            group, session = request.ext["consumerGroup"], request.ext["session"]
            if group in self._world.shared_groups:
                return
            for each in AssignmentBody.from_json(reply.body).partitions:
                oracle.granted(group, session, each.partition_id, each.epoch)
        elif code == RequestCode.BROKERSET_START_PRODUCER:
            oracle.producer_started(
                int(reply.ext["producerEpoch"]), f"{request.ext['producerId']} {request.opaque}"
            )

    def reply_arrived(
        self, client: Process, address: str, request: Command, reply: Command, token: object
    ) -> None:
        if request.code != RequestCode.BROKERSET_CONSUMER_HEARTBEAT or reply.code != ResponseCode.SUCCESS:
            return
        if request.ext.get("leaving") == "true" or not client.alive:
            return
        assert isinstance(token, Times)
        assert isinstance(client, RatedProcess)
        body = AssignmentBody.from_json(reply.body)
        for each in body.partitions:
            self.queues[each.partition_id] = (each.broker_group, each.queue_id)
        if request.ext["consumerGroup"] in self._world.shared_groups:
            return
        until = token.sent + int(reply.ext["permissionMs"]) / 1000 / client.host.rate
        self._world.oracle.assigned(
            request.ext["consumerGroup"],
            request.ext["session"],
            {each.partition_id: each.epoch for each in body.partitions},
            until,
        )

    def _shared_queue(self, address: str, request: Command) -> Queue | None:
        """What a request of a session of a Shared group is about, which is sent to an address."""
        group = request.ext.get("consumerGroup")
        if group not in self._world.shared_groups or request.code not in _OF_SESSIONS:
            return None
        (broker_group,) = (
            each.name for each in self._world.groups if any(node.address == address for node in each.nodes)
        )
        return group, broker_group, request.ext["topic"], int(request.ext["queueId"])

    def _shared_reply_left(
        self, server: Process, key: Queue, request: Command, reply: Command, token: object
    ) -> None:
        assert isinstance(token, Times)
        shared, session = self._world.shared, _session(request)
        master = (server, server.node.broker.epoch)
        pulled = request.code == RequestCode.PULL_MESSAGE
        if _lets_go(request):
            shared.log_has_ended(master, key, session)
        if reply.code == ResponseCode.SUCCESS or (pulled and reply.code in _NOTHING_FOUND):
            shared.heard(master, key, session, token.arrived)
        if reply.code != ResponseCode.SUCCESS:
            return
        if pulled:
            found = [view.queue_offset for view in split_records(bytes(reply.body))]
            self.note("given", *key, session[:6], request.ext["queueOffset"], *found)
            shared.gives(master, key, session, int(request.ext["queueOffset"]), found)
        elif request.code == RequestCode.BROKERSET_ACKNOWLEDGE:
            self.note("handled to", *key, session[:6], request.ext["last"])
            shared.acknowledged(key, session, int(request.ext["last"]))
        said = reply.ext.get(PULL_GROUP_POSITION)
        if said is not None and key[2] == self._world.oracle.subject:
            self._world.oracle.position(key[0], key[1], key[3], int(said))

    def handler_failed(self, server: Process, request: Command, error: Exception) -> None:
        violation = Violation(HANDLERS, f"{server} on {request.code}: {error!r}")
        violation.__cause__ = error
        if server.alive:
            self._world.fail(violation)

    def raft_left(self, process: Process, message: RaftMessage) -> None:
        """The agreement is a model."""

    def note(self, kind: str, *what: object) -> None:
        self._world.note(kind, *what)

    def _heartbeat_sent(self, client: Process, request: Command) -> None:
        group, session = request.ext["consumerGroup"], request.ext["session"]
        self._sessions.setdefault(client, {})[(group, session)] = None
        if not client.alive:
            return
        if request.body:
            for each in OwnedReport.from_json(request.body).released:
                self._world.oracle.released(group, session, each.partition_id, each.epoch)
        if request.ext.get("leaving") == "true":
            self._world.oracle.session_over(group, session)

    def consumer_gone(self, process: Process) -> None:
        """It was killed."""
        for group, session in self._sessions.get(process, ()):
            self._world.oracle.session_over(group, session)


def _session(request: Command) -> str:
    return request.ext.get(PULL_SESSION) or request.ext["session"]


def _lets_go(request: Command) -> str:
    """What ends a session's pull log; empty if nothing does."""
    if request.code == RequestCode.BROKERSET_RELEASE_QUEUE:
        return "release"
    claims = request.code == RequestCode.BROKERSET_CLAIM_QUEUE and request.ext.get("pulledTo", "-1") == "-1"
    return "claim of another pull log" if claims else ""
