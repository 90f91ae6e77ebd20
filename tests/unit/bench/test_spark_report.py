"""The tables of Spark's benchmarks, from records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.bench import spark_report
from tests.bench.history import Record, from_line, to_line

PAGE = """
<!-- newest results: made by `make generate` -->
<!-- end -->
<!-- spark results: made by `make generate` -->
<!-- end -->
<!-- history: made by `make generate` -->
<!-- end -->
"""


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Sequence[Record]], str]:
    """`generate` lies at the root, which is no place that packages are taken from."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    from generate.benchmarks_page import renewed

    return renewed


def a_record(rate: float, case: str = "spark-lake") -> Record:
    machine = {"cores": 2, "memoryGiB": 24, "linux": "6", "python": "3.11"}
    size = {"messages": 20_000, "sent": 10_000, "runs": 1, "stores": "small"}
    record = Record(f"c{rate:.0f}", "2026-01-02 03:04", machine, size, spark_report.SIDES, "loop", [])
    for side, times in (("one", 1), ("two", 1.5)):
        for metric, value in (
            ("perSecond", 1000 * rate), ("mbPerSecond", rate), ("mbPerCpuSecond", rate / 2),
            ("driverMiB", 200),
        ):  # fmt: skip
            record.add(case, metric, side, value * times)
    return record


def test_the_page_has_the_newest_values_of_each_case(renewed: Callable[[str, Sequence[Record]], str]) -> None:
    """Rates, GB an hour, ratios to the plain side; records of other benchmarks are not among them."""
    others = Record("x", "2026-01-01 00:00", {}, {}, {}, "loop", [], {"send-1k": {}})
    old, new, stores = a_record(10), a_record(20), a_record(3000, "store-cp")
    stores.add("store-verify", "mbPerSecond", "one", 1000)
    stores.add("store-verify", "mbPerCpuSecond", "one", 750)
    records = [from_line(to_line(each)) for each in (others, old, stores, new)]

    page = renewed(PAGE, records)

    assert "c10" not in page
    assert "Commit `c20`" in page
    assert "Commit `c3000`" in page
    assert "| lake export into Delta, 1 executor | 20,000 | 20 | 10 | 1.00 × | 72 | 200 |" in page
    assert "| … 2 executors | 30,000 | 30 | 15 | 1.50 × | 108 | 300 |" in page
    assert "| `verify` | 1 | 1,000 | 750 | 0.50 × |  |" in page


def test_without_records_the_page_says_so(renewed: Callable[[str, Sequence[Record]], str]) -> None:
    """All three parts."""
    assert renewed(PAGE, []).count("Nothing has been recorded yet.") == 3
