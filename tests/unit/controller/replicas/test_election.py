"""Who becomes master."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.describe import advice
from brokerset_controller.replicas.election import choose_master, new_epoch
from brokerset_controller.replicas.events import MasterElected
from brokerset_controller.replicas.state import EPOCH_MAX, Group, PossibleLoss
from brokerset_protocol.bodies.replicas import ElectMasterBody
from brokerset_protocol.bodies.routes import BrokerMemberGroup
from brokerset_protocol.headers.controller import ElectMaster, ElectMasterResponse
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of, live, view_of

SERVING = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2, 3), set_epoch=6)


def failover(group: Group, view: LiveView, *, unclean: bool = False) -> MasterElected | None:
    decision = decide_failover(group, view, unclean_allowed=unclean)
    if decision is None:
        return None
    assert isinstance(decision.event, MasterElected)
    return decision.event


def winner(group: Group, view: LiveView, *, unclean: bool = False) -> int | None:
    event = failover(group, view, unclean=unclean)
    return None if event is None else event.master_id


def elect(group: Group | None, broker_id: int, view: LiveView, **flags: bool) -> Decision:
    header = ElectMaster(
        broker_name=NAME,
        broker_id=broker_id,
        designate_elect=flags.get("designate", False),
        unclean=flags.get("unclean"),
    )
    return decide_elect(group, header, view, unclean_allowed=flags.get("allowed", False))


def test_nobody_is_elected_past_a_living_or_unknown_master() -> None:
    """Only a master that is known to be dead is replaced."""
    assert winner(SERVING, view_of(1, 2, 3)) is None
    assert winner(SERVING, view_of(2, 3)) is None
    assert winner(SERVING, view_of(2, 3, dead=(1,))) == 2
    assert "not known yet" in (advice(SERVING, view_of(2, 3)) or "")


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ({2: (4, 10), 3: (4, 20)}, 3),
        ({2: (5, 10), 3: (4, 20)}, 2),
        ({2: (4, 1), 3: (4, 5_000_000_000)}, 3),
        ({2: (4, 10), 3: (4, 10)}, 2),
    ],
)
def test_the_longest_log_wins(logs: dict[int, tuple[int, int]], expected: int) -> None:
    """Epoch before offset (64 bits), then the smaller id."""
    assert winner(SERVING, view_of(2, 3, dead=(1,), logs=logs)) == expected


def test_priority_decides_between_equal_logs() -> None:
    """The smaller number is preferred, as in RocketMQ."""
    view = view_of(2, 3, dead=(1,), r2=live(2, 4, 10, priority=7), r3=live(3, 4, 10, priority=3))

    assert winner(SERVING, view) == 3


def test_replicas_out_of_sync_are_no_candidates() -> None:
    """A longer log of another history does not count; nobody in sync alive means no event at all."""
    group = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6)

    assert winner(group, view_of(2, 3, dead=(1,), logs={3: (9, 900)})) == 2
    assert winner(group, view_of(3, dead=(1, 2))) is None
    assert "--unclean" in (advice(group, view_of(3, dead=(1, 2))) or "")


def test_the_new_epoch_is_above_everything_that_was_reported() -> None:
    """Also above the epoch of a living replica that is not in sync."""
    view = view_of(2, 3, dead=(1,), logs={3: (9, 0), 1: (11, 0)})

    assert new_epoch(SERVING, view) == 12
    assert failover(SERVING, view_of(2, 3, dead=(1,))) == MasterElected(
        NAME, 2, 5, 4, 6, False, "the best living replica of the in-sync set", expected_nonce="n2"
    )


def test_a_reported_epoch_without_a_successor_stops_the_election_with_a_reason() -> None:
    """Java's epochs have 32 bits."""
    view = view_of(2, dead=(1,), logs={2: (EPOCH_MAX, 0)})

    assert decide_failover(SERVING, view, unclean_allowed=False) is None
    assert "the highest there is" in (elect(SERVING, 2, view).remark or "")


def test_a_master_that_lost_its_mastership_may_win_it_again() -> None:
    """After its restart the group has no master, and its log is the longest."""
    group = group_of(1, 2, epoch=5, in_sync=(1, 2), set_epoch=6)

    assert winner(group, view_of(1, 2, logs={1: (4, 90), 2: (4, 80)})) == 1
    assert winner(group, view_of(2, logs={2: (4, 80)})) == 2


