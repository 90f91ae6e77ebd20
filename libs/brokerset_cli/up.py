"""`brokerset up`: runs a manifest as processes on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click

from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.options import data_option
from brokerset_cli.output import fail, write_table
from brokerset_cli.processes import free_port, port_holder, port_is_free, start_ticks
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.files import write_atomically
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout, connect
from brokerset_runtime.settings import settings_text
from brokerset_runtime.supervision import STILL_STARTING_SECONDS, Child, ChildSpec, StartFailed, Supervisor
from brokerset_spec.manifest import BrokerSet, ManifestError, default_manifest, read_manifest_text
from brokerset_spec.plan import (
    BROKER_PORT,
    HTTP_PORT,
    NAMESRV_PORT,
    SECOND_PORT_OFFSET,
    LocalPlan,
    PortsTaken,
    PortWishes,
    ProcessPlan,
    plan_local,
)

DETACH_SECONDS_MAX: Final = 660.0
"""Longest time that `up --detach` waits for the set to serve."""

DETACH_LOOK_SECONDS: Final = 0.05
"""Pause between two looks whether a detached set serves."""

PROBE_SECONDS_MAX: Final = 1.0
"""Longest time that one look whether a process answers may take."""

MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger file is not read as a manifest."""

PORT: Final = click.IntRange(0, 65_535)


@click.command()
@click.option(
    "-f",
    "--file",
    "manifest_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="BrokerSet manifest (YAML); - reads standard input.",
)
@data_option
@click.option("--detach", is_flag=True, help="Return when everything runs, and let it run on.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="IPv4 address to listen on and to tell clients.",
)
@click.option(
    "--namesrv-port",
    type=PORT,
    metavar="PORT",
    default=NAMESRV_PORT,
    show_default=True,
    help="Port of the name server; 0 takes a free one.",
)
@click.option(
    "--broker-port",
    type=PORT,
    metavar="PORT",
    default=BROKER_PORT,
    show_default=True,
    help="Port of the first broker, the others follow; 0 takes a free one.",
)
@click.option(
    "--http-port",
    type=PORT,
    metavar="PORT",
    default=HTTP_PORT,
    show_default=True,
    help="First port that is tried for each broker's HTTP; 0 takes a free one.",
)
def up(
    manifest_file: Path | None,
    data: Path,
    detach: bool,
    host: str,
    namesrv_port: int,
    broker_port: int,
    http_port: int,
) -> None:
    """Run a BrokerSet on this machine: a name server and one broker for each group.

    Without -f one name server and one broker are run. Ctrl-C ends everything in order; messages stay in the
    data folder for the next `up`.
    """
    manifest = load_manifest(manifest_file)
    wishes = choose_ports(host, namesrv_port, broker_port, http_port)
    try:
        if detach:
            _detach(manifest, data, host, wishes)
        else:
            _attend(manifest, data, host, wishes)
    except OSError as error:
        fail(
            f"{error.filename or data} cannot be used: {error.strerror or error}",
            "make room and see to it that you may write there, or give another folder with --data",
        )


def _attend(manifest: BrokerSet, data: Path, host: str, wishes: PortWishes) -> None:
    """Run the set in this process until it is told to stop."""
    folder = DataFolder(data)
    lock = folder.claim(manifest.metadata.name)
    try:
        plan = make_plan(manifest, folder, host, wishes)
        write_settings(plan)
        asyncio.run(_run(plan, folder))
    finally:
        lock.release()


def choose_ports(host: str, namesrv: int, broker: int, http: int) -> PortWishes:
    """Replace each 0 by a free port; ends the command when `host` is no address of this machine."""
    try:
        return PortWishes(
            namesrv=namesrv or free_port(host),
            broker=broker or free_port(host, SECOND_PORT_OFFSET),
            http=http or free_port(host),
        )
    except OSError as error:
        _fail_host(host, error)


def _fail_host(host: str, error: OSError) -> NoReturn:
    fail(f"cannot listen on {host}: {error.strerror}", "give an IPv4 address of this machine with --host")


