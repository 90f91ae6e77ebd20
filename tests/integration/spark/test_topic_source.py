"""The wire source on a real broker, by the calls that Spark makes."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_client.admin import Admin
from brokerset_client.errors import BrokerUnreachable
from brokerset_protocol.codes import RequestCode
from brokerset_rig.local_servers import Client, connected, running_broker
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_rig.topic_queries import Rows, StreamQuery, batch_rows, batch_tasks
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics import brokers, reading, stream
from brokerset_spark.topics.client_thread import client_of
from brokerset_spark.topics.reading import DataLost


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    with threaded_servers(tmp_path_factory.mktemp("source"), auto_create_topic_enable=False) as found:
        yield found
        client_of(found.name_servers).close()


@pytest.fixture(autouse=True)
def _believe_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss is believed after a moment: no broker changes its role here."""
    monkeypatch.setattr(stream, "BELIEVE_SECONDS", 0.2)
    monkeypatch.setattr(reading, "GONE_SECONDS", 0.2)
    monkeypatch.setattr(brokers, "STATS_SECONDS", 0.5)


@pytest.fixture
def topic(servers: ThreadedServers, request: pytest.FixtureRequest) -> str:
    name = "t" + str(zlib.crc32(request.node.nodeid.encode()))
    servers.create_topic(name, 2)
    return name


def send(servers: ThreadedServers, topic: str, bodies: list[str], queue: int = 0, **properties: str) -> None:
    async def work() -> None:
        async with connected(servers.broker.port) as connection:
            for body in bodies:
                reply = await Client(connection).send(
                    topic, body.encode(), queue_id=queue, properties=properties or {"KEYS": "k"}
                )
                assert reply.code == 0, reply.remark

    servers.run(work())


def of(servers: ThreadedServers, topic: str, **more: Any) -> dict[str, Any]:
    return {"nameServers": servers.name_servers, "topic": topic, "fetchTimeoutSeconds": 5} | more


def delete(servers: ThreadedServers, topic: str) -> None:
    async def work() -> None:
        async with Admin(namesrv=servers.name_servers) as admin:
            await admin.delete_topic(topic)

    servers.run(work())


def values(rows: Rows | None) -> list[str]:
    return [row["value"].decode() for row in rows or []]


def numbers(first: int, count: int) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def test_a_batch_has_all_columns_of_kafka_and_ours(servers: ThreadedServers, topic: str) -> None:
    """What a producer sent is in the columns of the Kafka source, and in ours."""
    before = time.time() - 1
    send(servers, topic, ["x"], queue=1, KEYS="k1 k2", TAGS="red", colour="blue")
    (row,) = batch_rows(**of(servers, topic, includeHeaders=True))
    broker = servers.broker.settings.broker_name
    assert (row["key"], row["value"], row["topic"]) == (b"k1 k2", b"x", topic)
    assert (row["partition"], row["offset"], row["timestampType"]) == (1, 0, 1)
    assert before < row["timestamp"].timestamp() < time.time() + 1
    assert {"key": "colour", "value": b"blue"} in row["headers"]
    assert (row["brokerName"], row["queueId"], row["tags"]) == (broker, 1, "red")
    assert dict(row["properties"])["colour"] == "blue"


def test_a_batch_reads_between_offsets(servers: ThreadedServers, topic: str) -> None:
    """Offsets by number, -2 and -1, and times, choose what is read in each queue."""
    send(servers, topic, numbers(0, 10))
    send(servers, topic, numbers(100, 5), queue=1)
    broker = servers.broker.settings.broker_name
    start = {topic: {broker: {"0": 3, "1": -2}}}
    end = {topic: {broker: {"0": -1, "1": 2}}}
    rows = batch_rows(**of(servers, topic, startingOffsets=start, endingOffsets=end))
    assert values(rows) == [*numbers(3, 7), "100", "101"]
    middle = next(row for row in batch_rows(**of(servers, topic)) if row["value"] == b"0")["timestamp"]
    at = int(middle.timestamp() * 1000)
    assert len(batch_rows(**of(servers, topic, startingTimestamp=at))) == 15
    assert batch_rows(**of(servers, topic, endingTimestamp=at)) == []


