"""The processes that a failover measurement starts, signals and ends: all its own, none watched by a
supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brokerset_cli.processes import send_signal, start_ticks

END_SECONDS_MAX: Final = 20.0
"""A process that has not ended so long after SIGTERM is killed."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(slots=True)
class ServerProcess:
    """A server that can be started, hurt and started again."""

    name: str
    arguments: tuple[str, ...]
    address: str
    """`host:port` of the remoting protocol."""

    log_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stopped: bool = False
    """Whether SIGSTOP was the last that it was sent."""

    _process: subprocess.Popen[bytes] | None = None
    _ticks: int | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; 0 before it was started."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it; it is ended when this process dies. Returns before it serves."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab", buffering=0) as log:
            self._process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                preexec_fn=_die_with_parent,
                start_new_session=True,
            )
        self._ticks = start_ticks(self._process.pid)
        self.stopped = False

    def send(self, number: signal.Signals) -> bool:
        """Signal it; False when it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        self.stopped = number == signal.SIGSTOP
        sent = send_signal(process.pid, self._ticks, number)
        if number == signal.SIGKILL and sent:
            process.wait()  # so that its ports are free when this returns
        return sent

    def end(self) -> None:
        """Stop it in order, or kill it when it does not end; does nothing when it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGKILL if self.stopped else signal.SIGTERM)
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log_tail(self) -> str:
        """The last lines of its log, for people."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])
        return ""


def end_all(processes: Sequence[ServerProcess]) -> None:
    """End all at once: each is signalled, then each is waited for; what does not end in time is killed."""
    for process in processes:
        process.send(signal.SIGKILL if process.stopped else signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS_MAX
    while any(process.running for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in processes:
        process.send(signal.SIGKILL)


def _die_with_parent() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
