"""`brokerset group`: create, list, describe, delete consumer groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.group_consumers import consume_directly, resume, status, suspend
from brokerset_cli.group_offsets import clone_offsets, reset_offsets
from brokerset_cli.options import at_cluster_option, json_option, number_option, yes_option
from brokerset_cli.output import CommandFailed, counted, write_columns, write_json, write_names
from brokerset_cli.topics import moment
from brokerset_client.admin import Admin, GroupProgress
from brokerset_client.consumer_admin import ConsumerAdmin
from brokerset_client.errors import GroupOffline, NoQueue, RequestRefused, TopicNotFound
from brokerset_formats import names
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_protocol.bodies.connections import Connection


@click.group()
def group() -> None:
    """Create, list, describe and delete consumer groups; watch their consumers, and move them."""


for command in (
    status, suspend, resume, consume_directly,
    reset_offsets, clone_offsets,
):  # fmt: skip
    group.add_command(command)


@group.command()
@click.argument("name")
@number_option("--retries", "Failures after which a message goes to the dead-letter topic.", -1, default=16)
@click.option("--orderly", is_flag=True, help="Its consumers handle each queue in order.")
@at_cluster_option
@click.option("--update", is_flag=True, help="Change the group if it exists.")
@cluster_options
@json_option
def create(
    name: str,
    retries: int,
    orderly: bool,
    at_cluster: str | None,
    update: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Create the consumer group NAME at every broker group."""
    problem = names.check_group(name)
    if problem is None and names.is_system_group(name):
        problem = f"groups like {name} are made by brokers for themselves; choose another name"
    if problem is not None:
        raise click.BadParameter(problem, param_hint="NAME")
    config = SubscriptionGroupConfig(name, retry_max_times=retries, consume_message_orderly=orderly)

    async def work(admin: Admin) -> None:
        wanted = config
        if name in await admin.groups(at_cluster):
            if not update:
                raise CommandFailed(
                    f"group {name} exists already", "use --update to change it, or another name"
                )
            wanted = replace(config, consume_enable=not await ConsumerAdmin(admin).suspended_at(name))
        await admin.create_group(wanted, cluster=at_cluster)

    cluster.administer(work)
    if as_json:
        write_json({"group": name, "retries": retries, "orderly": orderly})
    else:
        click.echo(f"Group {name} is there.")


@group.command("list")
@click.option("--all", "with_system", is_flag=True, help="Also the groups that brokers make for themselves.")
@cluster_options
@json_option
def list_groups(with_system: bool, cluster: Cluster, as_json: bool) -> None:
    """List the consumer groups that the brokers know."""

    async def work(admin: Admin) -> list[str]:
        found = await admin.groups()
        return [name for name in found if with_system or not names.is_system_group(name)]

    found = cluster.administer(work)
    empty = "There are no groups. The first consumer of one makes it, or: brokerset group create NAME"
    write_names(found, "group", as_json=as_json, empty=empty)


@group.command(short_help="Show the members of the group NAME, and how far it is.")
@click.argument("name")
@cluster_options
@json_option
def describe(name: str, cluster: Cluster, as_json: bool) -> None:
    """Show who consumes for the group NAME, and how far it is in each queue."""

    async def work(admin: Admin) -> dict[str, Any]:
        if name not in await admin.groups():
            raise CommandFailed(
                f"no broker knows the group {name}",
                f"see `brokerset group list`, or `brokerset group create {name}`",
            )
        members, progress = await _members(admin, name), await _progress(admin, name)
        return {
            "group": name,
            "lag": sum(item.lag for item in progress),
            "suspendedAt": await ConsumerAdmin(admin).suspended_at(name),
            "members": [
                {"clientId": m.client_id, "address": m.client_addr, "language": m.language} for m in members
            ],
            "queues": [
                {
                    "topic": item.queue.topic,
                    "broker": item.queue.broker_name,
                    "queueId": item.queue.queue_id,
                    "brokerOffset": item.broker_offset,
                    "consumerOffset": item.consumer_offset,
                    "lag": item.lag,
                    "inFlight": item.in_flight,
                    "lastTimestamp": item.last_timestamp_ms,
                }
                for item in sorted(progress, key=lambda item: item.queue)
            ],
        }

    found = cluster.administer(work)
    if as_json:
        write_json(found)
        return
    members = counted(len(found["members"]), "member")
    click.echo(f"Group {name}, {members}, {counted(found['lag'], 'message')} behind")
    if found["suspendedAt"]:
        where = ", ".join(found["suspendedAt"])
        click.echo(f"It is suspended at {where}: `brokerset group resume {name}` lets it consume.")
    write_columns(
        found["members"],
        {"member": "clientId", "address": "address", "language": "language"},
        empty="Nobody consumes for it now.",
    )
    click.echo()
    write_columns(
        found["queues"],
        {
            "topic": "topic",
            "broker": "broker",
            "queue": "queueId",
            "written": "brokerOffset",
            "consumed": "consumerOffset",
            "lag": "lag",
            "in flight": "inFlight",
            "last consumed": lambda queue: moment(queue["lastTimestamp"]),
        },
        empty="It has not consumed anything yet.",
    )


async def _members(admin: Admin, name: str) -> tuple[Connection, ...]:
    """Return the members that are online; a group without any is no error."""
    try:
        return (await admin.consumer_connections(name)).connection_set
    except (RequestRefused, TopicNotFound, NoQueue, GroupOffline):
        return ()


async def _progress(admin: Admin, name: str) -> list[GroupProgress]:
    """Return how far the group is; one that has not consumed anything is no error."""
    try:
        return await admin.consume_progress(name)
    except (GroupOffline, TopicNotFound):
        return []


@group.command(short_help="Delete the consumer group NAME and its offsets.")
@click.argument("name")
@at_cluster_option
@yes_option
@cluster_options
def delete(name: str, at_cluster: str | None, yes: bool, cluster: Cluster) -> None:
    """Delete the consumer group NAME and its offsets: a group of this name starts from scratch."""

    async def work(admin: Admin) -> None:
        if name not in await admin.groups(at_cluster):
            raise CommandFailed(f"no broker knows the group {name}", "see `brokerset group list`")
        online = await _members(admin, name)
        if online:
            raise CommandFailed(
                f"{name} has {counted(len(online), 'consumer')} online",
                "stop them first; they would create it again",
            )
        if not yes:
            click.confirm(f"Delete the group {name} and its offsets?", abort=True)
        await admin.delete_group(name, cluster=at_cluster)

    cluster.administer(work)
    click.echo(f"Deleted group {name}.")
