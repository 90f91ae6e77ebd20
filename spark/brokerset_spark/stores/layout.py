"""What there is in a store folder.

Layout: `broker/brokerset_broker/store/DESIGN.md`; of a DLedger: `brokerset_formats.dledger`. Nothing here
reads the log itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

from brokerset_formats.checkpoints import StoreCheckpoint, decode_checkpoint
from brokerset_formats.epochs import EpochHistory, decode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity
from brokerset_spark.stores.archives import MANIFEST, ArchiveManifest, decode_manifest
from brokerset_spark.stores.folder import FileFacts, StoreFolder, read_all

COMMIT_LOG: Final = "commitlog"
DLEDGER_PREFIX: Final = "dledger-"
QUEUES: Final = "consumequeue"
INDEX: Final = "index"
EPOCH_FILES: Final = ("epochFileCheckpoint", "epochFileCheckpoint.bak")
_NAME: Final = re.compile(r"\d{20}")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log of fixed-size files; its name is the offset of its first byte."""

    path: str
    base: int
    size: int
    mtime_ms: int

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.base + self.size


@dataclass(frozen=True, slots=True)
class Log:
    """The files of a log in their order. What is wrong with them stands in `problems`."""

    files: tuple[LogFile, ...]
    problems: tuple[str, ...] = ()
    """Foreign files, sizes that differ, gaps between files; each a sentence."""

    @property
    def first(self) -> int:
        """Offset of the first byte."""
        return self.files[0].base if self.files else 0

    @property
    def end(self) -> int:
        """Offset behind the last file; the log itself ends somewhere before."""
        return self.files[-1].end if self.files else 0

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)

    def at(self, offset: int) -> LogFile | None:
        """The file that holds an offset."""
        return next((each for each in self.files if each.base <= offset < each.end), None)


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The files of one consume queue; offsets are bytes (queue offset x 20)."""

    topic: str
    queue_id: int
    log: Log


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store folder, without the content of its logs."""

    url: str
    commit_log: Log
    ledger: Log
    """Data files of a DLedger (`dledger-<id>/data`)."""

    ledger_index: Log
    ledger_id: str | None
    queues: tuple[QueueFiles, ...]
    index_files: tuple[FileFacts, ...]
    epochs: EpochHistory | None
    identity: BrokerIdentity | None
    checkpoint: StoreCheckpoint | None
    aborted: bool
    """Whether the broker runs, or ended without closing its store."""

    problems: tuple[tuple[str, str], ...] = field(default=())
    """Small files that cannot be read: path, and what is wrong."""

    archive: ArchiveManifest | None = None
    """Of an archive: the logs have only files that it names, and there are neither queues nor index files."""

    @property
    def layout(self) -> str:
        """`commitlog`, `dledger`, `both` (a DLedger that goes on from an old commit log), or `empty`."""
        if self.ledger.files:
            return "both" if self.commit_log.files else "dledger"
        return "commitlog" if self.commit_log.files else "empty"

    @property
    def logs(self) -> tuple[tuple[Log, bool], ...]:
        """The logs that have files, in the order of their offsets; whether they have entries of a DLedger."""
        both = (self.commit_log, False), (self.ledger, True)
        return tuple((log, entries) for log, entries in both if log.files)

    @property
    def current(self) -> tuple[Log, bool]:
        """The log that is written, or was last; also if it has no file yet."""
        return self.logs[-1] if self.logs else (self.commit_log, False)

    @property
    def first(self) -> int:
        """Offset of the first byte."""
        return self.logs[0][0].first if self.logs else 0


def read_log(folder: StoreFolder, path: str, known: Container[str] | None = None) -> Log:
    """The files of one log folder; of an archive those that are known to be whole."""
    files: list[LogFile] = []
    problems: list[str] = []
    for facts in folder.files(path):
        if known is not None and facts.path not in known:
            continue
        name = facts.path.rpartition("/")[2]
        if not _NAME.fullmatch(name):
            problems.append(f"{facts.path}: a foreign file; Java refuses to start with it")
            continue
        files.append(LogFile(facts.path, int(name), facts.size, facts.mtime_ms))
    for before, after in pairwise(files):
        if after.size and before.end != after.base:
            missing = (
                f"{after.base - before.end} bytes are missing" if after.base > before.end else "they overlap"
            )
            problems.append(f"{after.path} does not follow on {before.path}: {missing}")
    if files and files[-1].size == 0:
        files.pop()
    if len({each.size for each in files}) > 1:
        problems.append(f"{path}: files of different sizes, {sorted({each.size for each in files})}")
    return Log(tuple(files), tuple(problems))


def look(folder: StoreFolder) -> StoreFacts:
    """Everything but the content of the logs. Damaged small files are told in `problems`."""
    problems: list[tuple[str, str]] = []
    folder = folder.listed()
    ledgers = [name for name in folder.folders("") if name.startswith(DLEDGER_PREFIX)]
    if len(ledgers) > 1:
        problems.append(("", f"several DLedgers: {', '.join(ledgers)}; {ledgers[0]} is read"))
    ledger = ledgers[0] if ledgers else None
    queues = []
    for topic in folder.folders(QUEUES):
        for name in folder.folders(f"{QUEUES}/{topic}"):
            if name.isdigit():
                log = read_log(folder, f"{QUEUES}/{topic}/{name}")
                queues.append(QueueFiles(topic, int(name), log))
    names = [facts.path for facts in folder.files("")]
    archive = _decoded(folder, [MANIFEST], decode_manifest, problems) if MANIFEST in names else None
    known = None if archive is None else {each.path for each in archive.files}
    return StoreFacts(
        url=folder.url,
        commit_log=read_log(folder, COMMIT_LOG, known),
        ledger=read_log(folder, f"{ledger}/data", known) if ledger else Log(()),
        ledger_index=read_log(folder, f"{ledger}/index") if ledger else Log(()),
        ledger_id=ledger.removeprefix(DLEDGER_PREFIX) if ledger else None,
        queues=tuple(queues),
        index_files=tuple(folder.files(INDEX)),
        epochs=_decoded(folder, EPOCH_FILES, decode_epoch_file, problems),
        identity=_decoded(folder, ["brokerIdentity"], BrokerIdentity.decode, problems),
        checkpoint=_decoded(folder, ["checkpoint"], decode_checkpoint, problems),
        aborted="abort" in names,
        problems=tuple(problems),
        archive=archive,
    )


def _decoded(
    folder: StoreFolder, paths: Sequence[str], decode: Callable[[bytes], T], problems: list[tuple[str, str]]
) -> T | None:
    """The first of these small files that is there and can be read; None if none can."""
    for path in paths:
        data = read_all(folder, path)
        if data is not None:
            try:
                return decode(data)
            except FormatError as error:
                problems.append((path, str(error)))
    return None
