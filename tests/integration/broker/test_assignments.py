"""Who pops and who pulls: what clients that leave the allocation to the broker are answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import Client, connected, running_broker, running_name_server


def wanted_mode(topic: str, group: str, mode: str, share: int = 0) -> bytes:
    return json.dumps(
        {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
    ).encode()


async def assignments(client: Client, topic: str, group: str, **changes: object) -> object:
    body = {
        "topic": topic, "consumerGroup": group, "clientId": "c1", "messageModel": "CLUSTERING",
        "strategyName": "AVG", **changes,
    }  # fmt: skip
    answer = await client.call(RequestCode.QUERY_ASSIGNMENT, json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS
    found = json.loads(answer.body).get("messageQueueAssignments")
    if found is None:
        return None
    return sorted((each["mode"], each["messageQueue"]["queueId"]) for each in found)


async def test_queues_are_allocated_by_the_broker(tmp_path: Path) -> None:
    """Pulled queues are divided among the members; a group that pops gets any queue; what cannot be said is
    not said, so that the client keeps what it has."""
    async with (
        running_name_server(tmp_path / "names") as names,
        running_broker(tmp_path / "broker", namesrv_addr=f"127.0.0.1:{names.port}") as broker,
        connected(broker.port) as connection,
        connected(broker.port) as other,
    ):
        client, second = Client(connection), Client(other)
        await client.create_topic("t", 4)
        assert await assignments(client, "t", "g") is None, "the group is not connected"
        await client.heartbeat("g", "t", client_id="c1")
        await second.heartbeat("g", "t", client_id="c2")
        while await assignments(client, "t", "g") is None:  # noqa: ASYNC110  # the name server hears of it soon
            await asyncio.sleep(0.01)

        assert await assignments(client, "t", "g") == [("PULL", 0), ("PULL", 1)]
        assert await assignments(client, "t", "g", strategyName="NO") is None
        assert await assignments(client, "no", "g") is None
        everything = [("PULL", number) for number in range(4)]
        assert await assignments(client, "t", "g", messageModel="BROADCASTING") == everything

        answer = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, wanted_mode("t", "g", "POP"))
        assert answer.code == ResponseCode.SUCCESS
        assert await assignments(client, "t", "g") == [("POP", -1)]
        assert await assignments(client, "%RETRY%g", "g") == [("PULL", 0)], "the group came by its heartbeat"


async def test_modes_outlive_the_broker_but_not_their_topic(tmp_path: Path) -> None:
    """A mode that was answered is there after a restart, and gone with the topic or the group."""
    async with running_broker(tmp_path) as broker, connected(broker.port) as connection:
        client = Client(connection)
        for topic in ("t", "u"):
            await client.create_topic(topic)
            answer = await client.call(
                RequestCode.SET_MESSAGE_REQUEST_MODE, wanted_mode(topic, "g", "POP", 3)
            )
            assert answer.code == ResponseCode.SUCCESS

    async with running_broker(tmp_path) as broker, connected(broker.port) as connection:
        client = Client(connection)
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="u")
        answer = await client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        entry = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 3}
        assert json.loads(answer.body) == {"messageRequestModeMap": {"t": {"g": entry}}}

        await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g")
        answer = await client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert json.loads(answer.body) == {"messageRequestModeMap": {}}


async def test_modes_that_cannot_be_set_are_refused_as_in_java(tmp_path: Path) -> None:
    """Retry topics pull; topic and group must be there."""
    async with (
        running_broker(tmp_path, auto_create_subscription_group=False) as broker,
        connected(broker.port) as connection,
    ):
        client = Client(connection)
        await client.create_topic("t")
        for topic, code, remark in (
            ("%RETRY%g", ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"),
            ("no", ResponseCode.TOPIC_NOT_EXIST, "topic[no] not exist"),
            ("t", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"),
        ):
            answer = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, wanted_mode(topic, "g", "POP"))
            assert (answer.code, answer.remark) == (code, remark)
