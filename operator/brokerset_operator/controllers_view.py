"""What the controllers that serve a set say, each asked at the address that its pod has now.

They are the set's own, or those of another set, which knows groups of several sets then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_operator.connecting import AS_ENVIRONMENT, Connecting
from brokerset_operator.model import names
from brokerset_operator.model.observed import Controllers
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState

QUERY_SECONDS: Final = 2.0
"""Time-out of a request to a controller or a broker; all are asked at the same time."""

CAUGHT_UP_ENTRIES: Final = 64
"""A member that lacks at most so many of the leader's entries counts as caught up."""


@dataclass(frozen=True, slots=True)
class ControllersView:
    """What they said in one reconcile."""

    controllers: Controllers = field(default_factory=Controllers)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    """By broker name; empty without a leader."""

    addresses: tuple[str, ...] = ()
    """Of all that answered, the leader first; for requests to them."""

    connecting: Connecting = AS_ENVIRONMENT
    """How all of them are connected to."""

    by_members: bool = False
    """Whether the members of DLedger groups told of themselves, as they have no controllers."""

    @property
    def agreed(self) -> bool:
        """Whether what is said of groups is what they agree on."""
        return self.by_members or self.controllers.leader is not None


def controllers_of(live: Mapping[str, Any]) -> str:
    """Name of the set, in the same namespace, whose controllers serve a BrokerSet; mostly its own.

    Reads the object itself, since that may be invalid, and nevertheless has pods and topics.
    """
    spec = live.get("spec")
    controllers = spec.get("controllers") if isinstance(spec, Mapping) else None
    ref = controllers.get("ref") if isinstance(controllers, Mapping) else None
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return str(name or live["metadata"]["name"])


def own_groups(
    groups: Mapping[str, GroupState], *, names_of_own: Collection[str], uids: Collection[str]
) -> dict[str, GroupState]:
    """Of all groups that controllers know those that belong to one set.

    These are the groups that are bound to one of its `uids`, and those that are called as one of its groups;
    the latter may turn out to be somebody else's, which `GroupState.owner` tells.
    """
    return {
        name: state for name, state in groups.items() if name in names_of_own or (state.owner or "") in uids
    }


def controller_addresses(pods: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    """Where controllers can be asked, by number, for the pods that have an address and a living container."""
    found: dict[int, str] = {}
    for pod in pods.values():
        labels = pod["metadata"].get("labels") or {}
        number = str(pod["metadata"]["name"]).rpartition("-")[2]
        if labels.get(names.COMPONENT_LABEL) == "controller" and number.isdecimal():
            address = pod_address(pod)
            if address is not None:
                found[int(number)] = f"{address}:{names.CONTROLLER_PORT}"
    return dict(sorted(found.items()))


def pod_address(pod: Mapping[str, Any]) -> str | None:
    """The IP of a pod in which something runs, IPv6 in brackets; None when nobody would answer."""
    status = pod.get("status") or {}
    address = status.get("podIP")
    running = any(
        "running" in (container.get("state") or {}) for container in status.get("containerStatuses") or ()
    )
    if not address or not running:
        return None
    return f"[{address}]" if ":" in str(address) else str(address)


async def query_controllers(
    addresses: Mapping[int, str], connecting: Connecting = AS_ENVIRONMENT
) -> ControllersView:
    """Ask every controller about itself, and the leader about members and groups; some may stay silent."""
    if not addresses:
        return ControllersView(connecting=connecting)
    async with ControllerAdmin(
        list(addresses.values()), timeout=QUERY_SECONDS, tls=connecting.tls, sign=connecting.sign
    ) as admin:
        observed = await asyncio.gather(*(_status(admin, address) for address in addresses.values()))
    answers = {
        number: status
        for number, status in zip(addresses, observed, strict=True)
        # A pod's address may be another pod's by now, which must not be taken for it.
        if status is not None and status.node_id == number
    }
    leading = [(status.term, number) for number, status in answers.items() if status.leading]
    leader = max(leading)[1] if leading else None
    states: tuple[GroupState, ...] | None = None
    if leader is not None:
        # Only who leads by the word of a majority answers this.
        states = await _groups(addresses[leader], connecting)
    order = sorted(answers, key=lambda number: (number != leader, number))
    return ControllersView(
        controllers=view_of(answers, leader if states is not None else None),
        groups={state.broker_name: state for state in sorted(states or (), key=lambda one: one.broker_name)},
        addresses=tuple(addresses[number] for number in order),
        connecting=connecting,
    )


def view_of(answers: Mapping[int, ControllerStatus], leader: int | None) -> Controllers:
    """What the answers say of the group together, by number; `leader` is who leads it."""
    waiting = frozenset(number for number, status in answers.items() if not status.members)
    if leader is None:
        return Controllers(answers=answers, waiting_to_join=waiting)
    status = answers[leader]
    members = {member.node_id: member.voter for member in status.members}
    caught_up = {
        member.node_id
        for member in status.members
        if member.match_index is not None
        and status.last_index - member.match_index <= CAUGHT_UP_ENTRIES
        # What was known of one before it was replaced tells nothing of it: its answers must come through.
        and member.heard is not False
    }
    return Controllers(
        answers=answers,
        waiting_to_join=waiting,
        leader=leader,
        members=dict(sorted(members.items())),
        caught_up=frozenset(caught_up | {leader}),
    )


async def _status(admin: ControllerAdmin, address: str) -> ControllerStatus | None:
    try:
        async with asyncio.timeout(QUERY_SECONDS):
            return await admin.status(address)
    except (ClientError, TimeoutError):
        return None


async def _groups(leader: str, connecting: Connecting) -> tuple[GroupState, ...] | None:
    admin = ControllerAdmin([leader], timeout=QUERY_SECONDS, tls=connecting.tls, sign=connecting.sign)
    try:
        async with asyncio.timeout(QUERY_SECONDS), admin:
            return await admin.groups()
    except (ClientError, TimeoutError):
        return None
