"""One broker's request side, run through an episode: all that the outside sees of it, action by action.

A whole broker as `brokerset_broker.app` builds it, without sockets: connections have transports of ours, time is
virtual, nothing runs in threads. So a trace depends on the episode and on the code alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import random
import shutil
import socket
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import structlog

from brokerset_acl.access_book import AccessBook
from brokerset_acl.policies import Acl, Action, Decision, Entry, resource_of
from brokerset_acl.users import User, UserStatus, UserType, subject_of
from brokerset_broker.app import Broker
from brokerset_broker.member.alone import Alone
from brokerset_broker.member.dledger.ledger_member import LedgerMember
from brokerset_broker.member.group_member import GroupMember
from brokerset_broker.requests.send_runs import SendRuns
from brokerset_broker.store import flush, message_store
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_broker.tables.access import AccessTable
from brokerset_broker.tables.ordered.values import OrderedQueue, Subject, SubjectsPut
from brokerset_formats.config import TopicConfig
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_rig import send_episodes as episodes
from brokerset_rig.send_frames import TOPICS
from brokerset_rig.signed_frames import LATER_PASSWORD, PASSWORD
from brokerset_runtime.remoting import Connection, Handler, ServerLimits
from brokerset_runtime.remoting.connection import ConnectionLimits, Reply
from brokerset_sim.loop import VirtualLoop
from brokerset_sim.page_files import Inline, InlineSync
from brokerset_spec.broker_settings import BrokerSettings

SEND_CODES: Final = frozenset({10, 310, 320})
TURNS_MAX: Final = 500
PROCESS_ID: Final = 4711
FIRST_MS: Final = 1_700_000_123_456

INNER: Final = '{"accessKey":"inner","secretKey":"inner-key"}'


def _may_send(user: str, resource: str, decision: Decision = Decision.ALLOW, *sources: str) -> Acl:
    named = resource_of(resource)
    assert named is not None, resource
    return Acl(subject_of(user), (Entry(named, (Action.PUB,), decision, sources),))


USERS: Final = {
    "app": User("app", PASSWORD),
    "root": User("root", PASSWORD, UserType.SUPER),
    "guest": User("guest", PASSWORD),
    "off": User("off", PASSWORD, UserType.SUPER, UserStatus.DISABLE),
    "späher": User("späher", PASSWORD),
}
"""Of `brokerset_rig.signed_frames`."""

ACLS: Final = {
    "User:app": _may_send("app", "Topic:*"),
    "User:guest": _may_send("guest", "Topic:t", Decision.ALLOW, "10.0.0.1"),
}

Observed = tuple[Any, ...]
"""What one action has done: values that can be compared and pickled."""


@dataclass
class Trace:
    """All that is seen of an episode."""

    observed: list[Observed] = field(default_factory=list)
    sends_of_python: list[int] = field(default_factory=list)
    """Opaques of the sends that came to a handler. Not compared: those that a native path served are missing."""


class LoopClock:
    """The virtual loop's time, and a wall clock that can jump."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.offset_ms = FIRST_MS

    def now_ms(self) -> int:
        return self.offset_ms + int(self._loop.time() * 1000 + 0.5)

    def monotonic(self) -> float:
        return self._loop.time() + 1.0


class FakeTransport(asyncio.Transport):
    """Keeps what is written; tells the connection to pause while a client that does not read has too much."""

    def __init__(self, connection: Connection, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("10.1.2.3", 10_911)})
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._high = 0
        self._unread = 0
        self._paused = False
        self._closing = False
        self.reads = True
        self.reading = True
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self._unread

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        if not self.reads:
            self._unread += len(data)
            if self._unread > self._high and not self._paused:
                self._paused = True
                self._connection.pause_writing()

    def read_on(self, on: bool) -> None:
        self.reads = on
        if on:
            self._unread = 0
            if self._paused:
                self._paused = False
                self._connection.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()


