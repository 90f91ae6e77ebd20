"""What a set's certificate meets besides time: names that are taken, another source, wrong clocks."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography import x509

from brokerset_rig.certificate_cluster import (
    DAY_MS,
    ENFORCING,
    ISSUED,
    SPREAD_MS,
    Cluster,
    cluster,
    wants_authority,
)
from brokerset_rig.fake_kube import Fault
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


async def test_from_cert_manager_to_an_authority_its_certificate_goes_before_a_secret_is_made() -> None:
    """cert-manager would write the same Secret; it is asked again until the Certificate is gone."""
    async with cluster(**ISSUED) as found:
        await found.reconcile()
        found.kube.change("brokersets", "orders", NAMESPACE, wants_authority)
        found.kube.faults.append(Fault("delete", "certificates", code=500, times=1000))

        await found.reconcile()
        assert found.live()["status"]["tls"]["source"] == "issuerRef"
        assert found.kube.get("secrets", "orders-certificate", NAMESPACE) is None

        found.kube.faults.clear()
        found.kube.calls.clear()
        await found.reconcile(6)
        assert found.kube.get("certificates", "orders-certificate", NAMESPACE) is None
        assert found.live()["status"]["tls"]["source"] == "authority"
        assert found.signer in found.trusted
        written = [(each.verb, each.plural) for each in found.kube.calls if each.verb in ("delete", "create")]
        assert written.index(("delete", "certificates")) < written.index(("create", "secrets"))


async def test_a_certificate_whose_deletion_failed_is_deleted_later() -> None:
    """Also without another source that the operator keeps: until then the status remembers it."""
    async with cluster(**ISSUED) as found:
        await found.reconcile()
        found.kube.faults.append(Fault("delete", "certificates", code=500, times=1000))
        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].pop("tls"))
        await found.reconcile()
        assert found.kube.get("certificates", "orders-certificate", NAMESPACE) is not None

        found.kube.faults.clear()
        await found.reconcile()

        assert found.kube.get("certificates", "orders-certificate", NAMESPACE) is None
        assert "tls" not in found.live()["status"]


async def test_an_ipv6_host_is_in_the_certificate_however_it_is_written() -> None:
    """One certificate is issued, and not another one in each reconcile."""
    external = {"type": "LoadBalancer", "nameServers": {"advertisedHost": "2001:DB8:0::1"}}
    async with cluster(**ENFORCING, external=external) as found:
        await found.reconcile()
        first = found.shown
        listed = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert "2001:db8::1" in map(str, listed.get_values_for_type(x509.IPAddress))

        await found.reconcile(3)

        assert found.shown == first


async def test_certificates_of_a_clock_that_was_ahead_are_made_again() -> None:
    """Authority and certificate: both are valid by the right clock, and then stay."""
    async with cluster() as found:
        right = found.clock.now_ms()
        found.clock.jump(400 * DAY_MS)
        await found.reconcile()
        (first,) = found.trusted
        found.clock.jump(right - found.clock.now_ms())

        for _ in range(5):
            await found.after(SPREAD_MS)

        assert first not in found.trusted
        (authority,) = found.trusted
        for each in (authority, found.shown):
            assert each.not_valid_before_utc.timestamp() * 1000 < right + 5 * SPREAD_MS
        shown = found.shown
        await found.after(DAY_MS)
        assert found.shown == shown


async def test_a_late_renewal_does_not_wait_for_a_step_that_fails_each_time() -> None:
    """When half of its time is over it goes first."""
    async with cluster() as found:
        await found.reconcile()
        before = found.shown
        found.kube.remove("configmaps", "orders-0", NAMESPACE)
        found.kube.faults.append(Fault("apply", "configmaps", code=422, times=1000))

        await found.after(61 * DAY_MS)
        assert found.shown == before, "what runs is not stopped for a renewal that has time"
        await found.after(15 * DAY_MS)

        assert found.shown != before
        assert condition(found.live(), "ActionFailed") is not None
        assert condition(found.live(), "CertificateExpiring") is None


async def test_what_cert_manager_said_of_an_older_certificate_is_not_believed() -> None:
    """Its condition names the generation that it judged: the names of that may be fewer."""
    async with cluster(**ISSUED) as found:
        await found.reconcile()

        def older(live: dict[str, Any]) -> None:
            ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": "up to date"}
            generation = live["metadata"]["generation"]
            live["status"] = {"conditions": [{**ready, "observedGeneration": generation - 1}]}

        found.kube.change("certificates", "orders-certificate", NAMESPACE, older)
        await found.reconcile()
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is None

        def judged(live: dict[str, Any]) -> None:
            (ready,) = live["status"]["conditions"]
            ready["observedGeneration"] = live["metadata"]["generation"]

        found.kube.change("certificates", "orders-certificate", NAMESPACE, judged)
        await found.reconcile()
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is not None


async def test_people_are_warned_of_the_end_though_the_manifest_is_invalid() -> None:
    """Nothing is renewed then; what the status last said of the certificate tells when it ends."""
    async with cluster() as found:
        await found.reconcile()
        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(groups=-1))
        await found.after(61 * DAY_MS)
        assert condition(found.live(), "CertificateExpiring") is None

        await found.after(15 * DAY_MS)
        expiring = condition(found.live(), "CertificateExpiring")
        assert expiring is not None
        assert "the manifest is invalid" in expiring["message"]

        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(groups=1))
        await found.reconcile()
        assert condition(found.live(), "CertificateExpiring") is None


async def test_a_copy_that_took_the_place_of_the_config_map_stops_nothing_but_renewals() -> None:
    """As a backup brings it back, without its owner: the set is kept, says so, and warns of the end."""
    async with cluster() as found:
        await found.reconcile()
        before = found.trusted
        found.kube.change(
            "configmaps", "orders-authority", NAMESPACE, lambda live: live["metadata"].pop("ownerReferences")
        )
        found.kube.remove("configmaps", "orders-0", NAMESPACE)

        await found.after(76 * DAY_MS)

        ready, refused = condition(found.live(), "Ready"), condition(found.live(), "TlsRefused")
        assert ready is not None
        assert ready["reason"] != "InvalidSpec"
        assert refused is not None
        assert refused["reason"] == "ForeignConfigMap"
        assert condition(found.live(), "CertificateExpiring") is not None
        assert found.kube.get("configmaps", "orders-0", NAMESPACE) is not None
        found.kube.remove("configmaps", "orders-authority", NAMESPACE)
        await found.reconcile()
        assert condition(found.live(), "TlsRefused") is None
        assert found.trusted == before


def _refused(found: Cluster) -> bool:
    """Whether the manifest is refused with the way by `permissive`."""
    ready = condition(found.live(), "Ready")
    return ready is not None and ready["reason"] == "InvalidSpec" and "mode: permissive" in ready["message"]
