"""Administration of a live broker, compared with what Java's broker answered to the same requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brokerset_formats import fastjson
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import connected, running_broker
from brokerset_runtime.remoting import Connection

WIRE = Path(__file__).parents[2] / "peers/golden/wire"
BODY = b"body"


def golden(name: str) -> dict[str, Any]:
    """Request, header (parsed) and body of a recorded answer."""
    found: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    found["header"] = json.loads(found["header"])
    return found


async def ask(connection: Connection, code: int, body: bytes = b"", /, **ext: object) -> Command:
    """One request and its answer."""
    fields = {name: str(value) for name, value in ext.items()}
    return await connection.call(Command(code, fields, body), 10)


async def repeat(connection: Connection, name: str) -> tuple[Command, dict[str, Any]]:
    """Ask what was asked of Java's broker; its answer beside ours."""
    recorded = golden(name)
    request = recorded["request"]
    answer = await connection.call(Command(request["code"], request["ext"], request["body"].encode()), 10)
    return answer, recorded


async def send(connection: Connection, topic: str, queue_id: int = 0, **properties: str) -> Command:
    """Store one message."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return await ask(
        connection, RequestCode.SEND_MESSAGE_V2, BODY,
        a="g", b=topic, c="TBW102", d=4, e=queue_id, f=0, g=1, h=0, i=text, j=0, k="false", l=0, m="false",
    )  # fmt: skip


def heartbeat(group: str, topic: str = "wire", client: str = "c1", **changes: Any) -> bytes:
    """Body of a consumer's heartbeat."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": 1, "codeSet": [], "tagsSet": []}
        ],
        "unitMode": False,
        **changes,
    }
    return json.dumps(
        {
            "clientID": client,
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": 0,
            "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
            "withoutSub": False,
        }
    ).encode()


def assert_same_shape(ours: object, java: object, path: str = "") -> None:
    """The same field names and types; in tables, whose names are data, the entries that both have."""
    assert type(ours) is type(java), path
    if isinstance(ours, dict) and isinstance(java, dict):
        if path.endswith(("Table", "Map")):
            assert bool(ours) == bool(java), path
        else:
            assert ours.keys() == java.keys(), path
        for name in ours.keys() & java.keys():
            assert_same_shape(ours[name], java[name], f"{path}.{name}")


@pytest.mark.parametrize(
    "name",
    [
        "broker-14-offset-missing",
        "broker-29-search-offset",
        "broker-30-max-offset",
        "broker-31-min-offset",
        "broker-34-heartbeat",
        "broker-351-topic-config",
        "broker-38-consumer-list-missing",
        "broker-41-lock",
        "broker-unknown-code",
    ],
)
async def test_equal_answers(tmp_path: Path, name: str) -> None:
    """Code, remark, header fields and body are Java's, byte for byte in the fields."""

    async with running_broker(tmp_path) as broker, connected(broker.port) as connection:
        for _ in range(8):
            await send(connection, "wire")

        answer, recorded = await repeat(connection, name)

        assert answer.code == recorded["header"]["code"]
        assert answer.remark == recorded["header"].get("remark")
        assert answer.ext == recorded["header"].get("extFields", {})
        assert answer.body == recorded["body"].encode()


@pytest.mark.parametrize(
    "name",
    [
        "broker-201-all-groups",
        "broker-202-topic-stats",
        "broker-21-all-topic-config",
        "broker-26-config",
        "broker-32-earliest",
        "broker-43-all-consumer-offsets",
        "broker-45-all-delay-offsets",
    ],
)
async def test_answers_of_equal_shape(tmp_path: Path, name: str) -> None:
    """Where times and counters differ, the names of fields and the structure of the body are Java's."""

    async with running_broker(tmp_path) as broker, connected(broker.port) as connection:
        for _ in range(8):
            await send(connection, "wire")
        await ask(connection, RequestCode.HEART_BEAT, heartbeat("adm-group", "adm-topic"))
        for group, topic in (("wire-group", "wire"), ("adm-group", "adm-topic")):
            await ask(
                connection, RequestCode.PULL_MESSAGE, consumerGroup=group, topic=topic, queueId=0,
                queueOffset=0, maxMsgNums=32, sysFlag=5, commitOffset=0, suspendTimeoutMillis=0,
                subscription="*", subVersion=0, expressionType="TAG",
            )  # fmt: skip

        answer, recorded = await repeat(connection, name)

        assert answer.code == recorded["header"]["code"] == 0
        assert answer.remark == recorded["header"].get("remark")
        assert answer.ext.keys() == recorded["header"].get("extFields", {}).keys()
        if name == "broker-26-config":
            assert b"brokerName=broker-a\n" in answer.body
            return
        if not recorded["body"]:
            return
        assert_same_shape(fastjson.loads(answer.body), fastjson.loads(recorded["body"]))


async def test_runtime_info_has_java_s_keys(tmp_path: Path) -> None:
    """Every key of Java's, and numbers where `mqadmin clusterList` parses numbers."""

    async with running_broker(tmp_path) as broker, connected(broker.port) as connection:
        await send(connection, "wire")

        answer, recorded = await repeat(connection, "broker-28-runtime-info")
        table = json.loads(answer.body)["table"]
        expected = json.loads(recorded["body"])["table"]

        assert {k for k in expected if "/" not in k} <= table.keys()
        assert all(type(value) is str for value in table.values())
        for name in ("putTps", "getTransferredTps"):
            float(table[name].split(" ")[0])
        for name in ("earliestMessageTimeStamp", "pageCacheLockTimeMills", "sendThreadPoolQueueSize"):
            assert int(table[name]) >= 0
        assert 0 <= float(table["commitLogDiskRatio"]) <= 1
        assert table["brokerVersionDesc"] == "V5_5_0"
        assert table["brokerActive"] == "true"
        assert table["msgPutTotalTodayNow"] == "1"
