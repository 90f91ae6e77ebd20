"""A store of a commit log goes on as one of a DLedger, in place."""

from __future__ import annotations

import asyncio
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_broker.store import old_log
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.old_log import (
    OldFile,
    OldLog,
    close_old_log,
    digests_of,
    first_difference,
    old_files,
    read_divided,
)
from brokerset_formats.dledger import CurrentTerm, LedgerEntry
from brokerset_formats.hosts import Host
from brokerset_formats.records import BLANK, MAGIC_BLANK, decode_record
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

BORN_HOST = Host.from_text("10.0.0.1", 54321).encode()
FILE_BYTES = 65_536


class Leader:
    """Says that this member leads."""

    term = 1

    def require_appendable(self, count: int = 1) -> None:
        """It may."""

    def appended(self) -> None:
        """Nobody else has to know."""


class Place:
    """A folder that was a classic store, and is one of a DLedger."""

    def __init__(self, root: Path) -> None:
        self.classic = BrokerSettings(
            store_path_root_dir=root,
            mapped_file_size_commit_log=FILE_BYTES,
            mapped_file_size_consume_queue=2_000,
            max_hash_slot_num=50,
            max_index_num=400,
            max_message_size=20_000,
        )
        self.settings = replace(
            self.classic,
            enable_dledger_commit_log=True,
            dledger_peers="n0-127.0.0.1:1",
            dledger_self_id="n0",
        )
        self._open: list[MessageStore] = []

    def fill(self, count: int, *, close: bool = True, size: int = 3_000) -> None:
        """Messages in the commit log; a store that is not closed is left as by a crash."""

        async def work() -> None:
            store = MessageStore(self.classic, ManualClock())
            store.load()
            store.start()
            for number in range(count):
                append(store, b"%04d" % number + b"x" * size)
            if close:
                await store.close()
            else:
                store.abandon()

        asyncio.run(work())

    def divide(self) -> None:
        asyncio.run(close_old_log(self.settings, ManualClock()))

    def open(self) -> LedgerStore:
        for store in self._open:
            store.abandon()
        store = LedgerStore(self.settings, ManualClock())
        self._open = [store]
        store.load()
        store.ledger.write_term(CurrentTerm(1))
        store.lead_with(Leader())
        return store

    def abandon(self) -> None:
        for store in self._open:
            store.abandon()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.abandon()


def append(store: MessageStore, body: bytes) -> int:
    appended = store.append(
        "T", 0, body, b"KEYS\x01k\x02", flag=0, sys_flag=0, born_timestamp=1, born_host=BORN_HOST
    )
    return appended.queue_offset


def commit(store: LedgerStore) -> None:
    store.ledger.commit(store.ledger.end_index)
    for _ in range(20):
        store.committed()


def numbers(store: LedgerStore) -> list[int]:
    """The messages that a consumer gets, by what their bodies say."""
    found = []
    for number in range(store.queue_min("T", 0), store.queue_max("T", 0)):
        unit = store.unit("T", 0, number)
        assert unit is not None
        found.append(int(decode_record(bytes(store.read(unit[0], unit[1]) or b"")).body[:4]))
    return found


@pytest.mark.parametrize("close", [True, False], ids=["closed", "after a crash"])
def test_old_messages_are_there_and_new_ones_follow_on_them(place: Place, close: bool) -> None:
    place.fill(50, close=close)
    place.divide()
    store = place.open()
    assert store.log.divide == 3 * FILE_BYTES
    assert numbers(store) == list(range(50))
    assert append(store, b"0050") == 50
    commit(store)
    assert store.ledger.entry(0).position == 3 * FILE_BYTES
    assert (place.open().queue_max("T", 0)) in (50, 51)  # what is committed may be told later
    store = place.open()
    commit(store)
    assert numbers(store) == list(range(51))
    assert [head.queue_offset for head in store.log.records(0)] == list(range(51))


@pytest.mark.parametrize("was_committed", [False, True])
def test_the_old_log_stays_when_the_leaders_first_entry_takes_the_place_of_another(
    place: Place, was_committed: bool
) -> None:
    """A member that led for a moment, alone, has begun the log otherwise; Java commits such."""
    place.fill(50)
    place.divide()
    store = place.open()
    append(store, b"0099")
    if was_committed:
        commit(store)
    record = bytearray(store.ledger.entry(0).body.replace(b"0099", b"0050"))
    record[8:12] = (zlib.crc32(b"0050") & 0x7FFFFFFF).to_bytes(4, "big")

    store.ledger.truncate(LedgerEntry(0, 2, 3 * FILE_BYTES, bytes(record)))
    commit(store)

    for _ in range(2):
        assert store.min_offset == 0
        assert store.log.divide == 3 * FILE_BYTES
        assert numbers(store) == list(range(51))
        store = place.open()
        commit(store)
    assert len(old_files(place.settings).files) == 3


