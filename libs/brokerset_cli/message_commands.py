"""`brokerset message`: what became of single messages, and checks of transactions that were given up."""

from __future__ import annotations

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.message_traces import trace
from brokerset_client.admin import Admin
from brokerset_client.messages import MessageView
from brokerset_formats.properties import Property


@click.group()
def message() -> None:
    """Find out what became of a message."""


message.add_command(trace)


@message.command("resume-check")
@click.argument("message_ids", nargs=-1, required=True, metavar="ID...")
@cluster_options
def resume_check(message_ids: tuple[str, ...], cluster: Cluster) -> None:
    """Ask producers again about half messages that were given up, from the first time on.

    They are in the topic TRANS_CHECK_MAX_TIME_TOPIC, which `brokerset consume` shows with their ids. A
    producer of the group has to run: the next pass of checks asks it.
    """

    async def work(admin: Admin) -> list[MessageView]:
        return [await admin.resume_check(message_id) for message_id in message_ids]

    for each in cluster.administer(work):
        group, topic = each.property_text(Property.PGROUP), each.property_text(Property.REAL_TOPIC)
        click.echo(f"{each.message_id} for {topic}: producers of {group} are asked again")
