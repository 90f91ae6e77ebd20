"""Every table format of the lake export, on disk and in object storage: each message once, whatever dies."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from brokerset_client.messages import Message
from brokerset_client.producer import Producer
from brokerset_rig.lake_tables import FORMATS, POINTS, LakeAt, killed_driver
from brokerset_rig.object_storage import ObjectStorage, object_storage
from brokerset_rig.postgresql import postgresql
from brokerset_rig.schema_registry import schema_registry
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_spark.commands.table import main
from brokerset_spark.jobs.lake import parquet_table
from brokerset_spark.jobs.lake.catalog import CatalogOptions
from brokerset_spark.jobs.lake.exporting import LakeOptions, LakeReport, export_pass
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner, Result, Row
from brokerset_spark.topics.client_thread import client_of

PLACES = ("folder", "bucket")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServers]:
    with threaded_servers(tmp_path_factory.mktemp("lake")) as found:
        yield found
        client_of(found.name_servers).close()


@pytest.fixture(scope="module")
def bucket() -> Iterator[ObjectStorage]:
    with object_storage() as found:
        yield found


QUICK = ("parquet", "iceberg")
"""Formats that are tried in each run; Delta has tests of its own."""


def places() -> Iterator[Any]:
    """Every format in every place."""
    for kind in FORMATS:
        for place in PLACES:
            marks = () if kind in QUICK and place == "folder" else pytest.mark.long
            yield pytest.param((kind, place), marks=marks, id=f"{kind}-{place}")


def deaths() -> Iterator[Any]:
    """Every format at every point; those in object storage take long."""
    for kind in FORMATS:
        for place in PLACES:
            for point in POINTS:
                marks = pytest.mark.long if place == "folder" or point == "files" else pytest.mark.slow
                yield pytest.param((kind, place), point, marks=marks, id=f"{kind}-{place}-{point}")


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeAt:
    kind, place = request.param
    name = re.sub(r"\W+", "-", request.node.name)
    if place == "folder":
        return LakeAt.make(kind, str(tmp_path / "lake"), tmp_path)
    storage: ObjectStorage = request.getfixturevalue("bucket")
    return LakeAt.make(kind, storage.url(name), tmp_path)


@pytest.fixture(params=QUICK)
def local(request: pytest.FixtureRequest, tmp_path: Path) -> LakeAt:
    return LakeAt.make(request.param, str(tmp_path / "lake"), tmp_path)


def send(servers: ThreadedServers, topic: str, count: int, first: int = 0) -> None:
    async def run() -> None:
        async with Producer("test", namesrv=servers.name_servers) as producer:
            for number in range(first, first + count):
                await producer.send(Message(topic=topic, body=b"x" * (number + 1), keys=[str(number)]))

    servers.run(run())


def export(servers: ThreadedServers, lake: LakeAt, topic: str, **more: Any) -> LakeReport:
    options = LakeOptions(name_servers=servers.name_servers, topics=(topic,), **lake.options(), **more)
    return export_pass(LocalRunner(), options)


def keys(lake: LakeAt) -> list[int]:
    return sorted(int(each["keys"]) for each in lake.rows())


def topic_of(lake: LakeAt, name: str) -> str:
    return f"{name}-{lake.kind}-{'bucket' if '://' in lake.url else 'folder'}"


@pytest.mark.parametrize("lake", [*places()], indirect=True)
def test_passes_add_what_is_new_and_compaction_changes_no_row(servers: ThreadedServers, lake: LakeAt) -> None:
    """A pass, one without news, a third one, and one that makes one file of each day's small ones."""
    topic = topic_of(lake, "passes")
    servers.create_topic(topic, 2)
    send(servers, topic, 10)
    first = export(servers, lake, topic)
    second = export(servers, lake, topic)
    send(servers, topic, 5, 10)
    third = export(servers, lake, topic, messages_per_task=2)
    small = len(lake.data_files())
    before = lake.rows()
    compacted = export(servers, lake, topic, compact_bytes=1 << 20)

    assert [each.messages for each in (first, second, third, compacted)] == [10, 0, 5, 0]
    assert keys(lake) == list(range(15))
    assert all(len(each["body"]) == int(each["keys"]) + 1 for each in lake.rows())
    assert {each["topic"] for each in lake.rows()} == {topic}
    by_key = sorted(before, key=lambda row: int(row["keys"]))
    assert sorted(lake.rows(), key=lambda row: int(row["keys"])) == by_key
    assert small > 2
    assert compacted.compaction
    assert [each["event"] for each in lake.rows("control")] == ["queue-added"] * 2
    send(servers, topic, 3, 15)
    assert export(servers, lake, topic, vacuum_hours=1).messages == 3
    assert keys(lake) == list(range(18))


