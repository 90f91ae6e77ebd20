"""What a broker that begins to lead knows of the transactions in its store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerset_broker.requests.transaction_log import TransactionLog
from brokerset_broker.services.transaction_loading import TransactionLoading
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.results import Appended
from brokerset_broker.transactions.resolved import Resolved
from brokerset_formats.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import SysFlag
from brokerset_formats.transactions import copy_of_half, op_message
from brokerset_rig.transaction_bench import COMMIT, HOST, ROLLBACK, TransactionBench
from brokerset_runtime.remoting import DEFERRED


class Place:
    """The broker of now; `restart` is the next one on the same store."""

    def __init__(self, folder: Path) -> None:
        self.bench = TransactionBench(folder)

    def restart(self, half: int | None = None, op: int | None = None) -> TransactionLoading:
        """Crash, and lead again with this progress."""
        self.bench = self.bench.reopened()
        for topic, offset in ((HALF_TOPIC, half), (OP_HALF_TOPIC, op)):
            if offset is not None:
                self.bench.offsets.commit(TRANSACTION_GROUP, topic, 0, offset, "broker")
        return self.bench.lead()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "store")
    yield made
    made.bench.close()


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_has_ended_and_what_is_open_is_found_again(place: Place) -> None:
    """Also what is open by topic, for the metrics."""
    bench = place.bench
    bench.lead()
    halves = [bench.half(key) for key in "ABCD"]
    bench.end(halves[0], "A", COMMIT)
    bench.end(halves[2], "C", ROLLBACK)
    await turn()

    resolved = place.restart().resolved

    assert list(resolved.open_halves()) == [1, 3]
    assert resolved.ops_to_write() == ()
    assert place.bench.log.counts.topics["t"].open == 2
    assert place.bench.end(halves[0], "A", ROLLBACK).code == 1


async def test_a_final_record_without_an_op_record_ends_its_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log ended between the two; the op record is written, and no second message."""
    bench = place.bench
    bench.lead()
    bench.half("before")
    half = bench.half("A")
    await turn()
    with monkeypatch.context() as killed:
        killed.setattr(TransactionLog, "write_ops", lambda self: None)
        bench.end(half, "A", COMMIT)
        await turn()

    resolved = place.restart().resolved
    assert resolved.ops_to_write() == (1,)
    await turn()

    assert place.bench.bodies(OP_HALF_TOPIC) == [b"1,"]
    assert place.bench.end(half, "A", COMMIT) is DEFERRED
    assert [answer.code for answer in place.bench.peer.answers] == [0]
    assert place.bench.bodies() == [b"A"]


async def test_an_op_record_of_older_copies_ends_nothing(place: Place) -> None:
    """It names them for Java only; from whichever progress a broker reads, the newest copy is open."""
    place.bench.lead()
    place.bench.producers.register("pg", place.bench.peer, "client", 0, 0)
    half = place.bench.half("A")
    for _ in range(2):
        place.bench.clock.advance(7_000)
        await place.bench.checks._pass()
        await turn()
    assert place.bench.bodies(OP_HALF_TOPIC) == [b"0,,", b"1,,"]

    for progress in ((0, 0), (1, 0), (2, 2)):
        assert list(place.restart(*progress).resolved.open_halves()) == [2]
    place.bench.end(half, "A", COMMIT)
    await turn()

    assert place.bench.bodies() == [b"A"]
    for progress in ((0, 0), (2, 2)):
        assert list(place.restart(*progress).resolved.open_halves()) == []


async def test_a_message_with_the_bits_of_a_commit_ends_no_transaction_of_others(place: Place) -> None:
    """A client, or a consumer that sends back, names offset 0, where a half may be."""
    bench = place.bench
    bench.lead()
    half = bench.half("A")
    assert half.offset == 0
    message = bench.message("t", b"x", {"UNIQ_KEY": "other"}, sys_flag=SysFlag.TRANSACTION_COMMIT)
    bench.log.append(message)

    resolved = place.restart().resolved

    assert list(resolved.open_halves()) == [0]


@pytest.mark.parametrize("body", [b"nonsense", b"0,x,", b"\xff"])
async def test_an_op_record_that_cannot_be_read_is_passed_over(place: Place, body: bytes) -> None:
    bench = place.bench
    bench.lead()
    bench.half("A")
    half = bench.half("B")
    bench.log.append(op_message(body, HOST, 0))
    bench.log.append(op_message(b"1", HOST, 0))  # of a release before 5.0

    resolved = place.restart().resolved

    assert list(resolved.open_halves()) == [0]
    assert place.bench.end(half, "B", COMMIT).code == 1


@pytest.mark.parametrize(
    ("saved", "progress", "still_open"),
    [((None, None), (0, 0), [1]), ((1, 1), (1, 1), [1]), ((2, 0), (2, 0), []), ((99, 99), (2, 1), [])],
)
async def test_reading_begins_at_the_progress_inside_of_the_queues(
    place: Place, saved: tuple[int | None, int | None], progress: tuple[int, int], still_open: list[int]
) -> None:
    """A progress behind the end, whose file outlived the log, is taken for the end."""
    bench = place.bench
    bench.lead()
    half = bench.half("A")
    bench.half("B")
    bench.end(half, "A", ROLLBACK)
    await turn()

    resolved = place.restart(*saved).resolved

    assert (resolved.half_progress, resolved.op_progress) == progress
    assert list(resolved.open_halves()) == still_open


def _known(resolved: Resolved) -> tuple[object, ...]:
    """Everything that a broker may ask."""
    states = [resolved.state_at(number) for number in range(resolved.half_end)]
    return (
        states,
        list(resolved.open_halves()),
        resolved.ops_to_write(),
        resolved.half_progress,
        resolved.half_end,
        resolved.op_progress,
        resolved.finals_scan_start(),
    )