def test_suspects_are_passed_over_while_a_sound_replica_is_in_sync() -> None:
    """What they had acknowledged may be gone."""
    group = group_of(1, 2, 3, epoch=5, in_sync=(3,), set_epoch=6, suspects=(1, 2))

    assert winner(group, view_of(1, 2, 3, logs={1: (4, 90), 3: (4, 80)})) == 3
    assert winner(group, view_of(1, 2, dead=(3,), logs={1: (4, 90), 2: (4, 80)})) is None


def test_when_all_are_suspects_the_best_of_all_wins_once_all_have_reported() -> None:
    """The possible loss begins where the winner's log ends."""
    group = group_of(1, 2, 3, epoch=5, in_sync=(3,), set_epoch=6, suspects=(1, 2, 3))
    logs = {1: (4, 90), 2: (4, 95), 3: (4, 80)}

    assert winner(group, view_of(1, 3, dead=(2,), logs=logs)) is None
    assert winner(group, view_of(1, 2, 3, logs={1: (4, 90), 3: (4, 80)})) is None
    event = failover(group, view_of(1, 2, 3, logs=logs))
    assert event is not None
    assert event.master_id == 2
    assert event.loss is not None
    assert (event.loss.from_offset, event.loss.master_epoch, event.loss.broker_id) == (95, 6, 2)


def test_the_first_master_is_the_best_of_the_expected_replicas() -> None:
    """All must have told where their logs end; a new log ends at 0."""
    group = group_of(1, 2, 3, expected=3)

    assert winner(group, view_of(1, 2, logs={1: (-1, 0), 2: (-1, 0)})) is None
    assert winner(group, view_of(1, 2, 3, logs={1: (-1, 0), 2: (-1, 0)})) is None
    assert winner(group, view_of(1, 2, 3, logs={1: (-1, 0), 2: (-1, 0), 3: (-1, 0)})) == 1
    assert winner(group, view_of(1, 2, 3, logs={1: (-1, 0), 2: (2, 9), 3: (1, 99)})) == 2
    assert winner(group, view_of(1, 2, logs={1: (-1, 0), 2: (-1, 0)}), unclean=True) is None
    assert "2 have (1, 2)" in (advice(group, view_of(1, 2, logs={1: (-1, 0), 2: (-1, 0)})) or "")


def test_without_an_expectation_the_first_that_asks_becomes_master() -> None:
    """RocketMQ's rule for groups that never had a master; the controller itself does not start it."""
    group = group_of(1, 2)
    decision = elect(group, 2, LiveView())

    assert winner(group, view_of(1, 2)) is None
    assert decision.code == 0
    assert isinstance(decision.event, MasterElected)
    assert (decision.event.master_id, decision.event.new_epoch) == (2, 1)
    assert elect(group, 9, LiveView()).code == 2010
    assert (elect(group, -1, LiveView()).code, elect(group, -1, LiveView()).event) == (2004, None)


def test_a_group_with_a_past_and_no_in_sync_set_prefers_the_longest_log() -> None:
    """A rebuilt group of Java brokers: whoever asks first need not have everything."""
    group = group_of(1, 2, epoch=7)

    assert elect(group, 1, view_of(1)).code == 2012
    for view in (view_of(1, 2, logs={1: (6, 9), 2: (7, 1)}), view_of(2, dead=(1,), logs={2: (7, 1)})):
        event = elect(group, 1, view).event
        assert isinstance(event, MasterElected)
        assert event.master_id == 2


def test_an_unclean_election_waits_for_certainty_and_is_recorded() -> None:
    """The old master and all in-sync replicas must be dead; from the confirmed offset on all may be lost."""
    group = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6)
    last = live(3, 4, 50, confirmed=40)

    assert winner(group, view_of(3, dead=(2,), r3=last), unclean=True) is None
    assert winner(group, view_of(3, dead=(1,), r3=last), unclean=True) is None
    assert winner(group, view_of(2, 3, dead=(1,), logs={3: (4, 99)}), unclean=True) == 2
    event = failover(group, view_of(3, dead=(1, 2), r3=last), unclean=True)
    assert event is not None
    assert (event.master_id, event.unclean) == (3, True)
    assert event.loss is not None
    assert event.loss.from_offset == 40


