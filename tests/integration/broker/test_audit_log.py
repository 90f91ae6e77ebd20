"""Administrative acts in the log of a running broker and a running name server."""

from __future__ import annotations

import json
from pathlib import Path

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import HOST, Client, running_broker, running_name_server
from brokerset_rig.log_lines import lines_of
from brokerset_rig.user_clusters import ROOT, client_at, client_of, create_user, user_cluster
from brokerset_runtime.remoting import audit_log, connect

USERS = {
    "authentication_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
}


async def test_acts_at_a_broker_name_user_object_and_result(tmp_path: Path) -> None:
    """One line each, also of one that failed; none for a send, and no password in any."""
    async with running_broker(tmp_path, broker_name="a", **USERS) as broker:
        with lines_of(audit_log) as lines:
            client = Client(await connect(f"{HOST}:{broker.port}", sign=ROOT.sign))
            await client.create_topic("orders")
            assert (await client.send("orders")).code == 0
            failed = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="TBW102")
            body = json.dumps({"username": "app", "password": "hunter2"}).encode()
            assert (await client.call(RequestCode.AUTH_CREATE_USER, body, username="app")).code == 0
            client.connection.close()
            await client.connection.wait_closed()

    assert [(each["request"], each["objects"], each["result_code"]) for each in lines] == [
        ("UPDATE_AND_CREATE_TOPIC", ["Topic:orders"], 0),
        ("DELETE_TOPIC_IN_BROKER", ["Topic:TBW102"], failed.code),
        ("AUTH_CREATE_USER", ["User:app"], 0),
    ]
    assert failed.code != 0
    assert {(each["user"], each["peer"][0], each["broker_group"]) for each in lines} == {("root", HOST, "a")}
    assert "hunter2" not in str(lines)


async def test_acts_where_nobody_is_checked_have_an_address_and_no_user(tmp_path: Path) -> None:
    """A name server without authentication; what somebody claims to be is left out."""
    async with running_name_server(tmp_path) as names:
        with lines_of(audit_log) as lines:
            client = Client(await connect(f"{HOST}:{names.port}", sign=ROOT.sign))
            answer = await client.call(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
            client.connection.close()
            await client.connection.wait_closed()

    assert answer.code == ResponseCode.SUCCESS
    assert [(each["user"], each["peer"][0], each["objects"], each["result"]) for each in lines] == [
        (None, HOST, ["KV:n/k"], "SUCCESS")
    ]


async def test_acts_at_a_controller_and_through_a_slave(tmp_path: Path) -> None:
    """A controller says which replica and how it ended; the master says where the client is and who passed
    its request on."""
    async with user_cluster(tmp_path, {"a": 2}) as cluster:
        master = await cluster.broker("a")
        slave = next(broker for broker in cluster.brokers() if broker is not master)
        with lines_of(audit_log) as lines:
            async with client_of(slave) as client:
                await client.create_topic("orders")
                client_port = client.connection.local[1]
            async with client_at(cluster.controllers.address(0), ROOT) as root:
                fenced = await root.call(RequestCode.BROKERSET_FENCE_REPLICA, brokerName="none", brokerId=7)
                assert (await create_user(root, "app", "hunter2")).code == 0

    of_topic, *others = lines
    assert (of_topic["user"], of_topic["objects"]) == ("root", ["Topic:orders"])
    assert of_topic["peer"] == (HOST, client_port)
    assert of_topic["passed_on_by"] not in (None, of_topic["peer"])
    assert fenced.code != 0
    assert [(each["request"], each["broker_group"], each["result_code"]) for each in others] == [
        ("BROKERSET_FENCE_REPLICA", "none", fenced.code),
        ("AUTH_CREATE_USER", None, 0),
    ]
    assert others[0]["details"] == {"brokerId": "7"}
    assert "hunter2" not in str(lines)
