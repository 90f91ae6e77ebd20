"""What is made from code is what the code makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_nothing_that_is_generated_is_stale() -> None:
    """CRDs, the chart's copies, rules, dashboards, pages. If this fails: `make generate`, and commit."""
    done = subprocess.run(
        [sys.executable, "-m", "generate", "--check"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
