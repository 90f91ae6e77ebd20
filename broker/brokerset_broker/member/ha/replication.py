"""Replication as the rest of the broker sees it: leading, following, waiting for replicas, and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.group_link import GroupLink
from brokerset_broker.member.ha.follower import Follower, FollowerParts, InForce
from brokerset_broker.member.ha.leader import Leader, LeaderCounts, LeaderParts
from brokerset_broker.member.ha.links import HaNetwork, SlaveLink
from brokerset_broker.member.ha.views import FollowerView, ReplicationStatus, ReplicaView, WhenDurable
from brokerset_broker.member.ha.waiting import BothDone, Waiters
from brokerset_broker.member.role import GivenBack, Role, RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_protocol.ha_packets import PeerIdentity
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RunBlocking
from brokerset_spec.broker_settings import BrokerSettings

__all__ = [
    "FollowerView",
    "ReplicaView",
    "Replication",
    "ReplicationStatus",
    "WhenDurable",
]

log = structlog.get_logger(__name__)

NOT_LEADING = "this broker does not lead its group"

LEAD_ADVICE = (
    "another replica that is in sync has everything; if there is none, start this one once with"
    " acceptDamagedStore=true to go on without what is missing, of which commitlog.damaged may have a copy"
)

END_CHECK_SECONDS: Final = 0.005
"""Between two looks at who still waits, when a broker ends."""

Flushed = Callable[[int, Callable[[bool], None]], None]
"""Calls back when the log is on the disk up to an offset, with False if not in time: the flusher's."""


