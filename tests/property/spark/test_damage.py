"""Whatever is damaged in a store, `verify` names it by code, file and offset, or it is harmless as
docs/spark.md says."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from brokerset_broker.store import MessageStore
from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_formats.hosts import Host
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record
from brokerset_rig.damaged_copies import Found, StoreCopy, said_in
from brokerset_runtime.clock import ManualClock
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import CODES, VerifyOptions, verify
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.long

SEGMENT = 8_192
QUEUE_FILE = 400
SLOTS, UNITS = 20, 60
HOSTS = (Host.from_text("10.0.0.1", 54321).encode(), Host.from_text("fd00::1", 54321).encode())
UNIT = 20


@dataclass(frozen=True)
class Base:
    """A healthy store."""

    root: Path
    records: list[Found]
    end: int


def _settings(root: Path, property_crc: bool) -> BrokerSettings:
    return BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=QUEUE_FILE,
        max_hash_slot_num=SLOTS,
        max_index_num=UNITS,
        enabled_append_prop_crc=property_crc,
    )


def _write(root: Path, *, property_crc: bool = False) -> None:
    clock = ManualClock()
    store = MessageStore(_settings(root, property_crc), clock)
    store.load()

    async def work() -> None:
        for number in range(130):
            topic = ("Orders", "Bills", "Names")[number % 3]
            properties = {"UNIQ_KEY": f"id-{number:04d}", "colour": "blue"}
            if number % 2:
                properties |= {"TAGS": f"tag{number % 5}"}
            if number % 4 == 1:
                properties |= {"KEYS": f"k{number} other{number}"}
            store.append(
                topic, number % 2, b"%03d" % number * (10 + number % 70), encode_properties(properties),
                flag=7, sys_flag=0, born_timestamp=1_700_000_000_000, born_host=HOSTS[number % 7 == 0],
            )  # fmt: skip
            clock.advance(1_500)
        await store.checkpoint()
        await store.close()

    asyncio.run(work())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """130 messages in six queues, five log files, four index files, closed."""
    root = tmp_path_factory.mktemp("base") / "store"
    _write(root)
    records = list(StoreCopy(root).records())
    assert len(records) == 130
    assert len({each.path for each in records}) == 5
    last = records[-1].record
    return Base(root, records, last.offset + last.size)


@pytest.fixture(scope="module")
def group_base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The same of a broker in a group: its records have property CRCs."""
    root = tmp_path_factory.mktemp("group") / "store"
    _write(root, property_crc=True)
    records = list(StoreCopy(root).records())
    last = records[-1].record
    return Base(root, records, last.offset + last.size)


Copies = Callable[[], StoreCopy]


@pytest.fixture
def copies(base: Base, tmp_path: Path) -> Copies:
    """Makes a copy for each example; the one before goes."""

    return lambda: StoreCopy.of(base.root, tmp_path / "copy")


RANGES = (1 << 26, 5_000, 1_500)

BREAKS_CHAIN = {
    "size": {"record-size", "record-lengths"},
    "magic": {"record-magic"},
    "crc": {"crc-mismatch"},
    "physicalOffset": {"record-offset"},
    "bodyLength": {"record-lengths", "record-size"},
    "body": {"crc-mismatch"},
    "topicLength": {"record-lengths", "record-size"},
    "propertiesLength": {"record-lengths", "record-size"},
}
"""Fields without which a record is none, and the codes that may be said about them."""

HARMLESS = ("flag", "bornTimestamp", "bornHost", "storeHost", "reconsumeTimes", "preparedOffset")
"""Fields that no check covers: docs/spark.md says so."""


def test_the_healthy_store_is_clean(base: Base) -> None:
    """Every record, unit and entry is counted, and nothing is found, in whatever ranges."""
    for range_bytes in (1 << 26, 5_000, 1_500, 300):
        report = verify(LocalRunner(), str(base.root), VerifyOptions(range_bytes=range_bytes))

        assert said_in(report) == []
        assert report.counters["records"] == report.counters["queue.units"] == 130
        assert report.counters["index.units"] == 130 + 2 * 33
        assert report.facts["end"] == base.end


