"""Objects that are sent."""

from __future__ import annotations

from brokerset_operator.model.actions import ApplyObject, EmitEvent
from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.plan.deciding import plan
from brokerset_spec.manifest import read_manifest

KINDS = frozenset({"monitoring.coreos.com/PodMonitor", "monitoring.coreos.com/PrometheusRule"})


def test_what_another_project_may_refuse_is_sent_last() -> None:
    """A PodMonitor that is refused ends a round, and must not end it before anything else is done."""
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    observed = Observed(
        meta=Meta(name="orders", namespace="shop", uid="u1", generation=1),
        manifest=read_manifest({**document, "spec": {"monitoring": {"podMonitor": True}}}),
        operator=Operator(image="brokerset:1", api_kinds=KINDS),
        status={"conditions": [{"type": "Ready", "status": "True", "reason": "AsWanted"}]},
        now=1_700_000_000.0,
    )

    *before, first, second = plan(observed).actions

    assert isinstance(first, ApplyObject)
    assert isinstance(second, ApplyObject)
    assert {first.manifest["kind"], second.manifest["kind"]} == {"PodMonitor", "PrometheusRule"}
    assert any(isinstance(action, EmitEvent) for action in before)
