"""Carries messages between raft nodes over TCP: a connection from each node to each peer, kept up by itself.

A message may be lost, and raft lives with that; so nothing here waits, and every queue drops when it is full.
The connection that a node opens carries its messages; answers to a node whose address is not known (a
leader's, at a learner that has no log yet), or not reachable, go back over the connection that it has opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import structlog

from brokerset_raft import frames
from brokerset_raft.configuration import Configuration
from brokerset_raft.frames import Hello, Ping, Pong, RaftProtocolError, Refusal, Welcome
from brokerset_raft.messages import AppendRequest, Body, Heartbeat, HeartbeatReply, Message, SnapshotChunk
from brokerset_runtime.listening import listen_hosts
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.tls import Tls
from brokerset_runtime.tls.arrivals import Arrivals
from brokerset_runtime.tls.connecting import connect_member
from brokerset_runtime.tls.member_names import MemberPort

log = structlog.get_logger(__name__)

_DROPPED_FIRST = (AppendRequest, Heartbeat, HeartbeatReply, SnapshotChunk)
"""What the sender repeats anyway."""


class Transport(Protocol):
    """How the driver speaks to its peers."""

    def send(self, message: Message) -> None:
        """Send, or drop when the peer cannot be reached or its queue is full; never blocks."""

    def use(self, configuration: Configuration) -> None:
        """From now on these are the members, and their addresses."""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of one transport, each with what happens at it."""

    queue_messages_max: int = 1024
    """For each peer; beyond it the oldest append, heartbeat or piece of a snapshot is dropped."""

    queue_bytes_max: int = 32 << 20
    """For each peer; likewise."""

    write_buffer_bytes: int = 4 << 20
    """A connection with more unsent bytes takes no more until they are fewer; messages queue up."""

    connections_max: int = 64
    """Incoming ones; one more is closed at once."""

    connect_seconds_max: float = 2.0
    """A connection that is not greeted back in time is given up."""

    retry_seconds_min: float = 0.02
    retry_seconds_max: float = 1.0
    """Pause between two tries to connect: doubles from the least to the most."""

    beat_seconds: float = 1.0
    """How often connections are looked at, and pinged. Beats are counted and not seconds, so that a process
    that was stopped for a while does not take its peers for silent."""

    silent_beats_max: int = 5
    """A connection over which nothing came for so long is closed: the peer's host is gone, or hangs."""

    frame_beats_max: int = 10
    """A connection with a frame that is not complete for so long is closed."""

    linger_seconds: float = 2.0
    """How long the connection to a removed member is kept, so that it hears of its removal."""


