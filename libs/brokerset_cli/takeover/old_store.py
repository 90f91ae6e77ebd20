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
from typing import Final, NamedTuple

from brokerset_cli.takeover.upgrade_facts import Note, OldStore
from brokerset_formats import dledger
from brokerset_formats.config.fields import parse_object
from brokerset_formats.epochs import EpochHistory, decode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.records import Blank, RecordHead, check_record
from brokerset_runtime.unsupported_messages import unsupported_in

COMMIT_LOG: Final = "commitlog"
LEDGER_PREFIX: Final = "dledger-"
EPOCHS: Final = "epochFileCheckpoint"
EPOCHS_BACKUP: Final = f"{EPOCHS}.bak"
IDENTITY: Final = "brokerIdentity"
LOCK: Final = "lock"
ABORT: Final = "abort"
BACKUP: Final = "upgrade-backup"
"""Folder inside of the store with what an upgrade took away, and its manifest."""

MANIFEST: Final = "manifest.json"
FILE_NAME_DIGITS: Final = 20
NO_ENTRY: Final = (-1, -1)
"""Term and index of the last entry of a DLedger that has none."""

_FLOCK: Final = struct.Struct("hhqqi")
"""`struct flock` of Linux on 64 bits: type, whence, start, length, process."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log."""

    path: Path
    begin: int
    size: int
    entries: bool = False
    """Whether its records are in entries of a DLedger."""


class LogEnd(NamedTuple):
    """Where a log ends; see `OldStore` for `last` and `until`."""

    end: int
    last: tuple[int, int] | None = None
    until: int | None = None


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
    ledger = ledger_of(path)
    if ledger and path.stat().st_dev != path.parent.stat().st_dev:
        raise _Unusable(
            f"{path} is where a disk is mounted, and what it becomes has to be made alongside: make"
            " a folder on that disk, and move the store there"
        )
    files = log_files(path)
    sizes = sorted({each.size for each in files})
    if len(sizes) > 1:
        raise _Unusable(f"the files of the log of {path} have different sizes: {sizes}")
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
    found = _log_end(files) if read_log else None  # before it is seen whether a broker has it open
    return OldStore(
        path=path,
        locked_by=lock_holder(path / LOCK),
        clean=not (path / ABORT).exists(),
        begin=begin,
        end=None if found is None else found.end,
        file_size=sizes[0] if sizes else 0,
        ledger=ledger,
        last=found.last if found is not None and ledger else None,
        until=None if found is None else found.until,
        committed=_committed(path / ledger) if ledger else 0,
        epochs=read_epochs(path),
        identity=read_identity(path),
        release=_release(path),
        unsupported=unsupported_in(path),
    )


def ledger_of(store: Path) -> str:
    """Name of the folder of a store's DLedger; empty without one."""
    names = sorted(each.name for each in store.glob(f"{LEDGER_PREFIX}*"))
    if len(names) > 1:
        raise _Unusable(
            f"{store} has several DLedgers ({', '.join(names)}); move all but that of its broker elsewhere"
        )
    return names[0] if names else ""


def log_files(store: Path) -> list[LogFile]:
    """The files of the log in order, those of a DLedger behind those of the commit log that it goes on from.

    An empty last one, which brokers delete, is left out.
    """
    ledger = ledger_of(store)
    files = _numbered(store / COMMIT_LOG, entries=False)
    return files + _numbered(store / ledger / "data", entries=True) if ledger else files


def _numbered(folder: Path, *, entries: bool) -> list[LogFile]:
    if not folder.is_dir():
        return []
    names = sorted(
        each.name for each in folder.iterdir() if each.name.isdigit() and len(each.name) == FILE_NAME_DIGITS
    )
    files = [LogFile(folder / name, int(name), (folder / name).stat().st_size, entries) for name in names]
    return files[:-1] if files and not files[-1].size else files


