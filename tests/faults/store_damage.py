"""Stores damaged at random under the jobs: `store_damage.py [--damages N] [--seed N] [--jobs-every N]`.

Each damage is done to a store that was closed, one whose broker was killed, and one that a broker has open.
The data source's planning and kernels read each of them; every so many are exported, verified, inspected and
migrated as well, and some go through the command line. Prints progress and a summary; exit code 1 when a
message was lost without a word, or something was published that `verify` rejects.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from brokerset_rig.store_damages import (
    STATES,
    Case,
    Given,
    Places,
    draw_case,
    judge_jobs,
    judge_reading,
    laid_out,
    quiet_logs,
)

SHOWN_MAX = 30
COMMAND_SECONDS = 600


def by_command(places: Places, case: Case, given: Given, folder: Path) -> list[str]:
    """What differs when `export` is started as a user does it: its exit code."""
    with places.with_damage(case) as store:
        command = [
            sys.executable,
            "-m",
            "brokerset_spark",
            "export",
            str(store),
            str(folder / f"c{case.number}"),
        ]
        done = subprocess.run(
            [*command, "--include-system-topics", "--workers", "1"],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
    said = done.stdout[-300:] + done.stderr[-300:]
    if (done.returncode == 0) != (not given.error):
        return [f"the command ends with {done.returncode}: {said}; the data source says {given.error!r}"]
    return []


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first damage")
    parser.add_argument(
        "--jobs-every", type=int, default=25, help="damages of which one goes through all jobs"
    )
    parser.add_argument("--commands", type=int, default=12, help="cases that go through the command line")
    given = parser.parse_args()
    quiet_logs()
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    counts: Counter[str] = Counter()
    bad: list[str] = []
    began = said_at = time.monotonic()
    with tempfile.TemporaryDirectory(dir=shared) as folder, laid_out(Path(folder) / "stores") as places:
        for number in range(given.seed, given.seed + given.damages):
            for state in STATES:
                case = draw_case(places.bases, number, state)
                problems, reading = judge_reading(places, case)
                counts[f"{state}: {'refused, and read around' if reading.error else 'given'}"] += 1
                if number % given.jobs_every == 0:
                    problems += judge_jobs(places, case, reading, Path(folder) / "targets")
                    counts["through all jobs"] += 1
                if counts["by command"] < given.commands and number % max(given.damages // 10, 1) == 3:
                    problems += by_command(places, case, reading, Path(folder))
                    counts["by command"] += 1
                counts["cases"] += 1
                bad += [f"{case}: {each}" for each in problems]
                for each in problems[: max(0, SHOWN_MAX - len(bad))]:
                    print(f"WRONG {case}: {each}", flush=True)
            if time.monotonic() - said_at > 15:
                said_at = time.monotonic()
                print(
                    f"{number + 1 - given.seed} of {given.damages} damages, {counts['cases']} cases, {len(bad)} wrong, "
                    f"{said_at - began:.0f} s",
                    flush=True,
                )
    print(f"{given.damages} damages x {len(STATES)} states in {time.monotonic() - began:.0f} s")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    print(f"  wrong: {len(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