@pytest.mark.parametrize(("lake", "point"), [*deaths()], indirect=["lake"])
def test_a_driver_that_is_killed_leaves_each_message_once(
    servers: ThreadedServers, lake: LakeAt, point: str
) -> None:
    """Killed by SIGKILL between files and commit, between commit and control rows, and before it says so."""
    topic = topic_of(lake, f"killed-{point}")
    servers.create_topic(topic, 2)
    send(servers, topic, 4)
    export(servers, lake, topic)
    send(servers, topic, 6, 4)

    killed_driver(point, ["--name-servers", servers.name_servers, "--topic", topic, *lake.arguments()])
    left = keys(lake)
    files = lake.data_files()
    report = export(servers, lake, topic)

    assert left == list(range(4 if point == "files" else 10))
    assert report.messages == (6 if point == "files" else 0)
    assert keys(lake) == list(range(10))
    assert [each["event"] for each in lake.rows("control")] == ["queue-added"] * 2
    if lake.kind == "parquet" and point == "files":
        assert len(lake.data_files()) == len(files), "files of the dead pass are gone"
    send(servers, topic, 1, 10)
    assert export(servers, lake, topic).messages == 1
    assert keys(lake) == list(range(11))


class Between:
    """Does something between the tasks of a pass and its commit."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what = what

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        yield from LocalRunner().run(task, rows, reducer)
        self._what()


def test_of_two_exports_at_once_one_commits(servers: ThreadedServers, local: LakeAt) -> None:
    """Also without Delta's transactions the second is refused, and the next pass goes on."""
    topic = topic_of(local, "raced")
    servers.create_topic(topic, 2)
    send(servers, topic, 4)
    options = LakeOptions(name_servers=servers.name_servers, topics=(topic,), **local.options())
    with pytest.raises(JobFailed, match="not committed"):
        export_pass(Between(lambda: export_pass(LocalRunner(), options)), options)

    assert keys(local) == list(range(4))
    send(servers, topic, 1, 4)
    assert export(servers, local, topic).messages == 1
    assert keys(local) == list(range(5))


