"""A set that has nothing but IPv6: processes with a pod's settings and environment, on `::1`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from brokerset_client import Message, Producer
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_rig.stack import free_ports
from brokerset_runtime.remoting import ConnectionClosed

HOST: Final = "::1"
BOTH_SECONDS_MAX: Final = 60.0


@contextmanager
def _process(module: str, folder: Path, settings: dict[str, str]) -> Iterator[None]:
    folder.mkdir(parents=True)
    file = folder / "settings.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "-c", str(file)],
            env={**os.environ, "POD_IP": HOST},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(40)


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
    with ExitStack() as running:
        running.enter_context(
            _process(
                "brokerset_controller",
                tmp_path / "controller",
                {
                    "controllerDLegerGroup": "orders",
                    "controllerDLegerSelfId": "n0",
                    "controllerDLegerPeers": f"n0-[{HOST}]:{controller}",
                    "raftPeers": f"n0-[{HOST}]:{raft}",
                    "listenPort": str(controller),
                    "raftListenPort": str(raft),
                    "namesrvListenPort": str(namesrv),
                    "controllerStorePath": str(tmp_path / "controller" / "raft"),
                    "kvConfigPath": str(tmp_path / "controller" / "kv.json"),
                    "configStorePath": str(tmp_path / "controller" / "controller.properties"),
                    "httpPort": "0",
                },
            )
        )
        for number, (port, ha_port) in enumerate(zip(ports[:2], ports[2:], strict=True)):
            folder = tmp_path / f"broker-{number}"
            running.enter_context(
                _process(
                    "brokerset_broker",
                    folder,
                    {
                        **addresses,
                        "brokerIP1": HOST,
                        "brokerName": "orders-0",
                        "enableControllerMode": "true",
                        "expectedReplicas": "2",
                        "minInSyncReplicas": "2",
                        "allAckInSyncStateSet": "true",
                        "listenPort": str(port),
                        "haListenPort": str(ha_port),
                        "storePathRootDir": str(folder / "store"),
                        "mappedFileSizeCommitLog": "16777216",
                        "httpPort": "0",
                    },
                )
            )

        found = 0
        limit = time.monotonic() + BOTH_SECONDS_MAX
        while found < 2 and time.monotonic() < limit:
            time.sleep(0.2)
            try:
                found = asyncio.run(_in_sync(addresses["controllerAddr"]))
            except (ClientError, ConnectionClosed):
                continue

        assert found == 2, [
            (log.parent.name, log.read_text(errors="replace")[-2000:]) for log in tmp_path.glob("*/log")
        ]
        assert asyncio.run(_send(addresses["namesrvAddr"])) == "orders-0"
