"""A member of a group in controller mode: the whole production broker, replicating its real store."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from brokerset_broker.app import Broker
from brokerset_broker.member.alone import Alone
from brokerset_broker.member.group_member import GroupMember, MemberLog, MemberParts
from brokerset_broker.requests.send_lane import SendLane
from brokerset_runtime.peer_requests import Asker
from brokerset_sim.deferred_group_controllers import GROUP
from brokerset_sim.deferred_group_plan import (
    DEAD_MS,
    HEARTBEAT_MS,
    PIECE_BYTES,
    POLL_MS,
    SLAVE_BEHIND_MS,
)
from brokerset_sim.deferred_world import DeferredNode
from brokerset_sim.ledger_node import PORT, SimBroker
from brokerset_sim.network import SimAsker
from brokerset_sim.process import Process
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    import socket

    from brokerset_broker.member.dledger.ledger_member import LedgerMember
    from brokerset_sim.deferred_groups import DeferredGroupsWorld
    from brokerset_sim.ha_network import HaEnd

HA_PORT: Final = PORT + 1


class SimGroupPort:
    """Implements `GroupPort` on the simulated network."""

    number = HA_PORT

    def __init__(self, world: DeferredGroupsWorld, process: Process) -> None:
        self.asker: Asker = SimAsker(world.network, process)
        self.network: HaEnd = world.ha.of(process, f"{process.host.name}:{HA_PORT}")

    def listen(self) -> None:
        """Slaves are taken as soon as somebody wants them."""

    async def close(self) -> None:
        """Connections end with the process."""


class GroupBroker(SimBroker):
    """The production broker without sockets."""

    _node: GroupNode

    async def _take_part(self, group_socket: socket.socket | None) -> GroupMember | LedgerMember | Alone:
        return self._group_member(SimGroupPort(self._node.group_world, self._process))

    def _member_parts(self, log_of_member: MemberLog) -> MemberParts:
        world, process = self._node.group_world, self._process
        dice = random.Random(world.random_for(f"broker {process.name}").random())
        log_of_member.on_truncated(lambda offset: world.truncated(self._node, offset))
        return replace(Broker._member_parts(self, log_of_member), random_source=dice)

    def _make_send_lane(self) -> SendLane | None:
        return None  # requests come to handlers here


class GroupNode(DeferredNode):
    """One member's host, whether its process runs or not."""

    @property
    def group_world(self) -> DeferredGroupsWorld:
        """The world, by its real kind."""
        world: Any = self.world
        return world  # type: ignore[no-any-return]  # made there

    @property
    def member(self) -> Any:
        """The `GroupMember` of its process, if it has one yet; other worlds have members of a DLedger."""
        return self.broker.member if self.up and self.broker is not None else None

    def settings(self, **changes: Any) -> BrokerSettings:
        """A group of its own, with short times."""
        plan = self.group_world.group_plan
        values: dict[str, Any] = {
            "enable_dledger_commit_log": False,
            "dledger_peers": "",
            "broker_name": GROUP,
            "enable_controller_mode": True,
            "controller_addr": self.group_world.controllers.addresses,
            "owner_uid": f"uid-{GROUP}",
            "expected_replicas": plan.members,
            "min_in_sync_replicas": plan.min_in_sync,
            "broker_heartbeat_interval": HEARTBEAT_MS,
            "send_heartbeat_timeout_millis": HEARTBEAT_MS,
            "controller_heart_beat_timeout_mills": DEAD_MS,
            "sync_broker_metadata_period": POLL_MS,
            "sync_controller_metadata_period": 4 * POLL_MS,
            "ha_send_heartbeat_interval": HEARTBEAT_MS,
            "ha_max_time_slave_not_catchup": SLAVE_BEHIND_MS,
            "ha_housekeeping_interval": 4 * DEAD_MS,
            "slave_timeout": DEAD_MS,
            "ha_transfer_batch_size": PIECE_BYTES,
            "flush_consumer_offset_interval": 200,
            "flush_delay_offset_interval": 200,
        }
        return super().settings(**(values | changes))

    def _make_broker(self, process: Process) -> SimBroker:
        return GroupBroker(self, process)

    def stop(self, *, power: bool) -> None:
        """Kill a process; its replication ends with it."""
        process = self.process
        super().stop(power=power)
        if process is not None:
            self.group_world.ha.gone(process, silent=power)
