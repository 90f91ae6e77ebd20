"""Whatever a broker sends to a client, it gets an answer, or a refusal with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from brokerset_client.client_requests import ClientRequests
from brokerset_client.messages import MessageView
from brokerset_client.replies import ReplyTable
from brokerset_formats.hosts import Host
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.bodies.connections import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from brokerset_protocol.bodies.heartbeat import ConsumerData
from brokerset_protocol.bodies.queues import MessageQueue, ResetOffsetBody
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import Connection

CODES = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
NAMES = ("group", "consumerGroup", "topic", "clientId", "jstackEnable", "timestamp", "queueId", "offset")
QUEUE = MessageQueue("t", "b", 0)
HOST = Host.from_text("127.0.0.1", 10911)
MESSAGE = encode_record(
    Record(
        body=b"body", topic="t", queue_id=0, queue_offset=0, offset=0, born_timestamp=1, born_host=HOST,
        store_timestamp=1, store_host=HOST, properties=encode_properties({"TAGS": "a"}),
    )
)  # fmt: skip


class Member:
    """A consumer of group g that notes how it is moved."""

    group = "g"

    def __init__(self) -> None:
        self.moved: list[Mapping[MessageQueue, int]] = []

    def consumer_data(self) -> ConsumerData:
        """Never asked here."""
        raise NotImplementedError

    def route_changed(self, topic: str) -> None:
        """Never called here."""

    def members_changed(self) -> None:
        """Nothing to do."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Note it."""
        self.moved.append(offsets)

    def positions(self, topic: str) -> Mapping[MessageQueue, int]:
        """One queue."""
        return {QUEUE: 1}

    def running_info(self) -> ConsumerRunningInfo:
        """Nothing much."""
        return ConsumerRunningInfo()

    async def consume_directly(self, message: MessageView) -> ConsumeMessageDirectlyResult:
        """The listener reads the message."""
        assert message.topic is not None
        return ConsumeMessageDirectlyResult(ConsumeResult.CR_SUCCESS)


def answered(command: Command) -> Command:
    """The answer of a client whose only member is of group g."""

    async def ask() -> Command:
        handlers = ClientRequests({"g": Member()}, {}, ReplyTable(ManualClock()), lambda: "c").handlers()
        try:
            answer = handlers[command.code](cast(Connection, None), command)
            return cast(Command, await answer if asyncio.iscoroutine(answer) else answer)
        except Rejected as refused:
            return Command(refused.code, remark=refused.remark)

    return asyncio.run(ask())


bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([ResetOffsetBody({QUEUE: 5}).to_json(), MESSAGE]),
    st.tuples(st.just(MESSAGE), st.integers(0, len(MESSAGE) - 1), st.integers(0, 255)).map(
        lambda change: change[0][: change[1]] + bytes([change[2]]) + change[0][change[1] + 1 :]
    ),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: json.dumps({"offsetTable": value}).encode()),
)


@given(
    st.sampled_from((*CODES, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)),
    st.dictionaries(
        st.sampled_from(NAMES), st.sampled_from(["g", "t", "", "true", "-1", "9" * 30]), max_size=8
    ),
    bodies,
)
@example(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "g", "topic": "t", "timestamp": "0"}, b"")
def test_a_client_answers_or_refuses_whatever_it_is_sent(
    code: RequestCode, ext: dict[str, str], body: bytes
) -> None:
    """Missing and odd fields, bodies of any bytes, damaged messages: never an exception of another kind."""
    answer = answered(Command(code, ext, body))

    assert answer.code == 0 or answer.remark


def test_good_requests_are_answered() -> None:
    """The property above does not hold because everything is refused."""
    group = {"group": "g", "consumerGroup": "g", "topic": "t", "clientId": "c", "timestamp": "0"}
    wanted = {RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody({QUEUE: 5}).to_json()}

    answers = [answered(Command(code, group, wanted.get(code, MESSAGE))) for code in CODES]

    assert [answer.code for answer in answers] == [0] * len(CODES)
