"""`brokerset send`, `brokerset recall` and `brokerset consume`."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import click

from brokerset_cli.client_session import Cluster, cluster_options, stop_event
from brokerset_cli.consuming import Start, Taken, message_json, message_line, parse_start, take
from brokerset_cli.delivery_times import parse_delay, parse_moment
from brokerset_cli.options import json_option, number_option
from brokerset_cli.ordered_messages import (
    OrderedSends,
    find_subject,
    ordered_json,
    ordered_line,
    take_ordered,
)
from brokerset_cli.output import CommandFailed, counted, fail, progress, write_json
from brokerset_cli.popped_messages import BATCH, INVISIBLE_SECONDS, check_pop, popped_json, take_popped
from brokerset_cli.requests import replying
from brokerset_cli.sending import OFFSET_UNKNOWN, Sends, Sent, check_statuses, send_all
from brokerset_cli.transactions import STATES, Ends, TransactionalSends, check_ends, ends_line
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import BODY_SIZE_MAX, Message, MessageView
from brokerset_client.ordered import OrderedClient
from brokerset_client.ordered.consuming import PulledMessage
from brokerset_client.pop.popped import PoppedMessage
from brokerset_client.pop.requests import POP_MAX
from brokerset_client.pop.settings import INVISIBLE_SECONDS_MAX
from brokerset_client.producer import Producer
from brokerset_client.timers import timed
from brokerset_client.tracing import TraceSettings
from brokerset_client.transactions import TransactionState
from brokerset_protocol.bodies.heartbeat import ExpressionType

T = TypeVar("T")

PRODUCER_GROUP: Final = "brokerset-cli"
"""Producer group of everything that this command sends."""

RATE_SECONDS_MIN: Final = 0.01
"""What took less time is shown without a rate: it would say nothing."""

IN_FLIGHT_MAX: Final = 256
"""Requests on their way at once."""

trace_option: Final = click.option(
    "--trace", is_flag=True, help="Write traces, which `brokerset message trace ID` shows."
)
"""`--trace`: ask for traces."""


def _read_with(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """A callback for an option whose text `read` understands, or says in a `ValueError` why not."""

    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> T | None:
        try:
            return None if text is None else read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


@click.command()
@click.argument("topic")
@number_option("--count", "Number of messages. [default: 1, or all lines of --file]", 1)
@number_option("--size", "Bytes of each body.", 1, BODY_SIZE_MAX, metavar="B")
@click.option("--body", metavar="TEXT", help="Text of the body.")
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    metavar="F|-",
    help="Each line that is not empty is a message; - reads standard input.",
)
@click.option(
    "--key",
    "keys",
    metavar="K",
    multiple=True,
    help="Key to find the messages by; may be given more than once.",
)
@click.option("--tag", metavar="T", help="Tag that consumers can filter by.")
@click.option(
    "--order-key",
    metavar="K",
    help="Messages of one order key go to one queue; to an ordered subject, in their order whatever happens.",
)
@click.option(
    "--order-key-from",
    "separator",
    metavar="SEPARATOR",
    help="With --file: the order key of a line is what stands before the first SEPARATOR in it.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    help="Deliver later, by the broker's messageDelayLevel: 1 is 1 s, 2 is 5 s, 3 is 10 s, …",
)
@click.option(
    "--delay",
    metavar="TIME",
    callback=_read_with(parse_delay),
    help="Deliver so much later: 90s, 15m, 1h30m; at most the brokers' timerMaxDelaySec, 3 days by default.",
)
@click.option(
    "--deliver-at",
    metavar="TIME",
    callback=_read_with(parse_moment),
    help="Deliver at this time: 2026-12-24T18:00, or milliseconds since 1970.",
)
@click.option(
    "--transaction",
    type=click.Choice(list(STATES)),
    help="Send half messages and end them so; unknown leaves them to the broker's checks.",
)
@click.option(
    "--check-answer",
    type=click.Choice(list(STATES)),
    help="With --transaction unknown: wait for the broker's checks, and answer each like this.",
)
@click.option(
    "--group",
    metavar="G",
    default=PRODUCER_GROUP,
    show_default=True,
    help="Producer group; brokers ask a member of it about its transactions.",
)
@trace_option
@cluster_options
@json_option
def send(
    topic: str,
    count: int | None,
    size: int | None,
    body: str | None,
    file: Path | None,
    keys: tuple[str, ...],
    tag: str | None,
    order_key: str | None,
    separator: str | None,
    delay_level: int,
    delay: timedelta | None,
    deliver_at: datetime | None,
    transaction: str | None,
    check_answer: str | None,
    group: str,
    trace: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Send messages to TOPIC and wait until the brokers have stored them.

    Without --body and --file a body says which message it is, and is filled up to --size. Messages with an
    order key to an ordered subject are sent as its order strategy says.
    """
    if separator is not None and (file is None or order_key is not None or not separator):
        raise click.UsageError("--order-key-from goes with --file and without --order-key, and is not empty")
    if body == "":
        raise click.BadParameter("brokers refuse messages without a body", param_hint="--body")
    if sum(option is not None for option in (file, body)) == 2 or (file is not None and size is not None):
        raise click.UsageError("--file goes with neither --body nor --size: the lines are the bodies")
    delays = sum((bool(delay_level), delay is not None, deliver_at is not None))
    if delays > 1:
        raise click.UsageError("--delay, --deliver-at and --delay-level exclude each other")
    if transaction is not None and delays:
        raise click.UsageError("--transaction goes with no delay: a half message would never reach its topic")
    if check_answer is not None and transaction != "unknown":
        raise click.UsageError("--check-answer goes with --transaction unknown: others are ended at once")
    bodies: Iterable[bytes]
    total = count
    if file is not None:
        bodies = read_lines(file, count)
    else:
        total = count or 1
        bodies = made_bodies(total, size, body)
    messages = (
        timed(
            Message(
                topic=topic,
                body=item,
                tags=tag,
                keys=keys,
                sharding_key=order_key if separator is None else order_key_of(item, separator),
                delay_level=delay_level,
            ),
            delay,
            deliver_at,
        )
        for item in bodies
    )
    traces = TraceSettings() if trace else None
    ends: Ends | None = None

    async def send_with(producer: Sends) -> Sent:
        with progress(f"sending to {topic}", total) as done:
            return await send_all(
                producer,
                messages,
                done=done,
                in_flight_max=IN_FLIGHT_MAX,
                stop=stop_event(),
                waits=file is not None and may_wait(file),
            )

    async def work(instance: ClientInstance) -> Sent:
        if order_key is not None or separator is not None:
            async with OrderedClient(instance=instance) as client:
                if await find_subject(client.transport, topic) is not None:
                    if transaction is not None or delays:
                        raise CommandFailed(
                            f"{topic} is an ordered subject: it has neither delays nor transactions",
                            "send to a usual topic",
                        )
                    async with client.producer() as ordered:
                        return await send_with(OrderedSends(ordered))
        if transaction is not None:
            return await transactional(instance, STATES[transaction])
        async with Producer(group, instance=instance, trace=traces) as producer:
            return await send_with(producer)

    async def transactional(instance: ClientInstance, state: TransactionState) -> Sent:
        nonlocal ends
        answer = None if check_answer is None else STATES[check_answer]
        sends = TransactionalSends(instance, group, state, answer, traces)
        ends = sends.ends
        async with sends.producer:
            done = await send_with(sends)
            if answer is not None:
                click.echo("Waiting for the broker's checks; Ctrl-C ends it", err=True)
                await sends.wait_checked(stop_event())
            return done

    sent = cluster.run(work)
    if not sent.count:
        raise CommandFailed("there was nothing to send", "give --file with at least one line")
    if as_json:
        write_json({"topic": topic, **sent.to_json(), **({} if ends is None else ends.to_json())})
    else:
        show_sent(topic, sent)
        if ends is not None and transaction is not None:
            click.echo(ends_line(ends, STATES[transaction], STATES.get(check_answer or "")))
    if ends is not None:
        check_ends(ends)
    check_statuses(sent)