class SendSide(Broker):
    """A broker without ports, whose replicas confirm when they are told to."""

    def __init__(self, setup: episodes.Setup, folder: Path, clock: LoopClock) -> None:
        limits = ConnectionLimits(
            in_flight_max=setup.in_flight_max,
            write_buffer_high=setup.write_buffer_high,
            outgoing_max=setup.outgoing_max,
        )
        settings = BrokerSettings(
            store_path_root_dir=folder, broker_ip1=setup.ip, listen_port=setup.port, http_port=0, region_id=setup.region, trace_on=setup.trace_on,
            mapped_file_size_commit_log=setup.commit_log_bytes, mapped_file_size_consume_queue=20 * setup.queue_units,
            message_index_enable=setup.index, max_hash_slot_num=setup.index_slots, max_index_num=setup.index_units, max_message_size=setup.body_max,
            enabled_append_prop_crc=setup.appends_crc, flush_disk_type="SYNC_FLUSH" if setup.sync_flush else "ASYNC_FLUSH", sync_flush_timeout=50,
            enable_lmq=setup.light_queues, enable_multi_dispatch=setup.light_queues, max_lmq_consume_queue_num=2,
            refuse_other_message_types=setup.other_types_refused,
            authentication_enabled=setup.signed, authorization_enabled=setup.signed, broker_cluster_name="C",
            inner_client_authentication_credentials=INNER if setup.signed else "",
            enable_controller_mode=setup.replicated, controller_addr="127.0.0.1:9878" if setup.replicated else "",
        )  # fmt: skip
        super().__init__(settings, clock=clock, limits=ServerLimits(connection=limits))
        self._setup = setup
        self.waiting: list[tuple[int, Callable[[PutStatus], None]]] = []
        self.arrived: list[tuple[str, int, int, int | None]] = []
        self.raised: list[tuple[str, str]] = []
        self.sends_of_python: list[int] = []
        self.replica: StoreReplicaLog | None = None

    async def open(self) -> None:
        """Start, and have the topics of episodes."""
        with mock.patch.object(os, "getpid", return_value=PROCESS_ID):
            await self.start()
        if self._setup.signed:
            self.access.put(USERS, ACLS)
        for topic in TOPICS:
            if self.topics.get(topic) is None:
                self.topics.put(TopicConfig(topic, 4, 4, 6))
        assert self._server is not None
        self._server._handlers = {
            code: self._watched(handler) for code, handler in self._server._handlers.items()
        }
        on_arrival = self.store.on_arrival
        assert on_arrival is not None

        def note(*arrival: Any) -> None:
            self.arrived.append(arrival)
            on_arrival(*arrival)

        self.store.on_arrival = note

    def _bind(self) -> tuple[list[socket.socket], socket.socket | None]:
        self.port = self.settings.listen_port
        return [], None

    async def _take_part(self, group_socket: socket.socket | None) -> GroupMember | LedgerMember | Alone:
        if self._setup.replicated:
            self.replica = StoreReplicaLog(self.store)
            self.admission.when_durable = lambda end, callback: self.waiting.append((end, callback))
        part = await super()._take_part(group_socket)
        if self.replica is not None:
            self.replica.lead()
        return part

    def _watched(self, handler: Handler) -> Handler:
        def watch(connection: Connection, command: Command) -> Reply:
            if command.code in SEND_CODES:
                self.sends_of_python.append(command.opaque)
            try:
                return handler(connection, command)
            except Exception as error:
                self.raised.append((type(error).__name__, str(error)))
                raise

        return watch

    def connect(self, number: int, client: int) -> tuple[Connection, FakeTransport]:
        """A new connection of a client."""
        assert self._server is not None
        connection = self._server._new_connection()
        transport = FakeTransport(connection, (episodes.CLIENTS[client], 40_000 + number))
        connection.connection_made(transport)
        return connection, transport

    def counted(self) -> Observed:
        """Every counter that a send moves."""
        stats, traffic = self.stats, self.traffic
        return (
            (stats.put_messages, stats.put_bytes, stats.put_failed, stats.put_calls),
            sorted((topic, flow.messages, flow.size, flow.calls) for topic, flow in stats.topics()),
            sorted((key, value.bytes_in, tuple(value.sizes)) for key, value in traffic.incoming.items()),
            sorted(traffic.dead_lettered.items()),
            self._put_aside(),
            sorted(self.access_control.denied.items()),
        )

    def _put_aside(self) -> Observed:
        """What is known of messages that wait: which transactions are open, how many timers are to be linked."""
        resolved, counts = self.transaction_log.resolved, self.transaction_log.counts
        halves = None
        if resolved is not None:
            halves = [(number, resolved.place_of(number)) for number in resolved.open_halves()]
            halves.append((resolved.half_end, resolved.room))
        return (
            halves, sorted((topic, each.open, each.changed_ms) for topic, each in counts.topics.items()), counts.changed,
            self.timers.enqueue_lag(),
        )  # fmt: skip

    def stored(self) -> Observed:
        """Where the log, the queues and the index end."""
        store = self.store
        log = store.log
        queues = [
            (queue.topic, queue.queue_id, queue.next_offset, queue.last_end, queue.position, queue.min_offset)
            for queue in store.queues_table
        ]
        return (
            (log.max_offset, log.store_timestamp, log.flushed_offset, log.min_offset),
            store.refusal, store.dispatcher.index_missing_from, sorted(queues),
        )  # fmt: skip


