"""`verify` and `inspect` on stores that a Java broker wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerset_rig.made_stores import unpacked_once
from brokerset_spark.jobs.inspect import InspectOptions, inspect
from brokerset_spark.jobs.report import NoInput
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import VerifyOptions, verify

FIXTURES = Path(__file__).parents[3] / "peers" / "fixtures"
MANIFEST: dict[str, Any] = json.loads((FIXTURES / "manifest.json").read_text())
STORES = [(name, store) for name in sorted(MANIFEST) for store in sorted(MANIFEST[name]["stores"])]
STORES = [each for each in STORES if each[1].startswith("broker")]


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks an archive of stores once."""
    return unpacked_once(tmp_path_factory)


@pytest.mark.parametrize(("name", "store"), STORES)
def test_stores_of_java_are_clean(unpack: Callable[[str], Path], name: str, store: str) -> None:
    """Every unit that is there has its record and the other way round, in ranges of any size; nothing is
    found."""
    root = str(unpack(name) / store / "store")
    units = sum(MANIFEST[name]["stores"][store]["consumequeueUnits"].values())

    for range_bytes in (1 << 27, 100_000):
        report = verify(LocalRunner(), root, VerifyOptions(range_bytes=range_bytes))

        assert [(each.code, each.text) for each in report.findings] == []
        assert report.counters["records"] == report.counters["queue.units"] == units
        assert report.facts["closed"] == (not MANIFEST[name]["stores"][store]["abort"])


@pytest.mark.parametrize(("name", "store"), STORES)
def test_inspect_counts_what_the_queues_have(unpack: Callable[[str], Path], name: str, store: str) -> None:
    """Messages by queue are the units that the manifest counts; bytes by any division add up."""
    report = inspect(LocalRunner(), str(unpack(name) / store / "store"), InspectOptions(range_bytes=100_000))

    counted = {f"{row['topic']}/{row['queue']}": row["messages"] for row in report.facts["queues"]}
    units = MANIFEST[name]["stores"][store]["consumequeueUnits"]
    assert counted == {queue: count for queue, count in units.items() if count}
    for table in ("topics", "queues", "days", "sizes"):
        assert sum(row["bytes"] for row in report.facts[table]) == report.counters["bytes"]


def test_a_running_store_is_read_up_to_its_bound(unpack: Callable[[str], Path]) -> None:
    """Behind the bound nothing is looked at, nor missed."""
    report = verify(LocalRunner(), str(unpack("killed") / "broker-0" / "store"), VerifyOptions(bound=500_000))

    assert report.findings == []
    assert report.facts["live"]
    assert 0 < report.counters["records"] < 3029


def test_a_part_of_the_log_is_read(unpack: Callable[[str], Path]) -> None:
    """Only records that begin in the asked part are counted, and what lies outside is not missed."""
    report = verify(
        LocalRunner(),
        str(unpack("classic") / "broker-0" / "store"),
        VerifyOptions(start=300_001, end=700_000),
    )

    assert [each.code for each in report.findings] == []
    assert 300 < report.counters["records"] < 600


def test_a_folder_without_a_log_is_no_input(tmp_path: Path) -> None:
    """It says what a store is."""
    with pytest.raises(NoInput, match="no commit log"):
        verify(LocalRunner(), str(tmp_path))
