"""The crashes of `brokerset demo`: processes are killed, and what must not change is compared."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import click

from brokerset_cli import client_session, controller_session
from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.ledger_session import LedgerAdmin, group_admin
from brokerset_cli.output import counted, fail, write_table
from brokerset_cli.processes import send_signal
from brokerset_cli.readiness import broker_is_ready
from brokerset_cli.scaling import running_state
from brokerset_cli.sending import Sent, check_statuses
from brokerset_cli.switchover import hand_over
from brokerset_cli.waiting import until
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message
from brokerset_client.producer import Producer
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState
from brokerset_protocol.headers.controller import SwitchOverResponse

CRASH_SECONDS: Final = 2.0
"""Time over which messages are sent one by one while the leading controller dies."""

RETURN_SECONDS_MAX: Final = 60.0
"""Longest time that what was killed may take to come back."""

REPORT: Final = "please report this, with the logs"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a broker process is to the controllers, or to the other members of a DLedger."""

    broker_id: int
    address: str
    starts: int
    role: str
    in_sync: bool


def kill_leading_controller(folder: DataFolder, messages: Sequence[Message]) -> None:
    """Kill the leader with SIGKILL while `messages` are sent one by one; all must be acknowledged."""
    state = running_state(folder)
    before = controller_session.run(state.controllers, lambda admin: admin.status())
    leader = _controller(state, before)

    async def work(instance: ClientInstance) -> tuple[Slowly, ControllerStatus, float]:
        async with Producer("brokerset-demo", instance=instance) as producer:
            sending = asyncio.create_task(_send_slowly(producer, messages))
            await asyncio.sleep(CRASH_SECONDS / 10)
            killed = time.perf_counter()
            kill(leader)
            rest = [a for a in state.controllers.split(";") if a != leader.address]
            after = await _next_leader(rest, before.node_id)
            led_after = time.perf_counter() - killed
            return await sending, after, led_after

    try:
        sent, after, led_after = client_session.run(state.namesrv, work)
    except TimeoutError:
        fail(
            f"no other controller leads {RETURN_SECONDS_MAX:g} s after {leader.name} was killed",
            REPORT,
        )
    check_statuses(sent.results)
    click.echo(
        f"{leader.name} (process {leader.pid}) led in term {before.term} and was killed; after "
        f"{led_after:.2f} s {_controller(state, after).name} leads in term {after.term}."
    )
    _say_sent(sent, len(messages))
    _wait(lambda: _runs_again(folder, leader), f"{leader.name} runs again")
    click.echo(f"{leader.name} runs again, as process {process_now(folder, leader.name).pid}.")


def transfer_leadership(folder: DataFolder, messages: Sequence[Message]) -> None:
    """Let another broker lead a DLedger while `messages` are sent one by one; all must be acknowledged."""
    state = running_state(folder)

    async def work(instance: ClientInstance) -> tuple[Slowly, GroupState, SwitchOverResponse]:
        async with (
            Producer("brokerset-demo", instance=instance) as producer,
            LedgerAdmin(folder.path) as admin,
        ):
            (before,) = await admin.groups()
            sending = asyncio.create_task(_send_slowly(producer, messages))
            await asyncio.sleep(CRASH_SECONDS / 10)
            done = await hand_over(admin, before, None)
            return await sending, before, done

    sent, before, done = client_session.run(state.namesrv, work)
    check_statuses(sent.results)
    pause = "" if done.pause_ms is None else f"; sends waited {done.pause_ms} ms"
    click.echo(
        f"{before.broker_name}/{before.master_id} led in epoch {before.master_epoch}; "
        f"{before.broker_name}/{done.master_broker_id} leads in epoch {done.master_epoch}{pause}."
    )
    _say_sent(sent, len(messages))


def _say_sent(sent: Slowly, count: int) -> None:
    click.echo(
        f"{counted(count, 'message')} went out one by one around that, over {CRASH_SECONDS:g} s; all "
        f"were acknowledged, the slowest after {sent.longest * 1000:.0f} ms."
    )


@dataclass(slots=True)
class Slowly:
    """What became of messages that were sent one by one."""

    results: Sent = field(default_factory=Sent)
    longest: float = 0.0
    """Longest time until an acknowledgement, in seconds."""


