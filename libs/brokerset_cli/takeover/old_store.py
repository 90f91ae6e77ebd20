"""What a store folder tells about itself, read without changing anything in it.

Sources: RocketMQ's `DefaultMessageStore.start` (lock), `StorePathConfigHelper` (names), `EpochFileCache`,
`CommitLog` (records).
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerset_cli.takeover.upgrade_facts import Note, OldStore
from brokerset_formats.config.fields import parse_object
from brokerset_formats.epochs import EpochHistory, decode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.records import Blank, RecordHead, check_record
from brokerset_runtime.unsupported_messages import unsupported_in

COMMIT_LOG: Final = "commitlog"
EPOCHS: Final = "epochFileCheckpoint"
EPOCHS_BACKUP: Final = f"{EPOCHS}.bak"
IDENTITY: Final = "brokerIdentity"
LOCK: Final = "lock"
ABORT: Final = "abort"
BACKUP: Final = "upgrade-backup"
"""Folder inside of the store with what an upgrade took away, and its manifest."""

MANIFEST: Final = "manifest.json"
FILE_NAME_DIGITS: Final = 20

_FLOCK: Final = struct.Struct("hhqqi")
"""`struct flock` of Linux on 64 bits: type, whence, start, length, process."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the commit log."""

    path: Path
    begin: int
    size: int


def read_old_store(path: Path, *, read_log: bool = True) -> OldStore:
    """Read a store; its problems are in the result, not raised. `read_log`: read the last file to its end."""
    try:
        return _read(path, read_log)
    except _Unusable as error:
        return OldStore(path, problem=str(error))
    except (OSError, FormatError) as error:
        return OldStore(path, problem=f"{path} cannot be read: {error}")


class _Unusable(Exception):
    """Why a store cannot be taken."""


def _read(path: Path, read_log: bool) -> OldStore:
    if not path.is_dir():
        raise _Unusable(f"{path} is no folder")
    ledgers = sorted(each.name for each in path.glob("dledger-*"))
    if ledgers:
        raise _Unusable(
            f"{path} has the log of a DLedger ({', '.join(ledgers)});"
            " copy it with `brokerset store migrate --to controller`",
        )
    files = log_files(path)
    sizes = sorted({each.size for each in files})
    if len(sizes) > 1:
        raise _Unusable(f"the files of {path / COMMIT_LOG} have different sizes: {sizes}")
    if not files and not (path / "config").is_dir():
        raise _Unusable(f"{path} is no store: it has neither {COMMIT_LOG} nor config")
    if not files and any((path / "consumequeue").glob("*/*/*")):
        raise _Unusable(
            f"{path} has queues, and no commit log: if storePathCommitLog is elsewhere, move it to"
            f" {path / COMMIT_LOG}; if the store shall be empty, move its queues out, too",
        )
    begin = files[0].begin if files else 0
    for older, newer in itertools.pairwise(files):
        if newer.begin != older.begin + older.size:
            raise _Unusable(f"{newer.path} does not follow {older.path.name}")
    end = _log_end(files) if read_log else None  # before it is seen whether a broker has it open
    return OldStore(
        path=path,
        locked_by=lock_holder(path / LOCK),
        clean=not (path / ABORT).exists(),
        begin=begin,
        end=end,
        file_size=sizes[0] if sizes else 0,
        epochs=read_epochs(path),
        identity=_identity(path),
        release=_release(path),
        unsupported=unsupported_in(path),
    )


def log_files(store: Path) -> list[LogFile]:
    """The files of the commit log in order; an empty last one, which brokers delete, is left out."""
    folder = store / COMMIT_LOG
    if not folder.is_dir():
        return []
    names = sorted(
        each.name for each in folder.iterdir() if each.name.isdigit() and len(each.name) == FILE_NAME_DIGITS
    )
    files = [LogFile(folder / name, int(name), (folder / name).stat().st_size) for name in names]
    return files[:-1] if files and not files[-1].size else files


def lock_holder(path: Path) -> int | None:
    """Who has locked a file: its process, 0 for one that is not visible from here, None for nobody.

    It only asks (`F_GETLK`): a lock that is taken and given back could stop a broker that is just starting.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(descriptor)
    kind, _, _, _, process = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(0, process)


@contextmanager
def mapped(file: LogFile) -> Iterator[mmap.mmap]:
    """A log file's bytes, read-only."""
    with file.path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _log_end(files: list[LogFile]) -> int:
    """The end of the last whole record. Files behind it are there already, empty: brokers make them early."""
    for file in reversed(files):
        end = max((end for _, end in records(file, file.begin)), default=None)
        if end is not None:
            return end
    return files[0].begin if files else 0


def records(file: LogFile, begin: int, *, verify: bool = True) -> Iterator[tuple[int, int]]:
    """Begin and end of each whole record of a file from an offset on, where a record must begin.

    A blank record, which fills a file, is one that ends with the file. Ends at the first thing that is none.
    """
    with mapped(file) as whole, memoryview(whole) as data:
        position = begin - file.begin
        while position < file.size:
            found = check_record(data, position, file.size, verify_crc=verify)
            if isinstance(found, RecordHead):
                yield file.begin + position, file.begin + position + found.size
                position += found.size
            elif isinstance(found, Blank):
                yield file.begin + position, file.begin + file.size
                return
            else:
                return


def read_epochs(path: Path) -> tuple[tuple[int, int], ...] | None:
    """Epochs and start offsets of a store; None without the file. Raises FormatError.

    It opens nothing else: who holds the store's lock would lose it to `lock_holder`.
    """
    problem: FormatError | None = None
    for name in (EPOCHS, EPOCHS_BACKUP):
        try:
            history: EpochHistory = decode_epoch_file((path / name).read_bytes())
        except FileNotFoundError:
            continue
        except FormatError as error:
            problem = error
            continue
        return tuple((each.epoch, each.start_offset) for each in history.entries)
    if problem is not None:
        raise problem
    return None


def _identity(path: Path) -> BrokerIdentity | None:
    try:
        return BrokerIdentity.decode((path / IDENTITY).read_bytes())
    except FileNotFoundError:
        return None


def _release(path: Path) -> str:
    """The versions of tables have `stateVersion` from 5.0 on."""
    try:
        version = parse_object((path / "config" / "topics.json").read_bytes()).get("dataVersion")
    except (FileNotFoundError, FormatError):
        return ""
    if not isinstance(version, dict):
        return ""
    return "5.x" if "stateVersion" in version else "4.x"


def read_note(store: Path) -> Note | None:
    """The manifest of a store; None without one. Raises FormatError."""
    try:
        return Note.from_json((store / BACKUP / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
