"""`brokerset topic`: create, list, describe, rebalance, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.options import at_cluster_option, json_option, number_option, yes_option
from brokerset_cli.output import (
    CommandFailed,
    camel_json,
    camel_name,
    counted,
    write_columns,
    write_json,
    write_names,
)
from brokerset_cli.topic_rebalancing import (
    MESSAGE_TYPE,
    Rebalance,
    is_made_by_clients,
    own_topics,
    rebalance_topics,
)
from brokerset_client.admin import Admin
from brokerset_client.errors import TopicNotFound
from brokerset_formats import names
from brokerset_formats.config import Permission, TopicConfig
from brokerset_protocol.bodies.routes import TopicRouteData

DEFAULT_QUEUES: Final = 8
"""Queues of a new topic at each broker group, RocketMQ's number for topics that `mqadmin` creates."""

MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
"""What the messages of a topic may be; brokers take MIXED with `enableMixedMessageType`."""

QUEUES_MAX: Final = 1024
"""Most queues at one broker group."""


@click.group()
def topic() -> None:
    """Create, list, describe, rebalance and delete topics."""


@topic.command()
@click.argument("name")
@number_option("--queues", "Queues at each broker group.", 1, QUEUES_MAX, default=DEFAULT_QUEUES)
@at_cluster_option
@click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="Type of its messages; brokers take NORMAL if nobody says it.",
)
@click.option("--update", is_flag=True, help="Change the topic if it exists.")
@cluster_options
@json_option
def create(
    name: str,
    queues: int,
    at_cluster: str | None,
    message_type: str | None,
    update: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Create the topic NAME at every broker group."""
    problem = names.check_topic(name)
    if problem is not None:
        raise click.BadParameter(problem, param_hint="NAME")

    async def work(admin: Admin) -> TopicRouteData:
        return await create_topic(admin, name, queues, at_cluster, update, message_type)

    route = cluster.administer(work)
    if as_json:
        write_json(route_json(name, route))
    else:
        where = (f"{counted(q.write_queue_nums, 'queue')} at {q.broker_name}" for q in route.queue_datas)
        click.echo(f"Topic {name} is there: {', '.join(where)}")


async def create_topic(
    admin: Admin,
    name: str,
    queues: int,
    at_cluster: str | None,
    update: bool,
    message_type: str | None = None,
) -> TopicRouteData:
    """Create a topic and wait until the name server shows it; ends the command when it exists already."""
    try:
        await admin.topic_route(name)
    except TopicNotFound:
        pass
    else:
        if not update:
            raise CommandFailed(f"topic {name} exists already", "use --update to change it, or another name")
    groups = len(await admin.masters(at_cluster))
    attributes = {f"+{MESSAGE_TYPE}": message_type} if message_type else {}
    await admin.create_topic(
        TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, attributes=attributes),
        cluster=at_cluster,
    )
    return await admin.wait_for_route(name, write_queues=queues * groups)


@topic.command("list")
@click.option("--all", "with_system", is_flag=True, help="Also the topics that brokers make for themselves.")
@cluster_options
@json_option
def list_topics(with_system: bool, cluster: Cluster, as_json: bool) -> None:
    """List the topics that the name server knows."""

    async def work(admin: Admin) -> list[str]:
        found = await admin.topics()
        if with_system:
            return found
        info = await admin.cluster_info()
        return [name for name in found if is_made_by_clients(name, own_topics(info))]

    found = cluster.administer(work)
    empty = "There are no topics. Make one: brokerset topic create NAME"
    write_names(found, "topic", as_json=as_json, empty=empty)


@topic.command()
@click.argument("name")
@cluster_options
@json_option
def describe(name: str, cluster: Cluster, as_json: bool) -> None:
    """Show where the topic NAME is, its queues and who consumes it."""

    async def work(admin: Admin) -> dict[str, Any]:
        route = await admin.topic_route(name)
        stats = await admin.topic_stats(name)
        groups = await admin.groups_of_topic(name)
        queues = [
            {
                "broker": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": ends.min_offset,
                "maxOffset": ends.max_offset,
                "messages": ends.max_offset - ends.min_offset,
                "lastUpdateTimestamp": ends.last_update_timestamp,
            }
            for queue, ends in sorted(stats.items())
        ]
        where = route_json(name, route)
        for broker in where["brokers"]:
            broker["messageType"] = await message_type_at(admin, name, broker["address"])
        return {**where, "groups": groups, "queues": queues}

    found = cluster.administer(work)
    if as_json:
        write_json(found)
        return
    click.echo(f"Topic {name}, {counted(sum(queue['messages'] for queue in found['queues']), 'message')}")
    columns = ("broker", "address", "read queues", "write queues", "permission", "message type")
    write_columns(found["brokers"], {title: camel_name(title.replace(" ", "_")) for title in columns})
    click.echo()
    write_columns(
        found["queues"],
        {
            "broker": "broker",
            "queue": "queueId",
            "first": "minOffset",
            "next": "maxOffset",
            "messages": "messages",
            "last message": lambda queue: moment(queue["lastUpdateTimestamp"]),
        },
    )
    click.echo(f"\nConsumer groups: {', '.join(found['groups']) or 'none'}")


@topic.command(short_help="Give topics queues on broker groups that were added.")
@click.argument("chosen", nargs=-1, metavar="[NAME]...")
@click.option("--all", "every", is_flag=True, help="All topics but those that brokers make for themselves.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@at_cluster_option
@yes_option
@cluster_options
@json_option
def rebalance(
    chosen: tuple[str, ...],
    every: bool,
    dry_run: bool,
    at_cluster: str | None,
    yes: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Make topics on the broker groups that lack them, so that all groups share their messages.

    A topic gets the settings and queues that it has elsewhere, and its consumer groups their settings.
    Messages that are stored stay where they are. To do it again is harmless. Topics that promise an order
    within queues are refused, as their keys would go to other queues.
    """
    if bool(chosen) == every:
        raise click.UsageError("name topics, or give --all")

    def confirm(number: int) -> None:
        if not yes:
            click.confirm(
                f"Give {counted(number, 'topic')} more queues? A producer that chooses a queue by a key will "
                "choose another one for most keys; orderly consumers may then handle newer messages of a key "
                "before older ones.",
                abort=True,
                err=as_json,
            )

    async def work(admin: Admin) -> list[Rebalance]:
        return await rebalance_topics(admin, chosen, at_cluster, None if dry_run else confirm)

    found = cluster.administer(work)
    if as_json:
        write_json(camel_json(found))
        return
    columns: dict[str, Callable[[Rebalance], object]] = {
        "topic": lambda each: each.topic,
        "queues now" if dry_run else "queues before": lambda each: _queues(each.before),
        "queues to be" if dry_run else "queues now": lambda each: _queues(each.after),
        "note": lambda each: each.refusal or None,
    }
    write_columns(found, columns, empty="There are no topics.")
    if not any(each.missing for each in found):
        click.echo("\nNothing to do: every group that takes new topics has them.")


def _queues(of: Mapping[str, int]) -> str:
    return ", ".join(f"{group} {number}" for group, number in of.items())


@topic.command()
@click.argument("name")
@at_cluster_option
@yes_option
@cluster_options
def delete(name: str, at_cluster: str | None, yes: bool, cluster: Cluster) -> None:
    """Delete the topic NAME with all its messages."""

    async def work(admin: Admin) -> None:
        await admin.topic_route(name)  # one that is not there is an error
        if not yes:
            click.confirm(f"Delete the topic {name} with all its messages?", abort=True)
        await admin.delete_topic(name, cluster=at_cluster)

    cluster.administer(work)
    click.echo(f"Deleted topic {name}.")


async def message_type_at(admin: Admin, name: str, address: str | None) -> str | None:
    """The type of a topic's messages as a broker has it: NORMAL if nobody said one, None without a master."""
    if address is None:
        return None
    config = await admin.topic_config(name, address)
    return config.attributes.get(MESSAGE_TYPE, "NORMAL")


def route_json(name: str, route: TopicRouteData) -> dict[str, Any]:
    """Return where a topic is, for scripts."""
    addresses = {broker.broker_name: broker for broker in route.broker_datas}
    return {
        "topic": name,
        "brokers": [
            {
                "broker": queue.broker_name,
                "address": master.master_address() if (master := addresses.get(queue.broker_name)) else None,
                "readQueues": queue.read_queue_nums,
                "writeQueues": queue.write_queue_nums,
                "permission": permission_text(queue.perm),
            }
            for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name)
        ],
    }


def permission_text(bits: int) -> str:
    """Return permission bits as words: `read, write`."""
    words = [word for bit, word in ((Permission.READ, "read"), (Permission.WRITE, "write")) if bits & bit]
    return ", ".join(words) or "none"


def moment(timestamp_ms: int) -> str | None:
    """Return a time of day for people, in their zone; None for 0, which means never."""
    if timestamp_ms <= 0:
        return None
    return f"{datetime.fromtimestamp(timestamp_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"
