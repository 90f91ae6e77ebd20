"""Reading one file of a log once: digests of its stretches, damage, where epochs begin. The task of a map."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.records import BLANK_SIZE_MIN
from brokerset_spark.jobs.audit.digests import IntervalDigester, encode_digests
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels import PROBLEMS, Stop
from brokerset_spark.kernels.contract import Int64s
from brokerset_spark.stores.folder import StoreFolder, read_bytes
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, read_range
from brokerset_spark.stores.searching import find_start

TASK: Final = "brokerset_spark.jobs.audit.scan:scan_file"
UNREADABLE: Final = "UNREADABLE"


@dataclass(slots=True)
class _Watch:
    """What is looked for besides digests."""

    epochs: Int64s
    entries: bool
    sound: set[int] = field(default_factory=set)
    """Starts of epochs where a record begins, or the file or the log ends."""

    terms: list[tuple[int, int]] = field(default_factory=list)
    records: int = 0
    bytes: int = 0

    def take(self, chunk: Chunk) -> None:
        self.records += len(chunk.starts)
        self.bytes += chunk.end - chunk.begin
        if not len(chunk.starts):
            return
        starts = chunk.starts + chunk.base - (ENTRY_HEAD_SIZE if self.entries else 0)
        nearest = np.minimum(np.searchsorted(starts, self.epochs), len(starts) - 1)
        self.sound.update(self.epochs[starts[nearest] == self.epochs].tolist())
        if chunk.terms is not None:
            for at in np.flatnonzero(np.diff(chunk.terms, prepend=chunk.terms[:1] - 1)).tolist():
                term = int(chunk.terms[at])
                if not self.terms or self.terms[-1][0] != term:
                    self.terms.append((term, int(starts[at])))


def scan_file(row: Row) -> Iterator[Result]:
    """One file up to the bound. A file that is gone is `gone` in the result, one that the disk refuses is
    damage."""
    base, size = int(row["base"]), int(row["size"])
    end = min(base + size, int(row["bound"]))
    watch = _Watch(np.array(row["epochs"], np.int64), bool(row["entries"]))
    digester = IntervalDigester([(start, stop) for start, stop in row["intervals"]], entries=watch.entries)
    damages: list[tuple[int, int, str]] = []
    unresolved, gone = None, False
    with closing(open_folder(row["url"])) as folder:
        try:
            unresolved = _scan(folder, row, end, digester, watch, damages)
        except FileNotFoundError:
            gone = True
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            watch, digester = _Watch(watch.epochs, False), IntervalDigester([])
            damages = [(base, end, UNREADABLE)]
    found: dict[str, Any] = {"replica": row["replica"], "path": row["path"], "base": base, "end": end}
    found["gone"] = gone
    if not gone:
        found |= {"bytes": watch.bytes, "records": watch.records, "sound": sorted(watch.sound)}
        found |= {"terms": watch.terms, "damages": damages, "unresolved": unresolved}
        found["digests"] = encode_digests(digester.finish())
    yield Result(found)


def _scan(
    folder: StoreFolder,
    row: Row,
    end: int,
    digester: IntervalDigester,
    watch: _Watch,
    damages: list[tuple[int, int, str]],
) -> tuple[int, str, bool] | None:
    """Read to the end; where a file comes to something that is no record, with none behind it: why, and
    whether a whole record, or the blank one that closes the file, goes on over the bound there."""
    base, size, bound = int(row["base"]), int(row["size"]), int(row["bound"])
    throttle = Throttle(int(row["rate"]))
    wanted = Range(row["path"], base, size, base, end, watch.entries, bound, exact_start=True)
    while wanted.start < end:
        outcome = Outcome(wanted.start, wanted.start)
        for chunk in read_range(
            folder,
            wanted,
            outcome,
            crc=True,
            resync=True,
            throttle=throttle,
            drop_cache=bool(row["dropCache"]),
        ):
            digester.take(chunk)
            watch.take(chunk)
        damages += [(begin, stop, why.name) for begin, stop, why in outcome.skipped if stop < end]
        stuck = stuck_at(outcome, end)
        if stuck is not None:
            begin, why = stuck
            following = end if why in PROBLEMS else find_start(folder, wanted, begin + 1)
            if following < end:
                damages.append((begin, following, why.name))
                wanted = replace(wanted, start=following)
                continue
            if base + size - begin < BLANK_SIZE_MIN:
                return None
            watch.sound.add(begin)
            there = probe(folder, wanted, begin) if why is Stop.SHORT else None
            goes_on = there is not None and (there.end > wanted.limit or there.stop is Stop.BLANK)
            return begin, why.name, goes_on
        if outcome.stop is not Stop.BLANK:
            return None
        watch.sound.add(outcome.end)
        free = free_bytes(folder, wanted, outcome.end)
        behind = outcome.end + free
        if behind == base + size:
            return (outcome.end, Stop.BLANK.name, True) if end < behind else None
        if free < BLANK_SIZE_MIN or behind > base + size:
            damages.append((outcome.end, end, Stop.BAD_SIZE.name))
            return None
        wanted = replace(wanted, start=behind)  # a file of the same log elsewhere ended here
    return None


def stuck_at(outcome: Outcome, end: int) -> tuple[int, Stop] | None:
    """Where reading came to something that is no record, with none behind it up to `end`; None if all
    went well."""
    if outcome.skipped and outcome.skipped[-1][1] >= end:
        return outcome.skipped[-1][0], outcome.skipped[-1][2]
    if outcome.stop in (Stop.RANGE_END, Stop.BLANK) or outcome.end >= end:
        return None
    return outcome.end, outcome.stop


def probe(folder: StoreFolder, wanted: Range, offset: int) -> Outcome:
    """What stands at an offset of the file, whatever the bound: its end is behind it if a record is
    `found`."""
    outcome = Outcome(offset, offset)
    one = Range(wanted.path, wanted.base, wanted.size, offset, offset + 1, wanted.entries, exact_start=True)
    for _ in read_range(folder, one, outcome, crc=True, piece=1 << 18):
        pass
    return outcome


def free_bytes(folder: StoreFolder, wanted: Range, offset: int) -> int:
    """What a blank record says of the free bytes, itself included."""
    head = read_bytes(folder, wanted.path, offset - wanted.base, BLANK_SIZE_MIN)
    if len(head) < BLANK_SIZE_MIN:
        return 0
    return int.from_bytes(head[4:8] if wanted.entries else head[:4], "big")
