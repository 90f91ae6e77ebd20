"""What signals do to a process that serves."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from brokerset_runtime import signals

async def main() -> None:
    stop = asyncio.Event()
    signals.AGAIN_SECONDS = float(sys.argv[1])
    signals.stop_on_signals(stop)
    print("ready", flush=True)
    await stop.wait()
    print("stops", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("stopped in order", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("again_seconds", "code"), [("1000", 0), ("0", None)])
def test_a_second_signal_ends_at_once_unless_it_belongs_to_the_first(
    number: signal.Signals, again_seconds: str, code: int | None
) -> None:
    """A killed parent with threads sends several at once: those are one order to end in order."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, again_seconds],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stops\n"

        process.send_signal(number)
        if code is None:
            rest = process.stdout.read()
        else:
            rest, _ = process.communicate("go on\n", timeout=30)

    assert process.returncode == (128 + number if code is None else code)
    assert rest == ("" if code is None else "stopped in order\n")
