"""A consumer that pops over a raw connection, from a broker of any make, and what it was given."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from brokerset_formats.pop.handles import Handle, parse_handle
from brokerset_formats.pop.names import NORMAL, real_topic
from brokerset_formats.pop.offset_infos import parse_start_offsets
from brokerset_formats.properties import Property, decode_properties
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig import wire

NOTHING = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.POLLING_FULL,
)
"""Answers of brokers that have nothing to give just now."""


@dataclass(frozen=True, slots=True)
class Given:
    """One message, as a pop gave it."""

    body: str
    handle: str
    at: float
    """When it came, in seconds of the wall clock."""

    @property
    def offset(self) -> int:
        """In the queue that it lies in, which may be of the retry topic."""
        return parse_handle(self.handle).queue_offset

    @property
    def visible_at(self) -> float:
        """When others get it, in seconds of the wall clock."""
        return parse_handle(self.handle).visible_time / 1000


class PopRefused(ValueError):
    """A broker gave nothing and had a reason."""


class PopClient(wire.Client):
    """One member of a group at one broker."""

    def __init__(
        self, port: int, topic: str, group: str, broker: str = "broker-a", timeout: float = 30.0
    ) -> None:
        super().__init__(port, timeout)
        self.topic, self.group, self.broker = topic, group, broker

    def create_topic(self, queues: int = 1) -> None:
        """Make the topic, however often. Raises `PopRefused`."""
        ext = {"topic": self.topic, "defaultTopic": "TBW102", "readQueueNums": str(queues),
               "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
               "order": "false"}  # fmt: skip
        answer = self.call(wire.CREATE_TOPIC, ext)
        if answer.code:
            raise PopRefused(f"create topic: {answer.code} {answer.remark}")

    def send(self, body: str, queue_id: int = 0) -> None:
        """Send one. Raises `PopRefused` unless it is stored as safely as the broker promises."""
        answer = self.call(
            wire.SEND_V2, wire.send_ext(self.topic, queue_id, "WAIT\x01true\x02"), body.encode()
        )
        if answer.code:
            raise PopRefused(f"send: {answer.code} {answer.remark}")

    def end(self, queue_id: int = 0) -> int:
        """The offset behind the last message that can be read: Java's queues follow its log."""
        answer = self.call(
            RequestCode.GET_MAX_OFFSET, {"topic": self.topic, "queueId": str(queue_id), "committed": "true"}
        )
        if answer.code:
            raise PopRefused(f"end: {answer.code} {answer.remark}")
        return int(answer.ext["offset"])

    def pop(
        self,
        invisible_s: float,
        *,
        count: int = 32,
        queue_id: int = -1,
        poll_s: float = 0.0,
        attempt: str | None = None,
    ) -> list[Given]:
        """What a pop gives; with an attempt it is an ordered one. Raises `PopRefused`."""
        now_ms = time.time_ns() // 1_000_000
        ext = {"consumerGroup": self.group, "topic": self.topic, "queueId": str(queue_id),
               "maxMsgNums": str(count), "invisibleTime": str(round(invisible_s * 1000)),
               "pollTime": str(round(poll_s * 1000)), "bornTime": str(now_ms), "initMode": "0", "exp": "*",
               "expType": "TAG"}  # fmt: skip
        if attempt is not None:
            ext |= {"order": "true", "attemptId": attempt}
        answer = self.call(RequestCode.POP_MESSAGE, ext)
        if answer.code in NOTHING:
            return []
        if answer.code:
            raise PopRefused(f"pop: {answer.code} {answer.remark}")
        return self._given(answer)

    def _given(self, answer: wire.Answer) -> list[Given]:
        fields = answer.ext
        starts = parse_start_offsets(fields["startOffsetInfo"])
        found = []
        for record in wire.records(answer.body):
            text = decode_properties(record.properties.encode()).get(Property.POP_CK)
            if text is None:  # of the topic itself: clients make the handle
                text = Handle(
                    starts[NORMAL, record.queue_id], int(fields["popTime"]), int(fields["invisibleTime"]),
                    int(fields["reviveQid"]), NORMAL, self.broker, record.queue_id, record.queue_offset,
                ).encode()  # fmt: skip
            found.append(Given(record.body.decode(), text, time.time()))
        return found

    def _about(self, given: Given) -> dict[str, str]:
        handle = parse_handle(given.handle)
        topic = real_topic(self.group, self.topic, handle.retry_flag)
        return {"consumerGroup": self.group, "topic": topic, "queueId": str(handle.queue_id),
                "extraInfo": given.handle, "offset": str(handle.queue_offset)}  # fmt: skip

    def ack(self, given: Given) -> int:
        """The code of the answer."""
        return self.call(RequestCode.ACK_MESSAGE, self._about(given)).code

    def change(self, given: Given, invisible_s: float) -> Given:
        """Make it invisible for so long from now on; with its new handle. Raises `PopRefused`."""
        ext = {**self._about(given), "invisibleTime": str(round(invisible_s * 1000))}
        answer = self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if answer.code:
            raise PopRefused(f"change: {answer.code} {answer.remark}")
        fields = answer.ext
        handle = replace(
            parse_handle(given.handle), start_offset=given.offset, pop_time=int(fields["popTime"]),
            invisible_time=int(fields["invisibleTime"]), revive_queue=int(fields["reviveQid"]),
        )  # fmt: skip
        return replace(given, handle=handle.encode())
