"""`brokerset group reset-offsets` and `clone-offsets`: let a group go on elsewhere, also while it
consumes."""

from __future__ import annotations

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.consuming import Start, parse_start
from brokerset_cli.options import json_option, yes_option
from brokerset_cli.output import CommandFailed, counted, write_columns, write_json
from brokerset_client.admin import Admin
from brokerset_client.consumer_admin import ConsumerAdmin
from brokerset_client.errors import GroupOffline
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere
from brokerset_protocol.bodies.queues import MessageQueue

END = -1
"""As a time: behind the newest message."""


def _start(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Start | None:
    try:
        return None if text is None else parse_start(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def timestamp_of(start: Start) -> int:
    """The time that a reset is sent, in milliseconds."""
    if start.where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return END
    return start.timestamp_ms or 0


def parse_queue(text: str) -> tuple[str, int]:
    """Read `BROKER/NUMBER`; raises `ValueError`."""
    broker, _, number = text.rpartition("/")
    if not broker or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{text!r} is not like broker-a/0: broker group and number of the queue")
    return broker, int(number)


@click.command("reset-offsets", short_help="Let the group NAME go on elsewhere in TOPIC.")
@click.argument("name")
@click.argument("topic")
@click.option(
    "--to",
    "start",
    callback=_start,
    metavar="WHERE",
    help="earliest, latest (skip what waits), a time like 2026-01-31T08:00, or milliseconds since 1970.",
)
@click.option("--queue", metavar="BROKER/N", help="Only this queue.")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="With --queue: the next one to consume.")
@yes_option
@cluster_options
@json_option
def reset_offsets(
    name: str,
    topic: str,
    start: Start | None,
    queue: str | None,
    offset: int | None,
    yes: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Let the group NAME go on elsewhere in TOPIC: back, to read again, or forward, to skip.

    Consumers that run go on there at once. What they have in hand is finished, and counts no more.
    """
    if (start is None) == (offset is None) or (offset is not None) != (queue is not None):
        raise click.UsageError("give --to, or --queue with --offset")
    try:
        wanted = None if queue is None else parse_queue(queue)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--queue") from None
    if not yes:
        click.confirm(f"Move the group {name} in {topic}?", abort=True)

    async def work(admin: Admin) -> dict[MessageQueue, int]:
        if wanted is not None and offset is not None:
            return await admin.reset_queue_offset(name, MessageQueue(topic, *wanted), offset)
        assert start is not None
        return await admin.reset_offsets(name, topic, timestamp_of(start))

    found = cluster.administer(work)
    rows = [
        {"topic": queue.topic, "broker": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in sorted(found.items())
    ]
    if as_json:
        write_json({"group": name, "queues": rows})
        return
    write_columns(rows, {"topic": "topic", "broker": "broker", "queue": "queueId", "next": "offset"})


@click.command("clone-offsets", short_help="Let the group TARGET go on where SOURCE is.")
@click.argument("source")
@click.argument("target")
@click.option("--topic", metavar="T", help="Only this topic. [default: all that SOURCE has read]")
@click.option(
    "--offline", is_flag=True, help="Also topics that a running SOURCE does not subscribe to any more."
)
@cluster_options
@json_option
def clone_offsets(
    source: str, target: str, topic: str | None, offline: bool, cluster: Cluster, as_json: bool
) -> None:
    """Let the group TARGET go on where the group SOURCE is. TARGET must not consume meanwhile."""

    async def work(admin: Admin) -> list[str]:
        consumers = ConsumerAdmin(admin)
        try:
            online = await consumers.members(target) if target in await admin.groups() else []
        except GroupOffline:
            online = []
        if online:
            raise CommandFailed(
                f"{target} has {counted(len(online), 'consumer')} online, who would go on where they are",
                "stop them first",
            )
        return await consumers.clone_offsets(source, target, topic, offline=offline)

    done = cluster.administer(work)
    if as_json:
        write_json({"source": source, "target": target, "brokers": done})
    else:
        click.echo(f"Group {target} goes on where {source} is, at {counted(len(done), 'broker')}.")
