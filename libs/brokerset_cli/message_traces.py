"""`brokerset message trace`: what producers and consumers have done with one message, by time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.options import json_option, number_option
from brokerset_cli.output import camel_json, fail, write_columns, write_json
from brokerset_client.admin import Admin
from brokerset_client.messages import MessageView
from brokerset_formats.names import TRACE_TOPIC
from brokerset_protocol.bodies.traces import (
    ConsumeOutcome,
    ConsumeTrace,
    DeliveryTrace,
    EndTrace,
    RecallTrace,
    SendTrace,
    Trace,
    TraceMessageType,
    decode_traces,
)

MESSAGES_MAX: Final = 256
"""Trace messages that are read for one id by default; each has up to 20 traces."""

_KINDS: Final = {
    TraceMessageType.NORMAL: "sent",
    TraceMessageType.TRANSACTION_HALF: "sent as half message",
    TraceMessageType.TRANSACTION_COMMIT: "sent by a commit",
    TraceMessageType.DELAY: "sent with a delay",
    TraceMessageType.ORDER: "sent in order",
}
_OUTCOMES: Final[dict[int, str]] = {
    ConsumeOutcome.SUCCESS: "success",
    ConsumeOutcome.TIME_OUT: "failed: took too long",
    ConsumeOutcome.EXCEPTION: "failed: exception",
    ConsumeOutcome.RETURNED_NOTHING: "failed: returned nothing",
    ConsumeOutcome.FAILED: "failed",
}
_STATES: Final = {"COMMIT_MESSAGE": "commit", "ROLLBACK_MESSAGE": "rollback", "UNKNOW": "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One thing that happened to the message."""

    what: str
    group: str | None
    """Producer or consumer group."""
    client: str
    """Host of the client that wrote it."""
    time_ms: int | None
    """When it began (a consumption: when it ended), in milliseconds of the client's clock."""
    cost_ms: int | None
    result: str


def trace_rows(message_id: str, traces: Iterable[tuple[Trace, str]]) -> list[TraceRow]:
    """The rows of one message; `traces` come with the host of their client.

    A delivery whose end is known is not shown by itself.
    """
    mine = [(trace, client) for trace, client in traces if trace.message_id == message_id]
    ended = {trace.request_id for trace, _ in mine if isinstance(trace, ConsumeTrace)}
    began = {trace.request_id: trace for trace, _ in mine if isinstance(trace, DeliveryTrace)}
    rows = [
        _row(trace, client, began)
        for trace, client in mine
        if not (isinstance(trace, DeliveryTrace) and trace.request_id in ended)
    ]
    return sorted(rows, key=lambda row: row.time_ms or 0)


def _row(trace: Trace, client: str, began: dict[str, DeliveryTrace]) -> TraceRow:
    group, time_ms = trace.group, trace.time_ms
    cost_ms: int | None = None
    match trace:
        case SendTrace():
            what, cost_ms = _KINDS[trace.message_type], trace.cost_ms
            result = f"stored by {trace.store_host}" if trace.success else "stored, but not safely"
        case DeliveryTrace():
            what, result = _consumed("being consumed", trace), "its end is not known"
        case ConsumeTrace():
            delivery = began.get(trace.request_id)
            what, cost_ms, result = _consumed("consumed", delivery), trace.cost_ms, _outcome(trace)
            if delivery is not None:  # clients of the cloud say these only before
                group = delivery.group if group is None else group
                time_ms = delivery.time_ms if time_ms is None else time_ms
        case EndTrace():
            what = "ended after a check" if trace.from_check else "ended"
            result = _STATES.get(trace.state, trace.state)
        case RecallTrace():
            what, result = "recalled", "success" if trace.success else "failed"
    return TraceRow(what=what, group=group, client=client, time_ms=time_ms, cost_ms=cost_ms, result=result)


def _outcome(trace: ConsumeTrace) -> str:
    if not trace.success and not trace.outcome:  # clients of old releases say no more
        return "failed"
    return _OUTCOMES.get(trace.outcome, "failed")


def _consumed(what: str, delivery: DeliveryTrace | None) -> str:
    return what if delivery is None or not delivery.retry_times else f"{what} (retry {delivery.retry_times})"


def read_traces(messages: Sequence[MessageView]) -> list[tuple[Trace, str]]:
    """The records of trace messages, each with the host that sent it. What cannot be read is left out."""
    found: list[tuple[Trace, str]] = []
    for message in messages:
        client = message.born_host.text.rpartition(":")[0]
        found += [(trace, client) for trace in decode_traces(message.body.decode("utf-8", "replace"))[0]]
    return found


@click.command()
@click.argument("message_id")
@click.option(
    "--trace-topic",
    metavar="T",
    default=TRACE_TOPIC,
    show_default=True,
    help="Where clients write traces to.",
)
@number_option("--max", "Trace messages that are read at most.", 1, 10_000, default=MESSAGES_MAX)
@cluster_options
@json_option
def trace(message_id: str, trace_topic: str, max: int, cluster: Cluster, as_json: bool) -> None:
    """Show who sent, consumed, ended or recalled the message with this id, when, and with what result.

    Clients write traces if they are asked to: Java's with enableMsgTrace, ours with `trace=`, `brokerset
    send` and `consume` with --trace. They arrive up to 5 s after what they are about.
    """

    async def work(admin: Admin) -> list[MessageView]:
        return await admin.query_by_key(trace_topic, message_id, messages_max=max)

    rows = trace_rows(message_id, read_traces(cluster.administer(work)))
    if not rows:
        fail(
            f"there is no trace of message {message_id} in topic {trace_topic}",
            "check the id (not the broker's offset id), that its client writes traces, and that brokers have "
            "traceTopicEnable=true; a new trace takes up to 5 s",
        )
    if as_json:
        write_json(camel_json(rows))
        return
    write_columns(
        rows,
        {
            "what": "what",
            "group": "group",
            "client": "client",
            "time": lambda row: _time(row.time_ms),
            "took": lambda row: None if row.cost_ms is None else f"{row.cost_ms:,} ms",
            "result": "result",
        },
    )


def _time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    local = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().replace(tzinfo=None)
    return local.isoformat(" ", "milliseconds")
