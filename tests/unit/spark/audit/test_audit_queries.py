"""Queries and answers: where stores are apart, the record that differs is named as when they are together."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from brokerset_formats.errors import FormatError
from brokerset_rig.replica_stores import Log, flip, write_replica
from brokerset_spark.commands.audit import audit as command
from brokerset_spark.jobs.audit import Answer, AuditOptions, Query, ReplicaMap, audit, map_replica
from brokerset_spark.jobs.audit import answer as answer_query
from brokerset_spark.jobs.audit import records as reading
from brokerset_spark.jobs.audit.records import LISTED, RecordFacts
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner

RUNNER = LocalRunner()


def apart(stores: Sequence[Path], rounds: int = 3) -> tuple[Report, int]:
    """The report of stores that only answer, and after how many rounds nothing is asked any more."""
    maps = [ReplicaMap.from_json(map_replica(RUNNER, str(each)).to_json()) for each in stores]
    answers: list[Answer] = []
    for number in range(rounds):
        report = audit(RUNNER, maps, AuditOptions(answers=answers))
        if not report.further:
            return report, number
        answers += [answer(each) for each in json.loads(report.summary())["further"]]
    raise AssertionError(f"it asks permanently: {report.further}")


def answer(asked: dict[str, Any]) -> Answer:
    """What a store says, as it travels."""
    query = Query(
        asked["url"],
        asked["bound"],
        tuple((start, end) for start, end in asked["lists"]),
        tuple((offset, size) for offset, size in asked["shows"]),
    )
    return Answer.from_json(answer_query(RUNNER, query).to_json())


def with_sound_crc(store: Path, log: Log, number: int) -> int:
    """Change a byte of a body and its checksum: only a comparison sees that; returns the body's offset."""
    start = log.starts[number]
    path = next(iter(sorted((store / "commitlog").iterdir())))
    files = {int(each.name): each for each in path.parent.iterdir()}
    base = max(each for each in files if each <= start)
    with files[base].open("r+b") as stream:
        stream.seek(start - base)
        head = stream.read(88)
        size = struct.unpack(">i", head[84:88])[0]
        body = bytearray(stream.read(size))
        body[0] ^= 1
        stream.seek(start - base + 8)
        stream.write(struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF))
        stream.seek(start - base + 88)
        stream.write(body)
    return start + 88


def told(report: Report) -> list[tuple[str, str, int | None, str]]:
    return [(each.code, each.store, each.offset, each.text) for each in report.findings]


@pytest.mark.parametrize("number", [0, 7, 500, 999])
def test_what_only_the_comparison_sees_is_named_as_by_an_audit_of_all_stores_at_once(
    trio: list[Path], log: Log, number: int
) -> None:
    with_sound_crc(trio[1], log, number)

    report, rounds = apart(trio)

    assert rounds == 2, "first the records of the stretch are asked for, then one offset"
    together = audit(RUNNER, [str(each) for each in trio])
    assert told(report) == told(together)
    assert {(each.code, each.offset) for each in report.findings} == {("bytes", log.starts[number])}
    first = report.facts["pairs"][0]["firstDifference"]
    assert (first["field"], first["one"]["topic"], first["one"]["queue_id"]) == (
        "bodyCRC",
        "orders",
        number % 4,
    )
    assert first["one"]["queue_offset"] == number // 4


@pytest.mark.parametrize("within", [3, 4, 30, 100])
def test_a_record_that_is_destroyed_is_named_too(trio: list[Path], log: Log, within: int) -> None:
    flip(trio[2], log.starts[500] + within)

    report, _ = apart(trio)

    differing = [each for each in report.findings if each.code == "bytes"]
    assert {(each.offset, each.store) for each in differing} == {(log.starts[500], str(trio[2]))}
    first = next(p["firstDifference"] for p in report.facts["pairs"] if p["firstDifference"])
    assert first["byte"] == within


def test_nothing_is_asked_while_all_agree(trio: list[Path]) -> None:
    report, rounds = apart(trio)

    assert (rounds, report.findings, b"further" in report.summary()) == (0, [], False)


def test_a_fork_is_named_by_its_first_record_and_told_how_many_differ(tmp_path: Path) -> None:
    log = Log()
    log.fill(600)
    other = log.copy()
    log.fill(50, text="one ")
    other.fill(50, text="two ")
    stores = [
        write_replica(tmp_path / name, each, epochs=((1, 0),), confirmed=each.end, broker_id=number)
        for number, (name, each) in enumerate((("a", log), ("b", other)), 1)
    ]

    report, _ = apart(stores)

    (finding,) = (each for each in report.findings if each.code == "bytes")
    assert finding.offset == log.starts[600]
    assert "(50 records differ in what was read again)" in finding.text


def test_of_several_differences_the_first_is_named(trio: list[Path], log: Log) -> None:
    """They are in stretches of their own: only the first is asked for."""
    for number in (900, 100, 500):
        with_sound_crc(trio[1], log, number)

    report, rounds = apart(trio)

    assert rounds == 2
    assert {each.offset for each in report.findings} == {log.starts[100]}


def test_without_answers_the_stretch_is_named(trio: list[Path], log: Log) -> None:
    with_sound_crc(trio[1], log, 500)
    maps = [map_replica(RUNNER, str(each)) for each in trio]

    report = audit(RUNNER, maps)

    assert all("Audit both stores in one command" in each.text for each in report.findings)
    assert [each["url"] for each in report.further] == [str(each) for each in trio]