def test_a_topic_may_have_one_offset_for_all_queues(servers: ThreadedServers, topic: str) -> None:
    """A word in JSON stands for all queues of a topic; a topic that is not there is refused."""
    send(servers, topic, numbers(0, 3))
    query = StreamQuery(**of(servers, topic, startingOffsets={topic: "Earliest"}))
    assert values(query.next()) == numbers(0, 3)
    assert batch_rows(**of(servers, topic, endingOffsets={topic: "latest"}))
    with pytest.raises(OptionsError, match="names what is no queue of the query"):
        StreamQuery(**of(servers, topic, startingOffsets={topic: "latest", "nowhere": "latest"}))


def test_an_offset_that_is_not_there_fails_or_is_moved(servers: ThreadedServers, topic: str) -> None:
    """A starting offset behind the end is data lost; with failOnDataLoss=false it is the end."""
    send(servers, topic, numbers(0, 3))
    start = {topic: {servers.broker.settings.broker_name: {"0": 7, "1": 0}}}
    with pytest.raises(DataLost, match="0 to 3, and 7 is asked for"):
        batch_rows(**of(servers, topic, startingOffsets=start))
    assert batch_rows(**of(servers, topic, startingOffsets=start, failOnDataLoss=False)) == []


def test_a_batch_must_not_end_before_it_begins(servers: ThreadedServers, topic: str) -> None:
    """Offsets that cross are refused, as is the end as a beginning."""
    send(servers, topic, numbers(0, 5))
    broker = servers.broker.settings.broker_name
    start, end = {topic: {broker: {"0": 3, "1": 0}}}, {topic: {broker: {"0": 1, "1": 0}}}
    with pytest.raises(OptionsError, match="starting offset 3 lies behind the ending offset 1"):
        batch_rows(**of(servers, topic, startingOffsets=start, endingOffsets=end))
    with pytest.raises(OptionsError, match="would read nothing"):
        batch_rows(**of(servers, topic, startingOffsets={topic: {broker: {"0": -1, "1": 0}}}))


def test_offsets_must_name_all_queues(servers: ThreadedServers, topic: str) -> None:
    """Offsets that leave a queue out, or name one that is not there, are refused by name."""
    start = {topic: {servers.broker.settings.broker_name: {"0": 0}}}
    with pytest.raises(OptionsError, match="missing: queue 1"):
        batch_rows(**of(servers, topic, startingOffsets=start))
    with pytest.raises(OptionsError, match="know no queue"):
        batch_rows(**of(servers, "nowhere"))


def test_tasks_are_as_many_as_asked_for(servers: ThreadedServers, topic: str) -> None:
    """minPartitions divides a queue, and maxRecordsPerPartition does too; no record is read twice."""
    send(servers, topic, numbers(0, 40))
    assert [len(task) for task in batch_tasks(**of(servers, topic, minPartitions=4))] == [10] * 4
    tasks = list(batch_tasks(**of(servers, topic, maxRecordsPerPartition=15)))
    assert max(map(len, tasks)) <= 15
    assert values([row for task in tasks for row in task]) == numbers(0, 40)
    assert len(list(batch_tasks(**of(servers, topic)))) == 1


def test_a_pattern_finds_topics(servers: ThreadedServers, topic: str) -> None:
    """All topics whose whole name fits are read."""
    servers.create_topic(f"{topic}-b", 1)
    send(servers, topic, ["a"])
    send(servers, f"{topic}-b", ["b"])
    found = batch_rows(nameServers=servers.name_servers, topicPattern=f"{topic}.*")
    assert sorted(values(found)) == ["a", "b"]
    assigned = {f"{topic}-b": {servers.broker.settings.broker_name: [0]}}
    assert values(batch_rows(nameServers=servers.name_servers, assign=assigned)) == ["b"]


