"""Faults under load in our servers and in Java's, with one client and one checker: `failover.py [--runs N] [--kinds …] [--only ours|java]
[--transactions RATE] [--timers RATE] [--pops RATE]`.

Calls `brokerset bench failover`, judges the kept histories once more from their files, writes the figures as JSON and prints a table.
Exit status 1 when ours broke a promise or a run could not be ended; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from brokerset_bench.faults import KINDS
from brokerset_bench.message_tables import message_tables
from brokerset_rig import stack
from brokerset_rig.history_check import check_file
from brokerset_rig.measuring import markdown


def measure(options: argparse.Namespace, histories: Path) -> tuple[dict[str, Any], int]:
    """The figures, and the exit status of the command."""
    command = [sys.executable, "-m", "brokerset_cli.main", "bench", "failover", "--json", "--runs", str(options.runs),
               "--keep-history", str(histories)]  # fmt: skip
    if options.kinds:
        command += ["--kinds", options.kinds]
    for name in ("transactions", "timers", "pops"):
        if getattr(options, name):
            command += [f"--{name}", str(getattr(options, name))]
    if options.port:
        command += ["--port", str(options.port)]
    if options.only != "ours":
        command += ["--java", str(stack.PEERS)]
    if options.only == "java":
        command.append("--java-only")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.returncode


def judged_again(histories: Path) -> list[str]:
    """What the files of our runs show that should not be, one line for each file."""
    wrong = []
    for file in sorted(histories.glob("*.jsonl")):
        verdict = check_file(file)
        if not verdict.ok:
            wrong.append(f"{file}: {dict(verdict.violations)}")
    return wrong


def table(results: dict[str, Any]) -> str:
    """Ours next to Java's."""
    javas: dict[str, Any] = results.get("java", {})
    columns = [("ours", results), *((f"Java, {variant}", found) for variant, found in javas.items())]
    heads = [f"{who}: p50 / p99 / max ms" for who, _ in columns]
    rows = []
    for kind in KINDS.values():
        if any(kind.name in found for _, found in columns):
            cells = [cell for _, found in columns for cell in cells_of(found.get(kind.name))]
            rows.append((kind.what, f"≤ {kind.goal_ms:,} ms", *cells))
    every = (part for head in heads for part in (head, "lost", "failed sends"))
    return markdown(("fault", "goal p99", *every), rows)


def message_markdown(results: dict[str, Any]) -> str:
    """What became of transactions and timers, ours next to Java's."""
    columns = [
        ("ours", results),
        *((f"Java, {variant}", one) for variant, one in results.get("java", {}).items()),
    ]
    measured = [(who, name, found[name]) for who, found in columns for name in KINDS if name in found]
    return "\n\n".join(markdown(heads, rows, (0, 1)) for heads, rows in message_tables(measured))


def cells_of(measurements: dict[str, Any] | None) -> tuple[str, str, str]:
    """Gap, losses and failures of one kind."""
    if measurements is None or not measurements["runs"]:
        return "–", "–", "–"
    unserved = (
        f" ({measurements['unserved']} of {measurements['runs']} never)" if measurements["unserved"] else ""
    )
    gap = " / ".join(
        "–" if measurements[key] is None else f"{measurements[key]:,.0f}"
        for key in ("p50Ms", "p99Ms", "maxMs")
    )
    return (
        f"{gap}{unserved}",
        f"{measurements['lost']:,} of {measurements['acked']:,}",
        f"{measurements['failedSends']:,}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--only", choices=["ours", "java"])
    parser.add_argument("--transactions", type=int, default=0, help="a second, besides the sends")
    parser.add_argument("--timers", type=int, default=0, help="a second, besides the sends")
    parser.add_argument("--pops", type=int, default=0, help="a second, besides the sends")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the histories, which are deleted otherwise")
    parser.add_argument("--out", type=Path, default=stack.ROOT / "build" / "bench-failover.json")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="brokerset-histories-") as folder:
        histories = options.keep or Path(folder)
        results, status = measure(options, histories)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"\n{table(results)}\n\n{message_markdown(results)}\n")
        wrong = judged_again(histories)
    for line in wrong:
        print(line)
    for name, measurements in results.items():
        if name != "java" and "notMeasured" in measurements:
            print(f"{name} was not measured: {measurements['notMeasured']}")
    return 1 if status or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
