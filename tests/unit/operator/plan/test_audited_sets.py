"""A set whose replicas are audited: its rounds leave what StoreAudits say of it alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model.actions import EmitEvent
from brokerset_operator.model.observed import Observed
from brokerset_operator.plan.deciding import plan
from brokerset_operator.quiescence import all_is_well
from brokerset_operator.set_reconciler import is_final
from brokerset_sim.kubernetes_worlds import decide, settled
from brokerset_spec.manifest import Problem


def audited(observed: Observed, holds: str) -> Observed:
    """The same after a StoreAudit has written its condition."""
    told = {
        "type": "AuditPassed",
        "status": holds,
        "reason": "ErrorsFound",
        "message": "run 7 found 1 errors",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-03-03T03:01:00Z",
    }
    conditions: Any = [*observed.status["conditions"], told]
    return replace(observed, status={**observed.status, "conditions": conditions})


@pytest.mark.parametrize("holds", ["True", "False", "Unknown"])
def test_the_condition_of_an_audit_stays_as_it_is(holds: str) -> None:
    """It is no news, keeps nobody busy, and does not make a set that is well look otherwise."""
    observed = audited(settled().observe_now(), holds)

    decided = decide(observed)

    before = [one for one in observed.status["conditions"] if one["type"] == "AuditPassed"]
    assert [one for one in decided.status["conditions"] if one["type"] == "AuditPassed"] == before
    assert [each for each in decided.actions if isinstance(each, EmitEvent)] == []
    assert decided.status["phase"] == "Ready"
    assert all_is_well(decided.status)
    assert is_final(decided, observed)


def test_an_invalid_manifest_does_not_take_it_away() -> None:
    """The data is what it was."""
    observed = audited(settled().observe_now(), "False")

    decided = plan(replace(observed, manifest=None, problems=(Problem("spec.x", "is wrong", "correct it"),)))

    assert [one["status"] for one in decided.status["conditions"] if one["type"] == "AuditPassed"] == [
        "False"
    ]
