"""The wire source on real processes: masters are killed while a stream reads, and every acknowledged message is read."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from brokerset_client import Message
from brokerset_client.ordered.client import OrderedClient
from brokerset_rig.local_set import LocalSet, Sending, local_set
from brokerset_rig.ordered_run import master_of
from brokerset_rig.threaded_servers import read_all
from brokerset_rig.topic_queries import Rows, StreamQuery, batch_rows
from brokerset_spark.jobs.lake.exporting import LakeOptions, export_pass
from brokerset_spark.jobs.running import LocalRunner, Result, Row
from brokerset_spark.topics.client_thread import client_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: lake}
spec:
  groups: 1
  replicas: 3
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    with local_set(tmp_path_factory.mktemp("source"), MANIFEST) as found:
        found.until_healthy()
        yield found
        client_of(str(found.state()["namesrv"])).close()


def kill_master(local: LocalSet) -> None:
    view = local.until(lambda each: bool(master_of(each, "lake-0")), "a master")
    os.kill(local.processes("broker")[master_of(view, "lake-0")]["pid"], signal.SIGKILL)


def places(rows: Rows) -> list[tuple[str, int, int]]:
    return [(row["brokerName"], row["queueId"], row["offset"]) for row in rows]


@pytest.mark.parametrize("read_from", ["auto", "replica"])
def test_a_stream_reads_every_message_once_over_failovers(local: LocalSet, read_from: str) -> None:
    """Two masters are killed in the middle of a stream. Each acknowledged message is read, no place of a queue
    twice, no place is missing, and a batch that is read again has the same rows."""
    topic = f"stream-{read_from}"
    local("topic", "create", topic, "--queues", "4")
    options: dict[str, Any] = {
        "nameServers": str(local.state()["namesrv"]),
        "topic": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 200,
        "readFrom": read_from,
    }
    query = StreamQuery(**options)
    batches: list[Rows] = []

    def follow(rows_min: int) -> None:
        while sum(map(len, batches)) < rows_min:
            batches.append(query.next() or [])

    with Sending(local, topic, at_least=50) as sending:
        for kills in (1, 2):
            follow(200 * kills)
            kill_master(local)
            follow(200 * kills + 100)
            query.restart()
    local.until_healthy()
    while (rows := query.next()) is not None:
        batches.append(rows)

    found = [row for batch in batches for row in batch]
    bodies = {row["value"].decode() for row in found}
    stored = asyncio.run(read_all(options["nameServers"], topic))
    assert set(sending.acknowledged) <= bodies
    assert len(found) == len(set(places(found))) == len(stored)
    for queue in {place[1] for place in places(found)}:
        offsets = [place[2] for place in places(found) if place[1] == queue]
        assert offsets == list(range(len(offsets)))
    whole = [places(batch) for batch in batches if batch]
    again = [places(query.rows(*each)) for each in query.batches]
    assert [each for each in again if each] == whole


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """A process that is there and does nothing, as on a machine that swaps, or in a frozen container."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def master_pid(local: LocalSet) -> int:
    view = local.until_whole()
    return int(local.processes("broker")[master_of(view, "lake-0")]["pid"])


def filled(local: LocalSet, topic: str) -> list[str]:
    """A topic with messages that all replicas have."""
    local("topic", "create", topic, "--queues", "4")
    with Sending(local, topic, pause=0.001, at_least=200) as sending:
        pass
    return sending.acknowledged


@pytest.mark.parametrize("read_from", ["auto", "master", "replica"])
def test_a_task_goes_on_while_a_broker_is_paused(local: LocalSet, read_from: str) -> None:
    """A broker stops between the plan of a batch and its pulls, with its connections open: the task goes on with
    another replica, or with the next master, long before `fetchTimeoutSeconds`; nothing is missing or twice."""
    topic = f"paused-{read_from}"
    acknowledged = filled(local, topic)
    master = master_pid(local)
    pids = [int(each["pid"]) for each in local.processes("broker").values()]
    pid = next(each for each in pids if (each != master) == (read_from == "replica"))
    query = StreamQuery(
        nameServers=str(local.state()["namesrv"]), topic=topic, startingOffsets="earliest", readFrom=read_from
    )
    end = query.plan()

    begun = time.monotonic()
    with paused(pid):
        rows = query.rows(query.offset, end)

    assert time.monotonic() - begun < 60
    assert len(set(places(rows))) == len(rows)
    assert set(acknowledged) <= {row["value"].decode() for row in rows}
    local.until_whole()


class Pausing:
    """Runs the tasks of a pass while a broker is paused."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        with paused(self.pid):
            yield from LocalRunner().run(task, rows, reducer)


def test_a_pass_of_the_lake_goes_on_while_the_master_is_paused(local: LocalSet, tmp_path: Path) -> None:
    """What was planned is confirmed, so other replicas have it; each message is in the table once."""
    acknowledged = filled(local, "paused-lake")
    options = LakeOptions(
        name_servers=str(local.state()["namesrv"]), target=str(tmp_path / "lake"), topics=("paused-lake",)
    )

    begun = time.monotonic()
    report = export_pass(Pausing(master_pid(local)), options)

    assert time.monotonic() - begun < 60
    bodies = DeltaTable(str(tmp_path / "lake" / "messages")).to_pyarrow_table().column("body").to_pylist()
    assert len(bodies) == report.messages
    assert set(acknowledged) <= {each.decode() for each in bodies}
    local.until_whole()


def test_an_ordered_subject_is_read_like_a_topic(local: LocalSet) -> None:
    """All messages of a subject are read, those of a key in their order."""
    local("subject", "create", "orders", "--partitions", "4")
    name_servers = str(local.state()["namesrv"])

    async def send() -> None:
        async with OrderedClient(name_servers) as client, client.producer() as producer:
            for number in range(40):
                message = Message(topic="orders", body=str(number).encode())
                await producer.send(message, key=str(number % 4))

    asyncio.run(send())
    rows = batch_rows(nameServers=name_servers, topic="orders")
    values = [int(row["value"]) for row in rows]
    assert sorted(values) == list(range(40))
    for key in range(4):
        of_key = [value for value in values if value % 4 == key]
        assert of_key == sorted(of_key)
