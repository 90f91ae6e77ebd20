"""The plugins: one keeps quick tests quick, the other runs tests that are coroutines."""

from __future__ import annotations

import os
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


COROUTINES = """
import asyncio, contextlib, time, pytest
@contextlib.asynccontextmanager
async def opened():
    yield asyncio.get_running_loop()
    print("closed")
@pytest.fixture
def loop():
    return opened()
async def test_entered(loop):
    assert loop is asyncio.get_running_loop()
async def test_fails():
    await asyncio.sleep(0)
    assert False
@pytest.mark.virtual
async def test_waits_long():
    await asyncio.sleep(100_000)
"""


def _pytest(tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


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
    ended, output = _pytest(tmp_path, TESTS, "-p", "brokerset_rig.processor_costs", "--costs", *options)

    assert ended == code, output
    assert "3 passed" in output
    assert "test_it.py" in output.partition("s of processors in 3 tests")[2]
    named = ("that_waits", "that_computes", "child_computes")
    assert [name for name in named if f"{name}\n" in output] == too_long


def test_coroutines_run_to_their_end(tmp_path: Path) -> None:
    """What fails behind an await fails the test, fixtures are entered and left, and virtual time jumps."""
    code, output = _pytest(tmp_path, COROUTINES, "-p", "brokerset_rig.async_tests", "-s")

    assert code == 1
    assert "1 failed, 2 passed" in output
    assert "::test_fails" in output.partition("short test summary")[2]
    assert output.count("closed") == 1
