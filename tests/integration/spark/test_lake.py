"""The lake export on a real broker, into tables on disk; tasks run without Spark, once on Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click import ClickException
from deltalake import DeltaTable

from brokerset_client.admin import Admin
from brokerset_client.messages import Message
from brokerset_client.producer import Producer
from brokerset_rig.lake_tables import FORMATS, LakeAt
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_spark.commands.table import main
from brokerset_spark.jobs.lake import delta_table, exporting
from brokerset_spark.jobs.lake.exporting import LakeOptions, LakeReport, export_pass
from brokerset_spark.jobs.lake.files import TABLE_SCHEMA
from brokerset_spark.jobs.lake.frames import read_control, read_messages
from brokerset_spark.jobs.lake.json_columns import parse_columns
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner, Result, Row, SparkRunner
from brokerset_spark.topics.client_thread import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    with threaded_servers(tmp_path_factory.mktemp("lake")) as found:
        yield found
        client_of(found.name_servers).close()


def send(servers: ThreadedServers, topic: str, count: int, first: int = 0) -> None:
    async def run() -> None:
        async with Producer("test", namesrv=servers.name_servers) as producer:
            for number in range(first, first + count):
                body = f"{topic} {number} ".encode() + b"x" * (5_000 if number % 10 == 0 else 10)
                await producer.send(
                    Message(topic=topic, body=body, keys=[str(number)], properties={"n": "1"})
                )

    servers.run(run())


def options(servers: ThreadedServers, target: Path, *topics: str, **more: Any) -> LakeOptions:
    return LakeOptions(name_servers=servers.name_servers, target=str(target), topics=topics, **more)


def rows(target: Path, table: str = "messages") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(target / table)).to_pyarrow_table().to_pylist()
    return found


def numbers(target: Path, topic: str) -> list[int]:
    found = [each for each in rows(target) if each["topic"] == topic]
    assert all(each["body"].decode().split()[1] == each["keys"] for each in found)
    return sorted(int(each["keys"]) for each in found)


def test_each_pass_adds_what_is_new(servers: ThreadedServers, tmp_path: Path) -> None:
    """Rows have what the messages have; a pass without news commits nothing; compaction changes no row."""
    servers.create_topic("orders")
    wanted = options(servers, tmp_path / "lake", pattern="orders|later")
    send(servers, "orders", 30)

    reports = [export_pass(LocalRunner(), wanted)]
    reports.append(export_pass(LocalRunner(), wanted))
    send(servers, "orders", 20, 30)
    servers.create_topic("later", 1)
    send(servers, "later", 3)
    reports.append(export_pass(LocalRunner(), options(
        servers, tmp_path / "lake", pattern="orders|later", compact_bytes=1 << 20, messages_per_task=7
    )))  # fmt: skip

    assert [(each.number, each.messages) for each in reports] == [(1, 30), (0, 0), (2, 23)]
    assert numbers(tmp_path / "lake", "orders") == list(range(50))
    assert numbers(tmp_path / "lake", "later") == [0, 1, 2]
    added = [each["topic"] for each in rows(tmp_path / "lake", "control") if each["event"] == "queue-added"]
    assert sorted(added) == ["later"] + ["orders"] * 4
    first = min(rows(tmp_path / "lake"), key=lambda each: int(each["keys"]))
    assert dict(first["properties"])["n"] == "1"
    assert (first["queueOffset"], first["brokerName"]) == (0, servers.broker.settings.broker_name)


def test_fields_of_json_are_columns(servers: ThreadedServers, tmp_path: Path) -> None:
    """A later pass may add columns; what is no such JSON is there with its body, null, and a control row."""
    servers.create_topic("documents", 1)

    def export(columns: str) -> None:
        wanted = parse_columns(columns, TABLE_SCHEMA.names)
        export_pass(LocalRunner(), options(servers, tmp_path / "lake", "documents", json_columns=wanted))

    servers.run(send_bodies(servers.name_servers, "documents", b'{"id": 1, "name": "a"}', b"no json"))
    export("id bigint")
    servers.run(send_bodies(servers.name_servers, "documents", b'{"id": 2, "name": {"b": 1}}'))
    export("id bigint, name string")
    with pytest.raises(JobFailed, match="column id of the table is int64"):
        export("id string")

    found = [(each["id"], each["name"], each["body"][:2]) for each in rows(tmp_path / "lake")]
    assert sorted(found, key=str) == [(1, None, b'{"'), (2, '{"b":1}', b'{"'), (None, None, b"no")]
    (misfit,) = [each for each in rows(tmp_path / "lake", "control") if each["event"] == "json-misfit"]
    assert (misfit["startOffset"], misfit["endOffset"]) == (1, 2)


async def send_bodies(name_servers: str, topic: str, *bodies: bytes) -> None:
    async with Producer("test", namesrv=name_servers) as producer:
        for body in bodies:
            await producer.send(Message(topic=topic, body=body))


class Ending:
    """Ends a pass after its tasks have written their files."""

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        yield from LocalRunner().run(task, rows, reducer)
        raise JobFailed("the driver died", "")


def test_a_pass_that_dies_adds_nothing(
    servers: ThreadedServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without a commit are in no table, whenever it dies; control rows come with the next pass."""
    servers.create_topic("dying", 2)
    wanted = options(servers, tmp_path / "lake", "dying")
    send(servers, "dying", 10)

    with pytest.raises(JobFailed, match="died"):
        export_pass(Ending(), wanted)
    assert rows(tmp_path / "lake") == []
    with monkeypatch.context() as patched:
        broken = lambda *_: (_ for _ in ()).throw(OSError("gone"))  # noqa: E731
        patched.setattr(delta_table.DeltaLake, "_write_control", broken)
        with pytest.raises(JobFailed, match="gone"):
            export_pass(LocalRunner(), wanted)
    assert rows(tmp_path / "lake", "control") == []
    report = export_pass(LocalRunner(), wanted)

    assert report.messages == 0
    assert numbers(tmp_path / "lake", "dying") == list(range(10))
    assert [each["event"] for each in rows(tmp_path / "lake", "control")] == ["queue-added"] * 2


