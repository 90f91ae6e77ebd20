"""Which sets may be in force, and what is proposed."""

from __future__ import annotations

from brokerset_broker.member.ha.in_sync import JOIN_PAUSE_SECONDS, PAUSE_SECONDS_MAX, InSync, ReplicaState


def members(*broker_ids: int) -> frozenset[int]:
    return frozenset(broker_ids)


def test_a_proposal_is_pending_until_a_higher_set_epoch_is_known() -> None:
    """Neither a time-out nor a refusal nor the same set epoch settles a proposal."""
    in_sync = InSync(1, members(1), 4)

    in_sync.proposed(members(1, 2))
    in_sync.ended(0.0, members(1, 2), refused=False)
    in_sync.ended(10.0, members(1, 2), refused=True)

    assert not in_sync.adopt(members(1), 4)
    assert in_sync.pending == (members(1, 2),)
    assert in_sync.electable() == members(1, 2)
    assert in_sync.adopt(members(1, 2), 5)
    assert not in_sync.pending


def test_a_lower_set_epoch_is_ignored() -> None:
    """News of an older set change nothing."""
    in_sync = InSync(1, members(1, 2), 4)

    assert not in_sync.adopt(members(1), 3)
    assert in_sync.committed == members(1, 2)


def test_the_smallest_set_counts_pending_ones() -> None:
    """What may have shrunk counts as shrunk, what may have grown does not count as grown."""
    in_sync = InSync(1, members(1, 2), 4)
    in_sync.proposed(members(1))
    in_sync.ended(0.0, members(1), refused=False)
    in_sync.proposed(members(1, 2, 3))

    assert in_sync.smallest == 1
    assert in_sync.electable() == members(1, 2, 3)


def test_an_unknown_set_is_known_to_nobody() -> None:
    """Until the controllers have said which set is in force, nothing is proposed or big enough."""
    in_sync = InSync(1, members(), 4)

    assert in_sync.smallest == 0
    assert in_sync.decide(0.0, (ReplicaState(2, may_join=True),)) is None
    assert in_sync.adopt(members(1), 4)
    assert in_sync.decide(0.0, (ReplicaState(2, may_join=True),)) == members(1, 2)


def test_one_proposal_at_a_time() -> None:
    """While an answer is awaited nothing else is proposed."""
    in_sync = InSync(1, members(1, 2, 3), 4)
    in_sync.proposed(members(1, 2))

    assert in_sync.decide(0.0, (ReplicaState(2, must_leave=True),)) is None


def test_leaving_goes_before_joining_and_all_at_once() -> None:
    """Who must leave leaves together; replicas join one by one, the smallest id first."""
    in_sync = InSync(1, members(1, 2, 3), 4)
    states = (
        ReplicaState(2, must_leave=True),
        ReplicaState(3, must_leave=True),
        ReplicaState(5, may_join=True),
        ReplicaState(4, may_join=True),
    )

    assert in_sync.decide(0.0, states) == members(1)
    in_sync.adopt(members(1), 5)
    assert in_sync.decide(0.0, states) == members(1, 4)


def test_a_refused_replica_is_left_alone_for_a_while() -> None:
    """After a refusal others may join, and the refused one is tried again later."""
    in_sync = InSync(1, members(1), 4)
    states = (ReplicaState(2, may_join=True), ReplicaState(3, may_join=True))
    in_sync.proposed(members(1, 2))
    in_sync.ended(0.0, members(1, 2), refused=True)

    assert in_sync.decide(0.0, states) is None, "a pause"
    assert in_sync.decide(PAUSE_SECONDS_MAX, states) == members(1, 3)
    assert in_sync.decide(JOIN_PAUSE_SECONDS, states) == members(1, 2)


def test_a_pending_shrink_is_settled_when_the_replica_is_back() -> None:
    """The same proposal again settles what a lost answer left open."""
    in_sync = InSync(1, members(1, 2), 4)
    in_sync.proposed(members(1))
    in_sync.ended(0.0, members(1), refused=False)

    tried = []
    for now in (1.0, 5.0, 10.0):
        wanted = in_sync.decide(now, (ReplicaState(2, may_join=True),))
        assert wanted is not None
        tried.append(wanted)
        in_sync.proposed(wanted)
        in_sync.ended(now, wanted, refused=True)

    assert members(1) in tried
    assert members(1, 2) in tried, "controllers may answer the same set with a new set epoch"


def test_a_pending_member_that_is_gone_is_got_rid_of() -> None:
    """When a proposed member is gone, sets without it are proposed until one is committed."""
    in_sync = InSync(1, members(1, 2), 4)
    in_sync.proposed(members(1, 2, 3))
    in_sync.ended(0.0, members(1, 2, 3), refused=False)
    states = (ReplicaState(2), ReplicaState(3, must_leave=True))

    tried = set()
    for now in (1.0, 5.0, 10.0):
        wanted = in_sync.decide(now, states)
        assert wanted is not None
        tried.add(wanted)
        in_sync.proposed(wanted)
        in_sync.ended(now, wanted, refused=True)

    assert tried == {members(1, 2), members(1)}


def test_a_pending_set_that_hinders_nobody_is_left_alone() -> None:
    """A proposed member that keeps up does not have to be settled in a hurry."""
    in_sync = InSync(1, members(1), 4)
    in_sync.proposed(members(1, 2))
    in_sync.ended(0.0, members(1, 2), refused=False)

    assert in_sync.decide(1.0, (ReplicaState(2),)) is None


def test_nobody_goes_on_waiting_for_a_refused_replica() -> None:
    """After a refused join the committed set is proposed, so that its grant ends the waiting; where it is
    refused, too, once is enough."""
    in_sync = InSync(1, members(1, 2), 4)
    states = (ReplicaState(2), ReplicaState(3, may_join=True))
    in_sync.proposed(members(1, 2, 3))
    in_sync.ended(0.0, members(1, 2, 3), refused=True)
    in_sync.proposed(members(1, 2))
    in_sync.ended(0.0, members(1, 2), refused=True)
    again = in_sync.decide(1.0, states)
    in_sync.proposed(members(1, 2, 3))
    in_sync.ended(3.0, members(1, 2, 3), refused=True)

    assert again is None
    assert in_sync.decide(4.0, states) == members(1, 2)
    assert in_sync.adopt(members(1, 2), 5)
    assert in_sync.electable() == members(1, 2)
    assert in_sync.decide(4.0, states) is None


def test_what_was_proposed_before_the_mastership_may_be_in_force() -> None:
    """Until a set with a higher set epoch than the one it was based on is known."""
    in_sync = InSync(1, members(1), 4)
    in_sync.expect_pending(members(1, 2), 4)
    in_sync.expect_pending(members(1, 3), 3)
    assert in_sync.electable() == members(1, 2)

    assert in_sync.adopt(members(1), 5)
    assert in_sync.electable() == members(1)
