"""`brokerset status`: processes, controllers, replicas, and brokers as the name servers know them."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from brokerset_cli.client_session import run
from brokerset_cli.cluster_view import (
    ControllersView,
    broker_reasons,
    controller_problems,
    fetch_controllers_view,
    group_lines,
    process_names,
    replica_role,
    replica_state,
    view_json,
)
from brokerset_cli.folder import DataFolder, SetState
from brokerset_cli.java_controllers import leader_of
from brokerset_cli.lag_view import LAG_COLUMNS, GroupLag, fetch_lags
from brokerset_cli.ledger_view import (
    fetch_ledger_groups,
    groups_json,
    ledger_problems,
    show_groups,
)
from brokerset_cli.options import (
    address_option,
    json_option,
    namesrv_address,
    namesrv_options,
    observed_controllers,
)
from brokerset_cli.output import CommandFailed, camel_json, duration, write_columns, write_json, write_table
from brokerset_cli.pop_view import POP_COLUMNS, PopView, pop_problems, pop_view
from brokerset_cli.replication_view import lag_of, master_facts
from brokerset_client.admin import Admin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import ClientInstance, readable
from brokerset_client.ledger_groups import LedgerGroup
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.routes import ClusterInfo
from brokerset_protocol.codes import RequestCode
from brokerset_runtime.logs import configure_logs

WATCH_SECONDS: Final = 1.0
"""Pause between two observations of `--watch`."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker as the name server and the broker itself describe it."""

    cluster: str
    group: str
    id: int
    role: str
    address: str
    version: str
    native_core: str | None
    """`on` or `off`, with its version or why; None of who does not say, such as Java's brokers."""

    boot_ms: int | None
    put_per_second: float | None
    get_per_second: float | None
    stored_bytes: int | None
    reachable: bool

    pops: PopView | None = None
    """Consumption by POP; None of who does not lead, and of who does not say."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that was observed at one time."""

    namesrv: str
    state: SetState | None
    brokers: tuple[BrokerView, ...]
    controllers: ControllersView | None
    """None when no controllers are known."""

    ledgers: tuple[LedgerGroup, ...]
    """DLedger groups."""

    problems: tuple[str, ...]
    """What is not as it should be; empty means that all is well."""

    lags: tuple[GroupLag, ...] | None = None
    """How far behind consumer groups are; None if nobody asked."""

    def to_json(self) -> dict[str, Any]:
        """Return the view with camelCase names."""
        state = self.state.to_json() if self.state is not None else None
        if state is not None and self.state is not None:
            state["running"] = self.state.alive
            for item, process in zip(state["processes"], self.state.processes, strict=True):
                item["alive"] = process.alive
        return {
            "healthy": not self.problems,
            "problems": list(self.problems),
            "namesrv": self.namesrv,
            "local": state,
            "brokers": camel_json(self.brokers),
            "dledgerGroups": groups_json(self.ledgers, process_names(self.state)),
            **({} if self.lags is None else {"consumerGroups": camel_json(self.lags)}),
            **(
                view_json(self.controllers, process_names(self.state)) if self.controllers is not None else {}
            ),
        }


@click.command()
@namesrv_options
@address_option("--controller", "Controllers, with ; between them. [default: those of the set in --data]")
@click.option("--groups", is_flag=True, help="Also how far behind each consumer group is in each topic.")
@click.option("--watch", is_flag=True, help="Look again each second until Ctrl-C.")
@json_option
def status(
    namesrv: str | None, data: Path, controller: str | None, groups: bool, watch: bool, as_json: bool
) -> None:
    """Show processes, controllers, the replicas of each group, how far each is, and what is wrong.

    Of a DLedger group, which has no controllers, the members are asked.

    The exit code is 0 when everything runs and every broker answers, else 1; with --watch it is 0.
    """
    address = namesrv_address(namesrv, data)
    controllers = observed_controllers(controller, data) if controller or not namesrv else None
    local = None if namesrv else data

    def observe_again() -> View:
        return observe(address, local, controllers, named=controller is not None, lags=groups)

    if not watch:
        view = observe_again()
        if as_json:
            write_json(view.to_json())
        else:
            show(view)
        if view.problems:
            sys.exit(1)
        return
    configure_logs("error", json=False)
    with suppress(KeyboardInterrupt):  # is how people end it
        _watch(observe_again, as_json)


