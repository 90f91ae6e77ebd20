"""Two lanes of suites side by side: those that mostly wait (for Java to start, for a client's timers) next to those that work.

Each lane is a process of its own, so that a suite that hangs or dies takes no other one along. Nothing is shared but free ports.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

FIRST = (
    "java",
    "cpp",
    "node",
    "mqadmin",
    "ours-to-ours",
    "ours-to-java",
    "mixed",
)
"""Suites of one lane: clients and tools, which mostly wait. The other one are stores, and groups whose brokers come and go."""

NO_SUMMARY = "a lane ended before its summary"
"""What did not run in it is not among the suites that differ."""


def lanes(suites: Sequence[str]) -> list[list[str]]:
    """The suites in two lanes, each in the order given; a lane without any is left out."""
    found = [[name for name in suites if name in FIRST], [name for name in suites if name not in FIRST]]
    return [lane for lane in found if lane]


def run(script: Path, suites: Sequence[str], arguments: Sequence[str]) -> int:
    """Run all lanes; prints each line as it comes, and the summaries together at the end. 1 if anything differs."""
    running = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments, "--lanes", "1", "--only", *lane],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        for lane in lanes(suites)
    ]
    try:
        summaries = _pass_on(running)
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()
    for lines in summaries:
        print("".join(lines) or f"{NO_SUMMARY}\n", end="")
    return 1 if any(codes) else 0


def _pass_on(running: Sequence[subprocess.Popen[str]]) -> list[list[str]]:
    """Print what the lanes print until all have ended; returns what each printed behind its empty line, which is its summary."""
    summaries: list[list[str]] = [[] for _ in running]

    def follow(process: subprocess.Popen[str], summary: list[str]) -> None:
        assert process.stdout is not None
        ended = False
        for line in process.stdout:
            ended = ended or line == "\n"
            if ended:
                summary.append(line)
            else:
                print(line, end="", flush=True)

    threads = [threading.Thread(target=follow, args=pair) for pair in zip(running, summaries, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summaries
