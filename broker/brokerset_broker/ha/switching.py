"""Carries out a change of role, step by step, one change after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from brokerset_broker.ha.replica_log import ReplicaLogFailed
from brokerset_broker.ha.replication import Replication
from brokerset_broker.ha.role_switch import Step, plan_switch
from brokerset_broker.membership.role import Role, RoleChange
from brokerset_broker.store.errors import PutStatus, StoreCorrupt, StoreRefused
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)


class SwitchTargets(Protocol):
    """What a change of role does outside of replication. What raises ends the change."""

    def hold_writes(self) -> None:
        """Let sends wait; none is appended from now until `serve`, not even one that was admitted before."""

    async def stop_services(self) -> None:
        """End what only a master does; when this returns it appends nothing any more."""

    async def apply_metadata(self) -> None:
        """Apply all metadata that is in the log: it is history now."""

    async def write_snapshot(self) -> None:
        """Write all metadata, the first records of the epoch."""

    def start_services(self) -> None:
        """Begin what only a master does."""

    def serve(self, change: RoleChange) -> None:
        """Serve, forward or refuse, as the role and the lease allow."""

    def tell_name_servers(self) -> None:
        """Register again soon."""


class Switching:
    """Executes the plans of `role_switch`."""

    def __init__(self, replication: Replication, targets: SwitchTargets, clock: Clock) -> None:
        self._replication = replication
        self._targets = targets
        self._clock = clock
        self._lock = asyncio.Lock()
        self.last_switch_ms: dict[str, float] = {}
        """How long each step of the last complete change took, by its name."""
        self.problem = ""
        """Why the last change failed; empty when it did not."""

    async def switch(
        self, before: RoleChange, after: RoleChange, take_role: Callable[[RoleChange], None]
    ) -> bool:
        """Go from one role to another; False when a step failed.

        Then `take_role` gets the absence of a role in the epoch of `after`, with the reason, so that the same
        news counts as news again, and the broker refuses requests.
        """
        async with self._lock:
            took: dict[str, float] = {}
            steps = plan_switch(before, after)
            for step in steps:
                began = self._clock.monotonic()
                try:
                    done = await self._do(step, after, take_role)
                except (ReplicaLogFailed, StoreRefused, StoreCorrupt, OSError, TimeoutError) as error:
                    done = f"{type(error).__name__}: {error}"
                took[step.value] = round(1000 * (self._clock.monotonic() - began), 3)
                if done:
                    self._failed(step, after, done, took)
                    without = RoleChange(epoch=after.epoch, set_epoch=after.set_epoch, reason=self.problem)
                    take_role(without)
                    self._targets.serve(without)
                    return False
            self.problem = ""
            if len(steps) > 3:
                self.last_switch_ms = took
                log.info(
                    "role switched",
                    role=after.role,
                    epoch=after.epoch,
                    total_ms=round(sum(took.values()), 3),
                    steps_ms=took,
                )
            return True

    async def _do(self, step: Step, after: RoleChange, take_role: Callable[[RoleChange], None]) -> str:
        """Do one step; returns why it failed."""
        replication, targets = self._replication, self._targets
        match step:
            case Step.HOLD_WRITES:
                targets.hold_writes()
            case Step.STOP_SERVICES:
                await targets.stop_services()
            case Step.CLOSE_REPLICAS:
                replication.close_replicas("this broker's mastership has ended")
            case Step.ANSWER_WAITERS:
                replication.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
            case Step.STOP_FOLLOWING:
                await replication.stop_following()
            case Step.FINISH_RECEIVED:
                await self._finish_received(after)
            case Step.BEGIN_EPOCH:
                if not await replication.begin_epoch(after.epoch):
                    return f"the log has passed the epoch {after.epoch}"
            case Step.APPLY_METADATA:
                await targets.apply_metadata()
            case Step.TAKE_ROLE:
                take_role(after)
            case Step.TAKE_IN_SYNC:
                replication.adopt(after.sync_state_set, after.set_epoch, after.epoch)
            case Step.ACCEPT_REPLICAS:
                replication.accept_replicas(
                    after.epoch, after.sync_state_set, after.set_epoch, given_back=after.given_back
                )
            case Step.WRITE_SNAPSHOT:
                await targets.write_snapshot()
            case Step.START_SERVICES:
                targets.start_services()
            case Step.FOLLOW:
                replication.follow(after)
            case Step.SERVE:
                targets.serve(after)
            case Step.TELL_NAME_SERVERS:
                targets.tell_name_servers()
        return ""

    async def _finish_received(self, after: RoleChange) -> None:
        """Who is to lead needs all of it. Who is to follow does the same when it connects, and knows what to
        do with a log that is damaged."""
        try:
            await self._replication.finish_received()
        except ReplicaLogFailed as error:
            if after.role is Role.MASTER:
                raise
            log.warning("received bytes are left to the next master", reason=str(error), epoch=after.epoch)

    def _failed(self, step: Step, after: RoleChange, problem: str, took: dict[str, float]) -> None:
        before, self.problem = self.problem, f"{step}: {problem}"
        self._replication.close_replicas("this broker could not become master")
        self._replication.answer_waiters(PutStatus.SERVICE_NOT_AVAILABLE)
        note = log.debug if before == self.problem else log.error  # it is tried again each second
        note(
            "a change of role failed, requests are refused",
            step=step,
            problem=problem,
            role=after.role,
            epoch=after.epoch,
            steps_ms=took,
        )
