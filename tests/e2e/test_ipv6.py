"""A set that has nothing but IPv6: processes with a pod's settings and environment, on `::1`."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from brokerset_client import Message, Producer
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_rig.pod_processes import broker_settings, controller_settings, logs, running
from brokerset_rig.stack import free_ports
from brokerset_runtime.remoting import ConnectionClosed

HOST: Final = "::1"
BOTH_SECONDS_MAX: Final = 60.0


async def _in_sync(controller: str) -> int:
    async with ControllerAdmin([controller]) as admin:
        groups = await admin.groups(["orders-0"])
    return len(groups[0].sync_state_set) if groups else 0


async def _send(name_server: str) -> str:
    async with Producer("senders", namesrv=name_server) as producer:
        sent = await producer.send(Message(topic="Payments", body=b"over IPv6"))
        return sent.queue.broker_name


@pytest.mark.timeout(180)
def test_a_set_works_over_ipv6_alone(tmp_path: Path) -> None:
    """Controller, name server, registration, replication and a client, with no IPv4 address in any of them."""
    controller, raft, namesrv, *ports = free_ports(7)
    addresses = {"namesrvAddr": f"[{HOST}]:{namesrv}", "controllerAddr": f"[{HOST}]:{controller}"}
    of_controller = controller_settings(tmp_path / "controller", f"[{HOST}]", controller, raft, namesrv)
    with ExitStack() as stack:
        stack.enter_context(
            running("brokerset_controller", tmp_path / "controller", of_controller, POD_IP=HOST)
        )
        for number, (port, ha_port) in enumerate(zip(ports[:2], ports[2:], strict=True)):
            folder = tmp_path / f"broker-{number}"
            own = {**broker_settings(folder, HOST, port, ha_port), **addresses, "minInSyncReplicas": "2"}
            stack.enter_context(running("brokerset_broker", folder, own, POD_IP=HOST))

        found = 0
        limit = time.monotonic() + BOTH_SECONDS_MAX
        while found < 2 and time.monotonic() < limit:
            time.sleep(0.2)
            try:
                found = asyncio.run(_in_sync(addresses["controllerAddr"]))
            except (ClientError, ConnectionClosed):
                continue

        assert found == 2, logs(tmp_path)
        assert asyncio.run(_send(addresses["namesrvAddr"])) == "orders-0"
