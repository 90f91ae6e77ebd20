"""`brokerset up`: runs a manifest as processes on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import click

from brokerset_cli.folder import MANIFEST, DataFolder, SetState
from brokerset_cli.options import data_option, number_option
from brokerset_cli.output import fail, write_columns
from brokerset_cli.processes import free_port, port_holder, port_is_free
from brokerset_cli.running import Run, controllers_with_data, run_set, write_settings
from brokerset_cli.set_acl import administrator_file, has_acl, make_acl, settings_file, use_acl_of_own
from brokerset_cli.set_tls import (
    clients_file,
    has_tls,
    hosts_of,
    make_tls,
    processes_file,
    tls_config_file,
    use_tls_of_own,
)
from brokerset_runtime.cores import usable_cores
from brokerset_runtime.files import write_atomically
from brokerset_runtime.supervision import STILL_STARTING_SECONDS
from brokerset_spec.local_ports import (
    BROKER_PORT,
    CONTROLLER_PORTS,
    HA_PORT_OFFSET,
    HTTP_PORT,
    NAMESRV_PORT,
    SECOND_PORT_OFFSET,
    PlanRefused,
    PortsTaken,
    PortWishes,
)
from brokerset_spec.manifest import BrokerSet, ManifestError, default_manifest, read_manifest_text
from brokerset_spec.plan import LocalPlan, plan_local
from brokerset_spec.set_memory import SetMemory

DETACH_SECONDS_MAX: Final = 660.0
"""Longest time that `up --detach` waits for the set to serve."""

DETACH_POLL_SECONDS: Final = 0.05
"""Pause between two reads of the state, whether a detached set serves."""

MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger file is not read as a manifest."""

FREE_PORTS_APART: Final = 200
"""Least distance between free ports of controllers and brokers: each kind takes a row of them."""

DEFAULT_HOST: Final = "127.0.0.1"
"""Where a new set listens."""

PORTS: Final = (0, 65_535)
"""The smallest and the largest; 0 is none."""


@dataclass(frozen=True, slots=True)
class Security:
    """What `up` is asked for; None: as at the last start in the folder."""

    tls: bool | None = None
    acl: bool | None = None


AS_LAST_TIME: Final = Security()


@click.command()
@click.option(
    "-f",
    "--file",
    "manifest_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="BrokerSet manifest (YAML); - reads standard input. "
    "[default: that of the last start in this folder, else three controllers and a group of three brokers]",
)
@data_option
@click.option("--detach", is_flag=True, help="Return when everything runs, and let it run on.")
@click.option(
    "--host",
    metavar="ADDRESS",
    help=f"IPv4 address to listen on and to tell clients. [default: as last time, else {DEFAULT_HOST}]",
)
@number_option(
    "--namesrv-port",
    "Port of the first name server, controllers follow; 0 takes a free one. Later starts keep it. "
    f"[default: {NAMESRV_PORT}]",
    *PORTS,
    metavar="PORT",
)
@number_option(
    "--broker-port",
    "Port of the first broker, the others follow; 0 takes a free one whenever a broker is started. "
    f"[default: as last time, else {BROKER_PORT}]",
    *PORTS,
    metavar="PORT",
)
@number_option(
    "--http-port",
    "First port that is tried for the HTTP of each process; 0 takes a free one. "
    f"[default: as last time, else {HTTP_PORT}]",
    *PORTS,
    metavar="PORT",
)
@click.option(
    "--tls/--no-tls",
    default=None,
    help="Encrypt everything that clients and processes say, with an authority that is made in the folder. "
    "[default: as last time, else --no-tls]",
)
@click.option(
    "--acl/--no-acl",
    default=None,
    help="Check who asks for what: users and policies, with an administrator that is made in the folder. "
    "[default: as last time, else --no-acl]",
)
def up(
    manifest_file: Path | None,
    data: Path,
    detach: bool,
    host: str | None,
    namesrv_port: int | None,
    broker_port: int | None,
    http_port: int | None,
    tls: bool | None,
    acl: bool | None,
) -> None:
    """Run a BrokerSet on this machine: controllers, each with a name server, and the brokers of each group.

    Without -f the manifest of the last start in this folder is run again, and in a new folder three
    controllers and a group of three brokers. Ctrl-C ends everything in order; messages stay in the data
    folder for the next `up`. More or fewer brokers of a group: `brokerset scale`. With `replication: {mode:
    dledger}` a name server takes the place of the controllers.
    """
    folder = DataFolder(data)
    manifest = last_manifest(folder) if manifest_file is None else None
    if manifest is None:
        manifest = load_manifest(manifest_file)
    if host is None:
        memory = folder.memory()
        host = memory.listen_host or memory.host or DEFAULT_HOST
    wanted = PortWishes(namesrv_port, broker_port, http_port)
    try:
        if detach:
            detach_set(manifest, data, host, wanted, Security(tls, acl))
        else:
            _attend(manifest, data, host, wanted, Security(tls, acl))
    except OSError as error:
        fail(
            f"{error.filename or data} cannot be used: {error.strerror or error}",
            "make room and see to it that you may write there, or give another folder with --data",
        )


