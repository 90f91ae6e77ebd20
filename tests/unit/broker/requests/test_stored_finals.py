"""Commits and rollbacks are told apart by what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_broker.requests.stored_finals import ending_in_store
from brokerset_broker.transactions.resolved import Ending
from brokerset_formats.records import Record, SysFlag
from brokerset_rig.transaction_bench import COMMIT, TransactionBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TransactionBench]:
    made = TransactionBench(tmp_path / "store")
    yield made
    made.close()


def read(bench: TransactionBench, offset: int) -> Record:
    record = bench.log.read(offset)
    assert record is not None
    return record


async def test_a_final_record_with_the_key_says_that_it_was_committed(bench: TransactionBench) -> None:
    """Without one it was rolled back, if an op record says that it ended."""
    bench.lead()
    places = [bench.half(key) for key in "AB"]
    bench.end(places[0], "A", COMMIT)
    committed, dropped = (read(bench, place.offset) for place in places)
    await asyncio.sleep(0)

    def found(half: Record, ending: Ending) -> Ending:
        return ending_in_store(bench.store, half, ending)

    assert found(committed, Ending.ENDED) is Ending.COMMITTED
    assert found(committed, Ending.OVER) is Ending.COMMITTED
    assert found(dropped, Ending.ENDED) is Ending.ROLLED_BACK
    assert found(dropped, Ending.OVER) is Ending.OVER  # perhaps it was given up
    assert found(dropped, Ending.GIVEN_UP) is Ending.GIVEN_UP


async def test_a_plain_message_with_the_same_key_is_no_final_record(bench: TransactionBench) -> None:
    """Nor is what another transaction of the same object has stored, which was sent at another time."""
    bench.lead()
    half = read(bench, bench.half("A").offset)
    bench.log.append(bench.message("t", b"x", {"UNIQ_KEY": "A"}))
    bench.clock.advance(1)
    bench.log.append(bench.message("t", b"x", {"UNIQ_KEY": "A"}, sys_flag=SysFlag.TRANSACTION_COMMIT))

    assert ending_in_store(bench.store, half, Ending.ENDED) is Ending.ROLLED_BACK


async def test_without_a_whole_index_nobody_says_that_it_was_rolled_back(bench: TransactionBench) -> None:
    bench.lead()
    half = read(bench, bench.half("A").offset)
    bench.store.dispatcher.index_missing_from = 0
    assert ending_in_store(bench.store, half, Ending.ENDED) is Ending.ENDED

    bench.store.index = None
    assert ending_in_store(bench.store, half, Ending.ENDED) is Ending.ENDED
