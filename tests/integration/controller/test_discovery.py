"""Clients of ordered subjects that know a name server only, and the controllers that it is part of."""

from __future__ import annotations

from pathlib import Path

from brokerset_client import Admin, ClientInstance
from brokerset_client.ordered.instance_transport import InstanceTransport
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import GetNextBrokerId
from brokerset_protocol.subject_words import CONTROLLERS_KEY, CONTROLLERS_NAMESPACE
from brokerset_rig.controller_group import CLUSTER, GROUP, HOST, controllers


async def test_name_servers_in_controllers_say_where_the_controllers_are(tmp_path: Path) -> None:
    """Also when the leader stops; what an administrator stores in its place counts instead."""
    async with controllers(
        tmp_path,
        3,
        enable_name_server=True,
        namesrv_listen_port=0,
        kv_config_path=tmp_path / "kv.json",
    ) as group:
        leader = await group.leader()
        follower = next(each for each in group.running if each != leader)
        namesrv = f"{HOST}:{group.running[follower].namesrv_port}"
        ask = Command(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            GetNextBrokerId(cluster_name=CLUSTER, broker_name=GROUP).to_ext(),
        )
        async with ClientInstance(namesrv) as instance:
            admin = Admin(instance=instance)
            transport = InstanceTransport(instance)

            named = await admin.kv_get(CONTROLLERS_NAMESPACE, CONTROLLERS_KEY)
            first = await transport.ask_controllers(ask, 5.0)
            await group.stop(leader)
            second = await transport.ask_controllers(ask, 10.0)
            await admin.kv_put(CONTROLLERS_NAMESPACE, CONTROLLERS_KEY, "elsewhere:1")
            stored = await admin.kv_get(CONTROLLERS_NAMESPACE, CONTROLLERS_KEY)

        assert named is not None
        assert set(named.split(";")) == {group.address(each) for each in range(3)}
        assert (first.code, second.code) == (0, 0)
        assert stored == "elsewhere:1"
