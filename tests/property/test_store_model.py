"""The store against a naive model: whatever is appended, read, reopened or killed, both say the same."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from brokerset_broker.store import GetStatus, MessageStore
from brokerset_formats.batches import BatchItem
from brokerset_formats.queue_units import tags_code
from brokerset_formats.records import decode_record
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

QUEUES = [("T", 0), ("T", 1), ("a-longer-topic", 7), ("%RETRY%" + "g" * 130, 0)]
TAGS = ["", "A", "B", "C"]

queues = st.integers(0, len(QUEUES) - 1)
messages = st.tuples(st.integers(0, 900), st.integers(0, len(TAGS) - 1))
operations = st.one_of(
    st.tuples(st.just("append"), queues, st.lists(messages, min_size=1, max_size=1)),
    st.tuples(st.just("append"), queues, st.lists(messages, min_size=1, max_size=1)),
    st.tuples(st.just("batch"), queues, st.lists(messages, min_size=1, max_size=12)),
    st.tuples(st.just("get"), queues, st.lists(messages, min_size=1, max_size=1)),
    st.tuples(st.just("filter"), queues, st.lists(messages, min_size=1, max_size=1)),
    st.tuples(st.just("clock"), queues, st.just([(0, 0)])),
    st.tuples(st.just("restart"), queues, st.just([(0, 0)])),
    st.tuples(st.just("kill"), queues, st.just([(0, 0)])),
)


class Model:
    """Queues as lists of (body, tags), next to the real store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.queues: dict[tuple[str, int], list[tuple[bytes, str]]] = defaultdict(list)
        self.number = 0
        self.store = self.open()

    def open(self) -> MessageStore:
        settings = BrokerSettings(
            store_path_root_dir=self.root,
            mapped_file_size_commit_log=16_384,
            mapped_file_size_consume_queue=100,
            max_hash_slot_num=20,
            max_index_num=30,
        )
        store = MessageStore(settings, self.clock)
        store.load()
        return store

    def item(self, size: int, tag: int) -> tuple[bytes, str, bytes]:
        self.number += 1
        tags = TAGS[tag]
        properties = f"UNIQ_KEY\x01id-{self.number}\x02" + (f"TAGS\x01{tags}\x02" if tags else "")
        return (b"%d" % self.number).ljust(size, b"."), tags, properties.encode()

    def step(self, operation: str, queue: int, arguments: list[tuple[int, int]]) -> None:
        topic, queue_id = QUEUES[queue]
        expected = self.queues[topic, queue_id]
        if operation == "append":
            body, tags, properties = self.item(*arguments[0])
            appended = self.store.append(
                topic, queue_id, body, properties, flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8)
            )
            assert appended.queue_offset == len(expected)
            expected.append((body, tags))
        elif operation == "batch":
            made = [self.item(*message) for message in arguments]
            items = [BatchItem(0, body, properties) for body, _, properties in made]
            batch = self.store.append_batch(
                topic, queue_id, items, sys_flag=0, born_timestamp=0, born_host=bytes(20)
            )
            assert batch.queue_offset == len(expected)
            expected.extend((body, tags) for body, tags, _ in made)
        elif operation in ("get", "filter"):
            tag = TAGS[arguments[0][1]] if operation == "filter" else None
            self.check_queue(topic, queue_id, min(arguments[0][0] // 20, len(expected)), tag)
        elif operation == "clock":
            self.clock.jump(arguments[0][0] - 400)
        elif operation == "restart":
            asyncio.run(self.store.close())
            self.store = self.open()
        else:
            self.store.abandon()
            self.store = self.open()

    def check_queue(self, topic: str, queue_id: int, begin: int = 0, tag: str | None = None) -> None:
        expected = self.queues[topic, queue_id]
        codes = None if tag is None else frozenset({tags_code(tag)})
        got: list[bytes] = []
        queue_offset = begin
        while True:
            result = self.store.get(topic, queue_id, queue_offset, 5, 3_000, codes)
            if result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
                break
            assert queue_offset < result.next_queue_offset <= len(expected)
            queue_offset = result.next_queue_offset
            data = b"".join(result.parts)
            while data:
                record = decode_record(data[: int.from_bytes(data[:4], "big")], verify_crc=True)
                assert (record.topic, record.queue_id) == (topic, queue_id)
                got.append(record.body)
                data = data[record.size :]
        assert got == [body for body, tags in expected[begin:] if tag is None or tags == tag]
        if expected:
            assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
            assert self.store.queue_max(topic, queue_id) == len(expected)

    def check_all(self) -> None:
        offset = timestamp = 0
        for topic, queue_id in QUEUES:
            self.check_queue(topic, queue_id)
        while offset < self.store.max_offset:
            raw = self.store.read(offset)
            if raw is None or bytes(raw[4:8]) == b"\xcb\xd4\x31\x94":
                offset = (offset // 16_384 + 1) * 16_384
                continue
            record = decode_record(raw, verify_crc=True)
            assert record.offset == offset
            assert record.store_timestamp >= timestamp
            timestamp = record.store_timestamp
            unit = self.store.unit(record.topic, record.queue_id, record.queue_offset)
            assert unit is not None
            assert unit[:2] == (offset, record.size)
            key = record.properties.split(b"\x02")[0].partition(b"\x01")[2].decode()
            found = self.store.query(record.topic, key, 64, 0, 2**62).records
            assert bytes(raw) in [bytes(candidate) for candidate in found]
            offset += record.size


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, max_size=40))
def test_the_store_agrees_with_lists(steps: list[tuple[str, int, list[tuple[int, int]]]]) -> None:
    """Any order of appends, batches, reads, clock steps, restarts and kills gives dense, complete queues."""
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder) / "store")
        try:
            for operation, queue, arguments in steps:
                model.step(operation, queue, arguments)
            model.check_all()
        finally:
            model.store.abandon()
