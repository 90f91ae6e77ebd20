"""A follower that is killed while it receives: what it may have acknowledged is there at the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brokerset_broker.store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

SEGMENT = 131_072

FOLLOW = """
import asyncio, os, sys
from pathlib import Path
from brokerset_broker.store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

root, stream, seed = Path(sys.argv[1]), open(sys.argv[2], "rb"), int(sys.argv[3])
settings = BrokerSettings(store_path_root_dir=root, mapped_file_size_commit_log={segment},
                          max_hash_slot_num=50, max_index_num=500)

async def follow():
    store = MessageStore(settings, ManualClock())
    log = StoreReplicaLog(store)
    store.load()
    store.start()
    log.follow()
    while True:
        room = log.room(1 + seed * 977 % 5000)
        size = stream.readinto(room)
        log.received(size)
        print(log.acknowledged_end, flush=True)
        await asyncio.sleep(0)

asyncio.run(follow())
"""


def open_log(root: Path) -> StoreReplicaLog:
    settings = BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=SEGMENT,
        max_hash_slot_num=50,
        max_index_num=500,
    )
    store = MessageStore(settings, ManualClock())
    log = StoreReplicaLog(store)
    store.load()
    return log


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_follower_has_every_whole_record_it_acknowledged(tmp_path: Path, seed: int) -> None:
    """SIGKILL in the middle of a record or before dispatching: no refusal, nothing acknowledged is lost."""
    leader = open_log(tmp_path / "leader")
    ends = []
    for number in range(600):
        appended = leader._store.append(
            "T",
            number % 3,
            b"%d" % number * 200,
            b"UNIQ_KEY\x01id-%d\x02" % number,
            flag=0,
            sys_flag=0,
            born_timestamp=0,
            born_host=bytes(8),
        )
        ends.append(appended.offset + appended.size)
    stream = tmp_path / "stream"
    with stream.open("wb") as out:
        offset = 0
        while offset < leader.max_offset:
            part = leader.view(offset, SEGMENT)
            out.write(part)
            offset += len(part)
    limit = 30 + seed * 37

    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW.format(segment=SEGMENT), tmp_path / "follower", stream, str(seed + 1)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        acknowledged = 0
        lines = 0
        for line in process.stdout:
            if not line.strip().isdigit():
                continue  # a line of the log
            acknowledged = int(line)
            lines += 1
            if lines >= limit:
                os.kill(process.pid, signal.SIGKILL)
                break
    follower = open_log(tmp_path / "follower")

    assert acknowledged > 0
    whole = max((end for end in ends if end <= acknowledged), default=0)
    assert follower.max_offset >= whole
    assert follower.max_offset in {0, *ends} or follower.max_offset % SEGMENT == 0
    count = sum(1 for end in ends if end <= follower.max_offset)
    assert sum(follower._store.queue_end("T", queue_id) for queue_id in range(3)) == count
    assert not (tmp_path / "follower" / "commitlog.damaged").exists()
    follower.follow()
    with stream.open("rb") as data:
        data.seek(follower.max_offset)
        while follower.received_end < leader.max_offset:
            room = follower.room(100_000)
            read = data.readinto(room)
            follower.received(read)
    assert follower.failure() is None
    assert follower.max_offset == leader.max_offset
    assert follower._store.queues() == leader._store.queues()
    leader._store.abandon()
    follower._store.abandon()
