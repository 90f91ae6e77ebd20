"""Tells brokers of an election (1008), so that they need not wait for their next poll (1004)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from brokerset_controller.liveness import LiveView
from brokerset_controller.measurements import Measurements
from brokerset_controller.replicas.state import Group
from brokerset_controller.worker_pool import WorkerPool
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import NotifyBrokerRoleChanged
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting.connection import ConnectionClosed

log = structlog.get_logger(__name__)

AT_ONCE_MAX: Final = 32
"""Notices on their way; more wait."""

WAITING_MAX: Final = 10_000
"""Addresses that a notice waits for; the next is dropped and counted: brokers also ask on a timer."""

CONNECT_SECONDS_MAX: Final = 3.0
"""Longest wait for a connection, RocketMQ's time-out of this notice."""


class Notices:
    """At most one notice waits for each address; one of a newer epoch or set epoch takes its place."""

    def __init__(self, asker: Asker, measurements: Measurements) -> None:
        self._asker = asker
        self._measurements = measurements
        self._workers = WorkerPool(AT_ONCE_MAX)
        self._waiting: dict[str, tuple[str, tuple[int, int], Command]] = {}

    async def run(self) -> None:
        """Send notices, for as long as this task runs."""
        await self._workers.run()

    def tell(self, group: Group, view: LiveView) -> None:
        """Have the group's living replicas told who is master; never waits."""
        if group.master_id is None:
            return
        for broker_id, replica in sorted(group.replicas.items()):
            if view.alive(broker_id):
                epochs = (group.master_epoch, group.sync_state_set_epoch)
                self._put(replica.address, group.broker_name, epochs, partial(notice, group))

    def _put(
        self, address: str, broker_name: str, epochs: tuple[int, int], make: Callable[[], Command]
    ) -> None:
        before = self._waiting.get(address)
        if before is None and len(self._waiting) >= WAITING_MAX:
            self._measurements.notices_dropped += 1
            return
        if before is not None and before[0] == broker_name and before[1] >= epochs:
            return
        self._waiting[address] = (broker_name, epochs, make())
        if before is None:
            self._workers.add(partial(self._send, address))

    async def _send(self, address: str) -> None:
        broker_name, (epoch, _), command = self._waiting.pop(address)
        try:
            await self._asker.tell(address, command, CONNECT_SECONDS_MAX)
        except ConnectionClosed as error:
            self._measurements.notices_dropped += 1
            log.info(
                "broker not reached with a notice",
                broker=broker_name,
                address=address,
                epoch=epoch,
                reason=str(error),
            )
        else:
            self._measurements.notices_sent += 1


def notice(group: Group) -> Command:
    """The notice of the group's master. Java brokers need the body as well."""
    assert group.master_id is not None
    header = NotifyBrokerRoleChanged(
        master_address=group.replicas[group.master_id].address,
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch,
        master_broker_id=group.master_id,
        master_nonce=group.replicas[group.master_id].nonce,
    )
    body = SyncStateSet(group.sync_state_set, group.sync_state_set_epoch)
    return Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.to_ext(), body.to_json())
