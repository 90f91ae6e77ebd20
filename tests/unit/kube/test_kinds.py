from __future__ import annotations

import pytest

from brokerset_kube import kinds


def test_paths_are_those_of_the_api() -> None:
    """Core kinds live below /api, others below /apis; cluster-wide kinds have no namespace."""
    assert kinds.POD.path("shop", "a") == "/api/v1/namespaces/shop/pods/a"
    assert kinds.POD.path() == "/api/v1/pods"
    assert kinds.BROKER_SET.path("shop", "a", "status") == (
        "/apis/brokerset.io/v1alpha1/namespaces/shop/brokersets/a/status"
    )
    assert kinds.NODE.path("shop", "n1") == "/api/v1/nodes/n1"


def test_a_kind_is_found_by_its_manifest() -> None:
    """apiVersion and kind together name a kind."""
    assert kinds.kind_of({"apiVersion": "apps/v1", "kind": "StatefulSet"}) is kinds.STATEFUL_SET


def test_an_unknown_kind_is_an_error() -> None:
    """A kind that the operator does not work with is told by a KeyError."""
    with pytest.raises(KeyError):
        kinds.kind_of({"apiVersion": "apps/v1", "kind": "Deployment"})


def test_no_kind_is_listed_twice() -> None:
    """Each kind stands once in the table."""
    assert len({(kind.api_version, kind.kind) for kind in kinds.ALL}) == len(kinds.ALL)
