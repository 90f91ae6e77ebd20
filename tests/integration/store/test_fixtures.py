"""Stores that a Java broker wrote open here, and give out what the Java broker gave out."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import MessageStore
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.store.results import GetStatus
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import SysFlag, decode_record
from brokerset_rig.made_stores import unpacked_once
from brokerset_runtime.clock import SystemClock
from brokerset_spec.broker_settings import BrokerSettings

FIXTURES = Path(__file__).parents[2] / "peers" / "fixtures"
MANIFEST: dict[str, Any] = json.loads((FIXTURES / "manifest.json").read_text())

READABLE = [
    ("classic", "broker-0"),
    ("controller-mode", "broker-0"),
    ("controller-mode", "broker-1"),
    ("killed", "broker-0"),
]


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks an archive of stores once."""
    return unpacked_once(tmp_path_factory)


def open_store(root: Path) -> MessageStore:
    conf = dict(
        line.split("=", 1) for line in (root.parent / "broker.conf").read_text().splitlines() if "=" in line
    )
    settings = BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=int(conf["mappedFileSizeCommitLog"]),
        mapped_file_size_consume_queue=int(conf.get("mappedFileSizeConsumeQueue", 6_000_000)),
        max_hash_slot_num=int(conf.get("maxHashSlotNum", 5_000_000)),
        max_index_num=int(conf.get("maxIndexNum", 20_000_000)),
        accept_unserved_messages=True,  # Java left a timer message and an open transaction in most
    )
    store = MessageStore(settings, SystemClock())
    store.load()
    return store


@contextlib.asynccontextmanager
async def opened(root: Path) -> AsyncIterator[MessageStore]:
    store = open_store(root)
    try:
        yield store
    finally:
        await store.close()


def expected(folder: Path) -> Iterator[dict[str, Any]]:
    for line in (folder / "expected.jsonl").read_text().splitlines():
        yield json.loads(line)


def everything(store: MessageStore, topic: str, queue_id: int) -> dict[int, memoryview]:
    found: dict[int, memoryview] = {}
    queue_offset = store.queue_min(topic, queue_id)
    while True:
        result = store.get(topic, queue_id, queue_offset, 32, 262_144)
        if result.status is not GetStatus.FOUND:
            assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
            return found
        for part in result.parts:
            position = 0
            while position < len(part):
                size = int.from_bytes(part[position : position + 4], "big")
                found[queue_offset] = part[position : position + size]
                queue_offset += 1
                position += size
        assert queue_offset == result.next_queue_offset


def check_all(folder: Path, name: str, store: MessageStore) -> None:
    messages = list(expected(folder))
    assert len(messages) == MANIFEST[name]["messages"]
    for topic, bounds in MANIFEST[name]["queueMinMax"].items():
        for queue_id, (minimum, maximum) in bounds.items():
            assert store.queue_min(topic, int(queue_id)) == minimum
            assert store.queue_max(topic, int(queue_id)) >= maximum, (topic, queue_id)
    queues = {}
    for topic, ids in store.queues().items():
        for queue_id in ids:
            found = queues[topic, queue_id] = everything(store, topic, queue_id)
            assert len(found) == store.queue_max(topic, queue_id) - store.queue_min(topic, queue_id)
    for message in messages:
        check_message(queues[message["topic"], message["queueId"]][message["queueOffset"]], message)
    found_by_key = 0
    for message in messages[:: max(1, len(messages) // 100)]:
        key = message["properties"].get("UNIQ_KEY")
        if key is not None:
            records = store.query(message["topic"], key, 32, 0, 2**62).records
            found_by_key += message["commitLogOffset"] in {decode_record(record).offset for record in records}
    assert found_by_key > 0


def check_message(raw: memoryview, message: dict[str, Any]) -> None:
    record = decode_record(raw, verify_crc=True)
    assert record.offset == message["commitLogOffset"]
    assert record.size == message["storeSize"] == len(raw)
    assert record.body_crc == message["bodyCrc"]
    compressed = record.sys_flag & SysFlag.COMPRESSED  # Java's client has taken the bit off
    body = zlib.decompress(record.body) if compressed else record.body
    assert len(body) == message["bodySize"]
    assert hashlib.sha256(body).hexdigest() == message["bodySha256"]
    assert record.store_timestamp == message["storeTimestamp"]
    assert record.born_timestamp == message["bornTimestamp"]
    assert record.sys_flag & ~SysFlag.COMPRESSED == message["sysFlag"]
    assert record.topic == message["topic"]
    assert record.queue_id == message["queueId"]
    properties = decode_properties(record.properties)
    assert {key: properties.get(key) for key in message["properties"]} == message["properties"]


@pytest.mark.parametrize(("name", "broker"), READABLE)
async def test_everything_that_java_gave_out_is_read(
    unpack: Callable[[str], Path], name: str, broker: str
) -> None:
    """Counts, bounds, bodies, properties and offsets are those of the Java broker; keys find messages."""

    folder = unpack(name)
    async with opened(folder / broker / "store") as store:
        check_all(folder, name, store)


@pytest.mark.parametrize("name", ["classic", "killed"])
async def test_a_java_store_goes_on_here(unpack: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    """Messages are appended behind the ones of Java, and both are there after the next start."""

    shutil.copytree(unpack(name) / "broker-0", tmp_path / "broker-0")
    root = tmp_path / "broker-0" / "store"

    async with opened(root) as store:
        topic, ids = next(entry for entry in store.queues().items() if entry[0].endswith("plain"))
        queue_id, end = ids[0], store.max_offset
        before = store.queue_max(topic, queue_id)
        appended = store.append(
            topic,
            queue_id,
            b"hello",
            b"KEYS\x01mine\x02",
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=bytes(8),
        )
        assert (appended.offset, appended.queue_offset) == (end, before)
    assert not (root / "abort").exists()

    async with opened(root) as store:
        assert store.max_offset == appended.end
        assert store.queue_max(topic, queue_id) == before + 1
        (record,) = store.query(topic, "mine", 8, 0, 2**62).records
        assert decode_record(record).body == b"hello"


@pytest.mark.parametrize("name", ["dledger", "dledger-mixed"])
def test_dledger_stores_are_refused_by_name(unpack: Callable[[str], Path], name: str) -> None:
    """A store in DLedger's layout is not opened, and the error names its folder."""
    folder = unpack(name)
    broker = next(path for path in sorted(folder.glob("broker-*")) if list(path.glob("store/dledger-*")))

    with pytest.raises(StoreUnusable, match="dledger-"):
        open_store(broker / "store")

    assert not (broker / "store" / "abort").exists() or name == "dledger-mixed"
