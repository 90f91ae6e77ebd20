"""Trace messages hold every trace, in order, within the bounds of a message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_client.tracing import BATCH_MAX, BODY_BYTES_MAX, KEYS_CHARACTERS_MAX, plan_messages
from brokerset_protocol.bodies.traces import (
    MISSING,
    ConsumeTrace,
    DeliveryTrace,
    EndTrace,
    RecallTrace,
    SendTrace,
    Trace,
    TraceMessageType,
    decode_traces,
    encode_trace,
)

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12).filter(
    lambda text: text != MISSING
)
NAME = TEXT.filter(bool)
KEYS = st.one_of(
    st.lists(st.text("abcé-0", min_size=1, max_size=6), max_size=3).map(" ".join),
    st.integers(0, 9000).map(lambda size: "k" * size),
    st.integers(0, 9000).map(lambda count: " ".join(["key"] * count)),
)
TIME = st.integers(0, 2**62)
SIZE = st.integers(0, 2**31 - 1)
HEAD = {"time_ms": TIME, "region": NAME, "group": NAME}
ID = st.text("0123456789ABCDEF", min_size=32, max_size=32)

TRACES: st.SearchStrategy[Trace] = st.one_of(
    st.builds(
        SendTrace, **HEAD, topic=NAME, message_id=ID, tags=TEXT, keys=KEYS, store_host=TEXT, body_length=SIZE,
        cost_ms=SIZE, message_type=st.sampled_from(TraceMessageType), offset_message_id=TEXT,
        success=st.booleans(),
    ),
    st.builds(DeliveryTrace, **HEAD, request_id=ID, message_id=ID, retry_times=SIZE, keys=KEYS),
    st.builds(
        ConsumeTrace, request_id=ID, message_id=ID, cost_ms=SIZE, success=st.booleans(), keys=KEYS,
        outcome=st.integers(0, 9), time_ms=TIME, group=NAME,
    ),
    st.builds(
        EndTrace, **HEAD, topic=NAME, message_id=ID, tags=TEXT, keys=KEYS, store_host=TEXT,
        message_type=st.sampled_from(TraceMessageType), transaction_id=TEXT,
        state=st.sampled_from(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]), from_check=st.booleans(),
    ),
    st.builds(RecallTrace, **HEAD, topic=NAME, message_id=ID, success=st.booleans()),
)  # fmt: skip


@given(st.lists(TRACES, max_size=5))
def test_what_is_written_is_read(traces: list[Trace]) -> None:
    """Decoding gives back every record as it was."""
    assert decode_traces("".join(map(encode_trace, traces))) == (traces, 0)


@given(st.text(st.sampled_from("\x01\x02PubSfterRcal0129 ")))
def test_any_text_can_be_read(text: str) -> None:
    """What is no record is counted, never an exception."""
    traces, unreadable = decode_traces(text)

    assert len(traces) + unreadable <= text.count("\x02") + 1


@given(st.lists(TRACES, max_size=60))
def test_messages_keep_every_trace_within_bounds(traces: list[Trace]) -> None:
    """Their bodies together are the traces; each can be found by its id, and no message is too large."""
    messages = list(plan_messages(traces, "t"))

    read = [decode_traces(message.body.decode())[0] for message in messages]
    assert [trace for some in read for trace in some] == traces
    for message, some in zip(messages, read, strict=True):
        assert 1 <= len(some) <= BATCH_MAX
        assert len(message.body) <= BODY_BYTES_MAX or len(some) == 1
        assert len(" ".join(message.keys)) <= KEYS_CHARACTERS_MAX
        assert {trace.message_id for trace in some} <= set(message.keys)
        assert message.problem() is None
