"""Carries out the steps of a change of role: on replication, metadata, services and name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from brokerset_broker.member.core import Step
from brokerset_broker.member.role import GivenBack, Role, RoleState
from brokerset_broker.member.shell import StepFailed
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.errors import PutStatus, StoreCorrupt, StoreRefused
from brokerset_broker.store.replica_log import ReplicaLogFailed
from brokerset_broker.tables.metadata.metadata_log import MetadataUnreadable
from brokerset_protocol.errors import Rejected

log = structlog.get_logger(__name__)

_FAILURES = (
    ReplicaLogFailed,
    StoreRefused,
    StoreCorrupt,
    MetadataUnreadable,
    Rejected,
    OSError,
    TimeoutError,
)
"""What may go wrong in a step; anything else is a mistake of ours, and ends the broker."""


class MemberMetadata(Protocol):
    """What a role decides about metadata: `MetadataLog`."""

    @property
    def covers_log(self) -> bool:
        """Whether no record is missing between the tables and the begin of the log."""

    async def run(self) -> None:
        """Write what is quiet, stamps and snapshots, until cancelled."""

    async def lead(self, epoch: int) -> None:
        """Apply everything up to the end of the log, then lead. Raises `MetadataUnreadable`."""

    async def write_snapshot(self) -> bool:
        """Write the whole state; False if that was interrupted."""

    def stop_leading(self) -> None:
        """Change nothing any more."""

    async def start_following(self) -> None:
        """Apply what is confirmed, as it is confirmed."""

    def confirmed(self, offset: int) -> None:
        """The log is confirmed up to `offset`."""

    def flush(self) -> None:
        """Write everything quiet that has no record yet."""

    def trouble(self) -> tuple[str, str] | None:
        """Why tables of a master that must be asked do not come, and what to do; None when all is well."""


class MemberReplication(Protocol):
    """What a change of role does to the log: `Replication`, or a DLedger's."""

    async def stop_following(self) -> None:
        """Receive and acknowledge nothing more."""

    async def finish_received(self) -> int:
        """Dispatch what was received; the end of the log. Raises `ReplicaLogFailed`."""

    async def begin_epoch(self, epoch: int) -> bool:
        """Write down where the epoch begins, then take appends; False if the log has passed the epoch."""

    def accept_replicas(
        self,
        epoch: int,
        sync_state_set: frozenset[int],
        set_epoch: int,
        *,
        given_back: tuple[GivenBack, ...] = (),
    ) -> None:
        """Lead in this epoch, with the in-sync set that the controllers told."""

    def close_replicas(self, reason: str) -> None:
        """End the mastership: nothing is confirmed any more."""

    def answer_waiters(self, status: PutStatus) -> None:
        """Answer every send that waits."""

    def follow(self, change: RoleState) -> None:
        """Follow the master that `change` names, until told otherwise."""

    def adopt(self, sync_state_set: frozenset[int], set_epoch: int, epoch: int) -> None:
        """Take what is in force in `epoch`, as master and as slave."""


class SwitchSteps:
    """What each step of `core.plan_switch` does. `run` is a task next to it."""

    def __init__(
        self,
        *,
        replication: MemberReplication,
        metadata: MemberMetadata,
        services: RoleServices,
        last_epoch: Callable[[], int],
        tell_name_servers: Callable[[], None],
        give_back: Callable[[RoleState], Awaitable[None]],
    ) -> None:
        """`last_epoch` is the last one that the log has."""
        self._replication = replication
        self._metadata = metadata
        self._services = services
        self._last_epoch = last_epoch
        self._tell_name_servers = tell_name_servers
        self._give_back = give_back
        self._follow_metadata = asyncio.Event()
        self._metadata_leads = False

    async def run(self) -> None:
        """Apply metadata as it is confirmed, from when that is wanted; no step waits for it."""
        while True:
            await self._follow_metadata.wait()
            self._follow_metadata.clear()
            if not self._metadata_leads:
                await self._metadata.start_following()

    async def carry_out(self, step: Step, role: RoleState) -> None:
        """Do one step of a change to `role`. Raises `StepFailed`."""
        try:
            await self._do(step, role)
        except _FAILURES as error:
            raise StepFailed(f"{type(error).__name__}: {error}") from error

    async def _do(self, step: Step, role: RoleState) -> None:
        replication = self._replication
        match step:
            case Step.STOP_SERVICES:
                await self._services.stop()
            case Step.STOP_METADATA:
                self._metadata.stop_leading()
            case Step.CLOSE_REPLICAS:
                leads = role.role is Role.MASTER
                replication.close_replicas("another epoch begins" if leads else "this mastership has ended")
            case Step.ANSWER_WAITERS:
                replication.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
            case Step.STOP_FOLLOWING:
                await replication.stop_following()
            case Step.FINISH_RECEIVED:
                await self._finish_received(role)
            case Step.BEGIN_EPOCH:
                if not await replication.begin_epoch(role.epoch):
                    raise StepFailed(f"the log has passed the epoch {role.epoch}")
            case Step.APPLY_METADATA:
                self._metadata_leads = True
                await self._metadata.lead(self._last_epoch())
            case Step.TAKE_IN_SYNC:
                replication.adopt(role.sync_state_set, role.set_epoch, role.epoch)
            case Step.ACCEPT_REPLICAS:
                replication.accept_replicas(
                    role.epoch, role.sync_state_set, role.set_epoch, given_back=role.given_back
                )
            case Step.WRITE_SNAPSHOT:
                await self._metadata.write_snapshot()
            case Step.START_SERVICES:
                self._services.start()
            case Step.FOLLOW:
                replication.follow(role)
            case Step.FOLLOW_METADATA:
                self._metadata_leads = False
                self._follow_metadata.set()
            case Step.TELL_NAME_SERVERS:
                self._tell_name_servers()
            case Step.GIVE_BACK:
                await self._give_back(role)
            case Step.HOLD_WRITES | Step.TAKE_ROLE | Step.SERVE:
                raise AssertionError(f"{step} is the member machine's own")

    async def _finish_received(self, role: RoleState) -> None:
        """Who is to lead needs all of it. Who is to follow does the same when it connects, and knows what to
        do with a log that is damaged."""
        try:
            await self._replication.finish_received()
        except ReplicaLogFailed as error:
            if role.role is Role.MASTER:
                raise
            log.warning("received bytes are left to the next master", reason=str(error), epoch=role.epoch)
