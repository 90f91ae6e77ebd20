"""Metadata of a broker that leaves controller mode: what only the log has goes into the files, once."""

from __future__ import annotations

import asyncio

import structlog

from brokerset_broker.metadata.applier import Applier
from brokerset_broker.metadata.stamp import Stamp, StampFile
from brokerset_broker.metadata.store_source import MetadataStore
from brokerset_broker.metadata.tables import Tables
from brokerset_runtime.disk import RunBlocking

log = structlog.get_logger(__name__)


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
    if tables.deleted_topics:
        await store.checkpoint()
    await run_blocking(lambda: stamp_file.save(Stamp(applier.applied)))
    return True