def test_a_stretch_with_too_many_records_is_listed_as_far_as_there_is_room(
    trio: list[Path], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the part that is listed is named; of the rest the stretch is told."""
    monkeypatch.setattr(reading, "RECORDS_MAX", 100)
    with_sound_crc(trio[1], log, 50)
    near, _ = apart(trio)
    with_sound_crc(trio[1], log, 50)
    with_sound_crc(trio[1], log, 150)

    far, rounds = apart(trio)

    assert {each.offset for each in near.findings} == {log.starts[50]}
    assert rounds == 1, "there is no use in asking the same again"
    assert all("differ between" in each.text for each in far.findings)
    assert far.exit_code == 1


def test_a_store_that_has_lost_the_difference_meanwhile_is_told_so(trio: list[Path], log: Log) -> None:
    with_sound_crc(trio[1], log, 500)
    maps = [map_replica(RUNNER, str(each)) for each in trio]
    asked = audit(RUNNER, maps).further
    with_sound_crc(trio[1], log, 500)

    report = audit(RUNNER, maps, AuditOptions(answers=[answer(each) for each in asked]))

    assert report.further == []
    assert all("no record differs now" in each.text for each in report.findings)


def test_the_largest_answer_fits_a_config_map() -> None:
    """Sizes and hashes at random, and all the bytes that are shown."""
    random = np.random.default_rng(7)
    records = np.empty(reading.RECORDS_MAX, LISTED)
    records["offset"] = np.cumsum(random.integers(150, 4000, reading.RECORDS_MAX)) + (1 << 42)
    records["hash"] = random.integers(0, 1 << 32, reading.RECORDS_MAX)

    listed = Answer(url="/stores/orders-0-1/store", records=records)
    facts = RecordFacts("", 1)
    shown = {at: (facts, os.urandom(reading.SHOWN_MAX)) for at in range(reading.SHOWS_MAX)}

    assert len(listed.to_json()) < 1_000_000
    assert len(Answer(url="/s", shown=shown).to_json()) < 1_000_000
    assert np.array_equal(Answer.from_json(listed.to_json()).records, records)


def test_questions_about_many_replicas_leave_room_in_a_summary() -> None:
    report = Report("audit")
    report.further = [
        asdict(Query(f"/stores/orders-with-a-long-name-{n}-0/store", 1 << 50, ((1 << 49, (1 << 49) + 1),)))
        for n in range(reading.REPLICAS_MAX)
    ]

    assert len(report.summary()) < 4_096


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"lookVersion": 2}', b'{"lookVersion": 1, "url": "a", "covered": 3}']
)
def test_what_is_no_answer_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        Answer.from_json(text)


def test_a_list_that_was_cut_is_refused() -> None:
    whole = json.loads(Answer(url="a", records=np.zeros(3, LISTED)).to_json())
    for records in (whole["records"][:-5], "ab~"):
        with pytest.raises(FormatError):
            Answer.from_json(json.dumps({**whole, "records": records}).encode())


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def test_the_commands_go_from_maps_to_the_record(tmp_path: Path, trio: list[Path], log: Log) -> None:
    with_sound_crc(trio[1], log, 500)
    maps = []
    for number, store in enumerate(trio):
        maps.append(tmp_path / f"{number}.map")
        assert call("map", store, "-o", maps[-1], "--workers", "1").exit_code == 0
    summary = tmp_path / "summary.json"
    given: list[str | Path] = []
    for step in range(2):
        assert call("reduce", *maps, *given, "--summary", summary, "--no-page").exit_code == 1
        for number, asked in enumerate(json.loads(summary.read_bytes())["further"]):
            answered = tmp_path / f"{step}-{number}.look"
            lists = [f"--list={start}:{end}" for start, end in asked["lists"]]
            shows = [f"--show={offset}:{size}" for offset, size in asked["shows"]]
            done = call(
                "look",
                asked["url"],
                "--bound",
                str(asked["bound"]),
                *lists,
                *shows,
                "-o",
                answered,
                "--workers",
                "1",
            )
            assert done.exit_code == 0, done.output
            given += ["--look", answered]

    done = call("reduce", *maps, *given, "--json", "--no-page")

    report = json.loads(done.stdout)
    assert {each["offset"] for each in report["findings"]} == {log.starts[500]}
    assert all("topic orders, queue 0, queue offset 125" in each["text"] for each in report["findings"])


@pytest.mark.parametrize("given", ["0", "1:", "a:b", "-1:5", f"0:{10**18}"])
def test_a_pair_that_is_none_is_refused(trio: list[Path], given: str) -> None:
    done = call("look", trio[0], "--bound", "5", f"--list={given}")

    assert done.exit_code == 2
    assert "write it like 0:16777216" in done.output


def test_a_file_that_is_no_answer_ends_with_code_3(tmp_path: Path, trio: list[Path]) -> None:
    answer_file = tmp_path / "a.look"
    answer_file.write_text("{}")
    made = tmp_path / "a.map"
    made.write_bytes(replace(map_replica(RUNNER, str(trio[0])), seconds=0.0).to_json())

    done = call("reduce", made, "--look", answer_file, "--no-page")

    assert done.exit_code == 3
    assert "no answer of a replica" in done.output
