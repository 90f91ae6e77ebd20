"""The mode of TLS changes to and fro in a model of a cluster in which everything else happens, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
from tests.property.test_operator_plan import EVENTS, Schedule, Unsafe

from brokerset_operator.model.tls_stages import TlsStage, wanted_stage

pytestmark = pytest.mark.long

SCHEDULES: Final = int(os.environ.get("OPERATOR_SCHEDULES", "48"))
NAMES: Final = {"secretName": "orders-tls", "trustConfigMap": "orders-authorities"}
MODES: Final = tuple({**NAMES, "mode": mode} for mode in ("permissive", "enforcing", "enforcing"))
OWN_MODES: Final = tuple(
    {"authority": {}, "mode": mode, "clients": {"trustConfigMap": "shop-clients", "mode": clients}}
    for mode, clients in (
        ("permissive", "none"),
        ("enforcing", "none"),
        ("enforcing", "optional"),
        ("enforcing", "require"),
        ("enforcing", "require"),
    )
)
"""Of sets with an authority of their own: those of odd seeds."""

OFTEN: Final = 8
"""How often the mode changes, compared with each other event."""


def _change_mode(run: Schedule) -> None:
    run.world.apply_manifest(tls=run.rng.choice(OWN_MODES if run.seed % 2 else MODES))


@dataclass(slots=True)
class TlsSchedule(Schedule):
    """A set that has what it needs for each mode."""

    @property
    def events(self) -> tuple[Callable[[Schedule], None], ...]:
        """What may happen."""
        return (*EVENTS, *(_change_mode,) * OFTEN)

    def make_set(self) -> None:
        """As others, with a mode."""
        Schedule.make_set(self)
        _change_mode(self)

    def second(self) -> None:
        """No pod is kept out by another one: their stages are next to each other."""
        Schedule.second(self)
        known = {stage.name.lower(): stage for stage in TlsStage}
        found = {pod.name: known.get(pod.tls or "", TlsStage.SERVING) for pod in self.world.pods.values()}
        if found and max(found.values()) - min(found.values()) > 1:
            raise Unsafe(f"seed {self.seed}: {found}")

    def check_converged(self) -> None:
        """Pods are in the stage that the manifest wants, too."""
        Schedule.check_converged(self)
        wanted = wanted_stage(self.world.manifest).name.lower()
        assert {pod.tls for pod in self.world.pods.values()} == {wanted}, f"seed {self.seed}"


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_pod_is_kept_out_whatever_happens_on_the_way(seed: int) -> None:
    """Crashes, evictions, scaling, other images, a late view, an operator that ends within a reconcile."""
    TlsSchedule(seed).run()
