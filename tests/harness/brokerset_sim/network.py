"""A network that delays, loses, doubles and cuts: requests over connections, raft messages without."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from brokerset_protocol import replies
from brokerset_protocol.commands import FLAG_ONEWAY, Command, decode, encode
from brokerset_protocol.errors import Rejected
from brokerset_raft import frames
from brokerset_raft.configuration import Configuration
from brokerset_raft.messages import Message
from brokerset_runtime.remoting.connection import DEFERRED, ConnectionClosed, Handlers, RequestTimeout
from brokerset_sim.loop import VirtualLoop
from brokerset_sim.process import Host, Process


@dataclass(slots=True)
class Weather:
    """How bad the network is now; chances are per message."""

    delay_max: float = 0.02
    """Seconds that most messages take at most."""

    late: float = 0.0
    """Chance of a message that takes up to `late_max`."""

    late_max: float = 0.5
    lost: float = 0.0
    doubled: float = 0.0
    reset: float = 0.0
    """Chance that a connection breaks under a request."""


class Endpoint:
    """A listening port of a process."""

    def __init__(
        self,
        process: Process,
        address: str,
        handlers: Handlers,
        on_close: Callable[[Any], None] | None = None,
    ) -> None:
        self.process = process
        self.address = address
        self.handlers = handlers
        self.on_close = on_close


class SimConnection:
    """The server's end of a connection, as far as handlers look at it."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self.peer = peer
        self.local = ("", 0)
        self.state: dict[str, Any] = {}
        self.is_open = True
        self.waiting: dict[int, Callable[[Command], None]] = {}
        self.again: dict[int, Callable[[], None]] = {}
        self.in_flight = 0
        self.unsent_bytes = 0
        self.carry: Callable[[Command], None] | None = None
        """Brings a request of the server to the client, if that listens."""

        self._closed = asyncio.Event()

    async def wait_closed(self) -> None:
        """Until this end knows that the connection has ended."""
        await self._closed.wait()

    def ended(self) -> None:
        """This end knows it now."""
        self._closed.set()

    def answer(self, data: bytes | Command) -> None:
        """The reply to a deferred request."""
        reply = decode(data, 4, len(data)) if isinstance(data, bytes) else data
        reply_to = self.waiting.pop(reply.opaque, None)
        self.again.pop(reply.opaque, None)
        if reply_to is not None:
            reply_to(reply)

    def answer_at_once(self, data: bytes | Command) -> None:
        """The same: nothing is queued here."""
        self.answer(data)

    def finish(self, command: Command, reply: Command | bytes | None) -> None:
        """The end of a deferred request; None when nothing is answered."""
        if reply is None:
            self.waiting.pop(command.opaque, None)
        else:
            self.answer(reply)

    def serve_deferred(self, commands: Sequence[Command]) -> None:
        """Hand deferred requests to the handlers again."""
        for command in commands:
            again = self.again.pop(command.opaque, None)
            self.waiting.pop(command.opaque, None)
            if again is not None:
                again()

    def notify(self, command: Command) -> None:
        """A one-way request of the server; most clients of these simulations do not listen."""
        if self.carry is not None:
            self.carry(command)

    def close(self) -> None:
        """Left to the client's end."""
        self.is_open = False


class _Link:
    """A connection between two processes."""

    def __init__(self, client: Process, endpoint: Endpoint, port: int) -> None:
        self.client = client
        self.endpoint = endpoint
        self.server_end = SimConnection((client.host.name, port))
        self.pending: dict[int, asyncio.Future[Command]] = {}
        self.open = True
        self.last_there = 0.0
        self.last_back = 0.0


class Listener(Protocol):
    """A client that takes requests of servers, on the connections that it has made."""

    def notified_by(self, server: Process, command: Command) -> None:
        """It leaves a server."""

    def notified(self, address: str, command: Command) -> None:
        """It is there. Called as the client's process."""


class Observer(Protocol):
    """Who looks at what leaves processes."""

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        """A request leaves; what is returned is given to `reply_left` and `reply_arrived`."""

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""

    def reply_arrived(
        self, client: Process, address: str, request: Command, reply: Command, token: object
    ) -> None:
        """The client has the answer."""

    def handler_failed(self, server: Process, request: Command, error: Exception) -> None:
        """A handler raised what no handler should."""

    def raft_left(self, process: Process, message: Message) -> None:
        """A raft message leaves a node."""

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""


