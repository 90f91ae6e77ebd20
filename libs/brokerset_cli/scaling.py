"""Changes the controllers of a local set while everything runs: more, fewer, or the first ones of a guest."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from brokerset_cli.folder import DataFolder, ProcessState, SetState, Wish
from brokerset_cli.output import CommandFailed
from brokerset_cli.processes import send_signal
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_protocol.bodies.controllers import ControllerStatus

WISH_SECONDS_MAX: Final = 60.0
"""Longest time that `up` may take to start or stop what it is asked for."""

CAUGHT_UP_SECONDS_MAX: Final = 60.0
"""Longest time that a new controller may take to receive the log."""

POLL_SECONDS: Final = 0.05
"""Pause between two reads of the state."""


@dataclass(frozen=True, slots=True)
class ScaleSteps:
    """What is to be done, in this order."""

    forget: tuple[int, ...]
    """Members that have no process here: their data is lost, or they were removed by hand."""

    start: tuple[int, ...]
    """New controllers that need a process."""

    join: tuple[int, ...]
    """Controllers with a process that are to become members."""

    promote: tuple[int, ...]
    """Members that are to get a vote."""

    leave: tuple[int, ...]
    """Members that are removed."""

    stop: tuple[int, ...]
    """Processes that end."""


def decide_steps(
    members: Mapping[int, bool], running: Collection[int], next_id: int, wanted: int
) -> ScaleSteps:
    """Return how to come to `wanted` members; `members` says who votes.

    Whatever was left half done is finished. Members with small numbers stay: brokers and clients know
    their addresses longest.
    """
    forget = sorted(set(members) - set(running))
    present = sorted(set(members) & set(running))
    stay = present[:wanted]
    leave = present[wanted:]
    missing = wanted - len(stay)
    idle = sorted(set(running) - set(members))
    join = idle[:missing]
    first = max([next_id, *(n + 1 for n in (*members, *running))])
    start = list(range(first, first + missing - len(join)))
    return ScaleSteps(
        forget=tuple(forget),
        start=tuple(start),
        join=(*join, *start),
        promote=tuple([n for n in stay if not members[n]] + join + start),
        leave=tuple(reversed(leave)),
        stop=tuple(sorted([*leave, *idle[len(join) :]])),
    )


async def scale(
    admin: ControllerAdmin, folder: DataFolder, wanted: int, say: Callable[[str], None]
) -> ControllerStatus:
    """Come to `wanted` controllers; returns the leader's view afterwards. Can be repeated after a failure."""
    state = running_state(folder)
    status = await admin.status()
    members = {member.node_id: member.voter for member in status.members}
    running = tuple(_controllers(state))
    steps = decide_steps(members, running, folder.memory().next_controller_id, wanted)
    for node_id in steps.forget:
        await _remove(admin, node_id, [n for n in members if n != node_id])
        say(f"controller-{node_id}, which has no process here, is no member any more")
    if steps.start:
        state = await request_processes(folder, state, (*running, *steps.start))
        for node_id in steps.start:
            say(f"controller-{node_id} runs")
    for node_id in steps.join:
        process = _controllers(state)[node_id]
        await admin.add_member(node_id, process.raft, process.address)
        say(f"controller-{node_id} receives the log")
        await _promote(admin, node_id)
        say(f"controller-{node_id} votes")
    for node_id in steps.promote:
        if node_id not in steps.join:
            await _promote(admin, node_id)
            say(f"controller-{node_id} votes")
    stay = [n for n in (*members, *steps.join) if n not in (*steps.leave, *steps.forget)]
    for node_id in steps.leave:
        await _remove(admin, node_id, stay)
        say(f"controller-{node_id} is no member any more")
    if steps.stop:
        rest = tuple(n for n in _controllers(state) if n not in steps.stop)
        await request_processes(folder, state, rest)
        for node_id in steps.stop:
            say(f"controller-{node_id} has stopped; its folder is not used again")
    return await admin.status()


def running_state(folder: DataFolder) -> SetState:
    """Return what runs in a folder; ends the command when nothing does."""
    state = folder.read_state()
    if state is None or not state.alive or state.phase != "running":
        raise CommandFailed(
            f"no set runs in {folder.path}",
            "start it with `brokerset up`, or name its folder with --data; controllers that something else "
            "runs are added and removed with `brokerset controller members`",
        )
    return state


@contextmanager
def changing(folder: DataFolder) -> Iterator[SetState]:
    """What runs in a folder, which no other command changes meanwhile; ends the command when nothing runs."""
    running_state(folder)  # nothing is written into a folder where nothing runs
    with folder.lock():
        yield running_state(folder)


