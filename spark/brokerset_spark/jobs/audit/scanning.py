"""Reading one file of a log once: digests of its stretches, damage, where epochs begin. The task of a map."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.records import BLANK_SIZE_MIN
from brokerset_spark.jobs.audit.digests import IntervalDigester, encode_digests
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.kernels import PROBLEMS, Stop
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.reading import Chunk, Outcome, Range, Throttle, read_range
from brokerset_spark.stores.searching import find_start

TASK: Final = "brokerset_spark.jobs.audit.scanning:scan_file"
UNREADABLE: Final = "UNREADABLE"


@dataclass(slots=True)
class _Watch:
    """What is looked for besides digests."""

    epochs: list[int]
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
        for epoch in self.epochs:
            at = int(np.searchsorted(starts, epoch))
            if at < len(starts) and starts[at] == epoch:
                self.sound.add(epoch)
        if chunk.terms is not None:
            changes = np.flatnonzero(np.diff(chunk.terms, prepend=chunk.terms[:1] - 1))
            for at in changes.tolist():
                term = int(chunk.terms[at])
                if not self.terms or self.terms[-1][0] != term:
                    self.terms.append((term, int(starts[at])))


def scan_file(row: Row) -> Iterator[Result]:
    """One file up to the bound. A file that is gone is told as `gone`, one that the disk refuses as
    damage."""
    base, end = int(row["base"]), min(int(row["base"]) + int(row["size"]), int(row["bound"]))
    folder = open_folder(row["url"])
    try:
        yield Result(_scan(folder, row))
    except FileNotFoundError:
        yield Result({"path": row["path"], "base": base, "end": end, "gone": True})
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        told: dict[str, Any] = {"path": row["path"], "base": base, "end": end, "gone": False, "bytes": 0}
        told |= {"records": 0, "sound": [], "terms": [], "digests": encode_digests([])}
        yield Result(told | {"damages": [[base, end, UNREADABLE]], "unresolved": None})
    finally:
        folder.close()


def _scan(folder: StoreFolder, row: Row) -> dict[str, Any]:
    base, size, entries = int(row["base"]), int(row["size"]), bool(row["entries"])
    bound = int(row["bound"])
    end = min(base + size, bound)
    digester = IntervalDigester([(start, stop) for start, stop in row["intervals"]], entries=entries)
    watch = _Watch([int(each) for each in row["epochs"]], entries)
    throttle = Throttle(int(row["rate"]))
    wanted = Range(row["path"], base, size, base, end, entries, bound, exact_start=True)
    damages: list[tuple[int, int, str]] = []
    unresolved: tuple[int, str, bool] | None = None
    while wanted.start < end:
        outcome = Outcome(wanted.start, wanted.start)
        chunks = read_range(
            folder,
            wanted,
            outcome,
            crc=True,
            resync=True,
            throttle=throttle,
            drop_cache=bool(row["dropCache"]),
        )
        for chunk in chunks:
            digester.take(chunk)
            watch.take(chunk)
        damages += [(begin, stop, why.name) for begin, stop, why in outcome.skipped if stop < end]
        ended = stuck_at(outcome, end)
        if ended is not None:
            begin, why = ended
            following = end if why in PROBLEMS else find_start(folder, wanted, begin + 1)
            if following >= end:
                if base + size - begin >= BLANK_SIZE_MIN:
                    straddles = why is Stop.SHORT and _is_whole(folder, wanted, begin)
                    unresolved = (begin, why.name, straddles)
                    watch.sound.add(begin)
                break
            damages.append((begin, following, why.name))
            wanted = replace(wanted, start=following)
            continue
        if outcome.stop is not Stop.BLANK:
            break
        watch.sound.add(outcome.end)
        free = free_bytes(folder, wanted, outcome.end)
        behind = outcome.end + free
        if behind == base + size:
            break
        if free < BLANK_SIZE_MIN or behind > base + size:
            damages.append((outcome.end, end, Stop.BAD_SIZE.name))
            break
        wanted = replace(wanted, start=behind)  # a file of the same log elsewhere ended here
    return {
        "path": row["path"],
        "base": base,
        "end": end,
        "gone": False,
        "bytes": watch.bytes,
        "records": watch.records,
        "sound": sorted(watch.sound),
        "terms": watch.terms,
        "damages": damages,
        "unresolved": unresolved,
        "digests": encode_digests(digester.finish()),
    }


def stuck_at(outcome: Outcome, end: int) -> tuple[int, Stop] | None:
    """Where reading came to something that is no record, with none behind it up to `end`; None if all
    went well."""
    if outcome.skipped and outcome.skipped[-1][1] >= end:
        return outcome.skipped[-1][0], outcome.skipped[-1][2]
    if outcome.stop in (Stop.RANGE_END, Stop.BLANK) or outcome.end >= end:
        return None
    return outcome.end, outcome.stop


def _is_whole(folder: StoreFolder, wanted: Range, offset: int) -> bool:
    """Whether a whole record begins here that ends behind the bound."""
    outcome = Outcome(offset, offset)
    file_end = wanted.base + wanted.size
    probe = replace(wanted, start=offset, end=offset + 1, bound=file_end)
    for _ in read_range(folder, probe, outcome, crc=True, piece=1 << 18):
        pass
    return outcome.found and outcome.end > wanted.limit


def begins_record(
    folder: StoreFolder, path: str, base: int, size: int, offset: int, *, entries: bool
) -> bool:
    """Whether a whole record, or the blank one of the file, begins at this offset."""
    outcome = Outcome(offset, offset)
    probe = Range(path, base, size, offset, offset + 1, entries, exact_start=True)
    for _ in read_range(folder, probe, outcome, crc=True, piece=1 << 18):
        pass
    return outcome.found or outcome.stop is Stop.BLANK


def free_bytes(folder: StoreFolder, wanted: Range, offset: int) -> int:
    """What a blank record says of the free bytes, itself included."""
    head = bytearray(BLANK_SIZE_MIN)
    count = folder.read_into(wanted.path, offset - wanted.base, memoryview(head))
    if count < len(head):
        return 0
    return int.from_bytes(head[4:8] if wanted.entries else head[:4], "big")