class Network:
    """Everything between processes."""

    def __init__(self, loop: VirtualLoop, random_source: random.Random, observer: Observer) -> None:
        self.weather = Weather()
        self._loop = loop
        self._random = random_source
        self._observer = observer
        self._endpoints: dict[str, Endpoint] = {}
        self._raft_ports: dict[str, tuple[Process, SimRaftTransport, Callable[[Message], None]]] = {}
        self._hosts: dict[str, Host] = {}
        self._listeners: dict[Process, Listener] = {}
        self._cut: dict[tuple[str, str], None] = {}
        self.deaf: dict[tuple[str, int], None] = {}
        """Hosts, and codes of requests of which they get nothing: neither those, nor answers to their own."""

        self._links: dict[tuple[Process, str], _Link] = {}
        self._ports = 40_000
        self._frames = frames.Decoder()
        self._frames.feed(frames.encode(frames.Hello(frames.PROTOCOL_VERSION, "simulation", 1, 1)))

    # -- for the world ------------------------------------------------------------------------------------

    def add_host(self, host: Host) -> None:
        """Let a machine be found by its name."""
        self._hosts[host.name] = host

    def host(self, name: str) -> Host | None:
        """A machine by its name."""
        return self._hosts.get(name)

    def listen(self, endpoint: Endpoint) -> None:
        """Serve a port."""
        self._endpoints[endpoint.address] = endpoint

    def listen_to_servers(self, client: Process, listener: Listener) -> None:
        """Bring requests of servers to this client; before it connects to any."""
        self._listeners[client] = listener

    def listen_raft(
        self, address: str, transport: SimRaftTransport, deliver: Callable[[Message], None]
    ) -> None:
        """Serve a port of the raft transport."""
        self._raft_ports[address] = (transport.process, transport, deliver)

    def raft_address(self, host: Host) -> str | None:
        """Where the raft node of a host listens."""
        return next((a for a, (process, _, _) in self._raft_ports.items() if process.host is host), None)

    def cut(self, source: str, target: str) -> None:
        """Lose everything from one host to another."""
        self._cut[(source, target)] = None

    def mend(self, *pairs: tuple[str, str]) -> None:
        """Undo these cuts."""
        for pair in pairs:
            self._cut.pop(pair, None)

    def break_connections(self, host: Host) -> None:
        """End all connections of a host's processes, as something in between may do."""
        for key, link in list(self._links.items()):
            if host in (link.client.host, link.endpoint.process.host):
                del self._links[key]
                self._close(link, silent=False)

    def heal(self) -> None:
        """Undo all cuts."""
        self._cut.clear()
        self.deaf.clear()

    def gone(self, process: Process, *, silent: bool) -> None:
        """A process died; its host closes its connections, unless the host died too (`silent`)."""
        for address in [a for a, e in self._endpoints.items() if e.process is process]:
            del self._endpoints[address]
        for address in [a for a, (p, _, _) in self._raft_ports.items() if p is process]:
            del self._raft_ports[address]
        for key, link in list(self._links.items()):
            if process in (link.client, link.endpoint.process):
                del self._links[key]
                self._close(link, silent=silent)

    def deferred(self, process: Process) -> int:
        """Requests that a process has put off and not answered, of clients that are still connected."""
        links = [link for link in self._links.values() if link.endpoint.process is process and link.open]
        return sum(len(link.server_end.waiting) for link in links)

    # -- for processes ------------------------------------------------------------------------------------

    def open(self, source: Host, target: Host) -> bool:
        """Whether bytes go from one host to another now."""
        return source.on and target.on and (source.name, target.name) not in self._cut

    def send_raft(self, process: Process, address: str, message: Message) -> None:
        """Carry a raft message; late ones may overtake."""
        self._observer.raft_left(process, message)
        data = frames.encode(message.body)
        copies = 2 if self._chance(self.weather.doubled) else 1
        for _ in range(copies):
            if self._chance(self.weather.lost):
                self._observer.note("lost", message.source, message.target)
                continue
            self._loop.call_later(self.delay(), self._arrive_raft, process.host, address, message, data)

    def _arrive_raft(self, source: Host, address: str, sent: Message, data: bytes) -> None:
        port = self._raft_ports.get(address)
        if port is None or not self.open(source, port[0].host):
            return
        process, transport, deliver = port
        transport.back[sent.source] = source
        (body,) = self._frames.feed(data)
        message = Message(sent.source, sent.target, body)  # type: ignore[arg-type]  # no greetings after the first
        self._observer.note("raft", process.name, message.source, type(body).__name__, message.body.term)
        process.soon(deliver, message)

    async def ask(self, client: Process, address: str, command: Command, timeout: float) -> Command:
        """As `Asker.ask`."""
        client_loop = self._loop
        future: asyncio.Future[Command] = client_loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                link = await self._link(client, address)
                token = self._observer.request_sent(client, address, command)
                self._send(link, command, future, token)
                reply = await future
        except TimeoutError:
            raise RequestTimeout(f"no answer from {address} in {timeout:g} s") from None
        self._observer.reply_arrived(client, address, command, reply, token)
        return reply

    async def tell(self, client: Process, address: str, command: Command, timeout: float) -> None:
        """As `Asker.tell`."""
        try:
            async with asyncio.timeout(timeout):
                link = await self._link(client, address)
        except TimeoutError:
            raise ConnectionClosed(f"cannot connect to {address}: no answer in {timeout} s") from None
        command.flag |= FLAG_ONEWAY
        self._observer.request_sent(client, address, command)
        self._send(link, command, None, None)

    async def _link(self, client: Process, address: str) -> _Link:
        key = (client, address)
        link = self._links.get(key)
        if link is not None and link.open:
            return link
        host = self._hosts.get(address.rpartition(":")[0])
        await asyncio.sleep(self.delay())
        if host is None or not (self.open(client.host, host) and self.open(host, client.host)):
            await self._loop.create_future()  # nobody answers
        await asyncio.sleep(self.delay())
        link = self._links.get(key)
        if link is not None and link.open:
            return link
        endpoint = self._endpoints.get(address)
        if endpoint is None or not client.alive:
            raise ConnectionClosed(
                f"cannot connect to {address}: Connection refused"
            ) from ConnectionRefusedError(111, "Connection refused")
        self._ports += 1
        link = self._links[key] = _Link(client, endpoint, self._ports)
        listener = self._listeners.get(client)
        if listener is not None:
            link.server_end.carry = partial(self._notify, link, listener)
        return link

    def _notify(self, link: _Link, listener: Listener, command: Command) -> None:
        server = link.endpoint.process
        if not server.alive or not link.server_end.is_open:
            return
        listener.notified_by(server, command)
        if not link.open or self._chance(self.weather.lost):
            self._observer.note("lost notice", server.name, link.client.name, command.code)
            return
        when = link.last_back = max(self._loop.time() + self.delay(), link.last_back)
        self._loop.call_at(when, self._arrive_notice, link, listener, encode(command))

    def _arrive_notice(self, link: _Link, listener: Listener, data: bytes) -> None:
        if not link.client.alive or not self.open(link.endpoint.process.host, link.client.host):
            return
        command = decode(data, 4, len(data))
        self._observer.note("notice", link.client.name, link.endpoint.process.name, command.code)
        link.client.soon(listener.notified, link.endpoint.address, command)

    def _send(
        self, link: _Link, command: Command, future: asyncio.Future[Command] | None, token: object
    ) -> None:
        if not link.client.alive:
            return
        self._ports += 1
        opaque = self._ports
        command.opaque = opaque
        data = encode(command)
        if future is not None:
            link.pending[opaque] = future
            future.add_done_callback(lambda _: link.pending.pop(opaque, None))
        weather = self.weather
        if self._chance(weather.reset):
            self._links.pop((link.client, link.endpoint.address), None)
            if self._chance(0.5):
                self._loop.call_soon(self._arrive, link, data, token)
            self._close(link, silent=False)
            return
        if self._chance(weather.lost):
            self._observer.note("lost request", link.client.name, link.endpoint.address, command.code)
            return
        when = link.last_there = max(self._loop.time() + self.delay(), link.last_there)
        self._loop.call_at(when, self._arrive, link, data, token)
        if self._chance(weather.doubled):
            self._loop.call_at(when + self.delay(), self._arrive, link, data, token)

    def _arrive(self, link: _Link, data: bytes, token: object) -> None:
        server = link.endpoint.process
        if not server.alive or not self.open(link.client.host, server.host):
            return
        command = decode(data, 4, len(data))
        if (server.host.name, command.code) in self.deaf:
            self._observer.note("lost request", link.client.name, link.endpoint.address, command.code)
            return
        self._observer.note("request", server.name, link.client.name, command.code)
        server.soon(self._serve, link, command, token)

    def _serve(self, link: _Link, command: Command, token: object) -> None:
        server = link.endpoint.process
        handler = link.endpoint.handlers.get(command.code)
        if handler is None:
            self._reply(link, command, replies.unsupported(command), token)
            return
        waiting, again = link.server_end.waiting, link.server_end.again
        waiting[command.opaque] = lambda answer: self._reply(link, command, answer, token)
        again[command.opaque] = lambda: self._serve(link, command, token)
        try:
            reply = handler(link.server_end, command)  # type: ignore[arg-type]  # stands in for a Connection
        except Rejected as rejected:
            reply = command.reply(rejected.code, rejected.remark)
        except Exception as error:  # the edge of a session
            self._observer.handler_failed(server, command, error)
            return
        if reply is DEFERRED:
            return
        waiting.pop(command.opaque, None)
        again.pop(command.opaque, None)
        if isinstance(reply, bytes):
            self._reply(link, command, decode(reply, 4, len(reply)), token)
        elif isinstance(reply, Command):
            self._reply(link, command, reply, token)
        elif reply is not None:
            server.spawn(self._finish(link, command, reply, token))

    async def _finish(
        self, link: _Link, command: Command, work: Coroutine[Any, Any, Command | bytes | None], token: object
    ) -> None:
        try:
            reply = await work
        except Rejected as rejected:
            reply = command.reply(rejected.code, rejected.remark)
        except Exception as error:  # the edge of a session
            self._observer.handler_failed(link.endpoint.process, command, error)
            return
        if isinstance(reply, bytes):
            reply = decode(reply, 4, len(reply))
        if reply is not None:
            self._reply(link, command, reply, token)

    def _reply(self, link: _Link, command: Command, reply: Command, token: object) -> None:
        server = link.endpoint.process
        if command.is_oneway or not server.alive:
            return
        self._observer.reply_left(server, command, reply, token)
        if self._chance(self.weather.lost) or (link.client.host.name, command.code) in self.deaf:
            self._observer.note("lost reply", server.name, link.client.name, command.code)
            return
        when = link.last_back = max(self._loop.time() + self.delay(), link.last_back)
        self._loop.call_at(when, self._arrive_reply, link, encode(reply))

    def _arrive_reply(self, link: _Link, data: bytes) -> None:
        if not link.client.alive or not self.open(link.endpoint.process.host, link.client.host):
            return
        reply = decode(data, 4, len(data))
        future = link.pending.get(reply.opaque)
        if future is not None and not future.done():
            self._observer.note("reply", link.client.name, link.endpoint.process.name, reply.code)
            future.set_result(reply)

    def _close(self, link: _Link, *, silent: bool) -> None:
        """Let both ends hear of it, if they can."""
        link.open = False
        self._loop.call_later(self.delay(), self._closed_at_client, link, silent)
        self._loop.call_later(self.delay(), self._closed_at_server, link, silent)

    def _closed_at_client(self, link: _Link, silent: bool) -> None:
        server = link.endpoint.process
        if silent or not link.client.alive or not self.open(server.host, link.client.host):
            return
        for future in list(link.pending.values()):
            if not future.done():
                future.set_exception(ConnectionClosed(f"{link.endpoint.address} closed the connection"))
                future.exception()

    def _closed_at_server(self, link: _Link, silent: bool) -> None:
        server = link.endpoint.process
        link.server_end.is_open = False
        if silent or not server.alive or not self.open(link.client.host, server.host):
            return
        server.soon(link.server_end.ended)
        if link.endpoint.on_close is None:
            return
        self._observer.note("closed", server.name, link.client.name)
        server.soon(link.endpoint.on_close, link.server_end)

    def delay(self) -> float:
        """Seconds that the next message takes."""
        weather = self.weather
        longest = weather.late_max if self._chance(weather.late) else weather.delay_max
        return 0.0005 + self._random.random() * longest

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance


class SimAsker:
    """Implements `brokerset_runtime.peer_requests.Asker` for one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        return await self._network.ask(self._process, address, command, timeout)

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        await self._network.tell(self._process, address, command, timeout)


class SimRaftTransport:
    """Implements `brokerset_raft.transport.Transport` for one node.

    As over TCP, an answer reaches a node of unknown address over the connection that it has opened.
    """

    def __init__(self, network: Network, process: Process) -> None:
        self.process = process
        self.back: dict[int, Host] = {}
        """Hosts from which nodes have sent something."""

        self._network = network
        self._addresses: dict[int, str] = {}

    def use(self, configuration: Configuration) -> None:
        for member in configuration.members:
            self._addresses[member.node_id] = member.raft_address

    def send(self, message: Message) -> None:
        address = self._addresses.get(message.target)
        if address is None and (host := self.back.get(message.target)) is not None:
            address = self._network.raft_address(host)
        if address is not None and self.process.alive:
            self._network.send_raft(self.process, address, message)
