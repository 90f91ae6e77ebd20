"""How much memory a process has, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

from brokerset_rig.stack import StackError


def anonymous_mib(pid: int) -> float:
    """Memory of a process that is no file's, in MiB. Raises `StackError` if the process has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise StackError(f"process {pid} has ended")
