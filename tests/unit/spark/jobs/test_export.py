"""Exports: every message is there, once, whatever happens on the way, and nothing else."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from brokerset_formats.errors import FormatError
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import (
    BLANK,
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    Record,
    SysFlag,
    encode_record,
    magic_for,
)
from brokerset_rig.made_stores import message, unpacked_once
from brokerset_rig.replica_stores import Log, write_replica
from brokerset_runtime.files import sync_folder, write_atomically
from brokerset_spark.jobs.export import partitions, staging, writing
from brokerset_spark.jobs.export.exporting import export
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.report import JobFailed, Level, NoInput, Report
from brokerset_spark.jobs.running import LocalRunner, Result, Row
from brokerset_spark.json_values import from_value

pytestmark = pytest.mark.long

DAY_MS = 86_400_000
FILE_SIZE = 32_768
FIRST_MS = 1_790_000_000_000 // DAY_MS * DAY_MS
EVERYTHING = ExportOptions(system_topics=True, decompress=True, split_size=65_536)


class Made:
    """A store made record by record."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = bytearray()
        self.records: list[Record] = []
        self.queues: dict[tuple[str, int], int] = {}

    def append(
        self,
        topic: str = "orders",
        body: bytes = b"body",
        *,
        time_ms: int = FIRST_MS,
        sys_flag: int = 0,
        properties: dict[str, str] | None = None,
    ) -> Record:
        queue_offset = self.queues.get((topic, 0), 0)
        self.queues[topic, 0] = queue_offset + 1
        texts = {"KEYS": f"key-{len(self.records)}", "TAGS": "a", "UNIQ_KEY": f"{len(self.records):032X}"}

        def record(offset: int) -> Record:
            return message(
                0, queue_offset=queue_offset, offset=offset, sys_flag=sys_flag, born_timestamp=time_ms - 5,
                store_timestamp=time_ms, body=body, topic=topic, magic=magic_for(topic.encode()),
                properties=encode_properties(texts if properties is None else properties),
            )  # fmt: skip

        room = FILE_SIZE - len(self.data) % FILE_SIZE
        if len(encode_record(record(0))) + BLANK_SIZE_MIN > room:
            self.data += BLANK.pack(room, MAGIC_BLANK) + bytes(room - BLANK.size)
        made = record(len(self.data))
        self.data += encode_record(made)
        self.records.append(made)
        return made

    def write(self, *, expired: int = 0) -> str:
        folder = self.root / "commitlog"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for base in range(expired * FILE_SIZE, max(len(self.data), 1), FILE_SIZE):
            (folder / f"{base:020d}").write_bytes(self.data[base : base + FILE_SIZE].ljust(FILE_SIZE, b"\0"))
        (self.root / "brokerIdentity").write_bytes(b"DefaultCluster#broker-a#1")
        return str(self.root)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A store of 5 files, two topics and three days."""
    store = Made(tmp_path / "store")
    for number in range(400):
        store.append(
            "orders" if number % 3 else "bills",
            bytes([number % 251]) * 250,
            time_ms=FIRST_MS + number * 500_000,
        )
    return store


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where exports go."""
    return tmp_path / "exports" / "today"


def run(store: str, target: Path, options: ExportOptions = EVERYTHING, **more: Any) -> Report:
    return export(LocalRunner(), store, target, options, **more)


def rows_of(target: Path) -> list[dict[str, Any]]:
    """All rows, by any reader's rules: the folder is a Parquet dataset."""
    if not list(target.rglob("*.parquet")):
        return []
    found: list[dict[str, Any]] = pq.read_table(target).to_pylist()
    return sorted(found, key=lambda row: row["commitLogOffset"])


def manifest_of(target: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((target / "_manifest.json").read_text())
    return found


def check(target: Path, records: Sequence[Record]) -> None:
    """The export has these messages, each once, and a manifest that is true."""
    rows = rows_of(target)
    assert [row["commitLogOffset"] for row in rows] == [record.offset for record in records]
    for row, record in zip(rows, records, strict=True):
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            record.topic,
            record.queue_id,
            record.queue_offset,
        )
        assert row["body"] == record.body
        assert row["storeTimestamp"].timestamp() * 1000 == record.store_timestamp
        assert row["date"] == datetime.fromtimestamp(record.store_timestamp / 1000, UTC).date().isoformat()
    manifest = manifest_of(target)
    files = {each["path"]: each for each in manifest["files"]}
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*.parquet")) == sorted(files)
    for path, facts in files.items():
        raw = (target / path).read_bytes()
        assert (len(raw), f"xxh3-128:{xxhash.xxh3_128_hexdigest(raw)}") == (facts["bytes"], facts["digest"])
        assert pq.read_metadata(target / path).num_rows == facts["rows"]
    assert manifest["counts"] == {
        "messages": len(records),
        "files": len(files),
        "bytes": sum(each["bytes"] for each in files.values()),
    }
    assert (target / "_SUCCESS").read_bytes() == b""
    assert not staging_of(target).exists()