def _watch(observe_again: Callable[[], View], as_json: bool) -> None:
    """Observe again and again; on a terminal each view takes the place of the one before."""
    if as_json or not sys.stdout.isatty():
        while True:
            view = observe_again()
            if as_json:
                write_json(view.to_json())
            else:
                show(view)
            time.sleep(WATCH_SECONDS)
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            live.update(Text.from_ansi(_as_text(observe_again())), refresh=True)
            time.sleep(WATCH_SECONDS)


def _as_text(view: View) -> str:
    with redirect_stdout(io.StringIO()) as text:
        show(view, errors_apart=False)
    return text.getvalue()


def observe(
    namesrv: str,
    data: Path | None,
    controllers: str | None = None,
    *,
    named: bool = False,
    lags: bool = False,
) -> View:
    """Gather what is known now; what cannot be reached is a problem of the view, not an error.

    Controllers that nobody named and that do not answer are left out: there may be none.
    """
    state = DataFolder(data).read_state() if data is not None else None
    problems = local_problems(state) if state is not None else []
    brokers: tuple[BrokerView, ...] = ()
    agreed: ControllersView | None = None
    ledgers: tuple[LedgerGroup, ...] = ()
    behind: tuple[GroupLag, ...] | None = None
    if state is None or state.alive:
        reasons = asyncio.run(broker_reasons(state))
        try:
            brokers = run(namesrv, _brokers)
        except CommandFailed as error:
            problems.append(f"{error.format_message()}; {error.advice}")
        else:
            problems += [
                f"broker {b.group}/{b.id} at {b.address} does not answer" for b in brokers if not b.reachable
            ]
            problems += missing_brokers(state, brokers, reasons)
            for each in brokers:
                problems += pop_problems(f"broker {each.group}/{each.id}", each.pops)
            if not brokers and state is None:
                problems.append(f"the name server {namesrv} knows no broker; start one with `brokerset up`")
        if lags and brokers:
            try:
                behind = run(namesrv, lambda instance: fetch_lags(Admin(instance=instance)))
            except CommandFailed as error:
                problems.append(f"consumer groups are not known: {error.format_message()}; {error.advice}")
        if state is None or state.is_dledger:
            found = asyncio.run(fetch_ledger_groups(state, {each.address: each.group for each in brokers}))
            ledgers = found[0]
            problems += ledger_problems(*found)
        if controllers:
            groups = sorted({each.group for each in brokers})
            agreed = asyncio.run(fetch_controllers_view(controllers, groups, namesrv))
            if not agreed.answered and not named and (state is None or not state.controllers):
                agreed = None
            else:
                own = None if state is not None and state.guest else state
                problems += controller_problems(agreed, own)  # a guest's controllers are no processes here
    return View(namesrv, state, brokers, agreed, ledgers, tuple(problems), behind)


def local_problems(state: SetState) -> list[str]:
    """Return what is wrong with the processes of a local set."""
    if not state.alive:
        how = "was stopped" if state.phase == "stopped" else "ended without stopping its processes"
        again = "start it again with `brokerset up`"
        left = [process.name for process in state.processes if process.alive]
        if left:
            again = f"{', '.join(left)} still run; end them with `brokerset down`"
        return [f"BrokerSet {state.name} does not run: it {how}; {again}"]
    if state.phase != "running":
        return [f"BrokerSet {state.name} is {state.phase}"]
    return [
        f"{process.name} is {process.state if process.alive else 'not running'}; its log is {process.log}"
        for process in state.processes
        if process.state != "running" or not process.alive
    ]


