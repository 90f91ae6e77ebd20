"""From values of rounds to medians, verdicts and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench import report, run
from tests.bench.cases import BROKER_CASES, LOADED_CASES
from tests.bench.goals import ROWS, Goal
from tests.bench.history import Record, append, from_line, read, to_line
from tests.bench.message_cases import MESSAGE_CASES
from tests.bench.pop_cases import POP_CASES
from tests.bench.ratios import Ratio, paired_ratio, sparkline
from tests.bench.replicas import WINDOWS, steady_rate
from tests.bench.secure_cases import SECURE_CASES


def a_record(
    commit: str = "abc", java: tuple[float, ...] = (100, 200), native: tuple[float, ...] = (300, 1000)
) -> Record:
    """One case, two rounds."""
    record = Record(
        commit, "2026-01-02 03:04", {"cores": 2}, {"rounds": 2}, {"java": "J", "native": "N"}, "java", []
    )
    for value in java:
        record.add("send-1k-64", "perSecond", "java", value)
    for value in native:
        record.add("send-1k-64", "perSecond", "native", value)
    return record


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    """Rounds without one of both count for nothing."""
    assert paired_ratio([10, 30, None, 8], [10, 10, 5]) == Ratio(2, 1, 3, 2)
    assert paired_ratio([1], [None]) is None


@pytest.mark.parametrize(
    ("goal", "value", "ratio", "floor", "reached"),
    [
        (Goal(least_ratio=4), 1, 4.0, None, True),
        (Goal(least_ratio=4), 1, 3.9, None, False),
        (Goal(most_ratio=0.5), 1, 0.6, None, False),
        (Goal(most_ratio=1, most=5), 6, 0.5, None, False),
        (Goal(most_ratio=1, most=5), 6, None, None, False),
        (Goal(most_ratio=1, most=5), 4, None, None, None),
        (Goal(least_ratio=2, least_of_floor=0.7), 70, 2.5, 100, True),
        (Goal(least_ratio=2, least_of_floor=0.7), 69, 2.5, 100, False),
        (Goal(), 1, 1.0, None, None),
    ],
)
def test_every_part_of_a_goal_must_be_reached(
    goal: Goal, value: float, ratio: float | None, floor: float | None, reached: bool | None
) -> None:
    """What cannot be compared is neither reached nor missed, unless another part is missed already."""
    assert goal.reached(value, ratio, floor) is reached


def test_a_missed_goal_is_named_with_what_was_measured() -> None:
    """3 × and 5 ×: the median is 4 × and reaches it; 2.5 × does not."""
    record = a_record()

    assert report.missed(record) == []
    assert report.missed(a_record(native=(250, 500))) == [
        "send 1 KB, window 64, native: 2.50 × (2.50–2.50), 375 /s; goal ≥ 4 ×"
    ]
    assert "4.00 × (3.00–5.00)" in report.results(record)


def test_two_commits_of_ours_are_compared_without_goals() -> None:
    """Goals are against Java."""
    record = replace(a_record(native=(50, 100)), base="native", sides={"native": "", "java": ""})

    assert report.missed(record) == []
    assert "goal" not in report.results(record)


def test_the_history_has_a_column_for_each_commit_with_its_newest_run() -> None:
    """The first commit was measured twice."""
    records = [a_record("one", native=(100, 200)), a_record("one", native=(200, 400)), a_record("two")]

    table = report.history(records, "native")

    assert "`one`, 2026-01-02 | `two`, 2026-01-02" in table
    assert "| send 1 KB, window 64 | 2.00 × | 4.00 × | ▅█ |" in table
    assert report.history(records, "python") == ""


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Line by line; a line that is none is named."""
    record = a_record()
    file = tmp_path / "data" / "history.jsonl"
    append(file, record)
    append(file, a_record("two"))

    assert from_line(to_line(record)) == record
    assert [one.commit for one in read(file)] == ["abc", "two"]
    assert read(tmp_path / "none") == []
    with file.open("a") as stream:
        stream.write("{}\n")
    with pytest.raises(ValueError, match="line 3"):
        read(file)


def test_every_case_has_a_row_and_every_row_a_case() -> None:
    """What is measured is shown."""
    cases = (*BROKER_CASES, *LOADED_CASES, *MESSAGE_CASES, *POP_CASES, *SECURE_CASES)
    names = {case.name for case in cases} | {f"replicas-{one}" for one in WINDOWS}

    assert {row.case for row in ROWS} == names | {"empty-slave", "memory", "start"}


def test_a_side_is_measured_first_only_once_in_as_many_rounds_as_there_are_sides() -> None:
    """Whoever always came first would have the quieter disk."""
    orders = [run.rotated(["java", "native", "python"], number) for number in range(4)]

    assert [order[0] for order in orders] == ["java", "native", "python", "java"]
    assert orders[1] == ["native", "python", "java"]


def test_another_checkout_is_the_base_where_java_is_not_measured(tmp_path: Path) -> None:
    """Its ratio would be read the wrong way round otherwise."""
    found = run.chosen_sides(
        run.parse(["--sides", "python", "--against", str(tmp_path), "--with", "a=1,b=2"])
    )

    assert [side.name for side in found] == [f"python of {tmp_path.name}", "python", "a=1,b=2"]
    assert found[0].checkout == tmp_path
    assert found[2].settings == {"a": "1", "b": "2"}


def test_the_steady_rate_of_a_copy_leaves_start_and_end_out() -> None:
    """From a tenth to nine tenths, and with what came before when all of it came at once."""
    mib = 1 << 20

    assert steady_rate([(0, 0), (1, mib), (5, 9 * mib), (9, 10 * mib)], 10 * mib) == pytest.approx(2)
    assert steady_rate([(0, 0), (2, 10 * mib)], 10 * mib) == pytest.approx(5)


def test_a_sparkline_needs_two_values() -> None:
    """The largest is the highest bar."""
    assert sparkline([1, 2, 4]) == "▃▅█"
    assert sparkline([1]) == ""
