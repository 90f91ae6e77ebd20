"""A leading and a following store: whatever is sent, cut, killed or deleted, both end up the same."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from brokerset_broker.store import MessageStore
from brokerset_broker.store.replica import StoreReplicaLog
from brokerset_formats.batches import BatchItem
from brokerset_formats.records import SysFlag
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

SEGMENT = 8_192
TOPICS = ["T", "U", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130]

LIGHT = ["%LMQ%a", "%LMQ%b", "%LMQ%$T$c"]

operations = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 1_500)),
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 100)),
    st.tuples(st.just("light"), st.integers(0, 7), st.integers(0, 300)),
    st.tuples(st.just("light"), st.integers(0, 7), st.integers(0, 300)),
    st.tuples(st.just("batch"), st.integers(0, 3), st.integers(1, 12)),
    st.tuples(st.just("prepared"), st.integers(0, 3), st.integers(0, 300)),
    st.tuples(st.just("send"), st.integers(1, 4_000), st.integers(1, 6_000)),
    st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 300)),
    st.tuples(st.just("send"), st.just(5_000), st.just(100_000)),
    st.tuples(st.just("confirm"), st.integers(0, 100), st.integers(0, 1)),
    st.tuples(st.just("cut"), st.integers(0, 100), st.integers(0, 1)),
    st.tuples(st.just("both cut"), st.integers(0, 100), st.integers(0, 1)),
    st.tuples(st.just("finish"), st.just(0), st.just(0)),
    st.tuples(st.just("kill"), st.just(0), st.just(0)),
    st.tuples(st.just("close"), st.just(0), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("clock"), st.integers(1, 3_000), st.just(0)),
)


class Pair:
    """Two stores, and the ends of all records of the leader."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.leader = self.open("leader")
        self.follower = self.open("follower")
        self.follower.follow()
        self.ends: list[int] = []
        self.number = 0

    def open(self, name: str) -> StoreReplicaLog:
        store = MessageStore(
            BrokerSettings(
                store_path_root_dir=self.root / name,
                mapped_file_size_commit_log=SEGMENT,
                mapped_file_size_consume_queue=200,
                max_hash_slot_num=20,
                max_index_num=30,
                enable_lmq=True,
                enable_multi_dispatch=True,
            ),
            self.clock,
        )
        log = StoreReplicaLog(store)
        store.load()
        return log

    async def step(self, operation: str, first: int, second: int) -> None:
        if operation in ("append", "prepared"):
            self.append(TOPICS[first], second, prepared=operation == "prepared")
        elif operation == "light":
            names = ",".join(name for bit, name in enumerate(LIGHT) if first & (1 << bit))
            self.append(TOPICS[first % 2], second, light=names)
        elif operation == "batch":
            self.batch(TOPICS[first], second)
        elif operation == "send":
            self.send(first, second)
        elif operation == "confirm":
            self.confirm(first, partial=bool(second))
        elif operation == "cut":
            await self.truncate(first, keep_copy=bool(second), both=False)
        elif operation == "both cut":
            await self.truncate(first, keep_copy=bool(second), both=True)
        elif operation == "finish":
            assert await self.follower.finish_received() == self.whole_below(self.follower.received_end)
            assert self.follower.received_end == self.follower.max_offset
        elif operation in ("kill", "close"):
            await self.restart(killed=operation == "kill")
        elif operation == "delete":
            self.leader._store.delete_topic(TOPICS[first])
        else:
            self.clock.advance(first)
        self.check()

    def append(self, topic: str, size: int, *, prepared: bool = False, light: str = "") -> None:
        self.number += 1
        properties = b"UNIQ_KEY\x01id-%d\x02TAGS\x01%c\x02" % (self.number, 65 + self.number % 2)
        if light:
            properties += f"INNER_MULTI_DISPATCH\x01{light}\x02".encode()
        appended = self.leader._store.append(
            topic,
            self.number % 2,
            bytes(size),
            properties,
            flag=0,
            sys_flag=SysFlag.TRANSACTION_PREPARED if prepared else 0,
            born_timestamp=0,
            born_host=bytes(20 if self.number % 4 == 1 else 8),
        )
        self.ends.append(appended.offset + appended.size)

    def batch(self, topic: str, count: int) -> None:
        items = [BatchItem(0, b"b" * (n * 7), b"KEYS\x01k%d\x02" % n) for n in range(count)]
        batch = self.leader._store.append_batch(
            topic, 0, items, sys_flag=0, born_timestamp=0, born_host=bytes(8)
        )
        self.ends += [*batch.offsets[1:], batch.end]

    def send(self, chunk: int, total: int) -> None:
        total = min(total, self.leader.max_offset - self.follower.received_end)
        while total > 0:
            data = self.leader.view(self.follower.received_end, min(chunk, total))
            room = self.follower.room(len(data))
            size = len(room)
            room[:] = data[:size]
            self.follower.received(size)
            total -= size

    def confirm(self, percent: int, *, partial: bool) -> None:
        before = self.follower.confirmed_offset
        offset = self.leader.max_offset * percent // 100
        if not partial:
            offset = max((end for end in self.ends if end <= offset), default=0)
        self.follower.confirm(offset, partial=partial)
        after = self.follower.confirmed_offset
        assert after >= before
        assert after <= self.follower.max_offset
        assert after in {0, *self.ends} or after % SEGMENT == 0

    async def truncate(self, percent: int, *, keep_copy: bool, both: bool) -> None:
        """The follower alone, or both: then the leader writes other records there."""
        shared = min(self.leader.max_offset, self.whole_below(self.follower.received_end))
        offset = max((end for end in self.ends if end <= shared * percent // 100), default=0)
        await self.follower.truncate(offset, keep_copy=keep_copy)
        assert (self.follower.max_offset, self.follower.received_end) == (offset, offset)
        assert self.follower.confirmed_offset <= offset
        if both:
            await self.leader.truncate(offset, keep_copy=False)
            self.leader.lead()
            self.ends = [end for end in self.ends if end <= offset]

    async def restart(self, *, killed: bool) -> None:
        received = self.follower.received_end
        confirmed = self.follower.confirmed_offset
        if killed:
            self.follower._store.abandon()
        else:
            await self.follower._store.close()
        self.follower = self.open("follower")
        assert self.follower.max_offset == self.whole_below(received, restarted=True)
        if not killed:
            assert self.follower.confirmed_offset == confirmed
        assert not (self.root / "follower" / "removal").exists()
        self.follower.follow()

    def whole_below(self, offset: int, *, restarted: bool = False) -> int:
        """End of the last whole record, or of the file when its filler is there."""
        whole = max((end for end in self.ends if end <= offset), default=0)
        file_end = offset - offset % SEGMENT
        if file_end > whole:
            return file_end
        if restarted and self.follower.max_offset % SEGMENT == 0 and self.follower.max_offset > offset:
            return self.follower.max_offset  # the filler's head was there, and its rest is zeros anyway
        return whole

    def check(self) -> None:
        assert self.follower.failure() is None
        assert self.follower.max_offset == self.whole_below(self.follower.received_end)

    def check_equal(self) -> None:
        self.send(10_000, 10**9)
        leader, follower = self.leader._store, self.follower._store
        assert self.follower.max_offset == self.leader.max_offset
        for file in leader.log.files.files:
            end = min(file.end, self.leader.max_offset) - file.start
            twin = follower.log.files.find(file.start)
            if end > 0:
                assert twin is not None
                assert twin.view[:end] == file.view[:end]
        for topic, ids in leader.queues().items():
            for queue_id in ids:
                count = leader.queue_end(topic, queue_id)
                if not count:
                    continue  # it was deleted and has nothing new: nobody has told the follower
                assert follower.queue_end(topic, queue_id) == count
                low = leader.queue_min(topic, queue_id)
                assert [follower.unit(topic, queue_id, n) for n in range(low, count)] == [
                    leader.unit(topic, queue_id, n) for n in range(low, count)
                ]
        self.follower.confirm(self.leader.max_offset)
        assert self.follower.confirmed_offset == self.follower.max_offset


@examples(120, suppress_health_check=list(HealthCheck))
@given(st.lists(operations, min_size=3, max_size=40))
def test_a_follower_ends_up_like_its_leader(steps: list[tuple[str, int, int]]) -> None:
    """Any chunks, cuts, restarts, deletions: no failure in between, the same bytes and queues at the end."""

    async def work(pair: Pair) -> None:
        for step in steps:
            await pair.step(*step)
        pair.check_equal()

    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder))
        try:
            asyncio.run(work(pair))
        finally:
            pair.leader._store.abandon()
            pair.follower._store.abandon()
