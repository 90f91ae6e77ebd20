"""`brokerset controller`: who belongs to the controllers, who leads, and how many there are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from brokerset_cli import rebuilding
from brokerset_cli.controller_session import Controllers, controllers_options, run
from brokerset_cli.folder import DataFolder
from brokerset_cli.options import data_option, json_option
from brokerset_cli.output import CommandFailed, counted, write_columns, write_json
from brokerset_cli.replicas import clean, elect
from brokerset_cli.scaling import changing, scale, transfer_target
from brokerset_cli.waiting import until
from brokerset_client.controller_admin import ControllerAdmin, ControllerObservation
from brokerset_client.errors import ClientError
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus
from brokerset_spec.setting_fields import address_problems

LED_SECONDS_MAX: Final = 1.0
"""Longest time until a controller leads to which the leadership was handed."""


@click.group()
def controller() -> None:
    """Look after the controllers: members, leader, number, snapshots; rebuild what they have lost."""


@controller.group(invoke_without_command=True)
@controllers_options
@json_option
@click.pass_context
def members(context: click.Context, controllers: Controllers, as_json: bool) -> None:
    """Show the members; `add`, `promote` and `remove` change them."""
    if context.invoked_subcommand is not None:
        return

    async def work(admin: ControllerAdmin) -> tuple[ControllerStatus, list[ControllerObservation]]:
        status, observed = await asyncio.gather(admin.status(), admin.observe())
        return status, observed

    status, observed = controllers.run(work)
    rows = member_rows(status, observed)
    if as_json:
        write_json({"term": status.term, "leaderId": status.leader_id, "members": rows})
        return
    write_columns(
        rows,
        {
            "node": "nodeId",
            "role": "role",
            "vote": lambda row: "yes" if row["voter"] else "learner",
            "address": "serviceAddress",
            "raft": "raftAddress",
            "last index": "matchIndex",
            "answers": lambda row: "yes" if row["answers"] else "no",
        },
    )


def member_rows(status: ControllerStatus, observed: list[ControllerObservation]) -> list[dict[str, Any]]:
    """Return the members as the leader knows them, with what each says about itself."""
    own = {
        controller.status.node_id: controller.status
        for controller in observed
        if controller.status is not None
    }
    return [
        {
            "nodeId": member.node_id,
            "role": own[member.node_id].role if member.node_id in own else None,
            "voter": member.voter,
            "serviceAddress": member.service_address,
            "raftAddress": member.raft_address,
            "matchIndex": member.match_index,
            "answers": member.node_id in own,
        }
        for member in status.members
    ]


@members.command()
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@click.argument("raft_address", metavar="RAFT")
@click.argument("service_address", metavar="SERVICE")
@controllers_options
def add(node_id: int, raft_address: str, service_address: str, controllers: Controllers) -> None:
    """Add a controller that waits for it (raftJoin=true) as a learner: its addresses RAFT and SERVICE."""
    for address in (raft_address, service_address):
        if problems := address_problems(address):
            raise click.BadParameter("; ".join(problems))

    async def work(admin: ControllerAdmin) -> ControllerMember | None:
        status = await admin.status()
        for member in status.members:
            taken = {member.raft_address, member.service_address} & {raft_address, service_address}
            if member.node_id != node_id and taken:
                raise CommandFailed(
                    f"{', '.join(sorted(taken))} belongs to member {member.node_id}; nothing was changed",
                    "give the new controller's own addresses; see `brokerset controller members`",
                )
        await admin.add_member(node_id, raft_address, service_address)
        return next((member for member in status.members if member.node_id == node_id), None)

    was = controllers.run(work)
    if was is None:
        click.echo(f"Node {node_id} receives the log. Next: brokerset controller members promote {node_id}")
        return
    click.echo(
        f"Node {node_id} was a member already, at {was.raft_address} and {was.service_address}; the members "
        f"look for it at {raft_address} and {service_address} from now on."
    )


@members.command()
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@controllers_options
def promote(node_id: int, controllers: Controllers) -> None:
    """Give the learner ID a vote; refused while it lags behind."""

    async def work(admin: ControllerAdmin) -> None:
        status = await admin.status()
        learner = next((m for m in status.members if m.node_id == node_id and not m.voter), None)
        if learner is not None:
            await _check_answers(admin, learner)
        await admin.promote_member(node_id)

    controllers.run(work)
    click.echo(f"Node {node_id} votes.")


async def _check_answers(admin: ControllerAdmin, learner: ControllerMember) -> None:
    """End the command when a learner does not run: a silent voter makes majorities harder."""
    advice = (
        "start it with raftJoin=true and without data, then repeat this; "
        f"or take it out: `brokerset controller members remove {learner.node_id}`"
    )
    try:
        there = await admin.status(learner.service_address)
    except ClientError as error:
        raise CommandFailed(f"learner {learner.node_id} gives no status: {error}", advice) from None
    if there.node_id != learner.node_id:
        raise CommandFailed(
            f"at {learner.service_address} is node {there.node_id}, not learner {learner.node_id}", advice
        )


@members.command()
@click.argument("node_id", metavar="ID", type=click.IntRange(0))
@controllers_options
def remove(node_id: int, controllers: Controllers) -> None:
    """Remove the member ID; stop its process afterwards, and never start it again with its data."""
    controllers.run(lambda admin: admin.remove_member(node_id))
    click.echo(f"Node {node_id} is no member any more. Stop its process now.")


@controller.command()
@click.option("--node", "node_id", type=click.IntRange(0), metavar="ID", help="Only this one. [default: all]")
@controllers_options
@json_option
def snapshot(node_id: int | None, controllers: Controllers, as_json: bool) -> None:
    """Let controllers write a snapshot of their state now, and truncate their logs."""

    async def work(admin: ControllerAdmin) -> tuple[dict[int, int], dict[int, str]]:
        status = await admin.status()
        chosen = [m for m in status.members if node_id in (None, m.node_id)]
        if not chosen:
            known = ", ".join(str(m.node_id) for m in status.members)
            raise CommandFailed(
                f"node {node_id} is no member, only: {known}", "see `brokerset controller members`"
            )
        written, failed = {}, {}
        for member in chosen:
            try:
                written[member.node_id] = await admin.take_snapshot(member.service_address)
            except ClientError as error:
                failed[member.node_id] = str(error)
        return written, failed

    found, failed = controllers.run(work)
    if as_json:
        write_json([{"nodeId": n, "snapshotIndex": index} for n, index in found.items()])
    else:
        for number, index in found.items():
            click.echo(f"Node {number} has everything up to entry {index} in its snapshot.")
    if failed:
        raise CommandFailed(
            "no snapshot of " + "; ".join(f"node {n}: {problem}" for n, problem in failed.items()),
            "see `brokerset controller members`, then repeat this with --node",
        )


@controller.command()
@click.argument("node_id", metavar="[ID]", type=click.IntRange(0), required=False)
@controllers_options
def transfer(node_id: int | None, controllers: Controllers) -> None:
    """Let another controller lead: ID, or the one that has most of the log."""

    async def work(admin: ControllerAdmin) -> tuple[int | None, int]:
        status = await admin.status()
        voters = [m.node_id for m in status.members if m.voter]
        target = transfer_target(status, voters) if node_id is None else node_id
        if target is None:
            raise CommandFailed(
                "there is no other voting controller", "add one: `brokerset controller scale 3`"
            )
        if target not in voters:
            raise _no_member(target, status)
        if target != status.leader_id:
            await admin.transfer(target)

            async def is_led() -> bool:
                nonlocal status
                status = await admin.status()
                return status.leader_id == target and status.leading

            await until(is_led, LED_SECONDS_MAX)
        return status.leader_id, target

    leader, target = controllers.run(work)
    if leader != target:
        raise CommandFailed(
            f"node {leader} leads, not {target}",
            "try again; `brokerset controller members` shows whether it is far behind",
        )
    click.echo(f"Node {leader} leads.")


def _no_member(node_id: int | None, status: ControllerStatus) -> CommandFailed:
    known = ", ".join(str(m.node_id) for m in status.members if m.voter)
    return CommandFailed(
        f"node {node_id} is no voting member, only: {known}", "see `brokerset controller members`"
    )


@controller.command("scale")
@click.argument("count", metavar="N", type=click.IntRange(1, 7))
@data_option
@json_option
def scale_command(count: int, data: Path, as_json: bool) -> None:
    """Run N controllers in the local set from now on, while everything goes on.

    New ones are started, receive the log and get a vote, one after the other; when there are too many, the
    newest leave and are stopped. Whatever an interrupted call left half done is finished.
    """
    folder = DataFolder(data)
    with changing(folder) as state:
        status = run(
            state.controllers,
            lambda admin: scale(admin, folder, count, lambda text: click.echo(text, err=as_json)),
        )
    if as_json:
        write_json(status.to_object())
        return
    click.echo(f"{counted(count, 'controller')}; node {status.leader_id} leads in term {status.term}.")
    if count % 2 == 0:
        click.echo(f"Note: {count} survive the loss of no more of them than {count - 1} do.")
    click.echo(f"Write controllers: {{replicas: {count}}} into your manifest as well.")


controller.add_command(rebuilding.rebuild)
controller.add_command(clean)
controller.add_command(elect)
