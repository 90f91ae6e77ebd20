"""Records of trace messages, against those that Java's encoder wrote (`tests/java/TraceRecords.java`)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

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
    encode_trace,
    index_keys,
)

GOLDEN = json.loads((Path(__file__).parents[3] / "tests" / "java" / "trace-records.json").read_text())
TIME = 1_700_000_000_123
REGION = "DefaultRegion"

SEND = SendTrace(
    time_ms=TIME,
    region=REGION,
    group="group",
    topic="topic",
    message_id="ID",
    tags="A",
    keys="k-1 k-2",
    store_host="127.0.0.1:10911",
    body_length=1234,
    cost_ms=7,
    offset_message_id="7F00000100002A9F0000000000011362",
)
DELIVERY = DeliveryTrace(
    time_ms=TIME,
    region=REGION,
    group="group",
    request_id="REQUEST",
    message_id="ID",
    retry_times=3,
    keys="k",
)
CONSUME = ConsumeTrace(
    request_id="REQUEST", message_id="ID", cost_ms=7, keys="k", time_ms=TIME, group="group"
)
END = EndTrace(
    time_ms=TIME,
    region=REGION,
    group="group",
    topic="topic",
    message_id="ID",
    tags="A",
    keys="k",
    store_host="127.0.0.1:10911",
    transaction_id="ID",
    state="COMMIT_MESSAGE",
)

RECORDS: dict[str, list[Trace]] = {
    "send": [SEND],
    "send without tags and keys": [replace(SEND, tags="", keys="", success=False)],
    "send of a half message": [
        replace(SEND, tags="näme", keys="k", message_type=TraceMessageType.TRANSACTION_HALF)
    ],
    "send of a delayed message": [replace(SEND, keys="k", message_type=TraceMessageType.DELAY)],
    "delivery": [DELIVERY, replace(DELIVERY, message_id="ID2", keys="")],
    "consumed": [CONSUME, replace(CONSUME, message_id="ID2", keys="")],
    "failed": [replace(CONSUME, success=False, outcome=ConsumeOutcome.FAILED)],
    "end COMMIT_MESSAGE": [END],
    "end ROLLBACK_MESSAGE": [replace(END, state="ROLLBACK_MESSAGE", from_check=True)],
    "end UNKNOW": [replace(END, state="UNKNOW")],
    "recall": [RecallTrace(time_ms=TIME, region=REGION, group="group", topic="topic", message_id="ID")],
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_javas(name: str) -> None:
    """Text and keys as Java's client writes them, read back as what they were made of."""
    traces = RECORDS[name]

    assert "".join(map(encode_trace, traces)) == GOLDEN[name]["text"]
    assert decode_traces(GOLDEN[name]["text"]) == (traces, 0)
    assert " ".join(sorted({key for trace in traces for key in index_keys(trace)})) == GOLDEN[name]["keys"]


def test_every_golden_record_is_read() -> None:
    """Also that of the cloud, which says neither when nor which group."""
    (trace,), unreadable = decode_traces(GOLDEN["consumed in the cloud"]["text"])

    assert unreadable == 0
    assert trace == replace(CONSUME, time_ms=None, group=None)
    assert set(GOLDEN) == {*RECORDS, "consumed in the cloud"}


def test_old_and_new_clients_are_read() -> None:
    """Before 4.4 there was no offset id; a later release may add fields at the end."""
    fields = encode_trace(SEND)[:-1].split("\x01")
    old = "\x01".join(fields[:12] + fields[13:]) + "\x02"
    new = "\x01".join([*fields, "127.0.0.1"]) + "\x02"

    assert decode_traces(old) == ([replace(SEND, offset_message_id="")], 0)
    assert decode_traces(new) == ([SEND], 0)


@pytest.mark.parametrize(
    "text",
    [
        "Pub\x01x\x02",
        "Pub\x02",
        "SubAfter\x01a\x01b\x01c\x01true\x01k\x010\x02",
        "Unheard\x011\x02",
        "\x01\x01\x02",
        "Pub" + "\x011" * 10 + "\x0177\x01id\x01true\x02",
    ],
)
def test_nonsense_is_counted(text: str) -> None:
    """One bad record takes no other with it, as it does in Java's reader."""
    assert decode_traces(encode_trace(SEND) + text + encode_trace(END)) == ([SEND, END], 1)


def test_separators_inside_fields_become_spaces() -> None:
    """Otherwise one application's keys would break what all others see."""
    (trace,), _ = decode_traces(encode_trace(replace(SEND, tags="a\x01b\x02c")))

    assert isinstance(trace, SendTrace)
    assert trace.tags == "a b c"
