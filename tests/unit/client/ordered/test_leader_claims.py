"""Whom a client takes for the leader of the controllers."""

from __future__ import annotations

from brokerset_client.ordered.leader_claims import LeaderClaim, choose_leader, claim_of
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus

MEMBERS = tuple(ControllerMember(number, f"raft:{number}", f"c:{number}", True) for number in (1, 2, 3))


def status(node_id: int, *, leader_id: int | None, leading: bool = False, term: int = 7) -> ControllerStatus:
    return ControllerStatus(node_id, "role", term, leader_id, leading, 0, 0, 0, 0, MEMBERS)


def test_a_follower_names_the_address_of_the_leader_and_of_all_members() -> None:
    claim = claim_of("c:1", status(1, leader_id=2))

    assert claim == LeaderClaim(7, "c:2", False, ("c:1", "c:2", "c:3"))


def test_one_that_leads_is_reached_where_it_was_asked() -> None:
    """Behind a forwarded port its own settings name another address."""
    claim = claim_of("localhost:9", status(1, leader_id=1, leading=True))

    assert (claim.leader, claim.is_own) == ("localhost:9", True)


def test_one_that_was_elected_and_does_not_serve_yet_is_not_asked() -> None:
    assert claim_of("c:1", status(1, leader_id=1)).leader is None


def test_one_that_leads_counts_more_than_what_another_says() -> None:
    """A member that was cut off may still name the leader of a later term than the others have."""
    claims = [LeaderClaim(9, "c:3", False), LeaderClaim(8, "c:2", True)]

    assert choose_leader(claims, ()) == "c:2"


def test_of_two_that_say_they_lead_the_one_of_the_higher_term_is_asked() -> None:
    """The other one has been replaced, and has not heard of it."""
    assert choose_leader([LeaderClaim(8, "c:1", True), LeaderClaim(9, "c:2", True)], ()) == "c:2"


def test_one_that_has_just_not_answered_is_not_asked_again_because_followers_name_it() -> None:
    claims = [LeaderClaim(8, "c:1", False), LeaderClaim(8, None, False)]

    assert choose_leader(claims, {"c:1"}) is None
    assert choose_leader(claims, ()) == "c:1"
