"""HA connections of the simulation: packets travel as their bytes, in order, over the simulated network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from brokerset_broker.member.ha.links import LinkClosed, SlaveLink
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_protocol import ha_packets as packets
from brokerset_protocol.ha_packets import Ack, MasterHandshake, SlaveHandshake, TransferHeader
from brokerset_sim.network import Network
from brokerset_sim.process import Process

IN_FLIGHT_MAX = 3
"""Pieces that the kernels between two peers hold; a sender waits for room."""

GIVE_UP_SECONDS = 60.0
"""A path that is cut for so long ends a connection silently."""

AGAIN_SECONDS = 0.2
"""How often a cut path is tried again."""


class HaObserver(Protocol):
    """Who looks at what leaves processes on HA connections."""

    def chunk_left(self, process: Process, header: TransferHeader) -> None:
        """A master sends a piece of its log."""

    def followed(self, slave: Process, master: Process, packet: MasterHandshake) -> None:
        """A master's handshake arrived."""

    def ack_left(self, wire: Wire, offset: int) -> None:
        """A slave acknowledges."""


class _End(Protocol):
    def ended(self, reason: str) -> None: ...


class Wire:
    """One connection. Each end has its own opinion on whether it is open."""

    def __init__(self, network: SimHaNetwork, slave: Process, master: Process) -> None:
        self.network = network
        self.slave = slave
        self.master = master
        self.closed_by: dict[Process, None] = {}
        self.epoch = -1
        """Of the master, as its handshake says."""

        self.compared = 0
        """How far a checker has compared both logs."""

        self.to_master = _Direction(self, slave, master)
        self.to_slave = _Direction(self, master, slave)
        self.slave_end: SimMasterLink
        self.master_end: SimSlaveLink

    def open_for(self, process: Process) -> bool:
        """Whether this end may send and receive."""
        return process not in self.closed_by

    def close(self, by: Process, reason: str, *, silent: bool = False) -> None:
        """One end closes. The other hears of it behind what was sent before, if the network lets it."""
        if not self._end(by):
            return
        by.soon(self._end_of(by).ended, reason)
        if not silent:
            self._sending(by).carry_close(f"closed by {by.name}")

    def cut_off(self, reason: str) -> None:
        """The connection breaks for both, with what is on its way."""
        for process in (self.slave, self.master):
            if self._end(process):
                process.soon(self._end_of(process).ended, reason)

    def hear_of_end(self, process: Process, reason: str) -> None:
        """The news that the other end is closed arrives."""
        if self._end(process):
            self._end_of(process).ended(reason)

    def _end(self, process: Process) -> bool:
        if process in self.closed_by:
            return False
        self.closed_by[process] = None
        self._sending(process).free()
        if len(self.closed_by) == 2:
            self.network.wires.pop(self, None)
        return True

    def _sending(self, process: Process) -> _Direction:
        return self.to_master if process is self.slave else self.to_slave

    def _end_of(self, process: Process) -> _End:
        return self.slave_end if process is self.slave else self.master_end


