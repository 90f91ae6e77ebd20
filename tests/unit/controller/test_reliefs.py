"""How often masters that hear no replica are relieved, and to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.liveness import LiveView, Standing
from brokerset_controller.reliefs import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, QUIET_SECONDS, Reliefs
from brokerset_controller.replicas.decide_election import decide_elect
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.election import RELIEVED
from brokerset_controller.replicas.events import MasterElected
from brokerset_protocol.headers.controller import ElectMaster
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of, live

GROUP = group_of(1, 2, 3, 4, master=1, epoch=4, in_sync=(1, 2, 3), set_epoch=6)
ASKED = ElectMaster(
    cluster_name=CLUSTER, broker_name=NAME, designate_elect=True, handover_epoch=4, nonce="n1", relief=2
)


def view(*ages: float) -> LiveView:
    """A look at 100 s: replica N was heard so many seconds ago."""
    lives = {key: replace(live(key, 4, 50), heard_at=100.0 - age) for key, age in enumerate(ages, 1)}
    return LiveView(dict.fromkeys(lives, Standing.ALIVE), lives, now=100.0)


def relieve(look: LiveView) -> Decision:
    return decide_elect(GROUP, ASKED, look, unclean_allowed=False)


def test_a_master_that_hears_no_replica_is_relieved_by_one_in_sync() -> None:
    """Of those that controllers have heard a moment ago."""
    event = relieve(view(0.2, 1.5, 0.3, 0.1)).event

    assert isinstance(event, MasterElected)
    assert (event.master_id, event.reason, event.loss, event.unclean) == (3, RELIEVED, None, False)


@pytest.mark.parametrize(
    ("ages", "text"),
    [
        ((0.2, 1.5, 0.3, 1.7), "without the master 1 were heard a moment ago"),
        ((0.2, 1.5, 1.6, 1.7), "without the master 0 were heard a moment ago"),
        ((0.2, 1.5, 1.6, 0.1), "without the master 1 were heard a moment ago"),
    ],
)
def test_replicas_that_vanished_do_not_lead(ages: tuple[float, ...], text: str) -> None:
    """They are silent for their master and for controllers, though these take them for alive yet."""
    decision = relieve(view(*ages))

    assert decision.event is None
    assert text in (decision.remark or "")


def test_nobody_who_is_not_in_sync_relieves_a_master() -> None:
    """Though enough replicas live: it may lack what was acknowledged."""
    group = replace(GROUP, sync_state_set=frozenset((1, 2)))

    decision = decide_elect(group, ASKED, view(0.1, 1.5, 0.1, 0.1), unclean_allowed=False)

    assert decision.event is None


def test_reliefs_of_a_group_come_less_and_less_often() -> None:
    """Each doubles the pause, up to a bound; after a quiet time it is short again. Groups do not share it."""
    reliefs, now = Reliefs(), 0.0
    pauses = []
    for _ in range(8):
        reliefs.relieved(NAME, now)
        pauses.append(reliefs.wait_seconds(NAME, now))
        now += pauses[-1]
        assert reliefs.wait_seconds(NAME, now) == 0

    assert pauses == [10, 20, 40, 80, 160, 320, 320, 320]
    assert (pauses[0], pauses[-1]) == (PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX)
    assert reliefs.wait_seconds("other", 0.0) == 0
    reliefs.relieved(NAME, now + QUIET_SECONDS)
    assert reliefs.wait_seconds(NAME, now + QUIET_SECONDS) == PAUSE_SECONDS_MIN
    reliefs.forget(NAME)
    assert reliefs.wait_seconds(NAME, now + QUIET_SECONDS) == 0
