"""Changes of the tables in a broker without controllers: the files of config/ are the truth.

And, once, the way there from controller mode: what only the log has goes into the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from brokerset_broker.store import answers
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata.applier import Applier
from brokerset_broker.tables.metadata.records import (
    AccessPut,
    Change,
    ForbiddenPut,
    GroupsDeleted,
    GroupsPut,
    OffsetsPut,
    OffsetsRemoved,
    RequestModesPut,
    ResetsPut,
    TopicsDeleted,
    TopicsPut,
)
from brokerset_broker.tables.metadata.stamp import Stamp, StampFile
from brokerset_broker.tables.metadata.store_source import MetadataStore
from brokerset_broker.tables.metadata.tables import Tables
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.disk import RunBlocking

log = structlog.get_logger(__name__)


class FileChanges:
    """Implements `ChangeLog` (`requests.changes`): a change is in the tables at once, and answered when its
    files are on the disk."""

    def __init__(self, tables: Tables, max_offset: Callable[[], int]) -> None:
        """`max_offset` is the end of the log: what a deleted topic has lies below it."""
        self._tables = tables
        self._max_offset = max_offset
        self._order_waiters: list[Callable[[PutStatus], None]] = []
        self._order_saving: asyncio.Task[None] | None = None

    async def change(self, keys: Sequence[str], decide: Callable[[], Sequence[Change]]) -> None:
        """Make the change that `decide` finds. Raises `Rejected`, also if the disk does not take it.

        Nobody comes between the decision and its effect, so `keys` need no turns. New topics are unsaved
        until their file is written: nobody may be told that a message is stored in one of them before.
        """
        tables, unsaved = self._tables, self._tables.topics.unsaved
        changes = decide()
        new = [
            topic.topic_name
            for change in changes
            if isinstance(change, TopicsPut)
            for topic in change.topics
            if tables.topics.get(topic.topic_name) is None
        ]
        unsaved.update(dict.fromkeys(new))
        for change in changes:
            tables.apply(change, self._max_offset())
        try:
            await self._saved(changes)
        except OSError as error:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the change cannot be written down: {error}"
            ) from error

    async def _saved(self, changes: Sequence[Change]) -> None:
        """Without a change, what is there may have been changed a moment ago."""
        kinds = {type(change) for change in changes}
        if not kinds or kinds & {TopicsPut, TopicsDeleted}:
            unsaved = self._tables.topics.unsaved
            written = list(unsaved)  # also those of who did not wait until the end
            await self._tables.topics.saved()
            for name in written:
                unsaved.pop(name, None)
        if not kinds or kinds & {GroupsPut, GroupsDeleted, ForbiddenPut}:
            await self._tables.groups.saved()
        if kinds & {TopicsDeleted, OffsetsPut, ResetsPut, OffsetsRemoved}:
            await self._tables.offsets.saved()
        if kinds & {RequestModesPut, TopicsDeleted, GroupsDeleted}:
            await self._tables.request_modes.saved()
        if not kinds or AccessPut in kinds:
            await self._tables.access.saved()
        if kinds & {TopicsDeleted, GroupsDeleted, ResetsPut, OffsetsRemoved}:
            await self._tables.order_locks.saved()

    def when_offsets_confirmed(self, callback: Callable[[PutStatus], None]) -> None:
        """Committed offsets are written down every few seconds, as Java's broker does; nobody waits."""
        callback(PutStatus.PUT_OK)

    def when_order_stored(self, callback: Callable[[PutStatus], None]) -> None:
        """Call back when all locks of ordered pops are in their file; those who wait share a write."""
        self._order_waiters.append(callback)
        if self._order_saving is None:
            self._order_saving = asyncio.get_running_loop().create_task(self._save_order())

    async def _save_order(self) -> None:
        try:
            while self._order_waiters:
                waiting, self._order_waiters = self._order_waiters, []
                status = PutStatus.PUT_OK
                try:
                    await self._tables.order_locks.saved()
                except OSError as error:
                    log.error("locks of ordered pops cannot be written", reason=str(error))
                    status = PutStatus.SERVICE_NOT_AVAILABLE
                for callback in waiting:
                    answers.give(callback, status)
        finally:
            self._order_saving = None

    @property
    def replicated(self) -> bool:
        """Nobody else has the changes."""
        return False

    @property
    def taken_over_end(self) -> int:
        """Nothing has to be confirmed here."""
        return 0

    def flush_producers(self) -> None:
        """There are no ordered subjects here."""

    def answer_ext(self) -> dict[str, str]:
        """No fields: only Java's slaves ask, and they expect none."""
        return {}


async def leave_log(
    store: MetadataStore, tables: Tables, stamp_file: StampFile, run_blocking: RunBlocking
) -> bool:
    """Apply what lies behind the stamp, save everything, and put the stamp at the end of the log.

    From then on the files are the truth, also when there are controllers again: the log gets no records any
    more, so none of before comes back over what is changed now. False if this was never a member of a group,
    or if a record cannot be read; then what was read counts. Raises OSError.
    """
    stamp = stamp_file.load()
    if stamp is None and store.queue_max == 0:
        return False
    begin = -1 if stamp is None else stamp.applied_offset
    applier = Applier(store, tables)
    if stamp is not None and begin >= store.min_offset:
        applier.begin_at(min(stamp.applied_offset, store.max_offset), exact=False)
        tables.offsets.put_resets(stamp.resets)
        if stamp.timers is not None:
            tables.timers.put(stamp.timers)
    elif not applier.restore_newest(store.max_offset):
        applier.begin_at(store.min_offset, exact=False)
    while applier.advance(store.max_offset):  # noqa: ASYNC110  # others get their turn of the loop
        await asyncio.sleep(0)
    if applier.problem is not None:
        log.error("metadata of the log is left out", reason=applier.problem, applied=applier.applied)
        return False
    if applier.applied != begin:
        log.info("metadata of the log is in the files now", begin=begin, end=applier.applied)
    await tables.saved()
    if tables.changed_queues:
        await store.checkpoint()
    await run_blocking(lambda: stamp_file.save(Stamp(applier.applied)))
    return True
