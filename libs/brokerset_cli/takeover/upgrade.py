"""`brokerset upgrade identity` and `classic`: old stores into controller mode with persistent ids."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from brokerset_cli.options import json_option
from brokerset_cli.output import CommandFailed, fail, write_json
from brokerset_cli.takeover import flow, upgrade_files
from brokerset_cli.takeover.flow import Step, StepState, current
from brokerset_cli.takeover.host_facts import HostFacts, as_of, facts_of, read_facts
from brokerset_cli.takeover.old_store import BACKUP
from brokerset_cli.takeover.upgrade_acts import (
    Act,
    CutLog,
    Prepare,
    PutAside,
    SetPermission,
    StartBroker,
    TakeNote,
)
from brokerset_cli.takeover.upgrade_back import Back, go_back
from brokerset_cli.takeover.upgrade_facts import Flow, Note, World
from brokerset_cli.takeover.upgrade_files import disk_told
from brokerset_cli.takeover.upgrade_lock import CommandLock, command_lock
from brokerset_cli.takeover.upgrade_observation import (
    STORE_VARIABLE,
    GroupUnknown,
    UpgradeObserver,
    Where,
    unreadable,
)
from brokerset_cli.takeover.upgrade_permission import set_permission
from brokerset_cli.takeover.upgrade_plan import Plan, plan_upgrade
from brokerset_formats.errors import FormatError
from brokerset_runtime.files import write_atomically
from brokerset_runtime.logs import configure_logs
from brokerset_spec.broker_settings import address_problems

LOOK_SECONDS: Final = 1.0
"""Pause between two looks while something is waited for."""

SERVICE_SECONDS_MAX: Final = 60.0
"""So long after `--start-with` has ended well, a service that it started may take to lock the store."""

REPEATS_MAX: Final = 100
"""Something that was done so often without effect is not tried again; more than looks of the above."""

WAIT_SECONDS: Final = 600
"""How long others are waited for, by default, when a person sits there."""

PENDING_EXIT: Final = 3
"""Exit code when something is left that others have to do."""

NONE: Final = "none"
"""Of `--old-controllers`, when there are none any more and nobody knows where they were."""


class Upgrade:
    """One run of the command."""

    def __init__(self, where: Where, *, start_with: str, yes: bool, wait: float, quiet: bool) -> None:
        self._where = where
        self._start_with = start_with
        self._yes = yes
        self._wait = wait
        self._quiet = quiet
        self._looker = UpgradeObserver(where)
        self._started: dict[Path, tuple[subprocess.Popen[bytes], float]] = {}
        """What was started for a store, and when."""

    def look(self) -> tuple[World, Plan]:
        """The world as it is, and what follows."""
        try:
            world = self._looker.look()
        except GroupUnknown as error:
            fail(f"which broker group the stores belong to is not known: {error}", "say so with --group NAME")
        except FormatError as error:
            fail(
                f"a manifest in {BACKUP} cannot be read: {error}",
                "restore it: it says what has to be put back, such as the permission of the old master",
            )
        except OSError as error:
            fail(*unreadable(error))
        return world, plan_upgrade(world)

    def run(self, lock: CommandLock) -> Plan:
        """Go on until all is done, or others have to do something and the time for it is over.

        Nothing is done to stores that `lock` does not hold: what became a store meanwhile is taken, and
        looked at again.
        """
        deadline = time.monotonic() + self._wait
        shown: Step | None = None
        agreed: Act | None = None
        last: Act | None = None
        repeated = 0
        while True:
            world, plan = self.look()
            step = current(plan.steps)
            if step is None or step.state is StepState.BLOCKED:
                return plan
            if plan.act is not None:
                with disk_told():
                    taken = lock.hold(each.store.path for each in world.stores if each.here)
                if taken:
                    self._looker.forget()
                    continue
                if plan.act not in (agreed, last) and self._confirm(step):
                    # The person may have taken long to answer, and brokers may have run: look again.
                    agreed = plan.act
                else:
                    repeated = repeated + 1 if plan.act == last else 0
                    if repeated >= REPEATS_MAX:
                        fail(
                            f"{step.name}: it was done {repeated} times, and is not seen to be done:"
                            f" {step.detail}",
                            "see the log of the broker that is named, then repeat this",
                        )
                    self._do(plan.act, world)
                    last, agreed = plan.act, None
                self._looker.forget()
                deadline, shown = time.monotonic() + self._wait, None
                continue
            last = None
            if time.monotonic() >= deadline:
                return plan
            if (shown is None or (shown.name, shown.detail) != (step.name, step.detail)) and not self._quiet:
                click.echo(f"{step.name}: {step.hint or step.title} ({step.detail})")
                shown = step
            time.sleep(LOOK_SECONDS)

    def _confirm(self, step: Step) -> bool:
        """Ask whether to take a step, unless that was said before; whether anybody was asked."""
        if not self._yes:
            click.confirm(
                f"{step.name}: {step.title} ({step.detail}). Do it now?", abort=True, err=self._quiet
            )
        elif not self._quiet:
            click.echo(f"{step.name}: {step.title} ({step.detail})")
        return not self._yes

    def _do(self, act: Act, world: World) -> None:
        with disk_told():
            self._carry_out(act, world)

    def _carry_out(self, act: Act, world: World) -> None:
        match act:
            case TakeNote(store, address, master, members):
                self._note(store, world, address=address, master=master, members=members)
            case SetPermission(address, value, was, store, closes):
                if was is not None:
                    known = self._noted(store, world).address
                    self._note(store, world, permission=was, address=known or address)
                asyncio.run(set_permission(address, value, closes=closes))
            case PutAside(folder):
                upgrade_files.check_aside(Path(folder))
                first = str(self._where.stores[0])
                aside = self._noted(first, world).aside
                self._note(first, world, aside=(*(each for each in aside if each != folder), folder))
                upgrade_files.put_aside(Path(folder))
            case CutLog(store, offset):
                upgrade_files.cut_log(Path(store), self._noted(store, world), offset)
            case Prepare(store, empty, leader):
                note = replace(self._noted(store, world), leader=leader)
                upgrade_files.prepare(Path(store), note, empty=empty)
            case StartBroker(store):
                self._start(Path(store))

    def _noted(self, store: str, world: World) -> Note:
        return upgrade_files.note_of(Path(store), world.flow.value, world.group)

    def _note(self, store: str, world: World, **changes: Any) -> None:
        upgrade_files.write_note(Path(store), replace(self._noted(store, world), **changes))

    def _start(self, store: Path) -> None:
        """Start the new broker of a store; it outlives this command. Its output goes beside the manifest."""
        said = store / BACKUP / "start.log"
        if store in self._started:
            process, since = self._started[store]
            if process.poll() == 0 and time.monotonic() - since < SERVICE_SECONDS_MAX:
                time.sleep(LOOK_SECONDS)  # such as systemctl: a service is about to lock the store
                return
            last = said.read_text(errors="replace").strip().splitlines()[-1:]
            fail(
                f"the broker that was started on {store} has ended: {(last or ['it said nothing'])[0][:500]}",
                f"see {said}, correct the settings or --start-with, then repeat this",
            )
        command = start_command(self._start_with, store, self._where.stores.index(store))
        with said.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, STORE_VARIABLE: str(store)},
                )
            except OSError as error:
                fail(f"{command[0]} cannot be started: {error.strerror}", "correct --start-with")
        self._started[store] = (process, time.monotonic())


def start_command(text: str, store: Path, number: int) -> list[str]:
    """The words of `--start-with` with `{store}` and `{number}` filled in; other braces stay."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--start-with") from None
    if not words:
        raise click.BadParameter("it names no program", param_hint="--start-with")
    return [each.replace("{store}", str(store)).replace("{number}", str(number)) for each in words]


