"""`brokerset upgrade identity`, `classic`, `dledger`: old stores into controller mode with persistent ids."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from brokerset_cli.options import json_option
from brokerset_cli.output import CommandFailed, fail, write_json
from brokerset_cli.store import check_installed
from brokerset_cli.takeover.flow import Flow, show
from brokerset_cli.takeover.host_facts import HostFacts, as_of, facts_of, read_facts
from brokerset_cli.takeover.steps import Step, StepState, as_json, current
from brokerset_cli.takeover.upgrade_acts import OBSERVE_SECONDS, UpgradeActs, start_command
from brokerset_cli.takeover.upgrade_back import Back, go_back
from brokerset_cli.takeover.upgrade_facts import Act, Origin, World
from brokerset_cli.takeover.upgrade_files import CommandLock, command_lock, disk_errors, may_be_store
from brokerset_cli.takeover.upgrade_observation import UpgradeObserver, Where
from brokerset_cli.takeover.upgrade_plan import Plan, plan_upgrade
from brokerset_formats.errors import FormatError
from brokerset_runtime.files import write_atomically
from brokerset_runtime.logs import configure_logs
from brokerset_spec.setting_fields import address_problems

REPEATS_MAX: Final = 100
"""Something that was done so often without effect is not tried again; more than a service may take."""

WAIT_SECONDS: Final = 600
"""How long others are waited for, by default, when a person sits there."""

PENDING_EXIT: Final = 3
"""Exit code when something is left that others have to do."""

NONE: Final = "none"
"""Of `--old-controllers`, when there are none any more and nobody knows where they were."""

T = TypeVar("T")


class Upgrade(Flow[World]):
    """One run of the command. Waits for people, too, and asks again for what it does again."""

    asks_again = True

    def __init__(self, where: Where, *, start_with: str, yes: bool, wait: float, quiet: bool) -> None:
        super().__init__(yes=yes)
        self._where = where
        self._wait = wait
        self._quiet = quiet
        self._observer = UpgradeObserver(where)
        self._acts = UpgradeActs(where, start_with=start_with)
        self._last: Act | None = None
        self._repeats = 0
        self.lock: CommandLock | None = None
        """What a call that acts holds: nothing is done to stores that are not in it."""

    async def observe(self) -> World:
        while True:
            world = await self._observer.observe()
            if self.lock is None:
                return world
            with disk_errors():
                taken = self.lock.take(each for each in self._where.stores if may_be_store(each))
            if not taken:
                return world
            self._observer.forget()  # it became a store meanwhile: it is observed again

    def plan(self, facts: World) -> tuple[Step, ...]:
        return plan_upgrade(facts).steps

    def _check_stall(self, text: str) -> None:
        """Logs may be compared for longer than anything stalls: `--wait` and repeated acts end the call."""

    def confirm(self, step: Step, facts: World) -> bool:
        text = f"{step.name}: {step.title} ({step.detail})"
        self._observer.forget()
        if not self._yes:
            click.confirm(f"{text}. Do it now?", abort=True, err=self._quiet)
        elif not self._quiet:
            click.echo(text)
        return not self._yes

    async def act(self, step: Step, facts: World) -> None:
        assert isinstance(step.act, Act), f"nobody knows what to do for {step.name}"
        self._repeats = self._repeats + 1 if step.act == self._last else 0
        if self._repeats >= REPEATS_MAX:
            fail(
                f"{step.name}: it was done {self._repeats} times, and is not seen to be done: {step.detail}",
                "see the log of the broker that is named, then repeat this",
            )
        await self._acts.carry_out(step.act, facts)
        self._last = step.act
        self._observer.forget()

    async def wait(self, step: Step, facts: World, text: str, *, is_new: bool) -> bool:
        if time.monotonic() - self.acted_at >= self._wait:
            return False
        if (is_new or self._last is not None) and not self._quiet:
            click.echo(f"{step.name}: {step.hint or step.title} ({step.detail})")
        self._last, self._agreed = None, set()
        return True

    def pause(self, facts: World) -> float:
        return OBSERVE_SECONDS if self._last is None else 0.0


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
    _option("--accept-cut", "Truncate this store's log where it parts from the master's.", multiple=True,
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
    _command(Origin.IDENTITY, old, tuple(each.absolute() for each in controller_data), options)


@upgrade.command()
@_options
def classic(**options: Any) -> None:
    """From a master and slaves without controllers, of 4.x or 5.x, to controller mode."""
    _command(Origin.CLASSIC, (), (), options)


@upgrade.command()
@_options
def dledger(**options: Any) -> None:
    """From a DLedger group, of brokers of either make, to controller mode.

    Of the stores of a quorum the one with the newest entry has every message. They are written as a commit
    log (`brokerset store migrate`), which needs room for it; the others start empty and copy it.
    --accept-cut gives up what a DLedger alone calls committed.
    """
    check_installed()
    _command(Origin.DLEDGER, (), (), options)


def _command(kind: Origin, old: tuple[str, ...], data: tuple[Path, ...], options: dict[str, Any]) -> None:
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
    yes, to_json = options["yes"], options["as_json"]
    if options["back"]:
        with command_lock(stores), disk_errors():
            back = _run(go_back(where, yes=yes, say=_no_say if to_json else _say_left))
        _write_back(back, to_json)
        return
    wait = options["wait"] if options["wait"] is not None else (WAIT_SECONDS if sys.stdin.isatty() else 0)
    call = Upgrade(where, start_with=options["start_with"], yes=yes, wait=wait, quiet=to_json)
    only_observe = options["look"] or options["write_facts"]
    if not only_observe:
        with command_lock(stores) as call.lock:
            _run(call.run())
        call.lock = None
    world = _run(call.observe())
    plan = plan_upgrade(world)
    if options["write_facts"]:
        with disk_errors():
            write_atomically(options["write_facts"], facts_of(where.host, world, plan.leader))
    _show(plan, world, where, to_json)
    step = current(plan.steps)
    if step is None or only_observe:
        return
    if step.state is StepState.BLOCKED:
        raise CommandFailed(f"{step.name}: {step.detail}", step.hint)
    raise SystemExit(PENDING_EXIT)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it, and let Ctrl-C end it at once, also while logs are compared: `asyncio.run` would wait."""
    with asyncio.Runner() as runner:
        return runner.get_loop().run_until_complete(work)


def _name(text: str, stores: tuple[Path, ...]) -> str:
    """A store as the plan calls it: those here by their absolute path, others as their host wrote them."""
    path = Path(os.path.abspath(text)) if text else Path()
    return str(path) if text and path in stores else text


def _here(text: str, stores: tuple[Path, ...]) -> str:
    """A store that this call may truncate; a name that fits none would be a permission that nobody gets."""
    name = _name(text, stores)
    if name not in map(str, stores):
        raise click.BadParameter(
            f"{text} is none of the stores given with --store, and only those can be truncated here",
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


def _show(plan: Plan, world: World, where: Where, to_json: bool) -> None:
    notes = [
        f"{each.name} has {what}, which brokers of brokerset do not deliver: let them be consumed first,"
        " stay with Java, or set acceptUnservedMessages=true for the new broker, which refuses to start"
        " otherwise"
        for each in world.stores
        for what in each.store.unsupported
    ]
    if to_json:
        write_json(
            {
                "flow": world.flow.value,
                "group": world.group,
                "done": plan.done,
                "leader": plan.leader,
                "steps": as_json(plan.steps),
                "notes": notes,
            }
        )
        return
    show(plan.steps)
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


def _write_back(back: Back, to_json: bool) -> None:
    if to_json:
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
