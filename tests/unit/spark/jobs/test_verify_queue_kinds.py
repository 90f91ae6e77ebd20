"""Light queues, batch queues and extended units, as a Java broker wrote them: healthy ones are clean, and
whatever is damaged is named by code, file and offset."""

from __future__ import annotations

import random
import re
import shutil
import struct
from pathlib import Path

import pytest

from brokerset_formats.queue_units import BATCH_UNIT_SIZE, UNIT_SIZE
from brokerset_rig.damaged_copies import Found, StoreCopy
from brokerset_rig.made_stores import unpack_fixture
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify

pytestmark = pytest.mark.long

SEGMENT = 65_536
QUEUE_FILE, BATCH_FILE, EXTENDED_FILE = 2_000, 920, 2_000
EXTENDED_UNIT = 20
RANGES = (1 << 26, 20_000, 3_000)
ALL, FIFTH = "consumequeue/%LMQ%all/0", "consumequeue/%LMQ%fifth/0"
BATCHES = "batchconsumequeue/kinds-batch"
EXTENDED = "consumequeue_ext/kinds-light"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoreCopy:
    """300 messages of which some are in three light queues, 101 records in two batch queues; each plain unit
    has an extended one."""
    root = unpack_fixture(tmp_path_factory.mktemp("kinds"), "queue-kinds") / "broker-0" / "store"
    (root / "timerwheel").unlink()  # large, and of no use here
    return StoreCopy(root)


@pytest.fixture
def store(whole: StoreCopy, tmp_path: Path) -> StoreCopy:
    return StoreCopy.of(whole.root, tmp_path / "store")


def light_unit(number: int) -> tuple[str, int]:
    """File of a unit of the queue `%LMQ%all`, and its position there."""
    first = number * UNIT_SIZE // QUEUE_FILE * QUEUE_FILE
    return f"{ALL}/{first:020d}", number * UNIT_SIZE - first


def batch_unit(queue: int, number: int) -> tuple[str, int]:
    first = number * BATCH_UNIT_SIZE // BATCH_FILE * BATCH_FILE
    return f"{BATCHES}/{queue}/{first:020d}", number * BATCH_UNIT_SIZE - first


