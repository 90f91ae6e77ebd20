"""Light queues over crashes, restarts and forged properties: their units are those that the log says."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.store import MessageStore, dispatch
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_formats import light_queues
from brokerset_formats.batches import BatchItem
from brokerset_formats.properties import decode_properties
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

SEGMENT = 16_384
NAMES = ("%LMQ%a", "%LMQ%b", "%LMQ%$T$child", "%LMQ%" + "n" * 250)
TOPICS = ("T", "U", "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "%DLQ%g", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC")

LightQueue = list[tuple[int, int]]
"""Offset and size of each message."""


def open_store(root: Path, clock: ManualClock | None = None) -> MessageStore:
    settings = BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=20,
        max_index_num=60,
        enable_lmq=True,
        accept_unserved_messages=True,
        enable_multi_dispatch=True,
    )
    store = MessageStore(settings, clock or ManualClock())
    store.load()
    return store


def in_log(store: MessageStore) -> dict[str, LightQueue]:
    """The light queues as the records of the log say them; their numbers are dense from 0 on."""
    queues: dict[str, LightQueue] = {}
    for head in store.log.records(store.min_offset):
        for name, number in light_queues.dispatched_queues(head.topic, head.properties):
            queue = queues.setdefault(name, [])
            assert number == len(queue), (name, head.offset)
            queue.append((head.offset, head.size))
    return queues


def in_queues(store: MessageStore) -> dict[str, LightQueue]:
    """The light queues as they are."""
    found = {}
    for name in store.queues_table.light:
        units = [store.unit(name, 0, number) for number in range(store.queue_end(name, 0))]
        if units:
            found[name] = [unit[:2] for unit in units if unit is not None]
    return found


def append(store: MessageStore, rng: random.Random, topic: str | None = None) -> None:
    """A message that names some light queues, perhaps with offsets that its sender has made up."""
    names = rng.sample(NAMES, rng.randrange(len(NAMES) + 1))
    properties = b"UNIQ_KEY\x01%d\x02TAGS\x01x\x02" % rng.randrange(1_000_000)
    if names:
        properties += f"INNER_MULTI_DISPATCH\x01{','.join(names)}\x02".encode()
    if rng.random() < 0.2:
        properties += b"INNER_MULTI_QUEUE_OFFSET\x01" + b",".join([b"7"] * len(names)) + b"\x02"
    store.append(
        topic or rng.choice(TOPICS),
        rng.randrange(2),
        bytes(rng.randrange(600)),
        properties,
        flag=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=bytes(8),
    )


@pytest.mark.parametrize("seed", range(25))
def test_light_queues_are_those_of_the_log_after_crashes_and_restarts(tmp_path: Path, seed: int) -> None:
    """Appends, checkpoints, crashes, power failures and clean stops: no unit is lost, none is there twice."""
    rng = random.Random(seed)
    root = tmp_path / "store"

    async def work() -> None:
        store = open_store(root)
        for _ in range(rng.randrange(20, 80)):
            choice = rng.random()
            if choice < 0.8:
                append(store, rng)
            elif choice < 0.85:
                items = [BatchItem(0, b"b", b"") for _ in range(3)]
                store.append_batch("T", 0, items, sys_flag=0, born_timestamp=0, born_host=bytes(8))
            elif choice < 0.9:
                await store.checkpoint()
            elif choice < 0.95:
                store.abandon()
                lose_units(root, rng)
                store = open_store(root)
            else:
                await store.close()
                store = open_store(root)
            assert in_queues(store) == in_log(store)
        store.abandon()

    asyncio.run(work())


def lose_units(root: Path, rng: random.Random) -> None:
    """A power failure takes units of light queues that were not synced; here all of them."""
    if rng.random() < 0.5:
        return
    for path in (root / "consumequeue").glob("%LMQ%*/0/*"):
        if rng.random() < 0.5:
            path.write_bytes(bytes(path.stat().st_size))
    (root / "abort").write_text("1\nanother boot\n")
    (root / "checkpoint").unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(10))
def test_a_clean_start_puts_back_what_a_light_queue_lacks(tmp_path: Path, seed: int) -> None:
    """The last units of some light queues are gone although the store was closed in order."""
    rng = random.Random(seed)
    root = tmp_path / "store"
    store = open_store(root)
    for _ in range(30):
        append(store, rng, "T")
    asyncio.run(store.close())
    for path in sorted((root / "consumequeue").glob("%LMQ%*/0/*"))[-1:]:
        path.write_bytes(bytes(path.stat().st_size))

    store = open_store(root)

    assert in_queues(store) == in_log(store)
    store.abandon()


@pytest.mark.parametrize("chunk", [100, 1_000, 1_000_000])
def test_a_replica_has_the_light_queues_of_its_master(tmp_path: Path, chunk: int) -> None:
    """Whatever the bytes come in; ordinary messages stand between those of light queues."""
    rng = random.Random(chunk)
    clock = ManualClock()
    leader = open_store(tmp_path / "leader", clock)
    follower = StoreReplicaLog(open_store(tmp_path / "follower", clock))
    follower.follow()
    for number in range(60):
        append(leader, rng, "T" if number % 3 else "U")
    for start in range(0, leader.max_offset, SEGMENT):
        file = leader.log.files.find(start)
        assert file is not None
        end = min(leader.max_offset, file.end)
        for begin in range(start, end, chunk):
            data = file.view[begin - start : min(begin + chunk, end) - start]
            while data:
                room = follower.room(len(data))
                size = min(len(room), len(data))
                room[:size] = data[:size]
                follower.received(size)
                data = data[size:]
    asyncio.run(follower.finish_received())

    assert follower.failure() is None
    assert in_queues(follower._store) == in_queues(leader) == in_log(leader)
    leader.abandon()
    follower._store.abandon()


NAME = st.text(st.characters(exclude_characters=",\x01\x02", codec="utf-8"), max_size=12)
DISPATCH = st.lists(st.one_of(st.sampled_from(NAMES), NAME, NAME.map("%LMQ%".__add__)), max_size=6)


@examples(200)
@given(DISPATCH, st.text("0123456789,-x", max_size=12), st.booleans(), st.sampled_from(TOPICS))
def test_what_is_written_is_what_is_read(
    names: list[str], forged: str, forged_last: bool, topic: str
) -> None:
    """The queues that a stored message gets are those that its record is dispatched to, with its numbers."""
    pairs = [("INNER_MULTI_DISPATCH", ",".join(names)), ("INNER_MULTI_QUEUE_OFFSET", forged)]
    pairs = pairs if forged_last else pairs[::-1]
    raw = "".join(f"{name}\x01{value}\x02" for name, value in [("K", "v"), *pairs]).encode()

    queues = light_queues.wanted_queues(topic, raw)
    stored = light_queues.with_offsets(raw, queues, tuple(range(len(queues))))

    found = light_queues.dispatched_queues(topic.encode(), stored)
    assert dict(found) == {name: number for number, name in enumerate(queues)}
    assert decode_properties(stored)["K"] == "v"
    assert light_queues.with_offsets(stored, queues, tuple(range(len(queues)))) == stored
    if light_queues.check_dispatch(",".join(names)) is None and light_queues.takes_light_queues(topic):
        assert queues == tuple(",".join(names).rstrip(",").split(","))


@examples(200)
@given(st.binary(max_size=60), st.binary(max_size=20))
def test_any_bytes_are_dispatched_somewhere_or_nowhere(names: bytes, offsets: bytes) -> None:
    """Records of others never make it fail, and never lead to a folder elsewhere."""
    raw = b"INNER_MULTI_DISPATCH\x01" + names + b"\x02INNER_MULTI_QUEUE_OFFSET\x01" + offsets + b"\x02"

    for name, number in light_queues.dispatched_queues(b"T", raw):
        assert name.startswith("%LMQ%")
        assert "/" not in name
        assert len(name.encode()) <= 255
        assert number >= 0


def test_the_comparison_notices_a_recovery_without_light_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken variant: what the log says is not dispatched when the store is opened after a crash."""
    store = open_store(tmp_path / "store")
    for _ in range(5):
        append(store, random.Random(1), "T")
    store.abandon()
    for path in (tmp_path / "store" / "consumequeue").glob("%LMQ%*/0/*"):
        path.unlink()
    monkeypatch.setattr(dispatch, "dispatched_queues", lambda topic, properties: ())

    store = open_store(tmp_path / "store")

    assert in_log(store)
    assert in_queues(store) != in_log(store)
    store.abandon()
