"""`brokerset scale`: runs more or fewer brokers of a group while clients go on, one broker at a time."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from brokerset_cli.controller_session import one_group, run
from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.options import data_option, json_option
from brokerset_cli.output import CommandFailed, counted, fail, write_json
from brokerset_cli.replication_view import fetch_broker_facts, lag_of, master_facts
from brokerset_cli.scaling import changing, request_processes, running_state
from brokerset_cli.switchover import step_down
from brokerset_client.admin import Admin
from brokerset_client.controller_admin import NOT_SERVED, ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_runtime.files import sync_folder
from brokerset_spec.dledger_mode import FIXED_REPLICAS, FIXED_REPLICAS_ADVICE
from brokerset_spec.manifest import REPLICAS_MAX, least_in_sync
from brokerset_spec.plan import broker_folder, broker_process, more_numbers

REGISTER_SECONDS_MAX: Final = 60.0
"""Longest time until the controllers know every broker that runs here."""

STALL_SECONDS_MAX: Final = 60.0
"""When nothing was received for so long, it is given up; a long log may take any time."""

FORGET_SECONDS_MAX: Final = 10.0
"""Longest time until a stopped broker has left the in-sync set and is forgotten."""

POLL_SECONDS: Final = 0.1
SAY_SECONDS: Final = 2.0
"""How often it is said how far a new broker is."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Member:
    """A broker process of the group, with the replica that it is to the controllers."""

    number: int
    process: ProcessState
    replica: ReplicaState | None
    """None while it has not registered."""

    @property
    def broker_id(self) -> int:
        """Its id; -1 while it has none."""
        return -1 if self.replica is None else self.replica.broker_id


def members_of(state: SetState, group: GroupState) -> tuple[Member, ...]:
    """The brokers of a group that run here, by their number."""
    by_address = {each.address: each for each in group.replicas}
    found = [
        Member(_number(process), process, by_address.get(process.address))
        for process in state.processes
        if process.kind == "broker" and process.group == group.broker_name
    ]
    return tuple(sorted(found, key=lambda member: member.number))


def _number(process: ProcessState) -> int:
    return int(process.name.rpartition("-")[2])


def next_to_leave(members: Collection[Member], group: GroupState) -> Member:
    """Who goes next: never the master; first who has no id, then who is not in sync, then the highest id."""
    going = [member for member in members if member.broker_id != group.master_id]
    return max(
        going,
        key=lambda m: (m.replica is None, m.broker_id not in group.sync_state_set, m.broker_id, m.number),
    )


def left_over(members: Collection[Member], group: GroupState) -> tuple[int, ...]:
    """Ids of replicas that are fenced, dead, and have no process here: an interrupted call left them.

    Nobody while a process is not known to the controllers: it may be one of these, at another address.
    """
    if any(member.replica is None for member in members):
        return ()
    here = {member.broker_id for member in members}
    return tuple(
        each.broker_id
        for each in group.replicas
        if each.broker_id not in here and each.standing == "dead" and each.broker_id in group.fenced
    )


def stay_in_sync(group: GroupState, leaving: int) -> int:
    """How many are alive and in sync when a replica has left."""
    living = {each.broker_id for each in group.replicas if each.standing == "alive"}
    return sum(broker_id != leaving and broker_id in living for broker_id in group.sync_state_set)


def is_led(group: GroupState) -> bool:
    """Whether a master lives, as far as the controllers know."""
    return any(each.broker_id == group.master_id and each.standing == "alive" for each in group.replicas)


