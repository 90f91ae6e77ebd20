"""Replication without files and sockets: a log, links, disks and controllers in memory, for one event loop."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.group_link import MasterTarget, ProposalEnd, ProposalResult
from brokerset_broker.member.ha.links import LinkClosed, SlaveLink
from brokerset_broker.member.ha.replication import Replication
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.replica_log import LogSource, ReplicaLog, ReplicaLogFailed
from brokerset_protocol.ha_packets import Ack, MasterHandshake, PeerIdentity, SlaveHandshake, TransferHeader
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

T = TypeVar("T")

SEGMENT_BYTES: Final = 4_096
LATENCY_SECONDS: Final = 0.0005
CLUSTER: Final = "c"
GROUP: Final = "g"


class MemoryDisk:
    """Implements what an epoch file needs of `Disk`; everything is durable at once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def read_at(self, name: str, position: int, size: int) -> bytes:
        return self.read(name)[position : position + size]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def append(self, name: str, data: bytes) -> None:
        self.files[name] = self.files.get(name, b"") + data

    def truncate(self, name: str, size: int) -> None:
        self.files[name] = self.files[name][:size]

    def sync(self, name: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def sync_folder(self) -> None:
        pass


def run_blocking(work: Callable[[], T], /) -> Awaitable[T]:
    """Implements `RunBlocking`: the work is done now, its result takes a millisecond."""
    result = work()

    async def wait() -> T:
        await asyncio.sleep(0.001)
        return result

    return wait()


class FakeLog:
    """Implements `ReplicaLog`: records are a length of four bytes and a text, and never cross a file."""

    def __init__(self) -> None:
        self.base = 0
        self.data = bytearray()
        self.sync_flush = False
        self.flushed = 0
        self.broken: str | None = None
        """Why dispatching stopped."""
        self.full = False
        self.removed: list[tuple[int, int, bool]] = []
        """(from, to, copy kept) of every cut."""
        self.leads = False
        self._whole = 0
        self._ends: list[int] = []
        self._confirmed = 0
        self._wanted = (0, False)
        """What is to be confirmed as soon as it is dispatched, and whether that may be part of a record."""
        self._confirm_appends = False
        self._announced = False
        self._on_confirmed: list[Callable[[int], None]] = []
        self._on_appended: list[Callable[[int], None]] = []
        self._on_acknowledged: list[Callable[[], None]] = []
        self._room: bytearray | None = None
        self.confirmed_history: list[int] = []

    @property
    def min_offset(self) -> int:
        return self.base

    @property
    def max_offset(self) -> int:
        return self._whole

    @property
    def received_end(self) -> int:
        return self.base + len(self.data)

    @property
    def confirmed_offset(self) -> int:
        return self._confirmed

    @property
    def segment_bytes(self) -> int:
        return SEGMENT_BYTES

    @property
    def acknowledged_end(self) -> int:
        return min(self.flushed, self.received_end) if self.sync_flush else self.received_end

    def confirm(self, offset: int, *, partial: bool = False) -> None:
        if offset > self._wanted[0]:
            self._wanted = (offset, partial)
        offset = min(offset, self._whole)
        ends = self.ends()
        number = bisect_right(ends, offset)
        if partial:
            offset = ends[number - 1] if number else self._confirmed
        assert offset <= self._confirmed or (number and ends[number - 1] == offset), "between two records"
        if offset > self._confirmed:
            self._confirmed = offset
            self.confirmed_history.append(offset)
            for listener in self._on_confirmed:
                asyncio.get_running_loop().call_soon(listener, offset)

    def on_confirmed(self, listener: Callable[[int], None]) -> None:
        self._on_confirmed.append(listener)

    # -- leading

    def lead(self) -> None:
        assert self._whole == self.received_end, "everything received is finished"
        self.leads = True

    def on_appended(self, listener: Callable[[int], None]) -> None:
        self._on_appended.append(listener)

    def confirm_appends(self, on: bool) -> None:
        self._confirm_appends = on
        if on:
            self.confirm(self._whole)

    def append(self, text: bytes) -> int:
        """Append a record; returns its end."""
        assert self.leads, "only a log that leads is appended to"
        size = 4 + (len(text) + 3) // 4 * 4
        left = SEGMENT_BYTES - self.received_end % SEGMENT_BYTES
        if size > left:
            self.data += left.to_bytes(4, "big") + bytes(left - 4)
        self.data += size.to_bytes(4, "big") + text.ljust(size - 4, b" ")
        self._whole = self.received_end
        if self._confirm_appends:
            self.confirm(self._whole)
        if not self._announced:
            self._announced = True
            asyncio.get_running_loop().call_soon(self._announce)
        return self._whole

    def _announce(self) -> None:
        self._announced = False
        for listener in self._on_appended:
            listener(self._whole)

    def flush(self) -> None:
        """Everything is on the disk."""
        self.flushed = self.received_end
        for listener in self._on_acknowledged:
            listener()

    def view(self, offset: int, size: int) -> memoryview:
        left = SEGMENT_BYTES - offset % SEGMENT_BYTES
        begin = offset - self.base
        return memoryview(bytes(self.data[begin : begin + min(size, left)]))

    def source(self, offset: int, size: int) -> LogSource:
        raise NotImplementedError

    # -- following

    def follow(self) -> None:
        self.leads = False
        self._confirm_appends = False

    def room(self, size: int) -> memoryview:
        assert not self.leads
        if self.full:
            raise ReplicaLogFailed("no space left on device")
        left = SEGMENT_BYTES - self.received_end % SEGMENT_BYTES
        self._room = bytearray(min(size, left))
        return memoryview(self._room)

    def received(self, size: int) -> None:
        assert self._room is not None
        self.data += self._room[:size]
        self._room = None
        self._dispatch()

    def on_acknowledged(self, listener: Callable[[], None]) -> None:
        self._on_acknowledged.append(listener)

    def failure(self) -> str | None:
        return self.broken

    async def finish_received(self) -> int:
        await asyncio.sleep(0.001)
        self._dispatch()
        if self.broken is not None:
            raise ReplicaLogFailed(self.broken)
        del self.data[self._whole - self.base :]
        return self._whole

    async def truncate(self, offset: int, *, keep_copy: bool) -> None:
        await asyncio.sleep(0.001)
        assert offset in {self.base, *self.ends()}, "cut between two records"
        self.removed.append((offset, self.received_end, keep_copy))
        del self.data[offset - self.base :]
        self._whole, self._confirmed = offset, min(offset, self._confirmed)
        self._wanted = (self._confirmed, False)
        self.flushed = min(offset, self.flushed)

    async def begin_at(self, offset: int) -> None:
        await asyncio.sleep(0.001)
        assert offset % SEGMENT_BYTES == 0
        self.removed.append((self.base, self.received_end, False))
        self.data.clear()
        self._ends.clear()
        self._wanted = (offset, False)
        self.base = self._whole = self._confirmed = self.flushed = offset

    # -- for tests

    def ends(self) -> list[int]:
        """Ends of all whole records."""
        found = self._ends
        while found and found[-1] > self.received_end:
            found.pop()
        position = found[-1] - self.base if found else 0
        while position + 4 <= len(self.data):
            size = int.from_bytes(self.data[position : position + 4], "big")
            if position + size > len(self.data):
                break
            position += size
            found.append(self.base + position)
        return found

    def texts(self) -> list[bytes]:
        """All records, without fillers."""
        found, begin = [], self.base
        for end in self.ends():
            text = bytes(self.data[begin - self.base + 4 : end - self.base]).rstrip(b" ")
            if text.strip(b"\0"):
                found.append(text)
            begin = end
        return found

    def drop_before(self, offset: int) -> None:
        """Remove old files, as retention does."""
        assert offset % SEGMENT_BYTES == 0
        del self.data[: offset - self.base]
        self.base = offset
        self._ends = [end for end in self._ends if end > offset]

    def _dispatch(self) -> None:
        self._whole = max([self._whole, *self.ends()[-1:]])
        wanted, partial = self._wanted
        if wanted > self._confirmed:
            self.confirm(min(wanted, self._whole), partial=partial)


class _Pair:
    """One connection: packets arrive in order, after a latency; `stalled` ones wait."""

    def __init__(self, master: str, slave: str) -> None:
        self.names = (master, slave)
        self.reason: str | None = None
        self.stalled = False
        self.acks_held = False
        self.broken_promise: AssertionError | None = None
        self.lose_packets = 0
        """So many of the next packets to the slave are lost, as no network does."""
        self.master_end = FakeSlaveLink(self, slave)
        self.slave_end = FakeMasterLink(self, master)
        self.done = asyncio.Event()

    def close(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            self.done.set()
            self.master_end.changed.set()
            self.slave_end.changed.set()
            for listener in self.master_end.on_close_listeners:
                listener(reason)

    def check(self) -> None:
        if self.reason is not None:
            raise LinkClosed(self.reason)


class FakeSlaveLink:
    """Implements `SlaveLink`."""

    def __init__(self, pair: _Pair, peer: str) -> None:
        self.pair, self.peer = pair, peer
        self.hello: SlaveHandshake | None = None
        self.changed = asyncio.Event()
        self.on_close_listeners: list[Callable[[str], None]] = []
        self.sent: deque[Ack] = deque()
        self._on_ack: Callable[[Ack], None] = lambda ack: None

    async def handshake(self) -> SlaveHandshake:
        while self.hello is None:
            self.pair.check()
            await self.changed.wait()
            self.changed.clear()
        return self.hello

    async def send_handshake(self, packet: MasterHandshake) -> None:
        self.pair.check()
        await asyncio.sleep(LATENCY_SECONDS)
        self.pair.slave_end.answer = packet
        self.pair.slave_end.changed.set()

    def on_ack(self, listener: Callable[[Ack], None]) -> None:
        self._on_ack = listener

    def on_close(self, listener: Callable[[str], None]) -> None:
        self.on_close_listeners.append(listener)

    async def send(self, header: TransferHeader, log: ReplicaLog) -> None:
        self.pair.check()
        body = bytes(log.view(header.offset, header.size)) if header.size else b""
        assert len(body) == header.size, "a packet is whole"
        if self.pair.stalled:
            await self.pair.done.wait()
        self.pair.check()
        if self.pair.lose_packets:
            self.pair.lose_packets -= 1
            return
        self.pair.slave_end.sent.append((header, body))
        asyncio.get_running_loop().call_later(LATENCY_SECONDS, self.pair.slave_end.arrive)

    def take_ack(self) -> None:
        """The oldest acknowledgement that is on its way arrives."""
        ack = self.sent.popleft()
        if self.pair.reason is None and not self.pair.acks_held:
            self._on_ack(ack)

    def close(self, reason: str) -> None:
        self.pair.close(reason)


class FakeMasterLink:
    """Implements `MasterLink`."""

    def __init__(self, pair: _Pair, peer: str) -> None:
        self.pair, self.peer = pair, peer
        self.answer: MasterHandshake | None = None
        self.changed = asyncio.Event()
        self.headers: list[TransferHeader] = []
        self.acks: list[int] = []
        self.sent: deque[tuple[TransferHeader, bytes]] = deque()
        self._queue: list[tuple[TransferHeader, bytes]] = []
        self._log: ReplicaLog | None = None
        self._on_header: Callable[[TransferHeader], Awaitable[None] | None] | None = None
        self._pump: asyncio.Task[None] | None = None

    async def shake_hands(self, packet: SlaveHandshake) -> MasterHandshake:
        self.pair.check()
        await asyncio.sleep(LATENCY_SECONDS)
        self.pair.master_end.hello = packet
        self.pair.master_end.changed.set()
        while self.answer is None:
            self.pair.check()
            await self.changed.wait()
            self.changed.clear()
        return self.answer

    def receive_into(
        self, log: ReplicaLog, on_header: Callable[[TransferHeader], Awaitable[None] | None]
    ) -> None:
        self._log, self._on_header = log, on_header
        self._next()

    def arrive(self) -> None:
        """The oldest packet that is on its way arrives; timers of one moment have no order."""
        self._queue.append(self.sent.popleft())
        self._next()

    def _next(self) -> None:
        if self._pump is None and self._queue and self._on_header is not None:
            self._pump = asyncio.get_running_loop().create_task(self._take())

    async def _take(self) -> None:
        assert self._log is not None
        assert self._on_header is not None
        try:
            while self._queue and self.pair.reason is None:
                header, body = self._queue.pop(0)
                self.headers.append(header)
                awaited = self._on_header(header)
                if awaited is not None:
                    await awaited
                while body and self.pair.reason is None:
                    room = self._log.room(len(body))
                    size = len(room)
                    room[:] = body[:size]
                    body = body[size:]
                    self._log.received(size)
        except (LinkClosed, ReplicaLogFailed) as error:
            self.pair.close(str(error))
        except AssertionError as error:
            self.pair.broken_promise = error
            self.pair.close("a promise was broken")
        finally:
            self._pump = None

    def send_ack(self, packet: Ack) -> None:
        if self.pair.reason is None:
            self.acks.append(packet.offset)
            self.pair.master_end.sent.append(packet)
            asyncio.get_running_loop().call_later(LATENCY_SECONDS, self.pair.master_end.take_ack)

    async def closed(self) -> str:
        await self.pair.done.wait()
        assert self.pair.reason is not None
        return self.pair.reason

    def close(self, reason: str) -> None:
        self.pair.close(reason)


class FakeNetwork:
    """All brokers' HA ports; `network(name)` is what one of them sees."""

    def __init__(self) -> None:
        self.pairs: list[_Pair] = []
        self.unreachable: set[str] = set()
        self.silent: set[str] = set()
        self._listeners: dict[str, Callable[[SlaveLink], None]] = {}

    def network(self, name: str) -> _Port:
        return _Port(self, name)

    def between(self, master: str, slave: str) -> list[_Pair]:
        """Open connections, oldest first."""
        return [p for p in self.pairs if p.names == (master, slave) and p.reason is None]

    def check(self) -> None:
        """Raise what a log found wrong with what it was told to do."""
        for pair in self.pairs:
            if pair.broken_promise is not None:
                raise pair.broken_promise

    def silence(self, name: str) -> None:
        """Drop whatever goes to a broker or comes from it; nobody is told."""
        self.silent.add(name)
        for pair in self.pairs:
            if name in pair.names:
                pair.acks_held, pair.lose_packets = True, 1_000_000

    def isolate(self, name: str) -> None:
        """Cut a broker off."""
        self.unreachable.add(name)
        for pair in self.pairs:
            if name in pair.names:
                pair.close("the network is cut")


class _Port:
    """Implements `HaNetwork` for one broker."""

    def __init__(self, network: FakeNetwork, name: str) -> None:
        self._network, self._name = network, name

    async def connect(self, address: str, timeout: float) -> FakeMasterLink:
        await asyncio.sleep(LATENCY_SECONDS)
        if {address, self._name} & self._network.silent:
            await asyncio.sleep(timeout)
            raise LinkClosed(f"{address}: no answer in time")
        listener = self._network._listeners.get(address)
        if listener is None or {address, self._name} & self._network.unreachable:
            raise LinkClosed(f"{address}: connection refused")
        pair = _Pair(address, self._name)
        self._network.pairs.append(pair)
        listener(pair.master_end)
        pair.check()
        return pair.slave_end

    def on_slave(self, listener: Callable[[SlaveLink], None]) -> None:
        self._network._listeners[self._name] = listener


class FakeControllers:
    """The group's state, and what may go wrong with proposals."""

    def __init__(self) -> None:
        self.epoch = 0
        self.master_id: int | None = None
        self.sync_state_set: frozenset[int] = frozenset()
        self.set_epoch = 0
        self.lose_replies = 0
        """So many of the next proposals are carried out without an answer."""
        self.lose_requests = 0
        self.refuse_joins: set[int] = set()
        self.silent = False
        self.takes_same_set = False
        """Whether the set in force may be proposed, as to our own controllers; RocketMQ's refuse it."""
        self.proposals: list[tuple[frozenset[int], int]] = []

    def elect(self, broker_id: int) -> RoleState:
        """Make a broker master of a new epoch, alone in the set."""
        self.epoch += 1
        self.set_epoch += 1
        self.master_id, self.sync_state_set = broker_id, frozenset((broker_id,))
        return self.change()

    def change(self) -> RoleState:
        """The role of the master, as it would be told."""
        return RoleState(
            Role.MASTER, self.epoch, self.set_epoch, self.master_id, str(self.master_id), self.sync_state_set
        )

    async def propose(self, wanted: frozenset[int], set_epoch: int, master_epoch: int) -> ProposalResult:
        self.proposals.append((wanted, set_epoch))
        await asyncio.sleep(0.005)
        if self.silent:
            await asyncio.sleep(3)
            return ProposalResult(ProposalEnd.UNKNOWN)
        if self.lose_requests:
            self.lose_requests -= 1
            await asyncio.sleep(1)
            return ProposalResult(ProposalEnd.UNKNOWN)
        refused = (
            (wanted == self.sync_state_set and not self.takes_same_set)
            or set_epoch != self.set_epoch
            or master_epoch != self.epoch
            or wanted & self.refuse_joins
        )
        if refused:
            return ProposalResult(ProposalEnd.REFUSED, remark="refused")
        self.sync_state_set, self.set_epoch = wanted, self.set_epoch + 1
        if self.lose_replies:
            self.lose_replies -= 1
            await asyncio.sleep(1)
            return ProposalResult(ProposalEnd.UNKNOWN)
        return ProposalResult(ProposalEnd.ACCEPTED, wanted, self.set_epoch)


class FakeGroup:
    """Implements `GroupLink` for one broker."""

    def __init__(self, controllers: FakeControllers) -> None:
        self.controllers = controllers
        self.broker: FakeBroker | None = None
        self.asked = 0
        self.reliefs: list[tuple[int, int]] = []
        self.tries_relief = True
        self.is_ours = True

    async def find_master(self, change: RoleState) -> MasterTarget:
        await asyncio.sleep(LATENCY_SECONDS)
        return MasterTarget(str(change.master_id), self.is_ours)

    async def propose(
        self, wanted: frozenset[int], set_epoch: int, master_epoch: int, nonces: Mapping[int, str]
    ) -> ProposalResult:
        return await self.controllers.propose(wanted, set_epoch, master_epoch)  # it has one process an id

    def relieve(self, epoch: int, needed: int, *, begin: bool) -> bool:
        """Try as long as it may be begun; these controllers elect nobody by themselves."""
        if begin:
            self.reliefs.append((epoch, needed))
        return begin and self.tries_relief

    def ask_soon(self) -> None:
        self.asked += 1
        if not self.controllers.silent:
            asyncio.get_running_loop().call_later(0.05, self._tell)

    def _tell(self) -> None:
        told = self.controllers
        if self.broker is not None:
            self.broker.replication.adopt(told.sync_state_set, told.set_epoch, told.epoch)


class FakeBroker:
    """A broker that is nothing but replication."""

    def __init__(
        self,
        broker_id: int,
        network: FakeNetwork,
        controllers: FakeControllers,
        settings: BrokerSettings | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.name = str(broker_id)
        self.settings = settings or BrokerSettings()
        self.log = FakeLog()
        self.log.sync_flush = self.settings.flush_disk_type == "SYNC_FLUSH"
        self.disk = MemoryDisk()
        self.epochs = EpochFile(self.disk)
        self.controllers = controllers
        self.network = network
        self.group = FakeGroup(controllers)
        self.group.broker = self
        self.flush_waiters: list[tuple[int, Callable[[bool], None]]] = []
        self.replication = self._replication()
        self._task: asyncio.Task[None] | None = None

    def may_join(self) -> bool:
        """Whether this replica may be in sync; tests replace it."""
        return True

    def on_waiting_change(self) -> None:
        """Whether sends wait has changed; tests replace it."""

    def on_service_change(self) -> None:
        """What may be served has changed; tests replace it."""

    def _replication(self) -> Replication:
        return Replication(
            settings=lambda: self.settings,
            log=self.log,
            epochs=self.epochs,
            network=self.network.network(self.name),
            clock=ManualClock(),
            run_blocking=run_blocking,
            identity=lambda: PeerIdentity(CLUSTER, GROUP, self.broker_id, f"nonce-{self.name}", 0),
            group=self.group,
            flushed=lambda end, callback: self.flush_waiters.append((end, callback)),
            may_join=lambda: self.may_join(),
            on_waiting_change=lambda: self.on_waiting_change(),
            on_service_change=lambda: self.on_service_change(),
        )

    def start(self) -> None:
        """Run; `stop` ends it."""
        self._task = asyncio.get_running_loop().create_task(self.replication.run())

    async def stop(self) -> None:
        """End the process in order: connections close."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def lead(self, change: RoleState) -> None:
        """Become master, without what belongs to other parts of a broker."""
        await self.replication.stop_following()
        await self.replication.finish_received()
        assert await self.replication.begin_epoch(change.epoch)
        self.replication.adopt(change.sync_state_set, change.set_epoch, change.epoch)
        self.replication.accept_replicas(change.epoch, change.sync_state_set, change.set_epoch)

    async def obey(self, change: RoleState) -> None:
        """Become slave of the master that `change` tells of."""
        self.replication.close_replicas("slave now")
        self.replication.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
        await self.replication.stop_following()
        self.replication.follow(replace(change, role=Role.SLAVE))

    def send(self, text: str) -> tuple[int, asyncio.Future[PutStatus]]:
        """Append a record as a send does; its end, and how it is answered."""
        future: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        end = self.log.append(text.encode())
        self.replication.when_acknowledged(end, future.set_result)
        return end, future
