"""Runs the command that a person gave to stop a Java broker, and leaves nothing of it behind when it fails.

It runs in a session of its own. A command that hangs, fails or is interrupted is ended with all that it has
started: a child that lives on could stop a broker later, when nobody expects it. A command that ends well may
leave children, such as the shared connection of an ssh client. One that makes a session of its own
(`setsid`) leaves ours, and is out of reach.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.processes import command_line, send_signal

TERM_SECONDS: Final = 5.0
"""How long the processes of a command may take to end after SIGTERM, before they are killed."""

KILL_SECONDS: Final = 2.0
"""How long it is waited until killed processes are gone; one that hangs in the kernel may not go."""

POLL_SECONDS: Final = 0.05
"""Pause between two checks of whether it runs."""

STANDARD_ERROR: Final = 2

ADVICE: Final = "correct --stop-with, or stop the broker by hand; then give the same command again"


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of the processes of a command; each is a command line with its process id."""

    ended: tuple[str, ...] = ()
    """Gone after SIGTERM."""

    killed: tuple[str, ...] = ()
    """Gone only after SIGKILL."""

    left: tuple[str, ...] = ()
    """Still there, for instance because they are another user's."""

    def text(self) -> str:
        """For people."""
        parts = (("ended", self.ended), ("killed", self.killed), ("STILL RUNNING", self.left))
        said = [f"{word}: {', '.join(who)}" for word, who in parts if who]
        return "; ".join(said) or "nothing of it runs any more"


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    ticks: int
    """When it started: with the id it names the process for good."""

    group: int


async def run_stop_command(
    command: str,
    seconds: float,
    say: Callable[[str], None],
    *,
    term_seconds: float = TERM_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run a shell command for so many seconds at most; it reads nothing, and writes to standard error.

    Raises `CommandFailed` when it takes longer or ends with another code than 0; what it has left behind is
    ended then, and named. The same is said when this task is cancelled (Ctrl-C), and when this process gets
    SIGTERM or SIGHUP, which end it with `SystemExit` afterwards.
    """
    shell = _start(command)
    problem: str | None = None
    with _signals() as came:
        try:
            problem = await _problem(shell.pid, seconds, clock, came)
            if problem:
                problem = f"{command!r} {problem}; {(await _end(shell.pid, term_seconds, came)).text()}"
        except asyncio.CancelledError:
            say(f"{command!r} is interrupted; {(await _end(shell.pid, term_seconds, came)).text()}")
            raise
        finally:
            if problem != "":
                _signal(shell.pid, signal.SIGKILL)  # interrupted once more: nobody waits any longer
            with suppress(subprocess.TimeoutExpired):
                shell.wait(KILL_SECONDS)
    if came:
        say(problem or f"{command!r} has ended")
        raise SystemExit(128 + came[0])
    if problem:
        raise CommandFailed(problem, ADVICE)


def _start(command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=STANDARD_ERROR,  # standard output may be read as JSON
        start_new_session=True,
    )


def _result(pid: int) -> os.waitid_result | None:
    """How the shell ended, None while it runs. It stays a zombie, so that its id stays ours."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)


async def _problem(pid: int, seconds: float, clock: Callable[[], float], came: Sequence[int]) -> str:
    """Wait for the shell; what is wrong with how it ended, empty for code 0."""
    deadline = clock() + seconds
    while (result := _result(pid)) is None:
        if came:
            return f"is interrupted by {signal.Signals(came[0]).name}"
        if clock() >= deadline:
            return f"has not ended after {seconds:g} s"
        await asyncio.sleep(POLL_SECONDS)
    if result.si_code != os.CLD_EXITED:
        return f"was ended by {signal.Signals(result.si_status).name}"
    return f"ended with exit code {result.si_status}" if result.si_status else ""


async def _end(session: int, term_seconds: float, came: Sequence[int]) -> Ending:
    """End the processes of a session: SIGTERM, and after a while SIGKILL. One more signal ends the wait."""
    names: dict[_Process, str] = {}
    before = len(came)
    gone: list[set[_Process]] = []
    for number, seconds in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        _note(names, session)
        _signal(session, number)
        while living := _note(names, session):
            if time.monotonic() >= deadline or (number is signal.SIGTERM and len(came) > before):
                break
            if number is signal.SIGKILL:
                _signal(session, number)  # one that was started in the last moment
            await asyncio.sleep(POLL_SECONDS)
        gone.append(set(names) - living)
    ended, all_gone = gone
    return Ending(
        tuple(text for each, text in names.items() if each in ended),
        tuple(text for each, text in names.items() if each in all_gone - ended),
        tuple(text for each, text in names.items() if each not in all_gone),
    )


def _note(names: dict[_Process, str], session: int) -> set[_Process]:
    """The living processes of a session; their names are kept, for they are not told afterwards."""
    living = _living(session)
    for each in living:
        names.setdefault(each, f"{' '.join(command_line(each.pid).split())} ({each.pid})")
    return set(living)


def _living(session: int) -> list[_Process]:
    """The processes of a session, in the order of their ids; zombies are none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX" and int(fields[3]) == session:
                found.append(_Process(int(folder.name), int(fields[19]), int(fields[2])))
    return sorted(found, key=lambda each: each.pid)


def _signal(session: int, number: signal.Signals) -> None:
    """Signal the group of the shell at once, and those that have made groups of their own one by one.

    The shell must not have been waited for: its id would be anybody's then.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, number)
    for each in _living(session):
        if each.group != session:
            with suppress(PermissionError):
                send_signal(each.pid, each.ticks, number)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that would end this process at once, leaving the command alone; a list that they fill."""
    came: list[int] = []
    loop = asyncio.get_running_loop()
    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        loop.add_signal_handler(number, came.append, int(number))
    try:
        yield came
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
