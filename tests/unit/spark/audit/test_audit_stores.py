"""An audit of stores that were made here: clean ones are not accused, and each damage is named exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_formats.hashing import crc31
from brokerset_rig.replica_stores import FILE_SIZE, Log, flip, wipe, write_replica, write_replicas
from brokerset_spark.jobs.audit import AuditOptions, ControllerView, audit
from brokerset_spark.jobs.report import Finding, Level, NoInput, Report
from brokerset_spark.jobs.running import LocalRunner

EPOCHS_AT = 300
"""As in the conftest."""


def epochs_of(log: Log) -> tuple[tuple[int, int], ...]:
    return ((1, 0), (2, log.starts[EPOCHS_AT]))


def run(stores: Sequence[Path], confirmed: int | None = None, view: ControllerView | None = None) -> Report:
    return audit(LocalRunner(), [str(path) for path in stores], AuditOptions(confirmed=confirmed, view=view))


def named(report: Report) -> list[tuple[str, Level, str, int | None]]:
    return [(each.code, each.level, Path(each.store).name, each.offset) for each in report.findings]


def only(report: Report, code: str) -> Finding:
    (found,) = [each for each in report.findings if each.code == code]
    return found


def test_equal_replicas_are_clean_down_to_the_last_byte(trio: list[Path], log: Log) -> None:
    report = run(trio)

    assert report.findings == []
    assert report.counters["bytesNotCompared"] == 0
    assert report.counters["records"] == 3 * len(log.starts)
    assert {(pair["from"], pair["to"]) for pair in report.facts["pairs"]} == {(0, log.end)}
    assert report.facts["verdict"].endswith("no confirmed message would be lost whoever becomes master.")


@pytest.mark.parametrize("place", ["size", "magic", "physicalOffset", "body", "properties"])
@pytest.mark.parametrize("number", [0, 7, 500, 999])
def test_one_flipped_byte_is_named_by_record_queue_and_field(
    trio: list[Path], log: Log, place: str, number: int
) -> None:
    """Also in the first, and in the last record, whatever it destroys; and the two others stay unaccused."""
    start = log.starts[number]
    within = {"size": 3, "magic": 4, "physicalOffset": 30, "body": 100, "properties": 88 + 200 + 10 + 20}[
        place
    ]
    flip(trio[1], start + within)

    report = run(trio)

    bytes_findings = [each for each in report.findings if each.code == "bytes"]
    assert [each.offset for each in bytes_findings] == [start, start]
    assert {each.store for each in bytes_findings} == {str(trio[1])}
    first = next(
        pair for pair in report.facts["pairs"] if pair["one"] == "broker-a/1" and pair["firstDifference"]
    )
    assert first["other"] == "broker-a/2"
    difference = first["firstDifference"]
    assert difference["byte"] == within
    assert difference["field"] == {"properties": "topic or properties"}.get(place, place)
    assert difference["one"]["topic"] == "orders"
    assert difference["one"]["queue_id"] == number % 4
    assert difference["one"]["queue_offset"] == number // 4
    assert report.exit_code == 1
    assert "broker-a/2 must not become master" in report.facts["verdict"]


def test_damage_is_told_with_its_file_and_end_when_it_breaks_a_record(trio: list[Path], log: Log) -> None:
    path = flip(trio[2], log.starts[400] + 120)

    damage = only(run(trio), "damage")

    assert (damage.store, damage.offset, damage.end) == (str(trio[2]), log.starts[400], log.starts[401])
    assert damage.file == f"commitlog/{path.name}"
    assert "BAD_CRC" in damage.text


def test_zeros_inside_a_log_are_damage_and_do_not_hide_what_follows(trio: list[Path], log: Log) -> None:
    wipe(trio[0], log.starts[410], log.starts[420])

    report = run(trio)

    damage = only(report, "damage")
    assert (damage.offset, damage.end) == (log.starts[410], log.starts[420])
    assert {each.offset for each in report.findings if each.code == "bytes"} == {log.starts[410]}
    assert only_records(report) == {10}


def only_records(report: Report) -> set[int]:
    return {
        pair["recordsThatDiffer"] for pair in report.facts["pairs"] if pair["recordsThatDiffer"] is not None
    }


def test_zeros_from_the_middle_of_a_file_to_its_end_are_damage_since_the_log_goes_on_behind(
    trio: list[Path], log: Log
) -> None:
    begin = next(start for start in log.starts if start > FILE_SIZE + 1000)
    wipe(trio[0], begin, 2 * FILE_SIZE)

    report = run(trio)

    damage = only(report, "damage")
    assert (damage.offset, damage.end) == (begin, 2 * FILE_SIZE)
    assert not [each for each in report.findings if each.code == "confirm"]


def test_a_missing_file_is_named(trio: list[Path]) -> None:
    (trio[1] / "commitlog" / f"{FILE_SIZE:020d}").unlink()

    report = run(trio)

    assert "bytes are missing" in only(report, "files").text
    assert {each.offset for each in report.findings if each.code == "bytes"} == {FILE_SIZE}
    assert report.exit_code == 1


def test_a_truncated_replica_has_lost_what_it_knows_to_be_confirmed(trio: list[Path], log: Log) -> None:
    at = log.starts[900]
    wipe(trio[2], at, log.end)

    report = run(trio)

    finding = only(report, "confirm")
    assert (finding.store, finding.offset, finding.end) == (str(trio[2]), at, log.end)
    assert [each["lostFrom"] for each in report.facts["elections"]] == [None, None, at]
    assert "broker-a/3 must not become master" in report.facts["verdict"]
    assert not [each for each in report.findings if each.code in ("bytes", "damage")]


def test_a_torn_last_record_below_the_confirmed_offset_is_a_lost_end(trio: list[Path], log: Log) -> None:
    wipe(trio[0], log.starts[-1] + 50, log.end)

    report = run(trio)

    assert only(report, "confirm").offset == log.starts[-1]
    assert report.facts["elections"][0]["lostFrom"] == log.starts[-1]


def test_a_fork_below_one_epoch_and_start_is_found_by_bytes_alone(tmp_path: Path) -> None:
    """Two masters wrote different messages under the same epoch and start: nothing else can tell."""
    common = Log()
    common.fill(300)
    fork_at = common.end
    one, other = common.copy(), common.copy()
    one.fill(200, text="one")
    other.fill(200, text="two")
    epochs = ((1, 0), (2, common.starts[100]))
    stores = write_replicas(tmp_path, (one, epochs, one.end), (other, epochs, other.end))

    report = run(stores)

    assert [each.code for each in report.findings] == ["bytes"]
    finding = only(report, "bytes")
    assert finding.offset == fork_at
    assert finding.store == ""
    assert "Both are whole: two masters wrote here" in finding.text
    assert only_records(report) == {200}
    assert report.facts["pairs"][0]["firstDifference"]["field"] == "bodyCRC"


def test_among_three_a_fork_is_blamed_on_the_one_that_stands_alone(tmp_path: Path) -> None:
    common = Log()
    common.fill(50)
    one, other = common.copy(), common.copy()
    one.fill(20, text="one")
    other.fill(20, text="two")
    stores = [
        write_replica(tmp_path / name, made, epochs=((1, 0),), confirmed=made.end, broker_id=number)
        for number, (name, made) in enumerate([("a", one), ("b", other), ("c", one)], 1)
    ]

    report = run(stores)

    found = [each for each in report.findings if each.code == "bytes"]
    assert {(each.store, each.offset) for each in found} == {(str(stores[1]), common.end)}
    assert len(found) == 2


def test_a_replaced_master_with_an_unconfirmed_tail_is_a_warning_with_what_it_will_cut(
    tmp_path: Path, log: Log
) -> None:
    old, new = log.copy(), log.copy()
    old.fill(5, text="unconfirmed")
    new.fill(9, text="later")
    before, after = epochs_of(log), (*epochs_of(log), (3, log.end))
    stores = write_replicas(tmp_path, (old, before, log.end), (new, after, new.end))

    report = run(stores)

    finding = only(report, "truncate-point")
    assert (finding.level, finding.offset, finding.end) == (Level.WARNING, log.end, old.end)
    cuts = {each["replica"]: each for each in report.facts["matrix"]}
    assert cuts["broker-a/1"]["cutBytes"] == old.end - log.end
    assert cuts["broker-a/1"]["cutConfirmedBytes"] == 0
    assert report.facts["elections"][0]["lostFrom"] == log.end
    assert not [each for each in report.findings if each.code == "bytes"]


def test_two_logs_that_both_confirmed_what_the_other_lacks_are_an_error(tmp_path: Path, log: Log) -> None:
    one, other = log.copy(), log.copy()
    one.fill(5, text="one")
    other.fill(9, text="two")
    stores = write_replicas(
        tmp_path, (one, epochs_of(log), one.end), (other, (*epochs_of(log), (3, log.end)), other.end)
    )

    report = run(stores)

    finding = only(report, "truncate-point")
    assert (finding.level, finding.offset) == (Level.ERROR, log.end)
    assert only(report, "bytes").offset == log.end
    assert [each["cutConfirmedBytes"] for each in report.facts["matrix"]] == [
        one.end - log.end,
        other.end - log.end,
    ]


def test_a_replica_that_is_ahead_is_told_without_alarm(tmp_path: Path, log: Log) -> None:
    ahead = log.copy()
    ahead.fill(4)
    stores = write_replicas(tmp_path, (ahead, epochs_of(log), log.end), (log, epochs_of(log), log.end))

    report = run(stores)

    assert named(report) == [("truncate-point", Level.INFO, "a", log.end)]
    assert report.clean


def test_a_replica_behind_what_is_confirmed_is_an_error_only_when_it_counts_as_in_sync(
    tmp_path: Path, log: Log
) -> None:
    behind = log.copy(until=log.starts[800])
    stores = write_replicas(tmp_path, (log, epochs_of(log), log.end), (behind, epochs_of(log), behind.end))

    levels = {
        in_sync: only(run(stores, view=ControllerView("broker-a", 1, 2, frozenset(in_sync))), "confirm").level
        for in_sync in ((1, 2), (1,))
    }

    assert levels == {(1, 2): Level.ERROR, (1,): Level.INFO}
    assert only(run(stores), "confirm").level is Level.WARNING


def test_expired_heads_are_compared_from_where_both_have_bytes(tmp_path: Path, log: Log) -> None:
    stores = [
        write_replica(tmp_path / "a", log, epochs=epochs_of(log), confirmed=log.end, broker_id=1),
        write_replica(
            tmp_path / "b", log, epochs=epochs_of(log)[1:], confirmed=log.end, broker_id=2, expired=2
        ),
    ]
    assert log.starts[EPOCHS_AT] < 2 * FILE_SIZE

    clean = run(stores)
    flip(stores[0], log.starts[3] + 100)  # the other one has no bytes there
    elsewhere = run(stores)
    flip(stores[0], log.starts[-3] + 100)
    there = run(stores)

    assert clean.findings == []
    assert clean.facts["pairs"][0]["from"] == 2 * FILE_SIZE
    assert [each.code for each in elsewhere.findings] == ["damage"]
    assert only(there, "bytes").offset == log.starts[-3]


def test_different_bounds_are_compared_up_to_the_lower_one_only(tmp_path: Path, log: Log) -> None:
    half = log.starts[600]
    stores = write_replicas(tmp_path, (log, epochs_of(log), log.end), (log, epochs_of(log), half))

    clean = run(stores)
    flip(stores[1], half + 100)  # above what this one knows to be confirmed
    above = run(stores)
    flip(stores[1], log.starts[599] + 100)
    below = run(stores)

    assert clean.facts["pairs"][0]["to"] == half
    assert not [each for report in (clean, above) for each in report.findings if each.code == "bytes"]
    assert clean.counters["bytesNotCompared"] == above.counters["bytesNotCompared"] == 0
    assert only(below, "bytes").offset == log.starts[599]


def test_stores_without_a_confirmed_offset_are_compared_up_to_where_they_part(
    tmp_path: Path, log: Log
) -> None:
    one, other = log.copy(), log.copy()
    one.fill(5, text="one")
    other.fill(9, text="two")
    stores = write_replicas(
        tmp_path, (one, epochs_of(log), None), (other, (*epochs_of(log), (3, log.end)), None)
    )

    report = run(stores)

    assert report.facts["pairs"][0]["to"] == log.end
    assert named(report) == [("truncate-point", Level.WARNING, "", log.end)]


def test_without_a_confirmed_offset_a_bad_record_before_sound_ones_is_damage_where_others_go_on(
    tmp_path: Path, log: Log
) -> None:
    stores = [
        write_replica(tmp_path / each, log, epochs=epochs_of(log), broker_id=n) for n, each in enumerate("ab")
    ]
    flip(stores[0], log.starts[950] + 100)

    finding = only(run(stores), "damage")

    assert (finding.level, finding.store, finding.offset) == (Level.ERROR, str(stores[0]), log.starts[950])
    assert finding.end == log.starts[951]


def test_a_given_confirmed_offset_counts_for_all(trio: list[Path], log: Log) -> None:
    flip(trio[1], log.starts[700] + 100)

    below, above = run(trio, confirmed=log.starts[700]), run(trio, confirmed=log.starts[701])

    assert below.clean
    assert {each.offset for each in above.findings if each.code == "bytes"} == {log.starts[700]}


@pytest.mark.parametrize("within", [0, 1, 4, 50, 250])
def test_a_confirmed_offset_inside_a_record_accuses_nobody(trio: list[Path], log: Log, within: int) -> None:
    report = run(trio, confirmed=log.starts[500] + within)

    assert report.findings == []
    assert report.facts["replicas"][0]["bound"] == log.starts[500]
    assert report.facts["replicas"][0]["last"] == log.end


# -- epochs -----------------------------------------------------------------------------------------------


def set_epochs(store: Path, *pairs: tuple[int, int]) -> None:
    (store / "epochFileCheckpoint").write_bytes(encode_epoch_file(history_of(pairs)))


def set_lines(store: Path, text: str, *, name: str = "epochFileCheckpoint", crc: int | None = None) -> None:
    """An epoch file that our encoder would refuse to write."""
    data = text.encode()
    count = text.count("\n")
    (store / name).write_bytes(b"%d\n%d\n%s" % (count, crc31(data) if crc is None else crc, data))


def test_a_changed_start_is_named_by_epoch_replica_and_missing_record(trio: list[Path], log: Log) -> None:
    wrong = log.starts[EPOCHS_AT] + 8
    set_epochs(trio[1], (1, 0), (2, wrong))

    report = run(trio)

    assert {
        (each.code, each.store, each.offset) for each in report.findings if each.level is Level.ERROR
    } == {
        ("epoch-start", str(trio[1]), wrong),
        ("epoch-boundary", str(trio[1]), wrong),
        ("truncate-point", "", log.starts[EPOCHS_AT]),
    }


def test_a_start_moved_to_another_record_is_no_bad_boundary(trio: list[Path], log: Log) -> None:
    set_epochs(trio[1], (1, 0), (2, log.starts[EPOCHS_AT + 1]))

    report = run(trio)

    assert only(report, "epoch-start").store == str(trio[1])
    assert not [each for each in report.findings if each.code in ("epoch-boundary", "bytes")]


def test_an_epoch_may_start_at_the_end_of_a_log_or_where_a_file_is_closed(tmp_path: Path, log: Log) -> None:
    """The blank record that closes a file may be the first thing that a new master writes."""
    blank = next(log.starts[n - 1] for n, start in enumerate(log.starts) if start == FILE_SIZE)
    blank += int.from_bytes(log.data[blank : blank + 4], "big")
    epochs = ((1, 0), (2, blank), (3, 2 * FILE_SIZE), (4, log.end))
    stores = [
        write_replica(tmp_path / each, log, epochs=epochs, confirmed=log.end, broker_id=number)
        for number, each in enumerate("ab")
    ]

    assert run(stores).findings == []


def test_a_skipped_epoch_is_a_warning(trio: list[Path], log: Log) -> None:
    for store in trio:
        set_epochs(store, (1, 0), (2, log.starts[100]), (3, log.starts[101]))
    set_epochs(trio[2], (1, 0), (3, log.starts[101]))

    report = run(trio)

    assert named(report) == [("epoch-missing", Level.WARNING, "c", log.starts[100])]
    assert "a/1, broker-a/2" in report.findings[0].text


def test_an_epoch_above_that_of_the_controllers_is_named(trio: list[Path], log: Log) -> None:
    report = run(trio, view=ControllerView("broker-a", 1, 1, frozenset({1, 2, 3})))

    assert [each.code for each in report.findings] == ["epoch-ahead"] * 3
    assert not run(trio, view=ControllerView("broker-a", 1, 2, frozenset({1, 2, 3}))).findings


def test_epochs_out_of_order_are_named_though_the_checksum_is_right(trio: list[Path], log: Log) -> None:
    set_lines(trio[0], f"2-0\n1-{log.starts[EPOCHS_AT]}\n")

    finding = only(run(trio), "epoch-order")

    assert finding.store == str(trio[0])
    assert f"1-{log.starts[EPOCHS_AT]} stands behind 2-0" in finding.text


def test_a_damaged_epoch_file_is_replaced_by_its_backup_with_a_warning(trio: list[Path], log: Log) -> None:
    good = (trio[0] / "epochFileCheckpoint").read_bytes()
    (trio[0] / "epochFileCheckpoint.bak").write_bytes(good)
    set_lines(trio[0], "1-0\n2-77\n", crc=12345)

    report = run(trio)

    assert named(report) == [("epoch-file", Level.WARNING, "a", None)]
    assert report.facts["replicas"][0]["epochsFrom"] == "epochFileCheckpoint.bak"


def test_a_damaged_epoch_file_without_backup_is_an_error(trio: list[Path]) -> None:
    set_lines(trio[0], "1-0\n2-77\n", crc=12345)

    assert named(run(trio)) == [("epoch-file", Level.ERROR, "a", None)]


def test_a_log_without_epochs_beside_others_that_have_them_is_an_error(trio: list[Path]) -> None:
    (trio[2] / "epochFileCheckpoint").unlink()

    assert named(run(trio)) == [("epoch-file", Level.ERROR, "c", None)]


def test_no_common_epoch_needs_an_operator(trio: list[Path], log: Log) -> None:
    set_epochs(trio[2], (7, 0))

    report = run(trio)

    found = [each for each in report.findings if each.code == "truncate-point"]
    assert [each.level for each in found] == [Level.ERROR, Level.ERROR]
    assert all("no epoch in common" in each.text for each in found)


# -- who they are -----------------------------------------------------------------------------------------


def test_stores_of_different_brokers_are_refused_as_replicas(tmp_path: Path, log: Log) -> None:
    stores = [
        write_replica(tmp_path / name, log, confirmed=log.end, name=name, broker_id=number)
        for number, name in enumerate(["broker-a", "broker-b"])
    ]

    assert only(run(stores), "identity").level is Level.ERROR


def test_a_copy_of_a_replica_is_told_and_compared_all_the_same(tmp_path: Path, log: Log) -> None:
    stores = [write_replica(tmp_path / each, log, epochs=epochs_of(log), confirmed=log.end) for each in "ab"]
    flip(stores[1], log.starts[20] + 100)

    report = run(stores)

    assert only(report, "identity").level is Level.WARNING
    assert only(report, "bytes").store == str(stores[1])


def test_files_of_other_sizes_are_read_by_their_blank_records(tmp_path: Path, log: Log) -> None:
    """A slave with larger files has the blank records of its master in the middle of its own."""
    stores = [
        write_replica(tmp_path / "a", log, epochs=epochs_of(log), confirmed=log.end, broker_id=1),
        write_replica(
            tmp_path / "b",
            log,
            epochs=epochs_of(log),
            confirmed=log.end,
            broker_id=2,
            file_size=4 * FILE_SIZE,
        ),
    ]

    clean = run(stores)
    flip(stores[1], log.starts[600] + 100)
    flipped = run(stores)

    assert [each.code for each in clean.findings] == ["file-size"]
    assert clean.counters["bytesNotCompared"] == 0
    assert only(flipped, "bytes").offset == log.starts[600]
    assert only(flipped, "bytes").store == str(stores[1])


def test_a_folder_that_is_no_store_and_a_store_given_twice_are_refused(
    tmp_path: Path, trio: list[Path]
) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(NoInput, match="is no store"):
        run([tmp_path / "empty"])
    with pytest.raises(NoInput, match="twice"):
        run([trio[0], trio[0]])


def test_a_replica_that_is_still_empty_accuses_nobody(tmp_path: Path, log: Log) -> None:
    fresh = write_replica(tmp_path / "fresh", Log(), broker_id=3)
    full = write_replica(tmp_path / "full", log, epochs=epochs_of(log), confirmed=log.end)

    report = run([full, fresh])

    assert named(report) == [("confirm", Level.WARNING, "fresh", 0)]
    assert report.facts["elections"][1]["lostFrom"] == 0


# -- DLedger ----------------------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Log:
    made = Log(entries=True)
    made.fill(300, term=1)
    made.fill(300, term=4)
    return made


def test_equal_ledgers_are_clean_and_their_terms_are_their_epochs(tmp_path: Path, ledger: Log) -> None:
    report = run([write_replica(tmp_path / each, ledger, expired=n) for n, each in enumerate("ab")])

    assert report.findings == []
    assert report.facts["replicas"][0]["epochs"] == [[1, 0], [4, ledger.starts[300]]]
    assert report.facts["replicas"][0]["confirmed"] == ledger.end


def test_a_flipped_byte_of_a_ledger_is_named_by_its_entry(tmp_path: Path, ledger: Log) -> None:
    stores = [write_replica(tmp_path / each, ledger) for each in "abc"]
    flip(stores[0], ledger.starts[333] + 48 + 100)

    report = run(stores)

    found = [each for each in report.findings if each.code == "bytes"]
    assert {(each.store, each.offset) for each in found} == {(str(stores[0]), ledger.starts[333])}
    assert report.facts["pairs"][0]["firstDifference"]["other"]["queue_offset"] == 333 // 4
    assert report.facts["pairs"][0]["firstDifference"]["field"] == "body"


def test_uncommitted_entries_of_another_leader_are_no_difference(tmp_path: Path, ledger: Log) -> None:
    old, new = ledger.copy(), ledger.copy()
    old.fill(3, text="old", term=4)
    new.fill(5, text="new", term=5)
    stores = write_replicas(tmp_path, (old, (), ledger.end), (new, (), new.end))

    assert not [each for each in run(stores).findings if each.code in ("bytes", "damage")]
