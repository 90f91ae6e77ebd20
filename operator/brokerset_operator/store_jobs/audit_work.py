"""What the operator remembers of a StoreAudit between two reconciles, in `status.workflow`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from brokerset_operator.model.remembered import kept, read
from brokerset_operator.store_jobs.schedule import Run, RunMemory

Step = Literal["map", "reduce", "look"]

PAIRS_MAX: Final = 8
"""Stretches, and offsets, that one replica is asked for at once."""

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One replica of a run."""

    pod: str
    group: str
    index: int
    ordinal: int
    broker_id: int = field(metadata=kept("id"))
    claim: str
    confirmed_offset: int | None = None
    failed: str | None = None
    """Why it could not be read."""

    noted: str | None = None
    """What its Job last waited for, to be told if it never came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a replica is asked after a comparison has found that it differs, to name the record."""

    number: int
    """Of the round of queries, from one on."""

    pod: str
    bound: int
    """The replica was mapped up to here."""

    lists: Pairs = field(default=(), metadata=kept(always=True))
    """Stretches, from and to, whose records are listed."""

    shows: Pairs = field(default=(), metadata=kept(always=True))
    """Offsets, and how many bytes are shown at most."""

    failed: str | None = None
    """Why there is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRun(Run):
    """The run that is on."""

    full: bool = field(default=False, metadata=kept(always=True))
    step: Step = field(default="map", metadata=kept(always=True))
    shares: tuple[Share, ...] = field(default=(), metadata=kept(always=True))
    asked: tuple[Asked, ...] = ()
    """Of all rounds of queries."""

    asked_at: float = field(default=0.0, metadata=kept(whole=True))
    """When the last of these rounds began."""

    @property
    def round(self) -> int:
        """Number of the last round of queries; 0 before the first."""
        return max((each.number for each in self.asked), default=0)

    def answered(self, index: int) -> tuple[Asked, ...]:
        """What the replicas of a group have answered."""
        pods = {share.pod for share in self.shares if share.index == index}
        last = self.round - (self.step == "look")
        return tuple(
            each for each in self.asked if each.pod in pods and each.failed is None and each.number <= last
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(RunMemory):
    """All of it."""

    run: AuditRun | None = None


def read_request(given: Mapping[str, Any], number: int, pod: str) -> Asked:
    """What a comparison wants to know of a replica; what cannot be read is not asked."""
    found = read(Asked, {"bound": 0, **given, "number": number, "pod": pod})
    assert found is not None, "everything has a default"
    lists, shows = (
        tuple(pair for pair in pairs[:PAIRS_MAX] if min(pair) >= 0) for pairs in (found.lists, found.shows)
    )
    return replace(found, lists=lists, shows=shows)
