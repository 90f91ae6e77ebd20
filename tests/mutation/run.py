"""Makes deliberate mistakes in copies of the product, one at a time, and shows that something notices each."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutations_broker import BROKER
from tests.mutation.mutations_client import CLIENT
from tests.mutation.mutations_controller import CONTROLLER
from tests.mutation.mutations_dledger import DLEDGER
from tests.mutation.mutations_pop import POP
from tests.mutation.mutations_raft import RAFT
from tests.mutation.mutations_replies import REPLIES
from tests.mutation.mutations_resets import RESETS
from tests.mutation.mutations_security import SECURITY
from tests.mutation.mutations_timers import TIMERS
from tests.mutation.mutations_transactions import TRANSACTIONS
from tests.mutation.table import Mutation, Seeds

ROOT = Path(__file__).resolve().parents[2]

ALL = (
    *(*RAFT, *CONTROLLER, *BROKER, *DLEDGER, *REPLIES, *RESETS, *TRANSACTIONS, *TIMERS, *POP, *CLIENT),
    *SECURITY,
)

SECONDS_MAX = 240
"""For the test or the seeds of one mutation; longer counts as not noticed."""


def problem(mutation: Mutation) -> str | None:
    """Why the mutation cannot be made; None if it can."""
    path = ROOT / mutation.path
    if not path.is_file():
        return "there is no such file"
    found = path.read_text().count(mutation.old)
    return None if found == 1 else f"the text occurs {found} times"


def command(caught_by: str | Seeds) -> list[str]:
    """What is run against the mistake; it ends with 1 if it notices."""
    if isinstance(caught_by, Seeds):
        where = ["--world", caught_by.world, "--first", str(caught_by.first), "--seeds", str(caught_by.count)]
        return [sys.executable, "-m", "tests.mutation.seeds", *where]
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", caught_by]


def outcome(mutation: Mutation) -> str:
    """What became of a mutation: `caught`, `survived`, or why neither can be said."""
    wrong = problem(mutation)
    if wrong is not None:
        return wrong
    folder, package, *rest = Path(mutation.path).parts
    with tempfile.TemporaryDirectory(prefix="mutation-") as made:
        copy = Path(made) / package
        shutil.copytree(ROOT / folder / package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        changed = copy.joinpath(*rest)
        changed.write_text(changed.read_text().replace(mutation.old, mutation.new))
        environment = {**os.environ, "PYTHONPATH": made, "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTEST_ADDOPTS", None)  # of a run that runs this one
        imported = f"import {package}; print({package}.__path__[0])"
        where = subprocess.run(
            [sys.executable, "-c", imported],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        if where != str(copy):
            return f"the copy is not what is imported: {where}"
        try:
            ended = subprocess.run(
                command(mutation.caught_by),
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not noticed within {SECONDS_MAX} s"
    match ended.returncode:
        case 0:
            return "survived"
        case 1:
            return "caught"
        case code:
            return f"the test itself ended with {code}: {(ended.stdout + ended.stderr)[-300:]}"


def timed_outcome(mutation: Mutation) -> tuple[str, float]:
    """The same, and how many seconds it took."""
    before = time.perf_counter()
    became = outcome(mutation)
    return became, time.perf_counter() - before


def chosen(count: int, turn: int) -> list[Mutation]:
    """So many of them, others in each turn; in any run of turns every one comes as often as the others."""
    if count <= 0 or count >= len(ALL):
        return list(ALL)
    return [ALL[(turn * count + number) % len(ALL)] for number in range(count)]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--count", type=int, default=0, help="so many, others each day; all without")
    parser.add_argument("--turn", type=int, default=int(time.time()) // 86_400, help="which part of them")
    parser.add_argument("--workers", type=int, default=1, help="so many at a time")
    asked = parser.parse_args()
    unknown = set(asked.names) - {mutation.name for mutation in ALL}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    wanted = [m for m in ALL if m.name in asked.names] if asked.names else chosen(asked.count, asked.turn)
    begun = time.perf_counter()
    bad = 0
    with ThreadPoolExecutor(asked.workers) as workers:
        for mutation, (became, seconds) in zip(wanted, workers.map(timed_outcome, wanted), strict=True):
            bad += became != "caught"
            print(f"{became:10} {seconds:6.1f} s  {mutation.name:36} {mutation.breaks}", flush=True)
    print(
        f"{len(wanted) - bad} of {len(wanted)} caught in {time.perf_counter() - begun:.0f} s ({len(ALL)} in all)"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
