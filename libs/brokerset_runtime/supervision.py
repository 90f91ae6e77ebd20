"""Runs child processes: starts them in order, restarts the ones that crash, stops them in reverse order.

Neighbours that name the same `together` are started, and stopped, at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from brokerset_runtime.clock import Clock

READY_SECONDS_MAX: Final = 600.0
"""Longest time from the start of a process until it serves; a broker may have to recover a big store."""

STILL_STARTING_SECONDS: Final = 10.0
"""How often it is said that a process has not come up yet."""

PROBE_SECONDS: Final = 0.02
"""Pause between two looks whether a process serves."""

STOP_SECONDS_MAX: Final = 20.0
"""A process that has not ended this long after SIGTERM is killed."""

LOG_BYTES_MAX: Final = 64 * 1024 * 1024
"""A log file that is larger is moved to `<name>.1`, replacing the one before."""

LOG_CHECK_SECONDS: Final = 10.0
LOG_TAIL_BYTES: Final = 4_000
"""How much of a log is shown when its process did not start."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long to wait before a crashed process is started again."""

    first_ms: int = 200
    factor: int = 2
    ceiling_ms: int = 30_000
    forget_after_ms: int = 60_000
    """A process that ran this long is treated as if it had never crashed."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What to do about a crash."""

    delay_ms: int
    crashes: int
    """Crashes in a row, this one included."""


def decide_restart(crashes_before: int, ran_ms: int, policy: BackOff) -> Restart:
    """Return when to start a process again that crashed after `ran_ms`, and so often in a row before."""
    before = 0 if ran_ms >= policy.forget_after_ms else crashes_before
    # 60 doublings exceed every ceiling; without the bound the number grows with each crash.
    delay = policy.first_ms * policy.factor ** min(before, 60)
    return Restart(delay_ms=min(delay, policy.ceiling_ms), crashes=before + 1)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running."""

    name: str
    arguments: tuple[str, ...]
    log_file: Path
    ready: Callable[[], Awaitable[bool]] | None = None
    """Asked until it says that the process serves; answers within seconds. None means: running is enough."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of this process."""

    withheld: frozenset[str] = frozenset()
    """Variables of the supervisor's environment that this process does not get."""

    together: str | None = None
    """Neighbours with the same text wait for each other to serve, so they start at the same time."""

    renew: Callable[[], ChildSpec] | None = None
    """Asked before each restart for how to start it this time; None means: as before."""


def _environment(spec: ChildSpec) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in spec.withheld}
    return {**inherited, **spec.environment}


State = Literal["starting", "running", "waiting", "stopping", "stopped"]


@dataclass(slots=True)
class Child:
    """What the supervisor knows about one process."""

    spec: ChildSpec
    state: State = "stopped"
    pid: int = 0
    restarts: int = 0
    crashes_in_a_row: int = 0
    started_ms: int = 0
    """Wall clock at the last start."""

    process: asyncio.subprocess.Process | None = None


