"""Closer looks: the record that differs is named where maps are at hand, and the stores are not.

A reduce that finds a difference says what each replica is to be asked: first the records of a stretch, then
what stands at one offset. An answer is one line of JSON of less than a megabyte, which a further reduce takes
beside the maps. Nothing is asked for while all digests agree.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.audit.byte_checks import PairBytes
from brokerset_spark.jobs.audit.drilling import (
    LIST_TASK,
    LISTED,
    SHOW_TASK,
    DrilledPair,
    RecordFacts,
    differing_offsets,
    facts_of,
    first_difference,
)
from brokerset_spark.jobs.audit.intervals import Interval, union
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.running import Runner

LOOK_VERSION: Final = 1

RECORDS_MAX: Final = 100_000
"""Records that one answer lists: those of a segment of 16 MiB from 170 bytes each on."""

SHOWN_MAX: Final = 128 << 10
"""Bytes of one record in an answer; a difference behind them is told without its field."""

SHOWS_MAX: Final = 4
"""Offsets of one replica that are shown."""

REPLICAS_MAX: Final = 16
"""Replicas that are asked; more requests than that do not fit into a reduce's summary."""

_HASH_MASK: Final = 0xFFFF_FFFF
"""Half of each hash travels; in one of four thousand million cases the record that differs is passed over."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one replica is asked."""

    url: str
    bound: int
    """The replica was mapped up to here."""

    lists: tuple[Interval, ...] = ()
    """Stretches whose records are listed."""

    shows: tuple[tuple[int, int], ...] = ()
    """Offsets, and how many bytes are shown where no record stands there."""

    def to_value(self) -> dict[str, Any]:
        """As JSON has it, in a reduce's summary."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one replica has answered."""

    url: str
    covered: tuple[Interval, ...] = ()
    """What was listed of the stretches: less than was asked for where there are very many records."""

    records: Any = field(default_factory=lambda: np.empty(0, LISTED))
    """Offset and hash of each record in there, by offset."""

    shown: Mapping[int, tuple[RecordFacts, bytes]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """One line."""
        return orjson.dumps(
            {
                "lookVersion": LOOK_VERSION,
                "url": self.url,
                "covered": self.covered,
                "records": _encoded(self.records),
                "shown": [
                    {"offset": at, "facts": asdict(facts), "bytes": base64.b85encode(raw).decode()}
                    for at, (facts, raw) in sorted(self.shown.items())
                ],
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Look:
        """Read what `to_json` wrote; FormatError for anything else."""
        try:
            value = orjson.loads(text)
            if value["lookVersion"] != LOOK_VERSION:
                raise FormatError(f"an answer of version {value['lookVersion']}, not {LOOK_VERSION}")
            return cls(
                url=str(value["url"]),
                covered=tuple((int(start), int(end)) for start, end in value["covered"]),
                records=_decoded(value["records"]),
                shown={
                    int(each["offset"]): (RecordFacts(**each["facts"]), base64.b85decode(each["bytes"]))
                    for each in value["shown"]
                },
            )
        except FormatError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, zlib.error) as error:
            raise FormatError(f"no answer of a replica: {error!r}") from error


def look(runner: Runner, request: Request, *, rate: int = 0, drop_cache: bool = True) -> Look:
    """Read what is asked for. NoInput, OSError as from the store."""
    common = {"url": request.url, "bound": request.bound}
    stretches = union(request.lists)
    rows = [
        {**common, "number": 0, "start": start, "end": end, "rate": rate, "dropCache": drop_cache}
        for start, end in stretches
    ]
    parts = [np.frombuffer(result.data, LISTED) for result in runner.run(LIST_TASK, rows)] if rows else []
    records = np.sort(np.concatenate(parts), order="offset") if parts else np.empty(0, LISTED)
    if len(records) > RECORDS_MAX:
        behind = int(records["offset"][RECORDS_MAX])
        stretches = [(start, min(end, behind)) for start, end in stretches if start < behind]
        records = records[:RECORDS_MAX]
    shown: dict[int, tuple[RecordFacts, bytes]] = {}
    for offset, size in request.shows[:SHOWS_MAX]:
        row = {**common, "offset": offset, "size": min(size, SHOWN_MAX)}
        (result,) = runner.run(SHOW_TASK, [row])
        shown[offset] = facts_of(result.row), result.data[:SHOWN_MAX]
    return Look(url=request.url, covered=tuple(stretches), records=_halved(records), shown=shown)


def join(
    maps: Sequence[ReplicaMap], pairs: Sequence[PairBytes], looks: Iterable[Look] = ()
) -> tuple[list[DrilledPair], list[Request]]:
    """What the answers show of pairs that differ, and what is to be asked next; nothing when all is named.

    Only the first stretch of a pair that differs is looked at: its first record is the one to be named.
    """
    answers: dict[str, list[Look]] = {}
    for each in looks:
        answers.setdefault(each.url, []).append(each)
    drilled: list[DrilledPair] = []
    lists: dict[int, list[Interval]] = {}
    shows: dict[int, dict[int, int]] = {}
    for pair in pairs:
        if not pair.differing:
            continue
        stretch = pair.differing[0]
        sides = pair.one, pair.other
        listings = [_listing(answers.get(maps[number].url, ()), stretch) for number in sides]
        if None in listings:
            for number in sides:
                lists.setdefault(number, []).append(stretch)
            continue
        (mine, end), (theirs, other_end) = (each for each in listings if each is not None)
        read = stretch[0], min(end, other_end)
        offsets = differing_offsets(mine, theirs, [read])
        if not offsets:
            if read == stretch:
                drilled.append(DrilledPair(*sides, None, 0, (read,)))
            continue
        seen = [_shown(answers[maps[number].url], offsets[0]) for number in sides]
        one, other = seen
        if one is None or other is None:
            size = _size_at(mine, theirs, offsets[0])
            for number in sides:
                shows.setdefault(number, {})[offsets[0]] = size
            continue
        first = first_difference(offsets[0], one, other, entries=maps[pair.one].is_ledger)
        drilled.append(DrilledPair(*sides, first, len(offsets), (read,)))
    asked = sorted({*lists, *shows})[:REPLICAS_MAX]
    requests = [
        Request(
            maps[number].url,
            maps[number].bound,
            tuple(union(lists.get(number, ()))),
            tuple(sorted(shows.get(number, {}).items()))[:SHOWS_MAX],
        )
        for number in asked
    ]
    return drilled, requests


def _listing(answers: Iterable[Look], stretch: Interval) -> tuple[Any, int] | None:
    """The records of an answer that lists the stretch, or its beginning, and how far it does."""
    for each in answers:
        for start, end in each.covered:
            if start <= stretch[0] < end:
                return each.records, min(end, stretch[1])
    return None


def _shown(answers: Iterable[Look], offset: int) -> tuple[RecordFacts, bytes] | None:
    return next((each.shown[offset] for each in answers if offset in each.shown), None)


def _size_at(one: Any, other: Any, offset: int) -> int:
    """Bytes up to the next record that either replica has."""
    following = [
        int(each["offset"][at])
        for each in (one, other)
        if (at := int(np.searchsorted(each["offset"], offset, side="right"))) < len(each)
    ]
    return min(max((each - offset for each in following), default=256), SHOWN_MAX)


def _halved(records: Any) -> Any:
    found = records.copy()
    found["hash"] &= np.uint64(_HASH_MASK)
    return found


def _encoded(records: Any) -> str:
    steps = np.diff(records["offset"], prepend=0).astype("<i8")
    columns = steps.tobytes() + records["hash"].astype("<u4").tobytes()
    return base64.b85encode(zlib.compress(columns, 6)).decode()


def _decoded(text: str) -> Any:
    raw = zlib.decompress(base64.b85decode(text))
    count, rest = divmod(len(raw), 12)
    if rest:
        raise FormatError(f"a list of records of {len(raw)} bytes, no multiple of 12")
    found = np.empty(count, LISTED)
    found["offset"] = np.cumsum(np.frombuffer(raw, "<i8", count))
    found["hash"] = np.frombuffer(raw, "<u4", count, 8 * count)
    return found
