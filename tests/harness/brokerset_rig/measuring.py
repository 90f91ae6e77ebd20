"""What the benchmarks share: arguments, medians and latencies, use of processes, and tables in Markdown."""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brokerset_bench.measurements import percentile
from brokerset_rig import stack


def arguments(
    description: str | None, out: str, sizes: Iterable[str] = ("small", "full")
) -> argparse.ArgumentParser:
    """`--size`, `--only` and `--out`, by default a file of `build`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=list(sizes), default="small")
    parser.add_argument("--only", choices=["ours", "java"])
    parser.add_argument("--out", type=Path, default=stack.ROOT / "build" / out)
    return parser


def makes(options: argparse.Namespace) -> list[str]:
    """Who is measured, in this order; the folder of `--out` is there then."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return ["java", "ours"] if options.only is None else [options.only]


def middle(entry: Mapping[str, Any], key: str) -> float | None:
    """The median of a measurement, or its only value; None when it was not made."""
    value = entry.get(key)
    if isinstance(value, dict):
        value = value["median"]
    return None if value is None else float(value)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds: median, 99th percentile, maximum."""
    ordered = sorted(seconds)
    return {
        "p50ms": round(statistics.median(ordered) * 1e3, 3),
        "p99ms": round(percentile(ordered, 0.99) * 1e3, 3),
        "maxms": round(ordered[-1] * 1e3, 3),
        "count": len(ordered),
    }


def wrong_answers(results: Mapping[str, Any]) -> list[str]:
    """Names of the measurements in which an answer was wrong."""
    return [name for name, entry in results.items() if isinstance(entry, dict) and entry.get("ok") is False]


def cpu_seconds(*pids: int) -> float:
    """Processor time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Of a process, in MiB: resident, the most of it so far, and what is no page of a file."""
    found = {}
    for name, file, field in (
        ("resident", "status", "VmRSS"),
        ("residentMost", "status", "VmHWM"),
        ("anonymous", "smaps_rollup", "Anonymous"),
    ):
        match = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
        assert match is not None
        found[name] = round(int(match[1]) / 1024, 1)
    return found


def shown(value: float | None, unit: str, more: str = "") -> str:
    """A measurement with its unit."""
    return "–" if value is None else f"{value:,.6g} {unit}{more}".strip()


def ratio(ours: float | None, java: float | None) -> str:
    """How many times Java's ours is."""
    return f"{ours / java:.2f} ×" if ours is not None and java else "–"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: Container[int] = (0,)) -> str:
    """A table; columns whose numbers are not in `texts` are aligned to the right."""
    rule = ["---" if number in texts else "---:" for number in range(len(columns))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (columns, rule, *rows))
