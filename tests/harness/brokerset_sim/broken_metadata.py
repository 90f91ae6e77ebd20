"""Deliberate bugs of metadata in the log, to see that its checker notices them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.records import Change, TopicsDeleted
from brokerset_broker.tables.metadata.stamp import Stamp
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_sim.broken import Patch, Variant
from brokerset_sim.metadata_checker import KEPT, TABLES_SAME
from brokerset_sim.plan import Plan

# -- answering -------------------------------------------------------------------------------------


def _answered_at_once() -> list[Patch]:
    async def hasty(self: MetadataLog, end: int) -> None:
        return

    return [(MetadataLog, "_confirmed_at", hasty)]


def _commits_answered_at_once() -> list[Patch]:
    def hasty(self: MetadataLog, callback: Callable[[PutStatus], None]) -> None:
        callback(PutStatus.PUT_OK if self.leading else PutStatus.SERVICE_NOT_AVAILABLE)

    return [(MetadataLog, "when_offsets_confirmed", hasty)]


def _deposed_says_done() -> list[Patch]:
    stop = MetadataLog.stop_leading

    def generous(self: MetadataLog) -> None:
        for end in sorted(self._waiters):
            for callback in self._waiters[end]:
                callback(PutStatus.PUT_OK)
        stop(self)

    return [(MetadataLog, "stop_leading", generous)]


# -- applying --------------------------------------------------------------------------------------


def _trusts_its_tables() -> list[Patch]:
    stop = MetadataLog.stop_leading

    def trusting(self: MetadataLog) -> None:
        exact = self._applier.exact
        stop(self)
        self._applier.exact = exact

    return [(MetadataLog, "stop_leading", trusting)]


def _applied_at_once() -> list[Patch]:
    write = MetadataLog._write_answered_later

    def eager(self: MetadataLog, changes: Sequence[Change]) -> int:
        end = write(self, changes)
        for change in changes:
            self._tables.apply(change, end)
        return end

    return [(MetadataLog, "_write_answered_later", eager), *_trusts_its_tables()]


def _not_replayed() -> list[Patch]:
    lead = MetadataLog.lead

    async def hasty(self: MetadataLog, epoch: int) -> None:
        async def nothing(limit: Callable[[], int]) -> None:
            return

        vars(self)["_drive"] = nothing
        try:
            await lead(self, epoch)
        finally:
            del vars(self)["_drive"]

    return [(MetadataLog, "lead", hasty)]


def _deletions_not_replayed() -> list[Patch]:
    apply = Tables.apply

    def forgetful(self: Tables, change: Change, offset: int) -> None:
        if not (isinstance(change, TopicsDeleted) and self.topics.frozen):
            apply(self, change, offset)

    return [(Tables, "apply", forgetful)]


# -- files -----------------------------------------------------------------------------------------


def _stamp_first() -> list[Patch]:
    async def hasty(self: MetadataLog) -> None:
        applier = self._applier
        if applier.restoring or self._must_ask or applier.applied == self._stamped:
            return
        stamp = Stamp(applier.applied, self.epoch, self._tables.waiting_resets())
        await self._run_blocking(lambda: self._stamp.save(stamp))
        self._stamped = stamp.applied_offset
        await self._tables.saved()

    return [(MetadataLog, "write_stamp", hasty)]


_BUSY = Plan(
    controllers=1,
    brokers=(3,),
    seconds=10.0,
    pause_between=0.8,
    disk_checks=0.0,
    replicating=True,
    min_in_sync=2,
    clients=1,
    send_pause=0.1,
    metadata_clients=3,
    metadata_pause=0.03,
    faults={"kill master": 2, "pause broker": 1, "cut replication": 1, "break replication": 1},
)
_MOVING = replace(
    _BUSY,
    admin={"elect": 3, "switch over": 2},
    admin_pause=0.4,
    faults={"cut off master": 2, "pause master": 1, "cut replication": 2},
)
_TAILS = replace(
    _MOVING,
    seconds=16.0,
    admin={"elect": 1},
    admin_pause=0.3,
    metadata_clients=4,
    faults={"cut off master": 2, "cut replication": 3},
)
_CRASHES = replace(
    _BUSY,
    brokers=(2,),
    min_in_sync=1,
    seconds=24.0,
    pause_between=2.5,
    snapshot_each_bytes=1 << 30,
    stalls=0.3,
    faults={"kill broker": 2, "kill master": 1},
)

_BOTH = (KEPT, TABLES_SAME)

VARIANTS: tuple[Variant, ...] = (
    Variant("a change is answered before it is confirmed", _answered_at_once, (KEPT,), _BUSY),
    Variant("a commit is answered before it is confirmed", _commits_answered_at_once, (KEPT,), _BUSY),
    Variant("a deposed master says done to who still waits", _deposed_says_done, (KEPT,), _MOVING),
    Variant("what was cut off a deposed master is not forgotten", _trusts_its_tables, _BOTH, _TAILS),
    Variant("a change is applied before it is confirmed, and stays", _applied_at_once, _BOTH, _TAILS),
    Variant("a new master serves before it has applied its log", _not_replayed, _BOTH, _BUSY),
    Variant("a told deletion is not replayed", _deletions_not_replayed, _BOTH, _BUSY),
    Variant("the stamp is written before the files", _stamp_first, _BOTH, _CRASHES),
)
