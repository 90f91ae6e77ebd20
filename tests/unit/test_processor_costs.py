"""The plugin that keeps quick tests quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import subprocess, sys
BUSY = "import time; end = time.process_time() + 0.5\\nwhile time.process_time() < end: pass"
def test_that_waits():
    import time
    time.sleep(0.5)
def test_that_computes():
    exec(BUSY)
def test_whose_child_computes():
    subprocess.run([sys.executable, "-c", BUSY], check=True)
"""


@pytest.mark.parametrize(
    ("options", "code", "too_long"),
    [
        (["--cost-max", "0.3", "-n", "1"], 1, ["that_computes", "child_computes"]),
        (["--cost-max", "30"], 0, []),
    ],
    ids=["too much", "little enough"],
)
def test_a_run_fails_if_a_test_costs_too_much(
    tmp_path: Path, options: list[str], code: int, too_long: list[str]
) -> None:
    """What a test and its children compute counts, in workers as well; what it waits for does not."""
    (tmp_path / "test_it.py").write_text(TESTS)
    plugins = ["-p", "brokerset_rig.processor_costs", "-p", "no:cacheprovider"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--costs", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stdout
    assert "3 passed" in done.stdout
    assert "test_it.py" in done.stdout.partition("s of processors in 3 tests")[2]
    named = ("that_waits", "that_computes", "child_computes")
    assert [name for name in named if f"{name}\n" in done.stdout] == too_long
