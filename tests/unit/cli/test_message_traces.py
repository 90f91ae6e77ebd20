"""What `brokerset message trace` makes of trace messages."""

from __future__ import annotations

from functools import partial

from brokerset_cli.message_traces import TraceRow, trace_rows
from brokerset_protocol.bodies.traces import (
    ConsumeOutcome,
    ConsumeTrace,
    DeliveryTrace,
    EndTrace,
    RecallTrace,
    SendTrace,
    Trace,
    TraceMessageType,
)

CLIENT = "10.0.0.1"


def rows(*traces: Trace) -> list[TraceRow]:
    return trace_rows("ID", [(trace, CLIENT) for trace in traces])


def send(time_ms: int, **others: object) -> SendTrace:
    fields: dict[str, object] = {"store_host": "b:1", "cost_ms": 3, **others}
    return SendTrace(time_ms=time_ms, region="r", group="pg", topic="t", message_id="ID", **fields)  # type: ignore[arg-type]  # test fields


def deliver(time_ms: int, request: str, retry_times: int = 0) -> DeliveryTrace:
    return DeliveryTrace(
        time_ms=time_ms, region="r", group="cg", request_id=request, message_id="ID", retry_times=retry_times
    )


def test_a_message_from_send_to_success() -> None:
    """By time, whatever order the trace messages have; a delivery is part of its consumption."""
    found = rows(
        ConsumeTrace(request_id="2", message_id="ID", cost_ms=5, time_ms=60, group="cg"),
        deliver(55, "2", retry_times=1),
        ConsumeTrace(
            request_id="1", message_id="ID", cost_ms=4, success=False, outcome=4, time_ms=20, group="cg"
        ),
        deliver(16, "1"),
        send(10),
    )

    assert [(row.what, row.group, row.time_ms, row.cost_ms, row.result) for row in found] == [
        ("sent", "pg", 10, 3, "stored by b:1"),
        ("consumed", "cg", 20, 4, "failed"),
        ("consumed (retry 1)", "cg", 60, 5, "success"),
    ]
    assert {row.client for row in found} == {CLIENT}


def test_a_delivery_without_end_is_shown() -> None:
    """The consumer still works on it, or died."""
    (row,) = rows(deliver(16, "1", retry_times=2))

    assert (row.what, row.result) == ("being consumed (retry 2)", "its end is not known")


def test_a_transaction_and_a_recall() -> None:
    """Half message, end, end after a check; and a message that was taken back."""
    end = partial(EndTrace, region="r", group="pg", topic="t", message_id="ID")
    found = rows(
        send(1, message_type=TraceMessageType.TRANSACTION_HALF),
        end(time_ms=2, state="UNKNOW"),
        end(time_ms=3, state="COMMIT_MESSAGE", from_check=True),
        RecallTrace(time_ms=4, region="r", group="pg", topic="t", message_id="ID"),
    )

    assert [(row.what, row.result) for row in found] == [
        ("sent as half message", "stored by b:1"),
        ("ended", "unknown"),
        ("ended after a check", "commit"),
        ("recalled", "success"),
    ]


def test_traces_of_other_clients() -> None:
    """Those of the cloud say group and time only before; unknown outcomes are failures."""
    cloud = ConsumeTrace(request_id="1", message_id="ID", cost_ms=4)
    odd = ConsumeTrace(request_id="2", message_id="ID", success=False, outcome=77, time_ms=30, group="cg")
    old = ConsumeTrace(
        request_id="3", message_id="ID", success=False, outcome=ConsumeOutcome.SUCCESS, time_ms=40, group="cg"
    )

    found = rows(cloud, deliver(16, "1"), odd, old)

    assert [(row.group, row.time_ms, row.result) for row in found] == [
        ("cg", 16, "success"),
        ("cg", 30, "failed"),
        ("cg", 40, "failed"),
    ]


def test_traces_of_other_messages_are_left_out() -> None:
    """A trace message holds those of many."""
    other = RecallTrace(time_ms=1, region="r", group="g", topic="t", message_id="OTHER")

    assert rows(other) == []
