"""The way of a store into DLedger mode: its commit log is closed, and the DLedger's goes on behind it.

Source: the old commit log in `DLedgerCommitLog` of RocketMQ 5.5. Java trusts that all members begin with the
same old log; here its files are digested, and members whose logs differ do not form a group.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import orjson
import structlog

from brokerset_broker.store.errors import StoreCorrupt
from brokerset_broker.store.folder import check_kind, lock_store
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.segments import MappedFile, SegmentSequence
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.records import BLANK, BLANK_SIZE_MIN, MAGIC_BLANK
from brokerset_runtime.clock import Clock
from brokerset_runtime.files import sync_folder, write_atomically
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

DIVIDED_FILE: Final = "divided"
"""In the folder of the DLedger: the digests of the old log. Not known to RocketMQ."""

BLOCK_BYTES: Final = 16 * 1024 * 1024
"""Bytes for each of which there is a digest, so that a difference can be named."""

DIGEST_SIZE: Final = 16
BODY_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes of digests that a frame between members has room for: of 7 TB of old log."""


class OldLogsDiffer(Exception):
    """Members of a group began with different old logs: the text says where they differ, and what to do."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file of the old log: its first offset, its bytes, and the digest of each block."""

    start: int
    size: int
    blocks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OldLog:
    """An old commit log that was closed: the log of the DLedger begins at `end`."""

    end: int = 0
    files: tuple[OldFile, ...] = ()
    begun: bool = False
    """Whether the member that tells has entries of the DLedger already."""

    def to_json(self) -> bytes:
        """As it stands in the file `divided`, and as members tell each other."""
        return orjson.dumps(
            {
                "end": self.end,
                "begun": self.begun,
                "files": [
                    {"start": file.start, "size": file.size, "blocks": file.blocks} for file in self.files
                ],
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> OldLog:
        """Read it; ValueError if it is something else."""
        if len(data) > BODY_SIZE_MAX:
            raise ValueError(f"{len(data)} bytes of digests")
        try:
            content = orjson.loads(data)
            files = tuple(
                OldFile(int(each["start"]), int(each["size"]), tuple(map(str, each["blocks"])))
                for each in content["files"]
            )
            if any(len(file.blocks) != -(-file.size // BLOCK_BYTES) for file in files):
                raise ValueError("a file has more or fewer digests than blocks")
            return cls(int(content["end"]), files, bool(content.get("begun")))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no digests of an old log: {error!r}") from error


def first_difference(own: OldLog, other: OldLog, name: str) -> str | None:
    """Where the old log of the member `name` differs from this one's; None if it does not.

    Files that only one of them still has are no difference: retention takes them at another hour. Nor is it a
    difference when a member that works already has none any more.
    """
    if other.begun and not other.files:
        return None
    if own.end != other.end:
        return f"the old log of {name} ends at {other.end}, this one at {own.end}"
    theirs = {file.start: file for file in other.files}
    for file in own.files:
        found = theirs.get(file.start)
        if found is None:
            continue
        if found.size != file.size:
            return f"its file at {file.start} has {found.size} bytes with {name}, and {file.size} here"
        for number, (here, there) in enumerate(zip(file.blocks, found.blocks, strict=True)):
            if here != there:
                begin = file.start + number * BLOCK_BYTES
                end = min(begin + BLOCK_BYTES, file.start + file.size)
                return f"the old log of {name} differs between the offsets {begin} and {end}"
    return None


class JoinedFiles(SegmentSequence):
    """The files of the old log, and behind them those of the DLedger, for readers."""

    def __init__(self, old: SegmentSequence, new: SegmentSequence) -> None:
        super().__init__(new.folder, new.segment_bytes)
        self.old = old
        self._new = new

    @property
    def divide(self) -> int:
        """Offset of the first byte that is the DLedger's; 0 once nothing of the old log is left."""
        return self.old.end

    @property
    def files(self) -> list[MappedFile]:
        """All files, in order; a new list."""
        return [*self.old.files, *self._new.files]

    @files.setter
    def files(self, files: list[MappedFile]) -> None:
        assert not files, "who reads changes nothing"

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds `offset`."""
        return self.old.find(offset) if offset < self.divide else self._new.find(offset)

    def detach_old(self) -> MappedFile | None:
        """Take the oldest file of the old log out; None if there is none any more."""
        return self.old.files.pop(0) if self.old.files else None

    def forget_prepared(self) -> None:
        self._new.forget_prepared()


class _OldStore(MessageStore):
    """The store as it was, opened a last time; the DLedger has no entries yet."""

    def _check_kind(self) -> None:
        folder = ledger_folder(self._settings)
        check_kind(self._root, self.log.files.folder, ledger=folder)


def ledger_folder(settings: BrokerSettings) -> Path:
    """Where the DLedger of these settings keeps its files."""
    root = settings.store_path_d_ledger_commit_log or settings.store_path_root_dir
    return root / f"dledger-{settings.dledger_self_id}"


def old_files(settings: BrokerSettings) -> SegmentSequence:
    """The files of the old commit log, loaded; none are there when the store began in DLedger mode.

    StoreCorrupt names what does not belong.
    """
    folder = settings.store_path_commit_log or settings.store_path_root_dir / "commitlog"
    files = SegmentSequence(folder, settings.mapped_file_size_commit_log)
    files.load()
    return files


def read_divided(settings: BrokerSettings) -> OldLog | None:
    """What is known of the old log; None if there is none, or it is not closed yet. Raises `StoreCorrupt`."""
    path = ledger_folder(settings) / DIVIDED_FILE
    try:
        return OldLog.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreCorrupt(path, -1, str(error)) from error


async def close_old_log(settings: BrokerSettings, clock: Clock) -> None:
    """Recover a commit log from before the DLedger, and close its last file with a blank record.

    Nothing to do without such a log, or when it is done. May end anywhere: the next start does the rest.
    Raises what opening a store raises, and OSError.
    """
    if read_divided(settings) is not None or not old_files(settings).files:
        return
    if any((ledger_folder(settings) / "data").glob("*")):
        return  # Java has closed it
    old = _OldStore(replace(settings, enable_dledger_commit_log=False), clock)
    await asyncio.to_thread(partial(old.load, accept_damage=settings.accept_damaged_store))
    old.start()
    end = old.max_offset
    await old.close()
    lock = lock_store(settings.store_path_root_dir)
    try:
        known = await asyncio.to_thread(_close_and_digest, settings, end)
    finally:
        lock.release()
    log.info(
        "the commit log is closed, the DLedger goes on", end=end, divide=known.end, files=len(known.files)
    )


def _close_and_digest(settings: BrokerSettings, end: int) -> OldLog:
    files = old_files(settings)
    _close_last_file(files, end)
    known = digests_of(files.files)
    folder = ledger_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / DIVIDED_FILE, known.to_json())
    return known


def _close_last_file(files: SegmentSequence, end: int) -> None:
    """Mark the rest of the last file as blank; there is room for the mark, as records leave it."""
    last = files.files[-1]
    if end >= last.end:
        return
    if last.end - end < BLANK_SIZE_MIN:
        raise StoreCorrupt(last.path, end - last.start, "has no room for a blank record at its end")
    files.reserve(last, last.size)
    BLANK.pack_into(last.map, end - last.start, last.end - end, MAGIC_BLANK)
    last.sync(end - last.start, last.size)
    sync_folder(files.folder)


def digests_of(files: Sequence[MappedFile]) -> OldLog:
    """The digests of a closed log. Reads all of it."""
    return OldLog(
        files[-1].end,
        tuple(
            OldFile(
                file.start,
                file.size,
                tuple(
                    hashlib.blake2b(
                        file.view[begin : min(begin + BLOCK_BYTES, file.size)], digest_size=DIGEST_SIZE
                    ).hexdigest()
                    for begin in range(0, file.size, BLOCK_BYTES)
                ),
            )
            for file in files
        ),
    )
