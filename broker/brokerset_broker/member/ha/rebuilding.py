"""A replica whose log is damaged: it truncates the damage and gets it again from its master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.group_link import GroupLink
from brokerset_broker.member.ha.following import CannotFollow, proves_absence
from brokerset_broker.member.ha.repairs import DAMAGE_ADVICE, Repairs
from brokerset_broker.store.replica_log import ReplicaLog
from brokerset_formats.epochs import EpochHistory
from brokerset_runtime.disk import RunBlocking

log = structlog.get_logger(__name__)

WAIT_ADVICE = (
    "wait until the group has another replica in sync; if this is the last one in sync (`brokerset status`),"
    " start it once with acceptDamagedStore=true: when its disk is repaired, or to go on without what is"
    " damaged"
)


class Word(Protocol):
    """What the controllers last said to be in force."""

    @property
    def epoch(self) -> int:
        """Of the master."""

    @property
    def sync_state_set(self) -> frozenset[int]:
        """Empty if no set was told."""


class Rebuilding:
    """What one follower does about damage of its own log."""

    def __init__(
        self,
        own_log: ReplicaLog,
        epochs: EpochFile,
        group: GroupLink,
        run_blocking: RunBlocking,
        on_truncated: Callable[[int], None],
        in_force: Callable[[], Word],
    ) -> None:
        """`on_truncated` is told how many bytes were truncated."""
        self._log = own_log
        self._epochs = epochs
        self._group = group
        self._run_blocking = run_blocking
        self._on_truncated = on_truncated
        self._in_force = in_force
        self.repairs = Repairs()
        self.words = 0
        """How often the controllers were heard; who hears them counts."""
        self._damage: tuple[str, int] | None = None
        """What is wrong, and how often the controllers had been heard when that was noticed."""

    async def truncate_damage(self, own_id: int, epoch: int) -> None:
        """Truncate a damaged log behind its last whole record, with a copy; the master sends the rest.

        First it is written down that the log is incomplete: whatever happens next, it does not lead before it
        has everything again. What it may have acknowledged goes only when the controllers, asked after the
        damage was noticed, do not count on this replica: so the last one in sync throws nothing away. Raises
        `CannotFollow` while the log must stay as it is.
        """
        own_log, epochs = self._log, self._epochs
        failure = own_log.failure()
        if failure is None:
            self._damage = None
            return
        if self._damage is None or self._damage[0] != failure:
            log.error("the log is damaged", problem=failure, offset=own_log.max_offset, epoch=epoch)
            self._damage = failure, self.words
            self._group.ask_soon()
        await self.note_incomplete(failure)
        offset, now = own_log.max_offset, asyncio.get_running_loop().time()
        refusal = self.repairs.refusal(epoch, offset, now)
        if refusal:
            raise CannotFollow(f"{failure}; {refusal}", DAMAGE_ADVICE)
        word = self._in_force()
        heard = self.words > self._damage[1]
        if not heard or not proves_absence(own_id, epoch, word.epoch, word.sync_state_set):
            self._group.ask_soon()
            raise CannotFollow(
                f"{failure}; nothing is thrown away while the controllers may count on this replica",
                WAIT_ADVICE,
            )
        size = max(0, own_log.received_end - offset)
        kept = EpochHistory(tuple(e for e in epochs.history.entries if e.start_offset <= offset))
        await own_log.truncate(offset, keep_copy=True)
        log.warning(
            "truncated what was damaged: the master sends it again",
            offset=offset,
            truncated_bytes=size,
            epoch=epoch,
        )
        self.repairs.made(epoch, offset, now)
        self._damage = None
        await self._run_blocking(lambda: epochs.replace(kept))
        self._on_truncated(size)

    async def note_incomplete(self, failure: str) -> None:
        """Write down that the log lacks something: it must not lead. Raises `OSError`."""
        await self._run_blocking(lambda: self._epochs.set_incomplete(failure))

    def is_complete(self, master_end: int) -> bool:
        """Whether a log that was incomplete has what its master had at the handshake, so all that was
        acknowledged."""
        return (
            bool(self._epochs.incomplete)
            and self._log.failure() is None
            and self._log.max_offset >= master_end
        )

    async def note_complete(self, epoch: int) -> None:
        """Write down that nothing lacks any more; without success the next connection tries again."""
        try:
            await self._run_blocking(lambda: self._epochs.set_incomplete(""))
        except OSError as error:
            log.warning("it cannot be written down that the log is complete again", reason=str(error))
        else:
            log.info("the log has everything again", end=self._log.max_offset, epoch=epoch)