def staging_of(target: Path) -> Path:
    return target.with_name(target.name + ".brokerset-staging")


# -- all of it --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks an archive of stores once."""
    return unpacked_once(tmp_path_factory)


@pytest.mark.parametrize(
    ("name", "broker"),
    [
        ("classic", "broker-0"),
        ("controller-mode", "broker-0"),
        ("controller-mode", "broker-1"),
        ("killed", "broker-0"),
        ("dledger", "broker-0"),
        ("dledger", "broker-2"),
        ("dledger-mixed", "broker-0"),
    ],
)
def test_everything_that_java_gave_out_is_exported(
    unpack: Callable[[str], Path], target: Path, name: str, broker: str
) -> None:
    """Bodies, keys, tags, properties, times and places are those that the Java broker told."""
    folder = unpack(name)

    report = run(str(folder / broker / "store"), target)

    rows = {
        (row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"]): row
        for row in rows_of(target)
    }
    assert report.clean
    assert report.counters["messages"] == len(rows)
    expected = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]
    assert len(expected) > 300
    for each in expected:
        row = rows[each["topic"], each["queueId"], each["queueOffset"], each["commitLogOffset"]]
        assert hashlib.sha256(row["body"]).hexdigest() == each["bodySha256"]
        properties = dict(row["properties"])
        assert {key: properties.get(key) for key in each["properties"]} == each["properties"]
        assert row["keys"] == each["properties"].get("KEYS")
        assert row["tags"] == each["properties"].get("TAGS")
        assert row["msgId"] == each["properties"].get("UNIQ_KEY")
        assert row["storeTimestamp"].timestamp() == pytest.approx(each["storeTimestamp"] / 1000, abs=1e-6)
        assert row["bornTimestamp"].timestamp() == pytest.approx(each["bornTimestamp"] / 1000, abs=1e-6)
        assert (row["storeSize"], row["bodyCRC"]) == (each["storeSize"], each["bodyCrc"])
        assert row["reconsumeTimes"] == each["reconsumeTimes"]
        assert row["sysFlag"] & ~SysFlag.COMPRESSED == each["sysFlag"]


def test_each_message_is_in_the_folder_of_its_topic_and_day(made: Made, target: Path) -> None:
    """Folders are topics and days of UTC; the manifest's counts and digests are right."""
    report = run(made.write(), target)

    check(target, made.records)
    assert {path.name for path in target.iterdir()} == {
        "topic=orders",
        "topic=bills",
        "_SUCCESS",
        "_manifest.json",
    }
    assert len(list((target / "topic=orders").iterdir())) == 3
    assert report.counters["messages"] == 400
    assert report.counters["topics"] == 2
    manifest = manifest_of(target)
    assert manifest["range"]["end"] == len(made.data)
    assert manifest["store"]["brokerName"] == "broker-a"


def test_one_file_can_be_read_without_us(made: Made, target: Path) -> None:
    """A file says what its topic and columns are, uses zstd, and has dictionaries where values repeat."""
    run(made.write(), target)

    file = pq.ParquetFile(next((target / "topic=bills").rglob("*.parquet")))
    told = file.schema_arrow.metadata
    assert told[b"brokerset.topic"] == b"bills"
    assert b"queueOffset: number of the message in its queue" in told[b"brokerset.columns"]
    columns = {
        file.metadata.row_group(0).column(number).path_in_schema: file.metadata.row_group(0).column(number)
        for number in range(file.metadata.num_columns)
    }
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["brokerName"].has_dictionary_page
    assert not columns["body"].has_dictionary_page
    assert file.schema_arrow.field("storeTimestamp").type == pa.timestamp("us", "UTC")
    assert "topic" not in file.schema_arrow.names


