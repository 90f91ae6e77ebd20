"""Stores of old brokers for tests of an upgrade, and processes that die at each change of the disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_cli.takeover import upgrade_files
from brokerset_cli.takeover.old_store import BACKUP, read_old_store
from brokerset_cli.takeover.upgrade_facts import Extent
from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_rig.made_stores import Place, message, write_log
from brokerset_runtime import files

FILE_BYTES = 4096
COUNT = 60
HOLD = (
    "import fcntl,sys;f=open(sys.argv[1],'a+b');fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1,0);"
    "print('held',flush=True);sys.stdin.read()"
)
"""A program that holds the lock of a store until its input ends."""

OLD_EPOCHS = history_of([(1, 0), (4, 300)])


def made(path: Path, *, count: int = COUNT, other_from: int = COUNT, epochs: bool = True) -> list[Place]:
    """A store of so many messages; from `other_from` on they are others of the same size."""
    records = [message(n, body=(b"other" if n >= other_from else b"equal") * 9) for n in range(count)]
    places = write_log(path, records, file_size=FILE_BYTES)
    (path / "config").mkdir()
    (path / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{}}'
    )
    (path / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (path / "consumequeue" / "orders" / "0" / ("0" * 20)).write_bytes(b"units")
    (path / "checkpoint").write_bytes(bytes(4096))
    (path / "lock").write_bytes(b"lock")
    if epochs:
        (path / "epochFileCheckpoint").write_bytes(encode_epoch_file(OLD_EPOCHS))
        (path / "epochFileCheckpoint.bak").write_bytes(encode_epoch_file(history_of([(1, 0)])))
    return places


def end_of(places: list[Place]) -> int:
    """The end of the last record."""
    return places[-1].offset + len(places[-1].data)


def tree(path: Path) -> dict[str, str]:
    """What a store holds, but for what an upgrade keeps alongside."""
    return {
        str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != "lock" and BACKUP not in each.parts
    }


def extent(path: Path) -> Extent:
    """Where a log begins and ends."""
    found = read_old_store(path)
    assert found.end is not None
    return Extent(found.begin, found.end)


class Died(Exception):
    """The process was killed here."""


def dying_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die at its n-th change of the disk from now on."""
    left = [count]

    def stopping(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if not left[0]:
                raise Died
            left[0] -= 1
            return real(*args, **more)

        return call

    for name in ("rename", "unlink", "touch", "mkdir"):
        monkeypatch.setattr(Path, name, stopping(getattr(Path, name)))
    for name in ("unlink", "rmdir"):  # of a folder that is deleted with all that is in it
        monkeypatch.setattr(os, name, stopping(getattr(os, name)))
    monkeypatch.setattr(upgrade_files, "write_atomically", stopping(files.write_atomically))
    monkeypatch.setattr(os, "fsync", stopping(os.fsync))


def through_crashes(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """Do something that dies at its first change, then at its second, and so on, until it comes through."""
    for count in range(200):
        with monkeypatch.context() as patch:
            dying_after(count, patch)
            try:
                work()
                return count
            except Died:
                continue
    raise AssertionError("it never comes through")