def test_columns_are_chosen(servers: ThreadedServers, topic: str) -> None:
    """Only the columns that are asked for are made, in their order."""
    send(servers, topic, ["a"])
    (row,) = batch_rows(**of(servers, topic, columns="offset,value,storeSize"))
    assert list(row) == ["offset", "value", "storeSize"]
    with pytest.raises(OptionsError, match="no column colour"):
        batch_rows(**of(servers, topic, columns="colour"))


def test_a_stream_reads_each_record_once(servers: ThreadedServers, topic: str) -> None:
    """Batches follow each other without gap or double, over a restart, and read the same again."""
    send(servers, topic, numbers(0, 5))
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest"))
    assert values(query.next()) == numbers(0, 5)
    assert query.next() is None
    send(servers, topic, numbers(5, 5))
    query.restart()
    assert values(query.next()) == numbers(5, 5)
    send(servers, topic, numbers(10, 5))
    assert values(query.rows(*query.batches[1])) == numbers(5, 5)


def test_a_stream_begins_at_the_end_by_default(servers: ThreadedServers, topic: str) -> None:
    """A stream begins with what comes after its start."""
    send(servers, topic, numbers(0, 5))
    query = StreamQuery(**of(servers, topic))
    send(servers, topic, ["new"])
    assert values(query.next()) == ["new"]


def test_a_trigger_is_limited(servers: ThreadedServers, topic: str) -> None:
    """maxOffsetsPerTrigger bounds a batch, over queues in proportion to what they have."""
    send(servers, topic, numbers(0, 30))
    send(servers, topic, numbers(100, 10), queue=1)
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest", maxOffsetsPerTrigger=8))
    assert values(query.next()) == [*numbers(0, 6), *numbers(100, 2)]
    assert len(query.available_now()) == 32


def test_a_trigger_waits_for_enough(servers: ThreadedServers, topic: str) -> None:
    """minOffsetsPerTrigger holds a batch back until there is enough, or maxTriggerDelay has passed; the first
    batch does not wait."""
    send(servers, topic, numbers(0, 3))
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest", minOffsetsPerTrigger=10))
    assert values(query.next()) == numbers(0, 3)
    send(servers, topic, numbers(3, 5))
    assert query.next() is None
    send(servers, topic, numbers(8, 5))
    assert values(query.next()) == numbers(3, 10)
    query.restart(maxTriggerDelay="1ms")
    send(servers, topic, ["13"])
    assert values(query.next()) == ["13"]
    send(servers, topic, ["14"])
    assert values(until(query.next)) == ["14"]


