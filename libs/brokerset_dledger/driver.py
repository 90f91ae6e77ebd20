"""Runs one member: requests, answers and time go into the core, its effects to disk and network.

Everything happens in the event loop; only the disk is waited for in a thread. While a term is written, inputs
are taken, and what follows from them waits: nothing leaves that shows a vote which a crash would forget.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

import structlog

from brokerset_dledger.config import NodeConfig
from brokerset_dledger.following import NEVER
from brokerset_dledger.ledger import Ledger, LedgerRefused
from brokerset_dledger.node import Call, Node, Ready, Role
from brokerset_formats.dledger import CurrentTerm, LedgerEntry
from brokerset_protocol.bodies.dledger import (
    AppendRequest,
    AppendResponse,
    DLedgerBody,
    DLedgerCode,
    DLedgerRequestCode,
    GetRequest,
    GetResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    PushRequest,
    PushResponse,
    PushRunRequest,
    VoteRequest,
    VoteResponse,
)
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RunBlocking
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting.connection import (
    DEFERRED,
    Connection,
    ConnectionClosed,
    Handler,
    Reply,
    RequestTimeout,
)

log = structlog.get_logger(__name__)

CHECKPOINT_SECONDS: Final = 3.0
"""How often `checkpoint` is written (Java's `checkPointInterval`)."""

WAIT_ACK_SECONDS: Final = 2.5
"""How long whoever appends by APPEND (50001) waits for a quorum (Java's `maxWaitAckTimeMs`)."""

_BETWEEN_MEMBERS: Final[Mapping[type[DLedgerBody], tuple[DLedgerRequestCode, type[DLedgerBody]]]] = {
    VoteRequest: (DLedgerRequestCode.VOTE, VoteResponse),
    HeartbeatRequest: (DLedgerRequestCode.HEART_BEAT, HeartbeatResponse),
    PushRequest: (DLedgerRequestCode.PUSH, PushResponse),
    LeadershipTransferRequest: (DLedgerRequestCode.LEADERSHIP_TRANSFER, LeadershipTransferResponse),
}
"""Requests in JSON; PUSH_RUN has none."""

_Reply = Callable[[Command, DLedgerBody], Command]
"""How an answer of the core goes onto the wire."""


class Sync(Protocol):
    """Entries that are brought to the disk, as of one moment."""

    def run(self) -> None:
        """Wait for the disk, in a thread. An OSError is final."""

    def finish(self) -> None:
        """They are on the disk: raise `synced_index`, unless the log was truncated meanwhile."""


class DurableLedger(Ledger, Protocol):
    """A log on a disk."""

    def write_term(self, term: CurrentTerm) -> None:
        """Put term and vote on the disk. Blocks; raises OSError."""

    def write_checkpoint(self) -> None:
        """Note what is committed. Blocks; raises OSError."""

    def end_recovery(self) -> None:
        """Forget on the disk that this member is recovering. Blocks; raises OSError."""

    @property
    def needs_sync(self) -> bool:
        """Whether `begin_sync` gives something: entries, or a failure of the disk that it raises."""

    def begin_sync(self) -> Sync | None:
        """What is not on the disk yet, or what raises why it never comes there; None if there is nothing."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a member knows now."""

    role: Role
    term: int
    leader_id: str | None
    serves: bool
    begin_index: int
    end_index: int
    committed_index: int
    watermarks: Mapping[str, int]
    transferee: str | None
    """On a leader, the member that shall lead."""

    leader_address: str | None
    """Where clients find the leader, if that is known: only members of ours alone say so."""

    recovering: bool
    """Whether it may lack entries that it has acknowledged, so that its vote rarely counts."""


class Driver:
    """One member of a group. Its `handlers` belong to a remoting server; keep `run` running."""

    def __init__(
        self,
        config: NodeConfig,
        addresses: Mapping[str, str],
        ledger: DurableLedger,
        current_term: CurrentTerm,
        *,
        requester: Asker,
        clock: Clock,
        run_blocking: RunBlocking,
        random_source: random.Random,
        own_address: str | None = None,
        recovering: bool = False,
        sync_seconds: float = 0.0,
        on_commit: Callable[[], None] | None = None,
        on_change: Callable[[MemberStatus], None] | None = None,
    ) -> None:
        """`addresses` are those of all members, by id; `own_address` is where clients find this one.

        A member is `recovering` if the log notes it, until the driver calls `end_recovery`.

        Entries wait `sync_seconds` for the disk where they count before (`sync_before_ack` is False).
        `on_commit` hears that `committed_index` of the log has changed: risen, or fallen where a leader of
        Java has truncated what was committed. `on_change` hears of another role, term or leader, and when
        the member begins or ends to serve, or to hand the leadership over.
        """
        self._config = config
        self._addresses = addresses
        self._ledger = ledger
        self._requester = requester
        self._clock = clock
        self._run_blocking = run_blocking
        self._sync_seconds = 0.0 if config.sync_before_ack else sync_seconds
        self._on_commit = on_commit
        self._on_change = on_change
        self._node = Node(
            config,
            current_term=current_term,
            ledger=ledger,
            random_source=random_source,
            now=self._now(),
            own_address=own_address,
            recovering=recovering,
        )
        self._recovering = self._node.recovering
        """Whether the disk says so."""

        self._leader_connection: Connection | None = None
        """Over which the leader was heard last."""

        self._watched: set[Connection] = set()
        """Those whose end is waited for."""

        self._requests: dict[int, tuple[Connection, Command, _Reply]] = {}
        """What the core has not answered yet."""

        self._request_id = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        """Who waits for the commit of which index in which term; indexes grow."""

        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        """The deadline that `run` waits for, on the core's clock."""

        self._writes_term = False
        self._syncs = False
        self._sync_timer: asyncio.Handle | None = None
        self._appended: asyncio.Handle | None = None
        """The end of this turn of the loop, at which the core hears of what was appended in it."""

        self._checkpoint_index = ledger.committed_index
        self._committed_index = ledger.committed_index
        """What `on_commit` was last called for."""

        self._failure: Exception | None = None
        self._has_ended = False
        self._reported: tuple[object, ...] | None = None
        self._reported_serving = False

    @property
    def handlers(self) -> dict[int, Handler]:
        """What the member's port answers, by request code."""
        between: dict[int, Handler] = {
            code: partial(self._receive, _reader(kind), _reply)
            for kind, (code, _) in _BETWEEN_MEMBERS.items()
        }
        return between | {
            DLedgerRequestCode.PUSH_RUN: partial(self._receive, PushRunRequest.from_command, _reply_to_run),
            DLedgerRequestCode.METADATA: lambda _, command: _reply(command, self._metadata(command)),
            DLedgerRequestCode.GET: lambda _, command: _reply(command, self._get(command)),
            DLedgerRequestCode.APPEND: lambda _, command: self._append(command),
            DLedgerRequestCode.PULL: lambda _, command: _reply(
                command, DLedgerBody(group=self._config.group, code=DLedgerCode.UNSUPPORTED)
            ),
        }

    @property
    def status(self) -> MemberStatus:
        """What this member knows now."""
        node, ledger = self._node, self._ledger
        return MemberStatus(
            node.role,
            node.term,
            node.leader_id,
            self.may_serve(),
            ledger.begin_index,
            ledger.end_index,
            ledger.committed_index,
            node.watermarks(),
            node.transferee,
            node.leader_address,
            node.recovering,
        )

    @property
    def leads(self) -> bool:
        """Whether this member leads its term, whether it serves (yet) or not."""
        return self._node.role is Role.LEADER

    @property
    def term(self) -> int:
        """The newest term that this member has taken."""
        return self._node.term

    def may_serve(self) -> bool:
        """Whether this member leads now and nobody can have replaced it (but by members of Java)."""
        return not self._has_ended and self._node.may_serve(self._now())

    def serves_until(self) -> float:
        """Until when `may_serve` stays true if nothing more is heard, in seconds of the clock's `monotonic`.

        Endless for a group of one, and where the lease of members of Java is not known; 0 if it is not true.
        """
        until = self._node.serves_until()
        if self._has_ended or until <= self._now():
            return 0.0
        return math.inf if until >= NEVER else until / 1_000

    # Life.

    def begin_group(self) -> None:
        """It is said that nobody has acknowledged anything yet: without a term this member lacks nothing."""
        self._node.begin_group()

    async def run(self) -> None:
        """Take part until cancelled. Raises what the disk raised; the member must not go on after that."""
        self._start(self._write_checkpoints())
        try:
            while self._failure is None:
                self._wake.clear()
                self._node.tick(self._now())
                self._carry_out()
                self._set_timer()
                await self._wake.wait()
            raise self._failure
        finally:
            self._has_ended = True
            for task in self._tasks:
                task.cancel()
            for connection, _, _ in self._requests.values():
                connection.in_flight -= 1  # nobody answers it any more
            self._requests.clear()
            for handle in (self._timer, self._sync_timer, self._appended):
                if handle is not None:
                    handle.cancel()
            self._refuse_waiting(DLedgerCode.TERM_CHANGED)

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1_000)

    def _deadline(self) -> int:
        """When the core has something to do, or the lease ends of which somebody was told."""
        deadline = self._node.deadline()
        return min(deadline, self._node.serves_until()) if self._reported_serving else deadline

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._timer_at = self._deadline()
        if deadline < NEVER:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.001, (deadline - self._now()) / 1_000), self._wake.set)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception), "whatever ends the process has ended it already"
            self._failure = self._failure or error
            self._wake.set()

    # Effects.

    def _carry_out(self) -> None:
        """Do what the core wants; what follows from a term waits until it is written."""
        while not self._writes_term and self._node.has_ready():
            ready = self._node.take_ready()
            if ready.current_term is not None:
                self._writes_term = True
                self._start(self._write_term(ready.current_term, ready))
            else:
                self._send(ready)
        if not self._syncs and self._ledger.needs_sync:
            self._sync_soon()
        self._acknowledge()
        if self._ledger.committed_index != self._committed_index:
            self._committed_index = self._ledger.committed_index
            if self._on_commit is not None:
                self._on_commit()
        if self._recovering and not self._node.recovering:
            self._recovering = False
            self._start(self._end_recovery())
        self._report()
        if self._deadline() < self._timer_at:  # e.g. entries that may have to be pushed again
            self._wake.set()

    def _sync_soon(self) -> None:
        """Sync at the end of this turn of the loop, so that all pushes of it share the wait, or later."""
        if self._sync_timer is None and not self._has_ended:
            loop = asyncio.get_running_loop()
            if self._sync_seconds == 0.0:
                self._sync_timer = loop.call_soon(self._begin_sync)
            else:
                self._sync_timer = loop.call_later(self._sync_seconds, self._begin_sync)

    def _begin_sync(self) -> None:
        self._sync_timer = None
        if not self._syncs and (sync := self._ledger.begin_sync()) is not None:
            self._syncs = True
            self._start(self._sync(sync))

    async def _write_term(self, term: CurrentTerm, ready: Ready) -> None:
        await self._run_blocking(lambda: self._ledger.write_term(term))
        self._writes_term = False
        self._send(ready)
        self._carry_out()
        self._wake.set()

    async def _end_recovery(self) -> None:
        await self._run_blocking(self._ledger.end_recovery)

    async def _sync(self, sync: Sync) -> None:
        await self._run_blocking(sync.run)
        self._syncs = False
        sync.finish()
        self._node.synced(self._now())
        self._carry_out()

    def _send(self, ready: Ready) -> None:
        for call in ready.calls:
            self._start(self._ask(call))
        for answer in ready.answers:
            asked = self._requests.pop(answer.request_id, None)
            if asked is not None:
                connection, command, reply = asked
                connection.finish(command, reply(command, answer.response))

    async def _ask(self, call: Call) -> None:
        response: DLedgerBody | None = None
        try:
            command = _command(call.request)
            answer = await self._requester.ask(self._addresses[call.peer], command, call.timeout / 1_000)
            response = _response(call.request, answer)
        except (ConnectionClosed, RequestTimeout):
            pass
        except Rejected as rejected:
            log.warning("a member's answer cannot be read", member=call.peer, reason=rejected.remark)
        self._node.answered(self._now(), call.call_id, response)
        self._carry_out()

    async def _write_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            if self._ledger.committed_index != self._checkpoint_index:
                self._checkpoint_index = self._ledger.committed_index
                await self._run_blocking(self._ledger.write_checkpoint)

    def _report(self) -> None:
        node = self._node
        serves = node.may_serve(self._now())
        now = (
            node.role,
            node.term,
            node.leader_id,
            node.leader_address,
            node.transferee,
            serves,
            node.recovering,
        )
        if now != self._reported:
            self._reported, self._reported_serving = now, serves
            log.info(
                "dledger role",
                member=node.node_id,
                role=node.role,
                term=node.term,
                leader=node.leader_id,
                serves=serves,
                transferee=node.transferee,
                recovering=node.recovering,
            )
            if self._on_change is not None:
                self._on_change(self.status)

    # Appending.

    async def append(self, bodies: Sequence[bytes]) -> list[LedgerEntry]:
        """Append records as the leader; returns when all are committed. Raises `LedgerRefused`.

        With `TERM_CHANGED` the leadership ended first: whether they will be committed is unknown.
        """
        self.require_appendable(len(bodies))
        term = self._node.term
        try:
            entries = [self._ledger.append_body(term, body) for body in bodies]
        finally:  # a full disk may have taken the first ones
            self.appended()
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries[-1].index, term, committed))
        await committed
        return entries

    def require_appendable(self, count: int = 1) -> None:
        """Raise `LedgerRefused`, with the code for whoever asked, unless so many entries may be appended."""
        if self._has_ended:
            raise LedgerRefused(DLedgerCode.DISK_ERROR, f"member {self._config.node_id} has ended")
        self._node.require_appendable(count)

    def appended(self) -> None:
        """The store has put entries of this term into the log, after `require_appendable` and without a wait.

        What is appended in one turn of the loop is pushed together. `on_commit` tells when it is committed.
        """
        if self._appended is None and not self._has_ended:
            self._appended = asyncio.get_running_loop().call_soon(self._hand_over_appended)

    def _hand_over_appended(self) -> None:
        self._appended = None
        self._node.appended(self._now())
        self._carry_out()

    async def transfer(self, member: str) -> None:
        """Hand the leadership over; returns when it is on its way. Raises `LedgerRefused`."""
        self._node.transfer(self._now(), member)
        self._carry_out()

    def _acknowledge(self) -> None:
        node, committed = self._node, self._ledger.committed_index
        if self._waiting and (node.role is not Role.LEADER or node.term != self._waiting[0][1]):
            self._refuse_waiting(DLedgerCode.TERM_CHANGED)
        while self._waiting and self._waiting[0][0] <= committed:
            _, _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _refuse_waiting(self, code: DLedgerCode) -> None:
        while self._waiting:
            index, term, future = self._waiting.popleft()
            if not future.done():
                message = (
                    f"the leadership of term {term} ended; whether entry {index} will be committed is unknown"
                )
                future.set_exception(LedgerRefused(code, message))

    # Requests.

    def _receive(
        self, read: Callable[[Command], DLedgerBody], reply: _Reply, connection: Connection, command: Command
    ) -> Reply:
        """Give a request to the core, which answers at once or later."""
        request = read(command)
        if self._has_ended:
            return None
        self._request_id += 1
        self._requests[self._request_id] = connection, command, reply
        self._node.receive(self._now(), self._request_id, request)
        if isinstance(request, HeartbeatRequest):
            self._watch_leader(connection, request)
        self._carry_out()
        return DEFERRED

    def _watch_leader(self, connection: Connection, heartbeat: HeartbeatRequest) -> None:
        """Remember over which connection the leader speaks, to hear of its end."""
        if (heartbeat.leader_id, heartbeat.term) != (self._node.leader_id, self._node.term):
            return
        self._leader_connection = connection
        if connection not in self._watched:
            self._watched.add(connection)
            self._start(self._wait_closed(connection))

    async def _wait_closed(self, connection: Connection) -> None:
        await connection.wait_closed()
        self._watched.discard(connection)
        if connection is self._leader_connection:
            self._leader_connection = None
            self._node.leader_gone(self._now())
            self._carry_out()
            self._wake.set()

    def _refusal(self, request: DLedgerBody) -> DLedgerCode | None:
        if request.remote_id != self._config.node_id:
            return DLedgerCode.UNKNOWN_MEMBER
        return DLedgerCode.UNKNOWN_GROUP if request.group != self._config.group else None

    def _metadata(self, command: Command) -> DLedgerBody:
        request = MetadataRequest.from_json(command.body)
        answer = MetadataResponse(group=request.group, leader_id=self._node.leader_id)
        code = self._refusal(request)
        return (
            replace(answer, code=code) if code is not None else replace(answer, peers=dict(self._addresses))
        )

    def _get(self, command: Command) -> DLedgerBody:
        request = GetRequest.from_json(command.body)
        answer = GetResponse(group=request.group, term=self._node.term, leader_id=self._node.leader_id)
        code = self._refusal(request)
        if code is None and self._node.role is not Role.LEADER:
            code = DLedgerCode.NOT_LEADER
        if code is None and not self._node.may_serve(self._now()):
            code = DLedgerCode.LEADER_NOT_READY
        if code is not None:
            return replace(answer, code=code)
        index = -1 if request.begin_index is None else request.begin_index
        if index > self._ledger.committed_index:
            return replace(answer, code=DLedgerCode.INDEX_OUT_OF_RANGE)
        try:
            return replace(answer, entries=(self._ledger.entry(index),))
        except LedgerRefused as refused:
            return replace(answer, code=refused.code)

    async def _append(self, command: Command) -> Command:
        request = AppendRequest.from_json(command.body)
        answer = AppendResponse(group=request.group, term=self._node.term, leader_id=self._node.leader_id)
        bodies = request.batch_msgs or (() if request.body is None else (request.body,))
        code = self._refusal(request)
        if code is None and not bodies:
            code = DLedgerCode.REQUEST_WITH_EMPTY_BODYS
        if code is not None:
            return _reply(command, replace(answer, code=code))
        try:
            async with asyncio.timeout(WAIT_ACK_SECONDS):
                entries = await self.append(bodies)
        except LedgerRefused as refused:
            return _reply(command, replace(answer, code=refused.code, leader_id=self._node.leader_id))
        except TimeoutError:
            return _reply(command, replace(answer, code=DLedgerCode.WAIT_QUORUM_ACK_TIMEOUT))
        positions = tuple(entry.position for entry in entries)
        done = replace(answer, index=entries[-1].index, position=positions[-1])
        return _reply(command, replace(done, positions=positions) if request.batch_msgs else done)


def _reader(kind: type[DLedgerBody]) -> Callable[[Command], DLedgerBody]:
    return lambda command: kind.from_json(command.body)


def _command(request: DLedgerBody) -> Command:
    """A request of the core on the wire."""
    if isinstance(request, PushRunRequest):
        return request.to_command()
    code, _ = _BETWEEN_MEMBERS[type(request)]
    return Command(code, body=request.to_json())


def _response(request: DLedgerBody, answer: Command) -> DLedgerBody:
    """The answer to it. Raises `Rejected`."""
    if isinstance(request, PushRunRequest):
        return PushResponse.from_run_answer(answer)
    _, kind = _BETWEEN_MEMBERS[type(request)]
    return kind.from_json(answer.body)


def _reply_to_run(command: Command, body: DLedgerBody) -> Command:
    assert isinstance(body, PushResponse), "a push is answered as a push"
    return body.to_run_answer(command)


def _reply(command: Command, body: DLedgerBody) -> Command:
    """Every answer is a success to remoting; the body says what it really is."""
    return command.reply(DLedgerCode.SUCCESS, body=body.to_json())
