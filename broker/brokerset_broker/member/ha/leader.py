"""A mastership: one task for each connected slave, the confirmed offset, and proposals of in-sync sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.group_link import GroupLink, ProposalEnd, ProposalResult
from brokerset_broker.member.ha.in_sync import InSync
from brokerset_broker.member.ha.links import LinkClosed, PeerRefused, SlaveLink, no_handshake
from brokerset_broker.member.ha.progress import Progress
from brokerset_broker.member.ha.transfer import Chunk, first_offset, handshake_epochs, next_chunk
from brokerset_broker.member.ha.views import ReplicaView
from brokerset_broker.member.ha.waiting import Begun, Bell, Rate
from brokerset_broker.member.role import GivenBack
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_protocol.ha_packets import (
    Ack,
    HaProtocolError,
    MasterHandshake,
    PeerIdentity,
    SlaveHandshake,
    TransferHeader,
)
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS_MAX: Final = 5.0
"""For a slave's first packet."""

PROPOSAL_SECONDS_MAX: Final = 10.0
"""For the answer to a proposal; the membership gives up earlier."""

SLAVES_MAX: Final = 64
"""Connections of slaves; further ones are refused."""

REPLICAS_KNOWN_MAX: Final = 2 * SLAVES_MAX
"""Replicas that are remembered; with more, those that are neither connected nor members are forgotten."""

NEWER_PROCESS_SECONDS: Final = 10.0
"""For so long after a replica's connection has ended an older process of it cannot take its place. It learns
from the controllers within a heartbeat that it was replaced."""

HEARTBEATS_IN_LAG: Final = 4
"""Heartbeats to an idle replica of ours in `haMaxTimeSlaveNotCatchup`, at the least: each is acknowledged,
and without acknowledgements it would be taken for lagging."""

STALL_SECONDS: Final = 0.25
"""When this process was held up for longer, acknowledgements wait to be read: nobody is dropped at once."""

PUSH_SECONDS: Final = 0.002
"""How long a new confirmed offset waits for data to go with; under load there is always some."""

GATHER_SECONDS: Final = 0.001
"""While a slave has not acknowledged what it was sent, how long more is gathered before it is sent, too: many
small packets cost all three brokers several times as much as one. A loop's timers know milliseconds only."""

ROUNDING_SECONDS: Final = 0.0001
"""What a timer may be early by, when times are added."""

GATHER_BYTES_MAX: Final = 64 * 1024
"""So much does not wait for an acknowledgement."""

RELIEF_SECONDS: Final = 1.0
"""For so long a master that hears no replica tries to be relieved; then it makes the in-sync set smaller."""

SILENT_PART: Final = 0.75
"""Of `haMaxTimeSlaveNotCatchup`: who was heard since still is, though it lags."""

CHECK_SECONDS_MIN: Final = 0.02
CHECK_SECONDS_MAX: Final = 0.25
"""Between two looks at who lags: a tenth of `haMaxTimeSlaveNotCatchup` within these limits."""


@dataclass(slots=True)
class LeaderCounts:
    """Counted over all masterships of a process."""

    expansions: int = 0
    shrinks: int = 0
    connections_refused: int = 0


@dataclass(slots=True)
class LeaderParts:
    """What a mastership works with."""

    settings: Callable[[], BrokerSettings]
    log: ReplicaLog
    epochs: EpochFile
    group: GroupLink
    identity: PeerIdentity
    counts: LeaderCounts
    on_progress: Callable[[], None]
    """Confirmed or acknowledged offset, or the in-sync sets, may have changed."""