def until(ask: Callable[[], Rows | None]) -> Rows:
    """The first batch that there is."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if (rows := ask()) is not None:
            return rows
    raise AssertionError("no batch within 10 s")


def test_keys_may_be_missing(servers: ThreadedServers, topic: str) -> None:
    """A message without keys has a null key."""
    send(servers, topic, ["x"], TAGS="t")
    (row,) = batch_rows(**of(servers, topic))
    assert (row["key"], row["tags"], row["value"]) == (None, "t", b"x")


def test_compressed_bodies_are_opened(servers: ThreadedServers, topic: str) -> None:
    """`value` is what the producer gave, also where it compressed the body."""

    async def work() -> None:
        async with connected(servers.broker.port) as connection:
            reply = await Client(connection).send(topic, zlib.compress(b"x" * 5000), f=1)
            assert reply.code == 0, reply.remark

    servers.run(work())
    send(servers, topic, ["plain"])
    assert values(batch_rows(**of(servers, topic))) == ["x" * 5000, "plain"]


def test_times_need_a_record_or_a_strategy(servers: ThreadedServers, topic: str) -> None:
    """A starting time behind all records of a queue is an error; startingOffsetsByTimestampStrategy=latest
    begins there at the end. An ending time may lie behind all records."""
    send(servers, topic, numbers(0, 3))
    late = int(time.time() * 1000) + 60_000
    with pytest.raises(OptionsError, match="no record from their starting time on"):
        StreamQuery(**of(servers, topic, startingTimestamp=late))
    query = StreamQuery(
        **of(servers, topic, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    )
    send(servers, topic, ["new"])
    assert values(query.next()) == ["new"]
    times = {topic: {servers.broker.settings.broker_name: {"0": late, "1": 0}}}
    assert len(batch_rows(**of(servers, topic, endingOffsetsByTimestamp=times))) == 4


def test_available_now_ends_where_it_began(servers: ThreadedServers, topic: str) -> None:
    """What comes while the query runs is left for the next one."""
    send(servers, topic, numbers(0, 6))
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest", maxOffsetsPerTrigger=4))
    query._reader.prepareForTriggerAvailableNow()
    assert len(query.next() or []) == 4
    send(servers, topic, numbers(6, 6))
    assert values(query.next()) == numbers(4, 2)
    assert query.next() is None


def test_new_queues_are_read_from_their_beginning(servers: ThreadedServers, topic: str) -> None:
    """A queue that is added to the topic while a stream runs is read whole."""
    query = StreamQuery(**of(servers, topic))
    servers.create_topic(topic, 4)
    send(servers, topic, numbers(0, 3), queue=3)
    rows = query.next() or []
    assert values(rows) == numbers(0, 3)
    assert rows[0]["partition"] == 3
    assert values(query.rows(*query.batches[0])) == numbers(0, 3)


def test_new_topics_of_a_pattern_are_read(servers: ThreadedServers, topic: str) -> None:
    """A topic that is made while a stream runs belongs to it if its name fits."""
    query = StreamQuery(nameServers=servers.name_servers, topicPattern=f"{topic}x.*")
    assert query.next() is None
    servers.create_topic(f"{topic}x1", 1)
    send(servers, f"{topic}x1", ["a"])
    assert values(query.next()) == ["a"]


@pytest.mark.parametrize("later", [2, 5, 9], ids=["shorter", "as-long", "longer"])
def test_a_topic_that_is_made_again_is_noticed(servers: ThreadedServers, topic: str, later: int) -> None:
    """A topic that was deleted and made again fails a stream, however long it has grown; with
    failOnDataLoss=false the stream reads all of the new one."""
    send(servers, topic, numbers(0, 5))
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest"))
    assert len(query.next() or []) == 5
    delete(servers, topic)
    servers.create_topic(topic, 2)
    send(servers, topic, numbers(100, later))
    if later == 5:
        assert query.next() is None  # nothing says so before the next record
        send(servers, topic, ["105"])
    with pytest.raises(DataLost, match="deleted and created again"):
        query.next()
    query.restart(failOnDataLoss=False)
    assert values(query.next()) == numbers(100, later + (later == 5))
    assert query.next() is None


def test_a_topic_that_is_deleted_fails_a_stream(servers: ThreadedServers, topic: str) -> None:
    """A stream does not go on in silence without its topic."""
    send(servers, topic, numbers(0, 5))
    query = StreamQuery(**of(servers, topic))
    delete(servers, topic)
    with pytest.raises(DataLost, match="does not exist any more"):
        query.next()


def test_progress_is_seen_in_a_group(servers: ThreadedServers, topic: str) -> None:
    """groupId shows how far a query is, and startingOffsets=committed goes on there."""
    send(servers, topic, numbers(0, 5))
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest", groupId="lake"))

    async def lag() -> int:
        async with Admin(namesrv=servers.name_servers) as admin:
            return sum(each.lag for each in await admin.consume_progress("lake", topic))

    query.next()
    assert (query.next(), servers.run(lag())) == (
        None,
        0,
    )  # though Spark commits the last batch with the next one
    send(servers, topic, numbers(5, 2))
    assert servers.run(lag()) == 2
    again = StreamQuery(**of(servers, topic, startingOffsets="committed", groupId="lake"))
    assert values(again.next()) == numbers(5, 2)


def test_progress_that_cannot_be_stored_delays_no_batch(
    servers: ThreadedServers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once and not again in each batch; the query goes on."""
    tried = []

    async def refused(_: brokers.Questions, group: str, offsets: object) -> None:
        tried.append(group)
        raise BrokerUnreachable("broker:1", "it is away")

    monkeypatch.setattr(brokers.Questions, "commit", refused)
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest", groupId="lake"))
    for number in range(3):
        send(servers, topic, numbers(number, 1))
        assert values(query.next()) == numbers(number, 1)
    assert tried == ["lake"]