async def _send_slowly(producer: Producer, messages: Sequence[Message]) -> Slowly:
    """Send over `CRASH_SECONDS`, the last message at its end."""
    done = Slowly()
    began = time.perf_counter()
    for number, message in enumerate(messages, 1):
        await asyncio.sleep(max(0.0, began + CRASH_SECONDS * number / len(messages) - time.perf_counter()))
        sent = time.perf_counter()
        done.results.add(await producer.send(message), 1, len(message.body))
        done.longest = max(done.longest, time.perf_counter() - sent)
    return done


async def _next_leader(addresses: Sequence[str], before: int) -> ControllerStatus:
    async with ControllerAdmin(addresses, timeout=RETURN_SECONDS_MAX) as admin:

        async def leading() -> ControllerStatus | None:
            found = (each.status for each in await admin.observe())
            return next((each for each in found if each and each.leading and each.node_id != before), None)

        if (found := await until(leading, RETURN_SECONDS_MAX)) is None:
            raise TimeoutError
        return found


def kill_brokers(folder: DataFolder) -> None:
    """Kill every broker with SIGKILL; ends the command when one does not come back with the id it had."""
    state = running_state(folder)
    before = _identities(folder, state)
    if missing := [process.name for process in brokers_of(state) if process.name not in before]:
        fail(f"nobody knows {', '.join(missing)}", REPORT)
    for process in brokers_of(state):
        kill(process)
    _wait(
        lambda: _all_back(folder, state, before),
        "every broker is back, in sync, with a master",
    )
    after = _identities(folder, running_state(folder))
    write_table(
        ("process", "id before", "id after", "address before", "address after", "starts"),
        [
            (
                name,
                was.broker_id,
                after[name].broker_id,
                was.address,
                after[name].address,
                f"{was.starts} → {after[name].starts}",
            )
            for name, was in before.items()
        ],
    )
    for name, was in before.items():
        if after[name].broker_id != was.broker_id or after[name].address == was.address:
            fail(f"{name} came back with another id, or at its old port", REPORT)


def _identities(folder: DataFolder, state: SetState) -> dict[str, Identity]:
    """By name of the process; only brokers whose present address the controllers, or other members, know."""

    async def found() -> dict[str, Identity]:
        async with group_admin(folder.path, state) as admin:
            return await identities(admin, state)

    return asyncio.run(found())


async def identities(admin: ControllerAdmin | LedgerAdmin, state: SetState) -> dict[str, Identity]:
    """Who the broker processes of a set are, by name; those that have not registered are left out."""
    names = {process.address: process.name for process in brokers_of(state)}
    found = {
        names[replica.address]: Identity(
            replica.broker_id,
            replica.address,
            replica.incarnation,
            "master" if group.master_id == replica.broker_id else "slave",
            replica.broker_id in group.sync_state_set,
        )
        for group in await admin.groups()
        for replica in group.replicas
        if replica.address in names
    }
    return dict(sorted(found.items()))


async def _all_back(folder: DataFolder, state: SetState, before: dict[str, Identity]) -> bool:
    found = folder.read_state()
    if found is None or any(p.state != "running" for p in brokers_of(found)):
        return False
    async with group_admin(folder.path, state) as admin:
        try:
            now = await identities(admin, found)
        except ClientError:
            return False
    ready = [await broker_is_ready(p.address.rpartition(":")[0], p.http_port) for p in brokers_of(found)]
    masters = any(identity.role == "master" for identity in now.values())
    back = all(
        name in now and (now[name].starts > was.starts or now[name].broker_id != was.broker_id)
        for name, was in before.items()
    )
    in_sync = all(identity.in_sync for identity in now.values())
    return all(ready) and masters and back and in_sync


async def _runs_again(folder: DataFolder, was: ProcessState) -> bool:
    process = process_now(folder, was.name)
    return process.state == "running" and process.pid != was.pid


def _wait(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    async def wait() -> bool:
        return await until(condition, RETURN_SECONDS_MAX)

    if not asyncio.run(wait()):
        fail(f"not within {RETURN_SECONDS_MAX:g} s: {what}", REPORT)


def kill(process: ProcessState) -> None:
    """End a process with SIGKILL; ends the command when it has ended before."""
    if not send_signal(process.pid, process.start_ticks, signal.SIGKILL):
        fail(
            f"{process.name} (process {process.pid}) ended before it was killed",
            REPORT,
        )


def brokers_of(state: SetState) -> list[ProcessState]:
    return [process for process in state.processes if process.kind == "broker"]


def _controller(state: SetState, status: ControllerStatus) -> ProcessState:
    return next(process for process in state.processes if process.node_id == status.node_id)


def process_now(folder: DataFolder, name: str) -> ProcessState:
    return next(process for process in running_state(folder).processes if process.name == name)
