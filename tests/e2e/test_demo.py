"""`brokerset demo` that somebody interrupts: nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brokerset_rig.local_set import processes_of


@pytest.mark.parametrize(
    ("step", "pause", "number"),
    [
        ("1. Start", 0.0, signal.SIGINT),
        ("1. Start", 1.5, signal.SIGTERM),
        pytest.param("2. Kill the master", 1.0, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("4. Kill every broker", 0.3, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_demo_leaves_neither_processes_nor_folders(
    step: str, pause: float, number: signal.Signals
) -> None:
    """Also when only the demo itself is told to end, and not what it has started."""
    command = [sys.executable, "-m", "brokerset_cli.main", "demo"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        folder, lines = "", []
        for line in process.stdout:
            lines.append(line)
            if named := re.search(r"in (/\S+)/data$", line):
                folder = named[1]
            if line.startswith(step):
                break
        assert folder, lines
        time.sleep(pause)  # into the middle of that step; every moment must do
        process.send_signal(number)
        rest = process.stdout.read()

    assert process.returncode == 1, rest
    assert "interrupted; everything is stopped and deleted" in rest
    assert not Path(folder).exists()
    assert processes_of(folder) == []
