"""`audit order` as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerset_protocol.bodies.ordered import SubjectStates
from brokerset_rig.order_audit_stores import partition_state, sent, subject_state, write_order_store
from brokerset_spark.commands.audit import audit


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    """Two broker groups, each with a partition; a message of the second is missing."""
    write_order_store(tmp_path / "a", [sent(number) for number in range(5)])
    second = [sent(number, partition=1) for number in (0, 1, 3)]
    write_order_store(tmp_path / "b", second, broker="broker-b")
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, ["order", *map(str, arguments), "--workers", "1"])


def test_a_clean_subject_ends_with_0_and_a_faulty_one_with_1(stores: list[str]) -> None:
    """With a table of the subjects, and what was found."""
    clean, faulty = call(stores[0]), call(*stores)

    assert (clean.exit_code, faulty.exit_code) == (0, 1)
    assert "clean: nothing found" in clean.output
    table = [line.split() for line in faulty.output.splitlines() if line.startswith("orders ")]
    assert table == [["orders", "Strict", "8", "1", "2", "1", "1", "0", "0", "0", "0", "0"]]
    assert "order-gap  orders/0 @ 2" in faulty.output


def test_the_report_is_that_of_all_jobs(tmp_path: Path, stores: list[str]) -> None:
    """JSON on standard output and in a file, a summary, findings as Parquet."""
    states = tmp_path / "states.json"
    older = partition_state(0, (0, 1024), sealed_end=5)
    newer = partition_state(1, (0, 1024), queue_id=0, broker="broker-b", generation=1)
    states.write_bytes(SubjectStates((subject_state(older, newer),)).to_json())

    done = call(*stores, "--states", states, "--json", "--report", tmp_path / "r.json", "--summary",
                tmp_path / "s.json", "--findings", tmp_path / "f.parquet")  # fmt: skip

    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "r.json").read_bytes())
    assert report["job"] == "audit order"
    assert [each["code"] for each in report["findings"]] == ["order-gap"]
    assert [row["generation"] for row in report["facts"]["partitions"]] == [0, 1]
    assert json.loads((tmp_path / "s.json").read_bytes())["counters"]["finding.order-gap"] == 1
    assert (tmp_path / "f.parquet").stat().st_size > 0


def test_without_a_subject_that_is_said(tmp_path: Path) -> None:
    """A store without stamps is clean, and says that nothing was judged."""
    write_order_store(tmp_path / "a", [])

    done = call(tmp_path / "a")

    assert done.exit_code == 0
    assert "no message has an order stamp" in done.output


def test_wrong_input_ends_with_its_code(tmp_path: Path, stores: list[str]) -> None:
    """A store that is not there, states that are none, a report inside a store."""
    (tmp_path / "states.json").write_text("{}")

    missing = call(tmp_path / "nowhere")
    wrong = call(stores[0], "--states", tmp_path / "states.json")
    inside = call(stores[0], "--report", Path(stores[0]) / "report.json")

    assert [each.exit_code for each in (missing, wrong, inside)] == [3, 3, 2]
    assert "brokerset subject describe --json" in wrong.output
    assert "lies inside the store" in inside.output
