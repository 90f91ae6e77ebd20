"""What an upgrade does to the files of a store. Everything may be interrupted anywhere and done again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.old_store import (
    ABORT,
    BACKUP,
    EPOCHS,
    EPOCHS_BACKUP,
    IDENTITY,
    LOCK,
    MANIFEST,
    LogFile,
    log_files,
    read_epochs,
    read_note,
)
from brokerset_cli.takeover.upgrade_facts import FIRST_EPOCH, Note
from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_runtime.files import FileLocked, lock_file, sync_folder, write_atomically

ASIDE_SUFFIX: Final = "-upgrade-backup"
"""Of a folder of old controllers that was renamed."""

CUT: Final = "cut"
"""Folder in the backup with the bytes that were cut off, a file for each file of the log."""

DERIVED: Final = ("consumequeue", "index", "checkpoint")
"""What brokers build anew from the log."""

ZERO_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096
"""What the kernel writes as a whole."""


def write_note(store: Path, note: Note) -> None:
    """Write the manifest of a store, on the disk when this returns."""
    folder = store / BACKUP
    if not folder.is_dir():
        folder.mkdir()
        sync_folder(store)
    write_atomically(folder / MANIFEST, note.to_json())


def prepare(store: Path, note: Note, *, empty: bool) -> None:
    """Move the old epochs aside, and make all that is there the first epoch.

    An empty log has no epoch: it is whatever its master's is.
    """
    with _exclusively(store):
        seen = read_epochs(store)
        if not seen or seen[0][0] != FIRST_EPOCH:
            there = tuple(name for name in (EPOCHS, EPOCHS_BACKUP) if (store / name).exists())
            note = replace(note, moved=(*note.moved, *(name for name in there if name not in note.moved)))
            write_note(store, note)
            for name in there:
                _move(store / name, store / BACKUP / name)
            if not empty:
                write_atomically(store / EPOCHS, encode_epoch_file(history_of([(FIRST_EPOCH, 0)])))
        write_note(store, replace(note, prepared=True))


def cut_log(store: Path, note: Note, offset: int) -> None:
    """Cut a log at an offset at which a record begins; bytes and derived files are kept in the backup folder.

    The bytes are copied first, then zeroed from the end to the front: whenever this is interrupted, the log
    still parts at the same offset, and the copy is not taken again. Ends the command, with nothing changed,
    when there is a copy from an earlier cut and the log has other bytes by now: a broker has run in between.
    """
    with _exclusively(store):
        folder = store / BACKUP / CUT
        folder.mkdir(parents=True, exist_ok=True)
        concerned = [each for each in log_files(store) if each.begin + each.size > offset]
        for file in concerned:
            _copy_tail(file, max(offset, file.begin), folder)
        sync_folder(folder)
        derived = tuple(name for name in DERIVED if (store / name).exists() and name not in note.moved)
        made = () if (store / ABORT).exists() or ABORT in note.made else (ABORT,)
        note = replace(note, cut_at=offset, moved=(*note.moved, *derived), made=(*note.made, *made))
        write_note(store, note)
        (store / ABORT).touch()
        for name in DERIVED:
            if name in note.moved and not (store / BACKUP / name).exists():
                _move(store / name, store / BACKUP / name)
        sync_folder(store)
        for file in reversed(concerned):
            _zero(file, max(offset, file.begin))


def _copy_tail(file: LogFile, offset: int, folder: Path) -> None:
    target = folder / f"{offset:020d}"
    if target.exists():
        if not _is_rest_of(file, offset, target):
            raise CommandFailed(
                f"{target} holds what was cut off there before, and {file.path} has other bytes by now",
                f"move {folder} elsewhere, to keep both; then repeat this",
            )
        return
    temporary = target.with_suffix(".tmp")
    with file.path.open("rb") as source, temporary.open("wb") as copy:
        source.seek(offset - file.begin)
        shutil.copyfileobj(source, copy, ZERO_BYTES)
        copy.flush()
        os.fsync(copy.fileno())
    temporary.rename(target)


def _is_rest_of(file: LogFile, offset: int, copy: Path) -> bool:
    """Whether each page of a log is as in the copy or zeros: then a cut was interrupted, or is done."""
    at = offset - file.begin
    with file.path.open("rb") as log, copy.open("rb") as kept:
        log.seek(at)
        while page := log.read(PAGE_BYTES - at % PAGE_BYTES):
            if page != kept.read(len(page)) and any(page):
                return False
            at += len(page)
    return True


def _zero(file: LogFile, offset: int) -> None:
    with file.path.open("r+b") as stream:
        first = offset - file.begin
        for at in reversed(range(first, file.size, ZERO_BYTES)):
            stream.seek(at)
            stream.write(bytes(min(ZERO_BYTES, file.size - at)))
            stream.flush()
            os.fsync(stream.fileno())


def put_aside(folder: Path) -> Path:
    """Rename a folder of old controllers to one beside it."""
    target = aside_of(folder)
    if target.exists():
        raise CommandFailed(
            f"{folder} cannot be moved aside: {target} is there already",
            "move one of them elsewhere, then repeat this",
        )
    folder.rename(target)
    sync_folder(folder.parent)
    return target


def aside_of(folder: Path) -> Path:
    """Where a folder of old controllers is moved to."""
    return folder.with_name(folder.name + ASIDE_SUFFIX)


# -- back -------------------------------------------------------------------------------------------------


def put_back(store: Path, note: Note) -> None:
    """Undo everything that was done to a store: its cut bytes, its derived files, its epochs.

    A store in which nothing was changed may be in use: its old broker goes on.
    """
    if not (note.prepared or note.moved or note.made or note.cut_at is not None):
        (store / BACKUP / MANIFEST).unlink()
        return
    with _exclusively(store):
        if (store / IDENTITY).exists():
            raise CommandFailed(
                f"a broker with a persistent id has run on {store}: there is no way back",
                "messages that it took are in this log only; go on with the upgrade",
            )
        if note.cut_at is not None:
            _restore_cut(store)
        if note.prepared or any(name in note.moved for name in (EPOCHS, EPOCHS_BACKUP)):
            seen = read_epochs(store)
            if seen and seen[0][0] == FIRST_EPOCH:
                (store / EPOCHS).unlink(missing_ok=True)
                (store / EPOCHS_BACKUP).unlink(missing_ok=True)
        for name in note.moved:
            kept = store / BACKUP / name
            if kept.exists():
                _remove(store / name)
                _move(kept, store / name)
        for name in note.made:
            (store / name).unlink(missing_ok=True)
        sync_folder(store)
        (store / BACKUP / MANIFEST).unlink()
        sync_folder(store / BACKUP)


def _restore_cut(store: Path) -> None:
    files = log_files(store)
    for copy in sorted((store / BACKUP / CUT).glob("*")):
        if not copy.name.isdigit():
            continue
        offset = int(copy.name)
        file = next(each for each in files if each.begin <= offset < each.begin + each.size)
        with copy.open("rb") as source, file.path.open("r+b") as target:
            target.seek(offset - file.begin)
            shutil.copyfileobj(source, target, ZERO_BYTES)
            target.flush()
            os.fsync(target.fileno())
    shutil.rmtree(store / BACKUP / CUT)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _move(source: Path, target: Path) -> None:
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)


@contextmanager
def _exclusively(store: Path) -> Iterator[None]:
    """Hold the lock that a broker takes, so that none can start meanwhile. Ends the command when one runs.

    Nothing may open the lock's file inside: closing it would give the lock up.
    """
    try:
        lock = lock_file(store / LOCK)
    except FileLocked as error:
        raise CommandFailed(str(error), f"stop the broker that uses {store}; nothing was changed") from None
    try:
        yield
    except OSError as error:
        raise CommandFailed(
            f"{error.filename or store} cannot be changed: {error.strerror}",
            "see to it that you may write there and that there is room, then repeat this: it goes on",
        ) from None
    finally:
        lock.release()


def note_of(store: Path, flow: str, group: str) -> Note:
    """The manifest of a store, or a new one."""
    return read_note(store) or Note(flow, group)
