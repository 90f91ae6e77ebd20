"""Elections when everybody in sync lost its page cache: all logs are compared, whoever has them."""

from __future__ import annotations

import pytest

from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.describe import advice
from brokerset_controller.replicas.election import FIRST_AFTER_LOSS, LOST_CACHES, LOST_CACHES_OUTSIDER
from brokerset_controller.replicas.events import Applied, MasterElected, Superseded, SyncStateSetAltered
from brokerset_protocol.headers.controller import ElectMaster
from brokerset_sim.replica_groups import NAME, group_of, live, view_of

GROUP = group_of(1, 2, 3, epoch=5, in_sync=(2,), set_epoch=6, suspects=(1, 2))
"""1 was master in epoch 4, 2 was in sync with it, both lost their page caches; 3 was not in sync."""


def failover(view: LiveView, *, unclean: bool = False) -> MasterElected | None:
    decision = decide_failover(GROUP, view, unclean_allowed=unclean)
    if decision is None:
        return None
    assert isinstance(decision.event, MasterElected)
    return decision.event


def loss_from(event: MasterElected | None) -> tuple[int, int]:
    """The winner, and from where on messages may be lost."""
    assert event is not None
    assert event.loss is not None
    assert (event.loss.broker_id, event.loss.master_epoch) == (event.master_id, event.new_epoch)
    return event.master_id, event.loss.from_offset


def test_a_replica_that_was_not_in_sync_may_have_more_than_those_that_were() -> None:
    """It has what was acknowledged up to the end of its log; the event says that it was not in sync."""
    event = failover(view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70), 3: (4, 90)}))

    assert loss_from(event) == (3, 90)
    assert event is not None
    assert (event.unclean, event.reason) == (True, LOST_CACHES_OUTSIDER)
    after, outcome = apply(GROUP, event)
    assert outcome == Applied()
    assert after is not None
    assert (after.master_id, set(after.sync_state_set), set(after.suspects)) == (3, {3}, set())
    assert [loss.from_offset for loss in after.losses] == [90]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ({1: (4, 80), 2: (4, 70), 3: (3, 900)}, (1, 80)),
        ({1: (3, 80), 2: (3, 70), 3: (4, 40)}, (3, 40)),
        ({1: (4, 80), 2: (4, 70), 3: (4, 60)}, (1, 80)),
    ],
)
def test_epochs_count_before_offsets(logs: dict[int, tuple[int, int]], expected: tuple[int, int]) -> None:
    """Who has the last epoch has followed its master, and cut what that one did not have."""
    assert loss_from(failover(view_of(1, 2, 3, logs=logs))) == expected


def test_a_winner_without_the_last_epoch_may_lack_what_lies_before_its_end() -> None:
    """Epoch 4 is nowhere any more. It began behind the logs of those in sync, maybe before 900."""
    event = failover(view_of(1, 2, 3, logs={1: (3, 80), 2: (2, 70), 3: (3, 900)}))

    assert loss_from(event) == (3, 80)


def test_of_equal_logs_one_that_was_in_sync_counts_first() -> None:
    """Whatever the priority of the other."""
    last = live(3, 4, 80, priority=1)
    event = failover(view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70)}, r3=last))

    assert loss_from(event) == (1, 80)
    assert event is not None
    assert (event.unclean, event.reason) == (False, LOST_CACHES)


def test_who_was_in_sync_is_waited_for() -> None:
    """Nobody knows what it still has, however long another log is."""
    logs = {1: (4, 80), 3: (4, 90)}

    for view in (view_of(1, 3, dead=(2,), logs=logs), view_of(1, 3, logs=logs)):
        assert failover(view) is None
        assert "start replica 2 at h2:1" in (advice(GROUP, view) or "")


def test_who_was_not_in_sync_is_asked_and_waited_for_only_while_it_lives() -> None:
    """Dead, or with a log that takes nothing any more, it holds nobody up."""
    logs = {1: (4, 80), 2: (4, 70), 3: (4, 90)}
    unknown = view_of(1, 2, logs=logs)
    untold = view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70)})

    assert failover(unknown) is None
    assert failover(unknown, unclean=True) is None
    assert "whether replica 3 is alive" in (advice(GROUP, unknown) or "")
    assert failover(untold) is None
    assert "3, which may have more, has not told" in (advice(GROUP, untold) or "")
    assert loss_from(failover(view_of(1, 2, dead=(3,), logs=logs))) == (1, 80)
    stuck = view_of(1, 2, 3, logs=logs, r3=live(3, 4, 90, stuck=True))
    assert loss_from(failover(stuck)) == (1, 80)


def test_a_fenced_replica_with_the_longest_log_holds_the_election_up() -> None:
    """It is brought back, or an administrator gives up what it alone has."""
    group = group_of(1, 2, 3, epoch=5, in_sync=(2,), set_epoch=6, suspects=(1, 2), fenced=(3,))
    view = view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70), 3: (4, 90)})
    as_long = view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70), 3: (4, 80)})

    assert decide_failover(group, view, unclean_allowed=False) is None
    assert "`brokerset unfence a 3`" in (advice(group, view) or "")
    forced = ElectMaster(broker_name=NAME, broker_id=-1, designate_elect=True, unclean=True)
    event = decide_elect(group, forced, view, unclean_allowed=False).event
    assert isinstance(event, MasterElected)
    assert event.master_id == 1
    assert decide_failover(group, as_long, unclean_allowed=False) is not None


