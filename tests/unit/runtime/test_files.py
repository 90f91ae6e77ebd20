"""Atomic files and locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerset_runtime.files import FileLocked, lock_file, lock_holder, read_with_backup, write_atomically


def test_a_file_is_replaced_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"

    write_atomically(path, b"old")
    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["topics.json"]


def test_the_content_before_is_kept_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"

    for content in (b"1", b"2", b"3"):
        write_atomically(path, content, backup=True)

    assert path.read_bytes() == b"3"
    assert (tmp_path / "topics.json.bak").read_bytes() == b"2"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "topics.json"
    write_atomically(path, b"old")

    def fails(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new", backup=True)

    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["topics.json"]


def test_the_backup_is_read_when_the_file_is_empty_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    write_atomically(path, b"1")
    write_atomically(path, b"2", backup=True)

    path.write_bytes(b"")
    from_empty = read_with_backup(path)
    path.unlink()
    from_missing = read_with_backup(path)

    assert (from_empty, from_missing) == (b"1", b"1")
    assert read_with_backup(tmp_path / "none.json") is None


def test_a_lock_of_another_process_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    code = (
        "import sys; from pathlib import Path; from brokerset_runtime.files import lock_file;"
        f"lock = lock_file(Path({str(path)!r})); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "locked\n"

        with pytest.raises(FileLocked) as caught:
            lock_file(path)

        assert caught.value.holder_pid == other.pid
        assert str(path) in str(caught.value)
        assert lock_holder(path) == other.pid
        other.stdin.close()
        other.wait(10)

    lock = lock_file(path)
    lock.release()
    assert lock_holder(path) is None
