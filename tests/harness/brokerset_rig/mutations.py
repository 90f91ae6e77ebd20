"""Requests of every kind and how they are spoilt: what `tests/faults/fuzz.py` sends."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerset_formats.recall_handles import RecallHandle
from brokerset_rig import wire

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
TOPIC, GROUP, CLIENT = "fuzz", "fuzz-group", "127.0.0.1@fuzz"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"

ODD_TEXTS = (
    "", " ", "-1", "0", "1", "7", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "9" * 40, "1e9", "1.5", "0x10", "NaN", "true", "false", "null", "[]", "{}", "*", "A || B", "a||", "||",
    "\x00", "\x01", "\x02", "K\x01v\x02", "\x01\x02\x01\x02", "ü€😀", "..", "../../x", "a/b", "x" * 200, "%RETRY%" + GROUP, "%DLQ%" + GROUP,
    "SCHEDULE_TOPIC_XXXX", "TBW102", "broker-a", "DefaultCluster", "127.0.0.1:1", "::1", "TIMER_DELAY_MS\x015\x02", "DELAY\x0199\x02",
    "DELAY\x01-1\x02", "INNER_NUM\x013\x02", "UNIQ_KEY\x01x\x02", "KEYS\x01" + "k " * 500 + "\x02",
)  # fmt: skip
"""Texts that have broken servers of this kind, or that mean something in some field."""

ODD_VALUES: tuple[Any, ...] = (
    0,
    -1,
    2**31,
    2**63,
    2**64,
    1.5,
    True,
    None,
    [],
    {},
    [None],
    {"a": None},
    {"": {}},
    "x" * 1000,
)
"""JSON values of other types than a field or a body has."""


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request of one kind."""

    code: int
    ext: dict[str, str]
    body: bytes = b""


def requests() -> list[Request]:
    """One request at least for each code that the broker or the name server serves, and those of the golden answers."""
    found = []
    for path in sorted(GOLDEN.glob("*.json")):
        golden = json.loads(path.read_text())["request"]
        found.append(Request(golden["code"], golden["ext"] or {}, golden["body"].encode()))
    return found + _messages() + _clients() + _administration() + _routes()


def _body(value: object) -> bytes:
    return json.dumps(value).encode()


def _messages() -> list[Request]:
    item = (
        struct.pack(">iiiii", 45, 0, 0, 0, 5)
        + b"hello"
        + struct.pack(">h", 18)
        + b"WAIT\x01true\x02KEYS\x01a\x02"
    )
    keys = "UNIQ_KEY\x01AC11000100010001000100010001\x02TAGS\x01A\x02KEYS\x01k\x02"
    asked = (
        keys + f"MSG_TYPE\x01reply\x02CORRELATION_ID\x011\x02REPLY_TO_CLIENT\x01{CLIENT}\x02TTL\x013000\x02"
    )
    send = wire.send_ext(TOPIC, 0, keys)
    half = "UNIQ_KEY\x01AC11000100010001000100010001\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "msgId": "AC11000100010001000100010001",
    }
    long_names = {"producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
                  "bornTimestamp": "1", "flag": "0", "properties": keys, "reconsumeTimes": "0", "unitMode": "false", "batch": "false"}  # fmt: skip
    return [
        Request(10, long_names, b"x" * 100),
        Request(wire.SEND_V2, send, b"x" * 300),
        Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "DELAY\x011\x02"), b"later"),
        Request(wire.SEND_V2, {**wire.send_ext("%RETRY%" + GROUP, 0, "RETRY_TOPIC\x01fuzz\x02"), "j": "17", "l": "16"}, b"again"),
        Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010,1\x02"), b"light"),
        Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "__LITE_TOPIC\x01child\x02"), b"lite"),
        Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "_SYS_MSG_PRIORITY_\x013\x02"), b"urgent"),
        Request(wire.PULL, wire.pull_ext("%LMQ%a", 0, 0)),
        Request(wire.PULL, {**wire.pull_ext(TOPIC, 0, 0), "liteTopic": "child"}),
        Request(320, wire.send_ext(TOPIC, 1, "WAIT\x01true\x02", batch=True), item * 3),
        Request(wire.PULL, wire.pull_ext(TOPIC, 0, 0)),
        Request(wire.PULL, wire.pull_ext(TOPIC, 0, 1 << 40, suspend_ms=1000)),
        Request(361, wire.pull_ext(TOPIC, 0, 0)),
        Request(36, {"offset": "0", "group": GROUP, "delayLevel": "0", "originMsgId": "x", "originTopic": TOPIC, "maxReconsumeTimes": "16"}),
        Request(12, {"topic": TOPIC, "key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": "99999999999999"}),
        Request(33, {"offset": "0"}),
        Request(324, {**long_names, "topic": REPLY_TOPIC, "properties": asked}, b"reply"),
        Request(325, wire.send_ext(REPLY_TOPIC, 0, asked), b"reply"), Request(324, long_names, b"nobody asked"),
        Request(326, {**long_names, "bornHost": "127.0.0.1:1", "storeHost": "127.0.0.1:2", "storeTimestamp": "1", "properties": asked}, b"reply"),
        Request(wire.SEND_V2, {**wire.send_ext(TOPIC, 0, half), "f": "4"}, b"half"),
        Request(37, {**end, "commitOrRollback": "8"}), Request(37, {**end, "commitOrRollback": "12", "fromTransactionCheck": "true"}),
        Request(323, {"topic": "TRANS_CHECK_MAX_TIME_TOPIC", "msgId": "7F00000100002A9F0000000000000000"}),
        Request(370, {"topic": TOPIC, "recallHandle": "x"}),
        Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "TIMER_DELAY_MS\x0150\x02"), b"timed"),
        Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "TIMER_DELIVER_MS\x014102444800000\x02"), b"too far"),
        Request(370, {"producerGroup": "p", "topic": TOPIC, "recallHandle": RecallHandle(TOPIC, "broker-a", 4_102_444_800_000, "AC1100").encode()}),
    ]  # fmt: skip