def missing_brokers(
    state: SetState | None, brokers: tuple[BrokerView, ...], reasons: Mapping[str, list[str]] | None = None
) -> list[str]:
    """Return the brokers that run here and do not serve, with what they say, or are not registered."""
    reasons = reasons or {}
    known = {broker.address for broker in brokers}
    found = []
    for process in state.processes if state else ():
        if process.kind != "broker":
            continue
        if said := reasons.get(process.address):
            found.append(f"{process.name} at {process.address} does not serve: {'; '.join(said)}")
        elif process.address not in known:
            found.append(f"{process.name} at {process.address} is not registered at the name server")
    return found


async def _brokers(instance: ClientInstance) -> tuple[BrokerView, ...]:
    answer = await instance.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
    cluster = readable(ClusterInfo.from_json, answer.body)
    found = [
        (data.cluster, data.broker_name, broker_id, address)
        for _, data in sorted(cluster.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    return tuple(await asyncio.gather(*(_probe_broker(instance, *item) for item in found)))


async def _probe_broker(
    instance: ClientInstance, cluster: str, group: str, broker_id: int, address: str
) -> BrokerView:
    facts: dict[str, str] = {}
    reachable = True
    try:
        answer = await instance.request(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        facts = dict(readable(KVTable.from_json, answer.body).table)
    except RequestRefused:
        pass  # it answers, though not this request
    except ClientError:
        reachable = False
    first, last = _number(facts, "commitLogMinOffset"), _number(facts, "commitLogMaxOffset")
    boot = _number(facts, "bootTimestamp")
    return BrokerView(
        cluster=cluster,
        group=group,
        id=broker_id,
        role="master" if broker_id == 0 else "slave",
        address=address,
        version=facts.get("brokerVersionDesc", ""),
        native_core=facts.get("brokersetNativeCore"),
        boot_ms=None if boot is None else int(boot),
        put_per_second=_number(facts, "putTps"),
        get_per_second=_number(facts, "getTransferredTps"),
        stored_bytes=None if first is None or last is None else int(last - max(first, 0)),
        reachable=reachable,
        pops=pop_view(facts),
    )


def _number(facts: dict[str, str], name: str) -> float | None:
    """Return the first number of a value: rates are given over 10 s, 1 min and 10 min, in one text."""
    try:
        return float(facts[name].split()[0])
    except (KeyError, ValueError, IndexError):
        return None


def show(view: View, *, errors_apart: bool = True) -> None:
    """Write the tables that a person reads; problems go to standard error if they shall stand apart.

    Else they come first: the end may not fit on a screen.
    """
    if not errors_apart:
        _show_problems(view, apart=False)
    now_ms = time.time_ns() // 1_000_000
    if view.state is not None and view.state.alive:
        click.echo(f"BrokerSet {view.state.name}, run by process {view.state.pid}")
        write_columns(
            view.state.processes,
            {
                "process": "name",
                "state": lambda p: p.state if p.alive or p.state == "waiting" else "not running",
                "address": "address",
                "http": lambda p: str(p.http_port) if p.http_port else None,
                "pid": lambda p: str(p.pid) if p.pid else None,
                "restarts": lambda p: str(p.restarts),
                "up": lambda p: duration((now_ms - p.started_ms) / 1000) if p.alive else None,
            },
        )
        click.echo()
    if view.controllers is not None:
        _show_controllers(view.controllers, process_names(view.state))
    show_groups(view.ledgers, process_names(view.state), click.echo)
    if view.brokers:
        click.echo("Brokers, as the name server knows them")
        write_columns(
            view.brokers,
            {
                **{name: name for name in ("cluster", "group", "id", "role", "address")},
                "version": lambda b: b.version or None,
                "native": lambda b: b.native_core and b.native_core.split()[0],
                "in/s": lambda b: _rate(b.put_per_second),
                "out/s": lambda b: _rate(b.get_per_second),
                "stored": lambda b: _size(b.stored_bytes),
                "up": lambda b: duration((now_ms - b.boot_ms) / 1000) if b.boot_ms else None,
            },
        )
        _show_pops(view.brokers)
    if view.lags is not None:
        click.echo("\nConsumer groups")
        write_columns(view.lags, LAG_COLUMNS, empty="No group has consumed anything yet.")
    if errors_apart:
        _show_problems(view, apart=True)


def _show_pops(brokers: tuple[BrokerView, ...]) -> None:
    """A table of the masters that have something to do with POP."""
    rows = [
        (broker.group, broker.id, *(of(broker.pops) for of in POP_COLUMNS.values()))
        for broker in brokers
        if broker.pops is not None and not broker.pops.is_idle
    ]
    if rows:
        click.echo("\nPopped messages")
        write_table(("group", "id", *POP_COLUMNS), rows)


def _show_problems(view: View, *, apart: bool) -> None:
    for problem in view.problems:
        click.secho(f"Problem: {problem}", fg="red", err=apart)


def _show_controllers(view: ControllersView, names: Mapping[str, str]) -> None:
    if view.java:
        _show_java(view, names)
        return
    leader = view.leader
    voters = {member.node_id: member.voter for member in leader.members} if leader is not None else {}
    term = f", term {leader.term}" if leader is not None else ": nobody leads"
    click.echo(f"Controllers{term}")
    write_columns(
        view.observed,
        {
            "controller": lambda controller: names.get(controller.address),
            "node": lambda controller: controller.status and controller.status.node_id,
            "address": "address",
            "role": lambda controller: controller.status.role if controller.status else "no answer",
            "vote": lambda controller: controller.status and _vote(voters, controller.status.node_id),
            "last": lambda controller: controller.status and controller.status.last_index,
            "applied": lambda controller: controller.status and controller.status.applied_index,
            "snapshot": lambda controller: controller.status and controller.status.snapshot_index,
        },
    )
    click.echo()
    for group in view.groups:
        _show_group(group, view, names)


def _show_java(view: ControllersView, names: Mapping[str, str]) -> None:
    """Java's controllers tell who leads, and the groups."""
    leader = leader_of(view.java)
    click.echo("Controllers of Java's" + (f", {leader.leader_id} leads" if leader else ": nobody leads"))
    roles = {each.address: "leader" if each.leads else "follower" for each in view.java}
    write_table(
        ("controller", "role"),
        [(controller.address, roles.get(controller.address, "no answer")) for controller in view.observed],
    )
    click.echo()
    if view.unlisted:
        click.echo("Groups: not known\n")
    for group in view.groups:
        _show_group(group, view, names)


def _show_group(group: GroupState, view: ControllersView, names: Mapping[str, str]) -> None:
    """A line about the group and a table of its replicas."""
    master = master_facts(group, view.facts)
    for line in group_lines(group, master):
        click.echo(line)
    click.echo(f"  {view.mix(group).line()}")
    rows = []
    for replica in group.replicas:
        own, answer = view.facts.get(replica.address), view.brokers.get(replica.address)
        end = own.max_offset if own is not None else answer.max_offset if answer is not None else None
        rows.append(
            (
                replica.broker_id,
                names.get(replica.address),
                answer.make.value if answer is not None else None,
                replica.address,
                replica_role(group, replica.broker_id),
                replica_state(group, replica),
                "yes" if replica.broker_id in group.sync_state_set else "no",
                replica.log_epoch,
                replica.max_offset if end is None else end,
                own.confirmed_offset if own is not None else None,
                lag_of(replica, view.facts, master),
                (own.lease or None) if own is not None else None,
                replica.incarnation or None,
                None if replica.heard_ms_ago is None else f"{replica.heard_ms_ago / 1000:.1f} s",
            )
        )
    write_table(
        (
            "id", "process", "make", "address", "role", "state", "in sync", "epoch", "log end", "confirmed",
            "lag", "lease", "starts", "heard",
        ),
        rows,
        empty="no replicas",
    )  # fmt: skip
    click.echo()


def _vote(voters: Mapping[int, bool], node_id: int) -> str:
    if node_id not in voters:
        return "no member"
    return "yes" if voters[node_id] else "learner"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"


def _size(count: int | None) -> str | None:
    if count is None:
        return None
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
