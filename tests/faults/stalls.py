"""Run a command while its processes are stopped at random: `stalls.py [--all] [--seed N] -- pytest -q tests/integration`.

A machine with a busy disk or with neighbours stops processes for up to seconds now and then. A test that counts on quick answers
fails there once in a hundred runs; here it fails soon, and says which one it is. Ends with the exit code of the command.
`make stutter TESTS=…` is how to find such tests before CI does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

PAUSE_SECONDS_MIN = 0.1
STOP_SECONDS_MIN = 0.02


def living(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(each.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def stop_for(processes: list[int], seconds: float) -> bool:
    """Stop processes, and let them go on after so many seconds; False when all have gone."""
    stopped = [each for each in processes if _signalled(each, signal.SIGSTOP)]
    try:
        time.sleep(seconds if stopped else 0.0)
    finally:
        for process in stopped:
            _signalled(process, signal.SIGCONT)
    return bool(stopped)


def _signalled(process: int, number: signal.Signals) -> bool:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", action="store_true", help="stop the processes that it starts as well, one at a time"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="stop it and all that it starts at once, as a stopped machine does",
    )
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="mean pause between two stops"
    )
    parser.add_argument("--longest", type=float, default=0.7, metavar="SECONDS", help="longest stop")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    source = random.Random(options.seed)
    stops = 0
    command = subprocess.Popen(options.command)
    try:
        while command.poll() is None:
            time.sleep(source.uniform(PAUSE_SECONDS_MIN, 2 * options.every))
            processes = living(command.pid) if options.all or options.together else [command.pid]
            chosen = processes if options.together else [source.choice(processes)]
            stops += stop_for(chosen, source.uniform(STOP_SECONDS_MIN, options.longest))
    finally:
        command.send_signal(signal.SIGTERM)  # nothing, when it has ended
        code = command.wait()
    print(f"{stops} stops with --seed {options.seed}; exit {code}", flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
