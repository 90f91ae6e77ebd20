"""Stores of a Java broker in other layouts: the same messages, in dense queues, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.dledger import INDEX_UNIT_SIZE, CurrentTerm, LedgerCheckpoint, LedgerUnit
from brokerset_formats.epochs import decode_epoch_file
from brokerset_formats.fastjson import loads
from brokerset_formats.index_file import IndexTable
from brokerset_formats.records import BLANK, MAGIC_BLANK
from brokerset_rig.store_reading import Stored, queue_problems, read_ledger, read_store
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import JobFailed, Report
from brokerset_spark.jobs.running import LocalRunner

Unpack = Callable[[str], Path]
STORES = (
    "classic/broker-0",
    "killed/broker-0",
    "controller-mode/broker-0",
    "controller-mode/broker-1",
    "dledger/broker-0",
    "dledger/broker-1",
    "dledger-mixed/broker-0",
)
TARGETS = {
    "controller": MigrateOptions(to="controller"),
    "commitlog": MigrateOptions(to="commitlog"),
    "commitlog-small": MigrateOptions(to="commitlog", file_size=1 << 17),
    "dledger": MigrateOptions(to="dledger"),
    "dledger-pure": MigrateOptions(to="dledger", rewrite=True),
}
ROCKETMQ_NAMES = {
    "commitlog",
    "consumequeue",
    "index",
    "config",
    "checkpoint",
    "lock",
    "timerlog",
    "timerwheel",
}


pytestmark = pytest.mark.long


def run(source: Path, target: Path, options: MigrateOptions) -> Report:
    return migrate(LocalRunner(), str(source), str(target), options)


def contents(stored: list[Stored]) -> list[bytes]:
    return [each.content for each in stored]


@pytest.mark.parametrize("layout", TARGETS)
@pytest.mark.parametrize("name", STORES)
def test_every_message_is_the_same_in_every_layout(
    java_store: Unpack, tmp_path: Path, name: str, layout: str
) -> None:
    """All records follow each other as before, every byte but their offsets is the same, and queues are
    dense."""
    source = java_store(name)

    report = run(source, tmp_path / "target", TARGETS[layout])

    before, after = read_store(source), read_store(tmp_path / "target")
    assert contents(before) == contents(after)
    assert report.clean
    assert report.counters["recordsKept"] == len(before)
    assert queue_problems(tmp_path / "target") == []


@pytest.mark.parametrize("layout", TARGETS)
def test_files_have_their_exact_sizes_and_the_times_of_their_last_record(
    java_store: Unpack, tmp_path: Path, layout: str
) -> None:
    """Java refuses files of other sizes and foreign ones, and deletes files by their times."""
    options = TARGETS[layout]
    run(java_store("classic/broker-0"), tmp_path / "target", options)

    log = next((tmp_path / "target").glob("dledger-*/data"), tmp_path / "target" / "commitlog")
    files = sorted(log.iterdir())
    size = options.file_size or 1 << 20
    assert [path.stat().st_size for path in files] == [size] * len(files)
    assert [int(path.name) for path in files] == [size * number for number in range(len(files))]
    for path in files:
        last = [
            each
            for each in read_store(tmp_path / "target")
            if int(path.name) <= each.offset < int(path.name) + size
        ]
        assert path.stat().st_mtime_ns == last[-1].record.store_timestamp * 1_000_000
    for path in (tmp_path / "target" / "consumequeue").glob("*/*/*"):
        assert path.stat().st_size == 6_000
    assert not list((tmp_path / "target").rglob("*.part"))
    assert not (tmp_path / "target.brokerset-staging").exists()


def test_a_rewritten_target_has_nothing_but_what_rocketmq_knows(java_store: Unpack, tmp_path: Path) -> None:
    """No foreign file lies in a new store."""
    run(java_store("classic/broker-0"), tmp_path / "target", TARGETS["commitlog-small"])

    assert {path.name for path in (tmp_path / "target").iterdir()} == ROCKETMQ_NAMES


def test_there_and_back_again_gives_the_same_log(java_store: Unpack, tmp_path: Path) -> None:
    """CommitLog to DLedger and back to CommitLog gives the first log again, offsets included."""
    source = java_store("classic/broker-0")

    run(source, tmp_path / "ledger", TARGETS["dledger-pure"])
    run(tmp_path / "ledger", tmp_path / "back", TARGETS["commitlog"])

    before, after = read_store(source), read_store(tmp_path / "back")
    assert [(each.record, each.offset) for each in before] == [(each.record, each.offset) for each in after]


def test_queues_that_are_built_anew_are_those_of_java(java_store: Unpack, tmp_path: Path) -> None:
    """Units made from records have Java's bytes: offsets, sizes, tags, and delivery times of delayed
    messages."""
    source = java_store("classic/broker-0")

    run(source, tmp_path / "target", MigrateOptions(to="commitlog", rewrite=True))

    old = {path.relative_to(source): path.read_bytes() for path in source.glob("consumequeue/*/*/*")}
    new = {
        path.relative_to(tmp_path / "target"): path.read_bytes()
        for path in (tmp_path / "target").glob("consumequeue/*/*/*")
    }
    assert old == new


def test_an_index_that_is_built_anew_is_that_of_java(java_store: Unpack, tmp_path: Path) -> None:
    """The same keys in the same units; only where files are cut may differ, for Java leaves a file early."""
    source = java_store("dledger/broker-0")
    run(source, tmp_path / "once", MigrateOptions(to="commitlog"))
    classic = java_store("classic/broker-0")

    run(classic, tmp_path / "target", MigrateOptions(to="commitlog", rewrite=True))

    assert index_entries(tmp_path / "target") == index_entries(classic)
    moved = dict(
        zip(
            [e.offset for e in read_store(source)],
            [e.offset for e in read_store(tmp_path / "once")],
            strict=True,
        )
    )
    assert index_entries(tmp_path / "once") == [(key, moved[offset]) for key, offset in index_entries(source)]


def index_entries(store: Path) -> list[tuple[int, int]]:
    """Hash and offset of each unit, oldest first, each of them found by its key."""
    found = []
    for path in sorted((store / "index").iterdir()):
        data = bytearray(path.read_bytes())
        table = IndexTable(data, 1000, 4000)
        for number in range(1, table.next_unit):
            position = 40 + 4 * 1000 + 20 * number
            key = int.from_bytes(data[position : position + 4], "big")
            offset = int.from_bytes(data[position + 4 : position + 12], "big")
            found.append((key, offset))
            assert offset in table.query(key, 10_000, 0, 2**62)
    return found


def test_a_divided_store_ends_with_a_blank_record(java_store: Unpack, tmp_path: Path) -> None:
    """Java begins its DLedger behind the last file, so nothing may follow in it, and no DLedger is made."""
    source = java_store("classic/broker-0")

    run(source, tmp_path / "target", TARGETS["dledger"])

    last = sorted((tmp_path / "target" / "commitlog").iterdir())[-1]
    stored = read_store(source)[-1]
    end = stored.offset + stored.size - int(last.name)
    data = last.read_bytes()
    assert BLANK.unpack_from(data, end) == (len(data) - end, MAGIC_BLANK)
    assert not any(data[end + 8 :])
    assert not list((tmp_path / "target").glob("dledger-*"))


def test_a_pure_dledger_has_its_index_and_knows_that_all_is_committed(
    java_store: Unpack, tmp_path: Path
) -> None:
    """Every entry has its unit, the last one is committed, and the term is that of the entries."""
    options = MigrateOptions(to="dledger", rewrite=True, ledger_id="n2", term=7)

    run(java_store("classic/broker-0"), tmp_path / "target", options)

    ledger = tmp_path / "target" / "dledger-n2"
    entries = read_ledger(tmp_path / "target")
    index = (ledger / "index" / f"{0:020d}").read_bytes()
    assert len(index) == 5 * 1024 * 1024 * INDEX_UNIT_SIZE
    for number, each in enumerate(entries):
        unit = LedgerUnit.decode(index, number * INDEX_UNIT_SIZE)
        assert unit == LedgerUnit(each.offset - 48, each.size + 48, number, 7)
    assert not any(index[len(entries) * INDEX_UNIT_SIZE :])
    last = len(entries) - 1
    assert LedgerCheckpoint.decode((ledger / "checkpoint").read_bytes()) == LedgerCheckpoint(last, last)
    assert CurrentTerm.decode((ledger / "currterm").read_bytes()) == CurrentTerm(7)


def test_controller_mode_gets_a_first_epoch(java_store: Unpack, tmp_path: Path) -> None:
    """A single epoch from the first byte on, and no identity: the controllers give one."""
    run(java_store("classic/broker-0"), tmp_path / "target", TARGETS["controller"])

    assert (tmp_path / "target" / "epochFileCheckpoint").read_text().endswith("\n1-0\n")
    assert not (tmp_path / "target" / "brokerIdentity").exists()


def test_epochs_of_a_group_stay_with_their_records(java_store: Unpack, tmp_path: Path) -> None:
    """After a rewrite each epoch begins with the record with which it began."""
    source = java_store("controller-mode/broker-0")
    old = decode_epoch_file((source / "epochFileCheckpoint").read_bytes())

    run(source, tmp_path / "target", MigrateOptions(to="controller", file_size=1 << 16))

    new = decode_epoch_file((tmp_path / "target" / "epochFileCheckpoint").read_bytes())
    before, after = read_store(source), read_store(tmp_path / "target")
    for one, other in zip(old.entries[:-1], new.entries, strict=False):
        number = next(i for i, each in enumerate(before) if each.offset >= one.start_offset)
        assert (other.epoch, after[number].offset) == (one.epoch, other.start_offset)
    assert new.entries[-1].start_offset <= after[-1].offset + after[-1].size


def test_leaving_a_group_leaves_epochs_and_identity_behind(java_store: Unpack, tmp_path: Path) -> None:
    """A plain broker gets neither."""
    run(java_store("controller-mode/broker-0"), tmp_path / "target", TARGETS["commitlog"])

    assert not (tmp_path / "target" / "epochFileCheckpoint").exists()
    assert not (tmp_path / "target" / "brokerIdentity").exists()


def test_committed_halves_are_found_where_they_lie_now(java_store: Unpack, tmp_path: Path) -> None:
    """preparedTransactionOffset of a committed message names its half message, at its new offset."""
    source = java_store("dledger/broker-0")
    before = read_store(source)

    run(source, tmp_path / "target", TARGETS["commitlog"])

    after = read_store(tmp_path / "target")
    moved = {one.offset: other.offset for one, other in zip(before, after, strict=True)}
    named = [
        (moved[one.record.prepared_transaction_offset], other.record.prepared_transaction_offset)
        for one, other in zip(before, after, strict=True)
        if one.record.prepared_transaction_offset
    ]
    assert named
    assert all(want == got for want, got in named)


def test_a_cut_keeps_queue_offsets_and_lowers_progress(java_store: Unpack, tmp_path: Path) -> None:
    """Messages between two offsets keep their numbers; progress behind a queue's end goes back to it."""
    source = java_store("classic/broker-0")
    options = MigrateOptions(to="commitlog", from_offset=1_000_001, until_offset=2_000_001, drop_timers=True)

    report = run(source, tmp_path / "target", options)

    kept = [each for each in read_store(source) if 1_000_001 <= each.offset < 2_000_001]
    assert contents(kept) == contents(read_store(tmp_path / "target"))
    assert queue_problems(tmp_path / "target") == []
    assert sorted((tmp_path / "target" / "commitlog").iterdir())[0].name != f"{0:020d}"
    table = loads((tmp_path / "target" / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    ends: dict[str, int] = {}
    for each in kept:
        ends[str(each.record.queue_id)] = each.record.queue_offset + 1
    assert table["fx-plain@fx-group"] == ends
    assert table["fx-delay@fx-delay-group"] == {"1": 0, "2": 0}
    assert report.counters["recordsLeftOut"] + report.counters["recordsKept"] == report.counters["records"]


def test_a_cut_by_time_begins_with_the_first_message_of_that_time(java_store: Unpack, tmp_path: Path) -> None:
    """Stored at the time or later, and before the other."""
    source = java_store("classic/broker-0")
    stored = read_store(source)
    first, last = stored[1200].record.store_timestamp, stored[2500].record.store_timestamp
    options = MigrateOptions(to="commitlog", from_time_ms=first, until_time_ms=last, drop_timers=True)

    run(source, tmp_path / "target", options)

    wanted = [each for each in stored if first <= each.record.store_timestamp < last]
    assert contents(wanted) == contents(read_store(tmp_path / "target"))


def test_dropped_topics_are_gone_everywhere(java_store: Unpack, tmp_path: Path) -> None:
    """No record, queue, setting or progress of a dropped topic is left; the others have everything."""
    source = java_store("classic/broker-0")

    report = run(source, tmp_path / "target", MigrateOptions(to="commitlog", drop_topics=("fx-p*",)))

    kept = [each for each in read_store(source) if not each.record.topic.startswith("fx-p")]
    assert contents(kept) == contents(read_store(tmp_path / "target"))
    assert not (tmp_path / "target" / "consumequeue" / "fx-plain").exists()
    config = tmp_path / "target" / "config"
    assert "fx-plain" not in loads((config / "topics.json").read_bytes())["topicConfigTable"]
    assert not [
        k for k in loads((config / "consumerOffset.json").read_bytes())["offsetTable"] if "fx-plain" in k
    ]
    assert report.facts["droppedTopics"] == {"fx-plain": 3000}
    assert not (config / "topics.json.bak").exists()


def test_waiting_timers_find_their_messages_or_are_given_up_by_name(
    java_store: Unpack, tmp_path: Path
) -> None:
    """The timer log names the new offset; when its message would go, the migration stops and says so."""
    source = java_store("dledger/broker-0")
    before = {each.offset: number for number, each in enumerate(read_store(source))}

    run(source, tmp_path / "target", TARGETS["commitlog"])

    old = (source / "timerlog" / f"{0:020d}").read_bytes()
    new = (tmp_path / "target" / "timerlog" / f"{0:020d}").read_bytes()
    after = read_store(tmp_path / "target")
    named = int.from_bytes(old[28:36], "big")
    assert after[before[named]].offset == int.from_bytes(new[28:36], "big")
    assert old[:28] + old[36:] == new[:28] + new[36:]
    with pytest.raises(JobFailed, match="1 messages wait in the timer wheel"):
        run(
            source, tmp_path / "without", MigrateOptions(to="commitlog", drop_topics=("rmq_sys_wheel_timer",))
        )


def test_copies_share_no_file_with_their_source(java_store: Unpack, tmp_path: Path) -> None:
    """No hard links: a broker that changes the copy leaves the source alone."""
    source = java_store("classic/broker-0")

    run(source, tmp_path / "target", TARGETS["controller"])

    inodes = {path.stat().st_ino for path in source.rglob("*")}
    assert not [path for path in (tmp_path / "target").rglob("*") if path.stat().st_ino in inodes]
    assert not [
        path for path in (tmp_path / "target").rglob("*") if path.is_file() and path.stat().st_nlink > 1
    ]


def test_nothing_in_the_source_changes(java_store: Unpack, tmp_path: Path) -> None:
    """Names, sizes, times and bytes are what they were."""

    def state() -> dict[str, tuple[int, int, bytes]]:
        found = {}
        for folder, _, names in os.walk(source):
            for name in names:
                path = Path(folder) / name
                facts = path.stat()
                small = path.read_bytes() if facts.st_size < 2 << 20 else b""
                found[str(path)] = (facts.st_size, facts.st_mtime_ns, small)
        return found

    source = java_store("dledger-mixed/broker-0")
    before = state()

    run(source, tmp_path / "target", TARGETS["commitlog"])

    assert state() == before