def made_bodies(count: int, size: int | None, text: str | None) -> Iterator[bytes]:
    """Return `count` bodies: `text`, or a sentence with the number; filled or cut to `size` bytes."""
    for number in range(1, count + 1):
        body = (text if text is not None else f"message {number} of {count}").encode()
        yield body if size is None else body[:size].ljust(size, b".")


def read_lines(path: Path, count: int | None) -> Iterator[bytes]:
    """Return the lines of a file, or of standard input for `-`, without their ends; at most `count`.

    Empty ones are left out, because brokers refuse messages without a body.
    """
    try:
        stream = standard_input() if str(path) == "-" else path.open("rb")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", "give a file with one message on each line, or -")
    with stream:
        number = 0
        while count is None or number < count:
            # One more byte than is allowed shows that a line is too long, without reading all of it.
            line = stream.readline(BODY_SIZE_MAX + 2)
            if not line:
                return
            if body := line.rstrip(b"\r\n"):
                number += 1
                yield body


def order_key_of(line: bytes, separator: str) -> str | None:
    """The order key of a line: what stands before the separator; None without one."""
    key, found, _ = line.partition(separator.encode())
    return key.decode("utf-8", "backslashreplace") if found else None


def standard_input() -> BinaryIO:
    """Standard input with a buffer of its own: Python's cannot be closed while a thread waits for a line."""
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, ValueError):  # it is closed, or no file of the system
        return sys.stdin.buffer