class Run:
    """An episode on its way."""

    def __init__(self, episode: episodes.Episode, folder: Path, *, detailed: bool) -> None:
        self._episode = episode
        self._folder = folder
        self._detailed = detailed
        self._loop = asyncio.get_running_loop()
        self._clock = LoopClock(self._loop)
        self._links: dict[int, tuple[Connection, FakeTransport]] = {}
        self._made = 0
        self._no_blocks = False
        self._read_to = 0
        self._unconfirmed: list[int] = []
        """Ends of the log after chunks whose answers may still wait."""

        self.trace = Trace()
        self.side = SendSide(episode.setup, folder, self._clock)

    async def whole(self) -> None:
        """Everything, and the end."""
        real_allocate = os.posix_fallocate

        def allocate(descriptor: int, begin: int, size: int) -> None:
            if self._no_blocks:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real_allocate(descriptor, begin, size)

        with mock.patch.object(os, "posix_fallocate", allocate):
            random.seed(self._episode.seed)
            await self.side.open()
            for number, action in enumerate(self._episode.actions):
                random.seed(number)
                seen = await self._act(action)
                self.trace.observed.append((type(action).__name__, *seen, *self._outside()))
            await self._end(cleanly=True)
            self.trace.observed.append(("files", self._files()))

    async def _act(self, action: episodes.Action) -> Observed:
        match action:
            case episodes.Chunks(client, pieces):
                for piece in pieces:
                    self._receive(client, piece)
                return ()
            case episodes.Turn():
                await self._turn()
                return self.side.counted() + self.side.stored()
            case episodes.Sleep(ms, jump_ms):
                self._clock.offset_ms += jump_ms
                await asyncio.sleep(ms / 1000)
                await self._turn()
            case episodes.Confirm(count, status):
                self._confirm(count, PutStatus[status])
            case episodes.Reading(client, on):
                if client in self._links:
                    self._links[client][1].read_on(on)
            case episodes.Leave(client):
                if client in self._links:
                    self._links[client][1].close()
                    await self._turn()
            case episodes.Event(name):
                await self._switch(name)
            case episodes.Restart(cleanly):
                await self._end(cleanly=cleanly)
                files = self._files()
                self._links.clear()
                self.side = SendSide(self._episode.setup, self._folder, self._clock)
                await self.side.open()
                self._read_to = self.side.store.log.max_offset
                return files, self.side.stored()
        return ()

    def _receive(self, client: int, piece: bytes) -> None:
        link = self._links.get(client)
        if link is None or link[1].is_closing():
            self._made += 1
            link = self._links[client] = self.side.connect(self._made, client)
        link[0].data_received(piece)
        end = self.side.store.log.max_offset
        if self.side.waiting and self._unconfirmed[-1:] != [end]:
            self._unconfirmed.append(end)

    async def _turn(self) -> None:
        """Let everything run that is ready."""
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if not self._loop._ready:  # type: ignore[attr-defined]  # the loop's own queue
                return
        raise AssertionError(f"something is always ready, after {TURNS_MAX} turns")

    def _confirm(self, count: int, status: PutStatus) -> None:
        """What the first so many chunks have stored gets a status; a path may wait for all of a chunk at once."""
        done, self._unconfirmed = self._unconfirmed[:count], self._unconfirmed[count:]
        if done:
            self._tell(done[-1], status)

    def _tell(self, offset: int, status: PutStatus) -> None:
        side = self.side
        told = [callback for end, callback in side.waiting if end <= offset]
        side.waiting = [each for each in side.waiting if each[0] > offset]
        if told and side.replica is not None and status is PutStatus.PUT_OK:
            side.replica.confirm(offset)
        for callback in told:
            callback(status)

    async def _switch(self, name: str) -> None:
        side = self.side
        match name:
            case "refuse writes":
                side.admission.refuse_writes()
            case "accept writes":
                side.admission.accept_writes()
            case "disk nearly full":
                side.store._set_disk_full(True)
            case "disk has room":
                side.store._set_disk_full(False)
            case "no blocks":
                self._no_blocks = True
            case "blocks":
                self._no_blocks = False
                side.store.catch_up_index()
            case "flush paused":
                await side.store.flusher.pause()
            case "flush resumed":
                side.store.flusher.resume()
            case "store follows":
                side.store.follow("another broker is master")
            case "store leads":
                side.store.lead()
            case "forget facts":
                side._send.topics.forget_all()
            case "ordered subject":
                queue = OrderedQueue(100, PartitionStatus.OPEN)
                side.ordered.apply(SubjectsPut({TOPICS[1]: Subject(OrderStrategy.STRICT, 1, {0: queue})}))
            case _:
                _change_access(side.access, name)

    async def _end(self, *, cleanly: bool) -> None:
        side = self.side
        self._no_blocks = False
        self._tell(side.store.log.max_offset, PutStatus.SERVICE_NOT_AVAILABLE)
        self._unconfirmed.clear()
        await self._turn()
        side.store.flusher.resume()
        if cleanly:
            await side.close()
        else:
            side.services.stop_now()
            side.parked_pulls.close()
            for _, transport in self._links.values():
                transport.close()
            await self._turn()
            side.store.abandon()
            side._server = None
        await self._turn()
        self.trace.sends_of_python += side.sends_of_python

    # -- what is seen -------------------------------------------------------------------------------------

    def _outside(self) -> Observed:
        side = self.side
        links = []
        for client, (connection, transport) in self._links.items():
            links.append(
                (
                    client, self._print(transport.written), connection.in_flight, connection.unfinished_since, connection.last_activity,
                    connection.protocol_error, transport.is_closing(), transport.reading, connection.state.get("born_host"),
                )
            )  # fmt: skip
            transport.written.clear()
        arrived, side.arrived = side.arrived, []
        raised, side.raised = side.raised, []
        return links, self._log(side.store), arrived, raised, bool(side.waiting)

    def _log(self, store: MessageStore) -> Observed:
        """The end of the log, and what is new in it."""
        end = store.log.max_offset
        parts = []
        while self._read_to < end:
            file = store.log.files.find(self._read_to)
            assert file is not None, "the log ends where its files end"
            until = min(end, file.end)
            parts.append(self._print(file.view[self._read_to - file.start : until - file.start]))
            self._read_to = until
        return end, parts

    def _print(self, data: bytes | bytearray | memoryview) -> Any:
        return bytes(data) if self._detailed else zlib.crc32(data)

    def _files(self) -> Mapping[str, Any]:
        return {
            str(path.relative_to(self._folder)): path.read_bytes()
            if self._detailed
            else hashlib.blake2b(path.read_bytes(), digest_size=8).digest()
            for path in sorted(self._folder.rglob("*"))
            if path.is_file()
        }


