"""Two calls of `brokerset upgrade` on one store: the second one ends with clear words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brokerset_runtime.files import FileLocked, lock_file

SECONDS_MAX = 30
PENDING = 3


def command(store: Path, data: Path, *more: str) -> list[str]:
    """It wants to move the folder of an old controller first, and needs nobody for that."""
    named = [
        "--store",
        str(store),
        "--group",
        "g",
        "--old-controllers",
        "none",
        "--controller-data",
        str(data),
    ]
    where = ["--controllers", "127.0.0.1:1", *more]
    return [sys.executable, "-m", "brokerset_cli.main", "upgrade", "identity", *named, *where]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX
    )


def asked(process: subprocess.Popen[bytes]) -> bytes:
    """What it said until it waits for an answer, or ended."""
    assert process.stdout is not None
    said = b""
    while b"Do it now?" not in said and (more := os.read(process.stdout.fileno(), 4096)):
        said += more
    return said


@pytest.mark.long
@pytest.mark.parametrize("again", ["--yes", "--back"])
def test_a_second_call_is_refused_until_the_first_has_ended(tmp_path: Path, again: str) -> None:
    """Also while a person is asked; those that only look work. A killed one stands in nobody's way."""
    store, data = tmp_path / "store", tmp_path / "controller"
    (store / "config").mkdir(parents=True)
    data.mkdir()
    first = subprocess.Popen(command(store, data), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdin is not None
    assert first.stdout is not None
    with first.stdin, first.stdout:
        try:
            assert b"controller-data" in asked(first)

            second = run(command(store, data, again, "--yes"))

            assert second.returncode == 1, second.stdout + second.stderr
            words = f"another `brokerset upgrade` works on {store}: process {first.pid}"
            assert f"{words}; this one has changed nothing" in second.stderr
            assert data.exists()
            look = run(command(store, data, "--look"))
            assert (look.returncode, "controller-data" in look.stdout) == (0, True), look.stderr
            facts = run(command(store, data, "--write-facts", str(tmp_path / "facts.json")))
            assert facts.returncode == 0, facts.stderr
            lock_file(store / "lock").release()  # RocketMQ's is free: brokers may start while it waits
            with pytest.raises(FileLocked):
                lock_file(store / "upgrade-backup" / "command.lock")
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait(SECONDS_MAX)

    late = run(command(store, data, "--yes"))

    assert late.returncode == PENDING, late.stdout + late.stderr
    assert not data.exists()
    assert run(command(store, data, "--back", "--yes")).returncode == 0
    assert data.exists()


def test_a_folder_that_is_no_store_is_not_touched(tmp_path: Path) -> None:
    """Not even by a lock: the path was mistyped."""
    done = run(command(tmp_path / "stroe", tmp_path / "controller", "--yes"))

    assert done.returncode == 1
    assert "is no folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_controllers_in_two_places_ends_with_what_is_left(tmp_path: Path) -> None:
    """Exit code 3, and no word that all is undone."""
    store, data = tmp_path / "store", tmp_path / "controller"
    (store / "config").mkdir(parents=True)
    data.mkdir()
    (tmp_path / "controller-upgrade-backup").mkdir()

    done = run(command(store, data, "--back", "--yes"))

    assert done.returncode == PENDING, done.stdout + done.stderr
    assert f"Left for you: {data} was not put back" in done.stdout
    assert "When that is done, start the old brokers and controllers again." in done.stdout
    assert "nothing to put back" not in done.stdout
