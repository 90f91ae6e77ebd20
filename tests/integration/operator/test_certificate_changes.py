"""What a set's certificate meets besides time: names that are taken, another source, wrong clocks."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_rig.certificate_cluster import ENFORCING, Cluster, cluster
from brokerset_rig.operator_parts import NAMESPACE, condition
from brokerset_runtime.tls.authority import Authority


def _somebodys(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"ca.crt": Authority.make("theirs").certificate.decode()},
    }


async def test_a_config_map_of_somebody_else_is_not_overwritten() -> None:
    """It has no labels of ours, so it is in no list; a new set says whose name is taken, and waits."""
    async with cluster() as found:
        found.kube.put(_somebodys("orders-authority"))
        before = found.kube.get("configmaps", "orders-authority", NAMESPACE)

        await found.reconcile()

        refused = condition(found.live(), "TlsRefused")
        assert refused is not None
        assert refused["reason"] == "ForeignConfigMap"
        assert found.kube.get("configmaps", "orders-authority", NAMESPACE) == before
        assert found.kube.get("secrets", "orders-authority", NAMESPACE) is None

        found.kube.remove("configmaps", "orders-authority", NAMESPACE)
        await found.reconcile()
        assert condition(found.live(), "TlsRefused") is None
        assert found.signer in found.trusted


@pytest.mark.parametrize("secret", ["mine", "orders-certificate"])
async def test_pods_that_trust_somebodys_config_map_of_that_name_are_not_given_another_authority(
    secret: str,
) -> None:
    """They would refuse those with the new one: the manifest is refused, and the ConfigMap stays theirs."""
    theirs = {"secretName": secret, "trustConfigMap": "orders-authority", "mode": "enforcing"}
    async with cluster(**{**ENFORCING, "tls": theirs}) as found:
        found.kube.put(_somebodys("orders-authority"))
        await found.reconcile()
        before = found.kube.get("configmaps", "orders-authority", NAMESPACE)
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is not None
        found.kube.change(
            "brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(tls=ENFORCING["tls"])
        )

        await found.reconcile()

        assert _refused(found)
        assert found.kube.get("configmaps", "orders-authority", NAMESPACE) == before
        if secret == "mine":  # the names of Secrets tell, too, when somebody removes the ConfigMap
            found.kube.remove("configmaps", "orders-authority", NAMESPACE)
            await found.reconcile()
            assert _refused(found)


async def test_a_config_map_of_ours_that_lost_its_labels_is_still_ours() -> None:
    """It belongs to the set; who is trusted stays, and the labels come back."""
    async with cluster() as found:
        await found.reconcile()
        before = found.trusted
        found.kube.change(
            "configmaps", "orders-authority", NAMESPACE, lambda live: live["metadata"].pop("labels")
        )

        await found.reconcile()

        assert condition(found.live(), "TlsRefused") is None
        assert found.trusted == before
        live = found.kube.get("configmaps", "orders-authority", NAMESPACE)
        assert live is not None
        assert live["metadata"]["labels"]["brokerset.io/set"] == "orders"


def _refused(found: Cluster) -> bool:
    """Whether the manifest is refused with the way by `permissive`."""
    ready = condition(found.live(), "Ready")
    return ready is not None and ready["reason"] == "InvalidSpec" and "mode: permissive" in ready["message"]