@dataclass(slots=True)
class TransportCounters:
    """What happened so far."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    """Messages that a full queue or a missing connection swallowed."""

    refused: int = 0
    """Incoming connections with the wrong group, target or version, or one too many."""

    protocol_errors: int = 0
    """Connections closed because of unreadable bytes."""

    connects: int = 0
    """Outgoing connections that were greeted back."""


class _ConnectFailed(Exception):
    """There is no usable connection; the text says why."""


class _Link(asyncio.Protocol):
    """One connection, of either direction."""

    def __init__(self, owner: TcpTransport, peer_id: int | None) -> None:
        self.peer_id = peer_id
        self.outgoing = peer_id is not None
        self.ready = False
        self.paused = False
        self.peer = "?"
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_writable: Callable[[], None] | None = None
        self._owner = owner
        self._decoder = frames.Decoder()
        self._transport: asyncio.Transport | None = None
        self._heard = True
        self._completed = 0
        self._completed_before = 0
        self._silent_beats = 0
        self._frame_beats = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it
        self.peer = _peer_name(stream)
        limits = self._owner.limits
        stream.set_write_buffer_limits(high=limits.write_buffer_bytes, low=limits.write_buffer_bytes // 4)
        plain = stream.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.outgoing:
            assert self.peer_id is not None
            owner = self._owner
            self.write(Hello(frames.PROTOCOL_VERSION, owner.group, owner.node_id, self.peer_id))
        elif not self._owner.admit(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            for frame in self._decoder.feed(data):
                self._completed += 1
                self._take(frame)
                if self._transport is None or self._transport.is_closing():
                    return
        except RaftProtocolError as error:
            self._owner.unreadable(self, str(error))
            self.abort()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ready = False
        self._transport = None
        if not self.welcomed.done():
            self.welcomed.set_exception(
                _ConnectFailed(f"closed before it was greeted back{'' if exc is None else f': {exc}'}")
            )
            self.welcomed.exception()
        if not self.lost.done():
            self.lost.set_result(None)
        self._owner.forget(self)

    def write(self, frame: frames.Frame) -> None:
        self.write_bytes(frames.encode(frame))

    def write_bytes(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.ready = False
        if self._transport is not None:
            self._transport.abort()

    def beat(self) -> str | None:
        """Once in `beat_seconds`; returns why the connection has to be closed."""
        limits = self._owner.limits
        self._silent_beats = 0 if self._heard else self._silent_beats + 1
        self._heard = False
        stuck = self._decoder.waiting > 0 and self._completed == self._completed_before
        self._frame_beats = self._frame_beats + 1 if stuck else 0
        self._completed_before = self._completed
        if self._silent_beats >= limits.silent_beats_max:
            return "silent"
        if self._frame_beats >= limits.frame_beats_max:
            return "a frame does not end"
        if self.outgoing and self.ready and not self.paused:
            self.write(Ping())
        return None

    def _take(self, frame: frames.Frame) -> None:
        match frame:
            case Ping():
                if not self.paused:
                    self.write(Pong())
            case Pong():
                pass
            case Hello():
                self._greet(frame)
            case Welcome() | Refusal():
                self._greeted_back(frame)
            case _:
                assert self.peer_id is not None
                self._owner.received(self.peer_id, frame)

    def _greet(self, hello: Hello) -> None:
        if self.outgoing:
            raise RaftProtocolError("a greeting from the side that was greeted")
        problem = self._owner.check(hello)
        if problem is not None:
            self._owner.refuse(self, hello, problem)
            self.write(Refusal(problem))
            self.close()
            return
        self.peer_id = hello.source
        self.write(Welcome())
        self.ready = True
        self._owner.greeted(self)

    def _greeted_back(self, answer: Welcome | Refusal) -> None:
        if not self.outgoing:
            raise RaftProtocolError("an answer to a greeting that was not sent")
        if isinstance(answer, Refusal):
            if not self.welcomed.done():
                self.welcomed.set_exception(_ConnectFailed(f"refused: {answer.reason}"))
                self.welcomed.exception()
            self.close()
            return
        self.ready = True
        if not self.welcomed.done():
            self.welcomed.set_result(None)


class _Peer:
    """Messages for one member: its connection, and a queue for when there is none or it is full."""

    def __init__(self, owner: TcpTransport, node_id: int, address: str) -> None:
        self.node_id = node_id
        self.address = address
        self.retired_at: float | None = None
        self._owner = owner
        self._link: _Link | None = None
        self._queue: deque[tuple[bool, bytes]] = deque()
        self._queue_bytes = 0
        self._throttle = LogThrottle()
        self.task = asyncio.get_running_loop().create_task(self._keep_connected())

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.ready

    def send(self, body: Body) -> None:
        data = frames.encode(body)
        link = self._link
        if link is not None and link.ready and not link.paused and not self._queue:
            link.write_bytes(data)
            self._owner.counters.sent += 1
            return
        limits = self._owner.limits
        while self._queue and (
            len(self._queue) >= limits.queue_messages_max
            or self._queue_bytes + len(data) > limits.queue_bytes_max
        ):
            self._owner.counters.dropped += 1
            if not self._drop_oldest():
                return
        self._queue.append((isinstance(body, _DROPPED_FIRST), data))
        self._queue_bytes += len(data)

    def _drop_oldest(self) -> bool:
        for position, (droppable, data) in enumerate(self._queue):
            if droppable:
                del self._queue[position]
                self._queue_bytes -= len(data)
                return True
        return False

    def _flush(self) -> None:
        link = self._link
        while self._queue and link is not None and link.ready and not link.paused:
            _, data = self._queue.popleft()
            self._queue_bytes -= len(data)
            link.write_bytes(data)
            self._owner.counters.sent += 1

    async def _keep_connected(self) -> None:
        limits = self._owner.limits
        loop = asyncio.get_running_loop()
        delay = limits.retry_seconds_min
        while True:
            begun = loop.time()
            try:
                link = await self._connect()
            except (OSError, TimeoutError, ValueError, _ConnectFailed) as error:
                self._tell(error)
            else:
                self._link = link
                link.on_writable = self._flush
                self._owner.counters.connects += 1
                log.info("connected to raft peer", peer_id=self.node_id, address=self.address)
                self._flush()
                try:
                    await asyncio.wait([link.lost])
                finally:
                    self._link = None
                    link.abort()
                if loop.time() - begun > limits.retry_seconds_max:
                    delay = limits.retry_seconds_min
            await asyncio.sleep(delay)
            delay = min(2 * delay, limits.retry_seconds_max)

    async def _connect(self) -> _Link:
        host, port = split_address(self.address)
        tls = self._owner.tls
        link = _Link(self._owner, self.node_id)
        async with asyncio.timeout(self._owner.limits.connect_seconds_max):
            try:
                if tls is None:
                    await asyncio.get_running_loop().create_connection(lambda: link, host, port)
                else:
                    await connect_member(tls, link, host, port, MemberPort.RAFT)
                self._owner.watch(link)
                await link.welcomed
            except BaseException:
                link.abort()
                raise
        return link

    def _tell(self, error: Exception) -> None:
        suppressed = self._throttle.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(
                "cannot connect to raft peer",
                peer_id=self.node_id,
                address=self.address,
                reason=str(error) or type(error).__name__,
                suppressed=suppressed,
            )


class TcpTransport:
    """The real transport of one node. `close` it in the end."""

    def __init__(
        self,
        group: str,
        node_id: int,
        deliver: Callable[[Message], None],
        tls: Tls | None = None,
        *,
        limits: TransportLimits | None = None,
    ) -> None:
        """`deliver` is called on the loop's thread for each message that came. Raises `ValueError`."""
        if not 0 < len(group.encode()) <= frames.GROUP_BYTES_MAX:
            raise ValueError(f"the group's name must have 1 to {frames.GROUP_BYTES_MAX} bytes: {group!r}")
        self.group = group
        self.node_id = node_id
        self.tls = tls
        self.limits = limits or TransportLimits()
        self.counters = TransportCounters()
        self._deliver = deliver
        self._peers: dict[int, _Peer] = {}
        self._links: dict[int, _Link] = {}
        self._incoming: dict[int, _Link] = {}
        self._server: asyncio.Server | None = None
        self._arrivals: Arrivals | None = None
        self._beats: asyncio.Task[None] | None = None
        self._ended: list[asyncio.Task[None]] = []
        self._closed = False
        self._throttles: dict[str, LogThrottle] = {}

    async def listen(self, host: str, port: int) -> int:
        """Accept peers on `host:port`, 0 takes a free port; returns the port. Raises `OSError` if taken."""
        loop = asyncio.get_running_loop()
        accept: Callable[[], asyncio.Protocol] = self._new_link
        if self.tls is not None:
            self._arrivals = Arrivals(self.tls, self._new_link, members_of=MemberPort.RAFT)
            accept = self._arrivals.accept
        self._server = await loop.create_server(accept, listen_hosts(host, port), port)
        self._start_beats()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _new_link(self) -> _Link:
        return _Link(self, None)

    def send(self, message: Message) -> None:
        """Send, or drop; never blocks."""
        peer = self._peers.get(message.target)
        if peer is None or not peer.connected:
            back = self._incoming.get(message.target)
            if back is not None and back.ready and not back.paused:
                back.write(message.body)
                self.counters.sent += 1
                return
        if peer is None or self._closed:
            self.counters.dropped += 1
            return
        peer.send(message.body)

    def use(self, configuration: Configuration) -> None:
        """From now on these are the members; those that are gone are told what is on its way to them."""
        if self._closed:
            return
        self._start_beats()
        wanted = {m.node_id: m.raft_address for m in configuration.members if m.node_id != self.node_id}
        for node_id, peer in list(self._peers.items()):
            address = wanted.pop(node_id, None)
            if address == peer.address:
                peer.retired_at = None
            elif address is not None:
                self._end(peer)
                self._peers[node_id] = _Peer(self, node_id, address)
            elif peer.retired_at is None:
                peer.retired_at = asyncio.get_running_loop().time()
        for node_id, address in wanted.items():
            self._peers[node_id] = _Peer(self, node_id, address)

    async def close(self) -> None:
        """Close all connections and stop accepting; may be called again."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        if self._arrivals is not None:
            self._arrivals.close()
        for peer in list(self._peers.values()):
            self._end(peer)
        self._peers.clear()
        if self._beats is not None:
            self._beats.cancel()
            self._ended.append(self._beats)
            self._beats = None
        links = list(self._links.values())
        for link in links:
            link.abort()
        await asyncio.gather(*self._ended, return_exceptions=True)
        self._ended.clear()
        if links:
            await asyncio.wait([link.lost for link in links], timeout=self.limits.connect_seconds_max)

    def admit(self, link: _Link) -> bool:
        """A stranger has connected; False: there are too many."""
        count = sum(1 for each in self._links.values() if not each.outgoing)
        if self._closed or count >= self.limits.connections_max:
            self.counters.refused += 1
            self._warn("refused raft connection: too many", peer=link.peer, connections=count)
            return False
        self._links[id(link)] = link
        return True

    def watch(self, link: _Link) -> None:
        """A connection of ours is there."""
        if not link.lost.done():
            self._links[id(link)] = link

    def forget(self, link: _Link) -> None:
        """A connection is gone."""
        self._links.pop(id(link), None)
        if link.peer_id is not None and self._incoming.get(link.peer_id) is link:
            del self._incoming[link.peer_id]

    def check(self, hello: Hello) -> str | None:
        """What is wrong with a greeting."""
        if hello.version != frames.PROTOCOL_VERSION:
            return f"raft protocol version {hello.version} is not {frames.PROTOCOL_VERSION}, which runs here"
        if hello.group != self.group:
            return f"group {hello.group!r} is not {self.group!r}, which runs here; check the peer's address"
        if hello.target != self.node_id:
            return f"node {hello.target} is wanted, but this is node {self.node_id}; check the peer's address"
        if hello.source == self.node_id:
            return f"node {self.node_id} is here already; give every node its own id"
        return None

    def refuse(self, link: _Link, hello: Hello, problem: str) -> None:
        """Note a greeting that was not accepted."""
        self.counters.refused += 1
        self._warn("refused raft connection", peer=link.peer, source=hello.source, reason=problem)

    def greeted(self, link: _Link) -> None:
        """A peer has connected; an older connection of the same peer is dead."""
        assert link.peer_id is not None
        older = self._incoming.get(link.peer_id)
        self._incoming[link.peer_id] = link
        if older is not None:
            older.abort()

    def received(self, source: int, body: Body) -> None:
        """A message came."""
        self.counters.received += 1
        if not self._closed:
            self._deliver(Message(source, self.node_id, body))

    def unreadable(self, link: _Link, reason: str) -> None:
        """A connection brought what no peer sends."""
        self.counters.protocol_errors += 1
        self._warn("closed raft connection with unreadable bytes", peer=link.peer, reason=reason)

    def _start_beats(self) -> None:
        if self._beats is None:
            self._beats = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.beat_seconds)
            self._ended = [task for task in self._ended if not task.done()]
            for link in list(self._links.values()):
                problem = link.beat()
                if problem is not None:
                    self._warn("closed raft connection", peer=link.peer, reason=problem)
                    link.abort()
            for node_id, peer in list(self._peers.items()):
                if peer.retired_at is not None and loop.time() - peer.retired_at > self.limits.linger_seconds:
                    self._end(peer)
                    del self._peers[node_id]

    def _end(self, peer: _Peer) -> None:
        peer.task.cancel()
        self._ended.append(peer.task)

    def _warn(self, event: str, **fields: object) -> None:
        throttle = self._throttles.setdefault(event, LogThrottle())
        suppressed = throttle.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(event, group=self.group, suppressed=suppressed, **fields)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, where an IPv6 host stands in brackets. Raises `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _peer_name(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
