"""Sets as the operator observes them, and the objects that are built for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerset_operator.model.observed import Meta, Observed, Operator, OperatorPods
from brokerset_operator.resources.wanted import Shape, wanted_objects
from brokerset_spec.manifest import read_manifest

Objects = dict[tuple[str, str], dict[str, Any]]

KINDS = frozenset({"monitoring.coreos.com/PodMonitor", "monitoring.coreos.com/PrometheusRule"})
"""What the Prometheus operator brings."""


OPERATOR_PODS = OperatorPods(
    namespace="system",
    labels={"app.kubernetes.io/name": "brokerset-operator", "app.kubernetes.io/instance": "messaging"},
)
"""Where the chart's operator runs."""


def observe(spec: Mapping[str, Any] | None = None, *, name: str = "orders", **seen: Any) -> Observed:
    """The set `name` in namespace `shop`, with nothing there yet but what `seen` says."""
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": name}}
    return Observed(
        meta=Meta(name=name, namespace="shop", uid="4f7c1b1e-0000-4000-8000-000000000001", generation=1),
        manifest=read_manifest({**document, "spec": dict(spec or {})}),
        operator=Operator(
            image="registry.example.com/brokerset:0.1.0",
            api_kinds=seen.pop("api_kinds", frozenset()),
            pods=seen.pop("operator_pods", OPERATOR_PODS),
        ),
        now=1_790_000_000.0,
        **seen,
    )


def whole(observed: Observed, **different: Any) -> Shape:
    """The shape that the manifest asks for in the end."""
    assert observed.manifest is not None
    spec = observed.manifest.spec
    values: dict[str, Any] = {
        "controller_replicas": observed.manifest.controllers_wanted,
        "raft_join": False,
        "groups": {index: spec.replicas for index in range(len(observed.manifest.broker_names))},
    }
    return Shape(**{**values, **different})


def build(
    spec: Mapping[str, Any] | None = None, *, shape: Mapping[str, Any] | None = None, **seen: Any
) -> Objects:
    """What is wanted, by kind and name: `build(spec, shape={…}, config_maps=…)`."""
    found = observe(spec, **seen)
    objects = wanted_objects(found, whole(found, **(shape or {})))
    return {(each["kind"], each["metadata"]["name"]): dict(each) for each in objects}


def wanted(found: Observed) -> tuple[Mapping[str, Any], ...]:
    """Everything for the manifest as it is."""
    return wanted_objects(found, whole(found))


def template(objects: Objects, name: str) -> dict[str, Any]:
    """Of the pods of a StatefulSet."""
    found: dict[str, Any] = objects["StatefulSet", name]["spec"]["template"]
    return found


def container_of(objects: Objects, name: str) -> dict[str, Any]:
    """The only one of these pods."""
    (found,) = template(objects, name)["spec"]["containers"]
    return dict(found)


def hash_of(objects: Objects, name: str) -> str:
    """What tells that these pods are old."""
    return str(template(objects, name)["metadata"]["annotations"]["brokerset.io/config-hash"])
