"""What the members of DLedger groups say, each asked at the address that its pod has now.

Such groups have no controllers. What their members say is put together in the form of what controllers tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerset_client.broker_facts import facts_from
from brokerset_client.controller_admin import SWITCH_OVER_SECONDS
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import readable
from brokerset_client.ledger_groups import LedgerGroup, ledger_groups
from brokerset_client.server_requests import ServerRequests
from brokerset_operator.brokers_view import broker_addresses, master_address
from brokerset_operator.connecting import AS_ENVIRONMENT, Connecting
from brokerset_operator.controllers_view import QUERY_SECONDS, ControllersView, pod_address
from brokerset_operator.model import names
from brokerset_operator.plan.objects import items, part, seconds
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers.controller import SwitchOverResponse
from brokerset_spec.dledger_members import IN_SYNC_BYTES, member_id
from brokerset_spec.set_parts import DLEDGER


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of a DLedger group whose pod runs."""

    pod: str
    address: str
    """Of its broker, at the pod's IP."""

    group: str
    """Broker name."""

    number: int
    """Ordinal of its pod, and number of the member."""

    peer: str
    """Where the other members reach it, as all of them know it."""

    started: int
    """When its container started, in seconds since 1970; 0 when that is not known."""


def elects_itself(live: Mapping[str, Any]) -> bool:
    """Whether groups of a BrokerSet elect their leaders themselves; its manifest may be invalid."""
    return part(part(live, "spec"), "replication").get("mode") == DLEDGER


def group_names(live: Mapping[str, Any]) -> dict[str, str]:
    """Broker names of a BrokerSet's groups by their StatefulSets, with those of groups that it had."""
    name, spec = str(live["metadata"]["name"]), part(live, "spec")
    had = items(part(part(live, "status"), "workflow"), "groups")
    found = {
        names.group_set(name, int(one["index"])): str(one["name"])
        for one in had
        if isinstance(one.get("index"), int) and one.get("name")
    }
    listed = spec.get("brokerNames") or [
        names.group_set(name, index) for index in range(int(spec.get("groups") or 1))
    ]
    return found | {names.group_set(name, index): str(given) for index, given in enumerate(listed)}


def members_of(live: Mapping[str, Any], pods: Mapping[str, Mapping[str, Any]]) -> tuple[Member, ...]:
    """The members of a BrokerSet's groups that can be asked."""
    name, namespace, known = live["metadata"]["name"], live["metadata"]["namespace"], group_names(live)
    found = []
    for pod, address in broker_addresses(pods).items():
        resource, _, ordinal = pod.rpartition("-")
        index = resource.removeprefix(f"{name}-")
        if resource in known and index.isdecimal() and ordinal.isdecimal():
            peer = names.ledger_peer(name, namespace, int(index), int(ordinal))
            started = _started(pods[pod])
            found.append(Member(pod, address, known[resource], int(ordinal), peer, started))
    return tuple(found)


def _started(pod: Mapping[str, Any]) -> int:
    times = (
        seconds(part(part(container, "state"), "running").get("startedAt"))
        for container in items(part(pod, "status"), "containerStatuses")
    )
    return int(max((each for each in times if each is not None), default=0))


def group_states(
    members: Sequence[Member], tables: Mapping[str, Mapping[str, str]]
) -> tuple[GroupState, ...]:
    """Put groups together from what members say of themselves (28), by pod.

    An address may be another pod's by now: what does not come from the very member is left out.
    """
    facts = {}
    for member in members:
        found = facts_from(member.address, tables.get(member.pod, {}))
        own = member_id(member.number)
        if found is None or found.ledger is None or found.ledger.member != own:
            continue
        if found.ledger.peers.get(own) == member.peer:
            facts[member.address] = found
    groups = ledger_groups(facts, {member.address: member.group for member in members})
    starts = {member.address: member.started for member in members}
    return tuple(replace(group.state(starts), sync_state_set=_in_sync(group)) for group in groups)


def _in_sync(group: LedgerGroup) -> tuple[int, ...]:
    """Ids of those that follow the leader, and lack nothing that is committed, or little of its log."""
    leader = group.leader
    if leader is None or leader.ledger is None:
        return ()
    found = []
    for each in group.members:
        own, lag = each.ledger, group.lag_of(each)
        if own is None or (own.leader, own.term) != (leader.member, leader.ledger.term):
            continue
        if each.broker_id in group.in_sync or (lag is not None and lag <= IN_SYNC_BYTES):
            found.append(each.broker_id)
    return tuple(found)


class LedgerAdmin(ServerRequests):
    """What `ControllerAdmin` is for groups with controllers, as far as a DLedger has it; use `async with`."""

    def __init__(self, members: Sequence[Member], connecting: Connecting = AS_ENVIRONMENT) -> None:
        super().__init__(timeout=QUERY_SECONDS, tls=connecting.tls, sign=connecting.sign)
        self._members = members

    async def groups(self, chosen: Collection[str] = ()) -> tuple[GroupState, ...]:
        """The groups, or those chosen by broker name, as far as a member of theirs answers."""
        asked = [member for member in self._members if not chosen or member.group in chosen]
        tables = await asyncio.gather(*map(self._measurements, asked))
        found = {member.pod: table for member, table in zip(asked, tables, strict=True)}
        return group_states(asked, found)

    async def switch_over(
        self, group: str, broker_id: int | None = None, *, timeout: float = SWITCH_OVER_SECONDS
    ) -> SwitchOverResponse:
        """Have the leader of a group hand over; None as `broker_id`: to whoever is the furthest.

        Raises `RequestRefused`; `AnswerTimeout` when the outcome is unknown.
        """
        state = next(iter(await self.groups([group])), None)
        leader = master_address(state) if state is not None else None
        if leader is None:
            why = state.advice if state is not None else "no member answers"
            raise RequestRefused(
                ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, f"nobody leads {group}: {why}", group
            )
        return await self.hand_over(leader, group, broker_id, timeout=timeout)

    async def _measurements(self, member: Member) -> Mapping[str, str]:
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                answer = await self.request(member.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            return readable(KVTable.from_json, answer.body).table
        except (ClientError, TimeoutError):
            return {}


async def query_groups(
    members: Sequence[Member], connecting: Connecting = AS_ENVIRONMENT
) -> dict[str, GroupState]:
    """Ask all members; groups by broker name, without those of which nobody answers."""
    if not members:
        return {}
    async with LedgerAdmin(members, connecting) as admin:
        return {state.broker_name: state for state in await admin.groups()}


async def query_members(
    live: Mapping[str, Any], pods: Mapping[str, Mapping[str, Any]], connecting: Connecting = AS_ENVIRONMENT
) -> ControllersView:
    """What the members of a BrokerSet's groups say, as if controllers did; `addresses` are name servers'."""
    return ControllersView(
        groups=await query_groups(members_of(live, pods), connecting),
        addresses=_name_servers(pods),
        connecting=connecting,
        by_members=True,
    )


def _name_servers(pods: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    found = []
    for _, pod in sorted(pods.items()):
        component = part(part(pod, "metadata"), "labels").get(names.COMPONENT_LABEL)
        address = pod_address(pod) if component in ("namesrv", "controller") else None
        if address is not None:
            found.append(f"{address}:{names.NAMESRV_PORT}")
    return tuple(found)
