"""The table of a failover's steps is made out of a history and the servers' logs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.bench.failover_trace import read_lines, read_run, steps_of

from brokerset_bench.history import History, body_of

WALL = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Clock:
    """Seconds of the history, which began at `WALL`."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def history_of(folder: Path, *, clock_noted: bool = True, taken_over: bool = True) -> Path:
    """One history: an acknowledgement, a fault 10 ms later, and the successor's after 100 ms."""
    clock = Clock()
    history = History(clock)
    if clock_noted:
        history.note("clock", why=WALL.isoformat())
    history.sent(1, 0, "old", body_of(1, 64))
    clock.now = 101.0
    history.acked(1, 0, 0, "old")
    clock.now = 101.010
    history.note("fault", broker="old")
    if taken_over:
        clock.now = 101.110
        history.acked(2, 0, 1, "new")
    path = folder / "killMaster-1.jsonl"
    history.write(path)
    return path


def write_log(folder: Path, *lines: tuple[float, dict[str, object]]) -> Path:
    """The log of one server: for each line its time in seconds of the wall clock after `WALL`."""
    folder.mkdir()
    start = WALL.timestamp()
    texts = [
        json.dumps({"timestamp": datetime.fromtimestamp(start + t, UTC).isoformat(), **fields})
        for t, fields in lines
    ]
    (folder / "server.log").write_text("\n".join(["not JSON", *texts]) + "\n")
    return folder


def test_each_step_is_told_from_the_last_acknowledgement_on(tmp_path: Path) -> None:
    """The first line after the fault counts; what happened before it, and what others did, doesn't."""
    logs = write_log(
        tmp_path / "logs",
        (0.5, {"event": "elected master"}),
        (1.020, {"event": "broker disconnected"}),
        (1.030, {"event": "elected master"}),
        (1.040, {"event": "role changed", "role": "slave"}),
        (1.050, {"event": "role changed", "role": "master"}),
        (1.060, {"event": "role switched", "role": "master", "total_ms": 25}),
        (1.090, {"event": "elected master"}),
    )
    run = read_run(history_of(tmp_path))
    assert run is not None

    steps = steps_of(run, list(read_lines(logs)))

    assert {name: round(time) for name, time in steps.items()} == {
        "the fault": 10,
        "the leading controller hears that the master's connection has ended": 20,
        "the election is committed": 30,
        "the new master is told and begins to switch": 35,
        "it may serve (epoch written, lease held)": 50,
        "it has switched": 60,
        "**the new master's first acknowledgement arrives**": 110,
    }


def test_a_run_in_which_nobody_took_over_has_no_steps(tmp_path: Path) -> None:
    assert read_run(history_of(tmp_path, taken_over=False)) is None


def test_a_history_without_its_clock_is_named(tmp_path: Path) -> None:
    """Times of logs and of the client can't be compared then; older versions made such files."""
    with pytest.raises(ValueError, match=r"killMaster-1\.jsonl has no `clock` event"):
        read_run(history_of(tmp_path, clock_noted=False))