@dataclass(slots=True)
class GroupScaling:
    """One call of the command."""

    admin: ControllerAdmin
    folder: DataFolder
    group: str
    say: Say
    below: bool
    """Whether fewer in sync than the minimum are accepted."""
    purge: bool
    state: SetState
    """What runs, as it was read last."""

    async def scale(self, wanted: int) -> GroupState:
        """Come to `wanted` brokers; returns the group afterwards. Can be repeated after a failure."""
        chosen = self.state.min_in_sync
        if chosen is not None and wanted < chosen and not self.below:
            raise CommandFailed(
                f"the manifest says minInSyncReplicas: {chosen}, and {wanted} brokers can "
                "never be so many; nothing was changed",
                "change the manifest, or give --below-minimum: then so many brokers as there are must have a "
                "message",
            )
        group, members = await self._registered()
        await self._forget(group, left_over(members, group))
        if wanted >= len(members):
            await self._grow(members, wanted)
        else:
            await self._shrink(len(members), wanted)
        return await one_group(self.admin, self.group)

    # -- more ---------------------------------------------------------------------------------------------

    async def _grow(self, members: Collection[Member], wanted: int) -> None:
        before = {member.number for member in members}
        numbers = more_numbers(before, wanted)
        new = [number for number in numbers if number not in before]
        if new:
            names = ", ".join(broker_process(self.group, number) for number in new)
            self.say(f"starting {names}")
            self.state = await request_processes(self.folder, self.state, brokers={self.group: numbers})
        await self._until_in_sync(new, self._least(wanted))
        await self._set_minimum(self._least(wanted))

    async def _until_in_sync(self, numbers: Collection[int], least: int) -> None:
        """Wait until these brokers are in sync, and so many as a send needs; says how far they are."""
        said: dict[int, float] = {}
        done: set[int] = set()
        best: dict[int, int] = {}
        moved = time.monotonic()
        while True:
            group, members = await self._observe()
            facts = await fetch_broker_facts(each.address for each in group.replicas if each.address)
            master = master_facts(group, facts)
            for member in members:
                if member.number not in numbers or member.number in done or member.replica is None:
                    continue
                name = f"{member.process.name} ({self.group}/{member.broker_id})"
                if member.broker_id in group.sync_state_set:
                    done.add(member.number)
                    moved = time.monotonic()
                    self.say(f"{name} is in sync")
                    continue
                own = facts.get(member.process.address)
                end = own.max_offset if own is not None and own.max_offset is not None else 0
                if end > best.get(member.number, -1):
                    best[member.number], moved = end, time.monotonic()
                lag = lag_of(member.replica, facts, master)
                if lag is not None and time.monotonic() - said.get(member.number, 0.0) >= SAY_SECONDS:
                    said[member.number] = time.monotonic()
                    problem = f": {own.problem}" if own is not None and own.problem else ""
                    self.say(f"{name} is {lag:,} bytes behind{problem}")
            if len(done) == len(set(numbers)) and len(group.sync_state_set) >= least:
                return
            if time.monotonic() - moved >= STALL_SECONDS_MAX:
                raise CommandFailed(
                    f"{len(group.sync_state_set)} of {self.group} in sync, and nothing has moved for "
                    f"{STALL_SECONDS_MAX:g} s",
                    "see `brokerset status` why the others do not follow, then repeat this",
                )
            await asyncio.sleep(POLL_SECONDS)

    # -- fewer --------------------------------------------------------------------------------------------

    async def _shrink(self, count: int, wanted: int) -> None:
        for rest in range(count - 1, wanted - 1, -1):
            least = self._least(rest)
            if least < self._least(rest + 1):
                await self._set_minimum(least)
            group, members = await self._registered()
            await self._take_out(next_to_leave(members, group), group, members, least)

    async def _take_out(
        self, member: Member, group: GroupState, members: Collection[Member], least: int
    ) -> None:
        """Fence, stop and forget one broker, and put its folder aside."""
        name = member.process.name
        if member.replica is not None:
            staying = stay_in_sync(group, member.broker_id)
            if staying < least and not self.below:
                raise CommandFailed(
                    f"only {staying} of {self.group} would stay in sync without {name}, and sends need "
                    f"{least}; {name} was not touched",
                    "wait until more are in sync, see `brokerset status`; --below-minimum does not wait",
                )
            # The controllers may still count with the minimum of the larger group: this one was checked here.
            group = await step_down(self.admin, group, member.broker_id, self.say)
            await self._fence(member)
        rest = [each.number for each in members if each.number != member.number]
        self.state = await request_processes(self.folder, self.state, brokers={self.group: rest})
        self.say(f"{name} has stopped")
        if member.replica is not None:
            await self._forget(group, (member.broker_id,))
        self._put_aside(name)

    async def _fence(self, member: Member) -> None:
        """Let a broker serve nobody. Java's controllers know no fence: the end of its process is one."""
        try:
            await self.admin.fence(self.group, member.broker_id, force=True)
        except RequestRefused as error:
            if error.code not in NOT_SERVED:
                raise
        else:
            self.say(f"{member.process.name} ({self.group}/{member.broker_id}) serves nobody any more")

    async def _forget(self, group: GroupState, ids: Collection[int]) -> None:
        """Let the controllers forget replicas that have stopped, once they have left the in-sync set."""
        if not ids:
            return
        deadline = time.monotonic() + FORGET_SECONDS_MAX
        while True:
            waits = time.monotonic() < deadline
            group = await one_group(self.admin, self.group)
            if not set(ids) & set(group.sync_state_set) or not waits:
                try:
                    await self.admin.clean(group, sorted(ids), living=not self.state.guest)
                    break
                except ClientError:
                    if not waits:
                        raise
            await asyncio.sleep(POLL_SECONDS)
        for broker_id in sorted(ids):
            self.say(f"{self.group}/{broker_id} is forgotten; its id is not given again")

    def _put_aside(self, name: str) -> None:
        folder = broker_folder(self.folder.path, name)
        try:
            if self.purge:
                shutil.rmtree(folder)
                self.say(f"{folder} is deleted")
                return
            aside = folder.with_name(f"{name}.aside-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}")
            folder.rename(aside)
            sync_folder(aside.parent)
            self.say(f"its messages are kept in {aside}")
        except OSError as error:
            fail(
                f"{error.filename or folder} cannot be moved or deleted: {error.strerror}",
                "move it away before you scale up again: its id is given up, so its broker would not start",
            )

    # -- both ---------------------------------------------------------------------------------------------

    def _least(self, replicas: int) -> int:
        return least_in_sync(self.state.min_in_sync, replicas)

    async def _observe(self) -> tuple[GroupState, tuple[Member, ...]]:
        """The group and its processes now; ends the command when `up` has ended."""
        self.state = running_state(self.folder)
        group = await one_group(self.admin, self.group)
        return group, members_of(self.state, group)

    async def _registered(self) -> tuple[GroupState, tuple[Member, ...]]:
        """The same, once the controllers know every process and a master lives."""
        deadline = time.monotonic() + REGISTER_SECONDS_MAX
        while True:
            group, members = await self._observe()
            if not members:
                raise CommandFailed(
                    f"no broker of {self.group} runs in {self.folder.path}",
                    "name a group of this set; see `brokerset status`",
                )
            known = all(member.replica is not None for member in members)
            if known and is_led(group):
                return group, members
            if time.monotonic() >= deadline:
                silent = [member.process.name for member in members if member.replica is None]
                what = f"{', '.join(silent)} not registered" if silent else "it has no living master"
                raise CommandFailed(
                    f"{self.group} cannot be scaled: {what}", "see `brokerset status`, then repeat this"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _set_minimum(self, least: int) -> None:
        """Set how many must be in sync at the running brokers; those that are down read it at their start."""
        group, members = await self._observe()
        async with Admin(namesrv=self.state.namesrv) as brokers:
            for member in members:
                try:
                    await brokers.update_broker_config(
                        member.process.address, {"minInSyncReplicas": str(least)}
                    )
                except ClientError as error:
                    if member.broker_id == group.master_id:
                        raise
                    self.say(f"{member.process.name} reads minInSyncReplicas={least} when it starts: {error}")


@click.command()
@click.argument("group")
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    required=True,
    metavar="N",
    help=f"How many brokers the group is to have, 1 to {REPLICAS_MAX}.",
)
@click.option(
    "--below-minimum", is_flag=True, help="Go on although fewer stay in sync than minInSyncReplicas asks for."
)
@click.option(
    "--purge", is_flag=True, help="Delete the folders of brokers that leave; else they are kept aside."
)
@data_option
@json_option
def scale(group: str, replicas: int, below_minimum: bool, purge: bool, data: Path, as_json: bool) -> None:
    """Run N brokers of GROUP in the local set from now on, while everything goes on.

    New ones are started and receive the log; this returns when they are in sync. When there are too many, one
    after the other leaves, never the master. Whatever an interrupted call left half done is finished.
    """
    folder = DataFolder(data)

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    async def work(admin: ControllerAdmin) -> GroupState:
        scaling = GroupScaling(admin, folder, group, say, below_minimum, purge, running_state(folder))
        return await scaling.scale(replicas)

    with changing(folder) as state:
        if state.is_dledger:
            raise CommandFailed(f"{group} cannot be scaled: {FIXED_REPLICAS}", FIXED_REPLICAS_ADVICE)
        found = run(state.controllers, work)
    least = least_in_sync(state.min_in_sync, replicas)
    if as_json:
        write_json({**found.to_object(), "minInSyncReplicas": least})
        return
    _show(found, replicas, least, {each.address: each.name for each in running_state(folder).processes})


def _show(group: GroupState, replicas: int, least: int, names: Mapping[str, str]) -> None:
    in_sync = ", ".join(map(str, group.sync_state_set)) or "nobody"
    master = next((names.get(r.address) for r in group.replicas if r.broker_id == group.master_id), None)
    click.echo(
        f"{group.broker_name} has {counted(replicas, 'broker')}; in sync: {in_sync}; master: "
        f"{group.master_id} ({master or 'not here'}); sends need {least} in sync."
    )
    if replicas == 1:
        click.echo("Note: there is no copy of its messages any more.")
    click.echo(f"Write replicas: {replicas} into your manifest as well.")