def test_workers_write_what_one_writes(made: Made, target: Path) -> None:
    """With several processes the files are the same, byte for byte."""
    store = made.write()
    run(store, target)
    other = target.with_name("other")

    export(LocalRunner(2), store, other, EVERYTHING)

    check(other, made.records)
    assert manifest_of(other)["files"] == manifest_of(target)["files"]


@pytest.mark.parametrize("split", [65_536, 10**9])
def test_small_limits_change_nothing(
    made: Made, target: Path, monkeypatch: pytest.MonkeyPatch, split: int
) -> None:
    """With one open file, tiny row groups and a tiny buffer all messages are still there once."""
    monkeypatch.setattr(partitions, "OPEN_FILES_MAX", 1)
    monkeypatch.setattr(partitions, "ROW_GROUP_BYTES", 6_000)
    monkeypatch.setattr(partitions, "BUFFERED_BYTES_MAX", 8_000)

    run(made.write(), target, ExportOptions(split_size=split))

    check(target, made.records)
    assert manifest_of(target)["counts"]["files"] > 6


# -- what is wanted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"topics": ("bills",)}, lambda record: record.topic == "bills"),
        ({"topic_pattern": "or.*"}, lambda record: record.topic == "orders"),
        ({"start_ms": FIRST_MS + DAY_MS}, lambda record: record.store_timestamp >= FIRST_MS + DAY_MS),
        ({"end_ms": FIRST_MS + DAY_MS}, lambda record: record.store_timestamp < FIRST_MS + DAY_MS),
        ({"start_offset": 40_000}, lambda record: record.offset >= 40_000),
        ({"end_offset": 40_000}, lambda record: record.offset < 40_000),
        ({"topics": ("none",)}, lambda record: False),
        ({"start_ms": FIRST_MS * 2}, lambda record: False),
    ],
)
def test_only_what_is_wanted_is_exported(
    made: Made, target: Path, options: dict[str, Any], kept: Callable[[Record], bool]
) -> None:
    """Topics, times and offsets choose messages exactly; nothing at all is an export, too."""
    report = run(made.write(), target, ExportOptions(split_size=65_536, **options))

    wanted = [record for record in made.records if kept(record)]
    check(target, wanted)
    assert report.clean
    assert report.counters["messages"] == len(wanted)


def test_an_empty_store_has_an_empty_export(tmp_path: Path, target: Path) -> None:
    """A store without messages gives a manifest without files; a folder without store gives an error."""
    store = Made(tmp_path / "store")

    assert run(store.write(), target).counters["messages"] == 0

    check(target, [])
    with pytest.raises(NoInput):
        run(str(tmp_path / "nothing"), target.with_name("other"))
    assert not target.with_name("other").exists()


def test_columns_and_compression_are_those_that_were_asked_for(made: Made, target: Path) -> None:
    """Other columns are not written; those that place a message are needed for that alone."""
    run(made.write(), target, ExportOptions(columns=("Keys", "topic", "body"), compression="snappy"))

    file = pq.ParquetFile(next(target.rglob("*.parquet")))
    assert file.schema_arrow.names == ["keys", "body"]
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert pq.read_table(target).num_rows == 400


