"""`brokerset request`, and the replies of `brokerset consume --reply`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.consuming import message_json
from brokerset_cli.options import json_option
from brokerset_client.errors import ReplyNotTaken
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView
from brokerset_client.producer import Producer
from brokerset_client.replier import is_request

PRODUCER_GROUP: Final = "brokerset-cli"
"""Producer group of everything that this command sends."""

BODY: Final = "{body}"
"""What stands for the body of the request in the text of a reply."""


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 86_400, min_open=True),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="How long to wait for the reply.",
)
@click.option("--tag", metavar="T", help="Tag that consumers can filter by.")
@click.option("--key", "keys", metavar="K", multiple=True, help="Key to find the request by.")
@cluster_options
@json_option
def request(
    topic: str,
    body: str,
    timeout: float,
    tag: str | None,
    keys: tuple[str, ...],
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Send BODY to TOPIC and wait for the reply of whoever consumes it.

    The reply's body is shown; with --json all of the reply is, on one line. A request that times out is
    stored all the same, and is consumed like any message.
    """
    if not body:
        raise click.BadParameter("brokers refuse messages without a body", param_hint="BODY")

    async def work(instance: ClientInstance) -> tuple[MessageView, float]:
        async with Producer(PRODUCER_GROUP, instance=instance) as producer:
            asked = Message(topic=topic, body=body.encode(), tags=tag, keys=keys)
            began = time.perf_counter()
            reply = await producer.request(asked, timeout)
            return reply, time.perf_counter() - began

    reply, seconds = cluster.run(work)
    if as_json:
        click.echo(json.dumps({**message_json(reply), "seconds": round(seconds, 6)}, ensure_ascii=False))
    else:
        click.echo(reply.body.decode("utf-8", "backslashreplace"))
        click.echo(f"Reply after {seconds * 1000:.1f} ms from {reply.born_host.text}", err=True)


def reply_text(text: str, request_body: bytes) -> bytes:
    """The body of a reply: the text, with the request's body in the place of `{body}`."""
    return request_body.join(part.encode() for part in text.split(BODY))


@asynccontextmanager
async def replying(
    instance: ClientInstance, text: str | None
) -> AsyncIterator[Callable[[MessageView], Awaitable[None]] | None]:
    """What replies to a message if it is a request, as long as the block runs; None without a text."""
    if text is None:
        yield None
        return
    async with Producer(PRODUCER_GROUP, instance=instance) as producer:

        async def reply(message: MessageView) -> None:
            if not is_request(message):
                return
            try:
                await producer.reply_to(message, reply_text(text, message.body))
            except ReplyNotTaken as error:
                click.echo(str(error), err=True)

        yield reply
