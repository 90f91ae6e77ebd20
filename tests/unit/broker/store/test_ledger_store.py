"""A store on the log of a DLedger: nothing is in a queue before a quorum has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from brokerset_broker.store.errors import PutStatus, StoreCorrupt, StoreRefused
from brokerset_broker.store.folder import StoreUnusable
from brokerset_broker.store.ledger_store import TERM_TOPIC, LedgerStore, is_whole
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.receiving import Step
from brokerset_broker.store.results import Appended
from brokerset_dledger.ledger import LedgerRefused
from brokerset_formats.batches import BatchItem
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, CurrentTerm, LedgerEntry
from brokerset_formats.hosts import Host
from brokerset_formats.records import decode_record
from brokerset_protocol.bodies.dledger import DLedgerCode
from brokerset_rig.failing_answers import Answers
from brokerset_rig.waiting import until
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

BORN_HOST = Host.from_text("10.0.0.1", 54321).encode()
TERM = 3


class Leader:
    """Says that this member leads, or why not."""

    def __init__(self) -> None:
        self.term = TERM
        self.refusal: DLedgerCode | None = None
        self.turns = 0

    def require_appendable(self, count: int = 1) -> None:
        if self.refusal is not None:
            raise LedgerRefused(self.refusal, "not now")

    def appended(self) -> None:
        self.turns += 1


class Stores:
    """Opens stores of one member, again and again."""

    def __init__(self, root: Path) -> None:
        self.settings = BrokerSettings(
            store_path_root_dir=root,
            mapped_file_size_commit_log=65_536,
            mapped_file_size_consume_queue=2_000,
            max_hash_slot_num=50,
            max_index_num=200,
            max_message_size=20_000,
            enable_dledger_commit_log=True,
            dledger_peers="n0-127.0.0.1:1",
            dledger_self_id="n0",
        )
        self.leader = Leader()
        self._open: LedgerStore | None = None

    def open(self) -> LedgerStore:
        """A loaded store; one that was open is left as a crash leaves it."""
        self.abandon()
        store = self._open = LedgerStore(self.settings, ManualClock())
        store.load()
        store.ledger.write_term(CurrentTerm(TERM))
        store.lead_with(self.leader)
        return store

    def abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.abandon()


def append(store: MessageStore, body: bytes = b"body", *, topic: str = "T", keys: str = "k") -> Appended:
    return store.append(
        topic,
        0,
        body,
        f"KEYS\x01{keys}\x02".encode(),
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=BORN_HOST,
    )


def commit(store: LedgerStore, index: int | None = None) -> None:
    """What the driver says once a quorum has the entries; and all turns of the loop that follow."""
    store.ledger.commit(store.ledger.end_index if index is None else index)
    for _ in range(10):
        store.committed()


def bodies(store: LedgerStore, topic: str = "T") -> list[bytes]:
    """What a consumer gets."""
    found = []
    for number in range(store.queue_min(topic, 0), store.queue_max(topic, 0)):
        unit = store.unit(topic, 0, number)
        assert unit is not None
        record = decode_record(bytes(store.read(unit[0], unit[1]) or b""))
        assert (record.offset, record.queue_offset) == (unit[0], number)
        found.append(record.body)
    return found


def test_what_no_quorum_has_is_in_no_queue_and_in_no_index(stores: Stores) -> None:
    store = stores.open()
    append(store)
    assert store.queue_max("T", 0) == 0
    assert not store.query("T", "k", 10, 0, 2**60).records
    commit(store)
    assert bodies(store) == [b"body"]
    assert len(store.query("T", "k", 10, 0, 2**60).records) == 1


def test_a_record_stands_48_bytes_behind_its_entry_and_says_so(stores: Stores) -> None:
    store = stores.open()
    appended = append(store)
    entry = store.ledger.entry(0)
    assert appended.offset == entry.record_offset == entry.position + ENTRY_HEAD_SIZE
    record = decode_record(entry.body)
    assert (entry.term, record.offset, record.body) == (TERM, appended.offset, b"body")
    commit(store)
    assert store.unit("T", 0, 0) == (appended.offset, appended.size, 0)


def test_the_first_record_is_read_where_the_log_begins(stores: Stores) -> None:
    """GET_BROKER_RUNTIME_INFO and metrics tell when it was stored."""
    store = stores.open()
    appended = append(store)
    commit(store)
    first = store.read(store.min_offset)
    assert first is not None
    assert bytes(first) == bytes(store.read(appended.offset) or b"") == store.ledger.entry(0).body


def test_an_entry_without_a_record_is_none_where_the_log_begins(stores: Stores) -> None:
    store = stores.open()
    store.ledger.append_body(TERM, b"of DLedger's own client")
    commit(store)
    assert store.read(store.min_offset) is None


def test_numbers_in_a_queue_go_on_before_anything_is_committed(stores: Stores) -> None:
    store = stores.open()
    assert [append(store).queue_offset for _ in range(3)] == [0, 1, 2]
    commit(store, 0)
    assert store.queue_max("T", 0) == 1
    assert append(store).queue_offset == 3
    commit(store)
    assert store.queue_max("T", 0) == 4


def test_entries_go_on_in_the_next_file_and_are_all_found(stores: Stores) -> None:
    store = stores.open()
    wanted = [b"%03d" % number + b"x" * 5_000 for number in range(40)]
    for body in wanted:
        append(store, body)
    commit(store)
    assert len(store.log.files.files) > 2
    assert bodies(store) == wanted
    assert [head.queue_offset for head in store.log.records(0)] == list(range(40))


def test_a_truncated_entry_never_was_in_a_queue_and_its_number_is_given_again(stores: Stores) -> None:
    store = stores.open()
    append(store, b"kept")
    commit(store)
    for _ in range(3):
        append(store, b"lost")
    last = store.ledger.entry(0)
    store.ledger.truncate(last)
    store.committed()
    assert bodies(store) == [b"kept"]
    store.begin_leading()
    assert append(store, b"new").queue_offset == 1
    commit(store)
    assert bodies(store) == [b"kept", b"new"]


@pytest.mark.parametrize("known", [True, False], ids=["known as committed", "not known"])
def test_after_a_crash_each_committed_message_is_in_its_queue_once(stores: Stores, known: bool) -> None:
    store = stores.open()
    for number in range(5):
        append(store, b"%d" % number)
    commit(store, 3)
    if known:
        store.ledger.write_checkpoint()
    store = stores.open()
    assert not store.closed_cleanly
    assert len(bodies(store)) == (4 if known else 0)
    commit(store, 4)
    assert bodies(store) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(store.query("T", "k", 10, 0, 2**60).records) == 5


def test_a_store_that_was_closed_goes_on_where_it_was(stores: Stores) -> None:
    async def fill() -> None:
        store = stores.open()
        store.start()
        for number in range(5):
            append(store, b"%d" % number)
        commit(store, 2)
        await store.close()

    asyncio.run(fill())
    store = stores.open()
    assert store.closed_cleanly
    assert bodies(store) == [b"0", b"1", b"2"]
    commit(store)
    assert bodies(store) == [b"0", b"1", b"2", b"3", b"4"]


def test_an_entry_that_holds_no_record_is_in_no_queue_and_stops_nothing(stores: Stores) -> None:
    store = stores.open()
    append(store, b"before")
    store.ledger.append_body(TERM, b"of DLedger's own client")
    append(store, b"behind")
    commit(store)
    assert bodies(store) == [b"before", b"behind"]
    store.ledger.write_checkpoint()
    assert bodies(stores.open()) == [b"before", b"behind"]


def test_a_damaged_record_that_was_committed_stops_the_store(stores: Stores) -> None:
    store = stores.open()
    appended = append(store, b"x" * 100)
    store.log.map[appended.offset + 90] ^= 1
    commit(store)
    assert store.stopped is not None
    assert f"offset {appended.offset - ENTRY_HEAD_SIZE} of the log" in store.stopped


def test_what_a_leader_of_java_truncates_goes_from_queues_and_index(stores: Stores) -> None:
    store = stores.open()
    told: list[int] = []
    store.on_truncated = told.append
    for number in range(4):
        append(store, b"%d" % number, keys=f"k{number}")
    commit(store)
    other = store.ledger.entry(2)
    replaced = LedgerEntry(2, TERM + 1, other.position, store.ledger.entry(0).body)
    store.ledger.truncate(replaced)
    store.committed()
    assert bodies(store) == [b"0", b"1"]
    assert told == [other.position]
    assert not store.query("T", "k3", 10, 0, 2**60).records


def test_the_record_of_a_term_is_in_no_queue(stores: Stores) -> None:
    store = stores.open()
    entry = store.ledger.begin_term(TERM)
    record = decode_record(entry.body)
    assert (record.topic, record.offset) == (TERM_TOPIC, entry.record_offset)
    commit(store)
    assert store.queues() == {}
    assert store.is_dispatched


def test_each_message_of_a_batch_is_an_entry_of_its_own(stores: Stores) -> None:
    store = stores.open()
    items = [BatchItem(flag=0, body=b"%d" % number, properties=b"") for number in range(3)]
    appended = store.append_batch("T", 0, items, sys_flag=0, born_timestamp=1, born_host=BORN_HOST)
    assert appended.offsets == [store.ledger.entry(index).record_offset for index in range(3)]
    assert appended.end == store.ledger.write_position
    commit(store)
    assert bodies(store) == [b"0", b"1", b"2"]


def test_a_batch_is_refused_as_a_whole(stores: Stores) -> None:
    store = stores.open()
    items = [BatchItem(flag=0, body=b"x" * size, properties=b"") for size in (1, 20_001)]
    with pytest.raises(StoreRefused):
        store.append_batch("T", 0, items, sys_flag=0, born_timestamp=1, born_host=BORN_HOST)
    assert store.ledger.end_index == -1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (DLedgerCode.NOT_LEADER, PutStatus.SERVICE_NOT_AVAILABLE),
        (DLedgerCode.LEADER_TRANSFERRING, PutStatus.SERVICE_NOT_AVAILABLE),
        (DLedgerCode.LEADER_PENDING_FULL, PutStatus.OS_PAGE_CACHE_BUSY),
    ],
)
def test_a_refusal_of_the_dledger_is_one_that_clients_know(
    stores: Stores, code: DLedgerCode, status: PutStatus
) -> None:
    store = stores.open()
    stores.leader.refusal = code
    with pytest.raises(StoreRefused) as refused:
        append(store)
    assert refused.value.status is status
    stores.leader.refusal = None
    assert append(store).queue_offset == 0


def test_who_waits_is_answered_when_it_is_committed_and_dispatched(stores: Stores) -> None:
    async def wait() -> list[PutStatus]:
        store = stores.open()
        store.start()
        answers: list[PutStatus] = []
        first, second = append(store), append(store)
        store.when_committed(first.end, answers.append)
        store.when_committed(second.end, answers.append)
        commit(store, 0)
        assert answers == [PutStatus.PUT_OK]
        store.answer_waiting(PutStatus.SERVICE_NOT_AVAILABLE)
        return answers

    assert asyncio.run(wait()) == [PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE]


def test_an_answer_that_fails_ends_no_other(stores: Stores) -> None:
    """Neither when it is committed, nor too late, nor when another member leads."""

    async def wait() -> Answers:
        stores.settings = replace(stores.settings, sync_flush_timeout=20)
        store = stores.open()
        store.start()
        answers = Answers()

        def wait_for(end: int) -> None:
            store.when_committed(end, answers.fail)
            store.when_committed(end, answers.take)

        wait_for(append(store).end)
        commit(store)
        wait_for(append(store).end)
        store.answer_waiting(PutStatus.SERVICE_NOT_AVAILABLE)
        wait_for(append(store).end)
        await until(lambda: len(answers.given) == 3)
        wait_for(append(store).end)
        stores.leader.term = TERM + 1
        commit(store)
        return answers

    answers = asyncio.run(wait())
    away, late = PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.FLUSH_SLAVE_TIMEOUT
    assert answers.given == [PutStatus.PUT_OK, away, late, away]
    assert answers.reported == [f"at {status}" for status in answers.given]


def test_no_send_is_acknowledged_for_the_entry_of_another_leader(stores: Stores) -> None:
    """The leadership has ended, and what stands in the place of the send is committed."""

    async def wait() -> list[PutStatus]:
        store = stores.open()
        store.start()
        answers: list[PutStatus] = []
        store.when_committed(append(store).end, answers.append)
        mine = store.ledger.entry(0)
        other = LedgerEntry(0, TERM + 1, mine.position, mine.body)
        stores.leader.term = TERM + 1
        store.ledger.truncate(other)
        commit(store)
        return answers

    assert asyncio.run(wait()) == [PutStatus.SERVICE_NOT_AVAILABLE]


def test_what_is_appended_in_one_turn_of_the_loop_is_replicated_together(stores: Stores) -> None:
    async def fill() -> None:
        store = stores.open()
        store.start()
        for _ in range(5):
            append(store)
        await asyncio.sleep(0)

    asyncio.run(fill())
    assert stores.leader.turns == 1


def test_numbers_go_on_for_what_was_appended_behind_the_deletion_of_a_topic(stores: Stores) -> None:
    store = stores.open()
    append(store)
    commit(store)
    deleted_at = store.ledger.write_position
    store.forget_queues("T", deleted_at)
    assert append(store).queue_offset == 0
    commit(store)
    append(store)
    store.forget_queues("T", deleted_at)
    assert append(store).queue_offset == 2


def test_retention_takes_whole_files_and_the_index_follows(stores: Stores) -> None:
    store = stores.open()
    for _ in range(40):
        append(store, b"x" * 5_000)
    commit(store)
    removed = store.log.detach_first()
    assert removed.start == 0
    assert store.min_offset == store.log.files.start == 65_536
    assert store.ledger.begin_index == store.ledger.entry(store.ledger.begin_index).index > 0


def test_a_store_of_a_dledger_is_refused_without_it_and_with_another_member(
    stores: Stores, tmp_path: Path
) -> None:
    stores.open()
    stores.abandon()
    with pytest.raises(StoreUnusable, match="enableDLegerCommitLog"):
        MessageStore(BrokerSettings(store_path_root_dir=tmp_path), ManualClock()).load()
    (tmp_path / "dledger-n0").rename(tmp_path / "dledger-n1")
    with pytest.raises(StoreUnusable, match="dLegerSelfId"):
        stores.open()


def test_a_record_whose_first_page_is_lost_is_not_whole(stores: Stores) -> None:
    store = stores.open()
    append(store, b"x" * 5_000)
    record = store.ledger.entry(0).body
    assert is_whole(record)
    assert not is_whole(bytes(4_096) + record[4_096:])
    assert not is_whole(record[:4_096] + bytes(len(record) - 4_096))
    assert is_whole(b"of DLedger's own client")


def test_a_store_whose_index_had_no_room_opens_again_and_dispatches(stores: Stores) -> None:
    """The checkpoint then says where the index lacks messages: the offset of a record, inside an entry."""

    async def fill() -> None:
        store = stores.open()
        store.start()
        append(store, b"indexed")
        commit(store)
        store.dispatcher.index_missing_from = append(store, b"not indexed").offset
        commit(store)
        await store.close()

    asyncio.run(fill())
    store = stores.open()
    append(store, b"new")
    commit(store)
    assert bodies(store) == [b"indexed", b"not indexed", b"new"]
    assert len(store.query("T", "k", 10, 0, 2**60).records) == 3


@pytest.mark.parametrize("how", ["closed", "crashed"])
def test_damage_to_what_was_committed_is_named_and_nothing_is_touched(stores: Stores, how: str) -> None:
    """Power did not fail, so what was committed must be there: a member must not vote without it."""

    async def fill() -> None:
        store = stores.open()
        store.start()
        for number in range(10):
            append(store, b"%d" % number)
        commit(store)
        store.ledger.write_checkpoint()
        if how == "closed":
            await store.close()
        else:
            store.abandon()

    asyncio.run(fill())
    file = stores.settings.store_path_root_dir / "dledger-n0/data/00000000000000000000"
    data = bytearray(file.read_bytes())
    entry = data.index((3).to_bytes(8, "big") + TERM.to_bytes(8, "big")) - 8
    data[entry] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="the entries end with 2, though those up to 9"):
        stores.open()
    assert file.read_bytes() == data
    stores.abandon()
    store = LedgerStore(stores.settings, ManualClock())
    store.load(accept_damage=True)
    assert store.ledger.end_index == 2
    store.abandon()


def test_a_queue_without_room_is_tried_again_once_a_second_however_much_is_committed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill() -> int:
        store = stores.open()
        store.start()
        steps = 0

        def no_room(end: int) -> Step:
            nonlocal steps
            steps += 1
            return Step.NO_ROOM

        monkeypatch.setattr(store._entries, "step", no_room)
        for _ in range(50):
            append(store)
            commit(store)
        return steps

    assert asyncio.run(fill()) == 1


def test_a_log_that_begins_elsewhere_empties_the_queues(stores: Stores) -> None:
    """A leader that has deleted what this member had sends its first file."""
    store = stores.open()
    for _ in range(3):
        append(store, b"old")
    commit(store)
    record = bytearray(store.ledger.entry(0).body)
    record[28:36] = (65_536 + ENTRY_HEAD_SIZE).to_bytes(8, "big")
    first = LedgerEntry(500, TERM + 1, 65_536, bytes(record))
    store.ledger.truncate(first)
    commit(store, 500)
    assert store.min_offset == 65_536
    assert store.log.max_offset == 65_536 + first.size
    unit = store.unit("T", 0, store.queue_max("T", 0) - 1)
    assert unit is None or unit[0] >= 65_536


def test_a_truncation_that_the_disk_did_not_take_ends_the_log(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second try would find zeros in the page cache, and sync nothing: it is refused, and a sync is needed,
    which raises the failure, though all was synced before."""
    store = stores.open()
    for _ in range(3):
        append(store)
    entry = store.ledger.entry(0)
    store.ledger._sync_now()
    assert not store.ledger.needs_sync

    def fails(begin: int, end: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(store.ledger.files.files[0]), "sync", lambda self, begin, end: fails(begin, end))
    with pytest.raises(LedgerRefused):
        store.ledger.truncate(entry)
    monkeypatch.undo()
    with pytest.raises(LedgerRefused, match="the disk failed"):
        store.ledger.append_body(TERM, b"more")
    with pytest.raises(LedgerRefused, match="the disk failed"):
        store.ledger.truncate(entry)
    assert store.ledger.needs_sync
    sync = store.ledger.begin_sync()
    assert sync is not None
    with pytest.raises(OSError, match="Input/output error"):
        sync.run()


