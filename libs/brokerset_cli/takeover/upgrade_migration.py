"""Runs `brokerset store migrate` for an upgrade. The job ends with this process, however that ends."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from pathlib import Path
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.store import PACKAGE
from brokerset_cli.takeover.upgrade_exchange import forget_new, new_of

PR_SET_PDEATHSIG: Final = 1
_C: Final = ctypes.CDLL(None)


async def migrate(store: Path, *, until: int | None, delay_levels: str) -> Path:
    """Write the messages of a DLedger as a commit log next to the store; returns where.

    It goes on where an earlier call was killed, and does nothing when that had ended. What was made of other
    files, for a broker has run since, is made again.
    """
    new = new_of(store)
    arguments = ["--to", "commitlog", "--take-uncommitted"]
    arguments += ["--until-offset", str(until)] if until is not None else []
    arguments += ["--delay-levels", delay_levels] if delay_levels else []
    leftovers = any(new.parent.glob(f"{new.name}*"))
    code, said = await _run([str(store), str(new), *arguments])
    if code and leftovers:
        forget_new(store)
        code, said = await _run([str(store), str(new), *arguments])
    if code:
        problem = said.rpartition("Error: ")[2].strip()
        reason, _, advice = problem.partition("What to do: ")
        raise CommandFailed(
            f"{store} cannot be written as a commit log, and is as it was: {' '.join(reason.split())}",
            " ".join(advice.split()) or f"see `brokerset store verify {store}`, then repeat this",
        )
    return new


async def _run(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of the job."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", PACKAGE, "migrate", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        process_group=0,
        preexec_fn=_end_with_parent,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


def _end_with_parent() -> None:
    _C.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
