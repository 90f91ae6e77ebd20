"""A replica that is killed at every step of a cut: the next start finishes it, or has it not begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brokerset_broker.store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.long

SEGMENT = 65_536
STEPS_MIN = 8
"""So many files are touched at least by what is tested; fewer mean that the kills came somewhere else."""

KILL = """
import asyncio, os, shutil, signal, sys
from pathlib import Path
from brokerset_broker.store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

template, copies, operation, offset = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
EVENTS = {{"open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "mmap.__new__"}}
armed = False
left = 0

def hook(event, arguments):
    global left
    if armed and event in EVENTS:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def work(root):
    global armed
    settings = BrokerSettings(store_path_root_dir=root, mapped_file_size_commit_log={segment},
                              mapped_file_size_consume_queue=4000, max_hash_slot_num=50, max_index_num=500)
    store = MessageStore(settings, ManualClock())
    log = StoreReplicaLog(store)
    store.load()
    store.start()
    log.follow()
    armed = True
    if operation == "begin":
        await log.begin_at(offset)
    else:
        await log.truncate(offset, keep_copy=operation == "copy")
    os._exit(0)

sys.addaudithook(hook)
for step in range(1, 1000):
    copy = copies / str(step)
    shutil.copytree(template, copy)
    child = os.fork()
    if child == 0:
        left = step
        asyncio.run(work(copy))
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    assert os.WTERMSIG(status) == signal.SIGKILL, status
sys.exit(3)
"""


def open_log(root: Path) -> StoreReplicaLog:
    settings = BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=4000,
        max_hash_slot_num=50,
        max_index_num=500,
    )
    store = MessageStore(settings, ManualClock())
    log = StoreReplicaLog(store)
    store.load()
    return log


def bytes_of(log: StoreReplicaLog) -> bytes:
    data, offset = b"", log.min_offset
    while offset < log.max_offset:
        part = bytes(log.view(offset, SEGMENT))
        data += part
        offset += len(part)
    return data


@pytest.mark.parametrize("operation", ["cut", "copy", "begin"])
def test_a_kill_at_every_step_leaves_all_or_nothing(tmp_path: Path, operation: str) -> None:
    """SIGKILL before each file that is opened, mapped, renamed or deleted: the log ends at the cut or where
    it ended before, queues and index agree with it, and the rest is received again."""
    leader = open_log(tmp_path / "leader")
    ends = [0]
    for number in range(700):
        appended = leader._store.append(
            "T", number % 3, b"%d" % number * 100, b"UNIQ_KEY\x01id-%d\x02" % number, flag=0, sys_flag=0,
            born_timestamp=0, born_host=bytes(8),
        )  # fmt: skip
        ends.append(appended.end)
    whole, end = bytes_of(leader), leader.max_offset
    template = open_log(tmp_path / "template")
    template.follow()
    while template.received_end < end:
        room = template.room(100_000)
        part = whole[template.received_end : template.received_end + len(room)]
        room[: len(part)] = part
        template.received(len(part))
    template._store.abandon()
    cut = ends[250]
    goal = 8 * SEGMENT if operation == "begin" else cut
    copies = tmp_path / "copies"
    copies.mkdir()

    script = KILL.format(segment=SEGMENT)
    arguments = [str(tmp_path / "template"), str(copies), operation, str(goal)]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    steps = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(steps) > STEPS_MIN
    ended = []
    for copy in steps:
        log = open_log(copy)
        ended.append((log.min_offset, log.max_offset))
        begin, found = ended[-1]
        assert (begin, found) in ((0, end), (goal if operation == "begin" else 0, goal)), copy
        assert not (copy / "removal").exists()
        numbers = [number for number in range(700) if ends[number + 1] <= found and begin == 0]
        if begin == 0:
            assert bytes_of(log) == whole[:found]
            assert sum(log._store.queue_end("T", queue) for queue in range(3)) == len(numbers)
            assert log._store.query("T", "id-5", 5, 0, 2**62).records or not log.confirmed_offset
            log.follow()
            while log.received_end < end:
                room = log.room(100_000)
                part = whole[log.received_end : log.received_end + len(room)]
                room[: len(part)] = part
                log.received(len(part))
            assert log.failure() is None
            assert log.max_offset == end
            assert log._store.queues() == leader._store.queues()
        else:
            assert log._store.queues() == {}
        log._store.abandon()
    leader._store.abandon()
    assert ended[0] == (0, end)
    assert ended[-1][1] == goal
