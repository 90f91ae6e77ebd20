"""Broker groups that replicate, under seeded faults: nothing that was promised is lost, and all goes on."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_sim.plan import REPLICA_ADMIN, REPLICA_FAULTS, Plan, draw_replicating
from brokerset_sim.world import Outcome, simulate

pytestmark = pytest.mark.xdist_group("groups")
"""One worker runs all of them, because outcomes of seeds are kept."""

REGRESSIONS = (27, 47, 68, 79, 85, 99, 122, 218, 373, 543, 841, 849, 955, 1260, 3233, 3354, 3648, 3927, 8794)
"""Seeds that have found something once; they run however many seeds are asked for."""

SEEDS_COUNTED = 100
SEND = int(RequestCode.SEND_MESSAGE)
SWITCH_OVER = int(RequestCode.BROKERSET_SWITCH_OVER)
HAPPENS = (
    "acknowledged",
    "started from scratch",
    "cache lost",
    "truncated",
    "elected: handed over",
    "elected: otherwise",
    "event: FencingChanged",
    "event: GroupRebuilt",
    "event: SyncStateSetAltered without effect",
    "expanded",
    "fenced",
    "forward repeated",
    "forward unclear",
    "forwarded",
    "held",
    "hold expired",
    "lease lapsed",
    "loss recorded",
    "metadata compared",
    "metadata not told",
    "metadata of a master checked",
    "metadata told",
    "refused",
    "replica compared",
    "retention",
    "retention with a slave behind",
    "role: master",
    "shrunk",
    "switchover done",
    "switchover failed",
    "told where the log ends",
    "unfenced",
    "weak send handed over",
    f"answer: {SEND} {int(ResponseCode.FLUSH_SLAVE_TIMEOUT)}",
    f"answer: {SEND} {int(ResponseCode.SERVICE_NOT_AVAILABLE)}",
    f"answer: {SWITCH_OVER} {int(ResponseCode.SUCCESS)}",
)
"""What must have happened somewhere in the first seeds; else they prove nothing about it."""

ACKNOWLEDGED_MEAN_MIN = 150
"""Sends that are acknowledged in a seed on average; without traffic nothing can be lost."""


@functools.cache
def _run(seed: int) -> Outcome:
    return simulate(seed, draw_replicating(seed))


@pytest.mark.timeout(1500)  # it is the first to run so many seeds
def test_seeds_do_every_kind_of_thing() -> None:
    """Every fault and wish, each way to end a send, cuts, hand-overs and losses happen in the first seeds."""
    counts: Counter[str] = Counter()

    for number in range(SEEDS_COUNTED):
        counts += _run(number).counts

    wanted = [f"fault: {name}" for name in REPLICA_FAULTS] + [f"admin: {name}" for name in REPLICA_ADMIN]
    assert [name for name in (*wanted, *HAPPENS) if not counts[name]] == []
    assert counts["acknowledged send"] > ACKNOWLEDGED_MEAN_MIN * SEEDS_COUNTED
    assert counts["role: master"] > 2 * SEEDS_COUNTED


def test_faults_lose_nothing_and_replicas_get_in_sync(seed: int) -> None:
    """Whatever a seed breaks, no invariant is violated, and a healed group has a master and all in sync."""
    outcome = _run(seed)

    assert outcome.failure is None, f"seed {seed}: {outcome.failure}"


@pytest.mark.parametrize("seed_once_bad", REGRESSIONS)
def test_what_was_found_once_stays_mended(seed_once_bad: int) -> None:
    """Seeds that showed a bug pass."""
    outcome = simulate(seed_once_bad, draw_replicating(seed_once_bad))

    assert outcome.failure is None, f"seed {seed_once_bad}: {outcome.failure}"


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_calm_groups_of_every_size_acknowledge_everything(replicas: int) -> None:
    """Without faults no send fails once there is a master, and every replica is in sync."""
    plan = Plan(brokers=(replicas,), seconds=5.0, replicating=True, min_in_sync=min(2, replicas))

    outcome = simulate(1, plan)

    assert outcome.failure is None
    assert outcome.counts["acknowledged send"] > 50
    assert outcome.counts["truncated"] == outcome.counts["loss recorded"] == 0
    assert outcome.counts["replica compared"] == replicas - 1


def test_the_same_seed_gives_the_same_trace() -> None:
    """A run depends on its seed alone."""
    assert simulate(3, draw_replicating(3)).trace == simulate(3, draw_replicating(3)).trace


def test_plans_cover_modes_and_sizes() -> None:
    """Seeds draw groups of two to four, both flush modes, both ways to acknowledge, few unclean elections."""
    plans = [draw_replicating(seed) for seed in range(200)]

    assert {plan.brokers[0] for plan in plans} == {2, 3, 4}
    assert {plan.sync_flush for plan in plans} == {True, False}
    assert {plan.acknowledges_alone for plan in plans} == {True, False}
    assert {plan.min_in_sync for plan in plans} == {1, 2}
    assert {plan.metadata_clients for plan in plans} == {0, 1, 2}
    assert 0 < sum("elect unclean" in plan.admin for plan in plans) < 25
