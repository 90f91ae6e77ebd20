"""Following a master: find it, agree on a common log, receive, acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

import structlog

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.group_link import GroupLink, MasterTarget
from brokerset_broker.member.ha import following
from brokerset_broker.member.ha.following import CannotFollow, Follow, FullResync, OwnLog, Refuse, Truncate
from brokerset_broker.member.ha.links import HaNetwork, LinkClosed, MasterLink
from brokerset_broker.member.ha.rebuilding import Rebuilding
from brokerset_broker.member.ha.repairs import DAMAGE_ADVICE
from brokerset_broker.member.ha.views import FollowerView
from brokerset_broker.member.ha.waiting import Rate
from brokerset_broker.member.role import RoleState
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_formats.epochs import EpochHistory, history_of
from brokerset_formats.errors import FormatError
from brokerset_protocol.ha_packets import Ack, MasterHandshake, PeerIdentity, SlaveHandshake, TransferHeader
from brokerset_runtime.disk import RunBlocking
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

CONNECT_SECONDS_MAX: Final = 5.0
FIND_SECONDS_MAX: Final = 10.0
"""For asking the master who it is; the membership gives up earlier."""

HANDSHAKE_SECONDS_MAX: Final = 5.0

AGAIN_SECONDS_MAX: Final = 0.5
"""For another connection to a master of ours that was followed before: it takes one at once, or its network
is away. A new attempt finds it back sooner than the kernel does, which waits longer after each packet."""

SILENCE_MORE_SECONDS: Final = 1.0
"""A master of ours that is silent for `haMaxTimeSlaveNotCatchup` and so much longer is connected to again.
Before that it may hand over, as long as this replica's connection has not ended. The kernel sends again what
was lost after 0.2, 0.6, 1.4, 3 and 6.2 s."""

CHECK_AGAIN_SECONDS: Final = 0.05
"""After a silence: what had come already is read first."""

PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 1.0
"""Waits before another connection, doubled from the first to the second."""

STEADY_SECONDS: Final = 1.0
"""After a transfer of this length the waits begin with the smallest again."""


@dataclass(frozen=True, slots=True)
class InForce:
    """What the controllers last said to be in force."""

    epoch: int = -1
    set_epoch: int = -1
    sync_state_set: frozenset[int] = frozenset()

    def newer(self, other: InForce) -> InForce:
        """The newer of the two."""
        return max(self, other, key=lambda word: (word.epoch, word.set_epoch, bool(word.sync_state_set)))


@dataclass(slots=True)
class FollowerParts:
    """What a follower works with."""

    settings: Callable[[], BrokerSettings]
    log: ReplicaLog
    epochs: EpochFile
    network: HaNetwork
    group: GroupLink
    run_blocking: RunBlocking
    identity: Callable[[], PeerIdentity | None]
    in_force: Callable[[], InForce]
    on_truncated: Callable[[int], None]
    """Told how many bytes were truncated from the log."""
    may_join: Callable[[], bool] = lambda: True
    """Whether this replica may be taken into the in-sync set; while not, it follows as a learner."""


class _AcknowledgingLog:
    """The log as a link sees it: what is received is acknowledged, and the link writes that once in a turn of
    reading, before the records are dispatched."""

    def __init__(self, inner: ReplicaLog, on_received: Callable[[int], None]) -> None:
        self._inner = inner
        self._on_received = on_received
        self.room = inner.room

    def received(self, size: int) -> None:
        self._inner.received(size)
        self._on_received(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(slots=True)
class _Session:
    """One connection after its handshake."""

    link: MasterLink
    epoch: int
    is_ours: bool
    master: EpochHistory
    """The master's epochs, as far as it has told them."""
    master_end: int
    """Where the master's log ended at the handshake."""
    full_resync: bool
    """Whether the log begins with the next packet."""
    heard_at: float
    loop: asyncio.AbstractEventLoop
    usual: tuple[int, int] | None = None
    """Epoch, and where it begins, of the last packet whose epoch was checked in full: the next ones with the
    same label differ in their offset only."""
    apart: bool = False
    """Whether it follows as a learner because it may not join the in-sync set yet."""
    is_first: bool = True
    """Whether the next packet is the first one: only that one may show that the master's log begins behind
    our end."""
    ended: bool = False
    acknowledged: int = -1
    ack_is_due: bool = False
    ack_forced: bool = False
    last_confirmed: int = -1
    failure: str = ""
    completed: bool = False
    """Whether it was written down that the log has everything again."""
    work: list[asyncio.Task[None]] = field(default_factory=list)


