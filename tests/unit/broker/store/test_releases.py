"""What waited and is stored again by the native core leaves the same files as the way of one record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.requests.end_lane import EndLane
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.releases import ANY_QUEUE, Releases, store_again
from brokerset_broker.timers.messages import delivered_properties, timed_message
from brokerset_formats import native
from brokerset_formats.names import SCHEDULE_TOPIC, TIMER_TOPIC
from brokerset_formats.properties import encode_properties, find_property
from brokerset_formats.records import decode_record
from brokerset_formats.timer_files import TIMER_UNIT_SIZE, TimerUnit
from brokerset_protocol.commands import Command, encode
from brokerset_rig.local_servers import broker_settings
from brokerset_rig.transaction_bench import COMMIT, ROLLBACK, TransactionBench
from brokerset_runtime.clock import ManualClock

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")

COUNT = 40
_opened: list[MessageStore] = []


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().abandon()


TARGETS = {"t": ANY_QUEUE, "u": ANY_QUEUE}
NOW_MS = ManualClock().now_ms()
SLOT_MS = NOW_MS - NOW_MS % 1000


def _filled(folder: Path, topic: str, seed: int, *, crc: bool) -> tuple[MessageStore, list[int]]:
    """A store with records that wait, of which some are unusual, and their offsets."""
    chance = random.Random(seed)
    store = MessageStore(broker_settings(folder, enabled_append_prop_crc=crc), ManualClock())
    store.load()
    _opened.append(store)
    hosts = (bytes(8), bytes(range(20)))
    for target in TARGETS:
        for queue_id in range(2):
            store.append(
                target, queue_id, b"x", b"", flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8)
            )
    offsets = []
    for number in range(COUNT):
        properties = {
            "UNIQ_KEY": f"{number:032X}", "TAGS": chance.choice(("", "a", "b")),
            "KEYS": chance.choice(("", "k", "k1 k2")), "REAL_TOPIC": chance.choice("tu"),
            "REAL_QID": str(chance.randrange(2)), "TIMER_OUT_MS": str(SLOT_MS),
        }  # fmt: skip
        if chance.random() < 0.1:
            properties |= chance.choice(
                ({"REAL_QID": "7"}, {"TIMER_ENQUEUE_MS": "5"}, {"A": "#"}, {"REAL_TOPIC": "unknown"})
            )
        appended = store.append(
            topic, 0, chance.randbytes(chance.randrange(1, 300)), encode_properties(properties),
            flag=chance.randrange(9), sys_flag=chance.choice((0, 1, 8)), born_timestamp=number,
            born_host=chance.choice(hosts), reconsume_times=chance.randrange(3),
            prepared_transaction_offset=chance.randrange(3),
        )  # fmt: skip
        offsets.append(appended.offset)
    return store, offsets


def _one(store: MessageStore, offset: int, enqueued_ms: int | None) -> None:
    """Store a record again without the core; with `enqueued_ms` it is a timer."""
    data = store.read(offset)
    assert data is not None, "it was appended"
    record = decode_record(data)
    topic = find_property(record.properties, b"REAL_TOPIC") or b""
    queue_id = int(find_property(record.properties, b"REAL_QID") or b"0")
    properties = record.properties
    if enqueued_ms is not None:
        assert timed_message(record).topic == topic.decode()
        properties = delivered_properties(properties, enqueued_ms=enqueued_ms, now_ms=NOW_MS)
    store_again(store, record, topic.decode(), queue_id, properties)


def _trace(store: MessageStore) -> tuple[object, ...]:
    """What the log, the queues and the index have."""
    log, index = store.log, store.index
    data = b"".join(bytes(file.view[: log.max_offset - file.start]) for file in log.files.files)
    queues = {
        key: [queue.unit(number) for number in range(queue.next_offset)]
        for key, queue in store.queues_table.table.items()
    }
    arrivals = {key: (q.arrival_pending, q.arrival_tags) for key, q in store.queues_table.table.items()}
    assert index is not None
    assert index.table is not None
    return data, queues, arrivals, bytes(memoryview(index.table.buffer))


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_delayed_messages_leave_the_same_files(tmp_path: Path, seed: int, *, crc: bool) -> None:
    """Runs of plain ones with unusual ones between them; most are stored natively."""
    ours, offsets = _filled(tmp_path / "native", SCHEDULE_TOPIC, seed, crc=crc)
    theirs, _ = _filled(tmp_path / "python", SCHEDULE_TOPIC, seed, crc=crc)
    releases = Releases(native.core, ours)  # type: ignore[arg-type]  # there is one
    ours.log.make_room(1)

    done = natively = 0
    while done < COUNT:
        source = ours.plain_source(SCHEDULE_TOPIC, 0, done, COUNT)
        found = None if source is None else releases.delayed(source, NOW_MS, 1 << 20, dict(TARGETS))
        if found is None:
            _one(ours, offsets[done], None)
        count = 1 if found is None else found[0]
        natively += 0 if found is None else count
        done += count
    for offset in offsets:
        _one(theirs, offset, None)

    assert _trace(ours) == _trace(theirs)
    assert natively > COUNT // 2


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_timers_leave_the_same_files(tmp_path: Path, seed: int, *, crc: bool) -> None:
    """The two times of a delivery stand behind the properties; a unit that is not plain ends a run."""
    ours, offsets = _filled(tmp_path / "native", TIMER_TOPIC, seed, crc=crc)
    theirs, _ = _filled(tmp_path / "python", TIMER_TOPIC, seed, crc=crc)
    releases = Releases(native.core, ours)  # type: ignore[arg-type]  # there is one
    ours.log.make_room(1)
    magics = [3 if number % 13 == 12 else 1 for number in range(COUNT)]
    units = b"".join(
        TimerUnit(-1, magics[number], SLOT_MS - number, number, offset, 99, 7).encode()
        for number, offset in enumerate(offsets)
    )

    done = natively = 0
    while done < COUNT:
        positions = [number * TIMER_UNIT_SIZE for number in range(done, COUNT)]
        found = releases.timers(
            positions, offsets[done], (units, 0), slot_ms=SLOT_MS, done_end=0, now_ms=NOW_MS,
            bytes_max=1 << 20, targets=dict(TARGETS),
        )  # fmt: skip
        if found is None:
            _one(ours, offsets[done], SLOT_MS - done)
            done += 1
            continue
        done += found.messages
        natively += found.messages
        assert (found.newest, found.hashes) == (done - 1, [(7, found.messages)])
        assert sum(count for _, count in found.topics) == found.messages
        assert all(magics[number] == 1 for number in range(done - found.messages, done))
    for number, offset in enumerate(offsets):
        _one(theirs, offset, SLOT_MS - number)

    assert _trace(ours) == _trace(theirs)
    assert natively > COUNT // 2


class _Chunks:
    """The part of a connection that a lane uses."""

    peer = ("10.0.0.1", 54321)
    in_flight_room = answers_room = 1 << 20
    in_flight = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)


def _end_frame(half: Any, key: str, kind: int, opaque: int) -> bytes:
    fields = {
        "producerGroup": "pg", "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.offset), "commitOrRollback": str(kind), "msgId": key,
    }  # fmt: skip
    return encode(Command(37, fields, opaque=opaque))


async def test_plain_ends_leave_the_same_files_and_answers(tmp_path: Path) -> None:
    """Commits and rollbacks of one chunk; the second end of a transaction, and a forged one, are declined."""
    ours, theirs = TransactionBench(tmp_path / "native"), TransactionBench(tmp_path / "python")
    keys = [f"{number:032X}" for number in range(20)]
    kinds = [ROLLBACK if number % 4 == 3 else COMMIT for number in range(20)]
    halves: dict[TransactionBench, list[Any]] = {}
    for bench in (ours, theirs):
        _opened.append(bench.store)
        bench.lead()
        bench.end(bench.half("first"), "first", COMMIT)
        halves[bench] = [bench.half(key, TAGS="a", KEYS="k") for key in keys]
        bench.log.write_ops()
    lane = EndLane(
        Releases(native.core, ours.store), log_of_transactions=ours.log,  # type: ignore[arg-type]  # there is one
        topics=ours.topics, ordered=ours.ordered, admission=ours.admission,
    )  # fmt: skip
    ours.store.log.make_room(1)
    lane.is_open = lambda: True
    lane.learn("t")
    connection = _Chunks()
    each = list(zip(halves[ours], keys, kinds, strict=True))
    chunk = b"".join(_end_frame(*one, opaque) for opaque, one in enumerate(each))
    again = _end_frame(*each[0], 99)
    forged = _end_frame(each[0][0], "other", COMMIT, 98)

    served = lane.serve(connection, chunk + again)  # type: ignore[arg-type]  # the part of it that lanes use
    assert lane.serve(connection, again) == lane.serve(connection, forged) == 0  # type: ignore[arg-type]  # so is this
    ours.log.write_ops()
    for half, key, kind in zip(halves[theirs], keys, kinds, strict=True):
        theirs.end(half, key, kind)
    theirs.log.write_ops()

    assert (served, lane.served) == (len(chunk), 20)
    assert _trace(ours.store) == _trace(theirs.store)
    assert ours.bodies() == theirs.bodies()
    frames = [encode(Command(0, {}, opaque=opaque).reply()) for opaque in range(20)]
    commits = b"".join(frame for frame, kind in zip(frames, kinds, strict=True) if kind == COMMIT)
    rollbacks = b"".join(frame for frame, kind in zip(frames, kinds, strict=True) if kind == ROLLBACK)
    assert connection.sent == [commits, rollbacks]
    assert connection.in_flight == 0
