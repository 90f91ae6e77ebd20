"""Requests about DLedger groups: their members are asked who leads, as there are no controllers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from brokerset_cli.folder import DataFolder, SetState
from brokerset_cli.ledger_view import fetch_ledger_groups
from brokerset_cli.output import CommandFailed
from brokerset_client.controller_admin import SWITCH_OVER_SECONDS, ControllerAdmin
from brokerset_client.errors import ClientError, NameServerUnavailable, RequestRefused
from brokerset_client.instance import name_server_list, readable
from brokerset_client.ledger_groups import LedgerGroup, no_leader
from brokerset_client.server_requests import ServerRequests
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.routes import ClusterInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers.controller import SwitchOverResponse


def group_admin(folder: Path, state: SetState) -> ControllerAdmin | LedgerAdmin:
    """Who tells the groups of a set that runs in a folder: its controllers, or the members themselves."""
    return LedgerAdmin(folder) if state.is_dledger else ControllerAdmin(state.controllers)


class LedgerAdmin(ServerRequests):
    """What `ControllerAdmin` is for groups with controllers, as far as a DLedger has it; use `async with`.

    The brokers to ask are those of a local set, else those that name servers know.
    """

    def __init__(self, folder: Path | None, name_servers: str = "") -> None:
        """With a `folder` its set is asked; it is read again each time, as brokers come back elsewhere."""
        super().__init__()
        self._folder = DataFolder(folder) if folder is not None else None
        state = self._folder.read_state() if self._folder is not None else None
        self.name_servers = name_servers or (state.namesrv if state is not None else "")

    async def ledgers(self) -> tuple[LedgerGroup, ...]:
        """All groups of which a member answers, as the members describe them."""
        state = self._folder.read_state() if self._folder is not None else None
        found, _ = await fetch_ledger_groups(state, {} if state is not None else await self._registered())
        return found

    async def groups(self, names: Sequence[str] = ()) -> tuple[GroupState, ...]:
        """The groups of these names, or all, in the form of what controllers tell.

        Starts are those that `up` has counted, where it runs the brokers.
        """
        state = self._folder.read_state() if self._folder is not None else None
        starts = {each.address: each.restarts + 1 for each in (state.processes if state else ())}
        return tuple(each.state(starts) for each in await self.ledgers() if not names or each.name in names)

    async def one_group(self, name: str) -> GroupState:
        """The group of this name; ends the command with the names of those that there are."""
        found = await self.groups()
        for group in found:
            if group.broker_name == name:
                return group
        names = ", ".join(group.broker_name for group in found) or "none"
        raise CommandFailed(
            f"no broker that answers is a member of a DLedger group {name!r}; groups that answer: {names}",
            "correct the name; see `brokerset status`",
        )

    async def switch_over(
        self, group: str, broker_id: int | None = None, *, timeout: float = SWITCH_OVER_SECONDS
    ) -> SwitchOverResponse:
        """Have the leader hand over to another member (BROKERSET_SWITCH_OVER, 21011).

        None: whoever is the furthest. Raises `RequestRefused`; `AnswerTimeout` when the outcome is unknown.
        """
        found = next((each for each in await self.ledgers() if each.name == group), None)
        if found is None or found.master is None:
            why = f"the group {group} is unknown" if found is None else no_leader(found)
            raise RequestRefused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, why, self.name_servers)
        return await self.hand_over(found.master.address, group, broker_id, timeout=timeout)

    async def _registered(self) -> Mapping[str, str]:
        """The brokers that the first name server which answers knows: broker name by address."""
        problems = []
        for one in name_server_list(self.name_servers):
            try:
                answer = await self.request(one, RequestCode.GET_BROKER_CLUSTER_INFO)
                info = readable(ClusterInfo.from_json, answer.body)
            except ClientError as error:
                problems.append(str(error))
                continue
            return {
                address: data.broker_name
                for data in info.broker_addr_table.values()
                for address in data.broker_addrs.values()
            }
        raise NameServerUnavailable(problems)
