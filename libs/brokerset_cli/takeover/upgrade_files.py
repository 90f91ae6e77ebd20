"""What an upgrade does to the files of a store. Everything may be interrupted anywhere and done again."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.old_store import (
    ABORT,
    BACKUP,
    COMMIT_LOG,
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
from brokerset_formats.epochs import decode_epoch_file, encode_epoch_file, history_of
from brokerset_formats.errors import FormatError
from brokerset_runtime.files import FileLock, FileLocked, lock_file, sync_folder, write_atomically

ASIDE_SUFFIX: Final = "-upgrade-backup"
"""Of a folder of old controllers that was renamed."""

CUT: Final = "cut"
"""Folder in the backup with the bytes that were truncated, a file for each file of the log."""

DERIVED: Final = ("consumequeue", "index", "checkpoint")
"""What brokers build again from the log."""

FIRST_EPOCHS: Final = encode_epoch_file(history_of([(FIRST_EPOCH, 0)]))
"""The epoch file that an upgrade makes."""

ZERO_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4096
"""What the kernel writes as a whole."""


def write_note(store: Path, note: Note) -> None:
    """Write the manifest of a store, on the disk when this returns."""
    folder = store / BACKUP
    if not folder.is_dir():
        folder.mkdir()
    sync_folder(store)  # also when a call that was killed has made the folder
    write_atomically(folder / MANIFEST, note.to_json())


def prepare(store: Path, note: Note, *, empty: bool) -> None:
    """Move the old epochs aside, and make all that is there the first epoch.

    An empty log has no epoch: it is whatever its master's is. What was moved aside before is never replaced:
    ends the command, with nothing changed, when the store has another file of that name by now.
    """
    with exclusively(store):
        seen = read_epochs(store)
        if not seen or seen[0][0] != FIRST_EPOCH:
            there = tuple(name for name in (EPOCHS, EPOCHS_BACKUP) if (store / name).exists())
            refuse_others(store, [each for each in there if not _same(store / each, store / BACKUP / each)])
            moved = (*note.moved, *(name for name in there if name not in note.moved))
            made = () if empty or EPOCHS in moved or EPOCHS in note.made else (EPOCHS,)
            still = tuple(name for name in note.made if name not in moved)
            note = replace(note, moved=moved, made=(*still, *made))
            write_note(store, note)
            for name in there:
                if (store / BACKUP / name).exists():  # the same bytes
                    (store / name).unlink()
                    sync_folder(store)
                else:
                    move(store / name, store / BACKUP / name)
            if not empty:
                write_atomically(store / EPOCHS, FIRST_EPOCHS)
        write_note(store, replace(note, prepared=True))


def refuse_others(store: Path, names: list[str]) -> None:
    """End the command when the backup folder holds other things under these names."""
    held = [str(store / BACKUP / name) for name in names if (store / BACKUP / name).exists()]
    if held:
        raise CommandFailed(
            f"{', '.join(held)}: moved there from {store} before, and the store has another one by now; a"
            " broker has run, or somebody put it there",
            f"move {' and '.join(held)} elsewhere, to keep both; then repeat this. `--back` brings back what"
            " is in the store now",
        )


def _same(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes; False when the other one is not there."""
    try:
        return one.read_bytes() == other.read_bytes()
    except FileNotFoundError:
        return False


def truncate_log(store: Path, note: Note, offset: int) -> None:
    """Truncate a log where a record begins; bytes and derived files are kept in the backup folder.

    The bytes are copied first, then zeroed from the end to the front: whenever this is interrupted, the log
    still parts at the same offset, and the copy is not taken again. Ends the command, with nothing changed,
    when there is a copy of an earlier truncation and the log has other bytes by now: a broker has run.
    """
    with exclusively(store):
        refuse_others(store, [name for name in DERIVED if (store / name).exists()])
        folder = store / BACKUP / CUT
        folder.mkdir(parents=True, exist_ok=True)
        concerned = [each for each in log_files(store) if each.begin + each.size > offset]
        wanted = {max(offset, each.begin) for each in concerned}
        if any(each.name.isdigit() and int(each.name) not in wanted for each in folder.iterdir()):
            raise CommandFailed(
                f"{folder} holds what was truncated elsewhere; {store} would be truncated at {offset:,} now",
                f"move {folder} elsewhere, to keep both; then repeat this",
            )
        for file in concerned:
            _copy_tail(file, max(offset, file.begin), folder)
        sync_folder(folder)
        derived = tuple(name for name in DERIVED if (store / name).exists() and name not in note.moved)
        made = () if (store / ABORT).exists() or ABORT in note.made else (ABORT,)
        note = replace(note, cut_at=offset, moved=(*note.moved, *derived), made=(*note.made, *made))
        write_note(store, note)
        (store / ABORT).touch()
        for name in DERIVED:
            if name in note.moved and (store / name).exists():
                move(store / name, store / BACKUP / name)
        sync_folder(store)
        for file in reversed(concerned):
            _zero(file, max(offset, file.begin))


