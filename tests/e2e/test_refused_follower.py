"""A real broker that refuses to follow, seen by the operator's own eyes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from brokerset_client import Message, Producer
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_formats.epochs import decode_epoch_file, encode_epoch_file, history_of
from brokerset_operator.brokers_view import Trouble, observe_troubles
from brokerset_operator.model import names
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_rig.pod_processes import broker_settings, controller_settings, logs, running
from brokerset_rig.stack import free_ports

T = TypeVar("T")

HOSTS: Final = ("127.78.19.1", "127.78.19.2")
SECONDS_MAX: Final = 60.0


def _until(what: Callable[[], T | None], folder: Path) -> T:
    limit = time.monotonic() + SECONDS_MAX
    while time.monotonic() < limit:
        if (found := what()) is not None:
            return found
        time.sleep(0.2)
    raise AssertionError(logs(folder))


async def _group(controller: str) -> GroupState | None:
    try:
        async with ControllerAdmin([controller]) as admin:
            groups = await admin.groups(["orders-0"])
    except ClientError:
        return None
    return groups[0] if groups else None


async def _send(name_server: str) -> None:
    async with Producer("senders", namesrv=name_server) as producer:
        for number in range(20):
            await producer.send(Message(topic="Payments", body=b"%d" % number))


def _pod(number: int) -> dict[str, Any]:
    """A pod whose broker runs and is not ready."""
    return {
        "metadata": {"name": f"orders-0-{number}", "labels": {names.COMPONENT_LABEL: "broker"}},
        "status": {
            "podIP": HOSTS[number],
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "broker", "state": {"running": {}}}],
        },
    }


@pytest.mark.timeout(240)
def test_the_operator_learns_why_a_broker_does_not_follow(tmp_path: Path) -> None:
    """Its epochs are not those of its group, as with a volume from another time: the reason comes with its pod."""
    controller, raft, namesrv = free_ports(3)
    admin, name_server = f"127.0.0.1:{controller}", f"127.0.0.1:{namesrv}"
    of_controller = controller_settings(tmp_path / "controller", "127.0.0.1", controller, raft, namesrv)

    def broker(number: int) -> AbstractContextManager[None]:
        folder, host = tmp_path / f"broker-{number}", HOSTS[number]
        own = broker_settings(folder, host, names.REMOTING_PORT, names.HA_PORT)
        more = {"namesrvAddr": name_server, "controllerAddr": admin, "bindAddress": host}
        return running("brokerset_broker", folder, {**own, **more})

    def whole() -> GroupState | None:
        found = asyncio.run(_group(admin))
        return found if found is not None and len(found.sync_state_set) == 2 else None

    with ExitStack() as processes:
        processes.enter_context(running("brokerset_controller", tmp_path / "controller", of_controller))
        brokers = [processes.enter_context(ExitStack()) for _ in HOSTS]
        for number, stack in enumerate(brokers):
            stack.enter_context(broker(number))
        group = _until(whole, tmp_path)
        asyncio.run(_send(name_server))
        slave = next(r for r in group.replicas if r.broker_id != group.master_id)
        number = HOSTS.index(slave.address.rpartition(":")[0])

        brokers[number].close()
        path = tmp_path / f"broker-{number}" / "store" / "epochFileCheckpoint"
        known = decode_epoch_file(path.read_bytes()).entries
        path.write_bytes(encode_epoch_file(history_of([(known[-1].epoch + 7, known[0].start_offset)])))
        brokers[number].enter_context(broker(number))

        def told() -> Trouble | None:
            return asyncio.run(observe_troubles({f"orders-0-{number}": _pod(number)})).get(
                f"orders-0-{number}"
            )

        trouble = _until(told, tmp_path)

        assert "the epoch 8 is known" in trouble.text
        assert "BrokersetReplicaNotInSync" in trouble.advice