def load_manifest(path: Path | None) -> BrokerSet:
    """Read the manifest, or return the default one; ends the command with all problems of a bad one."""
    if path is None:
        return default_manifest()
    name = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            text = sys.stdin.read(MANIFEST_BYTES_MAX)
        else:
            with path.open(encoding="utf-8") as stream:
                text = stream.read(MANIFEST_BYTES_MAX)
        return read_manifest_text(text)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", "give the manifest's file with -f, or leave -f out")
    except UnicodeDecodeError as error:
        fail(f"{name} is not UTF-8 at byte {error.start}", "save the manifest as UTF-8")
    except ManifestError as error:
        lines = "".join(f"\n  - {problem}" for problem in error.problems)
        fail(
            f"the manifest in {name} cannot be used:{lines}",
            "correct the lines above and try again; nothing was started",
        )


def make_plan(manifest: BrokerSet, folder: DataFolder, host: str, wishes: PortWishes) -> LocalPlan:
    """Decide what to run; ends the command when a port is taken, and says by whom."""
    try:
        return plan_local(
            manifest, folder.path, is_free=lambda port: port_is_free(host, port), wishes=wishes, host=host
        )
    except PortsTaken as error:
        holder = port_holder(error.port)
        fail(
            f"port {error.port}, which {error.wanted_by} needs, is taken by {holder or 'someone'}",
            "end that process (`brokerset down` if it is another set), or choose ports with "
            "--namesrv-port, --broker-port and --http-port",
        )
    except OSError as error:
        _fail_host(host, error)


def write_settings(plan: LocalPlan) -> None:
    """Write the settings file of each process."""
    for process in plan.processes:
        process.folder.mkdir(parents=True, exist_ok=True)
        head = f"# Written by `brokerset up` for {process.name}; it is replaced at each start.\n"
        write_atomically(process.settings_file, (head + settings_text(process.settings)).encode())


def child_spec(process: ProcessPlan) -> ChildSpec:
    """Return how a process is started and how one sees that it serves."""
    return ChildSpec(
        name=process.name,
        arguments=(sys.executable, "-m", process.module, "-c", str(process.settings_file)),
        log_file=process.log_file,
        ready=partial(answers, process.address),
    )


async def answers(address: str) -> bool:
    """Whether the process at `address` answers requests; a broker listens before its store is recovered."""
    try:
        connection = await connect(address, timeout=PROBE_SECONDS_MAX)
    except ConnectionClosed:
        return False
    try:
        # A name server refuses this request, which is an answer too.
        await connection.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO), PROBE_SECONDS_MAX)
    except (ConnectionClosed, RequestTimeout):
        return False
    finally:
        connection.close()
    return True


@dataclass(slots=True)
class _Run:
    """One run of a set: keeps the state file up to date and tells people what happens."""

    plan: LocalPlan
    folder: DataFolder
    phase: str = "starting"
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    children: tuple[Child, ...] = ()

    def say(self, child: Child, what: str) -> None:
        """Tell what happened to a child, and store the new state."""
        tell(f"{child.spec.name} {what}")
        self.store()

    def store(self) -> None:
        """Write the state file."""
        own_pid = os.getpid()
        self.folder.write_state(
            SetState(
                name=self.plan.name,
                cluster_name=self.plan.cluster_name,
                phase=self.phase,
                namesrv=self.plan.namesrv_address,
                pid=own_pid,
                start_ticks=start_ticks(own_pid),
                started_ms=self.started_ms,
                processes=tuple(map(_process_state, self.plan.processes, self.children)),
            )
        )


def _process_state(process: ProcessPlan, child: Child) -> ProcessState:
    return ProcessState(
        name=process.name,
        kind=process.kind,
        group=process.group,
        address=process.address,
        http_port=process.http_port,
        folder=str(process.folder),
        log=str(process.log_file),
        state=child.state,
        pid=child.pid,
        start_ticks=start_ticks(child.pid) if child.pid else None,
        restarts=child.restarts,
        started_ms=child.started_ms,
    )


