"""Clusters for tests of the plan: made by the model, brought to rest by the plan, then changed by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan.deciding import plan
from brokerset_sim.kubernetes_model import Kubernetes, carry_on, condition
from brokerset_sim.kubernetes_wanted import wanted_of_model


def decide(observed: Observed) -> Plan:
    """The plan, with the model's few objects."""
    return plan(observed, wanted_of_model)


def settled(**spec: Any) -> Kubernetes:
    """A set that is as its manifest says: by default one group of three brokers, and three controllers."""
    world = Kubernetes(random.Random(1))
    world.apply_manifest(**{"replicas": 3, "groups": 1, **spec})
    carry_on(world, decide, lambda found: condition(found.status, "Ready") == ("True", "AsWanted"))
    carry_on(world, decide, lambda found: decide(found.observe_now()).look_again_seconds >= 60)
    return world


@pytest.fixture(name="settled")
def settled_fixture() -> Callable[..., Kubernetes]:
    """Makes a set that is as its manifest says; arguments are fields of the manifest's spec."""
    return settled


@pytest.fixture(name="decide")
def decide_fixture() -> Callable[[Observed], Plan]:
    """The plan, with the model's few objects."""
    return decide
