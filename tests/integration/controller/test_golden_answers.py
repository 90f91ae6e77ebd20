"""The answers of RocketMQ's own controller, recorded from 5.5.0, against ours in the same state."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import orjson
import pytest

from brokerset_protocol.codes import RequestCode
from brokerset_rig.controller_group import (
    HOST,
    SECONDS_MAX,
    ControllerGroup,
    FakeBroker,
    brokers,
    controllers,
)
from brokerset_runtime.settings import from_properties

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
CASES = sorted(path.stem for path in GOLDEN.glob("controller-*.json"))

ALWAYS_DIFFERENT = {
    "language": "we are not written in Java",
    "version": "Java's controller never sets it",
    "extFields": "compared apart: ours is always there",
}
"""Header fields that may differ in every answer, and why."""


def test_all_cases_are_there() -> None:
    """Without the recordings nothing below would be compared."""
    assert len(CASES) >= 7


async def exchange(port: int, request: dict[str, object]) -> tuple[dict[str, object], bytes]:
    """Header and body of the answer to the very bytes that the recorder sent."""
    header: dict[str, object] = {
        "code": request["code"],
        "language": "JAVA",
        "version": 479,
        "opaque": 7,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
    }
    if request["ext"]:
        header["extFields"] = request["ext"]
    data, body = orjson.dumps(header), str(request["body"]).encode()
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            writer.write(struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body)
            length, head = struct.unpack(">ii", await reader.readexactly(8))
            answer = await reader.readexactly(length - 4)
    finally:
        writer.close()
        await writer.wait_closed()
    return orjson.loads(answer[:head]), answer[head:]


class Recorded:
    """A recorded answer, with the addresses of the recorded cluster replaced by ours."""

    def __init__(self, case: str, group: ControllerGroup, leader: int, found: list[FakeBroker]) -> None:
        text = (GOLDEN / f"{case}.json").read_text()
        order = [i for i in range(3) if i != leader] + [leader]  # the recorded leader was n2
        for number, node_id in enumerate(order):
            text = text.replace(f"127.0.0.1:{19876 + number}", group.address(node_id))
            text = text.replace(
                f"n{number}:{group.address(node_id)};", f"n{node_id}:{group.address(node_id)};"
            )
        text = text.replace('\\"controllerLeaderId\\":\\"n2\\"', f'\\"controllerLeaderId\\":\\"n{leader}\\"')
        for port, broker in ((10911, found[0]), (11911, found[1])):
            text = text.replace(f"127.0.0.1:{port}", broker.address)
        text = text.replace("peers-controller", "test-controllers")
        value = orjson.loads(text)
        self.request: dict[str, object] = value["request"]
        self.header: dict[str, object] = orjson.loads(value["header"])
        self.body: str = value["body"]


@pytest.mark.parametrize("case", CASES)
async def test_answer_is_the_recorded_one(case: str, tmp_path: Path) -> None:
    """Header fields and bodies say the same, in the same order of keys; of settings, those that we have."""

    async with controllers(tmp_path, 3) as group, brokers(group, 2) as found:
        leader = await group.leader()
        recorded = Recorded(case, group, leader, found)
        header, body = await exchange(group.ports[leader], recorded.request)

        if recorded.request["code"] == RequestCode.CONTROLLER_GET_METADATA_INFO:
            _sort_peers(recorded.header)
            _sort_peers(header)
        for name in sorted(header.keys() | recorded.header.keys()):
            if name not in ALWAYS_DIFFERENT:
                assert header.get(name) == recorded.header.get(name), name
        assert header["extFields"] == recorded.header.get("extFields", {})
        if recorded.request["code"] == RequestCode.GET_CONTROLLER_CONFIG:
            _compare_settings(body.decode(), recorded.body)
        else:
            assert body.decode() == recorded.body


def _sort_peers(header: dict[str, object]) -> None:
    fields = header["extFields"]
    assert isinstance(fields, dict)
    fields["peers"] = sorted(fields["peers"].split(";"))


def _compare_settings(got: str, recorded: str) -> None:
    """Sorted lines; what both know is spelled alike, and the others are ours or Java's machinery."""
    ours, java = from_properties(got), from_properties(recorded)

    assert got.splitlines() == sorted(got.splitlines(), key=lambda line: line.partition("=")[0])
    assert ours.keys() & java.keys() == {
        "bindAddress", "configBlackList", "configStorePath", "controllerDLegerGroup",
        "controllerDLegerPeers", "controllerDLegerSelfId", "controllerStorePath", "electMasterMaxRetryCount",
        "enableElectUncleanMaster", "listenPort",
        "notifyBrokerRoleChanged", "scanInactiveMasterInterval", "scanNotActiveBrokerInterval",
    }  # fmt: skip
    for name in ("electMasterMaxRetryCount", "enableElectUncleanMaster", "notifyBrokerRoleChanged"):
        assert ours[name] == java[name]
    assert ours["configBlackList"] == java["configBlackList"]
