"""Run a command while its processes are stopped at random: `stalls.py [--all] [--seed N] -- pytest -q tests/integration`.

A machine with a busy disk or with neighbours stops processes for half a second now and then. A test that counts on quick answers
fails there once in a hundred runs; here it fails soon, and says which one it is. Ends with the exit code of the command.
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


def stop_for(process: int, seconds: float) -> bool:
    """Stop a process, and let it go on after so many seconds; False when it has gone."""
    try:
        os.kill(process, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    try:
        time.sleep(seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--all", action="store_true", help="stop the processes that it starts as well, one at a time"
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
            process = source.choice(living(command.pid)) if options.all else command.pid
            stops += stop_for(process, source.uniform(STOP_SECONDS_MIN, options.longest))
    finally:
        command.send_signal(signal.SIGTERM)  # nothing, when it has ended
        code = command.wait()
    print(f"{stops} stops with --seed {options.seed}; exit {code}", flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
