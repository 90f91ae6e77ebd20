"""What the operator refuses of a manifest that one machine could carry out."""

from __future__ import annotations

import pytest

from brokerset_operator.manifests import read_manifest
from brokerset_spec.manifest import ManifestError


def _set(mode: str) -> dict[str, object]:
    head = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    return {**head, "spec": {"replication": {"mode": mode}}}


def test_dledger_is_refused_on_kubernetes() -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(_set("dledger"))

    assert [str(problem) for problem in caught.value.problems] == [
        "spec.replication.mode: dledger is served on one machine; on Kubernetes not yet; "
        "use controller or leave it out"
    ]
    assert read_manifest(_set("controller")).controllers_wanted == 3
