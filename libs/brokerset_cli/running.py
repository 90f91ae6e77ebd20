"""One run of a set: its processes, what people hear of them, and the wishes that come while they run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import click

from brokerset_cli.folder import DataFolder, ProcessState, SetState, Wish
from brokerset_cli.name_server_news import TRIES_MAX, NameServerNews
from brokerset_cli.output import fail, write_table
from brokerset_cli.processes import free_port, port_is_free, start_ticks
from brokerset_cli.readiness import readiness
from brokerset_cli.set_tls import tls_config_file
from brokerset_cli.setting_variables import variables_of_others
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.files import write_atomically
from brokerset_runtime.settings import settings_text
from brokerset_runtime.supervision import Child, ChildSpec, StartFailed, Supervisor
from brokerset_spec.dledger_mode import FIXED_REPLICAS, FIXED_REPLICAS_ADVICE
from brokerset_spec.local_ports import CONTROLLER_PORTS
from brokerset_spec.manifest import CONTROLLERS_MAX, REPLICAS_MAX, BrokerSet
from brokerset_spec.plan import (
    HA_PORT_OFFSET,
    SECOND_PORT_OFFSET,
    LocalPlan,
    PlanRefused,
    PortsTaken,
    PortWishes,
    ProcessPlan,
    controller_data_folder,
    move_broker,
    plan_local,
)
from brokerset_spec.set_memory import SetMemory
from brokerset_spec.set_parts import DLEDGER

INFORM_AGAIN_SECONDS: Final = 5.0
"""Pause before a broker that gave no answer is sent the name servers again."""


def controllers_with_data(folder: DataFolder) -> frozenset[int]:
    """The controllers whose folders hold what must not be lost."""
    found = set()
    for each in folder.memory().controllers:
        kept = controller_data_folder(folder.path, each.node_id)
        if kept.is_dir() and any(kept.iterdir()):
            found.add(each.node_id)
    return frozenset(found)


def write_settings(plan: LocalPlan) -> None:
    """Write the settings file of each process."""
    for process in plan.processes:
        process.folder.mkdir(parents=True, exist_ok=True)
        head = f"# Written by `brokerset up` for {process.name}; it is replaced at each start.\n"
        write_atomically(process.settings_file, (head + settings_text(process.settings)).encode())


@dataclass(slots=True)
class Run:
    """Keeps the state file up to date, says what happens, and fulfils wishes."""

    manifest: BrokerSet
    plan: LocalPlan
    folder: DataFolder
    host: str
    floating: bool = False
    """Whether a broker takes another free port each time it is started."""

    phase: str = "starting"
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    supervisor: Supervisor = field(init=False)
    wish: str = ""
    wish_problem: str = ""
    _news: NameServerNews = field(default_factory=NameServerNews)
    _silent: frozenset[str] = frozenset()
    """Brokers that gave no answer when they were sent the name servers."""

    def __post_init__(self) -> None:
        specs = [self.child_spec(process) for process in self.plan.processes]
        self.supervisor = Supervisor(specs, clock=SystemClock(), say=self.say)

    def child_spec(self, process: ProcessPlan) -> ChildSpec:
        """Return how a process is started and how one sees that it serves."""
        joins = any(m.joins for m in self.plan.memory.controllers if m.node_id == process.node_id)
        floats = self.floating and process.kind == "broker"
        return ChildSpec(
            name=process.name,
            arguments=(sys.executable, "-m", process.module, "-c", str(process.settings_file)),
            log_file=process.log_file,
            ready=readiness(process, joins),
            withheld=variables_of_others(process.kind),
            together=process.kind,
            renew=partial(self._elsewhere, process.name) if floats else None,
        )

    def say(self, child: Child, what: str) -> None:
        """Tell what happened to a child, and store the new state."""
        self._news.on_start(child, self.plan.namesrv_address)
        tell(f"{child.spec.name} {what}")
        self.store()

    def store(self) -> None:
        """Write the state file."""
        own_pid = os.getpid()
        children = {child.spec.name: child for child in self.supervisor.children}
        brokers = [children[process.name] for process in self.plan.brokers if process.name in children]
        self.folder.write_state(
            SetState(
                name=self.plan.name,
                cluster_name=self.plan.cluster_name,
                phase=self.phase,
                namesrv=self._news.known_to_all(self.plan.namesrv_address, brokers),
                controllers=self.plan.controller_address,
                pid=own_pid,
                start_ticks=start_ticks(own_pid),
                started_ms=self.started_ms,
                processes=tuple(
                    _process_state(process, children[process.name])
                    for process in self.plan.processes
                    if process.name in children
                ),
                wish=self.wish,
                wish_problem=self.wish_problem,
                min_in_sync=self.manifest.spec.replication.min_in_sync_replicas,
                guest=not self.plan.memory.under_own_controllers,
                mode=self.plan.memory.mode,
            )
        )

    def remember(self) -> None:
        """Store that the controllers have served."""
        ids = tuple(p.node_id for p in self.plan.controllers if p.node_id is not None)
        self.plan = replace(self.plan, memory=self.plan.memory.with_started(ids))
        self.folder.write_memory(self.plan.memory)

    async def fulfil_wishes(self, signalled: asyncio.Event) -> None:
        """Read the wish at each signal; until cancelled."""
        while True:
            await self._until_signalled(signalled)
            wish = self.folder.read_wish()
            if wish is None or wish.name == self.wish or self.phase != "running":
                continue
            try:
                problem = await self._fulfil(wish)
            except PortsTaken as error:
                problem = str(error)
            except PlanRefused as error:
                problem = error.reason
            except StartFailed as error:
                problem = f"{error.name} {error.reason}; its log is {error.log_file}"
            except OSError as error:
                problem = f"{error.filename or self.folder.path}: {error.strerror}"
            self.wish, self.wish_problem = wish.name, problem
            self.store()

    async def _until_signalled(self, signalled: asyncio.Event) -> None:
        """Wait for the event, and clear it; silent brokers are sent the name servers meanwhile."""
        while True:
            try:
                async with asyncio.timeout(INFORM_AGAIN_SECONDS if self._silent else None):
                    await signalled.wait()
            except TimeoutError:
                await self._inform_brokers(tries=1)
            else:
                signalled.clear()
                return

    async def _fulfil(self, wish: Wish) -> str:
        """Start and stop controllers and brokers, so that those that are wished for run.

        When one of the new ones does not start, none of them runs afterwards. Brokers that run on are sent
        the name servers that there are now; returns which of them refuse that, and why.
        """
        before = self.plan
        memory = wished(before.memory, wish)
        own = {port for process in before.processes for port in process.ports}
        plan = plan_local(
            self.manifest,
            self.folder.path,
            memory=memory,
            is_free=lambda port: port in own or port_is_free(self.host, port),
            wishes=self._port_wishes(wish),
            host=self.host,
            with_data=not_lost(before, memory),
            tls_config_file=tls_config_file(self.folder.path),
        )
        was = {process.name for process in before.processes}
        will = {process.name for process in plan.processes}
        for process in before.processes:
            if process.name not in will:
                await self.supervisor.remove(process.name)
        self._adopt(plan)
        new = [process for process in plan.processes if process.name not in was]
        try:
            await self.supervisor.add(*map(self.child_spec, new))
        except (StartFailed, OSError):
            self._adopt(without_new(before, plan))
            await self._inform_brokers()
            raise
        self.remember()
        return await self._inform_brokers()

    def _port_wishes(self, wish: Wish) -> PortWishes:
        """Where the first name server is to be; those that have run keep their ports."""
        if self.plan.memory.controllers or wish.namesrv_port is None:
            return PortWishes()
        return PortWishes(wish.namesrv_port or free_port(self.host, *range(1, CONTROLLER_PORTS)))

    async def _inform_brokers(self, tries: int = TRIES_MAX) -> str:
        """Send running brokers the name servers of the plan; returns who refuses them, and why."""
        children = {child.spec.name: child for child in self.supervisor.children}
        brokers = [(each, children[each.name]) for each in self.plan.brokers if each.name in children]
        missed = await self._news.tell(brokers, self.plan.namesrv_address, tries)
        for name in sorted(missed.silent.keys() - self._silent):
            tell(f"{name} is told the name servers again and again until it answers: {missed.silent[name]}")
        self._silent = frozenset(missed.silent)
        self.store()
        said = "; ".join(f"{name}: {problem}" for name, problem in missed.refused.items())
        return f"not all brokers take the new name servers: {said}" if said else ""

    def _adopt(self, plan: LocalPlan) -> None:
        self.plan = plan
        self.folder.write_memory(plan.memory)
        write_settings(plan)
        for process in plan.processes:
            self.supervisor.change(self.child_spec(process))
        self.store()

    def _elsewhere(self, name: str) -> ChildSpec:
        """Move a broker to another port; where none is found, it stays where it is."""
        with contextlib.suppress(OSError):
            port = free_port(self.host, -SECOND_PORT_OFFSET, HA_PORT_OFFSET)
            self._adopt(move_broker(self.plan, name, port))
        return self.child_spec(next(process for process in self.plan.processes if process.name == name))


def wished(memory: SetMemory, wish: Wish) -> SetMemory:
    """What a set is to remember to fulfil a wish. Raises `PlanRefused` for one that makes no sense."""
    guest = memory.joined_cluster_of
    if memory.mode == DLEDGER and wish.brokers:
        raise PlanRefused(FIXED_REPLICAS, FIXED_REPLICAS_ADVICE)
    if wish.controllers is not None:
        if guest is not None and guest.controllers:
            what = (
                "runs some next to them, with no group in them" if memory.controllers else "runs none itself"
            )
            raise PlanRefused(
                f"the brokers of this set belong to the controllers at {guest.controllers}; it {what}",
                "run more or fewer of them where they run",
            )
        memory = memory.with_controllers(wish.controllers)
    if wish.own_controllers is not None:
        memory = _with_own_controllers(memory, wish.own_controllers)
    if wish.own_name_servers:
        memory = _without_others(memory)
    for group, numbers in sorted(wish.brokers.items()):
        if group not in memory.groups or not 1 <= len(numbers) <= REPLICAS_MAX:
            raise PlanRefused(
                f"group {group} is to have {len(numbers)} brokers here",
                f"name a group of this set, and 1 to {REPLICAS_MAX} brokers",
            )
        memory = memory.with_brokers(group, numbers)
    return memory


def _with_own_controllers(memory: SetMemory, number: int) -> SetMemory:
    if memory.joined_cluster_of is None:
        raise PlanRefused(
            "this set is no guest of another cluster, and has the controllers that it needs",
            "change their number with `brokerset controller scale`",
        )
    if not 1 <= number <= CONTROLLERS_MAX:
        raise PlanRefused(
            f"{number} controllers are to run next to those of the other cluster",
            f"run 1 to {CONTROLLERS_MAX}; three survive the loss of one",
        )
    return memory if memory.controllers else memory.with_first_controllers(number)


def _without_others(memory: SetMemory) -> SetMemory:
    if memory.joined_cluster_of is not None and memory.joined_cluster_of.controllers:
        raise PlanRefused(
            f"the brokers of this set belong to the controllers at {memory.joined_cluster_of.controllers}",
            "`brokerset adopt --finish` leads them under controllers of their own first",
        )
    return replace(memory, joined_cluster_of=None)


def not_lost(before: LocalPlan, memory: SetMemory) -> frozenset[int]:
    """The controllers of `memory` that may run: all that run, and new ones, but none that was left out.

    One that lost its data before the last start stays out until it is replaced, whatever else is wished for.
    """
    known = {each.node_id for each in before.memory.controllers}
    run = {process.node_id for process in before.controllers}
    return frozenset(
        each.node_id for each in memory.controllers if each.node_id in run or each.node_id not in known
    )


def without_new(before: LocalPlan, plan: LocalPlan) -> LocalPlan:
    """What is left of the plan before when those were stopped that are not in `plan`, and no new ones run."""
    will = {process.name for process in plan.processes}
    processes = tuple(process for process in before.processes if process.name in will)
    kept = [process.node_id for process in processes if process.node_id is not None]
    memory = replace(
        before.memory.with_controllers(tuple(kept)), next_controller_id=plan.memory.next_controller_id
    )
    for group, each in plan.memory.groups.items():
        numbers = tuple(n for n in each.numbers if n in before.memory.groups[group].numbers)
        memory = memory.with_brokers(group, numbers)
    return replace(before, processes=processes, memory=memory)


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
        node_id=process.node_id,
        namesrv=process.namesrv_address,
        raft=process.raft_address,
        ha=process.ha_address,
        ledger=process.ledger_address,
    )


async def run_set(run: Run) -> None:
    """Run a set until it is told to stop; ends the command when something does not start."""
    for note in run.plan.notes:
        click.secho(f"Note: {note}", fg="yellow")
    signalled = asyncio.Event()
    _take_signals(run, signalled)

    def started() -> None:
        run.phase = "running"
        run.remember()
        run.store()
        greet(run.plan, run.folder.path)

    wishes = asyncio.create_task(run.fulfil_wishes(signalled))
    wishes.add_done_callback(lambda _: run.supervisor.stop())
    try:
        await run.supervisor.run(started)
    except StartFailed as error:
        tail = "".join(f"\n  | {line}" for line in error.log_tail.splitlines()[-15:])
        fail(
            f"{error.name} {error.reason}; the end of its log:{tail}",
            f"correct that; the whole log is {error.log_file}",
        )
    finally:
        wishes.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await wishes
        run.phase = "stopped"
        run.store()
    tell("everything has stopped; the messages are kept")


def _take_signals(run: Run, signalled: asyncio.Event) -> None:
    def on_signal() -> None:
        if run.phase == "stopping":
            tell("second signal: killing all processes")
            run.supervisor.kill()
            return
        run.phase = "stopping"
        tell("stopping; a second Ctrl-C kills")
        run.supervisor.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)


def greet(plan: LocalPlan, folder: Path) -> None:
    """Say that everything runs, where, and what to do with it."""
    rows = [
        (p.name, p.kind, p.address, p.namesrv_address or "-", str(p.http_port or "-"), p.log_file)
        for p in plan.processes
    ]
    click.echo()
    write_table(("name", "kind", "address", "name server", "http", "log"), rows)
    click.echo(f"\nBrokerSet {plan.name} runs. Name servers: {plan.namesrv_address}. Data: {folder}")
    first = plan.namesrv_address.split(";")[0]
    option = "" if first == "127.0.0.1:9876" else f" --namesrv {first}"
    click.echo(f"Try: brokerset send hello --count 10{option}")


def tell(text: str) -> None:
    """Say what happens now, with the time of day."""
    click.echo(f"{datetime.now().astimezone():%H:%M:%S} {text}")
