"""`brokerset group status`, `suspend`, `resume` and `consume-directly`: consumers while they run."""

from __future__ import annotations

from typing import Any

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.options import json_option, yes_option
from brokerset_cli.output import CommandFailed, counted, write_columns, write_json
from brokerset_cli.topics import moment
from brokerset_client.admin import Admin
from brokerset_client.consumer_admin import ConsumerAdmin, Member
from brokerset_client.errors import AnswerTimeout, RequestRefused
from brokerset_protocol.bodies.connections import ConsumeResult, ConsumerRunningInfo


@click.command(short_help="Show what each running consumer of the group NAME does.")
@click.argument("name")
@click.option("--client", metavar="ID", help="Only this consumer.")
@click.option("--stacks", is_flag=True, help="Also what its threads do now; for Java's clients a jstack.")
@cluster_options
@json_option
def status(name: str, client: str | None, stacks: bool, cluster: Cluster, as_json: bool) -> None:
    """Ask the running consumers of the group NAME what they do: queues, what they hold, how quick they
    are."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        consumers = ConsumerAdmin(admin)
        return [
            await _state(consumers, name, member, stacks)
            for member in await _members(consumers, name, client)
        ]

    found = cluster.administer(work)
    if as_json:
        write_json({"group": name, "members": found})
        return
    for number, member in enumerate(found):
        if number:
            click.echo()
        _show(member)


async def _members(consumers: ConsumerAdmin, name: str, client: str | None) -> list[Member]:
    """The members that are meant; ends the command if there are none."""
    members = await consumers.members(name)
    chosen = [member for member in members if client in (None, member.client_id)]
    if not chosen:
        known = ", ".join(member.client_id for member in members)
        raise CommandFailed(f"the group {name} has no consumer {client}", f"those that run are: {known}")
    return chosen


async def _state(consumers: ConsumerAdmin, name: str, member: Member, stacks: bool) -> dict[str, Any]:
    """What one consumer says; one that does not answer is shown as such."""
    state: dict[str, Any] = {
        "clientId": member.client_id,
        "address": member.connection.client_addr,
        "language": member.connection.language,
        "problem": None,
    }
    try:
        info = await consumers.running_info(name, member, stacks=stacks)
    except (RequestRefused, AnswerTimeout) as error:
        return {**state, "problem": str(error), "queues": [], "topics": [], "stacks": None}
    return {**state, **_details(info)}


def _details(info: ConsumerRunningInfo) -> dict[str, Any]:
    """The account of a consumer, as scripts get it; times are milliseconds."""
    orderly = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    return {
        "orderly": orderly,
        "suspended": info.properties.get("suspended") == "true",
        "startedMs": int(info.properties.get("PROP_CONSUMER_START_TIMESTAMP") or 0),
        "queues": [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queueId": queue.queue_id,
                "next": held.commit_offset,
                "cached": held.cached_msg_count,
                "cachedMiB": held.cached_msg_size_in_mib,
                "locked": held.locked if orderly else None,
                "lastPullMs": held.last_pull_timestamp,
                "lastConsumeMs": held.last_consume_timestamp,
            }
            for queue, held in sorted(info.mq_table.items())
        ],
        "topics": [
            {
                "topic": topic,
                "pullMs": rates.pull_rt,
                "pullPerSecond": rates.pull_tps,
                "listenerMs": rates.consume_rt,
                "donePerSecond": rates.consume_ok_tps,
                "failedPerSecond": rates.consume_failed_tps,
                "failedInHour": rates.consume_failed_msgs,
            }
            for topic, rates in sorted(info.status_table.items())
        ],
        "stacks": info.jstack,
    }


def _show(member: dict[str, Any]) -> None:
    """One consumer, for people."""
    title = f"{member['clientId']}, {member['language']} at {member['address']}"
    if member["problem"] is not None:
        click.echo(f"{title}: does not say what it does: {member['problem']}")
        return
    words = [
        "orderly" if member["orderly"] else "concurrent",
        *(["suspended"] if member["suspended"] else []),
        f"since {moment(member['startedMs']) or 'unknown'}",
    ]
    click.echo(f"{title}, {', '.join(words)}")
    write_columns(
        member["queues"],
        {
            "topic": "topic",
            "broker": "broker",
            "queue": "queueId",
            "next": "next",
            "in hand": "cached",
            "locked": lambda queue: None if queue["locked"] is None else ("yes" if queue["locked"] else "no"),
            "last pull": lambda queue: moment(queue["lastPullMs"]),
            "last consumed": lambda queue: moment(queue["lastConsumeMs"]),
        },
        empty="It has no queue now.",
    )
    click.echo()
    write_columns(
        member["topics"],
        {
            "topic": "topic",
            "listener ms": lambda topic: f"{topic['listenerMs']:.2f}",
            "done/s": lambda topic: f"{topic['donePerSecond']:.2f}",
            "failed/s": lambda topic: f"{topic['failedPerSecond']:.2f}",
            "failed in 1 h": "failedInHour",
            "pull ms": lambda topic: f"{topic['pullMs']:.2f}",
            "pulled/s": lambda topic: f"{topic['pullPerSecond']:.2f}",
        },
        empty="It has measured nothing.",
    )
    if member["stacks"]:
        click.echo()
        click.echo(member["stacks"])


@click.command(short_help="Let no consumer of the group NAME get messages.")
@click.argument("name")
@yes_option
@cluster_options
def suspend(name: str, yes: bool, cluster: Cluster) -> None:
    """Let the brokers give the group NAME no more messages, whoever its consumers are, until `resume`.

    The consumers stay connected, finish what they have in hand, and ask again. Nothing is lost.
    """
    if not yes:
        click.confirm(f"Let the consumers of {name} get no more messages?", abort=True)
    changed = cluster.administer(lambda admin: ConsumerAdmin(admin).allow(name, False))
    click.echo(f"Group {name} is suspended at {counted(len(changed), 'broker')}.")


@click.command(short_help="Let the group NAME consume again.")
@click.argument("name")
@cluster_options
def resume(name: str, cluster: Cluster) -> None:
    """Let the brokers serve the group NAME again; its consumers notice within seconds."""
    changed = cluster.administer(lambda admin: ConsumerAdmin(admin).allow(name, True))
    click.echo(f"Group {name} consumes at {counted(len(changed), 'broker')}.")


@click.command("consume-directly", short_help="Let a consumer of the group NAME handle one message now.")
@click.argument("name")
@click.argument("topic")
@click.argument("message_id", metavar="MESSAGE-ID")
@click.option("--client", metavar="ID", help="The consumer that shall do it. [default: the first one]")
@cluster_options
@json_option
def consume_directly(
    name: str, topic: str, message_id: str, client: str | None, cluster: Cluster, as_json: bool
) -> None:
    """Let a running consumer of the group NAME handle one stored message of TOPIC now, and say what became
    of it.

    To try a listener again after it was mended, or to see why it fails. Offsets do not move.
    """

    async def work(admin: Admin) -> dict[str, Any]:
        message = await admin.message_by_id(topic, message_id)
        consumers = ConsumerAdmin(admin)
        member = (await _members(consumers, name, client))[0]
        result = await consumers.consume_directly(name, member, message)
        return {
            "group": name,
            "clientId": member.client_id,
            "messageId": message_id,
            "result": result.consume_result.value,
            "milliseconds": result.spent_time_mills,
            "remark": result.remark,
        }

    found = cluster.administer(work)
    if as_json:
        write_json(found)
    else:
        remark = f": {found['remark']}" if found["remark"] else ""
        click.echo(
            f"{found['clientId']} ended with {found['result']} after {found['milliseconds']:,} ms{remark}"
        )
    if found["result"] not in (ConsumeResult.CR_SUCCESS, ConsumeResult.CR_COMMIT):
        raise CommandFailed(
            f"the consumer did not handle the message: {found['result']}", "its own log may say more"
        )