def may_wait(path: Path) -> bool:
    """Whether lines of a file come when somebody writes them: pipes and terminals, but no regular files."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if str(path) == "-" else path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode)


def show_sent(topic: str, sent: Sent) -> None:
    """Say what was sent, for people."""
    if sent.count == 1 and sent.last is not None:
        queue = sent.last.queue
        where = f"{queue.broker_name}, queue {queue.queue_id}"
        if sent.last.queue_offset != OFFSET_UNKNOWN:
            where += f", offset {sent.last.queue_offset}"
        click.echo(f"Sent 1 message to {topic}: id {sent.last.message_id}, stored by {where}")
        if sent.last.recall_handle is not None:
            click.echo(f"To take it back: brokerset recall {topic} {sent.last.recall_handle}")
        return
    click.echo(
        f"Sent {counted(sent.count, 'message')} ({sent.body_bytes:,} bytes) to {topic} "
        f"in {sent.seconds:.2f} s: {sent.per_second:,.0f}/s, {counted(len(sent.queues), 'queue')}"
    )


@click.command()
@click.argument("topic")
@click.argument("handle")
@cluster_options
@json_option
def recall(topic: str, handle: str, cluster: Cluster, as_json: bool) -> None:
    """Take back the message of TOPIC that waits for its time; HANDLE is what its send showed.

    Brokers allow it with recallMessageEnable=true. One whose time has come may be delivered nevertheless.
    """

    async def work(instance: ClientInstance) -> str:
        async with Producer(PRODUCER_GROUP, instance=instance) as producer:
            return await producer.recall(topic, handle)

    message_id = cluster.run(work)
    if as_json:
        write_json({"topic": topic, "messageId": message_id})
    else:
        click.echo(f"Recalled message {message_id} of {topic}")


@click.command()
@click.argument("topic")
@click.option(
    "--group",
    metavar="G",
    default="brokerset-cli",
    show_default=True,
    help="Consumer group; it keeps the offsets.",
)
@number_option("--count", "Stop after so many. [default: go on until Ctrl-C]", 1)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|TIME",
    default="earliest",
    show_default=True,
    callback=_read_with(parse_start),
    help="Where a group begins that has no offsets of this topic yet.",
)
@click.option(
    "--tag",
    "expression",
    metavar="T",
    default="*",
    help="Only messages with this tag; several as 'A || B'.",
)
@click.option(
    "--sql",
    metavar="EXPRESSION",
    help="Only messages whose properties match, such as \"price > 10 AND region = 'eu'\"; brokers need "
    "enablePropertyFilter=true.",
)
@click.option(
    "--wait",
    "idle_seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop after so many seconds without a message.",
)
@click.option(
    "--pop",
    is_flag=True,
    help="Read by POP: no queues are assigned, each message is this reader's until a time, or an ack.",
)
@click.option(
    "--invisible",
    type=click.FloatRange(0, INVISIBLE_SECONDS_MAX, min_open=True),
    metavar="SECONDS",
    help=f"With --pop: after so long a message comes again that was not acknowledged. [default: "
    f"{INVISIBLE_SECONDS:g}]",
)
@number_option("--batch", f"With --pop: messages of one pop. [default: {BATCH}]", 1, POP_MAX)
@click.option("--ack/--no-ack", default=True, help="With --pop: acknowledge what was shown. [default: ack]")
@click.option(
    "--ordered",
    is_flag=True,
    help="TOPIC is an ordered subject: own partitions of it, and show order key, partition, queue offset and "
    "fencing token. With --pop: a usual topic, each queue of it in its order.",
)
@click.option(
    "--shared",
    is_flag=True,
    help="With --ordered: share all partitions with the other members of the group, without their order.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="With --ordered: serve lag, permission and blocked keys at /metrics of this port, for Prometheus.",
)
@click.option(
    "--reply",
    metavar="TEXT",
    help="Reply TEXT to the requests among the messages; {body} in it stands for the request's body.",
)
@click.option("--quiet", is_flag=True, help="Do not show the messages, only how many there were.")
@trace_option
@cluster_options
@json_option
def consume(
    topic: str,
    group: str,
    count: int | None,
    start: Start,
    expression: str,
    sql: str | None,
    idle_seconds: float | None,
    pop: bool,
    invisible: float | None,
    batch: int | None,
    ack: bool,
    ordered: bool,
    shared: bool,
    metrics_port: int | None,
    reply: str | None,
    quiet: bool,
    trace: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Read messages of TOPIC as a member of a consumer group and show them.

    What was shown counts as consumed: the next run of the same group goes on after it. With --json each
    message is one line. A group of an ordered subject begins with the oldest message, whatever --from says.
    With --pop --no-ack all comes again later.
    """
    check_pop(
        pop=pop,
        ack=ack,
        invisible=invisible,
        batch=batch,
        others={
            "--shared": shared,
            "--metrics-port": metrics_port is not None,
            "--reply": reply is not None,
            "--trace": trace,
            "--from TIME": start.timestamp_ms is not None,
        },
    )
    if metrics_port is not None and not ordered:
        raise click.UsageError("--metrics-port goes with --ordered: usual consumers have no metrics")
    if shared and not ordered:
        raise click.UsageError("--shared goes with --ordered: a usual topic is shared by queues anyway")

    if trace and ordered:
        raise click.UsageError("--trace goes without --ordered: consumers of subjects write no traces")
    if sql is not None and ((ordered and not pop) or expression != "*"):
        raise click.UsageError("--sql goes neither with --tag nor with --ordered: a topic has one filter")
    if reply is not None and (ordered or not reply):
        raise click.UsageError("--reply needs a text, and does not go with --ordered")
    if sql == "":
        raise click.UsageError("--sql needs an expression; without it all messages are read")

    def show(message: MessageView) -> None:
        if not quiet:
            click.echo(
                json.dumps(message_json(message), ensure_ascii=False) if as_json else message_line(message)
            )

    def show_ordered(pulled: PulledMessage) -> None:
        if not quiet:
            click.echo(
                json.dumps(ordered_json(pulled), ensure_ascii=False) if as_json else ordered_line(pulled)
            )

    def show_popped(message: PoppedMessage) -> None:
        if as_json and not quiet:
            click.echo(json.dumps(popped_json(message), ensure_ascii=False))
        else:
            show(message)

    async def work(instance: ClientInstance) -> Taken:
        if pop:
            await instance.route(topic)
            return await take_popped(
                instance,
                topic,
                group,
                where=start.where,
                handle=show_popped,
                expression=expression if sql is None else sql,
                expression_type=ExpressionType.TAG if sql is None else ExpressionType.SQL92,
                ordered=ordered,
                invisible_seconds=INVISIBLE_SECONDS if invisible is None else invisible,
                batch=batch or BATCH,
                ack=ack,
                count=count,
                idle_seconds=idle_seconds,
            )
        if ordered:
            return await take_ordered(
                instance,
                topic,
                group,
                handle=show_ordered,
                expression=expression,
                shared=shared,
                count=count,
                idle_seconds=idle_seconds,
                metrics_port=metrics_port,
            )
        await instance.route(topic)  # a topic that does not exist is an error, not a reason to wait
        watched = quiet or not sys.stdout.isatty()
        with progress(f"reading {topic}", count) if watched else nullcontext(lambda _more: None) as done:

            def handle(message: MessageView) -> None:
                show(message)
                done(1)

            async with replying(instance, reply) as answer:
                return await take(
                    instance,
                    topic,
                    group,
                    start=start,
                    handle=handle,
                    expression=expression if sql is None else sql,
                    expression_type=ExpressionType.TAG if sql is None else ExpressionType.SQL92,
                    count=count,
                    idle_seconds=idle_seconds,
                    answer=answer,
                    trace=TraceSettings() if trace else None,
                )

    taken = cluster.run(work)
    rate = ""
    if taken.seconds >= RATE_SECONDS_MIN:
        rate = f" in {taken.seconds:.2f} s: {taken.per_second:,.0f}/s"
    click.echo(f"Read {counted(taken.count, 'message')} of {topic} as {group}{rate}", err=True)
    if count is not None and taken.count < count:
        fail(
            f"only {taken.count:,} of {count:,} messages came",
            "the group may have read the others before (use another --group), or other members got them",
        )