def test_a_replica_that_was_not_in_sync_waits_for_the_lease_of_the_last_master() -> None:
    """As in every election past the in-sync set."""
    logs = {1: (4, 80), 2: (4, 70), 3: (4, 90)}
    waiting = view_of(1, 2, 3, logs=logs, lease_seconds=1.5)

    assert failover(waiting) is None
    assert "may serve for 1.5 s more" in (advice(GROUP, waiting) or "")
    assert failover(view_of(1, 2, dead=(3,), logs=logs, lease_seconds=1.5)) is not None


def test_an_administrator_may_name_the_best_of_all_and_nobody_else() -> None:
    """Another one needs `unclean`."""
    view = view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70), 3: (4, 90)})

    best = ElectMaster(broker_name=NAME, broker_id=3, designate_elect=True)
    other = ElectMaster(broker_name=NAME, broker_id=1, designate_elect=True)

    assert decide_elect(GROUP, best, view, unclean_allowed=False).code == 0
    assert decide_elect(GROUP, other, view, unclean_allowed=False).code == 2012


def test_a_set_that_changed_meanwhile_stops_the_event() -> None:
    """The set epoch tells that somebody is in sync again, for nobody gets in sync without another one."""
    event = failover(view_of(1, 2, 3, logs={1: (4, 80), 2: (4, 70), 3: (4, 90)}))
    serving = group_of(1, 2, 3, master=2, epoch=5, in_sync=(2,), set_epoch=6, suspects=(1,))
    assert event is not None

    joined, outcome = apply(serving, SyncStateSetAltered(NAME, 2, 5, 6, frozenset((1, 2))))

    assert outcome == Applied()
    assert isinstance(apply(joined, event)[1], Superseded)


REBUILT = group_of(1, 2, 3, epoch=5, expected=3)
"""Nobody knows any more who was in sync."""


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ({1: (5, 80), 2: (5, 70), 3: (5, 60)}, (1, 80)),
        ({1: (5, 70), 2: (5, 80), 3: (5, 60)}, (2, 80)),
        ({1: (4, 80), 2: (4, 70), 3: (4, 60)}, (1, 70)),
        ({1: (4, 70), 2: (4, 80), 3: (4, 60)}, (2, 80)),
    ],
)
def test_the_first_master_of_a_rebuilt_group_may_lack_what_a_lost_page_cache_held(
    logs: dict[int, tuple[int, int]], expected: tuple[int, int]
) -> None:
    """2 lost it, and may have been alone in sync. Where epoch 5 is nowhere, it began behind 2's end."""
    lost = live(2, *logs[2], lost_cache=True)
    decision = decide_failover(REBUILT, view_of(1, 2, 3, logs=logs, r2=lost), unclean_allowed=False)

    assert decision is not None
    assert isinstance(decision.event, MasterElected)
    assert loss_from(decision.event) == expected
    assert (decision.event.reason, decision.event.unclean) == (FIRST_AFTER_LOSS, False)
    after, outcome = apply(REBUILT, decision.event)
    assert outcome == Applied()
    assert after is not None
    assert [loss.from_offset for loss in after.losses] == [expected[1]]


def test_one_page_cache_that_is_lost_suffices_and_all_others_are_waited_for() -> None:
    """Any replica may have been the only one in sync; several are compared by what is left of each."""
    two, three = live(2, 4, 80, lost_cache=True), live(3, 4, 70, lost_cache=True)
    waiting = decide_failover(REBUILT, view_of(2, 3, r2=two, r3=three), unclean_allowed=False)
    view = view_of(1, 2, 3, r1=live(1, 4, 95), r2=two, r3=three)
    decision = decide_failover(REBUILT, view, unclean_allowed=False)

    assert waiting is None
    assert decision is not None
    assert isinstance(decision.event, MasterElected)
    assert loss_from(decision.event) == (1, 70)


def test_a_group_that_never_had_a_master_has_lost_nothing() -> None:
    """Nobody has acknowledged anything, whoever lost power before."""
    group = group_of(1, 2, expected=2)
    lost = live(2, -1, 0, lost_cache=True)
    decision = decide_failover(
        group, view_of(1, 2, logs={1: (-1, 0), 2: (-1, 0)}, r2=lost), unclean_allowed=False
    )

    assert decision is not None
    assert isinstance(decision.event, MasterElected)
    assert decision.event.loss is None


@pytest.mark.parametrize(
    ("wanted", "from_offset", "reason"),
    [
        (1, 80, "while a replica that may have been in sync has lost its page cache"),
        (2, 70, "while another replica has, or may have, a longer log"),
    ],
)
def test_an_administrator_who_names_the_first_master_has_the_loss_recorded(
    wanted: int, from_offset: int, reason: str
) -> None:
    """Whether the longest log is named or another one."""
    lost = live(2, 5, 70, lost_cache=True)
    header = ElectMaster(broker_name=NAME, broker_id=wanted, designate_elect=True)
    view = view_of(1, 2, 3, logs={1: (5, 80), 3: (5, 60)}, r2=lost)
    decision = decide_elect(REBUILT, header, view, unclean_allowed=False)

    assert isinstance(decision.event, MasterElected)
    assert loss_from(decision.event) == (wanted, from_offset)
    assert reason in decision.event.reason