def test_the_last_old_file_ends_with_a_blank_record(place: Place) -> None:
    place.fill(5)
    place.divide()
    file = old_files(place.settings).files[-1]
    end = 5 * (3_000 + 4) + 0
    found = [
        position
        for position in range(end, FILE_BYTES - 8)
        if BLANK.unpack_from(file.view, position) == (FILE_BYTES - position, MAGIC_BLANK)
    ]
    assert len(found) == 1


def test_a_crash_at_each_step_of_the_change_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is begun again, and ends as if nothing had happened."""
    place.fill(30)
    for step in ("_close_last_file", "digests_of", "write_atomically"):
        with monkeypatch.context() as patch:
            patch.setattr(old_log, step, _fails)
            with pytest.raises(OSError, match="the process ended"):
                place.divide()
        assert read_divided(place.settings) is None
    place.divide()
    assert numbers(place.open()) == list(range(30))


def _fails(*arguments: object) -> None:
    raise OSError("the process ended")


def test_a_start_between_the_change_and_the_first_dispatch_finds_all_units(place: Place) -> None:
    place.fill(30)
    place.divide()
    shutil.rmtree(place.settings.store_path_root_dir / "consumequeue")
    (place.settings.store_path_root_dir / "checkpoint").unlink()
    (place.settings.store_path_root_dir / "abort").touch()
    assert numbers(place.open()) == list(range(30))


def test_a_store_without_an_old_log_is_not_divided(place: Place) -> None:
    place.divide()
    assert read_divided(place.settings) is None
    assert place.open().log.divide == 0


def test_old_files_go_before_any_of_the_dledger(place: Place) -> None:
    """Java switches the DLedger's deletion off; here the order of files does."""
    place.fill(50)
    place.divide()
    store = place.open()
    for number in range(50, 100):
        append(store, b"%04d" % number + b"x" * 3_000)
    commit(store)
    files = [file.start for file in store.log.files.files]
    assert [store.log.detach_first().start for _ in files[:-1]] == files[:-1]
    assert store.ledger.begin_index > 0


def test_a_member_whose_old_files_are_gone_tells_of_none(place: Place) -> None:
    place.fill(50)
    place.divide()
    store = place.open()
    append(store, b"0050")
    commit(store)
    assert store.remaining_old_log().end == 3 * FILE_BYTES
    for _ in range(3):
        store.log.detach_first()
    assert store.remaining_old_log() == OldLog(begun=True)


def test_what_a_file_says_of_an_old_log_is_read_again(place: Place) -> None:
    place.fill(50)
    place.divide()
    known = read_divided(place.settings)
    assert known == digests_of(old_files(place.settings).files)
    assert known is not None
    assert OldLog.from_json(known.to_json()) == known
    blocks = b'{"end": 9, "files": [{"start": 0, "size": 9, "blocks": ["a", "b"]}]}'
    for wrong in (blocks, b"", b"{}", b'{"end": 1, "files": [1]}', b'{"end": "x", "files": []}', b"[1]"):
        with pytest.raises(ValueError, match="no digests of an old log"):
            OldLog.from_json(wrong)


def test_a_member_that_works_and_has_no_old_files_any_more_is_no_difference() -> None:
    own = OldLog(300, (OldFile(200, 100, ("a",)),))
    assert first_difference(own, OldLog(begun=True), "n1") is None
    assert first_difference(own, OldLog(), "n1") is not None


def test_the_first_difference_between_old_logs_is_named() -> None:
    files = tuple(OldFile(start, 100, ("a", "b")) for start in (0, 100, 200))
    own = OldLog(300, files)
    other = OldLog(300, (*files[:2], OldFile(200, 100, ("a", "c"))))
    assert first_difference(own, own, "n1") is None
    assert first_difference(own, OldLog(300, files[1:]), "n1") is None
    assert "ends at 400, this one at 300" in str(first_difference(own, OldLog(400, files), "n1"))
    assert "between the offsets" in str(first_difference(own, other, "n1"))
    short = OldLog(300, (*files[:2], OldFile(200, 50, ("a",))))
    assert "has 50 bytes" in str(first_difference(own, short, "n1"))