class Replication:
    """Leads or follows, as it is told by the steps of a role change. `run` is the task."""

    def __init__(
        self,
        *,
        settings: Callable[[], BrokerSettings],
        log: ReplicaLog,
        epochs: EpochFile,
        network: HaNetwork,
        clock: Clock,
        run_blocking: RunBlocking,
        identity: Callable[[], PeerIdentity | None],
        group: GroupLink,
        flushed: Flushed | None = None,
        may_join: Callable[[], bool] = lambda: True,
        on_waiting_change: Callable[[], None] = lambda: None,
        on_service_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`flushed` is how a send waits for the disk under SYNC_FLUSH.

        `may_join` says whether this replica, as a slave, may be taken into the in-sync set.
        `on_waiting_change` is called when `acknowledges_appends` has changed, before anything else is
        appended; `on_service_change` when `enough_in_sync` or `epoch_confirmed` has.
        """
        self._settings = settings
        self._log = log
        self._epochs = epochs
        self._clock = clock
        self._run_blocking = run_blocking
        self._identity = identity
        self._group = group
        self._flushed = flushed
        self._tasks: asyncio.TaskGroup | None = None
        self._leader: Leader | None = None
        self._log_leads = False
        self._counts = LeaderCounts()
        self._truncated_bytes = 0
        self._in_force = InForce()
        self._waiters = Waiters()
        self._enough = False
        self._epoch_begin = 0
        self._epoch_confirmed = False
        self._keeps_set = False
        self.acknowledges_appends = False
        """Whether a send need not wait: this broker leads, and its own memory is as safe as was asked for."""
        self._on_waiting_change = on_waiting_change
        self._on_service_change = on_service_change
        self._follower = Follower(
            FollowerParts(
                settings,
                log,
                epochs,
                network,
                group,
                run_blocking,
                identity,
                lambda: self._in_force,
                self._truncate,
                may_join,
            )
        )
        log.on_appended(self._appended)
        log.on_confirmed(self._confirmed_moved)
        log.on_acknowledged(self._on_disk)
        network.on_slave(self._slave)

    async def run(self) -> None:
        """Lead and follow as told, until cancelled; raises what an unexpected failure raised."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if self._leader is not None:
                    tasks.create_task(self._leader.watch())
                tasks.create_task(self._follower.run())
        finally:
            self._tasks = None
            self.close_replicas("this broker stops")
            self.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)

    # -- steps of a role change ---------------------------------------------------------------------------

    async def stop_following(self) -> None:
        """Receive and acknowledge nothing more; what was begun on the disk is done when this returns."""
        await self._follower.stop()

    async def finish_received(self) -> int:
        """Dispatch what was received, drop a record that is not whole; the end of the log.

        Raises `ReplicaLogFailed`.
        """
        if self._log_leads:
            return self._log.max_offset
        try:
            return await self._log.finish_received()
        except ReplicaLogFailed:
            await self._check_complete()  # says more
            raise

    async def _check_complete(self) -> None:
        """Raise `ReplicaLogFailed` if the log lacks something that it may have acknowledged.

        A record that came damaged is written down first: the next start would take it for a torn end.
        """
        failure = self._log.failure()
        if failure is not None:
            try:
                await self._run_blocking(lambda: self._epochs.set_incomplete(failure))
            except OSError as error:
                log.warning("it cannot be written down that the log is damaged", reason=str(error))
        lacking = failure or self._epochs.incomplete
        if lacking:
            raise ReplicaLogFailed(f"the log is not complete, so it cannot lead: {lacking}; {LEAD_ADVICE}")

    async def begin_epoch(self, epoch: int) -> bool:
        """Write down where the epoch begins, then take appends; False if the log has passed the epoch.

        Raises `OSError`, and `ReplicaLogFailed` if the log lacks something that it may have acknowledged.
        """
        own_log, epochs = self._log, self._epochs
        await self._check_complete()
        begin, end = own_log.min_offset, own_log.max_offset
        if not await self._run_blocking(lambda: epochs.begin_at(epoch, log_begin=begin, log_end=end)):
            return False
        assert own_log.max_offset == end, "nothing may be appended before its epoch is on the disk"
        own_log.lead()
        self._log_leads = True
        return True

    def accept_replicas(
        self,
        epoch: int,
        sync_state_set: frozenset[int],
        set_epoch: int,
        *,
        given_back: tuple[GivenBack, ...] = (),
    ) -> None:
        """Lead in this epoch, with the in-sync set that the controllers told.

        `given_back` is what this broker has proposed in this epoch before, when it could not lead.
        """
        identity = self._identity()
        assert identity is not None, "who has no id is no master"
        self.close_replicas("another epoch begins")
        self.adopt(sync_state_set, set_epoch, epoch)
        word = self._in_force
        if word.epoch == epoch and word.set_epoch > set_epoch:
            sync_state_set, set_epoch = word.sync_state_set, word.set_epoch
        parts = LeaderParts(
            self._settings, self._log, self._epochs, self._group, identity, self._counts, self._progressed
        )
        self._leader = Leader(parts, epoch, sync_state_set, set_epoch, given_back)
        self._leader.keeps_set = self._keeps_set
        self._epoch_begin = self._log.max_offset
        self._progressed()
        if self._tasks is not None:
            self._tasks.create_task(self._leader.watch())

    def keep_set(self, on: bool) -> None:
        """Whether replicas that leave stay in the set: this master ends, and they are stopped with it.

        They have all that was acknowledged, and nothing more will be: after the next start each may lead.
        """
        self._keeps_set = on
        if self._leader is not None:
            self._leader.keeps_set = on

    def close_replicas(self, reason: str) -> None:
        """End the mastership: nothing is confirmed any more."""
        if self._leader is not None:
            self._leader.close(reason)
            self._leader = None
            self._progressed()

    def answer_waiters(self, status: PutStatus) -> None:
        """Answer every send that waits."""
        self._waiters.answer_all(status)

    async def end(self, seconds: float) -> None:
        """End for good, as a broker does that takes no sends any more: answer every send that waits.

        In-sync replicas that are connected have up to `seconds` to acknowledge. Others are not waited for
        until `slaveTimeout`: FLUSH_SLAVE_TIMEOUT says that a message is stored, but here the next master most
        likely lacks it. SERVICE_NOT_AVAILABLE has clients send it again.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (  # noqa: ASYNC110  # sends end in many ways, and none tells
            len(self._waiters) and loop.time() < deadline and self._may_be_acknowledged()
        ):
            await asyncio.sleep(END_CHECK_SECONDS)
        self.close_replicas("this broker ends")
        self.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)

    def _may_be_acknowledged(self) -> bool:
        return self._leader is not None and any(each.in_sync for each in self._leader.views())

    def follow(self, change: RoleState) -> None:
        """Follow the master that `change` names, until told otherwise."""
        assert self._leader is None, "who leads does not follow"
        self._log_leads = False
        self._remember(change.sync_state_set, change.set_epoch, change.epoch)
        self._follower.follow(change)

    def adopt(self, sync_state_set: frozenset[int], set_epoch: int, epoch: int) -> None:
        """Take what the controllers say is in force in `epoch`, as master and as slave."""
        self._remember(sync_state_set, set_epoch, epoch)
        if self._leader is not None and epoch == self._leader.epoch and sync_state_set:
            self._leader.adopt(sync_state_set, set_epoch)
        self._follower.news()

    def _remember(self, sync_state_set: frozenset[int], set_epoch: int, epoch: int) -> None:
        self._in_force = self._in_force.newer(InForce(epoch, set_epoch, sync_state_set))

    # -- waiting ------------------------------------------------------------------------------------------

    def when_acknowledged(self, end: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back when the log below `end` is as safe as the settings demand; maybe at once.

        Called with growing `end`, as appends come.
        """
        leader = self._leader
        if leader is None:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        settings = self._settings()
        if self._flushed is not None and settings.flush_disk_type == "SYNC_FLUSH":
            both = BothDone(callback)
            self._when_replicated(leader, end, both.replicated, settings.slave_timeout / 1000)
            self._flushed(end, both.flushed)
            return
        self._when_replicated(leader, end, callback, settings.slave_timeout / 1000)

    def _when_replicated(
        self, leader: Leader, end: int, callback: Callable[[PutStatus], None], timeout_seconds: float
    ) -> None:
        if leader.is_acknowledged(end):
            callback(PutStatus.PUT_OK)
        else:
            self._waiters.add(end, callback, timeout_seconds)

    async def caught_up(self, broker_id: int, offset: int, timeout: float) -> bool:
        """Wait until a connected replica has acknowledged `offset`; False if not in time."""
        leader = self._leader
        if leader is None:
            return False
        try:
            async with asyncio.timeout(timeout):
                await leader.caught_up(broker_id, offset)
        except TimeoutError:
            return False
        return self._leader is leader

    @property
    def enough_in_sync(self) -> bool:
        """Whether this broker leads, and every in-sync set that may be in force is big enough."""
        return self._enough

    @property
    def epoch_confirmed(self) -> bool:
        """Whether this broker leads, and all that its log had when it began to is confirmed.

        Whatever earlier masters acknowledged is among that; before, what can be read may end below it.
        """
        return self._epoch_confirmed

    # -- what happens -------------------------------------------------------------------------------------

    def _appended(self, end: int) -> None:
        if self._leader is not None:
            self._leader.appended(end)

    def _confirmed_moved(self, offset: int) -> None:
        if self._leader is not None:
            self._leader.confirmed_moved()
        if not self._epoch_confirmed:
            self._check_service()

    def _on_disk(self) -> None:
        if self._leader is not None:
            self._leader.refresh()

    def _progressed(self) -> None:
        leader = self._leader
        if leader is not None and len(self._waiters):
            self._waiters.answer_up_to(leader.acknowledged)
        at_once = leader is not None and leader.acknowledges_appends
        if at_once != self.acknowledges_appends:
            self.acknowledges_appends = at_once
            self._on_waiting_change()
        self._check_service()

    def _check_service(self) -> None:
        """Tell the listeners if what may be served has changed."""
        leader = self._leader
        enough = leader is not None and leader.enough
        confirmed = leader is not None and self._log.confirmed_offset >= self._epoch_begin
        if (enough, confirmed) != (self._enough, self._epoch_confirmed):
            self._enough, self._epoch_confirmed = enough, confirmed
            self._on_service_change()

    def _slave(self, link: SlaveLink) -> None:
        leader = self._leader
        if leader is None or self._tasks is None:
            self._counts.connections_refused += 1
            link.close(NOT_LEADING)
            return
        self._tasks.create_task(leader.serve(link))

    def _truncate(self, size: int) -> None:
        self._truncated_bytes += size

    # -- state --------------------------------------------------------------------------------------------

    def status(self) -> ReplicationStatus:
        """Everything that status, metrics and 907 show."""
        leader, view = self._leader, self._follower.view()
        if leader is not None:
            role, epoch = Role.MASTER, leader.epoch
            in_force, set_epoch = leader.in_sync.committed, leader.in_sync.set_epoch
        else:
            role = Role.NONE if view.state == "off" else Role.SLAVE
            epoch, set_epoch = self._in_force.epoch, self._in_force.set_epoch
            in_force = self._in_force.sync_state_set
        return ReplicationStatus(
            role=role,
            epoch=max(0, epoch),
            sync_state_set=in_force,
            set_epoch=max(0, set_epoch),
            pending_sets=leader.in_sync.pending if leader is not None else (),
            min_in_sync=self._settings().min_in_sync_replicas,
            enough_in_sync=self._enough,
            confirmed_offset=self._log.confirmed_offset,
            max_offset=self._log.max_offset,
            replicas=leader.views() if leader is not None else (),
            follower=view,
            waiting=len(self._waiters),
            truncated_bytes=self._truncated_bytes,
            incomplete=self._log.failure() or self._epochs.incomplete,
            repairs=self._follower.repairs,
            expansions=self._counts.expansions,
            shrinks=self._counts.shrinks,
            connections_refused=self._counts.connections_refused,
        )
