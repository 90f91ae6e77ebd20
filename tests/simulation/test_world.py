"""Controllers and brokers under seeded faults: no promise is broken, and afterwards all goes on."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_sim.plan import ALL_ADMIN, ALL_FAULTS, WRONG_FOLDERS, Plan, draw
from brokerset_sim.world import Outcome, simulate

pytestmark = pytest.mark.xdist_group("world")
"""One worker runs all of them, because outcomes of seeds are kept."""

REGRESSIONS = (
    11,
    21,
    26,
    49,
    65,
    73,
    79,
    85,
    101,
    135,
    152,
    157,
    203,
    330,
    1937,
    4220,
    4709,
    5019,
    5811,
    7140,
    7848,
    9532,
    9563,
    9613,
)
"""Seeds that have found something once; they run however many seeds are asked for."""


SEEDS_COUNTED = 100
REGISTER = RequestCode.CONTROLLER_REGISTER_BROKER
HAPPENS = (
    "event: BrokerIdApplied",
    "event: BrokerIdApplied without effect",
    "event: GroupRebuilt",
    "event: MasterElected",
    "event: MasterElected without effect",
    "event: MastershipEnded",
    "event: ReplicaAdopted",
    "event: ReplicaMoved",
    "event: ReplicaStarted",
    "event: ReplicaStarted without effect",
    "event: ReplicasCleaned",
    "event: SyncStateSetAltered",
    "event: SyncStateSetAltered without effect",
    "raft: append refused",
    "raft: change of the members",
    "raft: leader",
    "raft: transfer",
    "role: master",
    "role: none",
    "role: slave",
    "snapshot: installed",
    "snapshot: read at a start",
    "cache lost",
    "lost reply",
    "removed",
    *(
        f"answer: {int(REGISTER)} {int(code)}"
        for code in (
            ResponseCode.SUCCESS,
            ResponseCode.CONTROLLER_NOT_LEADER,
            ResponseCode.BROKERSET_IDENTITY_CONFLICT,
            ResponseCode.BROKERSET_GROUP_OWNED,
            ResponseCode.BROKERSET_ID_RETIRED,
        )
    ),
)
"""What must have happened somewhere in the first seeds; else they prove nothing about it."""


@functools.cache
def _run(seed: int) -> Outcome:
    return simulate(seed)


@pytest.mark.timeout(1500)  # it is the first to run so many seeds
def test_seeds_do_every_kind_of_thing() -> None:
    """Every fault, wish of administrators, event and refusal, and snapshots, happen in the first seeds."""
    counts: Counter[str] = Counter()

    for number in range(SEEDS_COUNTED):
        counts += _run(number).counts

    wanted = [f"fault: {name}" for name in (*ALL_FAULTS, *WRONG_FOLDERS)]
    wanted += [f"admin: {name}" for name in ALL_ADMIN]
    assert [name for name in (*wanted, *HAPPENS) if not counts[name]] == []
    assert counts["raft: leader"] > 2 * SEEDS_COUNTED
    assert counts["event: MasterElected"] > 2 * SEEDS_COUNTED


def test_faults_break_no_promise_and_progress_follows(seed: int) -> None:
    """Whatever a seed breaks, no invariant is violated, and a healed installation has leaders and masters."""
    outcome = _run(seed)

    assert outcome.failure is None, f"seed {seed}: {outcome.failure}"


@pytest.mark.parametrize("seed_once_bad", REGRESSIONS)
def test_what_was_found_once_stays_mended(seed_once_bad: int) -> None:
    """Seeds that showed a bug pass."""
    outcome = simulate(seed_once_bad)

    assert outcome.failure is None, f"seed {seed_once_bad}: {outcome.failure}"


@pytest.mark.parametrize("controllers", [1, 2, 3, 4, 5, 7])
def test_calm_installations_of_every_size_serve(controllers: int) -> None:
    """Without faults, controllers of any number register all brokers and elect a master for each group."""
    outcome = simulate(1, Plan(controllers=controllers, brokers=(2, 1), java_brokers=1, seconds=5.0))

    assert outcome.failure is None
    assert outcome.commands >= 10


def test_lost_controllers_are_rebuilt() -> None:
    """After the loss of all controllers' data, ids and epochs go on from what the brokers hold."""
    plan = Plan(controllers=3, brokers=(3,), seconds=8.0, rebuild=True, faults={"kill broker": 1.0})

    outcomes = [simulate(seed, plan) for seed in range(4)]

    assert [outcome.failure for outcome in outcomes] == [None] * 4


def test_plans_differ_and_cover_every_size() -> None:
    """Seeds draw different installations, even numbers of controllers among them."""
    plans = [draw(seed) for seed in range(100)]

    assert {plan.controllers for plan in plans} == {1, 2, 3, 4, 5, 7}
    assert any(plan.rebuild for plan in plans)
    assert any(plan.java_brokers for plan in plans)