class _Slave:
    """A connection whose handshake was accepted."""

    def __init__(self, link: SlaveLink, hello: SlaveHandshake, now: float) -> None:
        self.link = link
        self.broker_id = hello.broker_id
        self.is_ours = hello.identity is not None
        self.learner = hello.async_learner
        self.nonce = hello.identity.nonce if hello.identity is not None else ""
        self.incarnation = hello.identity.incarnation if hello.identity is not None else None
        self.last_file = hello.sync_from_last_file
        self.changed = Bell()
        self.first_ack: int | None = None
        self.next_offset = -1
        self.acknowledged = -1
        self.idle = False
        """Whether its task waits for something to send; then anybody may begin to send."""
        self.begun: Begun | None = None
        """What somebody else began to send, and its task is to finish."""
        self.gathers = False
        """Whether its next acknowledgement is what sending waits for."""
        self.gathering: asyncio.TimerHandle | None = None
        """When sending does not wait for it any longer."""
        self.last_heard = now
        self.last_sent = now
        self.sent_confirmed = -1
        self.ended = False
        self.rate = Rate(now)


class Leader:
    """Leads the group in one epoch, until `close`."""

    def __init__(
        self,
        parts: LeaderParts,
        epoch: int,
        sync_state_set: frozenset[int],
        set_epoch: int,
        given_back: tuple[GivenBack, ...] = (),
    ) -> None:
        self._parts = parts
        self._log = parts.log
        self.epoch = epoch
        self.own_id = parts.identity.broker_id
        self._loop = asyncio.get_running_loop()
        self.in_sync = InSync(self.own_id, sync_state_set, set_epoch)
        for each in given_back:
            self.in_sync.expect_pending(each.sync_state_set, each.set_epoch)
        self.progress = Progress(
            self.own_id, log_end=parts.log.max_offset, confirmed=parts.log.confirmed_offset
        )
        self.progress.expect(self.in_sync.electable(), self._loop.time())
        self.closed = False
        self.keeps_set = False
        """Whether nobody is taken out of the set: this broker ends, and others with it."""
        self.alone = False
        """Whether everything appended is confirmed at once."""
        self.acknowledged = 0
        """What a send may be answered for."""
        self.enough = False
        """Whether the smallest in-sync set that may be in force has `minInSyncReplicas` members."""
        self._held: frozenset[int] = frozenset()
        self._slaves: dict[int, _Slave] = {}
        self._ended: dict[int, tuple[int, float]] = {}
        """Incarnation of the last connection of replicas without one now, and when it ended."""
        self._links: dict[int, SlaveLink] = {}
        self._links_made = 0
        self._last_refusal: tuple[int | None, str] = (0, "")
        """Slaves try again every second: the same reason is a warning once."""
        self._wake = asyncio.Event()
        self._push: asyncio.TimerHandle | None = None
        self._relief_until: float | None = None
        """Until when it is tried to have another one lead; None while replicas are heard."""

        self._reached: list[tuple[int, int, asyncio.Future[None]]] = []
        if not self.in_sync.known:
            log.warning("the in-sync set is not known yet, nothing is confirmed", epoch=epoch)
            parts.group.ask_soon()
        self.refresh()

    # -- the log ------------------------------------------------------------------------------------------

    def appended(self, end: int) -> None:
        """A turn of appends ends at `end`."""
        self.progress.appended(end, confirmed=self.alone)
        for slave in list(self._slaves.values()):
            if not slave.gathers or end - slave.next_offset >= GATHER_BYTES_MAX:
                self._send_now(slave)

    def confirmed_moved(self) -> None:
        """Tell slaves soon, for their consumers."""
        if self._push is None and not self.closed:
            self._push = self._loop.call_later(PUSH_SECONDS, self._push_confirmed)

    def _push_confirmed(self) -> None:
        """Wake who has not been told of what is confirmed, and gets no data."""
        self._push = None
        confirmed, now = self._log.confirmed_offset, self._loop.time()
        for slave in list(self._slaves.values()):
            if slave.is_ours and confirmed > slave.sent_confirmed:
                if now + ROUNDING_SECONDS >= slave.last_sent + PUSH_SECONDS:
                    self._send_now(slave)
                elif self._push is None and not self.closed:
                    self._push = self._loop.call_at(slave.last_sent + PUSH_SECONDS, self._push_confirmed)

    def own_end(self) -> int:
        """What counts of the own log: with synchronous flush only what is on the disk."""
        if self._parts.settings().flush_disk_type == "SYNC_FLUSH":
            return min(self._log.max_offset, self._log.acknowledged_end)
        return self._log.max_offset

    def _confirms_more(self) -> bool:
        """Whether an acknowledgement can have changed what is confirmed: the last one of several does."""
        if not self._parts.settings().all_ack_in_sync_state_set:
            return True
        members = self.in_sync.electable() | self._held
        return self.progress.reached_by(members, self._log.max_offset) > self.acknowledged

    def refresh(self) -> None:
        """Compute again what is confirmed and acknowledged; call it after whatever may change that."""
        if self.closed:
            return
        settings = self._parts.settings()
        electable = self.in_sync.electable()
        self.enough = self.in_sync.smallest >= settings.min_in_sync_replicas
        sync_flush = settings.flush_disk_type == "SYNC_FLUSH"
        alone = self.enough and not sync_flush and not self._held and electable == {self.own_id}
        if alone != self.alone:
            self.alone = alone
            self._log.confirm_appends(alone)
        end, own = self._log.max_offset, self.own_end()
        if self.enough:
            floor = self._log.confirmed_offset
            confirmed = self.progress.confirm(electable | self._held, own, end, floor)
            if confirmed > floor:
                self._log.confirm(confirmed)
        if settings.all_ack_in_sync_state_set:
            self.acknowledged = max(self.progress.confirmed, self._log.confirmed_offset)
        else:
            self.acknowledged = self.progress.had_by(electable, settings.in_sync_replicas, own)
        self._parts.on_progress()

    def is_acknowledged(self, end: int) -> bool:
        """Whether a send that ends at `end` may be answered now; cheap."""
        if end <= self.acknowledged:
            return True
        if self.alone:
            return self._parts.settings().all_ack_in_sync_state_set or (
                self._parts.settings().in_sync_replicas <= 1
            )
        settings = self._parts.settings()
        return (
            not settings.all_ack_in_sync_state_set
            and settings.in_sync_replicas <= 1
            and end <= self.own_end()
        )

    @property
    def acknowledges_appends(self) -> bool:
        """Whether whatever is appended may be answered at once, by this master alone and from memory."""
        settings = self._parts.settings()
        if self.closed or settings.flush_disk_type == "SYNC_FLUSH":
            return False
        if settings.all_ack_in_sync_state_set:
            return self.alone
        return settings.in_sync_replicas <= 1

    # -- in-sync sets -------------------------------------------------------------------------------------

    def adopt(self, sync_state_set: frozenset[int], set_epoch: int) -> None:
        """Take what the controllers say is in force in this epoch."""
        before = self.in_sync.committed
        if not self.in_sync.adopt(sync_state_set, set_epoch):
            return
        counts = self._parts.counts
        counts.expansions += bool(sync_state_set - before)
        counts.shrinks += bool(before - sync_state_set)
        (log.info if sync_state_set != before else log.debug)(
            "the in-sync set has changed",
            sync_state_set=sorted(sync_state_set),
            before=sorted(before),
            set_epoch=set_epoch,
            epoch=self.epoch,
        )
        self.progress.expect(sync_state_set, self._loop.time())
        self._check_replicas()
        self._wake.set()

    def _check_replicas(self) -> None:
        """Decide again for whom confirming waits, then compute again."""
        now = self._loop.time()
        self._held = self.progress.hold(self.in_sync.electable(), self._log.confirmed_offset, now)
        self.refresh()

    async def watch(self) -> None:
        """Close who is silent, and propose sets, until the mastership ends."""
        late = False
        async with asyncio.TaskGroup() as tasks:
            while not self.closed:
                settings = self._parts.settings()
                lag = settings.ha_max_time_slave_not_catchup / 1000
                self._housekeep(settings.ha_housekeeping_interval / 1000)
                self._check_replicas()
                now = self._loop.time()
                states = self.progress.states(self._log.confirmed_offset, now, lag)
                wanted = self.in_sync.decide(now, states)
                if wanted is not None and self.keeps_set and not wanted >= self.in_sync.committed:
                    wanted = None
                if wanted is not None and not late and self._is_being_relieved(wanted, now, settings):
                    wanted = None
                if wanted is not None and not late:
                    self.in_sync.proposed(wanted)
                    self.refresh()  # from here on it may be in force
                    tasks.create_task(self._propose(wanted, self._nonces(wanted)))
                pause = min(CHECK_SECONDS_MAX, max(CHECK_SECONDS_MIN, lag / 10))
                await _wait(self._wake, pause)
                late = self._loop.time() - now > pause + STALL_SECONDS

    def _is_being_relieved(self, wanted: frozenset[int], now: float, settings: BrokerSettings) -> bool:
        """Whether somebody else is to lead, instead of `wanted` being proposed.

        With less than `minInSyncReplicas` members this master could confirm nothing, and who left the set
        could not lead. So before it is made that small because none of its other members is heard, the
        controllers are asked whether those live, and one can lead. Whose connection has ended is gone.
        """
        needed, own = settings.min_in_sync_replicas, frozenset((self.own_id,))
        silence = SILENT_PART * settings.ha_max_time_slave_not_catchup / 1000
        others = sorted(self.in_sync.committed - own)
        slaves = [self._slaves.get(each) for each in others]
        cut_off = all(slave is None or now - slave.last_heard > silence for slave in slaves) and any(slaves)
        if not (cut_off and len(wanted) < needed and settings.all_ack_in_sync_state_set):
            self._relief_until = None
            return False
        if self._relief_until is None:
            self._relief_until = now + RELIEF_SECONDS
        return self._parts.group.relieve(self.epoch, needed, begin=now < self._relief_until)

    def _nonces(self, members: frozenset[int]) -> dict[int, str]:
        """The processes that follow now and are to be members."""
        found = ((broker_id, self._slaves.get(broker_id)) for broker_id in sorted(members))
        return {broker_id: slave.nonce for broker_id, slave in found if slave is not None and slave.nonce}

    async def _propose(self, wanted: frozenset[int], nonces: dict[int, str]) -> None:
        in_sync = self.in_sync
        based_on = in_sync.set_epoch
        try:
            async with asyncio.timeout(PROPOSAL_SECONDS_MAX):
                result = await self._parts.group.propose(wanted, based_on, self.epoch, nonces)
        except TimeoutError:
            result = ProposalResult(ProposalEnd.UNKNOWN, remark="no answer")
        if self.closed:
            return
        refused = result.end is ProposalEnd.REFUSED
        in_sync.ended(self._loop.time(), wanted, refused=refused)
        if result.sync_state_set:
            self.adopt(result.sync_state_set, result.set_epoch)
        if in_sync.set_epoch == based_on:
            log.info(
                "it is not known whether a proposed in-sync set is in force",
                proposed=sorted(wanted),
                end=result.end.value,
                remark=result.remark,
                set_epoch=based_on,
            )
            self._parts.group.ask_soon()
        self._wake.set()

    def _housekeep(self, silence_seconds: float) -> None:
        now = self._loop.time()
        for slave in list(self._slaves.values()):
            if now - slave.last_heard > silence_seconds:
                slave.link.close(f"nothing heard for {silence_seconds:g} s")

    # -- slaves -------------------------------------------------------------------------------------------

    async def serve(self, link: SlaveLink) -> None:
        """Serve one connection until it ends."""
        if self.closed or len(self._links) >= SLAVES_MAX:
            self._parts.counts.connections_refused += 1
            link.close("this broker does not lead any more" if self.closed else "too many slaves")
            return
        number, self._links_made = self._links_made, self._links_made + 1
        self._links[number] = link
        slave: _Slave | None = None
        reason = "this broker stops"
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                hello = await link.handshake()
            refusal = self._refusal(hello)
            if refusal:
                self._note_refusal(link, hello.broker_id, refusal)
                reason = refusal
                return
            slave = self._admit(link, hello)
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await link.send_handshake(self._handshake(slave))
            await self._send(slave)
        except (PeerRefused, HaProtocolError) as error:
            reason = str(error)
            if slave is None:
                self._note_refusal(link, None, reason)
        except LinkClosed as error:
            reason = str(error)
        except TimeoutError:
            reason = no_handshake(HANDSHAKE_SECONDS_MAX)
            if slave is None:
                self._note_refusal(link, None, reason)
            else:
                reason = f"it did not take the handshake in {HANDSHAKE_SECONDS_MAX:g} s"
        except (ReplicaLogFailed, OSError) as error:
            reason = str(error)
            log.warning("the log cannot be sent to a slave", peer=link.peer, reason=reason)
        finally:
            del self._links[number]
            if slave is not None and slave.begun is not None:
                slave.begun.close()
            link.close(reason)
            if slave is not None:
                self._gone(slave, reason)

    def _note_refusal(self, link: SlaveLink, broker_id: int | None, reason: str) -> None:
        """Count it, and write it to the log unless it is the last one again."""
        self._parts.counts.connections_refused += 1
        note = log.debug if self._last_refusal == (broker_id, reason) else log.warning
        self._last_refusal = (broker_id, reason)
        note("a slave is refused", peer=link.peer, broker_id=broker_id, reason=reason)

    def _refusal(self, hello: SlaveHandshake) -> str:
        """Why the slave must not follow; empty if it may."""
        own, peer = self._parts.identity, hello.identity
        if self.closed:
            return "this broker does not lead any more"
        if hello.broker_id == self.own_id or hello.broker_id <= 0:
            return f"the id {hello.broker_id} cannot be a slave's here: it is the master's own, or none"
        if peer is None:
            return ""
        if (peer.cluster_name, peer.broker_name) != (own.cluster_name, own.broker_name):
            return (
                f"it is of the group {peer.cluster_name}/{peer.broker_name},"
                f" not of {own.cluster_name}/{own.broker_name}"
            )
        if peer.broker_id != hello.broker_id:
            return f"it says both that its id is {hello.broker_id} and that it is {peer.broker_id}"
        if peer.epoch > self.epoch:
            self._parts.group.ask_soon()
            return f"it knows the epoch {peer.epoch}, newer than ours, {self.epoch}"
        if peer.incarnation is not None and peer.incarnation < self._newest_start(hello.broker_id):
            return f"its start {peer.incarnation} of replica {hello.broker_id} was followed by a newer one"
        return ""

    def _newest_start(self, broker_id: int) -> int:
        """The incarnation of a replica's process that follows, or did a moment ago; -1 if none is known."""
        slave = self._slaves.get(broker_id)
        if slave is not None:
            return -1 if slave.incarnation is None else slave.incarnation
        incarnation, ended_at = self._ended.get(broker_id, (-1, 0.0))
        return incarnation if self._loop.time() - ended_at < NEWER_PROCESS_SECONDS else -1

    def _admit(self, link: SlaveLink, hello: SlaveHandshake) -> _Slave:
        now = self._loop.time()
        slave = _Slave(link, hello, now)
        older = self._slaves.pop(slave.broker_id, None)
        self._slaves[slave.broker_id] = slave
        if older is not None:
            older.ended = True
            older.link.close("the replica has connected again")
        if self.progress.known >= REPLICAS_KNOWN_MAX:
            self.progress.forget_others(self.in_sync.electable())
        self.progress.connected(slave.broker_id, now, learner=slave.learner, is_ours=slave.is_ours)
        link.on_ack(lambda ack: self._acknowledged(slave, ack))
        link.on_close(lambda reason: self._gone(slave, reason))
        return slave

    def _handshake(self, slave: _Slave) -> MasterHandshake:
        history = self._parts.epochs.history
        return MasterHandshake(
            self._log.max_offset,
            history.last_epoch,
            handshake_epochs(history),
            replace(self._parts.identity, epoch=self.epoch, log_end=-1) if slave.is_ours else None,
        )

    def _acknowledged(self, slave: _Slave, ack: Ack) -> None:
        if slave.ended or self.closed:
            return
        now = self._loop.time()
        slave.last_heard = now
        broker_id = slave.broker_id
        wrong = self.progress.acknowledge(broker_id, ack.offset, now, self._log.max_offset)
        if wrong is not None:
            log.warning("a slave's acknowledgement is wrong", broker_id=broker_id, reason=wrong)
            slave.link.close(wrong)
            return
        slave.acknowledged = ack.offset
        if slave.gathers and ack.offset >= slave.next_offset:
            self._send_now(slave)
        if slave.first_ack is None:
            slave.first_ack = ack.offset
            slave.changed.ring()
            log.info(
                "a slave follows",
                broker_id=broker_id,
                peer=slave.link.peer,
                offset=ack.offset,
                learner=slave.learner,
                is_ours=slave.is_ours,
            )
        if broker_id in self.in_sync.electable():
            if self._confirms_more():
                self.refresh()
        elif not slave.learner:
            self._check_replicas()
            self._wake.set()
        if self._reached:
            self._tell_reached()

    def _gone(self, slave: _Slave, reason: str) -> None:
        """The connection has ended; called once or twice."""
        if slave.ended:
            return
        slave.ended = True
        slave.changed.ring()
        if slave.gathering is not None:
            slave.gathering.cancel()
            slave.gathering = None
        del self._slaves[slave.broker_id]
        if self.closed:
            return
        if slave.incarnation is not None:
            self._ended.pop(slave.broker_id, None)
            self._ended[slave.broker_id] = (slave.incarnation, self._loop.time())
            while len(self._ended) > REPLICAS_KNOWN_MAX:
                del self._ended[next(iter(self._ended))]
        self.progress.disconnected(slave.broker_id)
        note = log.debug if slave.first_ack is None else log.info
        note("a slave's connection has ended", broker_id=slave.broker_id, reason=reason)
        self._check_replicas()
        self._wake.set()

    # -- sending ------------------------------------------------------------------------------------------

    async def _send(self, slave: _Slave) -> None:
        silence = self._parts.settings().ha_housekeeping_interval / 1000
        deadline = self._loop.time() + silence
        while slave.first_ack is None and not slave.ended:
            if self._loop.time() >= deadline:
                raise LinkClosed(f"no acknowledgement in {silence:g} s after the handshake")
            await slave.changed.wait(deadline - self._loop.time())
        if slave.first_ack is not None:
            slave.next_offset = self._first_offset(slave, slave.first_ack)
        while True:
            begun, slave.begun = slave.begun, None
            if begun is not None:
                await begun.finish()
            if slave.ended:
                break
            due = self._next_packet(slave)
            if not isinstance(due, TransferHeader):
                slave.idle = True
                await slave.changed.wait(due)
                slave.idle = False
                continue
            await slave.link.send(due, self._log)
            if due.size >= GATHER_BYTES_MAX:
                await asyncio.sleep(0)
        raise LinkClosed("the connection has ended")

    def _send_now(self, slave: _Slave) -> None:
        """Send what is due without waking the slave's task, which has only what remains then."""
        if not slave.idle or slave.ended:
            slave.changed.ring()
            return
        try:
            due = self._next_packet(slave)
        except LinkClosed:  # the task finds the same, and ends the connection
            slave.changed.ring()
            return
        if isinstance(due, TransferHeader):
            begun = Begun(slave.link.send(due, self._log))
            if not begun.done:
                slave.begun, slave.idle = begun, False
            if not begun.done or slave.next_offset < self._log.max_offset:
                slave.changed.ring()
        elif slave.gathers and slave.gathering is None:
            slave.gathering = self._loop.call_later(due, self._gathered, slave)

    def _gathered(self, slave: _Slave) -> None:
        slave.gathering = None
        if slave.gathers and not self.closed:
            self._send_now(slave)

    def _next_packet(self, slave: _Slave) -> TransferHeader | float:
        """What is sent to a slave now, which counts as sent; or for how many seconds nothing is."""
        settings = self._parts.settings()
        chunk = self._next_chunk(slave, settings)
        now = self._loop.time()
        confirmed = self._log.confirmed_offset
        slave.gathers = False
        if not chunk.size:
            due = slave.last_sent + _heartbeat_seconds(settings, is_ours=slave.is_ours)
            if slave.is_ours and confirmed > slave.sent_confirmed:
                due = min(due, slave.last_sent + PUSH_SECONDS)
            if now + ROUNDING_SECONDS < due:
                return due - now
        elif (
            chunk.size < GATHER_BYTES_MAX
            and slave.acknowledged < slave.next_offset
            and now + ROUNDING_SECONDS < slave.last_sent + GATHER_SECONDS
        ):
            slave.gathers = True
            return slave.last_sent + GATHER_SECONDS - now
        self.progress.sent(slave.broker_id, now, self._log.max_offset)
        slave.last_sent, slave.sent_confirmed = now, confirmed
        slave.next_offset = chunk.end
        slave.rate.add(chunk.size, now)
        return TransferHeader(chunk.offset, chunk.epoch, chunk.epoch_start, confirmed, chunk.size)

    def _first_offset(self, slave: _Slave, acknowledged: int) -> int:
        own = self._log
        first = first_offset(
            acknowledged, own.min_offset, own.max_offset, own.segment_bytes, last_file=slave.last_file
        )
        if first >= own.min_offset:
            return first
        if slave.is_ours:  # it sees the gap, and starts from scratch there
            return own.min_offset
        raise LinkClosed(
            f"the log begins at {own.min_offset}, the slave ends at {acknowledged}:"
            " empty the slave's store so that it starts from scratch"
        )

    def _next_chunk(self, slave: _Slave, settings: BrokerSettings) -> Chunk:
        own = self._log
        if slave.next_offset < own.min_offset:
            raise LinkClosed(
                f"the slave is to get {slave.next_offset} next, but the log begins at {own.min_offset} by now"
            )
        chunk = next_chunk(
            self._parts.epochs.history,
            slave.next_offset,
            own.max_offset,
            own.segment_bytes,
            settings.ha_transfer_batch_size,
        )
        if chunk is None:
            raise LinkClosed("the log has no epochs")
        return chunk

    # -- questions ----------------------------------------------------------------------------------------

    async def caught_up(self, broker_id: int, offset: int) -> None:
        """Wait until the replica has acknowledged `offset`; forever if the mastership ends."""
        if self.progress.acknowledged(broker_id) >= offset and broker_id in self._slaves:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        entry = (broker_id, offset, future)
        self._reached.append(entry)
        try:
            await future
        finally:
            self._reached.remove(entry)

    def _tell_reached(self) -> None:
        for broker_id, offset, future in self._reached:
            if not future.done() and self.progress.acknowledged(broker_id) >= offset:
                future.set_result(None)

    def views(self) -> tuple[ReplicaView, ...]:
        """The connected slaves by id."""
        now, end = self._loop.time(), self._log.max_offset
        found = []
        for broker_id, slave in sorted(self._slaves.items()):
            acknowledged = self.progress.acknowledged(broker_id)
            ago = self.progress.caught_up_seconds_ago(broker_id, now)
            found.append(
                ReplicaView(
                    broker_id,
                    slave.link.peer,
                    acknowledged,
                    max(0, end - acknowledged),
                    broker_id in self.in_sync.committed,
                    slave.learner,
                    slave.is_ours,
                    -1 if ago is None else int(ago * 1000),
                    slave.rate.per_second(now),
                )
            )
        return tuple(found)

    def close(self, reason: str) -> None:
        """End the mastership: close all connections, propose nothing any more."""
        if self.closed:
            return
        self.closed = True
        self.enough = False
        if self._push is not None:
            self._push.cancel()
            self._push = None
        if self.alone:
            self.alone = False
            self._log.confirm_appends(False)
        for link in list(self._links.values()):
            link.close(reason)
        self._wake.set()


def _heartbeat_seconds(settings: BrokerSettings, *, is_ours: bool) -> float:
    """Between two packets to an idle slave."""
    interval_ms = settings.ha_send_heartbeat_interval
    if is_ours:
        interval_ms = min(interval_ms, settings.ha_max_time_slave_not_catchup // HEARTBEATS_IN_LAG)
    return interval_ms / 1000


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long, and clear it."""
    if not event.is_set():
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await event.wait()
        except TimeoutError:
            pass
    event.clear()