def _clients() -> list[Request]:
    subscription = {
        "topic": TOPIC,
        "subString": "A || B",
        "tagsSet": ["A", "B"],
        "codeSet": [65, 66],
        "subVersion": 1,
        "expressionType": "TAG",
    }
    consumer = {"groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False, "subscriptionDataSet": [subscription]}  # fmt: skip
    queue = {"topic": TOPIC, "queueId": "0"}
    queues = [{"brokerName": "broker-a", "topic": TOPIC, "queueId": n} for n in range(2)]
    lock = _body({"clientId": CLIENT, "consumerGroup": GROUP, "mqSet": queues})
    return [
        Request(34, {}, _body({"clientID": CLIENT, "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]})),
        Request(35, {"clientID": CLIENT, "producerGroup": "p", "consumerGroup": GROUP}),
        Request(38, {"consumerGroup": GROUP}),
        Request(41, {}, lock), Request(42, {}, lock),
        Request(46, {}, _body({"clientId": CLIENT, "group": GROUP, "subscriptionData": subscription})),
        Request(14, {"consumerGroup": GROUP, **queue}),
        Request(15, {"consumerGroup": GROUP, **queue, "commitOffset": "1"}),
        Request(29, {**queue, "timestamp": "1700000000000", "boundaryType": "LOWER"}),
        Request(30, queue), Request(31, queue), Request(32, queue),
    ]  # fmt: skip


def _administration() -> list[Request]:
    group = {"groupName": GROUP, "consumeEnable": True, "consumeBroadcastEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
             "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True, "attributes": {}}  # fmt: skip
    topic = {"topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
             "attributes": {}}  # fmt: skip
    create = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
              "topicSysFlag": "0", "order": "false", "attributes": "+message.type=NORMAL"}  # fmt: skip
    direct = {
        "consumerGroup": GROUP,
        "clientId": CLIENT,
        "msgId": "7F00000100002A9F0000000000000000",
        "brokerName": "broker-a",
    }
    pair = {"topic": TOPIC, "group": GROUP}
    by_group = {"consumerGroup": GROUP, "topic": TOPIC}
    return [
        Request(17, create), Request(18, {}, _body({"topicConfigList": [topic]})), Request(21, {}), Request(351, {"topic": TOPIC}),
        Request(25, {}, b"fileReservedTime=48\nlongPollingEnable=true\n"), Request(26, {}), Request(28, {}), Request(43, {}), Request(45, {}), Request(60, {}), Request(61, {}),
        Request(200, {}, _body(group)), Request(225, {}, _body({"groupConfigList": [group]})), Request(201, {}), Request(352, {"group": GROUP}),
        Request(202, {"topic": TOPIC}), Request(203, {"consumerGroup": GROUP}), Request(204, {"producerGroup": "p"}), Request(328, {}),
        Request(207, {"groupName": GROUP, "cleanOffset": "true"}), Request(208, by_group), Request(215, {"topic": TOPIC}),
        Request(222, {**pair, "timestamp": "-1", "isForce": "true", "queueId": "0", "offset": "0"}), Request(223, {**pair, "clientAddr": ""}),
        Request(300, {"topic": TOPIC}), Request(303, pair), Request(305, {}), Request(306, {}), Request(316, {}), Request(329, {}),
        Request(307, {"consumerGroup": GROUP, "clientId": CLIENT, "jstackEnable": "false"}), Request(309, direct),
        Request(308, {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": "a,b"}),
        Request(314, {"srcGroup": GROUP, "destGroup": "other", "topic": TOPIC, "offline": "false"}),
        Request(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}), Request(317, {"isOrder": "false"}),
        Request(321, {"topic": TOPIC, "queueId": "0", "index": "0", "count": "10", "consumerGroup": GROUP}),
        Request(343, {"group": GROUP}), Request(345, pair), Request(353, {**pair, "readable": "true"}),
        Request(401, {}, _body({"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0})), Request(402, {}),
    ]  # fmt: skip


def _routes() -> list[Request]:
    broker = {
        "brokerName": "b",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "c",
        "haServerAddr": "127.0.0.1:2",
        "brokerId": "0",
    }
    topic = {
        "topicName": TOPIC,
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    version = {"counter": 1, "timestamp": 1, "stateVersion": 0}
    registration = {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": {TOPIC: topic}},
    }
    entry = {"namespace": "n", "key": "k"}
    return [
        Request(103, broker, _body(registration)),
        Request(104, broker), Request(322, broker, _body(version)), Request(904, broker), Request(901, {"clusterName": "c", "brokerName": "b"}),
        Request(100, {**entry, "value": "v"}), Request(101, entry), Request(102, entry), Request(219, {"namespace": "n"}),
        Request(105, {"topic": TOPIC}), Request(106, {}), Request(206, {}), Request(224, {"cluster": "c"}), Request(304, {}),
        Request(205, {"brokerName": "b"}), Request(327, {"brokerName": "b"}), Request(216, {"topic": TOPIC, "clusterName": "c"}),
        Request(217, {"topic": TOPIC}, _body({"queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}]})),
        Request(311, {}), Request(312, {}), Request(313, {}), Request(318, {}, b"orderMessageEnable=true\n"), Request(319, {}),
    ]  # fmt: skip


def plain(request: Request) -> bytes:
    """The frame of a request as it should be."""
    return wire.frame(request.code, request.ext, request.body)


def mutate_fields(request: Request, source: random.Random, others: list[Request]) -> bytes:
    """A readable frame whose fields, body or code are not what they should be: it reaches a handler."""
    ext: dict[str, Any] = dict(request.ext)
    code, body = request.code, request.body
    for _ in range(source.randrange(1, 4)):
        kind = source.randrange(9)
        name = source.choice(sorted(ext)) if ext else "topic"
        if kind <= 2:
            ext[name] = source.choice(ODD_TEXTS)
        elif kind == 3:
            ext.pop(name, None)
        elif kind == 4:
            ext[name] = source.choice((0, -1, 2**40, 1.5, True))
        elif kind == 5 and ext:
            ext[name] = ext[source.choice(sorted(ext))]
        elif kind == 6:
            ext.update(source.choice(others).ext)
        elif kind == 7:
            code = source.choice(others).code
        else:
            body = mutate_body(body, source)
    header: dict[str, Any] = {"code": code, "language": "JAVA", "version": 479, "opaque": source.randrange(1 << 31), "flag": 0, "extFields": ext,
                              "serializeTypeCurrentRPC": "JSON"}  # fmt: skip
    if source.random() < 0.03:
        header[source.choice(sorted(header))] = source.choice([*ODD_VALUES, 2, 3, "GO", "NONE"])
    if source.random() < 0.15:
        return _binary(code, ext, body)
    text = json.dumps(header, ensure_ascii=source.random() < 0.5).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def _binary(code: int, ext: dict[str, Any], body: bytes) -> bytes:
    fields = b"".join(
        struct.pack(">h", len(key.encode())) + key.encode() + struct.pack(">i", len(text)) + text
        for key, text in ((key, str(value).encode()[:30_000]) for key, value in ext.items())
    )
    header = struct.pack(">hBhiii", code, 0, 479, 5, 0, 0) + struct.pack(">i", len(fields)) + fields
    return struct.pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def mutate_body(body: bytes, source: random.Random) -> bytes:
    """Another body: a JSON node replaced where it is JSON, otherwise bytes flipped, cut, put in; or none, or noise."""
    kind = source.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return source.randbytes(source.randrange(1, 200))
    try:
        tree = json.loads(body)
    except ValueError:
        tree = None
    if tree is not None and kind < 5:
        return json.dumps(_replace_node(tree, source)).encode()
    spoilt = bytearray(body or b"\0")
    for _ in range(source.randrange(1, 6)):
        spoilt[source.randrange(len(spoilt))] ^= 1 << source.randrange(8)
    return bytes(spoilt[: source.randrange(1, len(spoilt) + 1)] if kind == 2 else spoilt)


def _replace_node(tree: Any, source: random.Random) -> Any:
    """`tree` with one node, drawn at random, replaced, dropped or doubled."""
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys: list[Any] = (
            list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        )
        places += [(node, key) for key in keys]
        waiting += [node[key] for key in keys]
    if not places or source.random() < 0.05:
        return source.choice(ODD_VALUES)
    node, key = source.choice(places)
    if source.random() < 0.8:
        node[key] = source.choice([*ODD_VALUES, *ODD_TEXTS])
    elif isinstance(node, dict):
        del node[key]
    else:
        node.append(node[key])
    return tree


def mutate_bytes(data: bytes, source: random.Random) -> tuple[bytes, bool]:
    """A spoilt frame, and whether its length field is still right, so that others may follow it."""
    spoilt = bytearray(data)
    kind = source.randrange(8)
    if kind == 0:  # flips behind the length
        for _ in range(source.randrange(1, 6)):
            spoilt[source.randrange(4, len(spoilt))] ^= 1 << source.randrange(8)
    elif kind == 1:  # another value somewhere in the header
        at = source.randrange(8, len(spoilt))
        spoilt[at : at + source.randrange(1, 8)] = source.randbytes(source.randrange(0, 12))
    elif kind == 2:  # a piece doubled
        at = source.randrange(8, len(spoilt))
        piece = spoilt[at : at + source.randrange(1, 64)]
        spoilt[at:at] = piece * source.randrange(1, 20)
    elif kind == 3:  # a digit replaced by something odd
        digits = [i for i in range(8, len(spoilt)) if spoilt[i : i + 1].isdigit()]
        if digits:
            at = source.choice(digits)
            spoilt[at : at + 1] = source.choice(ODD_TEXTS).encode()
    elif kind == 4:  # cut
        del spoilt[source.randrange(8, len(spoilt)) :]
    elif kind == 5:  # another header length
        spoilt[4:8] = struct.pack(
            ">I", source.choice([0, 1, len(spoilt), 0xFFFFFF, 1 << 24, source.getrandbits(32)])
        )
    elif kind == 6:  # a lying frame length: whatever follows is swallowed, or the connection is closed
        spoilt[:4] = struct.pack(
            ">I", source.choice([0, 3, 4, len(spoilt) + 50, 0x7FFFFFFF, 0xFFFFFFFF, 20 << 20])
        )
        return bytes(spoilt), False
    else:
        return source.randbytes(source.randrange(1, 400)), False
    spoilt[:4] = struct.pack(">I", len(spoilt) - 4)
    return bytes(spoilt), True
