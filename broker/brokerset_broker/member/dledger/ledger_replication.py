"""What the steps of a change of role do to the log of a DLedger: little, for the DLedger does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from brokerset_broker.member.role import GivenBack, Role, RoleState
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_broker.store.replica_log import ReplicaLogFailed

FINISH_SECONDS_MAX: Final = 10.0
"""How long a new leader may take to have its log committed and dispatched; a queue may have no room."""

FOLLOWS_TEXT: Final = "this broker does not lead its DLedger group"


class LedgerReplication:
    """Implements `MemberReplication` for `SwitchSteps`."""

    def __init__(self, store: LedgerStore, leads: Callable[[int], bool]) -> None:
        """`leads` tells whether this member still leads in a master epoch."""
        self._store = store
        self._leads = leads
        self._changed = asyncio.Event()
        self._epoch: int | None = None
        self._led: int | None = None
        store.follow(FOLLOWS_TEXT)

    def news(self) -> None:
        """More is dispatched, or the role of the member is another one."""
        self._changed.set()

    def wait_for(self, role: RoleState) -> None:
        """The role that the steps which follow lead to."""
        self._epoch = role.epoch if role.role is Role.MASTER else None

    async def finish_received(self) -> int:
        """Who is to lead waits until its log is committed and dispatched. Raises `ReplicaLogFailed`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FINISH_SECONDS_MAX
        while self._epoch is not None and not self._store.is_dispatched:
            if not self._leads(self._epoch):
                raise ReplicaLogFailed(f"the leadership of epoch {self._epoch} ended before it could serve")
            if (reason := self._store.stopped) is not None:
                raise ReplicaLogFailed(reason)
            if loop.time() >= deadline:
                raise ReplicaLogFailed(f"the log was not dispatched within {FINISH_SECONDS_MAX:g} s")
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
        return self._store.max_offset

    async def begin_epoch(self, epoch: int) -> bool:
        """Take appends; the record with which the term begins is in the log already."""
        if not self._leads(epoch):
            return False
        self._store.begin_leading()
        self._store.lead()
        self._led = epoch
        return True

    def lost(self) -> bool:
        """Whether a leadership has ended that took appends; then they are refused, and who waits is answered.

        The steps of the change of role come later, and the next leader's entries may come before them.
        """
        if self._led is None or self._leads(self._led):
            return False
        self.close_replicas("another member leads")
        self._store.answer_waiting(PutStatus.SERVICE_NOT_AVAILABLE)
        return True

    def close_replicas(self, reason: str) -> None:
        """Take no appends any more."""
        self._led = None
        self._store.follow(FOLLOWS_TEXT)

    def answer_waiters(self, status: PutStatus) -> None:
        """Answer every send that waits."""
        self._store.answer_waiting(status)

    async def stop_following(self) -> None:
        """The DLedger itself follows nobody once it leads."""

    def adopt(self, sync_state_set: frozenset[int], set_epoch: int, epoch: int) -> None:
        """A quorum is in sync, always another one."""

    def accept_replicas(
        self,
        epoch: int,
        sync_state_set: frozenset[int],
        set_epoch: int,
        *,
        given_back: tuple[GivenBack, ...] = (),
    ) -> None:
        """The DLedger pushes to its members by itself."""

    def follow(self, change: RoleState) -> None:
        """The DLedger follows by itself."""