def _copy_tail(file: LogFile, offset: int, folder: Path) -> None:
    target = folder / f"{offset:020d}"
    if target.exists():
        if not _is_rest_of(file, offset, target):
            raise CommandFailed(
                f"{target} holds what was truncated there before, and {file.path} has other bytes by now",
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
    """Whether each page of a log is as in the copy or zeros: a truncation was interrupted, or is done."""
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
    """Rename a folder of old controllers to one next to it."""
    target = check_aside(folder)
    folder.rename(target)
    sync_folder(folder.parent)
    return target


def check_aside(folder: Path) -> Path:
    """Where a folder of old controllers would be moved to; ends the command when something is there."""
    target = aside_of(folder)
    if target.exists():
        raise CommandFailed(
            f"{folder} cannot be moved aside: {target} is there already",
            f"leave --controller-data {folder} out if new controllers use that folder; else move {target}"
            " elsewhere, then repeat this",
        )
    return target


def aside_of(folder: Path) -> Path:
    """Where a folder of old controllers is moved to."""
    return folder.with_name(folder.name + ASIDE_SUFFIX)


def take_back(folder: Path) -> None:
    """Undo `put_aside`; nothing may stand in its place."""
    aside_of(folder).rename(folder)
    sync_folder(folder.parent)


# -- back -------------------------------------------------------------------------------------------------


def put_back(store: Path, note: Note) -> list[str]:
    """Undo everything that was done to a store: its truncated bytes, its derived files, its epochs.

    A store in which nothing was changed may be in use: its old broker goes on. Returns what is not as it was,
    as sentences. Ends the command, with nothing of the store changed, when its log was written since it was
    cut.
    """
    if not note.changed:
        _forget(store)
        return []
    with exclusively(store):
        refuse_after_new_broker(store)
        copies = _copies(store) if note.cut_at is not None else []
        # From here on it waits for no new broker, so that an upgrade after a crash prepares it again.
        made = () if EPOCHS in (*note.moved, *note.made) else (EPOCHS,) if note.prepared else ()
        note = replace(note, prepared=False, made=(*note.made, *made))
        write_note(store, note)
        for file, copy in copies:
            _restore(file, copy)
        if copies:
            note = replace(note, cut_at=None)
            write_note(store, note)
            shutil.rmtree(store / BACKUP / CUT)
        said = [found for name in (EPOCHS, EPOCHS_BACKUP) if (found := _clear_epochs(store, name))]
        stays: tuple[str, ...] = ()
        if note.cut_at is not None:
            stays = (*DERIVED, ABORT)  # they belong to the whole log
            said.append(f"what was cut off from {note.cut_at:,} on is not in {store / BACKUP / CUT} any more")
        for name in note.moved:
            backup = store / BACKUP / name
            if backup.exists() and name not in stays:
                _remove(store / name)
                move(backup, store / name)
        for name in note.made:
            if name != EPOCHS and name not in stays:  # an epoch file of ours is gone already
                (store / name).unlink(missing_ok=True)
        sync_folder(store)
        _forget(store)
    return said


def refuse_after_new_broker(store: Path) -> None:
    """End the command when a broker of the new kind has run."""
    if (store / IDENTITY).exists():
        raise CommandFailed(
            f"a broker with a persistent id has run on {store}: there is no way back",
            "messages that it took are in this log only; go on with the upgrade",
        )


def _forget(store: Path) -> None:
    """Remove the manifest, if another call has not."""
    (store / BACKUP / MANIFEST).unlink(missing_ok=True)
    sync_folder(store / BACKUP)


def _copies(store: Path) -> list[tuple[LogFile, Path]]:
    """What was truncated, with the files of the log into which it belongs, which nobody wrote since."""
    files = log_files(store)
    found = []
    for copy in sorted((store / BACKUP / CUT).glob("*")):
        if not copy.name.isdigit():
            continue
        offset = int(copy.name)
        file = next((each for each in files if each.begin <= offset < each.begin + each.size), None)
        if file is None or not _is_rest_of(file, offset, copy):
            what = "is gone" if file is None else "was written since it was truncated: a broker has run"
            raise CommandFailed(
                f"the commit log file of {store} with the offset {offset:,} {what}; {copy} cannot be put back"
                " into it, and nothing of this store was changed",
                f"go on with the upgrade; or, to leave that out, move {copy.parent} elsewhere and"
                " repeat this",
            )
        found.append((file, copy))
    return found


def _restore(file: LogFile, copy: Path) -> None:
    with copy.open("rb") as source, file.path.open("r+b") as target:
        target.seek(int(copy.name) - file.begin)
        shutil.copyfileobj(source, target, ZERO_BYTES)
        target.flush()
        os.fsync(target.fileno())


def _clear_epochs(store: Path, name: str) -> str:
    """Make room for an old epoch file. Says where what stood there is kept, if a broker wrote it."""
    path, backup = store / name, store / BACKUP / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    if data == FIRST_EPOCHS or _same(path, backup):
        path.unlink()
        sync_folder(store)
        return ""
    if not backup.exists() and not _is_of_upgrade(data):
        return ""  # the old one, which a call that was killed has put back
    number = next(n for n in itertools.count(1) if not (store / BACKUP / f"{name}.{n}").exists())
    kept = store / BACKUP / f"{name}.{number}"
    move(path, kept)
    return f"the {name} that a broker wrote since is in {kept}"


def _is_of_upgrade(data: bytes) -> bool:
    """Whether an epoch file begins with the epoch that an upgrade makes, whatever was appended since."""
    try:
        entries = decode_epoch_file(data).entries
    except FormatError:
        return False
    return bool(entries) and entries[0].epoch == FIRST_EPOCH


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)


