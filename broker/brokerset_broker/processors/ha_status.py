"""GET_BROKER_HA_STATUS (907) in controller mode, where nothing is replicated yet: nobody is connected."""

from __future__ import annotations

from collections.abc import Callable

from brokerset_broker.membership.role import Role
from brokerset_protocol.bodies.replicas import HAClientRuntimeInfo, HARuntimeInfo
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import Connection, Handler


class HaStatusProcessor:
    """Tells what the broker's replication does."""

    def __init__(self, role: Callable[[], Role], max_offset: Callable[[], int]) -> None:
        self._role = role
        self._max_offset = max_offset

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {RequestCode.GET_BROKER_HA_STATUS: self.status}

    def status(self, connection: Connection, command: Command) -> Command:
        """As Java answers without connections."""
        if self._role() is Role.MASTER:
            found = HARuntimeInfo(master=True, master_commit_log_max_offset=self._max_offset())
        else:
            client = HAClientRuntimeInfo(max_offset=self._max_offset())
            found = HARuntimeInfo(master=False, ha_client_runtime_info=client)
        return command.reply(body=found.to_json())