async def _run(plan: LocalPlan, folder: DataFolder) -> None:
    for note in plan.notes:
        click.secho(f"Note: {note}", fg="yellow")
    run = _Run(plan, folder)
    supervisor = Supervisor([child_spec(p) for p in plan.processes], clock=SystemClock(), say=run.say)
    run.children = supervisor.children
    _end_on_signals(supervisor, run)

    def started() -> None:
        run.phase = "running"
        run.store()
        _greet(plan, folder)

    try:
        await supervisor.run(started)
    except StartFailed as error:
        tail = "".join(f"\n  | {line}" for line in error.log_tail.splitlines()[-15:])
        fail(
            f"{error.name} {error.reason}; the end of its log:{tail}",
            f"correct that; the whole log is {error.log_file}",
        )
    finally:
        run.phase = "stopped"
        run.store()
    tell("everything has stopped; the messages are kept")


def _end_on_signals(supervisor: Supervisor, run: _Run) -> None:
    def on_signal() -> None:
        if run.phase == "stopping":
            tell("second signal: killing all processes")
            supervisor.kill()
            return
        run.phase = "stopping"
        tell("stopping; a second Ctrl-C kills")
        supervisor.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)


def _greet(plan: LocalPlan, folder: DataFolder) -> None:
    rows = [(p.name, p.kind, p.address, str(p.http_port or "-"), p.log_file) for p in plan.processes]
    click.echo()
    write_table(("name", "kind", "address", "http", "log"), rows)
    click.echo(f"\nBrokerSet {plan.name} runs. Name server: {plan.namesrv_address}. Data: {folder.path}")
    option = "" if plan.namesrv_address == "127.0.0.1:9876" else f" --namesrv {plan.namesrv_address}"
    click.echo(f"Try: brokerset send hello --count 10{option}")


def tell(text: str) -> None:
    """Say what happens now, with the time of day."""
    click.echo(f"{datetime.now().astimezone():%H:%M:%S} {text}")


def _detach(manifest: BrokerSet, data: Path, host: str, wishes: PortWishes) -> None:
    """Start `up` in a session of its own and wait until it says that everything runs."""
    folder = DataFolder(data)
    lock = folder.claim(manifest.metadata.name)
    # Problems that can be seen now are shown here, not in a log. The other process checks again.
    make_plan(manifest, folder, host, wishes)
    lock.release()
    log_file = folder.path / "logs" / "up.log"
    log_file.parent.mkdir(exist_ok=True)
    manifest_file = folder.path / "manifest.json"
    write_atomically(manifest_file, manifest.model_dump_json(by_alias=True, exclude_unset=True).encode())
    command = [
        sys.executable,
        "-m",
        "brokerset_cli.main",
        "up",
        "-f",
        str(manifest_file),
        "--data",
        str(folder.path),
    ]
    command += ["--host", host, "--namesrv-port", str(wishes.namesrv), "--broker-port", str(wishes.broker)]
    command += ["--http-port", str(wishes.http)]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        state = _wait_running(folder, process)
    except KeyboardInterrupt:
        process.terminate()
        click.echo("\nstopping what was started", err=True)
        process.wait()
        raise
    if state is None:
        text = log_file.read_text(errors="replace").strip()
        fail(f"the set did not start:\n{text}", f"correct that; the log is {log_file}")
    rows = [(p.name, p.kind, p.address, str(p.http_port or "-"), str(p.pid)) for p in state.processes]
    write_table(("name", "kind", "address", "http", "pid"), rows)
    click.echo(
        f"\nBrokerSet {state.name} runs in the background. End it with: brokerset down --data {folder.path}"
    )


def _wait_running(folder: DataFolder, process: subprocess.Popen[bytes]) -> SetState | None:
    deadline = time.monotonic() + DETACH_SECONDS_MAX
    said = time.monotonic()
    while process.poll() is None:
        if time.monotonic() - said > STILL_STARTING_SECONDS:
            said = time.monotonic()
            click.echo(
                f"Still starting, as process {process.pid}; its log is {folder.path / 'logs' / 'up.log'}"
            )
        state = folder.read_state()
        if state is not None and state.pid == process.pid and state.phase == "running":
            return state
        if time.monotonic() >= deadline:
            process.terminate()
            process.wait()
            return None
        time.sleep(DETACH_LOOK_SECONDS)
    return None
