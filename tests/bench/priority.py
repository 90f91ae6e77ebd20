"""The share of the processor that the measured programs get next to everything else on the machine.

With `kernel.sched_autogroup_enabled` every session is a group of its own, and the nice value of a process counts only
within its session. So servers and the load generator are started each in a session of its own, whose group is raised;
without autogroups their processes are.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

AUTOGROUP_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
NICE = -10
SERVER_CORE, GENERATOR_CORE = "0", "1"


def autogroups() -> bool:
    """Whether the kernel schedules by session."""
    try:
        return AUTOGROUP_ENABLED.read_text().strip() == "1"
    except OSError:
        return False


def raise_session(pid: int) -> bool:
    """Raise a process that leads its session above others; False when that is not permitted."""
    with suppress(OSError):
        if autogroups():
            Path(f"/proc/{pid}/autogroup").write_text(str(NICE))
        else:
            os.setpriority(os.PRIO_PGRP, pid, NICE)
        return True
    return False


def pinned(command: list[str], core: str | None) -> list[str]:
    """The command on one core, or as it is."""
    return command if core is None else ["taskset", "-c", core, *command]


def description(raised: bool, pin: bool) -> list[str]:
    """What was set, for people."""
    kind = "session" if autogroups() else "process group"
    found = [
        f"each server and the load generator in a {kind} of nice {NICE}"
        if raised
        else f"priorities as they are (not permitted to raise a {kind})"
    ]
    cores = f"servers on core {SERVER_CORE}, the load generator on core {GENERATOR_CORE}"
    return [*found, cores if pin else "servers and the load generator on all cores"]
