"""What became of transactions, timers and pops, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brokerset_bench.event_log import Subject

COLUMNS: Final[Mapping[Subject, Mapping[str, str]]] = {
    Subject.TRANSACTIONS: {
        "halves stored": "halves",
        "commits": "committed",
        "rolled back": "rolledBack",
        "given up": "failed",
        "asked": "asked",
        "commits lost": "lost",
        "unsettled": "unsettled",
        "rolled back, visible": "rolledBackVisible",
        "half, visible": "halfVisible",
        "twice": "duplicates",
        "broken promises": "violations",
    },
    Subject.TIMERS: {
        "acknowledged": "acked",
        "delivered": "delivered",
        "lost": "lost",
        "early": "early",
        "late": "late",
        "late by, p50 ms": "lateP50Ms",
        "p99 ms": "lateP99Ms",
        "max ms": "lateMaxMs",
        "twice": "duplicates",
        "broken promises": "violations",
    },
    Subject.POPS: {
        "acknowledged": "acked",
        "popped": "delivered",
        "done": "done",
        "lost": "lost",
        "never given out": "unread",
        "done, given out again": "again",
        "given out twice": "twice",
        "broken promises": "violations",
    },
}
"""By subject, the table's columns, and what each is in JSON."""

_UNKNOWN: Final = ("lateP50Ms", "lateP99Ms", "lateMaxMs")
"""What is not known where nothing was delivered; every other number is 0 if it is not there."""

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def message_tables(measured: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Iterable[Table]:
    """Heads and lines of a table for each subject that was measured; from servers, fault and measurements."""
    for subject, columns in COLUMNS.items():
        rows = [
            (who, name, *(found[subject].get(key, "" if key in _UNKNOWN else 0) for key in columns.values()))
            for who, name, found in measured
            if subject in found
        ]
        if rows:
            yield ("servers", f"{subject}: fault", *columns), rows