class Between:
    """Runs another export between the tasks of this one and its commit."""

    def __init__(self, other: LakeOptions) -> None:
        self.other = other
        self.report: LakeReport | None = None

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        yield from LocalRunner().run(task, rows, reducer)
        self.report = export_pass(LocalRunner(), self.other)


def test_of_two_exports_at_once_one_commits(servers: ThreadedServers, tmp_path: Path) -> None:
    """The second commit is refused, so no message is in the table twice."""
    servers.create_topic("raced", 2)
    wanted = options(servers, tmp_path / "lake", "raced")
    send(servers, "raced", 10)

    between = Between(wanted)
    with pytest.raises(JobFailed, match="not committed"):
        export_pass(between, wanted)

    assert between.report is not None
    assert between.report.messages == 10
    assert numbers(tmp_path / "lake", "raced") == list(range(10))


class MadeAgain:
    """Deletes the topic between the plan of a pass and its tasks, makes it again, and fills it."""

    def __init__(self, servers: ThreadedServers, topic: str, count: int) -> None:
        self.servers, self.topic, self.count = servers, topic, count

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        if self.count:
            self.servers.run(delete_topic(self.servers.name_servers, self.topic))
            self.servers.create_topic(self.topic, 1)
            send(self.servers, self.topic, self.count, 1000)
            self.count = 0
        yield from LocalRunner().run(task, rows, reducer)


async def delete_topic(name_servers: str, topic: str) -> None:
    async with Admin(namesrv=name_servers) as admin:
        await admin.delete_topic(topic)


def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    servers: ThreadedServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that happens between the plan of a pass and its tasks, and the new topic has grown past the
    old one's end: its first messages are not missing, and a control row says so."""
    monkeypatch.setattr(exporting, "BELIEVE_SECONDS", 0.2)
    servers.create_topic("again", 1)
    wanted = options(servers, tmp_path / "lake", "again", messages_per_task=4)
    send(servers, "again", 5)
    export_pass(LocalRunner(), wanted)
    send(servers, "again", 5, 5)

    report = export_pass(MadeAgain(servers, "again", 12), wanted)

    assert report.messages == 12
    assert numbers(tmp_path / "lake", "again") == [*range(5), *range(1000, 1012)]
    events = [
        (each["event"], each["startOffset"], each["endOffset"]) for each in rows(tmp_path / "lake", "control")
    ]
    assert ("recreated", 0, 12) in events
    assert export_pass(LocalRunner(), wanted).messages == 0


def test_the_command_says_what_it_did(
    servers: ThreadedServers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lake` ends with 0, and its report counts rows; options that cannot be end with another code."""
    servers.create_topic("commanded", 2)
    send(servers, "commanded", 10)
    report = tmp_path / "report.json"
    common = ["lake", "--name-servers", servers.name_servers, "--target", str(tmp_path / "lake")]

    with pytest.raises(SystemExit) as ended:
        main([*common, "--topic", "commanded", "--report", str(report)], standalone_mode=False)

    assert ended.value.code == 0
    said = json.loads(report.read_bytes())
    assert (said["counters"]["export.rows"], said["counters"]["export.lag"]) == (10, 0)
    with pytest.raises(ClickException, match="no topics"):
        main(common, standalone_mode=False)


@pytest.mark.parametrize(
    "kind", ["delta", *(pytest.param(each, marks=pytest.mark.long) for each in FORMATS[1:])]
)
def test_executors_of_spark_write_the_files(
    spark: SparkSession, servers: ThreadedServers, tmp_path: Path, kind: str
) -> None:
    """On Spark the same tasks run on executors, and a session without a connector reads the tables."""
    sparked, retries = f"sparked-{kind}", f"%RETRY%{kind}"
    servers.create_topic(sparked, 4)
    servers.create_topic(retries, 1)
    send(servers, sparked, 100)
    send(servers, retries, 2)
    lake = LakeAt.make(kind, str(tmp_path / "lake"), tmp_path)
    wanted = LakeOptions(
        name_servers=servers.name_servers, topics=(sparked, retries), messages_per_task=40, **lake.options()
    )

    report = export_pass(SparkRunner(spark, 2), wanted)

    messages = read_messages(spark, lake.url, format=kind, catalog=lake.catalog)
    control = read_control(spark, lake.url, format=kind, catalog=lake.catalog)
    assert (report.messages, len(report.control)) == (102, 5)
    assert sorted(int(each["keys"]) for each in lake.rows() if each["topic"] == sparked) == list(range(100))
    assert {each["topic"]: each["count"] for each in messages.groupBy("topic").count().collect()} == {
        sparked: 100,
        retries: 2,
    }
    assert messages.where("day is null or length(body) = 0").count() == 0
    assert control.where("event = 'queue-added'").count() == 5