def _change_access(access: AccessTable, name: str) -> None:
    """Change users or policies, as another broker tells it."""
    app = USERS["app"]
    match name:
        case "password changed":
            access.put({"app": replace(app, password=LATER_PASSWORD)}, {})
        case "user disabled":
            access.put({"app": replace(app, status=UserStatus.DISABLE)}, {})
        case "user deleted":
            access.put({"app": None}, {})
        case "topic denied":
            access.put({}, {"User:app": _may_send("app", "Topic:t", Decision.DENY)})
        case "password back" | "user enabled" | "topic allowed" | "user back":
            access.put(USERS, ACLS)
        case "book taken over":
            access.take_over(AccessBook({"app": app}, {"User:app": _may_send("app", "Topic:orders")}))
        case _:
            raise AssertionError(f"no such event: {name}")


@contextlib.contextmanager
def request_by_request() -> Iterator[None]:
    """Every request comes to its handler by itself: `SendRuns` serves none."""
    with mock.patch.object(SendRuns, "serve", return_value=0):
        yield


def run_episode(episode: episodes.Episode, *, detailed: bool = False) -> Trace:
    """What the broker of this process makes of an episode; `detailed`: with bytes instead of sums of them."""

    async def main() -> Trace:
        run = Run(
            episode, Path("store"), detailed=detailed
        )  # errors name it, and it must be the same for all
        await run.whole()
        return run.trace

    with (
        silent(),
        memory_folder() as folder,
        contextlib.chdir(folder),
        mock.patch.object(message_store, "ThreadPoolExecutor", Inline),
        mock.patch.object(flush, "SyncThread", InlineSync),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        return runner.run(main())


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory, where the machine has one: nothing here is about disks."""
    memory = Path("/dev/shm")
    folder = Path(
        tempfile.mkdtemp(prefix="brokerset-sends-", dir=memory if os.access(memory, os.W_OK) else None)
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """No log lines: spoilt requests make thousands."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def served_natively(
    episode: episodes.Episode, reference: Trace, native: Trace
) -> tuple[Counter[str], Counter[str]]:
    """Of the sends that the reference served: how many the native path served, and how many there were, by kind.

    A request whose opaque was spoilt is of the kind `unknown`.
    """
    all_of_them = Counter(reference.sends_of_python)
    declined = Counter(native.sends_of_python)
    served: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for opaque, count in all_of_them.items():
        kind = episode.kinds.get(opaque, "unknown")
        total[kind] += count
        served[kind] += count - declined[opaque]
    return served, total
