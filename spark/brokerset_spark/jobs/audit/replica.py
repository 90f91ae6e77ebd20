"""One replica: what is observed of it before its log is read, and the map that is made of it.

All replicas are observed before any is read, so that what one has confirmed can be asked of all. A map is
small enough to travel, and has all that a comparison needs.
"""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final

import orjson
from pydantic import PlainSerializer, PlainValidator
from pydantic.alias_generators import to_camel

from brokerset_formats.epochs import EpochEntry, EpochHistory, decode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_formats.identity import BrokerIdentity
from brokerset_spark.jobs.audit.digests import SegmentDigest, decode_digests, encode_digests, thin
from brokerset_spark.jobs.report import NoInput
from brokerset_spark.json_values import CAMEL, read_versioned, to_value
from brokerset_spark.stores.ending import LogEnd, LogWalk
from brokerset_spark.stores.folder import StoreFolder, read_all
from brokerset_spark.stores.layout import LogFile, StoreFacts, look
from brokerset_spark.stores.tail import committed_end, is_written, state_of

EPOCH_FILE: Final = "epochFileCheckpoint"
EPOCH_BACKUP: Final = "epochFileCheckpoint.bak"
_LINE: Final = re.compile(rb"(\d{1,10})-(\d{1,19})")

MAP_VERSION: Final = 1
DAMAGES_MAX: Final = 100
"""Damaged stretches that a map names; all are counted."""

_CHECKPOINT: Final = (
    "physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp", "master_flushed_offset",
    "confirm_phy_offset",
)  # fmt: skip
"""What a map has of the store's checkpoint."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """Epochs as they stand in a store; of a DLedger its terms."""

    pairs: tuple[Pair, ...] = ()
    """Epoch and start offset, in the order of the file."""

    source: str = "none"
    """The file they come from, `terms` for those of a DLedger's entries, `none`."""

    problems: tuple[tuple[str, str], ...] = ()
    """What is wrong with files: name, and a sentence."""

    disorder: str = ""
    """The first two entries that do not follow each other; empty if all do."""

    @property
    def history(self) -> EpochHistory:
        """Those that follow each other: of equal starts the newer epoch, which is the one that has data."""
        kept: list[EpochEntry] = []
        for epoch, start in self.pairs:
            while kept and kept[-1].start_offset == start and kept[-1].epoch < epoch:
                kept.pop()
            if not kept or (epoch > kept[-1].epoch and start > kept[-1].start_offset):
                kept.append(EpochEntry(epoch, start))
        return EpochHistory(tuple(kept))


def read_epochs(folder: StoreFolder) -> EpochFacts:
    """The epoch file, or its backup if it is missing, empty or damaged, as Java reads them."""
    problems: list[tuple[str, str]] = []
    fallback: EpochFacts | None = None
    for name in (EPOCH_FILE, EPOCH_BACKUP):
        data = read_all(folder, name)
        if data is None or not data.strip():
            continue
        try:
            pairs = tuple((each.epoch, each.start_offset) for each in decode_epoch_file(data).entries)
        except FormatError as error:
            found = parse_loosely(data)
            if found is None:
                problems.append((name, str(error)))
            else:
                fallback = fallback or EpochFacts(found, name, (), disorder_of(found))
            continue
        if fallback is None and pairs:
            return EpochFacts(pairs, name, tuple(problems))
    return replace(fallback or EpochFacts(), problems=tuple(problems))


def parse_loosely(data: bytes) -> tuple[Pair, ...] | None:
    """Entries of a file that is right but for their order; None if anything else is wrong with it."""
    head = data.split(b"\n", 2)
    if len(head) < 3 or not head[0].strip().isdigit() or not head[1].strip().isdigit():
        return None
    lines = [line.strip() for line in head[2].splitlines() if line.strip()]
    checksum = int(head[1])
    if len(lines) != int(head[0]) or (checksum and checksum != crc31(head[2])):
        return None
    pairs = tuple((int(each[1]), int(each[2])) for each in map(_LINE.fullmatch, lines) if each is not None)
    return pairs if len(pairs) == len(lines) else None