def test_a_loss_goes_back_to_where_the_winners_log_was_left_behind() -> None:
    """A winner that missed an earlier unclean election may have confirmed another branch from there on."""
    group = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6)
    earlier = (PossibleLoss(3, 2, 20, "unclean"), PossibleLoss(4, 1, 30, "unclean"))
    group = replace(group, losses=earlier)
    froms = []

    for log_epoch in (2, 3, 4):
        last = live(3, log_epoch, 50, confirmed=40)
        event = failover(group, view_of(3, dead=(1, 2), r3=last), unclean=True)
        assert event is not None
        assert event.loss is not None
        froms.append(event.loss.from_offset)

    assert froms == [20, 30, 40]


def test_replies_carry_what_java_reads() -> None:
    """0 has the members, 2011 the set; the rest has an empty header."""
    fresh = elect(SERVING, 2, view_of(2, 3, dead=(1,)))
    still = elect(SERVING, 2, view_of(1, 2))
    failed = elect(SERVING, 2, LiveView())

    assert fresh.header == ElectMasterResponse(
        master_broker_id=2, master_address="h2:1", master_epoch=5, sync_state_set_epoch=7, master_nonce="n2"
    )
    assert fresh.body == ElectMasterBody(
        BrokerMemberGroup(CLUSTER, NAME, {1: "h1:1", 2: "h2:1", 3: "h3:1"}), frozenset((2,))
    )
    assert still.code == 2011
    assert still.header == ElectMasterResponse(
        master_broker_id=1, master_address="h1:1", master_epoch=4, sync_state_set_epoch=6, master_nonce="n1"
    )
    assert still.body == ElectMasterBody(None, frozenset((1, 2, 3)))
    assert (failed.code, failed.header, failed.body) == (2012, ElectMasterResponse(), None)
    assert elect(None, 1, LiveView()).code == 2010


def test_an_administrator_names_a_living_in_sync_replica() -> None:
    """Whether the old master lives does not matter: the epoch fences it."""
    for view in (view_of(1, 3), view_of(3), view_of(3, dead=(1,))):
        event = elect(SERVING, 3, view, designate=True).event
        assert isinstance(event, MasterElected)
        assert (event.master_id, event.loss) == (3, None)
    assert elect(SERVING, 1, view_of(1), designate=True).code == 2011
    assert elect(SERVING, 2, view_of(1, 3), designate=True).code == 2012
    assert elect(SERVING, 9, view_of(1, 9), designate=True).code == 2012


def test_an_administrator_may_give_up_messages_but_not_past_a_master_that_may_live() -> None:
    """`unclean` is for groups whose in-sync replicas are gone."""
    group = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1,), set_epoch=6)

    assert elect(group, 3, view_of(3, dead=(1,)), designate=True).code == 2012
    assert elect(group, 3, view_of(3), designate=True, unclean=True).code == 2012
    assert elect(group, 3, view_of(1, 3), designate=True, unclean=True).code == 2012
    assert elect(group, 3, view_of(3, dead=(1,)), unclean=True).code == 2012
    event = elect(group, 3, view_of(2, 3, dead=(1,)), designate=True, unclean=True).event
    assert isinstance(event, MasterElected)
    assert (event.master_id, event.unclean) == (3, True)
    assert event.loss is not None


def test_the_masters_own_request_confirms_it() -> None:
    """Java's broker asks before its first heartbeat; RocketMQ would make it wait for five seconds."""
    assert elect(SERVING, 1, LiveView()).code == 2011


def test_advice_is_given_exactly_where_a_master_is_missing() -> None:
    """Living master: none. Else the reason, or that an election is due."""
    assert advice(SERVING, view_of(1)) is None
    assert "about to be elected" in (advice(SERVING, view_of(2, dead=(1,))) or "")
    assert "no replicas" in (advice(None, LiveView()) or "")
    assert choose_master(group_of(1), LiveView(), unclean_allowed=False) is not None
