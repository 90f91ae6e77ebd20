"""Records whose topic, queue or queue offset is damaged: no CRC covers those, and their queue shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_rig.made_stores import Place, damage, message, write_log
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import JobFailed, Level
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import verify

QUEUE_ID, QUEUE_OFFSET = 12, 20
"""Positions in a record."""


def made(tmp_path: Path, *, entries: bool = True) -> tuple[Path, list[Place]]:
    """A log without any queue."""
    return tmp_path / "store", write_log(tmp_path / "store", [message(n) for n in range(70)], entries=entries)


OPTIONS = MigrateOptions(to="commitlog", take_uncommitted=True, rewrite=True)
ACCEPTED = MigrateOptions(to="commitlog", take_uncommitted=True, rewrite=True, accept_queue_faults=True)


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize(
    ("number", "position", "data", "said"),
    [
        (67, QUEUE_OFFSET + 7, b"\x90", "queue %RETRY%group/3: no record has queue offset 16 to 143"),
        (67, QUEUE_OFFSET + 1, b"\x10", "queue %RETRY%group/3: no record has queue offset 16 to"),
        (33, QUEUE_ID + 2, b"\x10", "queue payments/1: no record has queue offset 8 "),
        (69, QUEUE_OFFSET + 7, b"\x10", "queue payments/1: several records have queue offset 16 "),
        (66, QUEUE_OFFSET, b"\x80", "queue näme/2: a record says queue offset -"),
    ],
)
def test_queues_that_no_broker_would_make_are_not_published(
    tmp_path: Path, entries: bool, number: int, position: int, data: bytes, said: str
) -> None:
    """`verify` would reject them; the first fault is named, and nothing is at the target."""
    store, places = made(tmp_path, entries=entries)
    damage(places[number], position, data)

    with pytest.raises(JobFailed, match="records are lost, or name a wrong") as failed:
        migrate(LocalRunner(), str(store), str(tmp_path / "target"), OPTIONS)

    assert said in str(failed.value)
    assert not (tmp_path / "target").exists()


def test_faults_of_queues_may_be_accepted_and_are_told(tmp_path: Path) -> None:
    """A warning tells of the place holders, and `verify` finds them and nothing else."""
    store, places = made(tmp_path)
    damage(places[33], QUEUE_ID + 2, b"\x10")

    report = migrate(LocalRunner(), str(store), str(tmp_path / "target"), ACCEPTED)

    assert (report.exit_code, report.counters["finding.queue-hole"]) == (0, 1)
    checked = verify(LocalRunner(), str(tmp_path / "target"))
    errors = [each for each in checked.findings if each.level is Level.ERROR]
    assert [each.code for each in errors] == ["cq-blank"]


def test_place_holders_without_end_are_never_made(tmp_path: Path) -> None:
    """Even if faults are accepted: a wrong bit may ask for more of them than any disk can hold."""
    store, places = made(tmp_path)
    damage(places[67], QUEUE_OFFSET + 1, b"\x10")

    with pytest.raises(JobFailed, match=r"queue offset 16 to \d{16} "):
        migrate(LocalRunner(), str(store), str(tmp_path / "target"), ACCEPTED)


def test_verify_names_what_a_log_without_queues_lacks(tmp_path: Path) -> None:
    """It does not call clean what `migrate` refuses."""
    store, places = made(tmp_path, entries=False)
    assert verify(LocalRunner(), str(store)).clean
    damage(places[33], QUEUE_ID + 2, b"\x10")

    report = verify(LocalRunner(), str(store))

    errors = [each for each in report.findings if each.level is Level.ERROR]
    assert [(each.code, each.offset, each.end) for each in errors] == [("queue-gap", 8, 9)]
