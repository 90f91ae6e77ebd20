"""The answers of RocketMQ's own name server, recorded from 5.5.0, against ours in the same state."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import orjson
import pytest

from brokerset_formats import fastjson
from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_protocol import headers
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import connected, running_name_server
from brokerset_runtime.remoting import Connection

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
CASES = sorted(path.stem for path in GOLDEN.glob("namesrv-*.json"))
SECONDS_MAX = 10.0

ALWAYS_DIFFERENT = {
    "language": "we are not written in Java",
    "extFields": "ours is always there: clients that decode a header class need it",
}
"""Header fields that may differ in every answer, and why."""

DIFFERENT = {
    ("namesrv-901-member-group", "remark"): "Java's `not set any response code` on success is an accident",
}
"""Fields that may differ in one answer, and why."""

UNORDERED = {"topicList"}
"""Lists that Java takes from hash sets: their order means nothing."""


def test_all_cases_are_there() -> None:
    """Without the recordings nothing below would be compared."""
    assert len(CASES) >= 10


def normal(value: object, name: str = "") -> object:
    """The value with unordered lists sorted and the order of keys made visible."""
    if isinstance(value, dict):
        return [(key, normal(item, key)) for key, item in value.items()]
    if isinstance(value, list):
        items = [normal(item) for item in value]
        return sorted(items, key=str) if name in UNORDERED else items
    return value


async def register(connection: Connection, broker_id: int, address: str, names: list[str]) -> None:
    """Bring a broker of the recorded cluster in."""
    header = headers.RegisterBroker(
        broker_name="broker-a",
        broker_addr=address,
        cluster_name="DefaultCluster",
        ha_server_addr=address,
        broker_id=broker_id,
        enable_acting_master=False,
    )
    topics = {name: TopicConfig(name, 4, 4, 6) for name in names}
    body = RegisterBrokerBody(TopicConfigTable(DataVersion(1, 1, 1), topics)).to_json()
    answer = await connection.call(Command(RequestCode.REGISTER_BROKER, header.to_ext(), body), SECONDS_MAX)
    assert answer.code == 0, answer.remark


async def exchange(port: int, code: int, ext: dict[str, str], body: bytes) -> tuple[dict[str, object], bytes]:
    """Header and body of the answer to the very bytes that the recorder sent."""
    header: dict[str, object] = {
        "code": code,
        "language": "JAVA",
        "version": 479,
        "opaque": 7,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
    }
    if ext:
        header["extFields"] = ext
    data = orjson.dumps(header)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            writer.write(struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body)
            length, head = struct.unpack(">ii", await reader.readexactly(8))
            answer = await reader.readexactly(length - 4)
    finally:
        writer.close()
        await writer.wait_closed()
    return orjson.loads(answer[:head]), answer[head:]


async def answer_of(
    folder: Path, code: int, ext: dict[str, str], body: bytes
) -> tuple[dict[str, object], bytes]:
    """Our answer in the state of the recorded cluster: a master, a slave with id 2, its topics."""
    topics = orjson.loads(orjson.loads((GOLDEN / "namesrv-206-topics.json").read_bytes())["body"])[
        "topicList"
    ]
    async with running_name_server(folder) as server, connected(server.port) as broker:
        await register(broker, 0, "127.0.0.1:10911", topics)
        await register(broker, 2, "127.0.0.1:11911", topics)
        return await exchange(server.port, code, ext, body)


@pytest.mark.parametrize("case", CASES)
def test_answer_is_the_recorded_one(case: str, tmp_path: Path) -> None:
    """Header fields are equal but for the listed ones; bodies say the same in the same order of keys."""
    recorded = orjson.loads((GOLDEN / f"{case}.json").read_bytes())
    request = recorded["request"]
    expected = orjson.loads(recorded["header"])

    header, body = asyncio.run(answer_of(tmp_path, request["code"], request["ext"], request["body"].encode()))

    for name in sorted(header.keys() | expected.keys()):
        if name not in ALWAYS_DIFFERENT and (case, name) not in DIFFERENT:
            assert header.get(name) == expected.get(name), name
    assert header["extFields"] == expected.get("extFields", {})
    if recorded["body"]:
        assert normal(orjson.loads(body)) == normal(fastjson.loads(recorded["body"]))
    else:
        assert body == b""
    if request["code"] == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        assert body.decode() == recorded["body"]
