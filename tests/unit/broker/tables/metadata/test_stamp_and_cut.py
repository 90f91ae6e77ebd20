"""A stamp that is written while the log is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from brokerset_broker.tables.metadata.records import TopicsPut
from brokerset_broker.tables.metadata.stamp import StampFile
from brokerset_formats.config import TopicConfig
from brokerset_rig.metadata_parts import MemoryStore, Replica, copy_records
from brokerset_runtime.disk import RealDisk


async def test_a_stamp_that_was_being_written_names_nothing_that_was_cut(tmp_path: Path) -> None:
    """Else what comes to the same place of the log would never be applied after the next start."""

    leader = Replica(tmp_path / "leader")
    await leader.log.start_following()
    await leader.log.lead(1)
    await leader.log.write_snapshot()
    leader.confirm()
    change = asyncio.create_task(leader.log.change(["t"], lambda: [TopicsPut((TopicConfig("t", 4, 4),))]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leader.confirm()
    await change
    store = MemoryStore()
    copy_records(leader.store, store)
    follower = Replica(tmp_path / "follower", store)
    follower.confirm()
    await follower.log.start_following()
    assert follower.log.status().applied_offset == store.max_offset
    cut = store.records[-1].offset

    async def cut_meanwhile(work: Callable[[], object]) -> object:
        result = work()
        if store.max_offset > cut:
            store.records = store.records[:-1]
            store.confirmed_offset = cut
            follower.log.truncated(cut)
        return result

    follower.log._run_blocking = cut_meanwhile  # type: ignore[assignment]  # carries everything out

    await follower.log.write_stamp()

    stamp = StampFile(RealDisk(tmp_path / "follower" / "config")).load()
    assert stamp is not None
    assert stamp.applied_offset <= cut
