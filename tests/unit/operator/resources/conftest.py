"""Sets as the operator observes them, and the objects that are built for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.resources.wanted import Shape, wanted_objects
from brokerset_spec.manifest import read_manifest

Build = Callable[..., dict[tuple[str, str], dict[str, Any]]]


def observe(spec: Mapping[str, Any] | None = None, *, name: str = "orders", **seen: Any) -> Observed:
    """The set `name` in namespace `shop`, with nothing there yet but what `seen` says."""
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": name}}
    return Observed(
        meta=Meta(name=name, namespace="shop", uid="4f7c1b1e-0000-4000-8000-000000000001", generation=1),
        manifest=read_manifest({**document, "spec": dict(spec or {})}),
        operator=Operator(
            image="registry.example.com/brokerset:0.1.0", api_kinds=seen.pop("api_kinds", frozenset())
        ),
        now=1_790_000_000.0,
        **seen,
    )


def whole(observed: Observed, **different: Any) -> Shape:
    """The shape that the manifest asks for in the end."""
    assert observed.manifest is not None
    spec = observed.manifest.spec
    values: dict[str, Any] = {
        "controller_replicas": spec.controllers.replicas,
        "raft_join": False,
        "groups": {index: spec.replicas for index in range(len(observed.manifest.broker_names))},
    }
    return Shape(**{**values, **different})


@pytest.fixture
def observed() -> Callable[..., Observed]:
    """`observed(spec, name=…, config_maps=…)`."""
    return observe


@pytest.fixture
def build() -> Build:
    """`build(spec, shape={…}, config_maps=…)`: what is wanted, by kind and name."""

    def built(
        spec: Mapping[str, Any] | None = None, *, shape: Mapping[str, Any] | None = None, **seen: Any
    ) -> dict[tuple[str, str], dict[str, Any]]:
        found = observe(spec, **seen)
        objects = wanted_objects(found, whole(found, **(shape or {})))
        return {(each["kind"], each["metadata"]["name"]): dict(each) for each in objects}

    return built


@pytest.fixture
def wanted() -> Callable[[Observed], tuple[Mapping[str, Any], ...]]:
    """Everything for the manifest as it is."""
    return lambda found: wanted_objects(found, whole(found))
