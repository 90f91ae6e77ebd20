"""A store on a DLedger's log against a list: appended to, committed, truncated, crashed and closed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_formats.dledger import CurrentTerm
from brokerset_formats.hosts import Host
from brokerset_formats.records import decode_record
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

BORN_HOST = Host.from_text("10.0.0.1", 54321).encode()
TOPICS = ("A", "B")
LIGHT = "%LMQ%all"
DISPATCH = b"INNER_MULTI_DISPATCH\x01%LMQ%all\x02"


class Leader:
    """Says that this member leads its term."""

    term = 1

    def require_appendable(self, count: int = 1) -> None:
        """It may."""

    def appended(self) -> None:
        """Nobody else has to know."""


class LedgerStoreMachine(RuleBasedStateMachine):
    """The model: each entry as its topic and body (None: it holds no message), and how many are committed."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-store-"))
        self.settings = BrokerSettings(
            store_path_root_dir=self.folder,
            mapped_file_size_commit_log=131_072,
            mapped_file_size_consume_queue=400,
            max_hash_slot_num=20,
            max_index_num=60,
            max_message_size=50_000,
            enable_dledger_commit_log=True,
            dledger_peers="n0-127.0.0.1:1",
            dledger_self_id="n0",
            enable_lmq=True,
            enable_multi_dispatch=True,
        )
        self.entries: list[tuple[str, bytes] | None] = []
        self.committed = 0
        self.number = 0
        self.leader = Leader()
        self._open()

    def _open(self) -> None:
        self.store = LedgerStore(self.settings, ManualClock())
        self.store.load()
        self.store.ledger.write_term(CurrentTerm(self.leader.term))
        self.store.lead_with(self.leader)
        self.committed = self.store.ledger.committed_index + 1

    def _dispatch(self) -> None:
        for _ in range(50):
            self.store.committed()
            if self.store.log.max_offset == self.store.ledger.committed_position:
                return
        raise AssertionError("committed entries are not dispatched")

    @rule(topic=st.sampled_from(TOPICS), size=st.integers(0, 40_000))
    def append(self, topic: str, size: int) -> None:
        self.number += 1
        body = b"%d " % self.number + b"x" * size
        before = [each for each in self.entries if each is not None and each[0] == topic]
        appended = self.store.append(
            topic,
            0,
            body,
            b"KEYS\x01k%d\x02" % self.number + (DISPATCH if size % 3 == 0 else b""),
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=BORN_HOST,
        )
        assert appended.queue_offset == len(before)
        self.entries.append((topic, body))

    @rule()
    def append_something_else(self) -> None:
        self.store.ledger.append_body(self.leader.term, b"no message")
        self.entries.append(None)

    @precondition(lambda self: self.committed < len(self.entries))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed + 1, len(self.entries)))
        self.store.ledger.commit(self.committed - 1)
        self._dispatch()

    @precondition(lambda self: 0 < self.committed < len(self.entries))
    @rule(data=st.data())
    def lose_leadership(self, data: st.DataObject) -> None:
        """Another leader truncates what was not committed, or some of it, and this one leads again."""
        kept = data.draw(st.integers(self.committed, len(self.entries)))
        self.store.ledger.truncate(self.store.ledger.entry(kept - 1))
        self.entries = self.entries[:kept]
        self.leader.term += 1
        self.store.ledger.commit(kept - 1)
        self.committed = kept
        self._dispatch()
        self.store.begin_leading()

    @rule(noted=st.booleans())
    def crash(self, noted: bool) -> None:
        """The process ends; the page cache has everything."""
        if noted:
            self.store.ledger.write_checkpoint()
        self.store.abandon()
        self._open()
        assert self.store.ledger.end_index == len(self.entries) - 1
        self._lead_again()

    @rule()
    def close(self) -> None:
        async def close() -> None:
            self.store.start()
            await self.store.close()

        committed = self.committed
        asyncio.run(close())
        self._open()
        assert self.committed == committed
        assert self.store.closed_cleanly
        self._lead_again()

    def _lead_again(self) -> None:
        """A leader commits all that it has before it appends."""
        if self.entries:
            self.store.ledger.commit(len(self.entries) - 1)
            self.committed = len(self.entries)
        self._dispatch()
        self.store.begin_leading()

    @invariant()
    def queues_have_what_is_committed(self) -> None:
        for topic in TOPICS:
            wanted = [
                each[1] for each in self.entries[: self.committed] if each is not None and each[0] == topic
            ]
            found = []
            for number in range(self.store.queue_max(topic, 0)):
                unit = self.store.unit(topic, 0, number)
                assert unit is not None
                record = decode_record(bytes(self.store.read(unit[0], unit[1]) or b""))
                assert (record.offset, record.queue_offset) == (unit[0], number)
                found.append(record.body)
            assert found == wanted

    @invariant()
    def a_light_queue_has_those_that_name_it(self) -> None:
        entries = [each for each in self.entries[: self.committed] if each is not None]
        wanted = [body for _, body in entries if (len(body) - body.index(b" ") - 1) % 3 == 0]
        found = []
        for number in range(self.store.queue_max(LIGHT, 0)):
            unit = self.store.unit(LIGHT, 0, number)
            assert unit is not None
            record = decode_record(bytes(self.store.read(unit[0], unit[1]) or b""))
            assert b"INNER_MULTI_QUEUE_OFFSET\x01%d\x02" % number in record.properties
            found.append(record.body)
        assert found == wanted

    @invariant()
    def keys_lead_to_what_is_committed(self) -> None:
        for each in self.entries[-3:]:
            if each is None:
                continue
            topic, body = each
            number = body.split(b" ", 1)[0].decode()
            records = self.store.query(topic, f"k{number}", 10, 0, 2**60).records
            found = [decode_record(bytes(record)).body for record in records]
            assert (body in found) == (each in self.entries[: self.committed])

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
            shutil.rmtree(self.folder)


LedgerStoreMachine.TestCase.settings = examples(25, stateful_step_count=30)
test_ledger_store = LedgerStoreMachine.TestCase