def _secure(folder: DataFolder, host: str, wanted: Security) -> None:
    """Make or leave out certificates and users as is wished, or as it was at the last start. The folder is
    claimed."""
    _choose_tls(folder, host, wanted.tls)
    _choose_acl(folder, wanted.acl)


def _choose_acl(folder: DataFolder, wanted: bool | None) -> None:
    if wanted is False:
        settings_file(folder.path).unlink(missing_ok=True)
    try:
        if wanted or has_acl(folder.path):
            make_acl(folder.path)
        use_acl_of_own(folder.path)
    except ValueError as error:
        fail(
            f"a file in {settings_file(folder.path).parent} cannot be used: {error}",
            "restore it, or remove it: then a new one is made; who has changed the administrator by"
            " `updateUser` writes name and password into tools.yml",
        )


def _choose_tls(folder: DataFolder, host: str, wanted: bool | None) -> None:
    if wanted is False:
        processes_file(folder.path).unlink(missing_ok=True)
    elif wanted or has_tls(folder.path):
        try:
            make_tls(folder.path, hosts_of(host))
        except ValueError as error:
            fail(
                f"an authority in {processes_file(folder.path).parent} cannot be used: {error}",
                "restore its .pem and .key, or remove both: then a new one is made; clients have to be given"
                " a new authority.pem, or new certificates by a new client-authority.pem",
            )
    use_tls_of_own(folder.path)


def _attend(manifest: BrokerSet, data: Path, host: str, wanted: PortWishes, security: Security) -> None:
    """Run the set in this process until it is asked to stop."""
    folder = DataFolder(data)
    lock = folder.claim(manifest.metadata.name)
    try:
        _secure(folder, host, security)
        plan = make_plan(manifest, folder, host, wanted)
        folder.write_memory(plan.memory)
        _store_manifest(folder, manifest)
        write_settings(plan)
        run = Run(manifest, plan, folder, host, floating=wanted.broker == 0)
        asyncio.run(run_set(run))
    finally:
        lock.release()


def choose_ports(host: str, wanted: PortWishes, *, kept: Collection[int]) -> PortWishes:
    """Replace each 0 by a free port, but that of the name server where controllers keep theirs (`kept`).

    Raises `OSError` when `host` is no address of this machine.
    """
    namesrv, broker, http = wanted.namesrv, wanted.broker, wanted.http
    if namesrv == 0:
        namesrv = None if kept else free_port(host, *range(1, CONTROLLER_PORTS))
    if broker == 0:
        others = kept if namesrv is None else (namesrv,)
        broker = free_port(host, -SECOND_PORT_OFFSET, HA_PORT_OFFSET)
        while any(abs(broker - other) < FREE_PORTS_APART for other in others):
            broker = free_port(host, -SECOND_PORT_OFFSET, HA_PORT_OFFSET)
    return PortWishes(namesrv, broker, free_port(host) if http == 0 else http)


def kept_ports(memory: SetMemory) -> tuple[int, ...]:
    """The first ports of the controllers that have run, or of the name server without one: nobody listens on
    them while the set is down."""
    found = tuple(each.namesrv_port for each in memory.controllers if each.ports)
    return (*found, memory.namesrv_port) if memory.namesrv_port else found


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


