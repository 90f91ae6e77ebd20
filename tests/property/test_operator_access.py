"""Access control goes on and off in a model of a cluster in which everything else happens, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
from tests.property.test_operator_ledgers import EVENTS as LEDGER_EVENTS
from tests.property.test_operator_ledgers import LedgerSchedule
from tests.property.test_operator_plan import EVENTS, Schedule, Unsafe

from brokerset_operator.model.access_stages import AUTHORIZES, CHECKS, SECRET_ANNOTATION, does, wanted_stage
from brokerset_sim.kubernetes_model import Kubernetes, Pod

pytestmark = pytest.mark.long

SCHEDULES: Final = int(os.environ.get("OPERATOR_SCHEDULES", "24"))
MODES: Final = ("permissive", "enforcing", "enforcing")
OFTEN: Final = 8
"""How often the mode changes, compared with each other event."""


def _change_mode(run: Schedule) -> None:
    run.world.apply_manifest(acl={"secretName": "orders-access", "mode": run.rng.choice(MODES)})


def _component(pod: Pod) -> str:
    named = pod.keeper.rpartition("-")[2]
    return named if named in ("controller", "namesrv") else "broker"


def _done(pod: Pod) -> str:
    return next((text for name, text in pod.access if name != SECRET_ANNOTATION), "")


def _check(seed: int, world: Kubernetes) -> None:
    """Whoever is checked by another pod signs; name servers ask nobody, and controllers talk by Raft."""
    pods = list(world.pods.values())
    checking = [pod for pod in pods if _done(pod) in (CHECKS, AUTHORIZES)]
    if not checking:
        return
    for client in pods:
        servers = {_component(pod) for pod in checking if pod is not client}
        asked = {"broker": servers, "controller": servers - {"controller"}}.get(_component(client), set())
        if asked and not _done(client):
            raise Unsafe(f"seed {seed}: {client.name} signs nothing, and is checked by {sorted(asked)}")


@dataclass(slots=True)
class AccessSchedule(Schedule):
    """A set with controllers, and what it needs for each mode."""

    @property
    def events(self) -> tuple[Callable[[Schedule], None], ...]:
        """What may happen."""
        return (*EVENTS, *(_change_mode,) * OFTEN)

    def make_set(self) -> None:
        """As others, with a mode."""
        Schedule.make_set(self)
        _change_mode(self)

    def second(self) -> None:
        """No pod is kept out by another one."""
        Schedule.second(self)
        _check(self.seed, self.world)

    def check_converged(self) -> None:
        """Pods do what the manifest wants, too."""
        Schedule.check_converged(self)
        _check_all(self)


@dataclass(slots=True)
class LedgerAccessSchedule(LedgerSchedule):
    """A set whose groups elect their leaders themselves, with name servers alone."""

    @property
    def events(self) -> tuple[Callable[[Schedule], None], ...]:
        """What may happen."""
        return (*LEDGER_EVENTS, *(_change_mode,) * OFTEN)

    def make_set(self) -> None:
        """As others, with a mode."""
        LedgerSchedule.make_set(self)
        _change_mode(self)

    def second(self) -> None:
        """No pod is kept out by another one."""
        LedgerSchedule.second(self)
        _check(self.seed, self.world)

    def check_converged(self) -> None:
        """Pods do what the manifest wants, too."""
        LedgerSchedule.check_converged(self)
        _check_all(self)


def _check_all(run: Schedule) -> None:
    wanted = wanted_stage(run.world.manifest)
    found = {(_component(pod), _done(pod)) for pod in run.world.pods.values()}
    assert found == {(each, does(each, wanted)) for each, _ in found}, f"seed {run.seed}"


@pytest.mark.parametrize("seed", range(SCHEDULES))
@pytest.mark.parametrize("kind", [AccessSchedule, LedgerAccessSchedule])
def test_no_pod_is_asked_without_a_signature_whatever_happens_on_the_way(
    kind: type[Schedule], seed: int
) -> None:
    """Crashes, evictions, scaling, other images, a late view, an operator that ends within a reconcile."""
    kind(seed).run()
