"""Who is measured: RocketMQ's broker, ours with and without its native core, another checkout, other settings.

All sides are started together and stay until the end of their cases, so that the runs of a case follow each other at once,
and Java keeps the code that it has compiled. Those that are not being measured stand still (SIGSTOP): an idle JVM uses one
to three hundredths of a core. A new start for each run would cost six seconds of start, and measure a cold JVM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.bench import cold_files, machine, priority

from brokerset_rig import stack, wire

START_SECONDS_MAX = 90.0
POLL_SECONDS = 0.005
HEAP = "2g"
SYNC_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Side:
    """One column of the results."""

    name: str
    make: str
    """`java` or `ours`."""

    checkout: Path = stack.ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> str:
        """The checkout's own environment, where it has one: its native core is there."""
        own = self.checkout / ".venv" / "bin" / "python"
        return str(own) if own.exists() else sys.executable

    @property
    def variables(self) -> dict[str, str]:
        """What is set for its processes."""
        if self.make == "java":
            return dict(self.environment)
        folders = ("libs", "broker", "controller", "operator")
        return {
            "PYTHONPATH": os.pathsep.join(str(self.checkout / name) for name in folders),
            "PYTHONDONTWRITEBYTECODE": "",  # installed programs have bytecode: the first start writes it
            **self.environment,
        }

    @property
    def prewarm_seconds(self) -> float:
        """Of each kind of load, before anything is measured."""
        return 8.0 if self.make == "java" else 1.0

    def evict_files(self) -> int:
        """Take what it is started from out of the page cache."""
        folders = (
            cold_files.of_java() if self.make == "java" else cold_files.of_python(self.checkout, self.python)
        )
        return cold_files.evict(folders)


JAVA = Side("java", "java")
NATIVE = Side("native", "ours", environment={"BROKERSET_NATIVE": "require"})
PYTHON = Side("python", "ours", environment={"BROKERSET_NATIVE": "off"})
SIDES = {side.name: side for side in (JAVA, NATIVE, PYTHON)}


def parse_variant(text: str, like: Side) -> Side:
    """A side with other settings, `KEY=VALUE[,KEY=VALUE…]`. Raises `ValueError`."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise ValueError(f"settings are KEY=VALUE[,KEY=VALUE…], not {text!r}")
    return replace(like, name=text, settings={key: value for key, _, value in pairs})


@dataclass(slots=True)
class Running:
    """A broker of one side that runs, or stands still."""

    side: Side
    server: stack.Server
    started_ms: float = 0.0
    """From the start of its process to the first acknowledged send."""

    raised: bool = False
    access: wire.Access | None = None
    """Who administers it, where it checks that."""

    def tree(self) -> list[int]:
        """Its process and all below it."""
        return machine.descendants(machine.processes(), [self.server.pid])

    def cpu_seconds(self) -> float:
        """Processor time of all of them so far."""
        return machine.tree_seconds(machine.processes(), [self.server.pid])

    def freeze(self) -> None:
        """Let it stand still."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.tree():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def broker(side: Side, folder: Path, namesrv: str, settings: Mapping[str, str], *, pin: bool) -> stack.Server:
    """A broker of this side that is not started yet."""
    port = stack.free_ports(1, below=2)[0]
    values = {**settings, **side.settings}
    if side.make == "java":
        os.environ.setdefault("BROKER_HEAP", HEAP)
        server = stack.java_broker(folder, port, namesrv, values)
    else:
        server = stack.our_broker(folder, port, namesrv, values)
        server.command[0] = side.python
    server.environment.update(side.variables)
    server.command = priority.pinned(server.command, priority.SERVER_CORE if pin else None)
    return server


def await_first_send(port: int, access: wire.Access | None = None) -> None:
    """Send until a message is acknowledged. Raises `StackError`."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(OSError), wire.Client(port, 3, access) as client:
            answer = client.call(wire.SEND_V2, wire.send_ext("start-probe", 0, ""), b"x" * 1024)
            if not answer.code:
                return
        time.sleep(POLL_SECONDS)
    raise stack.StackError(f"nothing was acknowledged at port {port} in {START_SECONDS_MAX:g} s")


def start(side: Side, server: stack.Server, access: wire.Access | None = None) -> Running:
    """Start it and wait for its first acknowledgement; what was started is ended when that fails."""
    begun = time.monotonic()
    running = Running(side, server.launch(), access=access)
    try:
        running.raised = priority.raise_session(server.pid)
        server.ready()
        await_first_send(server.port, access)
    except BaseException:
        server.kill()
        raise
    running.started_ms = (time.monotonic() - begun) * 1000
    return running


@contextmanager
def started(
    sides: list[Side],
    folder: Path,
    settings: Mapping[str, str],
    *,
    pin: bool,
    access: wire.Access | None = None,
) -> Iterator[list[Running]]:
    """A broker of every side, each standing still."""
    with ExitStack() as ending:
        namesrv = ending.enter_context(stack.our_namesrv(folder, stack.free_port()))
        found = []
        for number, side in enumerate(sides):
            # Brokers of one name and number at one name server would take each other for one that has moved.
            own = {"brokerName": f"broker-{number}", **settings}
            running = start(side, broker(side, folder / str(number), namesrv.address, own, pin=pin), access)
            ending.callback(running.server.stop)
            ending.callback(running.thaw)
            running.freeze()
            found.append(running)
        yield found


def sync_disk(folder: Path) -> None:
    """Bring to the disk what earlier runs have written, so that the next one does not wait for it."""
    subprocess.run(["sync", "-f", str(folder)], check=True, timeout=SYNC_SECONDS_MAX)
