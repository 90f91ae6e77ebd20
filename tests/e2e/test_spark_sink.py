"""The sink of `format("rocketmq")` on real processes, with masters killed while it writes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from brokerset_client.ordered.client import OrderedClient
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.ordered_run import MANIFEST, master_of
from brokerset_rig.threaded_servers import read_all
from brokerset_spark.topics.client_thread import client_of
from brokerset_spark.topics.sink.options import SinkOptions
from brokerset_spark.topics.sink.ordered import OrderedSender, TaskIdentity
from brokerset_spark.topics.sink.plain import SinkFailed
from brokerset_spark.topics.sink.rows import rows_of
from brokerset_spark.topics.sink.writers import write_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROWS, KEYS, BATCH = 20_000, 40, 500


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    with local_set(tmp_path_factory.mktemp("sink"), MANIFEST) as found:
        found.until_healthy()
        yield found
        client_of(str(found.state()["namesrv"])).close()


def batches(kill: threading.Event | None = None) -> Iterator[pa.RecordBatch]:
    """All rows; `kill` is set when a third of them was taken."""
    for first in range(0, ROWS, BATCH):
        if kill is not None and first >= ROWS // 3:
            kill.set()
        numbers = range(first, first + BATCH)
        yield pa.RecordBatch.from_pydict(
            {"value": [f"{n % KEYS} {n}" for n in numbers], "orderKey": [str(n % KEYS) for n in numbers]}
        )


def kill_master_when(local: LocalSet, event: threading.Event) -> threading.Thread:
    def run() -> None:
        event.wait(60)
        view = local.until(lambda each: bool(master_of(each, "orders-0")), "a master")
        os.kill(local.processes("broker")[master_of(view, "orders-0")]["pid"], signal.SIGKILL)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def stored(local: LocalSet, topic: str) -> list[str]:
    local.until_healthy()
    found = asyncio.run(read_all(str(local.state()["namesrv"]), topic))
    return [each.body.decode() for each in found]


def test_a_killed_master_costs_no_row_of_a_topic(local: LocalSet) -> None:
    """Every row is stored; what is stored twice is at most what was on its way when the master died."""
    local("topic", "create", "plain", "--queues", "4")
    options = SinkOptions(
        name_servers=str(local.state()["namesrv"]), topic="plain", batch_messages=50, in_flight=8
    )
    kill = threading.Event()
    killer = kill_master_when(local, kill)

    written = write_rows(batches(kill), options, TaskIdentity("w", 0, 0))

    killer.join()
    counts = Counter(stored(local, "plain"))
    doubled = sum(counts.values()) - len(counts)
    assert written.rows == len(counts) == ROWS
    assert doubled <= 8 * 50, f"{doubled} rows are stored twice"


def test_a_task_that_is_run_again_stores_nothing_twice(local: LocalSet) -> None:
    """The first attempt ends in the middle, the second meets a failover, a third repeats everything: each
    row is stored once, in the order of its key."""
    local("subject", "create", "once", "--partitions", "4")
    options = SinkOptions(
        name_servers=str(local.state()["namesrv"]),
        topic="once",
        ordered=True,
        idempotence=True,
        batch_messages=50,
    )
    task = TaskIdentity("query", 3, 7)
    client = client_of(options.name_servers)
    rows = [row for batch in batches() for row in rows_of(batch, options)]

    async def ended_in_the_middle() -> int:
        ordered = OrderedClient(instance=client.instance)
        await ordered.start()
        sender = OrderedSender(ordered, options)
        adding = asyncio.create_task(sender.add_once(rows, task))
        async with asyncio.timeout(30):
            while sender.rows < ROWS // 5:  # noqa: ASYNC110  # the sender counts, and tells nobody
                await asyncio.sleep(0.001)
        adding.cancel()
        await asyncio.wait([adding])
        await sender.close()
        return sender.rows

    confirmed = client.run(ended_in_the_middle(), 60)
    kill = threading.Event()
    killer = kill_master_when(local, kill)
    kill.set()
    write_rows(batches(), options, task)
    killer.join()
    write_rows(batches(), options, task)

    found = stored(local, "once")
    seen: dict[str, list[int]] = {}
    for body in found:
        key, number = body.split()
        seen.setdefault(key, []).append(int(number))
    assert confirmed < ROWS
    assert len(found) == len(set(found)) == ROWS
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_other_rows_under_the_same_identity_are_never_lost(local: LocalSet) -> None:
    """A repeated task with other rows stores them as well, or fails: they are not taken for the first ones."""
    local("subject", "create", "changed", "--partitions", "2")
    options = SinkOptions(
        name_servers=str(local.state()["namesrv"]),
        topic="changed",
        ordered=True,
        idempotence=True,
        send_timeout=20_000,
    )

    refusals: list[str] = []

    def attempt(rows: list[str]) -> bool:
        batch = pa.RecordBatch.from_pydict({"value": rows, "orderKey": ["k"] * len(rows)})
        try:
            write_rows(iter([batch]), options, TaskIdentity("q", 0, 0))
        except SinkFailed as error:
            refusals.append(str(error))
            return False
        return True

    outcomes = {name: attempt([f"{name}{n}" for n in range(20)]) for name in "abcdef"}

    found = Counter(stored(local, "changed"))
    assert outcomes["a"]
    assert all("started again by another process" in each for each in refusals)
    for name, succeeded in outcomes.items():
        assert sum(found[f"{name}{n}"] for n in range(20)) == (20 if succeeded else 0)
