"""Lines of several logs, put in the order in which they were written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import click

Stamp = tuple[int, int]
"""Seconds since 1970 and nanoseconds: Python's own times have no nanoseconds."""

_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |$)")

BEGINNING: Final[Stamp] = (0, 0)

COLORS: Final = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a pod's log."""

    stamp: Stamp
    pod: str
    text: str
    """Without the time in front."""

    time: str
    """The time as the node wrote it; empty for a line that had none."""


def read_line(pod: str, given: str, before: Stamp = BEGINNING) -> Line:
    """Read a line of a log with times; one without a time belongs to the line before it."""
    found = _STAMP.match(given)
    if found is None:
        return Line(before, pod, given, "")
    seconds, fraction, zone = found.groups()
    whole = int(datetime.fromisoformat(seconds + zone.replace("Z", "+00:00")).timestamp())
    stamp = (whole, int((fraction or "").ljust(9, "0")))
    return Line(stamp, pod, given[found.end() :], found.group().rstrip())


def read_lines(pod: str, text: str) -> list[Line]:
    """Read a whole log."""
    found: list[Line] = []
    for given in text.splitlines():
        found.append(read_line(pod, given, found[-1].stamp if found else BEGINNING))
    return found


def merged(logs: Iterable[Sequence[Line]]) -> list[Line]:
    """All lines by their times; lines of one pod stay in their order."""
    return sorted((line for log in logs for line in log), key=lambda line: line.stamp)


def shown(line: Line, pods: Sequence[str], *, with_time: bool) -> str:
    """A line with its pod in front, in the pod's colour."""
    width = max((len(pod) for pod in pods), default=0)
    color = COLORS[pods.index(line.pod) % len(COLORS)] if line.pod in pods else None
    time = f"{line.time} " if with_time and line.time else ""
    return f"{click.style(line.pod.ljust(width), fg=color)}  {time}{line.text}"
