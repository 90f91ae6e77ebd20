"""The supervisor with real child processes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from brokerset_rig.stack import free_port
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.supervision import (
    BackOff,
    Child,
    ChildSpec,
    StartFailed,
    Supervisor,
)

WAIT_SECONDS = 20

LISTEN = (
    "import socket, sys, signal; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
    "print('listening', flush=True); signal.pause()"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LISTEN


async def accepts_connections(host: str, port: int) -> bool:
    """Whether somebody listens on `host:port`."""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _listener(folder: Path, name: str, code: str = LISTEN) -> ChildSpec:
    port = free_port()
    return ChildSpec(
        name=name,
        arguments=(sys.executable, "-c", code, str(port)),
        log_file=folder / f"{name}.log",
        ready=partial(accepts_connections, "127.0.0.1", port),
    )


class Received:
    """What the supervisor said, and a way to wait for a phrase."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, child: Child, what: str) -> None:
        self.lines.append(f"{child.spec.name} {what}")
        self._changed.set()

    async def until(self, phrase: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not any(phrase in line for line in self.lines):
                self._changed.clear()
                await self._changed.wait()


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_processes_start_in_order_and_stop_in_reverse_order(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        told = Received()
        supervisor = Supervisor(
            [_listener(tmp_path, "first"), _listener(tmp_path, "second")], clock=SystemClock(), say=told
        )
        await supervisor.run(supervisor.stop)
        return told.lines

    lines = asyncio.run(scenario())

    assert [line.split(" is process")[0] for line in lines] == [
        "first", "second",
        "second is told to stop", "second has stopped", "first is told to stop", "first has stopped",
    ]  # fmt: skip
    assert (tmp_path / "first.log").read_text() == "listening\n"


def test_a_crashed_process_is_started_again_and_that_is_said(tmp_path: Path) -> None:
    async def scenario() -> tuple[Child, list[str]]:
        told = Received()
        supervisor = Supervisor(
            [_listener(tmp_path, "a")], clock=SystemClock(), say=told, back_off=BackOff(first_ms=1)
        )
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
        (child,) = supervisor.children
        os.kill(child.pid, signal.SIGKILL)
        await told.until("serves again")
        supervisor.stop()
        await running
        return child, told.lines

    child, lines = asyncio.run(scenario())

    assert child.restarts == 1
    assert "a was ended by SIGKILL; starts again in 0.001 s" in lines


def test_a_process_does_not_get_what_is_withheld_and_gets_what_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOR_OTHERS", "secret")
    monkeypatch.setenv("FOR_ALL", "inherited")
    code = "import os; print(*(os.environ.get(n) for n in ('FOR_OTHERS', 'FOR_ALL', 'OWN')), flush=True)\n"
    spec = dataclasses.replace(
        _listener(tmp_path, "a", code + LISTEN),
        withheld=frozenset({"FOR_OTHERS", "OWN"}),
        environment={"OWN": "added"},
    )

    async def scenario() -> None:
        supervisor = Supervisor([spec], clock=SystemClock(), say=Received())
        await supervisor.run(supervisor.stop)

    asyncio.run(scenario())

    assert (tmp_path / "a.log").read_text() == "None inherited added\nlistening\n"


def test_a_process_that_never_serves_fails_the_start_and_the_others_are_stopped(tmp_path: Path) -> None:
    bad = ChildSpec(
        name="bad",
        arguments=(sys.executable, "-c", "print('no such disk'); raise SystemExit(3)"),
        log_file=tmp_path / "bad.log",
        ready=partial(accepts_connections, "127.0.0.1", free_port()),
    )

    async def scenario() -> tuple[StartFailed, list[int]]:
        pids: list[int] = []
        supervisor = Supervisor(
            [_listener(tmp_path, "good"), bad],
            clock=SystemClock(),
            say=lambda child, _: pids.append(child.pid),
        )
        with pytest.raises(StartFailed) as caught:
            await supervisor.run(lambda: None)
        return caught.value, [pid for pid in pids if pid]

    error, pids = asyncio.run(scenario())

    assert (error.name, error.reason, error.log_tail) == ("bad", "ended with exit code 3", "no such disk\n")
    assert pids
    assert all(_gone(pid) for pid in pids)


def test_a_process_that_ignores_the_signal_is_killed_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerset_runtime.supervision.STOP_SECONDS_MAX", 0.1)

    async def scenario() -> list[str]:
        told = Received()
        supervisor = Supervisor([_listener(tmp_path, "deaf", STUBBORN)], clock=SystemClock(), say=told)
        await supervisor.run(supervisor.stop)
        return told.lines

    assert "deaf has not ended after 0.1 s and is killed" in asyncio.run(scenario())


async def test_children_are_told_to_stop_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """Nobody is left to stop them in order, but none may go on alone."""

    spec = _listener(tmp_path, "orphan")
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from brokerset_runtime.clock import SystemClock\n"
        "from brokerset_runtime.supervision import ChildSpec, Supervisor\n"
        f"spec = ChildSpec(name='orphan', arguments={spec.arguments!r}, "
        f"log_file=Path({str(spec.log_file)!r}))\n"
        "s = Supervisor([spec], clock=SystemClock(), say=lambda child, what: None)\n"
        "asyncio.run(s.run(lambda: print(s.children[0].pid, flush=True)))\n"
    )

    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    async with asyncio.timeout(WAIT_SECONDS):
        child_pid = int(await parent.stdout.readline())
        parent.kill()
        await parent.wait()
        while not _gone_or_zombie(child_pid):  # noqa: ASYNC110  # the system tells nobody but the parent
            await asyncio.sleep(0.01)


def _gone_or_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_neighbours_that_belong_together_wait_for_each_other(tmp_path: Path) -> None:
    """Neither is ready before the other runs, so one after the other they would never start."""

    async def scenario() -> list[str]:
        told = Received()
        specs = [*_members(tmp_path, 2), _listener(tmp_path, "last")]
        supervisor = Supervisor(specs, clock=SystemClock(), say=told)
        async with asyncio.timeout(WAIT_SECONDS):
            await supervisor.run(supervisor.stop)
        return [line.split(" is process")[0] for line in told.lines]

    lines = asyncio.run(scenario())

    assert lines[:5] == ["member-0", "member-1", "last", "last is told to stop", "last has stopped"]
    assert lines[5:7] == ["member-0 is told to stop", "member-1 is told to stop"]


def test_processes_are_added_and_removed_while_others_run(tmp_path: Path) -> None:
    """One that is removed is not started again; one that cannot be started leaves nothing behind."""

    async def scenario() -> tuple[list[str], list[str]]:
        told = Received()
        supervisor = Supervisor([_listener(tmp_path, "a")], clock=SystemClock(), say=told)
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
            await supervisor.add(_listener(tmp_path, "b"))
            await supervisor.add(_listener(tmp_path, "c"))
            await supervisor.remove("b")
            await supervisor.remove("never there")
            broken = ChildSpec("d", (sys.executable, "-c", "raise SystemExit(3)"), tmp_path / "d.log")
            with pytest.raises(StartFailed, match="d ended with exit code 3"):
                await supervisor.add(dataclasses.replace(broken, ready=_never))
        names = [child.spec.name for child in supervisor.children]
        supervisor.stop()
        await running
        return names, told.lines

    names, lines = asyncio.run(scenario())

    assert names == ["a", "c"]
    assert "b has stopped" in lines
    assert not any("starts again" in line for line in lines)
    assert lines[-4:] == ["c is told to stop", "c has stopped", "a is told to stop", "a has stopped"]


async def _never() -> bool:
    return False


def _members(folder: Path, count: int) -> list[ChildSpec]:
    """Processes of which none serves before all of them run."""
    ports = [free_port() for _ in range(count)]

    async def all_listen() -> bool:
        return all([await accepts_connections("127.0.0.1", port) for port in ports])

    return [
        ChildSpec(
            name=f"member-{number}",
            arguments=(sys.executable, "-c", LISTEN, str(port)),
            log_file=folder / f"member-{number}.log",
            ready=all_listen,
            together="members",
        )
        for number, port in enumerate(ports)
    ]


def test_processes_that_need_each_other_are_added_together(tmp_path: Path) -> None:
    """All of them are kept running afterwards."""

    async def scenario() -> list[str]:
        told = Received()
        supervisor = Supervisor(
            [_listener(tmp_path, "a")], clock=SystemClock(), say=told, back_off=BackOff(first_ms=1)
        )
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
            await supervisor.add(*_members(tmp_path, 3))
            states = [f"{child.spec.name} {child.state}" for child in supervisor.children]
            os.kill(supervisor.children[-1].pid, signal.SIGKILL)
            await told.until("member-2 serves again")
        supervisor.stop()
        await running
        return states

    states = asyncio.run(scenario())

    assert states == ["a running", "member-0 running", "member-1 running", "member-2 running"]


def test_when_one_of_those_that_are_added_together_fails_none_of_them_runs(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[str], list[int], str]:
        pids: dict[str, int] = {}
        supervisor = Supervisor(
            [_listener(tmp_path, "a")],
            clock=SystemClock(),
            say=lambda child, _: pids.update({child.spec.name: child.pid or pids[child.spec.name]}),
        )
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        first, second, third = _members(tmp_path, 3)
        broken = dataclasses.replace(third, arguments=(sys.executable, "-c", "raise SystemExit(3)"))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
            with pytest.raises(StartFailed) as caught:
                await supervisor.add(first, second, broken)
        left = [child.spec.name for child in supervisor.children]
        gone = [pids[name] for name in ("member-0", "member-1", "member-2")]
        assert all(_gone(pid) for pid in gone)
        supervisor.stop()
        await running
        return left, gone, f"{caught.value.name} {caught.value.reason}"

    left, gone, said = asyncio.run(scenario())

    assert left == ["a"]
    assert len(set(gone)) == 3
    assert said == "member-2 ended with exit code 3"


def test_what_is_added_while_everything_ends_ends_too(tmp_path: Path) -> None:
    """It fails as one that does not start, and leaves no process behind."""

    async def scenario() -> list[int]:
        pids: dict[str, int] = {}
        supervisor = Supervisor(
            [_listener(tmp_path, "a")],
            clock=SystemClock(),
            say=lambda child, _: pids.update({child.spec.name: child.pid or pids[child.spec.name]}),
        )
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
            late = dataclasses.replace(_listener(tmp_path, "late"), ready=_never)
            adding = asyncio.create_task(supervisor.add(late))
            while "late" not in pids:  # noqa: ASYNC110  # nothing else tells that it was spawned
                await asyncio.sleep(0.01)
            supervisor.stop()
            with pytest.raises(StartFailed, match="late was told to stop"):
                await adding
            await running
        return list(pids.values())

    pids = asyncio.run(scenario())

    assert len(pids) == 2
    assert all(_gone(pid) for pid in pids)


def test_a_change_counts_from_the_next_start_on(tmp_path: Path) -> None:
    after = _listener(tmp_path, "a")

    async def scenario() -> tuple[int, int, str]:
        told = Received()
        supervisor = Supervisor(
            [_listener(tmp_path, "a")], clock=SystemClock(), say=told, back_off=BackOff(first_ms=1)
        )
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
            (child,) = supervisor.children
            pid = child.pid
            supervisor.change(after)
            same = child.pid
            os.kill(pid, signal.SIGKILL)
            await told.until("serves again")
        command = await asyncio.to_thread(Path(f"/proc/{child.pid}/cmdline").read_text)
        supervisor.stop()
        await running
        return pid, same, command.split("\0")[3]

    pid, same, port = asyncio.run(scenario())

    assert pid == same
    assert port == after.arguments[3]


def test_a_restart_may_be_done_in_another_way(tmp_path: Path) -> None:
    async def scenario() -> tuple[str, Child]:
        told = Received()
        first, second = _listener(tmp_path, "a"), _listener(tmp_path, "a")
        spec = dataclasses.replace(first, renew=lambda: second)
        supervisor = Supervisor([spec], clock=SystemClock(), say=told, back_off=BackOff(first_ms=1))
        ready = asyncio.Event()
        running = asyncio.create_task(supervisor.run(ready.set))
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()
        (child,) = supervisor.children
        os.kill(child.pid, signal.SIGKILL)
        await told.until("serves again")
        command = await asyncio.to_thread(Path(f"/proc/{child.pid}/cmdline").read_text)
        supervisor.stop()
        await running
        return command.split("\0")[3], dataclasses.replace(child, spec=second)

    port, child = asyncio.run(scenario())

    assert port == child.spec.arguments[3]