@pytest.mark.parametrize("seed", range(25))
async def test_what_op_records_name_need_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """By the short way the same is known as by reading every half: with copies of both makes, and ends
    of older copies, with and without op records."""
    chance = random.Random(seed)
    bench = TransactionBench(tmp_path / "store", transaction_time_out=0, transaction_check_max=4)
    bench.lead()
    await turn()
    places: list[tuple[str, Appended]] = []
    for number in range(40):
        match chance.choice("hhhecw" if seed % 2 else "hhhecwj"):
            case "h":
                places.append((f"K{number}", bench.half(f"K{number}")))
            case "e" if places:
                key, place = chance.choice(places)
                bench.end(place, key, chance.choice((COMMIT, ROLLBACK)), one_way=True)
                if chance.random() < 0.8:
                    bench.log.write_ops()
            case "c":
                bench.clock.advance(1)
                await bench.checks._pass()
            case "j" if places:
                _java_copy(bench, places)
            case _:
                await turn()
    begin = chance.randrange(bench.store.queue_end(HALF_TOPIC, 0) + 1)
    bench.log.stop()
    bench.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, begin, "broker")
    bench.offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, 0, "broker")
    found = []
    for short in (True, False):
        loading = TransactionLoading(bench.store, bench.offsets, bench.log.begin_loading())
        if not short:
            monkeypatch.setattr(loading, "_all", True)
        for _ in loading.steps():
            pass
        bench.log.stop()
        loading.resolved.loaded()
        found.append(_known(loading.resolved))
    bench.close()

    assert found[0] == found[1]


def _java_copy(bench: TransactionBench, places: list[tuple[str, Appended]]) -> None:
    """A copy that does not say of which half."""
    key, place = places[0]
    half = bench.log.read(place.offset)
    assert half is not None
    copy = copy_of_half(half, 1)
    properties = decode_properties(copy.properties)
    del properties["TRAN_PREPARED_QUEUE_OFFSET"]
    places.append((key, bench.log.append_half(replace(copy, properties=encode_properties(properties)))))


async def test_a_copy_of_javas_ends_with_the_half_that_it_was_made_of(place: Place) -> None:
    """Java's op record names the half alone when its producer ends it late (issue 8158)."""
    bench = place.bench
    bench.lead()
    await turn()
    half = bench.half("A")
    places = [("A", half)]
    _java_copy(bench, places)
    bench.log.append(op_message(b"0,", HOST, 0))

    resolved = place.restart().resolved

    assert list(resolved.open_halves()) == []
    assert resolved.ops_to_write() == (1,)


async def test_halves_that_come_meanwhile_are_known_and_counted(place: Place) -> None:
    bench = place.bench
    bench.store.start()
    bench.half("before")  # a broker alone takes sends a moment before its services start
    ends = bench.log.begin_loading()
    bench.half("meanwhile")
    loading = TransactionLoading(bench.store, bench.offsets, ends)
    for _ in loading.steps():
        pass
    bench.log.loaded(loading.resolved, loading.topics)
    bench.half("after")

    assert list(loading.resolved.open_halves()) == [0, 1, 2]
    assert bench.log.counts.topics["t"].open == 3


async def test_final_records_are_found_in_every_file_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan goes on from file to file, past the mark at the end of each."""
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 18, "max_message_size": 100_000}
    bench = TransactionBench(tmp_path / "small", **settings)
    bench.lead()
    halves = [bench.half(f"K{number}") for number in range(4)]
    await turn()
    with monkeypatch.context() as killed:
        killed.setattr(TransactionLog, "write_ops", lambda self: None)
        for number in (1, 3):
            for _ in range(4):
                bench.log.append(bench.message("t", b"x" * 90_000, {"UNIQ_KEY": "plain"}))
            bench.end(halves[number], f"K{number}", COMMIT)
        await turn()
    assert len(bench.store.log.files.files) >= 3
    bench.log.stop()
    loading = bench.lead()

    assert loading.resolved.ops_to_write() == (1, 3)
    assert list(loading.resolved.open_halves()) == [0, 2]
    bench.close()


@pytest.mark.parametrize("begin", [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\1\0????"], ids=["none", "short", "magic"])
async def test_a_damaged_log_is_not_passed_over_silently(place: Place, begin: bytes) -> None:
    """Behind the damage are perhaps final records, whose transactions are taken for open: that is logged."""
    bench = place.bench
    bench.lead()
    bench.half("A")
    damaged = bench.log.append(bench.message("t", b"x", {"UNIQ_KEY": "x"}))
    bench.half("B")
    await turn()
    bench.store.log.files.files[0].write(damaged.offset, begin)
    bench.log.stop()

    with capture_logs() as logged:
        loading = bench.lead()

    assert list(loading.resolved.open_halves()) == [0, 1]
    assert [each["offset"] for each in logged if each["log_level"] == "error"] == [damaged.offset]


async def test_a_damaged_message_does_not_keep_transactions_from_being_served(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may set the bits of a commit, so any message may be taken for a final record."""
    bench = place.bench
    bench.lead()
    half = bench.half("A")
    bits = SysFlag.TRANSACTION_COMMIT
    damaged = bench.log.append(bench.message("t", b"x", {"UNIQ_KEY": "x"}, sys_flag=bits))
    read = MessageStore.read

    def damage(store: MessageStore, offset: int, size: int | None = None) -> memoryview | None:
        return memoryview(b"?" * 100) if offset == damaged.offset else read(store, offset, size)

    monkeypatch.setattr(MessageStore, "read", damage)

    resolved = place.restart().resolved

    assert list(resolved.open_halves()) == [half.queue_offset]
