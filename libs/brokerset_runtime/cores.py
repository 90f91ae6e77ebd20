"""How many processor cores this process, and those that it starts, may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """The cores that the process may run on, or fewer where a control group gives it less time."""
    allowed = len(os.sched_getaffinity(0))
    return cores_of(allowed, _quotas())


def cores_of(allowed: int, quotas: Iterable[str]) -> int:
    """The cores of `allowed` for which `quotas` leave time; at least one.

    Each quota is the text of a `cpu.max`; one without a limit says `max`, and is ignored.
    """
    found = [float(allowed)]
    for text in quotas:
        quota, _, period = text.strip().partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return max(1, math.floor(min(found)))


def _quotas() -> Iterable[str]:
    """`cpu.max` of the process's control group and of those around it, with version 2 of control groups."""
    with contextlib.suppress(OSError):
        for line in OWN_CGROUP.read_text().splitlines():
            if line.startswith("0::/"):
                folder = CGROUPS / line.removeprefix("0::/")
                for each in (folder, *folder.parents):
                    if each.is_relative_to(CGROUPS):
                        with contextlib.suppress(OSError):
                            yield (each / "cpu.max").read_text()