def test_offsets_are_json_that_people_can_read(servers: ThreadedServers, topic: str) -> None:
    """A checkpoint names topic, broker and queue, and no address."""
    send(servers, topic, numbers(0, 2))
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest"))
    query.next()
    broker = servers.broker.settings.broker_name
    assert json.loads(query.offset)[topic] == {broker: {"0": 2, "1": 0}}


def test_brokers_come_and_go(servers: ThreadedServers, topic: str, tmp_path: Path) -> None:
    """A broker that is added is read from its beginning; while it is away the others are read, and what it
    has is read when it is back."""
    send(servers, topic, ["a0"])
    query = StreamQuery(**of(servers, topic, startingOffsets="earliest"))
    assert values(query.next()) == ["a0"]
    with another_broker(servers, tmp_path) as broker:
        servers.run(fill(broker, topic, ["b0", "b1"]))
        rows = query.next() or []
        assert sorted(values(rows)) == ["b0", "b1"]
        assert {(row["brokerName"], row["partition"]) for row in rows} == {("broker-z", 2)}
        servers.run(fill(broker, topic, ["b2"]))
    send(servers, topic, ["a1"])
    assert values(query.next()) == ["a1"]
    assert query.next() is None
    with another_broker(servers, tmp_path):
        assert values(until(query.next)) == ["b2"]


@contextmanager
def another_broker(servers: ThreadedServers, folder: Path) -> Iterator[Broker]:
    """A second broker of the same name server."""
    stack = AsyncExitStack()
    starting = running_broker(folder, namesrv_addr=servers.name_servers, broker_name="broker-z")
    try:
        yield servers.run(stack.enter_async_context(starting))
    finally:
        servers.run(stack.aclose())


async def fill(broker: Broker, topic: str, bodies: list[str]) -> None:
    """Make the topic there, and send."""
    async with connected(broker.port) as connection:
        client = Client(connection)
        await client.create_topic(topic, 1)
        for body in bodies:
            assert (await client.send(topic, body.encode())).code == 0


def test_an_expired_store_is_data_lost(tmp_path: Path) -> None:
    """Records that expired before a stream read them fail it; without failOnDataLoss the rest is read."""
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 64 * 1024, "auto_create_topic_enable": False}
    with threaded_servers(tmp_path, **settings) as servers:
        servers.create_topic("old", 1)
        query = StreamQuery(**of(servers, "old", startingOffsets="earliest"))
        send(servers, "old", ["x" * 8000] * 30)
        expire(servers)
        with pytest.raises(DataLost, match="expired"):
            query.next()
        query.restart(failOnDataLoss=False)
        rows = query.next() or []
        assert 0 < len(rows) < 30
        assert [row["offset"] for row in rows] == list(range(30 - len(rows), 30))
        client_of(servers.name_servers).close()


def expire(servers: ThreadedServers) -> None:
    """Let the broker delete the oldest files of its log, as if they were ten days old."""
    for file in (Path(servers.broker.settings.store_path_root_dir) / "commitlog").iterdir():
        os.utime(file, (time.time() - 864_000, time.time() - 864_000))

    async def work() -> None:
        async with connected(servers.broker.port) as connection:
            assert (await Client(connection).call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0

    servers.run(work())
