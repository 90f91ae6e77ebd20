"""Epochs as they stand in a store, with what is wrong with their file; of a DLedger its terms."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Final

from brokerset_formats.epochs import EpochEntry, EpochHistory, decode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_spark.stores.folder import StoreFolder, read_all

EPOCH_FILE: Final = "epochFileCheckpoint"
EPOCH_BACKUP: Final = "epochFileCheckpoint.bak"
_LINE: Final = re.compile(rb"(\d{1,10})-(\d{1,19})")

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """Epochs of one replica."""

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
            if found is not None:
                fallback = fallback or EpochFacts(found, name, (), disorder_of(found))
            else:
                problems.append((name, str(error)))
            continue
        if fallback is None and pairs:
            return EpochFacts(pairs, name, tuple(problems))
    if fallback is not None:
        return EpochFacts(fallback.pairs, fallback.source, tuple(problems), fallback.disorder)
    return EpochFacts(problems=tuple(problems))


def parse_loosely(data: bytes) -> tuple[Pair, ...] | None:
    """Entries of a file that is right but for their order; None if anything else is wrong with it."""
    head = data.split(b"\n", 2)
    if len(head) < 3 or not head[0].strip().isdigit() or not head[1].strip().isdigit():
        return None
    lines = [line.strip() for line in head[2].splitlines() if line.strip()]
    found = [_LINE.fullmatch(line) for line in lines]
    checksum = int(head[1])
    if len(lines) != int(head[0]) or (checksum and checksum != crc31(head[2])):
        return None
    pairs = tuple((int(each[1]), int(each[2])) for each in found if each is not None)
    return pairs if len(pairs) == len(lines) else None


def disorder_of(pairs: tuple[Pair, ...]) -> str:
    """Epochs must grow and starts must not sink."""
    for older, newer in itertools.pairwise(pairs):
        if newer[0] <= older[0] or newer[1] < older[1]:
            return f"{newer[0]}-{newer[1]} stands behind {older[0]}-{older[1]}"
    return ""
