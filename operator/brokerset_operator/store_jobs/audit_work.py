"""What the operator remembers of a StoreAudit between two rounds, in `status.workflow`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from brokerset_operator.plan.objects import items, part, text

Step = Literal["map", "reduce"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run that is on."""

    number: int
    reason: str
    full: bool
    started: float
    step: Step = "map"
    shares: tuple[Share, ...] = ()


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
    )


def write_work(work: Work) -> dict[str, Any]:
    """The same as JSON values."""
    found: dict[str, Any] = {"runs": work.runs, "number": work.number, "since": int(work.since)}
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
        step="reduce" if given.get("step") == "reduce" else "map",
        shares=tuple(_read_share(each) for each in items(given, "shares")),
    )


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
    return found