class _Direction:
    def __init__(self, wire: Wire, source: Process, target: Process) -> None:
        self.wire = wire
        self.source = source
        self.target = target
        self.last = 0.0
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._under_way: deque[Callable[[], None]] = deque()

    def carry(self, deliver: Callable[..., None], *what: object) -> None:
        self.in_flight += 1
        self._put(partial(self._reach, deliver, what))

    def carry_close(self, reason: str) -> None:
        self._put(partial(self.target.soon, self.wire.hear_of_end, self.target, reason))

    def _put(self, arrive: Callable[[], None]) -> None:
        """Everything arrives in its order; while the path is cut it waits, as with TCP."""
        loop = self.wire.network.loop
        self._under_way.append(arrive)
        self.last = max(self.last, loop.time() + self.wire.network.delay())
        loop.call_at(self.last, self._arrive)

    def _arrive(self) -> None:
        if not self._under_way:
            return
        if self.wire.network.base.open(self.source.host, self.target.host):
            self._under_way.popleft()()
        elif self.wire.network.loop.time() < self.last + GIVE_UP_SECONDS:
            self.wire.network.loop.call_later(AGAIN_SECONDS, self._arrive)

    def _reach(self, deliver: Callable[..., None], what: tuple[object, ...]) -> None:
        """Something is at the target's host, whose process may be gone, or stopped."""
        if self.target.alive:
            self.target.soon(self._hand_over, deliver, what)
        else:
            self._reset()

    def _hand_over(self, deliver: Callable[..., None], what: tuple[object, ...]) -> None:
        self.in_flight -= 1
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        if self.wire.open_for(self.target):
            deliver(*what)
        else:
            self._reset()

    def _reset(self) -> None:
        """Nobody takes it: the sender is told."""
        back = self.wire.to_slave if self.source is self.wire.slave else self.wire.to_master
        back.carry_close("Connection reset by peer")

    def free(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def room(self) -> None:
        while self.wire.open_for(self.source) and self.in_flight >= IN_FLIGHT_MAX:
            waiter = self.wire.network.loop.create_future()
            self._waiting.append(waiter)
            await waiter


class SimSlaveLink:
    """The master's end. Implements `SlaveLink`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._first: asyncio.Future[bytes] = wire.network.loop.create_future()
        self._on_ack: Callable[[Ack], None] = lambda ack: None
        self._on_close: Callable[[str], None] | None = None
        self._ended: str | None = None

    @property
    def peer(self) -> str:
        return f"{self._wire.slave.host.name}:0"

    async def handshake(self) -> SlaveHandshake:
        data = await self._first
        if self._ended is not None:
            raise LinkClosed(self._ended)
        found = packets.decode_slave_handshake(data)
        assert found is not None
        return found[0]

    async def send_handshake(self, packet: MasterHandshake) -> None:
        self._check()
        data = packets.encode_master_handshake(packet)
        await self._wire.to_slave.room()
        self._check()
        self._wire.to_slave.carry(self._wire.slave_end.handshake_arrived, data)

    def on_ack(self, listener: Callable[[Ack], None]) -> None:
        self._on_ack = listener

    def on_close(self, listener: Callable[[str], None]) -> None:
        self._on_close = listener
        if self._ended is not None:
            self._wire.master.soon(listener, self._ended)

    async def send(self, header: TransferHeader, log: ReplicaLog) -> None:
        body = bytes(log.view(header.offset, header.size)) if header.size else b""
        assert len(body) == header.size, "a piece never crosses a file, nor the end of the log"
        await self._wire.to_slave.room()
        self._check()
        self._wire.network.observer.chunk_left(self._wire.master, header)
        self._wire.to_slave.carry(
            self._wire.slave_end.piece_arrived, packets.encode_transfer_header(header), body
        )

    def close(self, reason: str) -> None:
        self._wire.close(self._wire.master, reason)

    def _check(self) -> None:
        if not self._wire.open_for(self._wire.master):
            raise LinkClosed(self._ended or "the connection is closed")

    # -- events -------------------------------------------------------------------------------------------

    def first_arrived(self, data: bytes) -> None:
        if not self._first.done():
            self._first.set_result(data)

    def ack_arrived(self, data: bytes) -> None:
        decoder = packets.AckDecoder()
        found = decoder.feed(data)
        assert found is not None
        self._on_ack(found)

    def ended(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        if not self._first.done():
            self._first.set_result(b"")
        if self._on_close is not None:
            self._on_close(reason)


class SimMasterLink:
    """The slave's end. Implements `MasterLink`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._answer: asyncio.Future[bytes] = wire.network.loop.create_future()
        self._log: ReplicaLog | None = None
        self._on_header: Callable[[TransferHeader], Awaitable[None] | None] | None = None
        self._pieces: deque[tuple[bytes, bytes]] = deque()
        self._busy = False
        self._ended: str | None = None
        self._closed: asyncio.Future[str] = wire.network.loop.create_future()

    @property
    def peer(self) -> str:
        return f"{self._wire.master.host.name}:ha"

    async def shake_hands(self, packet: SlaveHandshake) -> MasterHandshake:
        self._wire.to_master.carry(
            self._wire.master_end.first_arrived, packets.encode_slave_handshake(packet)
        )
        data = await self._answer
        if self._ended is not None:
            raise LinkClosed(self._ended)
        found = packets.decode_master_handshake(data)
        assert found is not None
        self._wire.epoch = found[0].identity.epoch if found[0].identity is not None else found[0].last_epoch
        self._wire.network.observer.followed(self._wire.slave, self._wire.master, found[0])
        return found[0]

    def receive_into(
        self, log: ReplicaLog, on_header: Callable[[TransferHeader], Awaitable[None] | None]
    ) -> None:
        self._log, self._on_header = log, on_header
        self._go_on()

    def send_ack(self, packet: Ack) -> None:
        if self._open:
            self._wire.network.observer.ack_left(self._wire, packet.offset)
            self._wire.to_master.carry(self._wire.master_end.ack_arrived, packets.encode_ack(packet))

    @property
    def _open(self) -> bool:
        return self._wire.open_for(self._wire.slave)

    async def closed(self) -> str:
        return await asyncio.shield(self._closed)

    def close(self, reason: str) -> None:
        self._wire.close(self._wire.slave, reason)

    # -- events -------------------------------------------------------------------------------------------

    def handshake_arrived(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(data)

    def piece_arrived(self, header: bytes, body: bytes) -> None:
        self._pieces.append((header, body))
        self._go_on()

    def _go_on(self) -> None:
        if not self._busy and self._pieces and self._on_header is not None and self._open:
            self._busy = True
            self._wire.slave.spawn(self._take())

    async def _take(self) -> None:
        assert self._log is not None
        assert self._on_header is not None
        try:
            while self._pieces and self._open:
                data, body = self._pieces.popleft()
                header = packets.decode_transfer_header(data)
                assert header is not None
                waits = self._on_header(header)
                if waits is not None:
                    await waits
                position = 0
                while position < len(body) and self._open:
                    room = self._log.room(len(body) - position)
                    size = len(room)
                    room[:] = body[position : position + size]
                    self._log.received(size)
                    position += size
        except (LinkClosed, ReplicaLogFailed, packets.HaProtocolError) as error:
            self.close(str(error))
        finally:
            self._busy = False

    def ended(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        if not self._answer.done():
            self._answer.set_result(b"")
        if not self._closed.done():
            self._closed.set_result(reason)


class SimHaNetwork:
    """All HA connections of a world."""

    def __init__(self, base: Network, loop: Any, observer: HaObserver) -> None:
        self.base = base
        self.loop = loop
        self.observer = observer
        self.wires: dict[Wire, None] = {}
        self._ports: dict[str, tuple[Process, Callable[[SlaveLink], None]]] = {}

    def delay(self) -> float:
        """Of one packet."""
        return self.base.delay()

    def of(self, process: Process, address: str) -> HaEnd:
        """The network as one process sees it, whose HA port has this address."""
        return HaEnd(self, process, address)

    def gone(self, process: Process, *, silent: bool) -> None:
        """A process died."""
        for address in [a for a, (owner, _) in self._ports.items() if owner is process]:
            del self._ports[address]
        for wire in list(self.wires):
            if process in (wire.slave, wire.master):
                wire.close(process, "the process died", silent=silent)

    def break_some(self, chance: Callable[[], bool]) -> int:
        """Connections break for no reason; returns how many."""
        broken = [wire for wire in list(self.wires) if chance()]
        for wire in broken:
            wire.cut_off("the network broke it")
        return len(broken)

    def listen(self, process: Process, address: str, listener: Callable[[SlaveLink], None]) -> None:
        """Serve a port."""
        self._ports[address] = (process, listener)

    async def connect(self, slave: Process, address: str, timeout: float) -> SimMasterLink:
        """A slave connects."""
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(self.delay())
                host = self.base.host(address.rpartition(":")[0])
                if host is None or not (
                    self.base.open(slave.host, host) and self.base.open(host, slave.host)
                ):
                    await self.loop.create_future()
                await asyncio.sleep(self.delay())
        except TimeoutError:
            raise LinkClosed(f"cannot connect to {address}: no answer") from None
        port = self._ports.get(address)
        if port is None or not port[0].alive or not slave.alive:
            raise LinkClosed(f"cannot connect to {address}: Connection refused")
        master, listener = port
        wire = Wire(self, slave, master)
        wire.slave_end, wire.master_end = SimMasterLink(wire), SimSlaveLink(wire)
        self.wires[wire] = None
        master.soon(listener, wire.master_end)
        return wire.slave_end


class HaEnd:
    """Implements `HaNetwork` for one process."""

    def __init__(self, network: SimHaNetwork, process: Process, address: str) -> None:
        self._network = network
        self._process = process
        self._address = address

    async def connect(self, address: str, timeout: float) -> SimMasterLink:
        return await self._network.connect(self._process, address, timeout)

    def on_slave(self, listener: Callable[[SlaveLink], None]) -> None:
        self._network.listen(self._process, self._address, listener)