def extended_unit(number: int) -> tuple[str, int]:
    """File of an extended unit of queue 0, and its position there: 99 fit into a file, behind which 20 bytes
    are left."""
    file, place = divmod(number, EXTENDED_FILE // EXTENDED_UNIT - 1)
    return f"{EXTENDED}/0/{file * EXTENDED_FILE:020d}", place * EXTENDED_UNIT


def in_all(whole: StoreCopy) -> list[Found]:
    """Records of the queue `%LMQ%all`, by queue offset."""
    return [each for each in whole.records() if "%LMQ%all" in each.properties.get("INNER_MULTI_DISPATCH", "")]


@pytest.mark.parametrize("range_bytes", [*RANGES, 700])
def test_what_java_wrote_is_clean(whole: StoreCopy, range_bytes: int) -> None:
    """Units of light queues are counted as units, those of batch queues for themselves; nothing is found."""
    report = verify(LocalRunner(), str(whole.root), VerifyOptions(range_bytes=range_bytes))

    assert report.findings == []
    assert report.counters["records"] == 401
    assert report.counters["queue.units"] == 300 + 225 + 150 + 45
    assert report.counters["queue.batches"] == 101


# -- light queues -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_flipped_bit_of_a_light_unit_is_named(store: StoreCopy, seed: int) -> None:
    """One finding: which part differs, its file and its queue offset."""
    draw = random.Random(seed)
    number, byte = draw.randint(0, 224), draw.randint(0, 19)
    path, position = light_unit(number)
    store.flip(path, position + byte, draw.randint(0, 7))

    ((code, file, offset),) = store.said(draw.choice(RANGES))

    assert code in ("cq-offset" if byte < 8 else "cq-size" if byte < 12 else "cq-tags", "ext-missing")
    assert code != "ext-missing" or byte >= 12
    assert (file, offset) == (path, number)


@pytest.mark.parametrize("seed", range(20))
def test_light_units_that_are_lost_are_named(store: StoreCopy, seed: int) -> None:
    """Zeros from some unit on: the first one, and how many; after a crash a warning."""
    draw = random.Random(seed)
    number = draw.randint(201, 224)
    path, position = light_unit(number)
    store.write(path, position, bytes(QUEUE_FILE - position))
    crashed = draw.random() < 0.5
    if crashed:
        (store.root / "abort").write_text("1")

    report = store.check(draw.choice(RANGES))

    (finding,) = report.findings
    assert (finding.code, finding.file, finding.offset) == ("cq-missing", path, number)
    assert finding.level is (Level.WARNING if crashed else Level.ERROR)


def test_a_light_unit_that_no_record_names_is_named(store: StoreCopy) -> None:
    path, position = light_unit(230)
    store.write(path, position, store.read(*light_unit(3), UNIT_SIZE))

    assert store.said() == [("cq-dangling", path, 230)]


@pytest.mark.parametrize("first", [0, 2_000, 4_000])
def test_a_file_of_a_light_queue_that_is_gone_is_named(store: StoreCopy, first: int) -> None:
    """In the middle by its bytes; and every unit that a record should have there."""
    path = f"{ALL}/{first:020d}"
    (store.root / path).unlink()

    said = store.said()

    if first == 0:
        assert said == [("cq-missing", f"{ALL}/{2_000:020d}", 0)]
    else:
        before = f"{ALL}/{first - 2_000:020d}"
        missing = ("cq-missing", before, first // UNIT_SIZE)
        middle = [("file-missing", f"{ALL}/{4_000:020d}", 2_000)] if first == 2_000 else []
        assert sorted(said) == sorted([missing, *middle])


def test_a_light_queue_without_a_folder_is_named(store: StoreCopy) -> None:
    """A broker removes light queues, so that this may be right: a warning."""
    shutil.rmtree(store.root / FIFTH)

    (finding,) = store.check().findings

    assert (finding.code, finding.file, finding.level) == ("lmq-missing", FIFTH, Level.WARNING)
    assert "45 records" in finding.text


@pytest.mark.parametrize("seed", range(20))
def test_a_record_that_names_another_place_in_a_light_queue_is_named(
    whole: StoreCopy, store: StoreCopy, seed: int
) -> None:
    """A damaged queue offset, or name, of a record's property is told as the record's."""
    draw = random.Random(seed)
    number = draw.randint(10, 220)
    one = in_all(whole)[number]
    raw = store.read(one.path, one.position, one.record.size)
    name = draw.choice([b"INNER_MULTI_QUEUE_OFFSET", b"INNER_MULTI_DISPATCH"])
    value = raw.index(name + b"\x01") + len(name) + 1
    if name.endswith(b"OFFSET"):
        digits = len(str(number)) - 1
        store.flip(one.path, one.position + value + digits, 0)  # another digit of the first number
    else:
        store.flip(one.path, one.position + value + 6, 1)  # %LMQ%all becomes %LMQ%aln

    said = store.said(draw.choice(RANGES))

    assert ("record-queue", one.path, one.record.offset) in said
    assert {code for code, _, _ in said} <= {"record-queue", "cq-offset", "cq-missing", "lmq-missing"}


@pytest.mark.parametrize("bit", [3, 6])
def test_properties_of_light_queues_that_do_not_fit_each_other_are_named(
    whole: StoreCopy, store: StoreCopy, bit: int
) -> None:
    """Other numbers of queues and queue offsets, or what is no number; units without the record dangle."""
    one = next(each for each in in_all(whole)[20:] if "," in each.properties["INNER_MULTI_DISPATCH"])
    raw = store.read(one.path, one.position, one.record.size)
    at = raw.index(b",", raw.index(b"INNER_MULTI_QUEUE_OFFSET\x01"))
    store.flip(one.path, one.position + at, bit)  # the comma becomes another letter

    said = store.said()

    assert ("lmq-property", one.path, one.record.offset) in said
    assert {code for code, _, _ in said} == {"lmq-property", "cq-dangling"}


# -- batch queues -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_flipped_bit_of_a_batch_unit_is_named(store: StoreCopy, seed: int) -> None:
    """One finding, with the first byte of the unit: every byte of it counts."""
    draw = random.Random(seed)
    queue, number = draw.randint(0, 1), draw.randint(0, 49)
    path, position = batch_unit(queue, number)
    store.flip(path, position + draw.randint(0, BATCH_UNIT_SIZE - 1), draw.randint(0, 7))

    assert store.said(draw.choice(RANGES)) == [("batch-unit", path, number * BATCH_UNIT_SIZE)]


@pytest.mark.parametrize("number", [0, 1, 19, 20, 35, 49])
def test_a_batch_unit_that_is_zeros_is_named(store: StoreCopy, number: int) -> None:
    path, position = batch_unit(1, number)
    store.write(path, position, bytes(BATCH_UNIT_SIZE))

    for range_bytes in RANGES:
        assert store.said(range_bytes) == [("batch-missing", path, number * BATCH_UNIT_SIZE)]


def test_the_last_units_of_a_batch_queue_may_be_missing_after_a_crash(store: StoreCopy) -> None:
    """The start after it makes them again: a warning."""
    path, position = batch_unit(1, 47)
    store.write(path, position, bytes(BATCH_FILE - position))
    (store.root / "abort").write_text("1")

    (finding,) = store.check().findings

    assert (finding.code, finding.file, finding.offset) == ("batch-missing", path, 47 * BATCH_UNIT_SIZE)
    assert finding.level is Level.WARNING
    assert "and 2 others" in finding.text


def test_a_batch_unit_without_a_record_is_named(store: StoreCopy) -> None:
    """A copy of a unit behind the last one, and one that points behind the log."""
    path, position = batch_unit(1, 52)
    store.write(path, position, store.read(*batch_unit(0, 7), BATCH_UNIT_SIZE))

    assert store.said() == [("batch-dangling", path, 52 * BATCH_UNIT_SIZE)]


@pytest.mark.parametrize("first", [0, 920, 1_840])
def test_a_file_of_a_batch_queue_that_is_gone_is_named(store: StoreCopy, first: int) -> None:
    path = f"{BATCHES}/0/{first:020d}"
    (store.root / path).unlink()

    said = store.said()

    assert ("batch-missing", first or 920) in {(code, offset) for code, _, offset in said}
    codes = {code for code, _, _ in said}
    assert codes == ({"file-missing", "batch-missing"} if first == 920 else {"batch-missing"})


def test_a_batch_queue_without_a_folder_is_named(store: StoreCopy) -> None:
    """Its topic is in the settings, so it is missing; a topic that is not was deleted."""
    shutil.rmtree(store.root / BATCHES)
    assert sorted(store.said()) == [("queue-missing", f"{BATCHES}/{queue}", 0) for queue in (0, 1)]

    settings = store.root / "config" / "topics.json"
    settings.write_text(re.sub('"kinds-batch"', '"kinds-other"', settings.read_text()))
    assert {code for code, _, _ in store.said()} == {"topic-deleted"}


def test_a_topic_that_was_made_anew_is_told(whole: StoreCopy, store: StoreCopy) -> None:
    """Its queue begins at 0 behind the older records: no damage."""
    keep = [each.record for each in whole.records() if each.record.topic == "kinds-batch"]
    last = [each for each in keep if each.queue_id == 1][-1]
    for number in range(50):
        path, position = batch_unit(1, number)
        unit = store.read(path, position, BATCH_UNIT_SIZE)
        store.write(path, position, bytes(BATCH_UNIT_SIZE))
    anew = unit[:28] + bytes(8) + unit[36:]
    store.write(*batch_unit(1, 0), anew)
    found = next(each for each in whole.records() if each.record.offset == last.offset)
    raw = store.read(found.path, found.position, last.size)
    at = raw.index(b"INNER_BASE\x01") + len(b"INNER_BASE\x01")
    digits = len(found.properties["INNER_BASE"])
    store.write(found.path, found.position + at, b"0" * digits)
    store.write(found.path, found.position + 20, bytes(8))

    report = store.check()

    assert [each.code for each in report.findings] == ["queue-restart"]
    assert report.clean


@pytest.mark.parametrize("name", ["INNER_NUM", "INNER_BASE"])
def test_a_batch_that_says_other_numbers_is_named(whole: StoreCopy, store: StoreCopy, name: str) -> None:
    """Another count is told of the unit, as nobody knows which is right; another beginning of the record."""
    one = next(each for each in list(whole.records())[200:] if name in each.properties)
    raw = store.read(one.path, one.position, one.record.size)
    store.flip(one.path, one.position + raw.index(name.encode() + b"\x01") + len(name) + 1, 1)

    said = store.said()

    if name == "INNER_NUM":
        assert [code for code, _, _ in said] == ["batch-unit"]
    else:
        assert ("batch-property", one.path, one.record.offset) in said


def test_queue_offsets_that_no_batch_has_are_named(whole: StoreCopy, store: StoreCopy) -> None:
    """Record and unit agree with each other, and not with the ones before."""
    one = [each for each in whole.records() if each.record.topic == "kinds-batch"][-1]
    assert (one.record.queue_id, "INNER_NUM" in one.properties) == (0, False)
    wrong = struct.pack(">q", one.record.queue_offset + 1_000)
    store.write(one.path, one.position + 20, wrong)
    path, position = batch_unit(0, 50)
    store.write(path, position + 28, wrong)

    assert store.said() == [("batch-gap", path, 50 * BATCH_UNIT_SIZE)]


def test_a_log_that_ends_too_early_for_a_batch_queue_is_named(whole: StoreCopy, store: StoreCopy) -> None:
    """Nobody else knows of the last record."""
    one = list(whole.records())[-1]
    store.write(one.path, one.position, bytes(one.record.size))

    (finding,) = [each for each in store.check().findings if each.code == "tail-missing"]

    assert (finding.file, finding.offset) == (one.path, one.record.offset)
    assert "batch queue kinds-batch/0" in finding.text


def test_units_of_a_damaged_record_are_no_damage_of_their_own(whole: StoreCopy, store: StoreCopy) -> None:
    """The record alone is named, whatever queues it is in."""
    light = in_all(whole)[40]
    batch = next(each for each in list(whole.records())[150:] if "INNER_NUM" in each.properties)
    for each in (light, batch):
        store.flip(each.path, each.position + 90, 4)

    for range_bytes in RANGES:
        said = store.said(range_bytes)
        assert said == sorted(
            ("crc-mismatch", each.path, each.record.offset) for each in (light, batch)
        )  # fmt: skip


@pytest.mark.parametrize("back", [2, 3, 5])
@pytest.mark.parametrize("range_bytes", RANGES)
def test_records_between_damage_and_the_end_of_a_file_keep_their_units(
    whole: StoreCopy, store: StoreCopy, range_bytes: int, back: int
) -> None:
    """They are too few to be sure, and are found when the damage is looked at: in all of their queues."""
    files: dict[str, list[Found]] = {}
    for each in whole.records():
        files.setdefault(each.path, []).append(each)
    damaged = [found[-back] for found in list(files.values())[:2]]
    for each in damaged:
        store.flip(each.path, each.position + 4, 3)

    said = store.said(range_bytes)

    assert said == [("record-magic", each.path, each.record.offset) for each in damaged]


@pytest.mark.parametrize("range_bytes", RANGES)
def test_a_record_between_damaged_ones_keeps_its_units(
    whole: StoreCopy, store: StoreCopy, range_bytes: int
) -> None:
    """It is found when the damage is looked at: in its light queues, and as an inner batch."""
    records = list(whole.records())
    damaged = []
    for name, begin in (("INNER_MULTI_DISPATCH", 100), ("INNER_NUM", 150)):
        at = next(at for at in range(begin, 300) if name in records[at].properties)
        damaged += [records[at - 1], records[at + 1]]
    for each in damaged:
        store.flip(each.path, each.position + 4, 3)

    report = store.check(range_bytes)

    assert {each.code for each in report.findings} == {"record-magic"}
    assert report.counters["records"] == 401 - 4


# -- extended units -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_flipped_bit_of_an_extended_unit_is_named(store: StoreCopy, seed: int) -> None:
    """One finding, with its file and first byte: all of it is known, as there are no bit maps."""
    draw = random.Random(seed)
    path, position = extended_unit(draw.randint(0, 148))
    store.flip(path, position + draw.randint(0, EXTENDED_UNIT - 1), draw.randint(0, 7))

    said = store.said(draw.choice(RANGES))

    assert said == [("ext-unit", path, int(path[-20:]) + position)]


@pytest.mark.parametrize("seed", range(25))
def test_an_address_that_leads_elsewhere_is_named(store: StoreCopy, seed: int) -> None:
    """Where it leads there is another unit, the inside of one, or nothing; without its highest bit it is no
    address, but wrong tags."""
    draw = random.Random(seed)
    number, bit = draw.randint(0, 99), draw.randint(0, 63)
    path = f"consumequeue/kinds-light/0/{0:020d}"
    store.flip(path, number * UNIT_SIZE + 12 + bit // 8, bit % 8)

    ((code, file, offset),) = store.said(draw.choice(RANGES))

    assert code in ("ext-unit", "ext-missing", "cq-tags")
    if code != "ext-unit":
        assert (file, offset) == (path, number)
    else:
        assert file.startswith(EXTENDED)


def test_zeros_in_extended_units_are_named(store: StoreCopy) -> None:
    path, position = extended_unit(60)
    store.write(path, position, bytes(EXTENDED_FILE - position))

    (finding,) = store.check().findings

    assert (finding.code, finding.file, finding.offset) == ("ext-unit", path, 60 * EXTENDED_UNIT)
    assert "38 behind it: zeros" in finding.text


def test_extended_files_that_are_short_or_gone_are_named(store: StoreCopy) -> None:
    """A short one by its size, and by the units that are not in it; of a lost one all units are named."""
    path = f"{EXTENDED}/0/{0:020d}"
    with (store.root / path).open("r+b") as file:
        file.truncate(1_000)
    short = store.said()
    (store.root / path).unlink()
    queue = f"consumequeue/kinds-light/0/{0:020d}"

    assert short[:2] == [("file-size", path, 1_000), ("ext-missing", queue, 50)]
    assert {code for code, _, _ in short[1:]} == {"ext-missing"}
    assert store.said()[0] == ("ext-missing", queue, 0)
    shutil.rmtree(store.root / "consumequeue_ext")
    assert [code for code, _, _ in store.said()] == ["ext-missing"] * 6  # of two queues in three log files


def test_files_of_a_wrong_kind_are_named(store: StoreCopy) -> None:
    """Foreign files among batch units and extended units stop Java as well."""
    for folder in (f"{BATCHES}/1", f"{EXTENDED}/1"):
        (store.root / folder / "notes.txt").write_text("x")

    said = {(code, file) for code, file, _ in store.said()}

    assert said == {("file-foreign", f"{folder}/notes.txt") for folder in (f"{BATCHES}/1", f"{EXTENDED}/1")}
