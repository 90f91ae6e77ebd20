"""A replica that was not closed in order may have been rolled back: it is trusted when its master says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.codec import decode_event, decode_groups, encode_event, encode_groups
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.decide_identity import decide_register
from brokerset_controller.replicas.describe import advice
from brokerset_controller.replicas.election import LOST_CACHES, LOST_CACHES_OUTSIDER, UNCLEAN_STOPS
from brokerset_controller.replicas.events import MasterElected, ReplicaStarted, SyncStateSetAltered
from brokerset_controller.replicas.state import Group
from brokerset_protocol.headers.controller import ElectMaster, RegisterBrokerToController
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of, view_of

SERVING = group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6)
START = RegisterBrokerToController(
    cluster_name=CLUSTER,
    broker_name=NAME,
    broker_id=2,
    broker_address="h2:1",
    last_nonce="n2",
    next_nonce="m2",
    log_epoch=4,
    log_offset=500,
    unclean_stop=True,
)


def started(group: Group, header: RegisterBrokerToController, view: LiveView) -> Group:
    """The group after a start, as a controller has it that read it from its log and a snapshot."""
    decision = decide_register(group, header, view)
    assert isinstance(decision.event, ReplicaStarted)
    after, _ = apply(group, decode_event(encode_event(decision.event)))
    assert after is not None
    return decode_groups(encode_groups([after]))[NAME]


def failover(group: Group, view: LiveView, *, unclean: bool = False) -> MasterElected | None:
    decision = decide_failover(group, view, unclean_allowed=unclean)
    if decision is None:
        return None
    assert isinstance(decision.event, MasterElected)
    return decision.event


def test_a_volume_that_was_rolled_back_is_not_elected_by_a_controller_that_never_heard_of_it() -> None:
    """500 of 1000 messages, the nonce is right, and nobody remembers how long the log was."""
    after = started(SERVING, START, view_of(1))

    assert (set(after.sync_state_set), set(after.suspects), set(after.unproven)) == ({1}, {2}, {2})
    view = view_of(2, 3, dead=(1,), logs={2: (4, 500), 3: (3, 10)})
    assert failover(after, view) is None
    assert "start replica 1" in (advice(after, view) or "")
    asked = ElectMaster(cluster_name=CLUSTER, broker_name=NAME, broker_id=2, designate_elect=True)
    named = decide_elect(after, asked, view, unclean_allowed=False)
    assert "was not closed in order" in (named.remark or "")


def test_an_unclean_election_of_such_a_replica_is_recorded_as_a_loss() -> None:
    """From the end of what it has, at the latest."""
    after = started(SERVING, START, view_of(1))

    event = failover(after, view_of(2, dead=(1, 3), logs={2: (4, 500)}), unclean=True)

    assert event is not None
    assert event.loss is not None
    assert event.loss.from_offset <= 500


def test_the_master_that_takes_it_into_its_set_again_has_compared_its_log() -> None:
    """From then on it is as good as the others."""
    after = started(SERVING, START, view_of(1))
    back, _ = apply(after, SyncStateSetAltered(NAME, 1, 4, after.sync_state_set_epoch, frozenset((1, 2))))

    assert back is not None
    assert (set(back.sync_state_set), back.suspects, back.unproven) == ({1, 2}, frozenset(), frozenset())
    event = failover(back, view_of(2, 3, dead=(1,), logs={2: (4, 500)}))
    assert event is not None
    assert (event.master_id, event.loss) == (2, None)


def test_a_clean_start_behind_an_unclean_one_proves_nothing() -> None:
    """Whatever is missing is missing still; nor does another unclean one make it worse."""
    once = started(SERVING, START, view_of(1))
    again = replace(START, last_nonce="m2", next_nonce="l2")

    for header in (replace(again, unclean_stop=None), again):
        after = started(once, header, view_of(1, dead=(2,)))
        assert (set(after.suspects), set(after.unproven)) == ({2}, {2})


def test_who_loses_its_page_cache_besides_is_known_to_have_lost_it() -> None:
    """Also when it has left the in-sync set before."""
    once = started(SERVING, START, view_of(1))
    reboot = replace(START, last_nonce="m2", next_nonce="l2", lost_cache=True)

    after = started(once, reboot, view_of(1, dead=(2,)))

    assert (set(after.suspects), set(after.unproven)) == ({2}, set())


def test_a_clean_start_and_one_of_who_was_not_in_sync_change_nothing() -> None:
    """And brokers of older releases, which do not say how they were closed."""
    clean = started(SERVING, replace(START, unclean_stop=None), view_of(1))
    outsider = started(SERVING, replace(START, broker_id=3, last_nonce="n3"), view_of(1))

    for after in (clean, outsider):
        assert (set(after.sync_state_set), after.suspects) == ({1, 2}, frozenset())


ALL = group_of(1, 2, 3, epoch=5, in_sync=(2,), set_epoch=8, suspects=(1, 2), unproven=(1, 2))
"""1 and 2 were in sync and were killed, 3 was not in sync."""


def test_when_all_were_killed_the_longest_log_wins_and_nothing_is_lost() -> None:
    """Of those that were not closed in order one at least was not rolled back."""
    event = failover(ALL, view_of(1, 2, dead=(3,), logs={1: (4, 1_000), 2: (4, 500)}))

    assert event is not None
    assert (event.master_id, event.reason, event.loss) == (1, UNCLEAN_STOPS, None)


def test_when_all_were_killed_all_are_waited_for() -> None:
    """The only one that is there may be the one that was rolled back."""
    for view in (
        view_of(2, 3, dead=(1,), logs={2: (4, 500), 3: (4, 400)}),
        view_of(1, 2, logs={1: (4, 10), 2: (4, 10)}),  # 3 may live, and may have more
        view_of(1, 2, dead=(3,), logs={2: (4, 500)}),
    ):
        assert failover(ALL, view) is None


def test_who_was_alone_in_sync_and_was_killed_leads_again() -> None:
    """Nobody else was promised to have what it acknowledged: waiting for others would prove nothing."""
    alone = group_of(1, 2, epoch=5, in_sync=(2,), set_epoch=8, suspects=(1, 2), unproven=(2,))

    event = failover(alone, view_of(2, dead=(1,), logs={2: (4, 500)}))

    assert event is not None
    assert event.master_id == 2


@pytest.mark.parametrize(
    ("unproven", "logs", "winner", "reason", "loss_from"),
    [
        ((2,), {1: (4, 400), 2: (4, 500), 3: (4, 1)}, 2, LOST_CACHES, 500),
        ((2,), {1: (4, 600), 2: (4, 500), 3: (4, 1)}, 1, LOST_CACHES, 600),
        ((1, 2), {1: (4, 400), 2: (4, 500), 3: (4, 700)}, 3, LOST_CACHES_OUTSIDER, 700),
    ],
)
def test_what_may_be_lost_is_recorded(
    unproven: tuple[int, ...], logs: dict[int, tuple[int, int]], winner: int, reason: str, loss_from: int
) -> None:
    """When one has lost its page cache and the other may have been rolled back, or both surely were."""
    event = failover(replace(ALL, unproven=frozenset(unproven)), view_of(1, 2, 3, logs=logs))

    assert event is not None
    assert event.loss is not None
    assert (event.master_id, event.reason, event.loss.from_offset) == (winner, reason, loss_from)
