"""Everything that a Java 5.5.0 cluster answered is understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats import fastjson
from brokerset_formats.config import ConsumerOffsets, DelayOffsets
from brokerset_protocol import bodies, headers
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.commands import Command, CommandReader, encode
from brokerset_protocol.headers import Header

GOLDEN = sorted((Path(__file__).parents[2] / "peers/golden/wire").glob("*.json"))

REQUESTS: dict[int, type[Header]] = {
    11: headers.PullMessage,
    12: headers.QueryMessage,
    14: headers.QueryConsumerOffset,
    21: headers.GetAllTopicConfig,
    29: headers.SearchOffset,
    30: headers.GetMaxOffset,
    31: headers.GetMinOffset,
    32: headers.GetEarliestMsgStoretime,
    34: headers.Heartbeat,
    38: headers.GetConsumerListByGroup,
    101: headers.GetKVConfig,
    105: headers.GetRouteInfo,
    201: headers.GetAllSubscriptionGroup,
    202: headers.GetTopicStatsInfo,
    224: headers.GetTopicsByCluster,
    310: headers.SendMessageV2,
    351: headers.GetTopicConfig,
    901: headers.GetBrokerMemberGroup,
    1004: headers.GetReplicaInfo,
    1012: headers.GetNextBrokerId,
}
RESPONSES: dict[int, type[Header]] = {
    11: headers.PullMessageResponse,
    12: headers.QueryMessageResponse,
    14: headers.QueryConsumerOffsetResponse,
    21: headers.GetAllTopicConfigResponse,
    26: headers.GetBrokerConfigResponse,
    29: headers.SearchOffsetResponse,
    30: headers.GetMaxOffsetResponse,
    31: headers.GetMinOffsetResponse,
    32: headers.GetEarliestMsgStoretimeResponse,
    34: headers.HeartbeatResponse,
    101: headers.GetKVConfigResponse,
    201: headers.GetAllSubscriptionGroupResponse,
    310: headers.SendMessageResponse,
    1004: headers.GetReplicaInfoResponse,
    1005: headers.GetMetaDataResponse,
    1012: headers.GetNextBrokerIdResponse,
}
BODIES: dict[int, type[bodies.JsonBody]] = {
    21: bodies.TopicConfigTable,
    28: bodies.KVTable,
    41: bodies.LockBatchResponse,
    105: bodies.TopicRouteData,
    106: bodies.ClusterInfo,
    202: bodies.TopicStats,
    206: bodies.TopicList,
    224: bodies.TopicList,
    304: bodies.TopicList,
    901: bodies.BrokerMemberGroupResponse,
    907: bodies.HARuntimeInfo,
    1004: bodies.SyncStateSet,
    1006: bodies.BrokerReplicasInfo,
    1007: bodies.EpochEntryCache,
}
TABLES: dict[int, Callable[[bytes], object]] = {
    26: properties_text.from_text,
    43: ConsumerOffsets.decode,
    45: DelayOffsets.decode,
    201: bodies.group_table,
    351: bodies.topic_config,
    1010: properties_text.from_text,
}
SAME_TEXT = {28, 41, 105, 202, 206, 224, 304, 907, 1004, 1006, 1007}
"""Answers that we write byte for byte as Java does."""


def answer(path: Path) -> tuple[int, dict[str, str], Command]:
    """Code and fields of the request, and the answer as read from a frame that is made of the raw header."""
    data = json.loads(path.read_text())
    header, body = data["header"].encode(), data["body"].encode()
    frame = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
    (command,) = CommandReader().feed(frame)
    return data["request"]["code"], data["request"]["ext"], command


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_answer_decodes(path: Path) -> None:
    """Header, fields and body of the answer are read into typed values."""
    code, _, command = answer(path)

    assert command.is_response
    assert command.opaque == 7
    if code in RESPONSES and command.ext:
        header = RESPONSES[code].from_ext(command.ext)
        assert header.to_ext() == command.ext
    if command.body:
        if code in TABLES:
            assert TABLES[code](command.body)
        else:
            assert BODIES[code].from_json(command.body)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_request_decodes(path: Path) -> None:
    """The fields of the request are read and written unchanged."""
    code, ext, _ = answer(path)
    if "without-fields" in path.stem or code not in REQUESTS:
        assert not ext or "without-fields" in path.stem or code == 1007
        return

    header = REQUESTS[code].from_ext(ext)

    assert {name: value for name, value in header.to_ext().items() if name in ext} == ext
    assert CommandReader().feed(encode(Command(code, ext)))[0].ext == ext


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_answer_is_written_as_java_writes_it(path: Path) -> None:
    """A body that was read is written with the same content: same text where Java's is standard JSON."""
    code, _, command = answer(path)
    if code not in BODIES or not command.body:
        return

    written = BODIES[code].from_json(command.body).to_json()

    if code in SAME_TEXT:
        assert written == command.body
    else:
        assert fastjson.loads(written) == fastjson.loads(command.body)


def test_configuration_is_written_as_java_writes_it() -> None:
    """The properties text of a broker's configuration is the same after reading and writing."""
    path = next(path for path in GOLDEN if path.stem == "broker-26-config")
    body = answer(path)[2].body

    assert properties_text.to_text(properties_text.from_text(body)) == body


def test_lock_request_decodes() -> None:
    """The queues to lock are values."""
    path = next(path for path in GOLDEN if path.stem == "broker-41-lock")
    request = json.loads(path.read_text())["request"]["body"]

    body = bodies.LockBatchRequest.from_json(request.encode())

    assert body.mq_set == {bodies.MessageQueue("wire", "broker-a", 0)}
    assert (body.client_id, body.consumer_group, body.only_this_broker) == ("c", "wire", False)
