"""GET_BROKER_HA_STATUS (907) in controller mode: who follows, and how far everybody is."""

from __future__ import annotations

from collections.abc import Callable

from brokerset_broker.member.ha.replication import ReplicationStatus
from brokerset_broker.member.role import Role
from brokerset_protocol.bodies.replicas import (
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, Handler


class HaStatusProcessor:
    """Tells what the broker's replication does."""

    def __init__(self, status: Callable[[], ReplicationStatus], now_ms: Callable[[], int]) -> None:
        self._status = status
        self._now_ms = now_ms

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {RequestCode.GET_BROKER_HA_STATUS: self.status}

    def status(self, connection: Connection, command: Command) -> Command:
        """As `AutoSwitchHAService.getRuntimeInfo` answers."""
        found = self._status()
        if found.role is not Role.MASTER:
            follower = found.follower
            heard = self._now_ms() - follower.last_heard_ms_ago if follower.last_heard_ms_ago >= 0 else 0
            client = HAClientRuntimeInfo(
                master_addr=follower.master_address or None,
                transferred_byte_in_second=follower.received_bytes_per_second,
                max_offset=found.max_offset,
                last_read_timestamp=heard,
                last_write_timestamp=heard,
                master_flush_offset=found.confirmed_offset,
            )
            return command.reply(body=HARuntimeInfo(master=False, ha_client_runtime_info=client).to_json())
        connections = tuple(
            HAConnectionRuntimeInfo(
                each.address,
                each.acknowledged,
                each.lag_bytes,
                each.in_sync,
                each.transferred_bytes_per_second,
                each.acknowledged,
            )
            for each in found.replicas
        )
        answer = HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=found.max_offset,
            in_sync_slave_nums=sum(each.in_sync for each in found.replicas),
            ha_connection_info=connections,
        )
        return command.reply(body=answer.to_json())