def test_an_iceberg_commit_of_somebody_else_refuses_no_pass(servers: ThreadedServers, tmp_path: Path) -> None:
    """A table that another engine changes at the same time: the pass is committed on top of that."""
    from pyiceberg.catalog import load_catalog

    lake = LakeAt.make("iceberg", str(tmp_path / "lake"), tmp_path)
    topic = topic_of(lake, "beside")
    servers.create_topic(topic, 2)
    send(servers, topic, 4)
    export(servers, lake, topic)
    send(servers, topic, 2, 4)
    assert lake.catalog is not None
    table = load_catalog("tests", **lake.catalog.properties).load_table(lake.catalog.table)
    options = LakeOptions(name_servers=servers.name_servers, topics=(topic,), **lake.options())

    report = export_pass(Between(lambda: table.delete("keys = '0'")), options)

    assert (report.messages, report.number) == (2, 2)
    assert keys(lake) == list(range(1, 6))
    assert export(servers, lake, topic).messages == 0
    table.refresh()
    history = [each.snapshot_id for each in table.history()]
    table.manage_snapshots().rollback_to_snapshot(history[0]).commit()
    assert export(servers, lake, topic).messages == 2, "offsets go back with the data"
    assert keys(lake) == list(range(6))


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_an_error_that_says_so(servers: ThreadedServers, tmp_path: Path, kind: str) -> None:
    """A process that may write no file of more than some bytes: nothing of its pass counts, the next does."""
    lake = LakeAt.make(kind, str(tmp_path / "lake"), tmp_path)
    topic = topic_of(lake, "full")
    servers.create_topic(topic, 1)
    send(servers, topic, 3)
    export(servers, lake, topic)
    send(servers, topic, 400, 3)
    before = lake.data_files()
    command = [sys.executable, "-m", "brokerset_spark", "lake", "--name-servers", servers.name_servers]
    command += ["--topic", topic, *lake.arguments(), "--compression", "none"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))

    ended = subprocess.run(command, preexec_fn=limited, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 2, ended.stderr
    assert "cannot be written: " in ended.stderr
    assert "File too large" in ended.stderr
    assert "make room there" in ended.stderr
    assert keys(lake) == list(range(3))
    assert lake.data_files() == before, "what was written of it is deleted"
    assert export(servers, lake, topic).messages == 400
    assert keys(lake) == list(range(403))


@pytest.mark.long
def test_the_log_of_parquet_commits_stays_short(
    servers: ThreadedServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint has what all manifests so far came to; older ones than the last but one are deleted."""
    monkeypatch.setattr(parquet_table, "CHECKPOINT_EACH", 2)
    lake = LakeAt.make("parquet", str(tmp_path / "lake"), tmp_path)
    topic = topic_of(lake, "log")
    servers.create_topic(topic, 1)
    for number in range(7):
        send(servers, topic, 1, number)
        export(servers, lake, topic)

    names = sorted(path.name.lstrip("0") for path in (tmp_path / "lake" / "commits").glob("*.*"))
    assert names == ["4.checkpoint", "5.json", "6.checkpoint", "6.json", "7.json"]
    assert keys(lake) == list(range(7))
    assert list((tmp_path / "lake" / "commits" / "begun").iterdir()) == []
    assert [each["event"] for each in lake.rows("control")] == ["queue-added"]


@pytest.mark.parametrize(
    "kind",
    ["parquet", *(pytest.param(kind, marks=pytest.mark.long) for kind in FORMATS if kind != "parquet")],
)
def test_avro_bodies_are_columns_and_what_is_none_is_counted(
    servers: ThreadedServers, tmp_path: Path, kind: str
) -> None:
    """By a registry over HTTP: two versions of a schema, a number that nobody has, bytes of something else.

    The command goes on, keeps the bodies, and says in the control table how many those are.
    """
    lake = LakeAt.make(kind, str(tmp_path / "lake"), tmp_path)
    topic = topic_of(lake, "avro")
    servers.create_topic(topic, 1)
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    tags = {"name": "labels", "type": {"type": "array", "items": "string"}, "default": []}
    new = {**old, "fields": [*old["fields"], tags]}
    report = tmp_path / "report.json"
    with schema_registry() as registry:
        numbers = [registry.add(f"{topic}-value", each) for each in (old, new)]
        bodies = [
            avro_body(old, {"id": 1}, numbers[0]),
            avro_body(new, {"id": 2, "labels": ["a", "b"]}, numbers[1]),
            avro_body(old, {"id": 3}, 99),
            b"something else",
        ]
        servers.run(send_bodies(servers.name_servers, topic, *bodies))
        command = ["lake", "--name-servers", servers.name_servers, "--topic", topic, *lake.arguments()]
        command += ["--schema", "avro", "--registry", registry.url, "--report", str(report)]
        with pytest.raises(SystemExit) as ended:
            main(command, standalone_mode=False)
        asked = registry.asked

    found = sorted(lake.rows(), key=lambda row: int(row["queueOffset"]))
    (misfit,) = [each for each in lake.rows("control") if each["event"] == "avro-misfit"]
    assert ended.value.code == 0
    assert [each["id"] for each in found] == [1, 2, None, None]
    assert [each["labels"] for each in found] == [[], ["a", "b"], None, None]
    assert [each["body"] for each in found] == bodies
    assert found[2]["avroError"] == "the registry has no schema 99"
    assert [each["avroError"] is None for each in found] == [True, True, False, False]
    assert (misfit["startOffset"], misfit["endOffset"]) == (2, 4)
    assert misfit["detail"].startswith("2 messages cannot be read as Avro")
    assert json.loads(report.read_bytes())["findings"][0]["code"] == "avro-misfit"
    assert max(asked.values()) == 1, "each number is asked once"


def avro_body(schema: Any, value: Any, number: int) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return b"\x00" + number.to_bytes(4, "big") + stream.getvalue()


async def send_bodies(name_servers: str, topic: str, *bodies: bytes) -> None:
    async with Producer("test", namesrv=name_servers) as producer:
        for body in bodies:
            await producer.send(Message(topic=topic, body=body))


@pytest.mark.long
def test_a_catalog_in_postgresql_has_its_address_from_the_environment(
    servers: ThreadedServers, tmp_path: Path
) -> None:
    """An address may have a password, so no option has it; a table that lies elsewhere is refused."""
    topic = "catalogued"
    servers.create_topic(topic, 1)
    send(servers, topic, 3)
    command = [sys.executable, "-m", "brokerset_spark", "lake", "--name-servers", servers.name_servers]
    command += ["--topic", topic, "--format", "iceberg", "--catalog", "main-one", "--table", "shop.orders"]
    with postgresql() as address:
        variables = {"PYICEBERG_CATALOG__MAIN_ONE__URI": address, "PYICEBERG_CATALOG__MAIN_ONE__TYPE": "sql"}

        def run(target: str) -> subprocess.CompletedProcess[str]:
            given = [*command, "--target", str(tmp_path / target)]
            return subprocess.run(
                given, env=os.environ | variables, capture_output=True, text=True, timeout=60
            )

        ended = [run("lake"), run("lake"), run("elsewhere")]
        properties = {"type": "sql", "uri": address}
        found = keys(
            LakeAt("iceberg", str(tmp_path / "lake"), CatalogOptions("main-one", properties, "shop.orders"))
        )

    assert [each.returncode for each in ended] == [0, 0, 2], ended
    assert "table shop.orders lies in" in ended[2].stderr
    assert found == list(range(3))
