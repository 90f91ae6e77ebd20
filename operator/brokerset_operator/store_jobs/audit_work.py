"""What the operator remembers of a StoreAudit between two rounds, in `status.workflow`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from brokerset_operator.plan.objects import items, part, text

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
    broker_id: int
    claim: str
    confirmed_offset: int | None
    failed: str | None = None
    """Why it could not be read."""

    noted: str | None = None
    """What its Job last waited for, to be told if it never came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a replica is asked after a comparison has found that it differs, to name the record."""

    number: int
    """Of the round of questions, from one on."""

    pod: str
    bound: int
    """The replica was mapped up to here."""

    lists: Pairs = ()
    """Stretches, from and to, whose records are listed."""

    shows: Pairs = ()
    """Offsets, and how many bytes are shown at most."""

    failed: str | None = None
    """Why there is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that is on."""

    number: int
    reason: str
    full: bool
    started: float
    step: Step = "map"
    shares: tuple[Share, ...] = ()
    asked: tuple[Asked, ...] = ()
    """Of all rounds of questions."""

    asked_at: float = 0.0
    """When the last of these rounds began."""

    @property
    def round(self) -> int:
        """Number of the last round of questions; 0 before the first."""
        return max((each.number for each in self.asked), default=0)

    def answered(self, index: int) -> tuple[Asked, ...]:
        """What the replicas of a group have answered."""
        pods = {share.pod for share in self.shares if share.index == index}
        last = self.round - (self.step == "look")
        return tuple(
            each for each in self.asked if each.pod in pods and each.failed is None and each.number <= last
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All of it."""

    run: Run | None = None
    runs: int = 0
    """How many runs have begun; reports are numbered by it."""

    number: int = 0
    """Of the last run that has begun."""

    answered: str | None = None
    """Value of the annotation that was carried out last."""

    schedule: str | None = None
    """The schedule that holds, with its zone."""

    since: float = 0.0
    """Since when it holds, and from when on a run is due."""

    begun: float = 0.0
    """Since when the schedule wants runs that pass; 0 while there is none, or it rests."""

    period: int = 0
    """Seconds between two runs of the schedule, the longest of the next ones; 0 without one."""

    set_name: str = ""
    """The BrokerSet that is audited; for the figures, which are made from the status alone."""

    def at(self, **changes: Any) -> Work:
        """The same with changes."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class _Reader:
    given: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> int:
        value = self.given.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def optional(self, name: str) -> int | None:
        return self.number(name) if isinstance(self.given.get(name), int) else None

    def pairs(self, name: str) -> Pairs:
        values = self.given.get(name)
        found = []
        for each in values[:PAIRS_MAX] if isinstance(values, list) else ():
            if (
                isinstance(each, list)
                and len(each) == 2
                and all(type(one) is int and one >= 0 for one in each)
            ):
                found.append((each[0], each[1]))
        return tuple(found)

    def moment(self, name: str) -> float:
        value = self.given.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def read_work(status: Mapping[str, Any]) -> Work:
    """Read what an earlier round has written; what cannot be read counts as not there."""
    given = part(status, "workflow")
    read = _Reader(given)
    return Work(
        run=_read_run(part(given, "run")),
        runs=read.number("runs"),
        number=read.number("number"),
        answered=text(given.get("answered")),
        schedule=text(given.get("schedule")),
        since=read.moment("since"),
        begun=read.moment("begun"),
        period=read.number("period"),
        set_name=str(given.get("set") or ""),
    )


def write_work(work: Work) -> dict[str, Any]:
    """The same as JSON values."""
    found: dict[str, Any] = {"runs": work.runs, "number": work.number, "since": int(work.since)}
    if work.begun:
        found |= {"begun": int(work.begun), "period": work.period}
    if work.set_name:
        found["set"] = work.set_name
    if work.answered is not None:
        found["answered"] = work.answered
    if work.schedule is not None:
        found["schedule"] = work.schedule
    if work.run is not None:
        run = work.run
        found["run"] = {
            "number": run.number,
            "reason": run.reason,
            "full": run.full,
            "started": int(run.started),
            "step": run.step,
            "shares": [_write_share(share) for share in run.shares],
        }
        if run.asked:
            found["run"]["asked"] = [_write_asked(each) for each in run.asked]
            found["run"]["askedAt"] = int(run.asked_at)
    return found


def _read_run(given: Mapping[str, Any]) -> Run | None:
    read = _Reader(given)
    if not read.number("number"):
        return None
    return Run(
        number=read.number("number"),
        reason=str(given.get("reason") or ""),
        full=given.get("full") is True,
        started=read.moment("started"),
        step=_STEPS.get(str(given.get("step")), "map"),
        shares=tuple(_read_share(each) for each in items(given, "shares")),
        asked=tuple(_read_asked(each) for each in items(given, "asked")),
        asked_at=read.moment("askedAt"),
    )


_STEPS: Final[Mapping[str, Step]] = {"map": "map", "reduce": "reduce", "look": "look"}


def read_request(given: Mapping[str, Any], number: int, pod: str) -> Asked:
    """What a comparison wants to know of a replica; what cannot be read is not asked."""
    read = _Reader(given)
    return Asked(
        number=number,
        pod=pod,
        bound=read.number("bound"),
        lists=read.pairs("lists"),
        shows=read.pairs("shows"),
        failed=text(given.get("failed")),
    )


def _read_asked(given: Mapping[str, Any]) -> Asked:
    return read_request(given, _Reader(given).number("number"), str(given.get("pod") or ""))


def _write_asked(asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = {
        "number": asked.number,
        "pod": asked.pod,
        "bound": asked.bound,
        "lists": [list(each) for each in asked.lists],
        "shows": [list(each) for each in asked.shows],
    }
    if asked.failed is not None:
        found["failed"] = asked.failed
    return found


def _read_share(given: Mapping[str, Any]) -> Share:
    read = _Reader(given)
    return Share(
        pod=str(given.get("pod") or ""),
        group=str(given.get("group") or ""),
        index=read.number("index"),
        ordinal=read.number("ordinal"),
        broker_id=read.number("id"),
        claim=str(given.get("claim") or ""),
        confirmed_offset=read.optional("confirmedOffset"),
        failed=text(given.get("failed")),
        noted=text(given.get("noted")),
    )


def _write_share(share: Share) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pod": share.pod,
        "group": share.group,
        "index": share.index,
        "ordinal": share.ordinal,
        "id": share.broker_id,
        "claim": share.claim,
    }
    if share.confirmed_offset is not None:
        found["confirmedOffset"] = share.confirmed_offset
    if share.failed is not None:
        found["failed"] = share.failed
    if share.noted is not None:
        found["noted"] = share.noted
    return found