class StartFailed(Exception):
    """A process ended, or did not serve, before it was ready for the first time."""

    def __init__(self, name: str, reason: str, log_file: Path, log_tail: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason
        self.log_file = log_file
        self.log_tail = log_tail


Say = Callable[[Child, str], None]
"""Called with a child and what happened to it, for people; the state is up to date."""


class Supervisor:
    """Keeps processes running until `stop`; some may be added and removed meanwhile."""

    def __init__(
        self, specs: Sequence[ChildSpec], *, clock: Clock, say: Say, back_off: BackOff | None = None
    ) -> None:
        self.children = tuple(Child(spec) for spec in specs)
        """In the order in which they were started."""
        self._clock = clock
        self._say = say
        self._back_off = back_off or BackOff()
        self._stopping = asyncio.Event()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self, started: Callable[[], None]) -> None:
        """Start all, call `started` once every one is ready, and keep them running until `stop` is called.

        Each is started when the one before is ready, but for those that start together. Raises
        `StartFailed`; all that was started is stopped before this method ends, however it ends.
        """
        try:
            for children in _in_groups(self.children):
                if self._stopping.is_set():
                    return
                await self._start_first(children)
            started()
            async with asyncio.TaskGroup() as self._group:
                for child in self.children:
                    self._keepers[child.spec.name] = self._group.create_task(self._keep(child))
                logs = self._group.create_task(self._bound_logs())
                await self._stopping.wait()
                for keeper in (*self._keepers.values(), logs):
                    keeper.cancel()
        finally:
            self._group = None
            await self._stop_all()

    async def add(self, *specs: ChildSpec) -> None:
        """Start more processes while `run` runs, in the way in which it starts them; return when all serve.

        Raises `StartFailed`, and then none of them runs.
        """
        assert self._group is not None, "nothing can be added before all have started"
        new = [Child(spec) for spec in specs]
        self.children = (*self.children, *new)
        try:
            for children in _in_groups(new):
                await self._start_first(children)
                if self._stopping.is_set():
                    first = children[0].spec
                    raise StartFailed(first.name, "was told to stop", first.log_file, "")
        except BaseException:
            await asyncio.gather(*(self._forget(child) for child in new))
            raise
        for child in new:
            self._keepers[child.spec.name] = self._group.create_task(self._keep(child))

    def change(self, spec: ChildSpec) -> None:
        """Start the process of this name like that from now on; what runs goes on as it is."""
        for child in self.children:
            if child.spec.name == spec.name:
                child.spec = spec

    async def remove(self, name: str) -> None:
        """Stop a process for good while `run` runs; does nothing when there is none of this name."""
        child = next((child for child in self.children if child.spec.name == name), None)
        if child is None:
            return
        keeper = self._keepers.pop(name, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        await self._forget(child)

    async def _forget(self, child: Child) -> None:
        await self._stop_child(child)
        self.children = tuple(other for other in self.children if other is not child)

    def stop(self) -> None:
        """Let `run` end; returns at once. May be called from a signal handler."""
        self._stopping.set()

    def kill(self) -> None:
        """End all children at once, for a second signal; what they have not written is recovered at start."""
        self._stopping.set()
        for child in self.children:
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.kill()

    async def _start_first(self, children: Sequence[Child]) -> None:
        for child in children:
            await self._spawn(child)
        waits = [asyncio.ensure_future(self._until_ready(child)) for child in children]
        try:
            for done in asyncio.as_completed(waits):
                await done
                if self._stopping.is_set():
                    return
                for child, wait in zip(children, waits, strict=True):
                    problem = wait.result() if wait.done() else None
                    if problem is not None:
                        tail = log_tail(child.spec.log_file)
                        raise StartFailed(child.spec.name, problem, child.spec.log_file, tail)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _keep(self, child: Child) -> None:
        while True:
            assert child.process is not None
            code = await child.process.wait()
            ran_ms = self._clock.now_ms() - child.started_ms
            await self._restart(child, describe_exit(code), ran_ms)
            problem = await self._until_ready(child)
            if problem is None:
                self._say(child, "serves again")
            elif child.process.returncode is None:
                self._say(child, problem)

    async def _restart(self, child: Child, what_happened: str, ran_ms: int) -> None:
        """Start a child again after a pause, however often that takes."""
        while True:
            restart = decide_restart(child.crashes_in_a_row, ran_ms, self._back_off)
            child.crashes_in_a_row = restart.crashes
            child.state, child.pid = "waiting", 0
            self._say(child, f"{what_happened}; starts again in {restart.delay_ms / 1000:g} s")
            await asyncio.sleep(restart.delay_ms / 1000)
            child.restarts += 1
            if child.spec.renew is not None:
                child.spec = child.spec.renew()
            try:
                await self._spawn(child)
                return
            except OSError as error:
                what_happened, ran_ms = f"could not be started: {error.strerror}", 0

    async def _spawn(self, child: Child) -> None:
        spec = child.spec
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        with spec.log_file.open("ab", buffering=0) as log:
            child.process = await asyncio.create_subprocess_exec(
                *spec.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(spec),
                preexec_fn=_child_setup(os.getpid()),
                start_new_session=True,
            )
        child.pid = child.process.pid
        child.started_ms = self._clock.now_ms()
        child.state = "starting"
        self._say(child, f"is process {child.pid}")

    async def _until_ready(self, child: Child) -> str | None:
        """Wait until the child serves; returns what went wrong instead, or `None`."""
        assert child.process is not None
        begun = self._clock.monotonic()
        said = begun
        while child.process.returncode is None and not self._stopping.is_set():
            if child.spec.ready is None or await child.spec.ready():
                child.state = "running"
                return None
            now = self._clock.monotonic()
            if now - begun >= READY_SECONDS_MAX:
                return f"does not serve after {READY_SECONDS_MAX:g} s"
            if now - said >= STILL_STARTING_SECONDS:
                said = now
                self._say(child, f"is still starting; its log is {child.spec.log_file}")
            await asyncio.sleep(PROBE_SECONDS)
        return (
            "was told to stop"
            if child.process.returncode is None
            else describe_exit(child.process.returncode)
        )

    async def _stop_all(self) -> None:
        for children in reversed(_in_groups(self.children)):
            await asyncio.gather(*(self._stop_child(child) for child in children))

    async def _stop_child(self, child: Child) -> None:
        process = child.process
        if process is None or child.state == "stopped":
            return
        if process.returncode is None:
            child.state = "stopping"
            self._say(child, "is told to stop")
            await self._end(child, process)
        child.state, child.pid = "stopped", 0
        self._say(child, "has stopped")

    async def _end(self, child: Child, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            self._say(child, f"has not ended after {STOP_SECONDS_MAX:g} s and is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            for child in self.children:
                await asyncio.to_thread(bound_log, child.spec.log_file)


def _in_groups(children: Sequence[Child]) -> list[list[Child]]:
    """Those that are started at the same time, in the order of their starts."""
    found: list[list[Child]] = []
    for child in children:
        together = child.spec.together
        if found and together is not None and found[-1][0].spec.together == together:
            found[-1].append(child)
        else:
            found.append([child])
    return found


def bound_log(path: Path, size_max: int = LOG_BYTES_MAX) -> None:
    """Move the content of a log that is too large to `<name>.1`.

    The process keeps its open file, so the content is copied and the file emptied; what is written between
    the two is lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > size_max:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def log_tail(path: Path) -> str:
    """Return the end of a log, from the start of a line, for showing it in an error."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - LOG_TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text.split("\n", 1)[-1] if size > LOG_TAIL_BYTES else text


def describe_exit(code: int) -> str:
    """Return how a process ended: `ended with exit code 1`, `was ended by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _child_setup(parent_pid: int) -> Callable[[], None]:
    """Return what a child does before it becomes the program: ask to be told to stop when its parent dies."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)

    def setup() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:  # it died before the line above
            os._exit(1)

    return setup