async def run_own_controllers(
    folder: DataFolder, number: int, *, namesrv_port: int | None = None
) -> SetState:
    """Let a guest run controllers of its own, with name servers, next to those that its brokers belong to.

    Its brokers register with the name servers of both from then on. Returns what runs; a set that has such
    controllers keeps them, whatever their number. The first name server listens on `namesrv_port`, on a free
    port when that is 0, and by default on 9876 or the next free one. Ends the command when nothing runs in
    the folder, and with the problem of `up` when that cannot do it.
    """
    state = running_state(folder)
    wish = folder.write_wish(Wish(own_controllers=number, namesrv_port=namesrv_port))
    state = await _until_done(folder, state, wish)
    if not _controllers(state):
        raise _earlier_release(folder)
    return state


async def use_own_name_servers(folder: DataFolder) -> SetState:
    """Let the brokers of a set leave another cluster's name servers while they run; returns what runs.

    They must belong to controllers of their own by then. Does nothing for a set that uses its own ones only,
    but name them to brokers that could not be reached before. Ends the command as `run_own_controllers` does.
    """
    state = await _until_done(folder, running_state(folder), folder.write_wish(Wish(own_name_servers=True)))
    if folder.memory().joined_cluster_of is not None:
        raise _earlier_release(folder)
    return state


def _earlier_release(folder: DataFolder) -> CommandFailed:
    return CommandFailed(
        "the `brokerset up` that runs is of an earlier release, and does not know what it was asked for",
        f"`brokerset down --data {folder.path}`, `brokerset up --data {folder.path}`, then repeat this",
    )


async def request_processes(
    folder: DataFolder,
    state: SetState,
    controllers: Collection[int] | None = None,
    brokers: Mapping[str, Collection[int]] | None = None,
) -> SetState:
    """Let `up` run exactly these controllers and brokers, and wait until it does.

    What is not given stays as it is. Ends the command when `up` cannot do it.
    """
    wish = Wish(
        None if controllers is None else tuple(sorted(controllers)),
        {group: tuple(sorted(numbers)) for group, numbers in (brokers or {}).items()},
    )
    return await _until_done(folder, state, folder.write_wish(wish))


async def _until_done(folder: DataFolder, state: SetState, wish: Wish) -> SetState:
    """Signal `up` to read its wish, and wait until it has done what it asks for."""
    deadline = time.monotonic() + WISH_SECONDS_MAX
    while True:
        if not send_signal(state.pid, state.start_ticks, signal.SIGUSR1):
            raise CommandFailed("`brokerset up` has ended meanwhile", "start it again, then repeat this")
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            found = folder.read_state()
            if found is not None and found.wish == wish.name:
                if found.wish_problem:
                    raise CommandFailed(
                        f"`brokerset up` could not do it: {found.wish_problem}",
                        "correct that, then repeat this",
                    )
                return found
            await asyncio.sleep(POLL_SECONDS)
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"`brokerset up` (process {state.pid}) has not done it after {WISH_SECONDS_MAX:g} s",
                f"look into the logs in {folder.path / 'logs'}, then repeat this",
            )


def _controllers(state: SetState) -> dict[int, ProcessState]:
    return {process.node_id: process for process in state.processes if process.node_id is not None}


async def _promote(admin: ControllerAdmin, node_id: int) -> None:
    """Give a learner its vote, as soon as it has received the log."""
    deadline = time.monotonic() + CAUGHT_UP_SECONDS_MAX
    while True:
        try:
            await admin.promote_member(node_id)
            return
        except RequestRefused:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _remove(admin: ControllerAdmin, node_id: int, others: Collection[int]) -> None:
    """Remove a member; when it leads, another one leads first."""
    status = await admin.status()
    if status.leader_id == node_id:
        target = transfer_target(status, others)
        if target is not None:
            await admin.transfer(target)
    deadline = time.monotonic() + CAUGHT_UP_SECONDS_MAX
    while True:
        try:
            await admin.remove_member(node_id)
        except ClientError:
            # A change is refused while the one before is not committed, or by a leader that has just begun.
            if time.monotonic() >= deadline:
                raise
        if node_id not in {member.node_id for member in (await admin.status()).members}:
            return
        await asyncio.sleep(POLL_SECONDS)


def transfer_target(status: ControllerStatus, among: Collection[int]) -> int | None:
    """Return the voter that has most of the log, other than the leader; None when there is none."""
    found = [
        member
        for member in status.members
        if member.voter and member.node_id in among and member.node_id != status.leader_id
    ]
    return max(found, key=lambda m: (m.match_index or 0, -m.node_id)).node_id if found else None
