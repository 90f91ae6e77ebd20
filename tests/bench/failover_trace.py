"""What a failover spends its time on: `failover_trace.py DIR`, where `brokerset bench failover --keep-history DIR` was.

Prints a Markdown table for each kind of fault: when each step was done, in milliseconds after the last acknowledgement by the old
master, as the median and the maximum of all runs. Times are of the servers' logs and of the client's history, on one machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from brokerset_bench.history import read_events
from brokerset_rig.measuring import markdown

Line = Mapping[str, Any]
STEPS: dict[str, Callable[[Line], float | None]] = {
    "the leading controller hears that the master's connection has ended": lambda line: at(
        line, "broker disconnected"
    ),
    "the election is committed": lambda line: at(line, "elected master"),
    "the new master is told and begins to switch": lambda line: (
        line["time"] - line["total_ms"] / 1000 if is_switch(line) else None
    ),
    "it may serve (epoch written, lease held)": lambda line: at(line, "role changed", role="master"),
    "it has switched": lambda line: line["time"] if is_switch(line) else None,
    "a name server has it in its routes": lambda line: at(line, "broker registered", id=0),
    "a slave follows it": lambda line: at(line, "a slave follows"),
}
"""When a line of a log says that a step is done; the first one after the fault counts."""


def at(line: Line, event: str, **fields: object) -> float | None:
    found = line["event"] == event and all(line.get(name) == value for name, value in fields.items())
    return float(line["time"]) if found else None


def is_switch(line: Line) -> bool:
    return at(line, "role switched", role="master") is not None


@dataclass(frozen=True)
class Run:
    """One history, on the wall clock."""

    fault: float
    last_by_old: float
    first_by_new: float


def read_run(path: Path) -> Run | None:
    """None when nobody took over. Raises ValueError if the history does not say how its clock stands."""
    with path.open("rb") as lines:
        events = list(read_events(lines))
    clock = next((event for event in events if event["kind"] == "clock"), None)
    if clock is None:
        raise ValueError(f"{path} has no `clock` event: it was made by an older version; measure again")
    offset = datetime.fromisoformat(clock["why"]).timestamp() - clock["t"]
    fault = next(event for event in events if event["kind"] == "fault")
    acks = [event for event in events if event["kind"] == "ack"]
    first = next(
        (ack["t"] for ack in acks if ack["t"] > fault["t"] and ack["broker"] != fault["broker"]), None
    )
    if first is None:
        return None
    last = max(ack["t"] for ack in acks if ack["broker"] == fault["broker"] and ack["t"] <= first)
    return Run(fault["t"] + offset, last + offset, first + offset)


def read_lines(folder: Path) -> Iterator[dict[str, Any]]:
    for file in folder.glob("*.log"):
        for text in file.read_text().splitlines():
            if text.startswith("{"):
                line = json.loads(text)
                yield {**line, "time": datetime.fromisoformat(line["timestamp"]).timestamp()}


def steps_of(run: Run, lines: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds from the last acknowledgement by the old master to each step."""
    found = {"the fault": run.fault, "**the new master's first acknowledgement arrives**": run.first_by_new}
    for name, step in STEPS.items():
        times = [
            time
            for line in lines
            if (time := step(line)) is not None and run.fault <= time <= run.first_by_new + 1
        ]
        if times:
            found[name] = min(times)
    return {name: (time - run.last_by_old) * 1000 for name, time in found.items()}


def show(kind: str, runs: list[dict[str, float]]) -> None:
    names = {name for run in runs for name in run}
    rows = {name: [run[name] for run in runs if name in run] for name in names}
    head = f"`{kind}`: done after the last acknowledgement by the old master ({len(runs)} runs)"
    table = [
        (
            f"{name}{'' if len(times) == len(runs) else f' (in {len(times)} runs)'}",
            f"{statistics.median(times):.0f} ms",
            f"{max(times):.0f} ms",
        )
        for name, times in sorted(rows.items(), key=lambda row: statistics.median(row[1]))
    ]
    print(markdown((head, "p50", "maximum"), table), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    kinds: dict[str, list[dict[str, float]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        kind = path.stem.rpartition("-")[0]
        try:
            run = read_run(path)
        except ValueError as error:
            parser.error(str(error))
        if run is not None:
            lines = [line for logs in folder.glob(f"{kind}-*-logs") for line in read_lines(logs)]
            kinds.setdefault(kind, []).append(steps_of(run, lines))
    for kind, runs in kinds.items():
        show(kind, runs)


if __name__ == "__main__":
    main()