@pytest.mark.parametrize("seed", range(150))
def test_a_flipped_bit_that_breaks_a_record_is_named_once(base: Base, copies: Copies, seed: int) -> None:
    """One finding: the right code, the record's file, its first byte and its last."""
    copy, draw = copies(), random.Random(seed)
    one = draw.choice(base.records)
    name = draw.choice(sorted(BREAKS_CHAIN))
    position, size = one.fields[name]
    copy.flip(one.path, position + draw.randint(0, size - 1), draw.randint(0, 7))

    report = copy.check(range_bytes=draw.choice(RANGES))

    (finding,) = report.findings
    assert finding.code in BREAKS_CHAIN[name]
    assert (finding.file, finding.offset) == (one.path, one.record.offset)
    assert finding.end == one.record.offset + one.record.size
    assert report.counters["records"] == 129


@pytest.mark.parametrize("seed", range(40))
def test_several_damaged_records_are_named_each(base: Base, copies: Copies, seed: int) -> None:
    """Whole records between damaged ones stay found, however near they are."""
    copy, draw = copies(), random.Random(seed)
    numbers = set(draw.sample(range(20, 46), draw.randint(2, 5)))
    for number in numbers:
        position, size = base.records[number].fields[draw.choice(["magic", "body", "physicalOffset"])]
        copy.flip(base.records[number].path, position + size // 2, 3)

    report = copy.check(range_bytes=draw.choice(RANGES))

    damaged = {base.records[number].record.offset for number in numbers}
    assert {each.offset for each in report.findings} <= damaged
    for offset in damaged:  # neighbours of which the first has lost its size are one finding
        assert any((each.offset or 0) <= offset < (each.end or 0) for each in report.findings)
    assert report.counters["records"] == 130 - len(numbers)


@pytest.mark.parametrize("seed", range(60))
def test_fields_that_no_check_covers_are_the_documented_ones(base: Base, copies: Copies, seed: int) -> None:
    """A flipped bit there is not found; if this changes, docs/spark.md changes."""
    copy, draw = copies(), random.Random(seed)
    one = draw.choice(base.records)
    position, size = one.fields[draw.choice(HARMLESS)]
    copy.flip(one.path, position + draw.randint(0, size - 1), draw.randint(0, 7))

    assert copy.said() == []


@pytest.mark.parametrize("seed", range(80))
def test_a_property_crc_covers_every_field(group_base: Base, tmp_path: Path, seed: int) -> None:
    """One finding for a flipped bit in whatever is no length, and none in the healthy store."""
    draw = random.Random(seed)
    copy = StoreCopy.of(group_base.root, tmp_path / "copy")
    assert copy.said() == []
    one = draw.choice(group_base.records)
    name = draw.choice([*HARMLESS, "crc", "queueId", "queueOffset", "storeTimestamp", "topic", "properties"])
    position, size = one.fields[name]
    covered = size - 21 if name == "properties" else size
    copy.flip(one.path, position + draw.randint(0, covered - 1), draw.randint(0, 7))

    report = copy.check(range_bytes=draw.choice(RANGES))

    (finding,) = report.findings
    assert (finding.code, finding.file) == ("property-crc", one.path)
    assert (finding.offset, finding.end) == (one.record.offset, one.record.offset + one.record.size)
    assert report.counters["records"] == 129


@pytest.mark.parametrize("seed", range(80))
def test_a_record_of_another_queue_is_named(base: Base, copies: Copies, seed: int) -> None:
    """A flipped queue id, queue offset or topic is told as the record's, not as its unit's."""
    copy, draw = copies(), random.Random(seed)
    one = draw.choice(base.records)
    name = draw.choice(["queueId", "queueOffset", "topic"])
    position, size = one.fields[name]
    bit = draw.randint(0, 6)
    copy.flip(one.path, position + draw.randint(0, size - 1), bit)

    report = copy.check(range_bytes=draw.choice(RANGES))

    said = said_in(report)
    assert ("record-queue", one.path, one.record.offset) in said
    others = {code for code, _, _ in said} - {"record-queue"}
    assert others <= ({"index-missing", "index-dangling"} if name == "topic" else set())


@pytest.mark.parametrize("seed", range(40))
def test_flags_that_matter_are_named(base: Base, copies: Copies, seed: int) -> None:
    """Host flags move fields; transaction and batch flags say that there is no unit; others mean nothing
    here."""
    copy, draw = copies(), random.Random(seed)
    one = draw.choice(base.records)
    position, _ = one.fields["sysFlag"]
    bit = draw.randint(0, 31)
    copy.flip(one.path, position + 3 - bit // 8, bit % 8)

    said = copy.said()

    if 1 << bit in (0x10, 0x20):
        ((code, path, offset),) = said
        assert code in ("record-lengths", "record-size", "crc-mismatch")
        assert (path, offset) == (one.path, one.record.offset)
    elif 1 << bit in (0x4, 0x80):
        dangling = ("cq-dangling", unit_file(one.record), one.record.queue_offset)
        no_batch = [("batch-property", one.path, one.record.offset)] if 1 << bit == 0x80 else []
        assert sorted(said) == sorted([dangling, *no_batch])
    else:
        assert said == []


@pytest.mark.parametrize("seed", range(60))
def test_properties_that_matter_are_named(base: Base, copies: Copies, seed: int) -> None:
    """Values of tags and keys are checked by queue and index; other properties by nothing."""
    copy, draw = copies(), random.Random(seed)
    one = draw.choice(base.records)
    position, _ = one.fields["properties"]
    name = draw.choice([b"TAGS", b"KEYS", b"UNIQ_KEY", b"colour"])
    at = one.record.properties.find(name + b"\x01")
    if at < 0:
        return
    copy.flip(one.path, position + at + len(name) + 1, draw.randint(3, 4))

    said = copy.said(draw.choice(RANGES))

    if name == b"TAGS":
        assert said == [("cq-tags", unit_file(one.record), one.record.queue_offset)]
    elif name == b"colour":
        assert said == []
    else:
        assert ("index-missing", one.path, one.record.offset) in said
        assert {code for code, _, _ in said} == {"index-missing", "index-dangling"}
        assert len(said) == 2


@pytest.mark.parametrize("seed", range(40))
def test_times_out_of_order_are_named(base: Base, copies: Copies, seed: int) -> None:
    """A store time that is far too high or low is told at its record, also where ranges and files meet."""
    copy, draw = copies(), random.Random(seed)
    number = draw.randint(2, 127)
    one = base.records[number]
    wrong = one.record.store_timestamp + draw.choice([-100_000, 100_000])
    copy.write(one.path, one.fields["storeTimestamp"][0], struct.pack(">q", wrong))

    report = copy.check(range_bytes=draw.choice(RANGES))

    said = said_in(report)
    assert ("time-back", one.path, one.record.offset) in said
    assert {code for code, _, _ in said} <= {"time-back", "index-time"}
    assert report.counters["finding.time-back"] == 1


def unit_file(record: Record) -> str:
    """The queue file that has a record's unit."""
    first = record.queue_offset * UNIT // QUEUE_FILE * QUEUE_FILE
    return f"consumequeue/{record.topic}/{record.queue_id}/{first:020d}"


@pytest.mark.parametrize("seed", range(100))
def test_a_flipped_bit_of_a_queue_unit_is_named(base: Base, copies: Copies, seed: int) -> None:
    """One finding: which part of the unit differs, its file and its queue offset."""
    copy, draw = copies(), random.Random(seed)
    one = draw.choice(base.records).record
    byte = draw.randint(0, 19)
    copy.flip(unit_file(one), one.queue_offset * UNIT % QUEUE_FILE + byte, draw.randint(0, 7))
    code = "cq-offset" if byte < 8 else "cq-size" if byte < 12 else "cq-tags"

    report = copy.check(range_bytes=draw.choice(RANGES))

    ((said, path, offset),) = said_in(report)
    assert said == code or (said == "ext-missing" and 12 <= byte < 16)  # it looks like an address
    assert (path, offset) == (unit_file(one), one.queue_offset)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_behind_the_end_of_a_queue_are_named(base: Base, copies: Copies, seed: int) -> None:
    """A unit that is not zero behind the last one points to no record."""
    copy, draw = copies(), random.Random(seed)
    topic, queue_id = draw.choice([(r.record.topic, r.record.queue_id) for r in base.records[:6]])
    count = sum((r.record.topic, r.record.queue_id) == (topic, queue_id) for r in base.records)
    last_file = sorted((copy.root / "consumequeue" / topic / str(queue_id)).iterdir())[-1]
    first = int(last_file.name) // UNIT
    number = (
        draw.randint(count, first + QUEUE_FILE // UNIT - 1) if count < first + QUEUE_FILE // UNIT else count
    )
    path = f"consumequeue/{topic}/{queue_id}/{last_file.name}"
    copy.flip(path, (number - first) * UNIT + draw.randint(0, 19), draw.randint(0, 6))

    assert copy.said() == [("cq-dangling", path, number)]


@pytest.mark.parametrize("seed", range(100))
def test_a_flipped_bit_of_an_index_file_is_named(base: Base, copies: Copies, seed: int) -> None:
    """Header, slots and units that are in use are covered; units behind the last one mean nothing."""
    copy, draw = copies(), random.Random(seed)
    file = draw.choice(sorted((base.root / "index").iterdir()))
    raw = file.read_bytes()
    used = struct.unpack_from(">i", raw, 36)[0]
    position = draw.randint(0, len(raw) - 1)
    units = 40 + 4 * SLOTS
    copy.flip(f"index/{file.name}", position, draw.randint(0, 7))

    report = copy.check()

    said, path = said_in(report), f"index/{file.name}"
    unit = (position - units) // 20
    part = (position - units) % 20
    if position >= units and (unit == 0 or unit >= used):
        assert said == []
    elif position < 16:
        assert {(code, file) for code, file, _ in said} <= {("index-header", path), ("index-time", path)}
        assert said or position in (6, 7, 14, 15)  # a second more or less at the end is nothing
    elif position < 40:
        assert ("index-header", path) in {(code, file) for code, file, _ in said}
    elif position < units:
        assert ("index-chain", path, 40 + (position - 40) // 4 * 4) in said
    else:
        expected = {12: "index-dangling", 16: "index-time", 20: "index-chain"}
        code = next(code for limit, code in expected.items() if part < limit)
        place = units + unit * 20
        assert (code, path, place) in said or (
            code == "index-dangling"
            and {each[0] for each in said if each[2] == place or each[1] == path}
            & {"index-order", "index-header", "index-dangling", "index-chain"}
        )


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_tail_is_named(base: Base, copies: Copies, seed: int) -> None:
    """Zeros from the middle of a record of the last file on: an error of a closed store, a warning after a
    crash if the checkpoint does not say that it was on disk."""
    copy, draw = copies(), random.Random(seed)
    in_last = [each for each in base.records if each.path == base.records[-1].path]
    one = draw.choice(in_last[1:])
    cut = one.position + draw.randint(0, one.fields["propertiesLength"][0] - one.position)
    copy.write(one.path, cut, bytes(SEGMENT - cut))
    crashed = draw.random() < 0.5
    if crashed:
        (copy.root / "abort").write_text("1")
        assert not copy.check().clean, "the checkpoint of a store that was closed says so"
        (copy.root / "checkpoint").write_bytes(StoreCheckpoint(1_700_000_000_000, 1_700_000_000_000).encode())

    report = copy.check(range_bytes=draw.choice(RANGES))

    begins = {(code, offset) for code, path, offset in said_in(report) if path == one.path}
    expected = {each for each in begins if each[1] == one.record.offset}
    assert expected
    assert report.clean == crashed
    if crashed:
        assert {code for code, _, _ in said_in(report)} <= {
            "tail-missing",
            "checkpoint-ahead",
            "index-dangling",
        }


def test_a_missing_file_is_named(base: Base, copies: Copies) -> None:
    """In the middle by the bytes that are gone; at the end by those who knew of it; at the beginning it
    expired."""
    names = sorted(each.name for each in (base.root / "commitlog").iterdir())

    used = len({each.path for each in base.records})

    for number, name in enumerate(names[:used]):
        copy = copies()
        (copy.root / "commitlog" / name).unlink()
        for later in names[used:]:
            (copy.root / "commitlog" / later).unlink(missing_ok=True)
        said = {(each.code, each.offset) for each in copy.check().findings}
        if number == 0:
            assert said == set()
        elif number == used - 1:
            assert ("tail-missing", int(name)) in said
            assert {code for code, _ in said} <= {
                "tail-missing",
                "checkpoint-ahead",
                "index-dangling",
                "index-order",
            }
        else:
            assert said == {("file-missing", int(name))}


def test_swapped_files_are_named(base: Base, copies: Copies) -> None:
    """Each of two files under the other's name says at its first record that it belongs elsewhere."""
    copy = copies()
    first, second = (
        copy.root / each for each in ("commitlog/00000000000000000000", "commitlog/00000000000000008192")
    )
    first.rename(copy.root / "aside")
    second.rename(first)
    (copy.root / "aside").rename(second)

    report = copy.check()

    assert said_in(report) == [
        ("record-offset", "commitlog/00000000000000000000", 0),
        ("record-offset", "commitlog/00000000000000008192", SEGMENT),
    ]


def test_files_of_a_wrong_kind_are_named(base: Base, copies: Copies) -> None:
    """Foreign files, short and long ones, in the log and in queues."""
    copy = copies()
    (copy.root / "commitlog" / "notes.txt").write_text("x")
    with (copy.root / "commitlog" / f"{SEGMENT:020d}").open("ab") as file:
        file.write(b"more")
    queue = copy.root / "consumequeue/Orders/0"
    with (queue / f"{0:020d}").open("r+b") as file:
        file.truncate(QUEUE_FILE - UNIT)

    said = copy.said()

    assert ("file-foreign", "commitlog/notes.txt", None) in said
    assert ("file-size", f"commitlog/{SEGMENT:020d}", SEGMENT * 2) in said
    assert ("file-size", f"consumequeue/Orders/0/{0:020d}", QUEUE_FILE - UNIT) in said
    assert ("cq-missing", f"consumequeue/Orders/0/{0:020d}", QUEUE_FILE // UNIT - 1) in said


def test_epochs_that_cannot_be_are_named(base: Base, copies: Copies) -> None:
    """Out of order, between records, behind the end; right ones are not."""
    starts = [base.records[n].record.offset for n in (0, 50, 90)]
    cases: list[tuple[bytes, list[tuple[str, int | None]]]] = [
        (encode_epoch_file(history_of([(1, starts[0]), (2, starts[1]), (5, base.end)])), []),
        (encode_epoch_file(history_of([(1, 0), (2, starts[1] + 1)])), [("epoch-start", starts[1] + 1)]),
        (encode_epoch_file(history_of([(1, 0), (2, base.end + 8)])), [("epoch-ahead", base.end + 8)]),
        (b"2\n0\n2-0\n1-%d\n" % starts[1], [("epoch-file", None)]),
        (b"1\n12345\n1-0\n", [("epoch-file", None)]),
    ]
    for content, expected in cases:
        copy = copies()
        (copy.root / "epochFileCheckpoint").write_bytes(content)

        report = copy.check(range_bytes=1_500)

        assert [(each.code, each.offset) for each in report.findings] == expected


def test_small_files_are_read(base: Base, copies: Copies) -> None:
    """Settings and checkpoint that cannot be read, or tell of what is not there."""
    copy = copies()
    (copy.root / "config").mkdir(exist_ok=True)
    (copy.root / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{')
    (copy.root / "config" / "groups.json.bak").write_bytes(b"{")
    copy.write("checkpoint", 0, struct.pack(">qqq", 2**50, -5, 0))

    report = copy.check()

    said = {(each.code, each.level.value, each.file, each.offset) for each in report.findings}
    assert {(code, level, file) for code, level, file, _ in said} == {
        ("config", "error", "config/topics.json"),
        ("config", "warning", "config/groups.json.bak"),
        ("checkpoint", "error", "checkpoint"),
        ("checkpoint-ahead", "warning", "checkpoint"),
    }


def test_every_code_of_a_finding_is_in_the_table(base: Base) -> None:
    """The table has a level and a sentence for each; the documentation has the same list."""
    document = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()

    assert all(f"| `{code}` |" in document for code in CODES)