def _committed(ledger: Path) -> int:
    """Offset behind the committed entry of a DLedger; 0 when its checkpoint and index do not tell."""
    try:
        index = dledger.LedgerCheckpoint.decode((ledger / "checkpoint").read_bytes()).committed_index
        at = index * dledger.INDEX_UNIT_SIZE
        for file in _numbered(ledger / "index", entries=True):
            if file.begin <= at < file.begin + file.size:
                with file.path.open("rb") as stream:
                    stream.seek(at - file.begin)
                    unit = dledger.LedgerUnit.decode(stream.read(dledger.INDEX_UNIT_SIZE))
                return unit.position + unit.size if unit.index == index else 0
    except (FileNotFoundError, FormatError):
        return 0
    return 0


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


def _log_end(files: list[LogFile]) -> LogEnd:
    """The end of the last whole record. Files behind it are there already, empty: brokers make them early."""
    for file in reversed(files):
        if file.entries:
            found = _entries_end(file)
            if found is not None:
                return found
            continue
        end = max((end for _, end in records(file, file.begin)), default=None)
        if end is not None:
            return LogEnd(end, NO_ENTRY)
    return LogEnd(files[0].begin if files else 0, NO_ENTRY)


def _entries_end(file: LogFile) -> LogEnd | None:
    """Where the entries of a file end. Terms never fall: those of an older one were truncated, and stay there
    until others are written over them."""
    end: int | None = None
    term = index = -1
    for place in entries(file, file.begin):
        if place.index < 0:
            end = place.end
        elif place.term < term or (index >= 0 and place.index != index + 1):
            return LogEnd(place.begin, (term, index), place.begin)
        else:
            end, term, index = place.end, place.term, place.index
    return None if end is None or index < 0 else LogEnd(end, (term, index))


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """Where an entry of a DLedger lies; index and term are -1 for the blank that fills a file."""

    begin: int
    end: int
    term: int
    index: int


def entries(file: LogFile, begin: int, *, verify: bool = True) -> Iterator[EntryPlace]:
    """Each whole entry of a file from an offset on, where one must begin. Ends at what is none."""
    head = dledger.ENTRY_HEAD
    with mapped(file) as whole, memoryview(whole) as data:
        position = begin - file.begin
        while position + dledger.BLANK.size <= file.size:
            at = file.begin + position
            if dledger.BLANK.unpack_from(data, position)[0] == dledger.MAGIC_BLANK:
                yield EntryPlace(at, file.begin + file.size, -1, -1)
                return
            if position + head.size > file.size:
                return
            magic, size, index, term, place, _, _, _, body = head.unpack_from(data, position)
            whole_size = size == head.size + body and body >= 0 and position + size <= file.size
            if magic != dledger.MAGIC_NORMAL or place != at or not whole_size or min(index, term) < 0:
                return
            if body:
                found = check_record(data, position + head.size, position + size, verify_crc=verify)
                if not isinstance(found, RecordHead) or found.size != body:
                    return
            yield EntryPlace(at, at + size, term, index)
            position += size


def records(file: LogFile, begin: int, *, verify: bool = True) -> Iterator[tuple[int, int]]:
    """Begin and end of each whole record, or entry, of a file from an offset on, where one must begin.

    A blank record, which fills a file, is one that ends with the file. Ends at the first thing that is none.
    """
    if file.entries:
        for place in entries(file, begin, verify=verify):
            yield place.begin, place.end
        return
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


def read_identity(path: Path) -> BrokerIdentity | None:
    """The persistent id that a broker wrote down; None before. Raises FormatError."""
    try:
        return BrokerIdentity.decode((path / IDENTITY).read_bytes())
    except FileNotFoundError:
        return None


def claims_id(path: Path) -> bool:
    """Whether a broker of this store has a persistent id, or asked for one and did not write it down yet."""
    return (path / IDENTITY).exists() or (path / f"{IDENTITY}-temp").exists()


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
