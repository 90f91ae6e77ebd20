from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.resources.sets import observe

from brokerset_operator.model.actions import CleanBroker, EmitEvent, Plan
from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.model.peers import PeerSet
from brokerset_operator.set_reconciler import (
    QUIET_RECONCILES,
    QUIET_SECONDS_MAX,
    interest,
    is_final,
    keeps_no_copies,
    patience,
)


def test_a_set_in_which_nothing_happens_is_reconciled_less_and_less_often() -> None:
    """A set that never becomes ready does not keep the API server busy."""
    pauses = [patience(2.0, quiet) for quiet in range(100)]

    assert pauses[: QUIET_RECONCILES + 1] == [2.0] * (QUIET_RECONCILES + 1)
    assert pauses == sorted(pauses)
    assert pauses[-1] == QUIET_SECONDS_MAX
    assert patience(0.0, QUIET_RECONCILES) == 0.0
    assert patience(0.0, QUIET_RECONCILES + 5) > 5.0


def test_a_long_pause_is_not_shortened() -> None:
    """Who asked for a requeue in five minutes is not reconciled every half minute."""
    assert patience(300.0, 100) == 300.0


LIVE: dict[str, Any] = {
    "metadata": {
        "name": "orders",
        "uid": "u",
        "generation": 3,
        "resourceVersion": "77",
        "annotations": {
            "brokerset.io/paused": "true",
            "kubectl.kubernetes.io/last-applied-configuration": "x",
        },
    },
    "status": {"phase": "Ready"},
}


@pytest.mark.parametrize(
    ("change", "interesting"),
    [
        ({"resourceVersion": "78"}, False),
        ({"managedFields": [1]}, False),
        ({"annotations": {"brokerset.io/paused": "true", "kubectl.kubernetes.io/x": "y"}}, False),
        ({"generation": 4}, True),
        ({"uid": "v"}, True),
        ({"annotations": {}}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, True),
    ],
)
def test_only_what_people_change_enqueues_a_set(change: dict[str, Any], interesting: bool) -> None:
    """Manifest, annotations and deletion count; versions and our own status do not."""
    changed = {"metadata": {**LIVE["metadata"], **change}, "status": {"phase": "Other"}}

    assert (interest(changed) != interest(LIVE)) is interesting


STATUS: dict[str, Any] = {
    "workflow": {"groups": [{"name": "orders-0", "ids": {"0": 1}}]},
    "requests": {"fence": {"value": "x"}},
    "controllers": {"formed": True, "ready": 2},
    "lagBytes": 9,
}


@pytest.mark.parametrize(
    ("change", "final"),
    [
        ({"lagBytes": 0, "conditions": [], "controllers": {"formed": True, "ready": 3}}, True),
        ({"workflow": {"groups": []}}, False),
        ({"requests": {}}, False),
        ({"controllers": {"formed": False, "ready": 2}}, False),
    ],
)
def test_a_new_status_is_final_when_no_later_plan_rests_on_what_is_new(
    change: dict[str, Any], final: bool
) -> None:
    """What is remembered makes the next plan another one; so does everything that was done but telling."""
    observed = Observed(
        meta=Meta(name="orders", namespace="shop", uid="u", generation=1),
        manifest=None,
        operator=Operator(image="i"),
        status=STATUS,
        now=0.0,
    )
    told = EmitEvent("Ready", "as wanted")

    assert is_final(Plan((told,), STATUS | change, 300.0), observed) is final
    failed = replace(observed, status=STATUS | {"conditions": [{"type": "ActionFailed", "status": "True"}]})
    assert not is_final(Plan((told,), STATUS | change, 300.0), failed)
    assert not is_final(Plan((told, CleanBroker("orders-0", 2, "lost")), STATUS | change, 300.0), observed)


def test_a_set_that_copies_authorities_which_people_keep_is_never_quiescent() -> None:
    """Nobody tells of a change of such a ConfigMap; those that the operator keeps are watched."""
    kept = {"secretName": "x-tls", "trustConfigMap": "x"}
    own: dict[str, Any] = {"authority": {}}

    def copies(mine: dict[str, Any], *theirs: dict[str, Any]) -> bool:
        peers = tuple(PeerSet(name="x", manifest=observe({"tls": tls}, name="x").manifest) for tls in theirs)
        return not keeps_no_copies(observe({"tls": mine}, peers=peers))

    assert [copies(own, kept), copies(kept, own), copies(own, own, kept)] == [True] * 3
    assert [copies(kept), copies(own, own), copies({}, {})] == [False] * 3