class Follower:
    """Follows one master after the other; `run` is the task."""

    def __init__(self, parts: FollowerParts) -> None:
        self._parts = parts
        self._log = parts.log
        self._wanted: RoleState | None = None
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._session: _Session | None = None
        self._view = FollowerView("off")
        self._rate: Rate | None = None
        self._known: tuple[RoleState, MasterTarget] | None = None
        """Where the master is that was followed last; its handshake tells whether it still is."""

        self._unanswered = False
        """Whether it did not answer at all, which took its time."""

        self._rebuilding = Rebuilding(
            parts.log, parts.epochs, parts.group, parts.run_blocking, parts.on_truncated, parts.in_force
        )
        parts.log.on_acknowledged(self._on_disk)

    # -- what to follow -----------------------------------------------------------------------------------

    def follow(self, change: RoleState) -> None:
        """Follow the master that `change` names from now on."""
        assert change.master_id is not None, "nobody to follow"
        if self._wanted is None or _target(self._wanted) != _target(change):
            self._wanted = change
            self._view = FollowerView("looking")
            self._changed.set()
        self._news.set()

    async def stop(self) -> None:
        """Follow nobody; when this returns nothing is received or acknowledged any more."""
        self._wanted = None
        self._changed.set()
        await self._end_running()
        self._view = FollowerView("off")

    def news(self) -> None:
        """The controllers have said something: who waits for it looks again."""
        self._rebuilding.words += 1
        self._news.set()

    @property
    def repairs(self) -> int:
        """How often the log was truncated because it was damaged, since the start."""
        return self._rebuilding.repairs.count

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                wanted = self._wanted
                await self._end_running()
                if wanted is not None and wanted is self._wanted:
                    self._running = asyncio.create_task(self._follow(wanted))
                    self._running.add_done_callback(self._died)
        finally:
            await self._end_running()

    def _died(self, task: asyncio.Task[None]) -> None:
        """An unexpected error of the task ends `run`, which awaits it."""
        if not task.cancelled() and task.exception() is not None:
            self._changed.set()

    async def _end_running(self) -> None:
        session = self._session
        if session is not None:
            session.ended = True
            session.link.close("this replica stops following")
        running = self._running
        if running is None:
            return
        running.cancel()
        while not running.done():
            await asyncio.wait([running])
        if self._running is running:
            self._running = None
            if not running.cancelled():
                running.result()

    # -- the loop -----------------------------------------------------------------------------------------

    async def _follow(self, change: RoleState) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE_SECONDS_MIN
        logged = ""
        self._log.follow()
        while True:
            self._news.clear()
            began = loop.time()
            problem, advice, state = "", "", "looking"
            try:
                await self._try(change)
            except CannotFollow as error:
                problem, advice, state = str(error), error.advice, "refused"
            except (LinkClosed, ReplicaLogFailed, OSError) as error:
                problem = str(error)
            except TimeoutError:
                problem = "the master did not answer in time"
            if loop.time() - began >= STEADY_SECONDS and state != "refused":
                pause, logged = PAUSE_SECONDS_MIN, ""
            self._view = FollowerView(state, self._view.master_address, problem, advice)
            if problem != logged:
                logged = problem
                (log.error if state == "refused" else log.warning)(
                    "not following the master", problem=problem, advice=advice, epoch=change.epoch
                )
            try:
                async with asyncio.timeout(PAUSE_SECONDS_MAX if state == "refused" else pause):
                    await self._news.wait()
            except TimeoutError:
                pass
            pause = PAUSE_SECONDS_MIN if self._unanswered else min(2 * pause, PAUSE_SECONDS_MAX)

    async def _try(self, change: RoleState) -> None:
        """Follow over one connection until it ends; raises why it ended."""
        parts = self._parts
        own = parts.identity()
        if own is None:
            raise LinkClosed("this broker has no id yet")
        highest = max(own.epoch, parts.in_force().epoch, parts.epochs.history.last_epoch)
        if highest > change.epoch:
            parts.group.ask_soon()
            raise LinkClosed(f"the epoch {highest} is known, so the master of {change.epoch} is an old one")
        await self._whole(self._rebuilding.truncate_damage(own.broker_id, change.epoch))
        # While it is tried again what failed last is still told: who asks in that moment gets an answer.
        self._view = replace(self._view, state="looking")
        target, link = await self._connect(change)
        session: _Session | None = None
        reason = "this replica stops following"
        try:
            self._view = replace(self._view, state="handshake")
            end = await self._whole(self._log.finish_received())
            settings = parts.settings()
            apart = not parts.may_join()
            hello = SlaveHandshake(
                own.broker_id,
                settings.sync_from_last_file,
                settings.async_learner or apart,
                replace(own, epoch=change.epoch, log_end=end) if target.is_ours else None,
            )
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                answer = await link.shake_hands(hello)
            master = self._check(answer, own, change, is_ours=target.is_ours)
            full_resync = await self._agree(master, answer.max_offset, own, change)
            loop = asyncio.get_running_loop()
            session = _Session(
                link,
                change.epoch,
                target.is_ours,
                master,
                answer.max_offset,
                full_resync,
                loop.time(),
                loop,
                apart=apart,
            )
            self._known = (change, target) if target.is_ours else None
            await self._receive(session, change)
        except (LinkClosed, CannotFollow, ReplicaLogFailed, OSError) as error:
            reason = str(error)
            raise
        finally:
            if session is not None:
                session.ended = True
            self._session = None
            link.close(reason)
            if session is not None and session.work:
                await self._whole(_all_done(list(session.work)))

    async def _connect(self, change: RoleState) -> tuple[MasterTarget, MasterLink]:
        """A connection to the master: where it was the last time, else where it says that it is."""
        network = self._parts.network
        known, self._known = self._known, None
        self._unanswered = False
        if known is not None and _target(known[0]) == _target(change):
            self._view = replace(self._view, state="connecting", master_address=known[1].ha_address)
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                return known[1], await network.connect(known[1].ha_address, AGAIN_SECONDS_MAX)
            except LinkClosed:
                if loop.time() - began >= AGAIN_SECONDS_MAX:  # refused at once, it is elsewhere
                    self._known, self._unanswered = known, True
                raise
        async with asyncio.timeout(FIND_SECONDS_MAX):
            target = await self._parts.group.find_master(change)
        self._view = replace(self._view, state="connecting", master_address=target.ha_address)
        return target, await network.connect(target.ha_address, CONNECT_SECONDS_MAX)

    def _check(
        self, answer: MasterHandshake, own: PeerIdentity, change: RoleState, *, is_ours: bool
    ) -> EpochHistory:
        """Whether it is the master that the controllers named; returns its epochs."""
        peer, group = answer.identity, self._parts.group
        if is_ours:
            if peer is None:
                raise LinkClosed("the master's handshake does not say who it is")
            if (peer.cluster_name, peer.broker_name) != (own.cluster_name, own.broker_name):
                raise CannotFollow(
                    f"the broker there is of the group {peer.cluster_name}/{peer.broker_name}",
                    "two groups tell the same address: compare their brokerIP2 and haListenPort",
                )
            if peer.broker_id != change.master_id or peer.epoch != change.epoch:
                group.ask_soon()
                raise LinkClosed(
                    f"the broker there is replica {peer.broker_id} in epoch {peer.epoch},"
                    f" not {change.master_id} in epoch {change.epoch}"
                )
        if answer.last_epoch > change.epoch:
            group.ask_soon()
            raise LinkClosed(f"the master's log has the epoch {answer.last_epoch}, ours is {change.epoch}")
        try:
            return history_of(answer.epochs)
        except FormatError as error:
            raise CannotFollow(f"the master's epochs are out of order: {error}") from None

    async def _agree(
        self, master: EpochHistory, master_end: int, own: PeerIdentity, change: RoleState
    ) -> bool:
        """Make our log a prefix of the master's; returns whether the next packet begins a full resync."""
        parts, own_log = self._parts, self._log
        mine = OwnLog(
            own_log.min_offset, own_log.received_end, own_log.confirmed_offset, parts.epochs.history
        )
        decision = following.decide_following(mine, master, master_end)
        match decision:
            case Refuse(problem, advice):
                raise CannotFollow(problem, advice)
            case Follow(_, history):
                await self._whole(self._blocking(lambda: parts.epochs.replace(history)))
                return False
            case FullResync(needs_proof):
                if needs_proof:
                    self._demand_proof(own.broker_id, change.epoch, "all of its log")
                if not mine.empty:
                    log.warning(
                        "the log starts from scratch: the group keeps nothing that it could go on from",
                        begin=mine.min_offset,
                        end=mine.end,
                        confirmed=mine.confirmed,
                    )
                return True
            case Truncate(offset, history, needs_proof):
                if needs_proof:
                    self._demand_proof(own.broker_id, change.epoch, f"its log from {offset} on")
                log.warning(
                    "truncating what the master does not have",
                    offset=offset,
                    end=mine.end,
                    truncated_bytes=mine.end - offset,
                    confirmed=mine.confirmed,
                    epoch=change.epoch,
                )
                await self._whole(self._truncate(offset, history, keep_copy=needs_proof))
                parts.on_truncated(mine.end - offset)
                return False

    async def _truncate(self, offset: int, history: EpochHistory, *, keep_copy: bool) -> None:
        """The log first: epochs behind its end are dropped at the next start, the other way round they
        would be missing."""
        await self._log.truncate(offset, keep_copy=keep_copy)
        await self._parts.run_blocking(lambda: self._parts.epochs.replace(history))

    def _demand_proof(self, own_id: int, epoch: int, what: str) -> None:
        """Throw away confirmed messages only if nobody can count on this replica having them."""
        word = self._parts.in_force()
        if not following.proves_absence(own_id, epoch, word.epoch, word.sync_state_set):
            self._parts.group.ask_soon()
            raise LinkClosed(
                f"this replica would lose {what} although that was confirmed, and the controllers have not"
                f" said that it is out of sync in epoch {epoch}"
            )

    # -- receiving ----------------------------------------------------------------------------------------

    async def _receive(self, session: _Session, change: RoleState) -> None:
        loop = asyncio.get_running_loop()
        link = session.link
        self._rate = Rate(loop.time())
        self._session = session
        self._view = FollowerView("transfer", self._view.master_address)

        def on_received(size: int) -> None:
            session.heard_at = loop.time()
            if self._rate is not None:
                self._rate.add(size, session.heard_at)
            self._acknowledge(session)

        receiving = cast(ReplicaLog, _AcknowledgingLog(self._log, on_received))
        link.receive_into(receiving, lambda header: self._on_header(session, change, header))
        session.ack_forced = True
        self._acknowledge(session)
        log.info(
            "following the master",
            master=link.peer,
            epoch=change.epoch,
            offset=0 if session.full_resync else self._log.received_end,
        )
        while True:
            silence = _silence_seconds(self._parts.settings(), is_ours=session.is_ours)
            try:
                async with asyncio.timeout(max(0.0, session.heard_at + silence - loop.time()) + 0.001):
                    reason = await link.closed()
                break
            except TimeoutError:
                if loop.time() - session.heard_at <= silence:
                    continue
                await asyncio.sleep(CHECK_AGAIN_SECONDS)  # if this process stood still, something waits here
                if session.work:  # the disk keeps it from listening
                    session.heard_at = loop.time()
                if loop.time() - session.heard_at > silence:
                    raise LinkClosed(f"nothing heard from the master for {silence:g} s") from None
        if session.failure:
            if session.work:  # a note that the log is complete must not come behind this one
                await self._whole(_all_done(list(session.work)))
            await self._whole(self._rebuilding.note_incomplete(session.failure))
            raise CannotFollow(session.failure, DAMAGE_ADVICE)
        raise LinkClosed(reason)

    def _on_header(
        self, session: _Session, change: RoleState, header: TransferHeader
    ) -> Awaitable[None] | None:
        """Check a packet before its bytes are taken; what has to be on the disk first is returned."""
        if session.ended:
            raise LinkClosed("this replica stops following")
        own_log = self._log
        now = session.loop.time()
        idle = header.size == 0 and header.confirmed_offset == session.last_confirmed
        session.heard_at, session.last_confirmed = now, header.confirmed_offset
        if (
            session.usual == (header.epoch, header.epoch_start)
            and header.offset == own_log.received_end
            and header.size
        ):
            self._confirm(session, header)
            return None
        if header.offset < 0:  # a Java master with an empty log: only a sign of life
            session.ack_forced = session.ack_forced or idle
            self._acknowledge_soon(session)
            return None
        if header.epoch > change.epoch:
            self._parts.group.ask_soon()
            raise LinkClosed(
                f"the master sends the epoch {header.epoch}, the controllers said {change.epoch}"
            )
        master = following.with_label(session.master, header.epoch, header.epoch_start)
        if master is None:
            raise LinkClosed(
                f"the master sends the epoch {header.epoch} from {header.epoch_start},"
                " which is not among those of its handshake"
            )
        session.master = master
        place = master.find(header.offset)
        if place is not None and header.epoch < place.epoch:
            raise LinkClosed(f"bytes of epoch {place.epoch} are sent as those of {header.epoch}")
        if following.crosses_epoch(master, header.offset, header.size):
            raise LinkClosed(f"the bytes from {header.offset} on lie in two epochs")
        is_first, session.is_first = session.is_first, False
        if is_first and not session.full_resync and header.offset > own_log.received_end and session.is_ours:
            identity = self._parts.identity()
            if identity is not None:
                self._demand_proof(identity.broker_id, change.epoch, "all of its log")
            log.warning(
                "the log starts from scratch: the master's begins behind our end",
                end=own_log.received_end,
                master_begin=header.offset,
            )
            session.full_resync = True
        if session.full_resync:
            if header.offset % own_log.segment_bytes:
                raise CannotBegin(header.offset, own_log.segment_bytes)
            return self._begin(session, self._start_log(session, header))
        if header.offset != own_log.received_end:
            raise LinkClosed(f"the master sends {header.offset}, this log ends at {own_log.received_end}")
        self._confirm(session, header)
        if header.size == 0:
            session.ack_forced = session.ack_forced or idle
            self._acknowledge_soon(session)
        due = following.due_entries(self._parts.epochs.history, master, header.offset)
        if due:
            return self._begin(session, self._blocking(lambda: self._parts.epochs.extend(due)))
        if header.epoch == master.last_epoch and header.offset >= header.epoch_start:
            session.usual = header.epoch, header.epoch_start
        return None

    def _confirm(self, session: _Session, header: TransferHeader) -> None:
        confirmed = min(header.confirmed_offset, self._log.received_end)
        self._log.confirm(confirmed, partial=not session.is_ours or confirmed < header.confirmed_offset)

    async def _start_log(self, session: _Session, header: TransferHeader) -> None:
        """Throw away what there is, and begin where the master's first packet begins."""
        own_log, epochs = self._log, self._parts.epochs
        truncated = own_log.received_end - own_log.min_offset
        if header.offset != own_log.received_end or truncated:
            await own_log.begin_at(header.offset)
            if truncated:
                self._parts.on_truncated(truncated)
        history = EpochHistory(tuple(e for e in session.master.entries if e.start_offset <= header.offset))
        await self._parts.run_blocking(lambda: epochs.replace(history))
        session.full_resync = False
        if header.size == 0:
            session.ack_forced = True
            self._acknowledge_soon(session)

    def _begin(self, session: _Session, work: Awaitable[None]) -> Awaitable[None]:
        """Work that is carried out whole, whatever becomes of the connection; `stop` waits for it."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        session.work.append(task)
        task.add_done_callback(session.work.remove)
        return asyncio.shield(task)

    # -- acknowledging ------------------------------------------------------------------------------------

    def _acknowledge_soon(self, session: _Session) -> None:
        if not session.ack_is_due:
            session.ack_is_due = True
            session.loop.call_soon(self._acknowledge, session)

    def _acknowledge(self, session: _Session) -> None:
        session.ack_is_due = False
        if session.ended:
            return
        if self._parts.in_force().epoch > session.epoch:
            session.ended = True
            session.link.close("another master was elected meanwhile")
            return
        if not session.full_resync and session.apart is self._parts.may_join():
            session.ended = True
            session.link.close(
                "this replica is complete now: it follows as one that may join"
                if session.apart
                else "this replica lacks metadata: it follows as a learner until its master has told them"
            )
            return
        failure = self._log.failure()
        if failure is not None:
            session.failure = failure
            session.ended = True
            session.link.close(failure)
            return
        if self._rebuilding.is_complete(session.master_end) and not (
            session.full_resync or session.completed
        ):
            session.completed = True
            task = asyncio.get_running_loop().create_task(self._rebuilding.note_complete(session.epoch))
            session.work.append(task)
            task.add_done_callback(session.work.remove)
        end = 0 if session.full_resync else self._log.acknowledged_end
        if session.acknowledged < 0 and not session.full_resync and end < self._log.received_end:
            return  # the first one tells where to go on: it waits until the disk has everything
        if end > session.acknowledged or session.ack_forced:
            session.acknowledged = end
            session.ack_forced = False
            session.link.send_ack(Ack(end))

    def _on_disk(self) -> None:
        if self._session is not None:
            self._acknowledge_soon(self._session)

    # -- helpers ------------------------------------------------------------------------------------------

    async def _blocking(self, work: Callable[[], None]) -> None:
        await self._parts.run_blocking(work)

    async def _whole(self, work: Awaitable[T]) -> T:
        """Carry out `work` to its end, also when this task is cancelled meanwhile."""
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not task.cancelled():
                task.exception()
            raise cancelled
        return task.result()

    def view(self) -> FollowerView:
        """What it does now."""
        session = self._session
        if session is None or self._rate is None:
            return self._view
        now = asyncio.get_running_loop().time()
        return replace(
            self._view,
            received_bytes_per_second=self._rate.per_second(now),
            last_heard_ms_ago=int(1000 * (now - session.heard_at)),
        )


class CannotBegin(LinkClosed):
    """The master's first packet does not begin with a file."""

    def __init__(self, offset: int, segment_bytes: int) -> None:
        super().__init__(
            f"the master begins to send at {offset}, which is no multiple of {segment_bytes}:"
            " mappedFileSizeCommitLog must be the same on both brokers"
        )


def _silence_seconds(settings: BrokerSettings, *, is_ours: bool) -> float:
    """For how long a master may be silent. Ours say something four times in `haMaxTimeSlaveNotCatchup`."""
    housekeeping = settings.ha_housekeeping_interval / 1000
    if not is_ours:
        return housekeeping
    return min(housekeeping, settings.ha_max_time_slave_not_catchup / 1000 + SILENCE_MORE_SECONDS)


def _target(change: RoleState) -> tuple[object, ...]:
    return change.epoch, change.master_id, change.master_address


async def _all_done(work: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(work)
