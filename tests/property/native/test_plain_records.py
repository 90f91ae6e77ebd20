"""What the native core takes of a log ends up as what Python makes of it: the same queues, the same index."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_formats import native
from brokerset_formats.batches import BatchItem
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")

TOPICS = ["T", "T", "U", "é", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130]
PROPERTIES = [b"", b"TAGS\1A\2", b"TAGS\1B\2KEYS\1k  l\2", b"KEYS\1\xff\2", b"TAGS\1\xff\2", b"DELAY\0012\2"]


def settings(root: Path, **changes: Any) -> BrokerSettings:
    return BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=2_000,
        max_hash_slot_num=50,
        max_index_num=90,
        **changes,
    )


def fill(store: MessageStore, clock: ManualClock, rolls: random.Random) -> None:
    """Usual messages for the most part, and some of each unusual kind."""
    for number in range(rolls.randrange(1, 400)):
        if rolls.random() < 0.1:
            clock.advance(rolls.randrange(3_000))
        topic = "T" if rolls.random() < 0.8 else rolls.choice(TOPICS)
        properties = b"UNIQ_KEY\1id-%04d\2" % number * (rolls.random() < 0.8) + rolls.choice(PROPERTIES)
        common: dict[str, Any] = {"born_timestamp": 0, "born_host": bytes(rolls.choice([8, 8, 8, 20]))}
        sys_flag = rolls.choice([0] * 20 + [4, 8, 12])
        if rolls.random() < 0.01:
            store.delete_topic(topic)
        if rolls.random() < 0.05:
            items = [BatchItem(0, b"b", b"KEYS\1k%d\2" % item) for item in range(rolls.randrange(1, 9))]
            store.append_batch(topic, 0, items, sys_flag=0, **common)
        else:
            body = bytes(rolls.randrange(300))
            store.append(topic, rolls.randrange(2), body, properties, flag=0, sys_flag=sys_flag, **common)


def derived_files(root: Path) -> dict[str, list[bytes]]:
    """Content of queues and index, without names of index files, which are times."""
    found = {
        folder.relative_to(root).as_posix(): [file.read_bytes() for file in sorted(folder.iterdir())]
        for folder in sorted((root / "consumequeue").glob("*/*"))
    }
    return found | {"index": [file.read_bytes() for file in sorted((root / "index").glob("*"))]}


def both_ways(work: Callable[[str], dict[str, list[bytes]]]) -> tuple[object, object]:
    """What `work` finds with the native core, and without."""
    with_core = work("native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", None)
        return with_core, work("python")


@given(st.integers(0, 2**32))
@examples(25)
def test_a_recovery_makes_the_same_files(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, clock, rolls = Path(folder), ManualClock(), random.Random(seed)
        store = MessageStore(settings(root / "log", enabled_append_prop_crc=rolls.random() < 0.5), clock)
        store.load()
        fill(store, clock, rolls)
        store.abandon()
        lost = rolls.choice([(), ("consumequeue",), ("consumequeue", "index")])
        for name in lost:
            shutil.rmtree(root / "log" / name, ignore_errors=True)
        if lost:
            (root / "log" / "checkpoint").unlink(missing_ok=True)

        def recover(name: str) -> dict[str, list[bytes]]:
            shutil.copytree(root / "log", root / name)
            recovered = MessageStore(settings(root / name), ManualClock())
            recovered.load()
            recovered.abandon()
            return derived_files(root / name)

        with_core, without = both_ways(recover)

        assert with_core == without


@given(st.integers(0, 2**32))
@examples(25)
def test_a_slave_makes_the_same_files(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, clock, rolls = Path(folder), ManualClock(), random.Random(seed)
        store = MessageStore(settings(root / "log", enabled_append_prop_crc=rolls.random() < 0.5), clock)
        leader = StoreReplicaLog(store)
        store.load()
        fill(store, clock, rolls)

        def receive(name: str) -> dict[str, list[bytes]]:
            parts = random.Random(seed)
            received = MessageStore(settings(root / name), ManualClock())
            follower = StoreReplicaLog(received)
            received.load()
            follower.follow()
            while follower.received_end < leader.max_offset:
                data = leader.view(follower.received_end, parts.choice([1, 100, 5_000, 50_000]))
                room = follower.room(len(data))
                room[:] = data[: len(room)]
                follower.received(len(room))
            assert received.max_offset == store.max_offset
            received.abandon()
            return derived_files(root / name)

        with_core, without = both_ways(receive)
        store.abandon()

        assert with_core == without
