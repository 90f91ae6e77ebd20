"""`brokerset switchover`, `fence` and `unfence`: who is master, and who may be, on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import click

from brokerset_cli.controller_session import Controllers, controllers_options, one_group, one_replica
from brokerset_cli.ledger_session import LedgerAdmin
from brokerset_cli.options import json_option
from brokerset_cli.output import CommandFailed, write_json
from brokerset_cli.waiting import until
from brokerset_client.controller_admin import SWITCH_OVER_SECONDS, ControllerAdmin
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, RequestRefused
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.headers.controller import SwitchOverResponse

SETTLE_SECONDS_MAX: Final = 10.0
"""Longest time until the others follow a new master; after that the fence itself is refused or not."""


def address_of(state: GroupState, broker_id: int | None) -> str:
    """Address of a replica as the controllers know it; empty for one that they do not."""
    return next((each.address for each in state.replicas if each.broker_id == broker_id), "")


class SwitchOverAdmin(Protocol):
    """Who asks a master to hand over: `ControllerAdmin`, or `LedgerAdmin`."""

    async def switch_over(
        self, group: str, broker_id: int | None = None, *, timeout: float = SWITCH_OVER_SECONDS
    ) -> SwitchOverResponse:
        """Have the master of a group hand over."""


async def hand_over(
    admin: SwitchOverAdmin, state: GroupState, to: int | None, timeout: float = SWITCH_OVER_SECONDS
) -> SwitchOverResponse:
    """Let the master hand over to another replica; ends the command with what to do when it cannot.

    `state` is the group as the controllers, or its members, know it now; `timeout` is in seconds.
    """
    name, elects_itself = state.broker_name, isinstance(admin, LedgerAdmin)
    if state.master_id is None:
        raise CommandFailed(
            f"{name} has no master that could hand over: {state.advice or 'the controllers give no reason'}",
            "see `brokerset status`" + ("" if elects_itself else f"; `brokerset elect {name}` elects one"),
        )
    others = [n for n in state.sync_state_set if n != state.master_id]
    if to is not None:
        one_replica(state, to)
    if not others or (to is not None and to not in others):
        who = f"no other replica of {name} is" if to is None else f"{name}/{to} is not"
        raise CommandFailed(
            f"{who} in sync with master {state.master_id}; nothing was changed",
            "wait until `brokerset status` shows it in sync: only such a replica has everything",
        )
    try:
        return await admin.switch_over(name, to, timeout=timeout)
    except RequestRefused as error:
        then = (
            "the others then elect another one"
            if elects_itself
            else f"the controllers then elect another one, as `brokerset elect {name}` does"
        )
        raise CommandFailed(
            f"{name}/{state.master_id} did not hand over: {error}",
            f"it is master as before; see `brokerset status`, then try again. If it hangs, end its process: "
            f"{then}",
        ) from None
    except (BrokerUnreachable, AnswerTimeout) as error:
        raise CommandFailed(
            f"{name}/{state.master_id} at {address_of(state, state.master_id)} gave no answer: {error}",
            "see `brokerset status` who is master now; sends go on with that one",
        ) from None


async def step_down(
    admin: ControllerAdmin, state: GroupState, broker_id: int, say: Callable[[str], None]
) -> GroupState:
    """Let another replica be master if this one is; returns the group afterwards. Raises `CommandFailed`.

    Waits until those that were in sync with this one are with the new master: were it fenced before that,
    sends could be refused for a moment because too few are in sync.
    """
    if state.master_id != broker_id:
        return state
    done = await hand_over(admin, state, None)
    name = state.broker_name
    say(f"{name}/{broker_id} was master; {name}/{done.master_broker_id} is master now")
    others = set(state.sync_state_set) - {broker_id}

    async def has_settled() -> bool:
        nonlocal state
        state = await one_group(admin, name)
        return others <= set(state.sync_state_set)

    await until(has_settled, SETTLE_SECONDS_MAX)
    return state


async def fence_replica(
    admin: ControllerAdmin, name: str, broker_id: int, *, force: bool, say: Callable[[str], None]
) -> None:
    """Fence a replica; when it is master another one becomes master first.

    With `force` a master is fenced although nobody can take its place: its group then has none.
    """
    state = await one_group(admin, name)
    one_replica(state, broker_id)
    try:
        state = await step_down(admin, state, broker_id, say)
    except CommandFailed as error:
        if not force:
            raise CommandFailed(
                f"{name}/{broker_id} is master, and could not hand over: {error.message}",
                f"{error.advice}. Or give --force: {name} then has no master until it is unfenced",
            ) from None
        say(f"{name}/{broker_id} is master and cannot hand over ({error.message}); it is fenced by force")
    try:
        await admin.fence(name, broker_id, force=force)
    except RequestRefused as error:
        raise CommandFailed(
            f"{name}/{broker_id} was not fenced: {error}",
            "let another replica get in sync first, see `brokerset status`; or give --force: sends are then "
            "refused while too few are in sync",
        ) from None


@click.command()
@click.argument("group")
@click.option(
    "--to", type=click.IntRange(0), metavar="ID", help="The new master. [default: who has most of the log]"
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(100, 60_000),
    metavar="MS",
    default=round(SWITCH_OVER_SECONDS * 1000),
    show_default=True,
    help="Sends are held at most so long; then everything stays as it was.",
)
@click.option(
    "--namesrv",
    metavar="HOST:PORT",
    help="Name servers of a DLedger group, with ; between them: such a group has no controllers. "
    "[default: the set in --data]",
)
@controllers_options
@json_option
def switchover(
    group: str,
    to: int | None,
    timeout_ms: int,
    namesrv: str | None,
    controllers: Controllers,
    as_json: bool,
) -> None:
    """Let another in-sync replica of GROUP be master; sends wait a moment and none fails.

    The controllers name the master. Of a DLedger group, which has none, the members are asked who leads.
    """

    async def switch(
        admin: SwitchOverAdmin, state: GroupState
    ) -> tuple[GroupState, SwitchOverResponse | None]:
        if to is not None and state.master_id == to:
            return state, None
        return state, await hand_over(admin, state, to, timeout_ms / 1000)

    async def by_controllers(admin: ControllerAdmin) -> tuple[GroupState, SwitchOverResponse | None]:
        return await switch(admin, await one_group(admin, group))

    async def by_members(admin: LedgerAdmin) -> tuple[GroupState, SwitchOverResponse | None]:
        return await switch(admin, await admin.one_group(group))

    if namesrv is not None or controllers.has_ledgers:
        before, done = controllers.run_at_members(namesrv, by_members)
    else:
        before, done = controllers.run(by_controllers)
    new_id = before.master_id if done is None else done.master_broker_id
    epoch = before.master_epoch if done is None else done.master_epoch
    address = (done.master_address if done is not None else None) or address_of(before, new_id)
    if as_json:
        write_json(
            {
                "group": group,
                "oldMasterId": before.master_id,
                "oldMasterAddress": address_of(before, before.master_id),
                "masterId": new_id,
                "masterAddress": address,
                "masterEpoch": epoch,
                "pauseMs": None if done is None else done.pause_ms,
                "changed": done is not None,
            }
        )
    elif done is None:
        click.echo(f"{group}/{new_id} at {address} is master already, epoch {epoch}.")
    else:
        pause = "" if done.pause_ms is None else f"; sends waited {done.pause_ms} ms"
        click.echo(
            f"{group}/{before.master_id} at {address_of(before, before.master_id)} was master, "
            f"{group}/{new_id} at {address} is master now, epoch {epoch}{pause}."
        )


@click.command()
@click.argument("group")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0))
@click.option(
    "--force", is_flag=True, help="Also when fewer than minInSyncReplicas, or nobody, can serve without it."
)
@controllers_options
@json_option
def fence(group: str, broker_id: int, force: bool, controllers: Controllers, as_json: bool) -> None:
    """Let the replica ID of GROUP serve nobody: it is not elected and not waited for, but follows.

    When it is master, another one becomes master first. `brokerset unfence` ends that.
    """
    said: list[str] = []

    async def work(admin: ControllerAdmin) -> GroupState:
        await fence_replica(admin, group, broker_id, force=force, say=said.append)
        return await one_group(admin, group)

    state = controllers.run(work)
    _show_fenced(state, broker_id, said, fenced=True, as_json=as_json)


@click.command()
@click.argument("group")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0))
@controllers_options
@json_option
def unfence(group: str, broker_id: int, controllers: Controllers, as_json: bool) -> None:
    """Let the replica ID of GROUP take part again: it gets in sync, and can be elected."""

    async def work(admin: ControllerAdmin) -> GroupState:
        state = await one_group(admin, group)
        one_replica(state, broker_id)
        await admin.fence(group, broker_id, fenced=False)
        return await one_group(admin, group)

    state = controllers.run(work)
    _show_fenced(state, broker_id, [], fenced=False, as_json=as_json)


def _show_fenced(state: GroupState, broker_id: int, said: list[str], *, fenced: bool, as_json: bool) -> None:
    name = state.broker_name
    if as_json:
        write_json(
            {
                "group": name,
                "brokerId": broker_id,
                "fenced": fenced,
                "masterId": state.master_id,
                "masterEpoch": state.master_epoch,
                "notes": said,
            }
        )
        return
    for text in said:
        click.echo(f"{text}.")
    if fenced:
        click.echo(f"{name}/{broker_id} is fenced. Take it back with: brokerset unfence {name} {broker_id}")
    else:
        click.echo(f"{name}/{broker_id} takes part again; `brokerset status` shows when it is in sync.")
