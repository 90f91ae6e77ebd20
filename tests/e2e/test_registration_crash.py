"""A broker's registration survives a crash after any of its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "faults" / "registration_crash.py"
SECONDS_MAX = 400
"""It takes 40 s on an idle machine, and must not fail on a busy one."""


@pytest.mark.timeout(SECONDS_MAX + 20)
def test_no_crash_no_lost_message_and_no_copied_folder_makes_a_wrong_identity() -> None:
    """All cases of `tests/faults/registration_crash.py`, with real processes."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
