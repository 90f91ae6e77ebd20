"""The command that stops a Java broker, with real processes: what of it lives on, and what must not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.processes import is_alive, start_ticks, wait_gone
from brokerset_cli.takeover.stop_command import run_stop_command

GONE_SECONDS_MAX = 10.0
SECONDS = 100.0


@dataclass
class Child:
    """A process that a command starts and leaves in the background; it writes down who it is."""

    path: Path

    def started(self) -> bool:
        return self.path.exists() and self.path.read_text().endswith("\n")

    def clock(self) -> float:
        """Time is over as soon as the child runs."""
        return SECONDS if self.started() else 0.0

    def wait(self) -> None:
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while not self.started():
            assert time.monotonic() < deadline, "the command does not start its child"
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        return int(self.path.read_text())

    def is_gone(self) -> bool:
        return wait_gone(self.pid, start_ticks(self.pid), 0.0)


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Signals do what they do at a terminal, also where the tests were started with some of them ignored."""
    usual: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A child to be; it is ended when the test is, whatever came of it."""
    found = Child(tmp_path / "child")
    yield found
    if found.started() and is_alive(found.pid, start_ticks(found.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)


def background(child: Child, *, then: str = "wait", deaf: bool = False, apart: bool = False) -> str:
    """A shell that starts a sleeping child; `deaf` to SIGTERM, `apart`: in a process group of its own."""
    begin = "import os, signal, sys, time\n"
    begin += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
    begin += "os.setpgid(0, 0)\n" if apart else ""
    begin += "open(sys.argv[1], 'w').write(f'{os.getpid()}\\n')\ntime.sleep(1000)"
    words = [sys.executable, "-S", "-c", begin, str(child.path)]
    return f"{shlex.join(words)} & {then}"


def run(command: str, child: Child, **options: float) -> list[str]:
    said: list[str] = []
    asyncio.run(run_stop_command(command, SECONDS, said.append, clock=child.clock, **options))
    return said


def test_a_command_that_ends_well_is_all(child: Child, capfd: pytest.CaptureFixture[str]) -> None:
    """It reads nothing, and what it prints is no result of ours."""
    said = run("cat; echo stopped", child)

    assert said == []
    assert capfd.readouterr() == ("", "stopped\n")


def test_a_command_that_ends_well_may_leave_a_child(tmp_path: Path) -> None:
    """An ssh client shares its connection with the next one: its process is not ours to end."""
    gate, answer = tmp_path / "gate", tmp_path / "answer"
    os.mkfifo(gate)
    both = os.open(gate, os.O_RDWR)
    waits = f"(read word < {shlex.quote(str(gate))}; echo $word > {shlex.quote(str(answer))}) &"

    asyncio.run(run_stop_command(waits, SECONDS, print))

    os.write(both, b"alive\n")
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while not (answer.exists() and answer.read_text() == "alive\n"):
        assert time.monotonic() < deadline, "the child was ended"
        time.sleep(0.01)
    os.close(both)


@pytest.mark.parametrize("apart", [False, True], ids=["in-the-group", "in-a-group-of-its-own"])
def test_at_the_time_out_no_child_lives_on(child: Child, apart: bool) -> None:
    """The shell and the child that it has started in the background end, and are named."""
    with pytest.raises(CommandFailed, match="has not ended after 100 s; ended: ") as raised:
        run(background(child, apart=apart), child)

    assert child.is_gone()
    assert f"({child.pid})" in raised.value.message
    assert "killed" not in raised.value.message


def test_a_child_that_does_not_hear_is_killed(child: Child) -> None:
    """After SIGTERM and a short while comes SIGKILL, and both are told apart."""
    with pytest.raises(CommandFailed) as raised:
        run(background(child, deaf=True), child, term_seconds=0.2)

    assert child.is_gone()
    assert f"({child.pid})" in raised.value.message.partition("killed: ")[2]


def test_a_command_that_fails_leaves_no_child(child: Child) -> None:
    """It is corrected and given again: what the first one has left could stop a broker in between."""
    until = f"until [ -s {shlex.quote(str(child.path))} ]; do sleep 0.01; done; exit 7"

    with pytest.raises(CommandFailed, match="ended with exit code 7; ended: "):
        asyncio.run(run_stop_command(background(child, then=until), SECONDS, print))

    assert child.is_gone()


@pytest.mark.parametrize(
    ("command", "said"),
    [("exit 3", "ended with exit code 3; nothing of it runs"), ("kill -9 $$", "was ended by SIGKILL")],
)
def test_how_it_failed_is_told(child: Child, command: str, said: str) -> None:
    """The person sees the code or the signal with which their command ended."""
    with pytest.raises(CommandFailed, match=said):
        run(command, child)


def test_an_interrupted_command_is_ended_and_named(child: Child) -> None:
    """Ctrl-C cancels the task: nothing of the command lives on, and it goes on to be cancelled."""
    said: list[str] = []

    async def scenario() -> None:
        task = asyncio.create_task(run_stop_command(background(child), SECONDS, said.append))
        await asyncio.to_thread(child.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())

    assert child.is_gone()
    assert len(said) == 1
    assert "is interrupted; ended: " in said[0]
    assert f"({child.pid})" in said[0]


@pytest.mark.usefixtures("usual_signals")
def test_ctrl_c_reaches_the_command_though_it_has_no_terminal(child: Child) -> None:
    """In a session of its own it does not get SIGINT from the terminal: we do, and end it."""
    said: list[str] = []

    async def scenario() -> None:
        interrupts = asyncio.create_task(asyncio.to_thread(interrupt))
        await run_stop_command(background(child), SECONDS, said.append)
        await interrupts

    def interrupt() -> None:
        child.wait()
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scenario())

    assert child.is_gone()
    assert "is interrupted; ended: " in said[0]


def test_who_does_not_want_to_wait_interrupts_again(child: Child) -> None:
    """The second Ctrl-C comes while the child does not hear SIGTERM: it is killed at once."""

    async def scenario() -> None:
        task = asyncio.create_task(
            run_stop_command(background(child, deaf=True), SECONDS, print, term_seconds=1000)
        )
        await asyncio.to_thread(child.wait)
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())

    assert wait_gone(child.pid, start_ticks(child.pid), GONE_SECONDS_MAX)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_this_process_ends_the_command_first(child: Child, number: signal.Signals) -> None:
    """The terminal is closed, or a service manager ends us: in a session of its own nobody else would."""
    said: list[str] = []

    async def scenario() -> None:
        task = asyncio.create_task(run_stop_command(background(child), SECONDS, said.append))
        await asyncio.to_thread(child.wait)
        os.kill(os.getpid(), number)
        await task

    with pytest.raises(SystemExit) as raised:
        asyncio.run(scenario())

    assert raised.value.code == 128 + number
    assert child.is_gone()
    assert f"is interrupted by {number.name}; ended: " in said[0]
    assert signal.getsignal(number) is signal.SIG_DFL