def test_system_topics_are_left_out_unless_asked_for(tmp_path: Path, target: Path) -> None:
    """Retries, dead letters and the broker's own records are no business messages."""
    store = Made(tmp_path / "store")
    for topic in ("orders", "%RETRY%group", "%DLQ%group", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC"):
        store.append(topic)

    run(store.write(), target, ExportOptions())
    check(target, store.records[:1])

    run(store.write(), target.with_name("all"), EVERYTHING)
    check(target.with_name("all"), store.records)


def test_bad_options_are_refused_together(made: Made, target: Path) -> None:
    """All problems are told at once, and nothing is begun."""
    options = ExportOptions(
        columns=("nothing",), topics=("a",), topic_pattern="b", start_ms=2, end_ms=1, split_size=1
    )

    with pytest.raises(ValueError, match=r"no column nothing.*not both.*ends before.*a split of 1 bytes"):
        run(made.write(), target, options)

    assert not target.parent.exists()


HOSTILE = (
    "../../escape", "..", ".", "a/b", "a=b", "date=2020-01-01", "%2E%2E", "topic=x", "with blank", "tøpic",
    "nul\0byte", "__HIVE_DEFAULT_PARTITION__", "_hidden", ".hidden", "a\\b", "*?[]", "new\nline", "CON",
    "12345",
    "x" * 255, "%" * 200, "%" * 199 + "!", "日本" * 40, "日本" * 40 + "語",
)  # fmt: skip


def test_hostile_topics_stay_below_the_target(tmp_path: Path, target: Path) -> None:
    """Names that mean something to file systems or readers lead nowhere else, and none are mixed up."""
    store = Made(tmp_path / "store")
    for topic in HOSTILE:
        store.append(topic, topic.encode())
        store.append(topic, b"2" + topic.encode())

    run(store.write(), target)

    assert {path.name for path in tmp_path.iterdir()} == {"store", "exports"}
    assert {path.name for path in target.parent.iterdir()} == {"today"}
    manifest = manifest_of(target)
    assert set(manifest["topics"]) == set(HOSTILE)
    folders = [each["folder"] for each in manifest["topics"].values()]
    assert len({folder.lower() for folder in folders}) == len(folders)
    for each in manifest["files"]:
        folder, date, name = each["path"].split("/")
        assert folder.startswith("topic=")
        assert date.startswith("date=")
        assert name.startswith("part-")
        file = pq.ParquetFile(target / each["path"])
        assert file.schema_arrow.metadata[b"brokerset.topic"].decode() == each["topic"]
        raw = each["topic"].encode()
        assert file.read(["body"]).column(0).to_pylist() == [raw, b"2" + raw]
    short = [topic for topic in HOSTILE if len(topic.encode()) <= 60 and "\0" not in topic]
    rows = {row["topic"] for row in rows_of(target)}
    assert set(short) - {"__HIVE_DEFAULT_PARTITION__"} <= rows


def test_times_that_no_calendar_has_are_kept(tmp_path: Path, target: Path) -> None:
    """Store times before 1970, and beyond all years, have a folder, the latter that of null."""
    store = Made(tmp_path / "store")
    for time_ms in (0, -1, -DAY_MS - 1, 2**62, -(2**62), FIRST_MS):
        store.append(time_ms=time_ms)

    run(store.write(), target)

    dates = {each["date"] for each in manifest_of(target)["files"]}
    assert dates == {"1970-01-01", "1969-12-31", "1969-12-30", "__HIVE_DEFAULT_PARTITION__", "2026-09-21"}
    assert manifest_of(target)["counts"]["messages"] == 6


# -- damage --------------------------------------------------------------------------


def damaged(made: Made, *numbers: int) -> str:
    """The store with a flipped bit in the bodies of these records."""
    store = made.write()
    for number in numbers:
        record = made.records[number]
        path = Path(store) / "commitlog" / f"{record.offset // FILE_SIZE * FILE_SIZE:020d}"
        data = bytearray(path.read_bytes())
        data[record.offset % FILE_SIZE + 100] ^= 1
        path.write_bytes(data)
    return store


def test_damage_fails_an_export_and_says_where(made: Made, target: Path) -> None:
    """Nothing is written, every damaged part is a finding, and the next run is free to do better."""
    report = run(damaged(made, 50, 300), target)

    assert not target.exists()
    assert not staging_of(target).exists()
    assert report.exit_code == 1
    assert [each.offset for each in report.findings] == [made.records[50].offset, made.records[300].offset]
    assert {each.code for each in report.findings} == {"bad-crc"}

    run(made.write(), target)
    check(target, made.records)


@pytest.mark.parametrize(
    ("left_over", "codes"), [(b"\x55" * 100, ["torn-tail"]), (bytes(100), [])], ids=["debris", "zeros"]
)
def test_bytes_behind_the_last_record_that_are_none_are_reported(
    made: Made, target: Path, left_over: bytes, codes: list[str]
) -> None:
    """Nobody can say whether a record began there, so all that can be read is exported, and it is said."""
    end = len(made.data)
    made.data += left_over

    report = run(made.write(), target)

    found = [each for each in report.findings if each.code == "torn-tail"]
    assert [(each.code, each.level, each.offset) for each in found] == [
        (code, Level.INFO, end) for code in codes
    ]
    assert report.exit_code == 0
    assert len(rows_of(target)) == len(made.records)


def test_damage_that_is_passed_over_is_told(made: Made, target: Path) -> None:
    """All other messages are there, and report and manifest name what is not."""
    report = run(damaged(made, 50, 300), target, ExportOptions(split_size=65_536, on_corrupt="skip"))

    check(target, [record for number, record in enumerate(made.records) if number not in (50, 300)])
    assert report.exit_code == 0
    told = manifest_of(target)["runs"][0]["damaged"]
    assert [(each["begin"], each["reason"]) for each in told] == [
        (made.records[50].offset, "bad-crc"),
        (made.records[300].offset, "bad-crc"),
    ]
    assert report.counters["findings.warning"] == 2


def test_a_missing_file_is_damage(made: Made, target: Path) -> None:
    """A hole in the log fails the export, or is told."""
    store = made.write()
    (Path(store) / "commitlog" / f"{FILE_SIZE:020d}").unlink()

    report = run(store, target)
    assert [(each.code, each.offset, each.end) for each in report.findings] == [
        ("missing-file", FILE_SIZE, 2 * FILE_SIZE)
    ]
    assert not target.exists()

    run(store, target, ExportOptions(split_size=65_536, on_corrupt="skip"))
    check(target, [record for record in made.records if not FILE_SIZE <= record.offset < 2 * FILE_SIZE])


def test_a_body_that_cannot_be_opened_is_damage_of_that_record_alone(tmp_path: Path, target: Path) -> None:
    """With --decompress its neighbours are exported, and it is named; without, it is exported as it is."""
    store = Made(tmp_path / "store")
    for number in range(9):
        packed = number % 2 == 0
        body = zlib.compress(b"text %d" % number) if packed else b"text %d" % number
        store.append(body=b"garbage" if number == 4 else body, sys_flag=SysFlag.COMPRESSED if packed else 0)

    report = run(store.write(), target)
    assert not target.exists()
    assert [(each.code, each.offset) for each in report.findings] == [
        ("body-unreadable", store.records[4].offset)
    ]

    run(store.write(), target, ExportOptions(decompress=True, on_corrupt="skip"))
    assert [row["body"] for row in rows_of(target)] == [
        b"text %d" % number for number in range(9) if number != 4
    ]

    run(store.write(), target.with_name("raw"), ExportOptions())
    check(target.with_name("raw"), store.records)


def test_a_file_that_expires_meanwhile_is_damage(
    made: Made, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that loses its oldest file between plan and task is not exported with a hole in silence."""
    store = made.write()
    true_task = writing.write_range

    def expiring(row: Row) -> Iterator[Result]:
        (Path(store) / "commitlog" / f"{0:020d}").unlink(missing_ok=True)
        yield from true_task(row)

    monkeypatch.setattr(writing, "write_range", expiring)

    report = run(store, target)

    assert [(each.code, each.offset) for each in report.findings] == [("expired", 0)]
    assert not target.exists()


# -- once and whole --------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def killing(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Have the job die before its `step`-th visible deed: a task, a rename, a file written or deleted."""
    deeds: list[str] = []

    def dying(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            deeds.append(name)
            if len(deeds) == step:
                raise Killed
            return function(*arguments, **more)

        return wrapped

    monkeypatch.setattr(os, "rename", dying("rename", os.rename))
    monkeypatch.setattr(f"{staging.__name__}.write_atomically", dying("write", write_atomically))
    monkeypatch.setattr(f"{staging.__name__}.sync_folder", dying("sync", sync_folder))
    monkeypatch.setattr(shutil, "rmtree", dying("rmtree", shutil.rmtree))
    monkeypatch.setattr(writing, "write_range", dying("task", writing.write_range))
    return deeds


def steps(monkeypatch: pytest.MonkeyPatch, job: Callable[[], object]) -> int:
    """How many deeds the job has."""
    with monkeypatch.context() as patched:
        deeds = killing(patched, 0)
        job()
    assert {"rename", "write", "sync", "rmtree", "task"} <= set(deeds)
    return len(deeds)


def test_an_export_that_dies_anywhere_goes_on_and_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each step: the target is absent or whole, and the next start finishes, doing nothing twice."""
    made = Made(tmp_path / "store")
    for number in range(120):
        made.append("orders" if number % 3 else "bills", bytes([number]) * 250)
    store = made.write()
    count = steps(monkeypatch, lambda: run(store, tmp_path / "exports" / "probe"))

    for step in range(1, count + 1):
        target = tmp_path / "exports" / f"killed-{step}"
        with monkeypatch.context() as patched:
            killing(patched, step)
            with pytest.raises(Killed):
                run(store, target)
        if target.exists():
            assert len(rows_of(target)) == 120
            assert (target / "_SUCCESS").exists()
        kept = len(list((staging_of(target) / "results").glob("*.json")))

        report = run(store, target)

        check(target, made.records)
        assert report.facts["exported"]
        if not report.facts.get("alreadyThere"):
            assert report.counters["tasksReused"] == kept


def test_an_addition_that_dies_anywhere_goes_on_and_is_whole(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the earlier export counts until the new one replaces it, and both are true."""
    store = made.write()
    before = len(made.records)
    first = tmp_path / "exports" / "first"
    run(store, first)
    for number in range(150):
        made.append("later" if number % 2 else "bills", b"new" * 80, time_ms=FIRST_MS + 3 * DAY_MS)
    store = made.write()

    def add(target: Path) -> Report:
        return run(store, target, since_manifest=target / "_manifest.json")

    shutil.copytree(first, tmp_path / "exports" / "probe")
    count = steps(monkeypatch, lambda: add(tmp_path / "exports" / "probe"))
    check(tmp_path / "exports" / "probe", made.records)
    for step in range(1, count + 1):
        target = tmp_path / "exports" / f"added-{step}"
        shutil.copytree(first, target)
        with monkeypatch.context() as patched:
            killing(patched, step)
            with pytest.raises(Killed):
                add(target)
        manifest = manifest_of(target)
        assert manifest["counts"]["messages"] in (before, len(made.records))
        for each in manifest["files"]:
            assert (target / each["path"]).stat().st_size == each["bytes"]

        add(target)

        check(target, made.records)
        assert manifest_of(target)["range"] == {
            **manifest_of(target)["range"],
            "start": 0,
            "end": len(made.data),
        }


def test_tasks_that_fail_and_are_repeated_leave_nothing(
    made: Made, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that breaks off in the middle of its files deletes them, and another one counts."""
    true_close = partitions.Partitions.close
    failures = 0

    def failing(self: partitions.Partitions) -> list[dict[str, Any]]:
        nonlocal failures
        found = true_close(self)
        failures += 1
        if failures % 2:
            raise OSError("the disk is gone")
        return found

    class Retrying:
        """Repeats tasks, as Spark does."""

        def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
            for row in rows:
                try:
                    results = list(writing.write_range(row))
                except OSError:
                    assert list((staging_of(target) / "data").glob(f"{row['task']:06d}-*")) == []
                    results = list(writing.write_range(row))
                yield from results

    monkeypatch.setattr(partitions.Partitions, "close", failing)

    report = export(Retrying(), made.write(), target, EVERYTHING)

    check(target, made.records)
    assert failures == 2 * report.counters["tasks"] > 2


def test_a_finished_export_is_left_alone(made: Made, target: Path) -> None:
    """The same again reads and writes nothing; something else, or more, is refused with advice."""
    store = made.write()
    run(store, target)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}

    report = run(store, target)

    assert report.facts["alreadyThere"]
    assert report.counters["messages"] == 400
    assert report.bytes_read == 0
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before
    with pytest.raises(JobFailed, match="something else"):
        run(store, target, ExportOptions(topics=("bills",)))
    made.append()
    with pytest.raises(JobFailed, match="goes on to") as caught:
        run(made.write(), target)
    assert "--since-manifest" in caught.value.advice
    assert not staging_of(target).exists()


def test_a_foreign_folder_is_not_touched(made: Made, target: Path) -> None:
    """A target that holds other files is refused, and keeps them."""
    target.mkdir(parents=True)
    (target / "precious").write_text("mine")

    with pytest.raises(JobFailed, match="cannot be made"):
        run(made.write(), target)

    assert [path.name for path in target.iterdir()] == ["precious"]


def test_nothing_is_written_into_the_store(made: Made) -> None:
    """A target below the store is refused: foreign folders keep brokers from starting."""
    store = made.write()
    before = sorted(Path(store).rglob("*"))

    for inside in (Path(store), Path(store) / "export", Path(store) / "commitlog" / "x" / "y"):
        with pytest.raises(JobFailed, match="lies in the store"):
            run(store, inside)

    assert sorted(Path(store).rglob("*")) == before
    assert not staging_of(Path(store)).exists()


def test_two_exports_of_one_target_do_not_mix(made: Made, target: Path) -> None:
    """While one is at work the other one is refused."""
    other = staging.Staging(target)
    with other.locked(), pytest.raises(JobFailed, match="another export writes"):
        run(made.write(), target)


def test_what_was_decided_is_finished_under_the_same_lock(
    made: Made, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finishing what an earlier export decided, and discarding what is of no use, keep others out."""
    with monkeypatch.context() as patched:
        patched.setattr(staging.Staging, "finish", dying_when_decided(staging.Staging.finish))
        with pytest.raises(Killed):
            run(made.write(), target)
    one, other = staging.Staging(target), staging.Staging(target)

    with one.locked():
        assert one.finish() is not None
        with pytest.raises(JobFailed, match="another export writes"), other.locked():
            pass
        one.discard()
        with pytest.raises(JobFailed, match="another export writes"), other.locked():
            pass

    assert not staging_of(target).exists()
    check(target, made.records)


def dying_when_decided(finish: Callable[[staging.Staging], Any]) -> Callable[[staging.Staging], Any]:
    def wrapped(folder: staging.Staging) -> Any:
        if (folder.folder / staging.COMMIT).exists():
            raise Killed
        return finish(folder)

    return wrapped


def test_a_lock_that_was_deleted_meanwhile_is_none(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever locks a file that another export has deleted since locks the new one instead."""
    one = staging.Staging(target)
    real = fcntl.flock
    deleted: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not deleted:
            deleted.append(descriptor)
            shutil.rmtree(one.folder)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)

    with (
        one.locked(),
        pytest.raises(JobFailed, match="another export writes"),
        staging.Staging(target).locked(),
    ):
        pass

    assert len(deleted) == 1


def test_another_plan_begins_anew(made: Made, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted export with other options left is not used."""
    store = made.write()
    with monkeypatch.context() as patched:
        killing(patched, 12)
        with pytest.raises(Killed):
            run(store, target, ExportOptions(topics=("bills",), split_size=65_536))
    assert list((staging_of(target) / "results").iterdir())

    report = run(store, target)

    check(target, made.records)
    assert report.counters["tasksReused"] == 0


def test_a_plan_in_the_form_of_an_older_version_begins_again(
    made: Made, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows name options in another way, so what was wanted could be lost."""
    store, wanted = made.write(), ExportOptions(topics=("bills",), split_size=65_536)
    with monkeypatch.context() as patched:
        killing(patched, 12)
        with pytest.raises(Killed):
            run(store, target, wanted)
    plan = staging_of(target) / "plan.json"
    older = orjson.loads(plan.read_bytes())
    del older["key"]["plan"]
    plan.write_bytes(orjson.dumps(older))

    assert run(store, target, wanted).counters["tasksReused"] == 0


def test_a_row_with_other_names_is_refused() -> None:
    """None of its options may take its default without notice."""
    row = {
        "task": 0, "url": "u", "range": {"path": "p", "start": 0, "end": 9, "size": 9, "exact_start": True},
        "filter": {}, "staging": "s", "options": {}, "brokerName": None, "epochs": [],
    }  # fmt: skip

    with pytest.raises(FormatError, match="exact_start"):
        from_value(writing.Task, row)


def test_a_resumed_export_reads_at_todays_rate(
    made: Made, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lowers it spares a disk that serves."""
    store = made.write()
    with monkeypatch.context() as patched:
        killing(patched, 8)
        with pytest.raises(Killed):
            run(store, target, ExportOptions(split_size=65_536))
    rates = []
    write_range = writing.write_range

    def noted(row: Any) -> Any:
        rates.append(from_value(writing.Task, row).options.bytes_per_second)
        return write_range(row)

    monkeypatch.setattr(writing, "write_range", noted)

    run(store, target, ExportOptions(split_size=65_536, bytes_per_second=1 << 40))

    assert set(rates) == {1 << 40}


# -- from night to night --------------------------------------------------------------------------


def test_exports_go_on_from_night_to_night(tmp_path: Path) -> None:
    """Each addition has what is new, once; a night without messages adds nothing; ends may be anywhere."""
    store = Made(tmp_path / "store")
    target = tmp_path / "export"
    manifest = target / "_manifest.json"
    store.append()
    run(store.write(), target)
    for night in range(12):
        for number in range(night * 17 % 60):
            store.append(f"topic-{number % 3}", b"x" * (night * 100), time_ms=FIRST_MS + night * DAY_MS)

        run(store.write(), target, since_manifest=manifest)

        check(target, store.records)
        assert manifest_of(target)["range"]["end"] == len(store.data)
    runs = manifest_of(target)["runs"]
    assert len(runs) == 13
    assert [each["start"] for each in runs[1:]] == [each["end"] for each in runs[:-1]]


def test_additions_go_on_behind_any_offset(made: Made, target: Path) -> None:
    """An export up to an offset inside a record, or inside what fills a file, is continued without gap."""
    store = made.write()
    blank = max(record.offset for record in made.records if record.offset < FILE_SIZE) + 1_000
    for number, end in enumerate(
        (made.records[20].offset, made.records[20].offset + 1, FILE_SIZE - 1, blank)
    ):
        first, second = target.with_name(f"{number}-first"), target.with_name(f"{number}-second")
        run(store, first, ExportOptions(end_offset=end, split_size=65_536))
        check(first, [record for record in made.records if record.offset < end])

        run(store, second, since_manifest=first / "_manifest.json")

        check(second, [record for record in made.records if record.offset >= end])


def test_an_addition_may_go_elsewhere(made: Made, target: Path) -> None:
    """With a new target an export holds only what is behind the earlier one."""
    run(made.write(), target)
    new = [made.append(body=b"new %d" % number) for number in range(30)]
    other = target.with_name("tomorrow")

    run(made.write(), other, since_manifest=target / "_manifest.json")

    check(other, new)
    check(target, made.records[:-30])


def test_an_addition_that_cannot_be_right_is_refused(made: Made, target: Path, tmp_path: Path) -> None:
    """Expired messages, a shorter log, another broker, other columns, an end by time: each has its error."""
    run(made.write(), target)
    manifest = target / "_manifest.json"
    for number in range(700):
        made.append(body=b"%d" % number * 50)

    with pytest.raises(JobFailed, match="have expired"):
        run(made.write(expired=6), target, since_manifest=manifest)
    store = made.write()
    with pytest.raises(JobFailed, match="other topics or columns"):
        run(store, target, ExportOptions(columns=("body",)), since_manifest=manifest)
    (Path(store) / "brokerIdentity").write_bytes(b"DefaultCluster#broker-b#1")
    with pytest.raises(JobFailed, match="of broker-a, this store is of broker-b"):
        run(store, target, since_manifest=manifest)
    shorter = Made(tmp_path / "shorter")
    shorter.append()
    with pytest.raises(JobFailed, match="the earlier export went to"):
        run(shorter.write(), target, since_manifest=manifest)
    with pytest.raises(JobFailed, match="there is no"):
        run(store, target, since_manifest=target / "nothing.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(JobFailed, match="not the manifest"):
        run(store, target, since_manifest=tmp_path / "other.json")
    by_time = target.with_name("by-time")
    run(made.write(), by_time, ExportOptions(end_ms=FIRST_MS + DAY_MS))
    with pytest.raises(JobFailed, match="ended at a time"):
        run(made.write(), by_time, since_manifest=by_time / "_manifest.json")
    check(target, made.records[:400])


def test_expired_messages_may_be_passed_over(made: Made, target: Path) -> None:
    """With --on-corrupt skip an addition goes on behind what has expired, and tells it."""
    options = ExportOptions(on_corrupt="skip", split_size=65_536)
    run(made.write(), target, options)
    for number in range(700):
        made.append(body=b"%d" % number * 50)

    report = run(made.write(expired=6), target, options, since_manifest=target / "_manifest.json")

    check(
        target,
        [record for record in made.records[:400]]
        + [r for r in made.records[400:] if r.offset >= 6 * FILE_SIZE],
    )
    assert [each.code for each in report.findings] == ["expired"]


def test_a_store_that_is_being_written_is_exported_up_to_what_is_sure(tmp_path: Path, target: Path) -> None:
    """Nothing behind a confirmed offset is exported; the next export begins with the first such record."""
    log = Log()
    log.fill(300)
    cut = log.starts[200] + 20  # in the middle of a record
    store = str(write_replica(tmp_path / "store", log, confirmed=cut))

    run(store, target, ExportOptions(confirmed_offset=cut))
    assert [row["commitLogOffset"] for row in rows_of(target)] == log.starts[:200]
    assert manifest_of(target)["range"]["end"] == log.starts[200]

    run(store, target, ExportOptions(confirmed_offset=log.end), since_manifest=target / "_manifest.json")
    assert [row["commitLogOffset"] for row in rows_of(target)] == log.starts