@pytest.mark.parametrize("entries", range(6))
def test_it_is_known_who_led_last(stores: Stores, entries: int) -> None:
    """A leader of ours begins its term with a record of its own; one of Java does not."""
    store = stores.open()
    assert not store.java_led_last
    for _ in range(entries):
        append(store)
    assert store.java_led_last == (entries > 0)
    store.ledger.begin_term(TERM + 1)
    for _ in range(entries):
        assert not store.java_led_last
        store.ledger.append_body(TERM + 1, b"x" * 100)
    assert not store.java_led_last
    store.ledger.append_body(TERM + 2, b"x" * 100)
    assert store.java_led_last


def test_a_crash_after_a_truncation_of_what_was_committed_finds_no_damage(stores: Stores) -> None:
    """A leader of Java asked for it; the checkpoint must not name entries that are gone."""
    store = stores.open()
    for number in range(10):
        append(store, b"%d" % number)
    commit(store)
    store.ledger.write_checkpoint()
    store.ledger.truncate(store.ledger.entry(4))
    store = stores.open()
    assert not store.closed_cleanly
    assert store.ledger.end_index == 4
    commit(store)
    assert bodies(store) == [b"%d" % number for number in range(5)]


def loses_power(stores: Stores) -> None:
    """The machine starts again: its page cache is gone, as far as the next start knows."""
    stores.abandon()
    abort = stores.settings.store_path_root_dir / "abort"
    abort.write_text(f"{abort.read_text().splitlines()[0]}\nanother boot\n")