# -- the commands -----------------------------------------------------------------------------------------


@click.group()
def upgrade() -> None:
    """Lead stores of older RocketMQ releases into controller mode with persistent ids.

    Nothing is remembered but what the world does not show: a command that was killed is started again, and
    goes on.
    """


_FOLDER: Final = click.Path(path_type=Path, file_okay=False)
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


def _option(name: str, help: str, **more: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(name, help=help, **more)


_OPTIONS: Final = (
    _option("--store", "storePathRootDir of a broker on this host; repeatable.", multiple=True, required=True,
            metavar="PATH", type=_FOLDER),
    _option("--namesrv", "Name servers, with ; between them.", default="", metavar="HOST:PORT"),
    _option("--controllers", "The new controllers, with ; between them.", required=True, metavar="HOST:PORT"),
    _option("--group", "The broker group, if it cannot be seen.", default="", metavar="NAME"),
    _option("--master", "The store whose broker was master, if nobody saw it.", default="", metavar="PATH"),
    _option("--members", "Brokers of the group. [default: as many as were seen]", default=0,
            type=click.IntRange(0)),
    _option("--accept-cut", "Cut this store's log where it parts from the master's.", multiple=True,
            metavar="PATH"),
    _option("--start-with", "Starts a broker; {store} and {number} are filled in. [default: you start them]",
            default="", metavar="COMMAND"),
    _option("--facts", "What --write-facts wrote on another host; repeatable.", multiple=True, type=_FILE),
    _option("--write-facts", "Write what is seen here for other hosts, and end.", type=_FILE),
    _option("--host", "What other hosts call this one. [default: its name]", default=socket.gethostname,
            metavar="NAME"),
    _option("--look", "Show the steps; change nothing.", is_flag=True),
    _option("--back", "Put everything back, before a new broker has run.", is_flag=True),
    _option("--wait", "Seconds to wait for others. [default: 600 at a terminal, else 0]",
            type=click.FloatRange(0)),
    _option("--yes", "Do not ask.", is_flag=True),
)  # fmt: skip


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return json_option(function)


@upgrade.command()
@click.option(
    "--old-controllers",
    required=True,
    metavar="HOST:PORT",
    help="Controllers of 5.0.0 or 5.1.0, with ; between them, or none.",
)
@click.option(
    "--controller-data",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="controllerStorePath of an old controller on this host; it is renamed.",
)
@_options
def identity(old_controllers: str, controller_data: tuple[Path, ...], **options: Any) -> None:
    """From controller mode of 5.0.0 to 5.1.0, where a broker is its address, to persistent ids."""
    old = () if old_controllers == NONE else _addresses(old_controllers, "--old-controllers")
    _command(Flow.IDENTITY, old, tuple(each.absolute() for each in controller_data), options)


@upgrade.command()
@_options
def classic(**options: Any) -> None:
    """From a master and slaves without controllers, of 4.x or 5.x, to controller mode."""
    _command(Flow.CLASSIC, (), (), options)


def _command(kind: Flow, old: tuple[str, ...], data: tuple[Path, ...], options: dict[str, Any]) -> None:
    configure_logs("error", json=False)
    stores = tuple(Path(os.path.abspath(each)) for each in options["store"])
    if len({each.resolve() for each in stores}) < len(stores):
        raise click.UsageError("a store is named twice")
    where = Where(
        flow=kind,
        stores=stores,
        namesrv=_addresses(options["namesrv"], "--namesrv"),
        controllers=_addresses(options["controllers"], "--controllers"),
        old_controllers=old,
        old_data=data,
        group=options["group"],
        master=_name(options["master"], stores),
        accept_cut=frozenset(_here(each, stores) for each in options["accept_cut"]),
        members=options["members"],
        can_start=bool(options["start_with"]),
        facts=tuple(_facts(each) for each in options["facts"]),
        host=options["host"],
    )
    if options["start_with"]:
        start_command(options["start_with"], stores[0], 0)  # said now, not after everything has stopped
    if options["back"]:
        with command_lock(stores), disk_told():
            back = go_back(where, yes=options["yes"], say=_no_say if options["as_json"] else _say_left)
        _write_back(back, options["as_json"])
        return
    wait = options["wait"] if options["wait"] is not None else (WAIT_SECONDS if sys.stdin.isatty() else 0)
    work = Upgrade(
        where,
        start_with=options["start_with"],
        yes=options["yes"],
        wait=wait,
        quiet=options["as_json"],
    )
    if options["look"] or options["write_facts"]:
        world, plan = work.look()
        if options["write_facts"]:
            with disk_told():
                write_atomically(options["write_facts"], facts_of(where.host, world, plan.leader))
    else:
        with command_lock(stores) as lock:
            work.run(lock)
        world, plan = work.look()
    _show(plan, world, where, options["as_json"])
    step = current(plan.steps)
    if step is None or options["look"] or options["write_facts"]:
        return
    if step.state is StepState.BLOCKED:
        raise CommandFailed(f"{step.name}: {step.detail}", step.hint)
    raise SystemExit(PENDING_EXIT)


def _name(text: str, stores: tuple[Path, ...]) -> str:
    """A store as the plan calls it: those here by their absolute path, others as their host wrote them."""
    path = Path(os.path.abspath(text)) if text else Path()
    return str(path) if text and path in stores else text


def _here(text: str, stores: tuple[Path, ...]) -> str:
    """A store that this call may cut; a name that fits none would be a permission that nobody gets."""
    name = _name(text, stores)
    if name not in map(str, stores):
        raise click.BadParameter(
            f"{text} is none of the stores given with --store, and only those can be cut here",
            param_hint="--accept-cut",
        )
    return name


def _addresses(text: str, option: str) -> tuple[str, ...]:
    if not text:
        return ()
    if problems := address_problems(text):
        raise click.BadParameter("; ".join(problems), param_hint=option)
    return tuple(each.strip() for each in text.split(";") if each.strip())


def _facts(path: Path) -> HostFacts:
    try:
        return read_facts(path.read_bytes())
    except (FormatError, OSError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--facts") from None


def _show(plan: Plan, world: World, where: Where, as_json: bool) -> None:
    notes = [
        f"{each.name} has {what}, which brokers of brokerset do not deliver: let them be consumed first,"
        " stay with Java, or set acceptUnservedMessages=true for the new broker, which refuses to start"
        " otherwise"
        for each in world.stores
        for what in each.store.unserved
    ]
    if as_json:
        write_json(
            {
                "flow": world.flow.value,
                "group": world.group,
                "done": plan.done,
                "leader": plan.leader,
                "steps": flow.as_json(plan.steps),
                "notes": notes,
            }
        )
        return
    flow.show(plan.steps)
    for each in where.facts:
        click.echo(f"Facts of {as_of(each, time.time_ns() // 1_000_000)}.")
    for text in notes:
        click.secho(f"Note: {text}", fg="yellow", err=True)
    if plan.done:
        click.echo(f"{world.group} is in controller mode with persistent ids; see `brokerset status`.")


def _say_left(line: str) -> None:
    click.secho(f"Left for you: {line}", fg="yellow")


def _no_say(line: str) -> None:
    """The JSON document has it."""


def _write_back(back: Back, as_json: bool) -> None:
    if as_json:
        write_json({"back": back.done, "left": back.left})
    else:
        for line in back.done:
            click.echo(line)
        if back.left:
            click.echo("When that is done, start the old brokers and controllers again.")
        else:
            nothing = "There is nothing to put back."
            click.echo("Start the old brokers and controllers again." if back.done else nothing)
    if back.left:
        raise SystemExit(PENDING_EXIT)