@contextmanager
def disk_errors() -> Iterator[None]:
    """A disk that refuses ends the command with a way out."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(
            f"{error.filename or 'a file'} cannot be changed: {error.strerror}",
            "see to it that you may write there and that there is room, then repeat this: it goes on",
        ) from None


@contextmanager
def exclusively(store: Path) -> Iterator[None]:
    """Hold the lock that a broker takes, so that none can start meanwhile. Ends the command when one runs.

    Nothing may open the lock's file inside: closing it would give the lock up.
    """
    try:
        lock = lock_file(store / LOCK)
    except FileLocked as error:
        raise CommandFailed(
            str(error), f"stop the broker that uses {store}; nothing of it was changed"
        ) from None
    try:
        with disk_errors():
            yield
    finally:
        lock.release()


def note_of(store: Path, flow: str, group: str) -> Note:
    """The manifest of a store, or a new one."""
    return read_note(store) or Note(flow, group)


# -- one call at a time -----------------------------------------------------------------------------------

COMMAND_LOCK: Final = "command.lock"
"""File in a store's backup folder. It is not RocketMQ's `lock`, which a broker has to get meanwhile."""


class CommandLock:
    """What a call holds of its stores; it ends with the process, however that ends.

    Nothing else may open these files meanwhile: closing one gives its lock up.
    """

    def __init__(self) -> None:
        self._held: dict[Path, FileLock] = {}

    def take(self, stores: Iterable[Path]) -> bool:
        """Take the locks that are not held yet; whether there were any. Ends the command when another one has
        a store. Raises `OSError`."""
        wanted = sorted({each.resolve() for each in stores} - set(self._held))
        for store in wanted:
            try:
                self._held[store] = lock_file(store / BACKUP / COMMAND_LOCK)
            except FileLocked as error:
                who = f"process {error.holder_pid}" if error.holder_pid else "another process"
                raise CommandFailed(
                    f"another `brokerset upgrade` works on {store}: {who}; this one has changed nothing",
                    "wait until it has ended, or end it; then repeat this. `--look` works meanwhile",
                ) from None
        return bool(wanted)

    def release(self) -> None:
        """Give all of them back."""
        while self._held:
            self._held.popitem()[1].release()


@contextmanager
def command_lock(stores: Iterable[Path]) -> Iterator[CommandLock]:
    """Hold the stores that there are while a command acts."""
    lock = CommandLock()
    try:
        with disk_errors():
            lock.take(each for each in stores if may_be_store(each))
        yield lock
    finally:
        lock.release()


def may_be_store(path: Path) -> bool:
    """Whether a folder looks like a store: in others nothing is made, not even a lock."""
    return any((path / each).exists() for each in (COMMIT_LOG, "config", f"{BACKUP}/{MANIFEST}"))