def make_plan(manifest: BrokerSet, folder: DataFolder, host: str, wanted: PortWishes) -> LocalPlan:
    """Decide what to run; ends the command when a port is taken, and says by whom."""
    memory = folder.memory()
    with_data = controllers_with_data(folder)
    try:
        return plan_local(
            manifest,
            folder.path,
            memory=memory,
            is_free=lambda port: port_is_free(host, port),
            wishes=choose_ports(
                host, wanted, kept=kept_ports(memory) if with_data or memory.namesrv_port else ()
            ),
            host=host,
            with_data=with_data,
            cores=usable_cores(),
            tls_config_file=tls_config_file(folder.path),
        )
    except PlanRefused as error:
        fail(error.reason, error.advice)
    except PortsTaken as error:
        taken = (
            f"port {error.port}, which {error.wanted_by} needs, is taken by "
            f"{port_holder(error.port) or 'someone'}"
        )
        if error.kept:
            fail(
                f"{taken}; it keeps that port, since others know it by it",
                "end that process (`brokerset down` if it is another set), then try again",
            )
        fail(
            taken,
            "end that process (`brokerset down` if it is another set), or choose ports with "
            "--namesrv-port, --broker-port and --http-port",
        )
    except OSError as error:
        _fail_host(host, error)


def last_manifest(folder: DataFolder) -> BrokerSet | None:
    """The manifest with which the folder's set was started last; None when no set of its owner ever was."""
    owner, stored = folder.owner(), folder.path / MANIFEST
    if owner is None or not stored.exists():
        return None
    manifest = load_manifest(stored)
    return manifest if manifest.metadata.name == owner else None


def _store_manifest(folder: DataFolder, manifest: BrokerSet) -> Path:
    path = folder.path / MANIFEST
    write_atomically(path, manifest.model_dump_json(by_alias=True, exclude_unset=True).encode())
    return path


def detach_set(
    manifest: BrokerSet,
    data: Path,
    host: str,
    wanted: PortWishes,
    security: Security = AS_LAST_TIME,
    *,
    err: bool = False,
) -> None:
    """Start `up` in a session of its own and wait until it says that everything runs.

    `err` sends what is said to standard error.
    """
    folder = DataFolder(data)
    lock = folder.claim(manifest.metadata.name)
    try:
        _secure(folder, host, security)
        # Problems that can be seen now are shown here, not in a log. The other process checks again.
        plan = make_plan(manifest, folder, host, wanted)
        manifest_file = _store_manifest(folder, manifest)
    finally:
        lock.release()
    for note in plan.notes:
        click.secho(f"Note: {note}", fg="yellow", err=err)
    log_file = folder.path / "logs" / "up.log"
    log_file.parent.mkdir(exist_ok=True)
    ports = {"namesrv": wanted.namesrv, "broker": wanted.broker, "http": wanted.http}
    options = [f"--{name}-port={port}" for name, port in ports.items() if port is not None]
    arguments = ["up", "-f", str(manifest_file), "--data", str(folder.path), "--host", host, *options]
    command = [sys.executable, "-m", "brokerset_cli.main", *arguments]
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
    if not err:
        write_columns(
            state.processes,
            {
                **{name: name for name in ("name", "kind", "address")},
                "name server": lambda p: p.namesrv or None,
                "http": lambda p: str(p.http_port or "-"),
                "pid": lambda p: str(p.pid),
            },
        )
        click.echo()
    if has_tls(folder.path):
        click.echo(
            f"Clients need TLS: Java ones -Dtls.enable=true -Dtls.config.file={clients_file(folder.path)}",
            err=err,
        )
    if has_acl(folder.path):
        click.echo(
            "Clients need users: brokerset user create NAME; brokerset acl allow NAME RESOURCE\n"
            f"The administrator of mqadmin (conf/tools.yml): {administrator_file(folder.path)}",
            err=err,
        )
    click.echo(
        f"BrokerSet {state.name} runs in the background. End it with: brokerset down --data {folder.path}",
        err=err,
    )


def _wait_running(folder: DataFolder, process: subprocess.Popen[bytes]) -> SetState | None:
    deadline = time.monotonic() + DETACH_SECONDS_MAX
    said = time.monotonic()
    while process.poll() is None:
        if time.monotonic() - said > STILL_STARTING_SECONDS:
            said = time.monotonic()
            click.echo(
                f"Still starting, as process {process.pid}; its log is {folder.path / 'logs' / 'up.log'}",
                err=True,
            )
        state = folder.read_state()
        if state is not None and state.pid == process.pid and state.phase == "running":
            return state
        if time.monotonic() >= deadline:
            process.terminate()
            process.wait()
            return None
        time.sleep(DETACH_POLL_SECONDS)
    return None
