"""Clusters of the model that the plan has brought to rest, to be changed by hand."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from brokerset_operator.model import actions
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan.deciding import plan
from brokerset_sim.kubernetes_model import Kubernetes
from brokerset_sim.kubernetes_wanted import wanted_of_model

Action = TypeVar("Action")


def decide(observed: Observed) -> Plan:
    """The plan, with the model's few objects."""
    return plan(observed, wanted_of_model)


def settled(**spec: Any) -> Kubernetes:
    """A set that is as its manifest says: by default one group of three brokers, and three controllers."""
    return copy.deepcopy(_settled(json.dumps({"replicas": 3, "groups": 1, **spec})))


@cache
def _settled(spec: str) -> Kubernetes:
    world = Kubernetes(random.Random(1))
    world.apply_manifest(**json.loads(spec))
    carry_on(world, lambda found: condition(found.status, "Ready") == ("True", "AsWanted"))
    carry_on(world, lambda found: decide(found.observe_now()).requeue_seconds >= 60)
    return world


def carry_on(
    world: Kubernetes, until: Callable[[Kubernetes], bool], seconds_max: int = 400
) -> list[actions.Action]:
    """A reconcile each second, undisturbed, until something is so; returns what was done."""
    done: list[actions.Action] = []
    for _ in range(seconds_max):
        if until(world):
            return done
        world.tick()
        done += act(world, decide(world.observe_now()))
    raise AssertionError(f"not so after {seconds_max} s: {world.status}")


def act(world: Kubernetes, decided: Plan) -> tuple[actions.Action, ...]:
    """Carry a plan out, without a fault; returns what was done."""
    for action in decided.actions:
        world.carry_out(action)
    world.status = dict(decided.status)
    return decided.actions


def is_done(world: Kubernetes) -> bool:
    """Whether nothing goes on, all pods are new, and the status is about today's manifest."""
    quiet = condition(world.status, "Progressing") == ("False", "Done")
    new = all(pod.image == world.image for pod in world.pods.values())
    return quiet and new and world.status["observedGeneration"] == world.generation


def of(kind: type[Action], done: Iterable[actions.Action]) -> list[Action]:
    """The actions of one kind."""
    return [action for action in done if isinstance(action, kind)]


def condition(status: Mapping[str, Any], kind: str) -> tuple[str, str] | None:
    """Status and reason of a condition."""
    found = [c for c in status.get("conditions", ()) if c["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else None
