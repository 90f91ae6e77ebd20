"""`brokerset status`: the processes on this machine, and the brokers that the name server knows."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from brokerset_cli.client_session import run
from brokerset_cli.folder import DataFolder, SetState
from brokerset_cli.options import json_option, namesrv_address, namesrv_options
from brokerset_cli.output import CommandFailed, duration, write_json, write_table
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import ClientInstance, readable
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.routes import ClusterInfo
from brokerset_protocol.codes import RequestCode

WATCH_SECONDS: Final = 1.0
"""Pause between two looks of `--watch`."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker as the name server and the broker itself describe it."""

    cluster: str
    group: str
    id: int
    role: str
    address: str
    version: str
    boot_ms: int | None
    put_per_second: float | None
    get_per_second: float | None
    stored_bytes: int | None
    reachable: bool


@dataclass(frozen=True, slots=True)
class View:
    """Everything that one look found."""

    namesrv: str
    state: SetState | None
    brokers: tuple[BrokerView, ...]
    problems: tuple[str, ...]
    """What is not as it should be; empty means that all is well."""

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
            "brokers": [_camel_keys(asdict(broker)) for broker in self.brokers],
        }


@click.command()
@namesrv_options
@click.option("--watch", is_flag=True, help="Look again each second until Ctrl-C.")
@json_option
def status(namesrv: str | None, data: Path, watch: bool, as_json: bool) -> None:
    """Show the processes of the local set and the brokers of its cluster.

    The exit code is 0 when everything runs and every broker answers, else 1; with --watch it is 0.
    """
    address = namesrv_address(namesrv, data)
    local = None if namesrv else data
    if watch:
        with suppress(KeyboardInterrupt):  # is how people end it
            while True:
                _look_and_show(address, local, as_json=as_json, clear=not as_json and sys.stdout.isatty())
                time.sleep(WATCH_SECONDS)
    elif not _look_and_show(address, local, as_json=as_json, clear=False):
        sys.exit(1)


def _look_and_show(namesrv: str, data: Path | None, *, as_json: bool, clear: bool) -> bool:
    """Show what one look finds; whether all is well."""
    view = look(namesrv, data)
    if clear:
        click.clear()
    if as_json:
        write_json(view.to_json())
    else:
        show(view)
    return not view.problems


def look(namesrv: str, data: Path | None) -> View:
    """Gather what is known now; what cannot be reached is a problem of the view, not an error."""
    state = DataFolder(data).read_state() if data is not None else None
    problems = local_problems(state) if state is not None else []
    brokers: tuple[BrokerView, ...] = ()
    if state is None or state.alive:
        try:
            brokers = run(namesrv, _brokers)
        except CommandFailed as error:
            problems.append(f"{error.format_message()}; {error.advice}")
        else:
            problems += [
                f"broker {b.group}/{b.id} at {b.address} does not answer" for b in brokers if not b.reachable
            ]
            problems += missing_brokers(state, brokers)
            if not brokers and state is None:
                problems.append(f"the name server {namesrv} knows no broker; start one with `brokerset up`")
    return View(namesrv, state, brokers, tuple(problems))


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


def missing_brokers(state: SetState | None, brokers: tuple[BrokerView, ...]) -> list[str]:
    """Return the brokers that run here and that the name server does not know."""
    known = {broker.address for broker in brokers}
    mine = [p for p in (state.processes if state else ()) if p.kind == "broker"]
    return [
        f"{p.name} at {p.address} is not registered at the name server"
        for p in mine
        if p.address not in known
    ]


async def _brokers(instance: ClientInstance) -> tuple[BrokerView, ...]:
    answer = await instance.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
    cluster = readable(ClusterInfo.from_json, answer.body)
    found = [
        (data.cluster, data.broker_name, broker_id, address)
        for _, data in sorted(cluster.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    return tuple(await asyncio.gather(*(_ask_broker(instance, *item) for item in found)))


async def _ask_broker(
    instance: ClientInstance, cluster: str, group: str, broker_id: int, address: str
) -> BrokerView:
    facts: dict[str, str] = {}
    reachable = True
    try:
        answer = await instance.request(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        facts = dict(readable(KVTable.from_json, answer.body).table)
    except RequestRefused:
        pass  # it answers, though not this question
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
        boot_ms=None if boot is None else int(boot),
        put_per_second=_number(facts, "putTps"),
        get_per_second=_number(facts, "getTransferredTps"),
        stored_bytes=None if first is None or last is None else int(last - max(first, 0)),
        reachable=reachable,
    )


def _number(facts: dict[str, str], name: str) -> float | None:
    """Return the first number of a value: rates are given over 10 s, 1 min and 10 min, in one text."""
    try:
        return float(facts[name].split()[0])
    except (KeyError, ValueError, IndexError):
        return None


def _camel_keys(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name.split("_")[0] + "".join(p.title() for p in name.split("_")[1:]): v for name, v in value.items()
    }


def show(view: View) -> None:
    """Write the tables that a person reads."""
    now_ms = time.time_ns() // 1_000_000
    if view.state is not None and view.state.alive:
        click.echo(f"BrokerSet {view.state.name}, run by process {view.state.pid}")
        rows = [
            (
                p.name,
                p.state if p.alive or p.state == "waiting" else "not running",
                p.address,
                p.http_port or None,
                p.pid or None,
                p.restarts,
                duration((now_ms - p.started_ms) / 1000) if p.alive else None,
            )
            for p in view.state.processes
        ]
        plain = [tuple(str(value) if value is not None else None for value in row) for row in rows]
        write_table(("process", "state", "address", "http", "pid", "restarts", "up"), plain)
        click.echo()
    if view.brokers:
        write_table(
            ("cluster", "group", "id", "role", "address", "version", "in/s", "out/s", "stored", "up"),
            [
                (
                    b.cluster,
                    b.group,
                    b.id,
                    b.role,
                    b.address,
                    b.version or None,
                    _rate(b.put_per_second),
                    _rate(b.get_per_second),
                    _size(b.stored_bytes),
                    duration((now_ms - b.boot_ms) / 1000) if b.boot_ms else None,
                )
                for b in view.brokers
            ],
        )
    for problem in view.problems:
        click.secho(f"Problem: {problem}", fg="red", err=True)


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"


def _size(count: int | None) -> str | None:
    if count is None:
        return None
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
