"""Locks of ordered pops in a group: what was answered is known to the next master."""

from __future__ import annotations

from pathlib import Path

from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.snapshot import CHUNK_BYTES_MAX, ChunkPacker, MetadataState
from brokerset_broker.tables.pop.order_lock import ATTEMPT_ID_MAX, OrderLock, apply_changes
from brokerset_rig.metadata_parts import Replica, copy_records, settle


async def test_a_failover_keeps_a_lock_that_was_answered(tmp_path: Path) -> None:
    """It is answered when it is confirmed, and not before; the next master has it."""
    master, slave = Replica(tmp_path / "a"), Replica(tmp_path / "b")
    await master.log.lead(1)
    await slave.log.start_following()
    lock = OrderLock("a", 1_000, 60_000, (7, 8), acked=1)
    answers: list[PutStatus] = []

    master.order_locks.put("t", "g", 1, lock)
    master.log.when_order_stored(answers.append)
    await settle()
    assert answers == []
    copy_records(master.store, slave.store)
    master.confirm(master.store.max_offset)
    await settle()
    assert answers == [PutStatus.PUT_OK]
    master.log.stop_leading()
    await slave.log.lead(2)

    assert slave.order_locks.get("t", "g", 1) == lock


def test_the_locks_of_a_topic_with_very_many_queues_fit_into_records_and_chunks(tmp_path: Path) -> None:
    """However long the name of each attempt; together they are as they were."""
    offsets = tuple(range(10**9, 10**9 + 63))
    lock = OrderLock(
        "a" * ATTEMPT_ID_MAX, 2 * 10**12, 60_000, offsets, 1, dict.fromkeys(offsets, 2),
        dict.fromkeys(offsets, 2 * 10**12), 2 * 10**12,
    )  # fmt: skip
    locks = {"t@g": dict.fromkeys(range(1_000), lock), "u@g": {7: lock}}
    replica = Replica(tmp_path)
    for queue_id in locks["t@g"]:
        replica.order_locks.put("t", "g", queue_id, lock)
    replica.order_locks.put("u", "g", 7, lock)
    found: dict[str, dict[int, OrderLock]] = {}
    state, packer = MetadataState(), ChunkPacker()

    for _, body in records.encode(records.OrderLocksPut(locks)):
        assert len(body) <= records.RECORD_BYTES_MAX
        change = records.decode(body)
        assert isinstance(change, records.OrderLocksPut)
        apply_changes(found, change.locks)
    for chunk in replica.tables.pack(packer, 0):
        assert len(chunk) <= 2 * CHUNK_BYTES_MAX
        state.add_chunk(chunk)

    assert found == state.order_locks == locks