def disorder_of(pairs: tuple[Pair, ...]) -> str:
    """Epochs must grow and starts must not sink."""
    for older, newer in itertools.pairwise(pairs):
        if newer[0] <= older[0] or newer[1] < older[1]:
            return f"{newer[0]}-{newer[1]} stands behind {older[0]}-{older[1]}"
    return ""


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Bytes of a log that should be records, and are not."""

    begin: int
    end: int
    """Where the next whole record begins."""

    reason: str
    """`BAD_CRC`, … of `kernels.Stop`, or `GONE`: the file cannot be read."""

    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMap:
    """What one replica tells of itself. Offsets are those of the whole log."""

    __pydantic_config__: ClassVar = CAMEL

    url: str
    name: str
    """For people: broker name and id, or the path if there is no identity."""

    layout: str
    """`commitlog`, `dledger`, `both`, or `empty`."""

    identity: Annotated[
        BrokerIdentity | None,
        PlainValidator(lambda text: BrokerIdentity.decode(text.encode()) if text else None),
        PlainSerializer(lambda each: each.encode().decode() if each else None),
    ] = None
    epochs: EpochFacts = field(default_factory=EpochFacts)
    bad_boundaries: tuple[int, ...] = ()
    """Starts of epochs inside the log where no record begins."""

    file_sizes: tuple[int, ...] = ()
    """Of the log's files, without doubles."""

    first: int = 0
    last: int = 0
    """Behind the last whole record."""

    confirmed: int | None = None
    """Up to here all replicas in sync had everything; None if the store does not tell."""

    confirmed_by: str = "nobody"
    """`given`, `broker`, `checkpoint` (of the store), `committed` (entry of a DLedger), or `nobody`."""

    bound: int = 0
    """The digests end here: at the confirmed offset, or at what is sure of the log without one."""

    written: bool = False
    """Whether a broker may have been writing the store meanwhile."""

    leftover: Damage | None = None
    """Without a confirmed offset: a bad record that ends the log though sure ones follow behind it."""

    checkpoint: dict[str, int] = field(default_factory=dict)
    damages: tuple[Damage, ...] = ()
    damages_total: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    """Files that are wrong: path, and a sentence."""

    records: int = 0
    """Between first offset and bound."""

    digests: Annotated[
        tuple[SegmentDigest, ...],
        PlainValidator(lambda text: tuple(decode_digests(text))),
        PlainSerializer(lambda rows: encode_digests(thin(rows))),
    ] = ()
    confirmed_at_ms: int = 0
    """When the confirmed offset was observed, and when the end of the log was."""

    last_at_ms: int = 0
    bytes_read: int = 0
    bytes_cached: int = 0
    """Of files whose digests are known from an earlier audit."""

    seconds: float = 0.0

    @property
    def is_ledger(self) -> bool:
        """Whether it is a DLedger, which truncates by terms and indexes and knows no epochs."""
        return self.layout in ("dledger", "both")

    def to_json(self) -> bytes:
        """One line."""
        return orjson.dumps({"mapVersion": MAP_VERSION, **to_value(self)})

    @classmethod
    def from_json(cls, data: bytes) -> ReplicaMap:
        """Read what `to_json` wrote; FormatError for anything else."""
        return read_versioned(cls, data, "mapVersion", MAP_VERSION, "map of a replica")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file that is to be read."""

    file: LogFile
    entries: bool
    sealed: bool
    """Whether nothing will be written into it again: another one follows, and all of it is below the
    bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A replica before its log is read: everything but the content of the log."""

    facts: StoreFacts
    known: ReplicaMap
    """What the map will say, as far as it is known before."""

    end: LogEnd | None
    """Measured where nothing tells what is confirmed."""

    def files(self) -> list[PlannedFile]:
        """What is to be read, in the order of the log."""
        newest = self.facts.logs[-1][0].files[-1] if self.facts.logs else None
        return [
            PlannedFile(each, entries, each is not newest and each.end <= self.known.bound)
            for log, entries in self.facts.logs
            for each in log.files
            if each.base < self.known.bound
        ]

    def file_at(self, offset: int) -> PlannedFile | None:
        """The file that holds an offset, below the bound or not."""
        for log, entries in self.facts.logs:
            file = log.at(offset)
            if file is not None:
                return PlannedFile(file, entries, False)
        return None


def observe(folder: StoreFolder, confirmed: int | None = None) -> Observation:
    """Observe a store. NoInput if the folder is none; OSError as from the folder."""
    now_ms = time.time_ns() // 1_000_000
    facts = look(folder)
    if facts.layout == "empty" and facts.identity is None and facts.checkpoint is None:
        said = "is no store: neither commitlog/ nor dledger-…/ has files, and there is no checkpoint"
        advice = "give the folder that holds commitlog/ (storePathRootDir of the broker)"
        raise NoInput(f"{folder.url} {said}", advice)
    by = "given"
    log, entries = facts.current
    if confirmed is None and entries:
        confirmed, by = committed_end(folder, facts), "committed"
    elif confirmed is None:
        confirmed, by = folder.confirmed_offset(), "broker"
        if confirmed is None:
            stored = facts.checkpoint.confirm_phy_offset if facts.checkpoint else 0
            confirmed, by = (stored or None), "checkpoint"
    written = is_written(folder, facts)
    end, leftover, bound = None, None, confirmed
    if confirmed is None:
        walk = LogWalk(folder, log, entries, crc=True)
        end = walk.measure()
        bound = end.held_back if written else end.offset
        followed = walk.follow(end, state_of(folder, facts), tell_debris=False)
        holes = [Damage(each.begin, each.end, each.stop.name, each.path) for each in followed.holes]
        leftover = holes[0] if holes else None
    assert bound is not None, "it is confirmed, or measured"
    identity, checkpoint = facts.identity, facts.checkpoint
    known = ReplicaMap(
        url=folder.url,
        name=f"{identity.broker_name}/{identity.broker_id}" if identity else folder.url,
        layout=facts.layout,
        identity=identity,
        epochs=read_epochs(folder),
        file_sizes=tuple(sorted({each.size for log, _ in facts.logs for each in log.files})),
        confirmed=confirmed,
        confirmed_by=by if confirmed is not None else "nobody",
        confirmed_at_ms=now_ms,
        bound=bound,
        written=written,
        leftover=leftover,
        checkpoint={to_camel(name): getattr(checkpoint, name) for name in _CHECKPOINT} if checkpoint else {},
        problems=small_problems(facts),
    )
    if checkpoint is not None and checkpoint.marks is not None:
        known.checkpoint["flushedOffset"] = checkpoint.marks.flushed_offset
    return Observation(facts=facts, known=known, end=end)


def small_problems(facts: StoreFacts) -> tuple[tuple[str, str], ...]:
    """What is wrong with files, but for the epoch files, which `EpochFacts` knows better."""
    found = [each for each in facts.problems if each[0] not in (EPOCH_FILE, EPOCH_BACKUP)]
    return (*found, *(("", text) for text in (*facts.commit_log.problems, *facts.ledger.problems)))
