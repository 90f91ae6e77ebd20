"""Which controller to ask: chosen from what controllers say about themselves and each other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from brokerset_protocol.bodies.controllers import ControllerStatus


@dataclass(frozen=True, slots=True)
class LeaderClaim:
    """What one controller says about who leads."""

    term: int
    leader: str | None
    """Address of the one that leads, as clients reach it; None when it knows none."""

    is_own: bool
    """Whether it leads by itself."""

    members: tuple[str, ...] = ()
    """Addresses of all controllers, as it knows them."""


def claim_of(address: str, status: ControllerStatus) -> LeaderClaim:
    """The claim in the status that the controller at `address` has answered.

    One that leads is reached at the address that it was asked at, whatever its own settings say.
    """
    members = {each.node_id: each.service_address for each in status.members if each.service_address}
    leader = address if status.leading else None
    if leader is None and status.leader_id is not None and status.leader_id != status.node_id:
        leader = members.get(status.leader_id)
    return LeaderClaim(status.term, leader, status.leading, tuple(members.values()))


def choose_leader(claims: Iterable[LeaderClaim], suspects: Collection[str]) -> str | None:
    """Whom to ask, or None: nobody is known to lead, or only one of `suspects`, who has just not answered.

    The highest term counts. A controller that says it leads counts more than one that says who does: the
    other one may repeat what was so before its leader died.
    """
    useful = [each for each in claims if each.leader is not None and each.leader not in suspects]
    return max(useful, key=lambda each: (each.is_own, each.term)).leader if useful else None