@pytest.mark.parametrize(
    ("happened", "flush", "recovering"),
    [
        ("process ends", "ASYNC_FLUSH", False),
        ("power fails", "ASYNC_FLUSH", True),
        ("power fails", "SYNC_FLUSH", False),
    ],
)
def test_a_store_that_lost_what_was_not_on_the_disk_says_so(
    stores: Stores, happened: str, flush: Literal["ASYNC_FLUSH", "SYNC_FLUSH"], *, recovering: bool
) -> None:
    """Of a group of ours alone; and with ASYNC_FLUSH only, where that was acknowledged."""
    stores.settings = replace(stores.settings, dledger_brokerset_only=True, flush_disk_type=flush)
    store = stores.open()
    append(store)
    commit(store)
    store.ledger.end_recovery()
    if happened == "power fails":
        loses_power(stores)

    assert stores.open().ledger.recovering is recovering


def test_a_store_is_recovering_until_it_is_said_to_have_everything(stores: Stores) -> None:
    """From the first start on, and through restarts."""
    stores.settings = replace(stores.settings, dledger_brokerset_only=True)
    store = stores.open()
    append(store)
    commit(store)
    store = stores.open()
    assert store.ledger.recovering

    store.ledger.end_recovery()

    assert not stores.open().ledger.recovering


def test_a_store_in_a_group_with_java_is_never_recovering(stores: Stores) -> None:
    """Java's members know nothing of it."""
    store = stores.open()

    assert not store.ledger.recovering


def test_whoever_accepts_the_loss_votes_also_with_an_empty_disk(stores: Stores) -> None:
    """The way out when the member that had everything is lost for good."""
    stores.settings = replace(stores.settings, dledger_brokerset_only=True)
    assert stores.open().ledger.recovering
    stores.settings = replace(stores.settings, dledger_accept_loss=True)

    assert not stores.open().ledger.recovering
