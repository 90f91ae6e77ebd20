"""When a run is due, from a cron expression in a time zone; what is remembered of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any, Final, Literal, Self, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from brokerset_operator.model.remembered import kept, read
from brokerset_spec.problems import Problem

RUNS_EXAMINED: Final = 32
"""Runs of a schedule of which the pauses count: those of a month that has one each night."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that can be read; made by `read_schedule`."""

    text: str
    zone: ZoneInfo

    def last_before(self, now: float) -> float | None:
        """The latest time that is due, up to and including the second of `now`; seconds since 1970."""
        found = next(CronSim(self.text, self._local(int(now) + 1), reverse=True), None)
        return None if found is None else found.timestamp()

    def next_after(self, now: float) -> float | None:
        """The first time that is due after `now`; None when there is none within 50 years."""
        found = next(CronSim(self.text, self._local(int(now))), None)
        return None if found is None else found.timestamp()

    def longest_pause(self, now: float) -> int:
        """Seconds between two of the next runs, where they are farthest from each other; 0 for none."""
        times = [
            each.timestamp() for each in islice(CronSim(self.text, self._local(int(now))), RUNS_EXAMINED)
        ]
        return max((int(later - sooner) for sooner, later in pairwise(times)), default=0)

    def _local(self, seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC).astimezone(self.zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is on."""

    number: int
    reason: str = field(default="", metadata=kept(always=True))
    started: float = field(default=0.0, metadata=kept(always=True, whole=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """What is remembered of an object that has runs."""

    runs: int = field(default=0, metadata=kept(always=True))
    """How many runs have begun; reports are numbered by it."""

    number: int = field(default=0, metadata=kept(always=True))
    """Of the last run that has begun: the minute in which it was due, or more."""

    answered: str | None = None
    """Value of the annotation that was carried out last."""

    schedule: str | None = None
    """The schedule that holds, with its zone."""

    since: float = field(default=0.0, metadata=kept(always=True, whole=True))
    """Since when it holds, and from when on a run is due."""

    begun: float = field(default=0.0, metadata=kept(whole=True))
    """Since when the schedule wants runs that pass; 0 while there is none, or it rests."""

    period: int = 0
    """Seconds between two runs of the schedule, the longest of the next ones; 0 without one."""

    run: Run | None = None
    """The run that is on."""

    set_name: str = field(default="", metadata=kept("set"))
    """The BrokerSet that it is about; for the metrics, which are made from the status alone."""

    def at(self, **changes: Any) -> Self:
        """The same with changes."""
        return replace(self, **changes)


Memory = TypeVar("Memory", bound=RunMemory)
Reason = Literal["Request", "Schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """When runs of an object are wanted: on its schedule, unless it rests, and once for each request."""

    schedule: Schedule | None
    suspended: bool
    one_at_a_time: bool
    """Whether a time of the schedule is left out while a run is on."""

    request: str | None
    """Value of the annotation that asks for a run."""

    created: float
    now: float
    """Seconds since 1970, as `created`."""

    def noted(self, memory: Memory) -> Memory:
        """A schedule that was changed begins now: what it would have wanted before is not made up."""
        said = None if self.schedule is None else f"{self.schedule.text} {self.schedule.zone.key}"
        if said != memory.schedule:
            since = self.created if memory.schedule is None else self.now
            memory = replace(memory, schedule=said, since=since, begun=0.0)
        if self.schedule is None or self.suspended:
            return replace(memory, begun=0.0, period=0)
        if memory.begun:
            return memory
        return replace(memory, begun=self.now, period=self.schedule.longest_pause(self.now))

    def due(self, memory: Memory, *, running: bool) -> tuple[Memory, tuple[Reason, int] | None]:
        """Why a run begins now, and the second since when it is due; None when none does."""
        if self.request and self.request != memory.answered:
            return memory, ("Request", int(self.now))
        if self.schedule is None or self.suspended:
            return memory, None
        due = self.schedule.last_before(self.now)
        if due is None or due <= memory.since:
            return memory, None
        if running and self.one_at_a_time:
            # This one is left out; the next comes at its own time.
            return replace(memory, since=due), None
        return memory, ("Schedule", int(due))

    def started(self, memory: Memory, reason: Reason, due: int) -> Memory:
        """A run begins, with the next number."""
        memory = replace(memory, runs=memory.runs + 1, number=max(memory.number + 1, due // 60))
        if reason == "Request":
            return replace(memory, answered=self.request)
        return replace(memory, since=float(due))

    @property
    def upcoming(self) -> float | None:
        """When the schedule wants a run next."""
        if self.schedule is None or self.suspended:
            return None
        return self.schedule.next_after(self.now)


def read_memory(kind: type[Memory], status: Mapping[str, Any]) -> Memory:
    """Read what an earlier reconcile has written."""
    found = read(kind, status.get("workflow")) or kind()
    return found if found.run is None or found.run.number else found.at(run=None)


def read_schedule(text: str | None, zone: str) -> Schedule | Problem | None:
    """Read the schedule of a manifest: None when it has none, or what is wrong with it."""
    try:
        known = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        return Problem("spec.timeZone", f"{zone} is not known here", "write it like Europe/Berlin or Etc/UTC")
    if text is None:
        return None
    try:
        CronSim(text, datetime(2026, 1, 1, tzinfo=known))
    except CronSimError as error:
        advice = "write minute, hour, day of month, month and day of week, as 0 3 * * *"
        return Problem("spec.schedule", f"{text}: {str(error)[:1].lower()}{str(error)[1:]}", advice)
    return Schedule(text, known)
