"""When a run is due, from a cron expression in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from brokerset_spec.problems import Problem

RUNS_LOOKED_AT: Final = 32
"""Runs of a schedule of which the pauses are looked at: those of a month that has one each night."""


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
            each.timestamp() for each in islice(CronSim(self.text, self._local(int(now))), RUNS_LOOKED_AT)
        ]
        return max((int(later - sooner) for sooner, later in pairwise(times)), default=0)

    def _local(self, seconds: int) -> datetime:
        return datetime.fromtimestamp(seconds, UTC).astimezone(self.zone)


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
