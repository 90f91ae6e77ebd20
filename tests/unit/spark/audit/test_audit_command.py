"""`audit` as people and the operator call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerset_rig.replica_stores import Log, flip, write_replica
from brokerset_spark.commands.audit import audit


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    log = Log()
    log.fill(500)
    return [
        str(write_replica(tmp_path / f"store-{n}", log, epochs=((4, 0),), confirmed=log.end, broker_id=n))
        for n in (1, 2, 3)
    ]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(each) for each in arguments])


def files_of(stores: list[str]) -> list[tuple[str, int, int]]:
    found = [path for store in stores for path in Path(store).rglob("*")]
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found)


def test_one_command_writes_report_and_page_and_leaves_the_stores_alone(
    tmp_path: Path, stores: list[str]
) -> None:
    before = files_of(stores)

    done = call(
        *stores, "--report", tmp_path / "report.json", "--workers", "1", "--cache", tmp_path / "cache.json"
    )

    assert done.exit_code == 0, done.output
    assert "All 3 replicas hold the same bytes" in done.output
    assert f"page: {tmp_path / 'report.html'}" in done.output
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "report.json").read_bytes())["clean"]
    assert files_of(stores) == before


def test_maps_and_their_comparison_in_two_steps(tmp_path: Path, stores: list[str]) -> None:
    flip(Path(stores[1]), 10_000)
    maps = []
    for number, store in enumerate(stores):
        maps.append(tmp_path / f"{number}.map")
        assert call("map", store, "-o", maps[-1], "--workers", "1").exit_code == 0

    done = call("reduce", *maps, "--json", "--no-page")

    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert {each["code"] for each in report["findings"]} == {"damage", "bytes"}
    assert {each["store"] for each in report["findings"] if each["code"] == "damage"} == {stores[1]}


def test_a_map_goes_to_standard_output_as_one_line(stores: list[str]) -> None:
    done = call("map", stores[0], "--workers", "1")

    assert done.exit_code == 0
    assert done.stdout_bytes.count(b"\n") == 1
    assert json.loads(done.stdout)["records"] == 500


def test_the_view_of_the_controllers_is_taken_into_account(tmp_path: Path, stores: list[str]) -> None:
    view = {
        "groups": [{"brokerName": "broker-a", "masterId": 1, "masterEpoch": 3, "syncStateSet": [1, 2, 3]}]
    }
    (tmp_path / "status.json").write_text(json.dumps(view))

    done = call(*stores, "--controller", tmp_path / "status.json", "--no-page", "--workers", "1")

    assert done.exit_code == 1
    assert "epoch-ahead" in done.output


@pytest.mark.parametrize("option", ["--cache", "--page", "--report"])
def test_nothing_is_written_into_a_store(stores: list[str], option: str) -> None:
    before = files_of(stores)

    done = call(*stores, option, Path(stores[1]) / "commitlog" / "foreign")

    assert done.exit_code == 2
    assert "lies inside the store" in done.output
    assert files_of(stores) == before


def test_a_missing_store_and_a_file_that_is_no_map_end_with_code_3(tmp_path: Path, stores: list[str]) -> None:
    (tmp_path / "no.map").write_bytes(b"{}")

    missing, wrong = call(stores[0], tmp_path / "nowhere", "--no-page"), call("reduce", tmp_path / "no.map")

    assert (missing.exit_code, wrong.exit_code) == (3, 3)
    assert "nowhere" in missing.output
    assert "no map of a replica" in wrong.output
