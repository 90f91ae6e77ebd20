"""A set with an authority of its own, on a fake cluster: real reconciles, on a clock of the test."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.certificates_view import secret_versions
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed
from brokerset_operator.quiescence import renewal_in
from brokerset_operator.set_trust import trust_in
from brokerset_rig.certificate_cluster import (
    DAY_MS,
    ENFORCING,
    ISSUED,
    SERVER_NAME,
    SPREAD_MS,
    Cluster,
    cluster,
    issue,
    wants_authority,
)
from brokerset_rig.fake_kube import FakeKube, Fault
from brokerset_rig.operator_parts import NAMESPACE, condition
from brokerset_runtime.tls import trust_of
from brokerset_runtime.tls.authority import Authority


def hosts(certificate: x509.Certificate) -> set[str]:
    listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(listed.get_values_for_type(x509.DNSName))


async def test_a_new_set_gets_its_authority_its_certificate_and_then_its_pods(tmp_path: Path) -> None:
    """Both Secrets belong to the set; what pods mount is there before any StatefulSet is."""
    async with cluster() as found:
        await found.reconcile(2)
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is None
        assert found.kube.get("configmaps", "orders-authority", NAMESPACE) is not None
        await found.reconcile(2)

        for name in ("orders-authority", "orders-certificate"):
            secret = found.kube.get("secrets", name, NAMESPACE)
            assert secret is not None
            assert secret["metadata"]["ownerReferences"][0]["uid"] == found.live()["metadata"]["uid"]
        assert hosts(found.shown) == {
            SERVER_NAME,
            "*.orders-controller.shop.svc",
            "*.orders-0.shop.svc",
            "orders-0-master.shop.svc",
        }
        pods = found.kube.get("statefulsets", "orders-0", NAMESPACE)
        assert pods is not None
        template = pods["spec"]["template"]
        assert template["metadata"]["annotations"]["brokerset.io/tls"] == "enforcing"
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == "orders-certificate"
        assert volumes["tls-trust"]["configMap"]["name"] == "orders-authority"

        status = found.live()["status"]["tls"]
        assert status == {
            "source": "authority",
            "secretName": "orders-certificate",
            "trustConfigMap": "orders-authority",
            "notAfter": "2026-12-20T14:13:20Z",
            "renewal": "2026-11-20T14:13:20Z",
            "authority": {
                "notAfter": "2031-09-20T14:13:20Z",
                "renewal": "2030-01-20T06:13:20Z",
                "trusted": 1,
            },
        }
        entries = found.entries("orders-certificate")
        for file, content in entries.items():
            (tmp_path / file).write_bytes(content)
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


async def test_what_pods_show_is_what_the_operator_and_clients_trust(tmp_path: Path) -> None:
    """A handshake with the pair of the Secret on one side, and the ConfigMap on the other one."""
    async with cluster() as found:
        found.clock.jump(_real_ms() - found.clock.now_ms())  # OpenSSL has no clock of ours
        await found.reconcile()
        for file, content in found.entries("orders-certificate").items():
            (tmp_path / file).write_bytes(content)
        config_map = found.kube.get("configmaps", "orders-authority", NAMESPACE)
        assert config_map is not None

        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        client = trust_of(config_map["data"]["ca.crt"], SERVER_NAME).client

        assert _handshake(server, client, SERVER_NAME)
        with pytest.raises(ssl.SSLCertVerificationError):
            _handshake(server, client, "invoices-namesrv.shop.svc")


async def test_where_clients_are_asked_the_operator_shows_what_pods_show(tmp_path: Path) -> None:
    """To a server that requires a certificate of the set's authority, and only while the manifest says so."""
    asked = {"mode": "require", "trustConfigMap": "shop-clients"}
    async with cluster(**{**ENFORCING, "tls": {**ENFORCING["tls"], "clients": asked}}) as found:
        found.clock.jump(_real_ms() - found.clock.now_ms())  # OpenSSL has no clock of ours
        await found.reconcile()
        refused = condition(found.live(), "TlsRefused")
        assert "shop-clients (spec.tls.clients.trustConfigMap) is not there: make it" in str(refused)
        data = {"ca.crt": Authority.make("shop").certificate.decode()}
        found.kube.put(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "shop-clients", "namespace": NAMESPACE},
                "data": data,
            }
        )
        for file, content in found.entries("orders-certificate").items():
            (tmp_path / file).write_bytes(content)
        config_map = found.kube.get("configmaps", "orders-authority", NAMESPACE)
        assert config_map is not None
        (tmp_path / "ca.crt").write_text(config_map["data"]["ca.crt"])
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        server.load_verify_locations(tmp_path / "ca.crt")
        server.verify_mode = ssl.CERT_REQUIRED

        async with KubeClient(Access(found.kube.url), manager="tester") as client:
            trust = await trust_in(client, found.live())
            wishes = {**found.live(), "spec": {"tls": ENFORCING["tls"]}}
            without = await trust_in(client, wishes)

        assert trust.problem is None
        assert trust.given is not None
        assert trust.given.client is not None
        assert _handshake(server, trust.given.client, SERVER_NAME)
        assert without.given is not None
        assert without.given.client is not None
        with pytest.raises(ssl.SSLError):
            _handshake(server, without.given.client, SERVER_NAME)


async def test_a_certificate_is_renewed_in_time_and_the_pods_stay() -> None:
    """With a new key, by the same authority; no template changes, so no pod is replaced."""
    async with cluster() as found:
        await found.reconcile()
        before, key = found.shown, found.entries("orders-certificate")["tls.key"]
        pods = found.kube.get("statefulsets", "orders-0", NAMESPACE)

        await found.after(59 * DAY_MS)
        assert found.shown == before
        await found.after(2 * DAY_MS)

        assert found.shown.not_valid_after_utc > before.not_valid_after_utc
        assert found.shown.issuer == before.issuer
        assert found.entries("orders-certificate")["tls.key"] != key
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) == pods


async def test_a_new_authority_is_trusted_before_it_signs_and_the_old_one_until_nobody_needs_it() -> None:
    """On request, as on time: two are trusted, then the new one signs, then it is alone."""
    async with cluster() as found:
        await found.reconcile()
        (first,) = found.trusted

        found.change(renew_authority="today")
        await found.reconcile()
        assert (len(found.trusted), found.signer) == (2, first)
        await found.after(SPREAD_MS - 30_000)
        assert (len(found.trusted), found.signer) == (2, first)
        assert found.live()["status"]["tls"]["authority"]["trusted"] == 2
        await found.after(30_000)
        assert len(found.trusted) == 2
        assert found.signer != first
        second = found.signer
        progressing = condition(found.live(), "Progressing")
        assert progressing is not None
        assert "pods read the certificate of the new authority" in progressing["message"]
        await found.after(SPREAD_MS)
        await found.after(SPREAD_MS)

        assert found.trusted == [second]
        assert found.entries("orders-authority").keys() == {"ca.crt", "ca.key", "retired.crt"}


async def test_a_new_certificate_is_made_for_each_new_request_once() -> None:
    """The annotation stays; what was done for it is written at the Secret."""
    async with cluster() as found:
        await found.reconcile()
        first = found.shown

        found.change(renew_certificates="1")
        await found.reconcile()
        second = found.shown
        await found.after(DAY_MS)

        assert second != first
        assert found.shown == second


@pytest.mark.parametrize("gone", [("orders-certificate",), ("orders-authority",)])
async def test_a_secret_that_somebody_deletes_is_made_again(gone: tuple[str, ...]) -> None:
    """The authority's, too: its certificate stays trusted until there is one of the new authority."""
    async with cluster() as found:
        await found.reconcile()
        first = found.shown
        for name in gone:
            found.kube.remove("secrets", name, NAMESPACE)

        await found.reconcile()
        if gone == ("orders-authority",):
            assert found.shown == first
            assert found.signer in found.trusted
            assert len(found.trusted) == 2
        for _ in range(3):
            await found.after(SPREAD_MS)

        assert found.shown != first
        assert len(found.trusted) == 1


async def test_a_quiescent_set_is_observed_again_when_a_secret_is_gone() -> None:
    """Secrets are not watched; regular reconciles compare their versions once in an hour."""
    async with cluster() as found:
        await found.reconcile()
        async with KubeClient(Access(found.kube.url), manager="tester") as client:
            names = ("orders-authority", "orders-certificate")
            before = await secret_versions(client, NAMESPACE, names)
            found.kube.remove("secrets", "orders-certificate", NAMESPACE)

            assert before.keys() == set(names)
            assert await secret_versions(client, NAMESPACE, names) != before
        renewal = renewal_in(found.live()["status"])
        assert renewal is not None
        assert renewal * 1000 - found.clock.now_ms() == 60 * DAY_MS


async def test_more_groups_are_in_the_certificate_before_they_have_pods() -> None:
    """In one reconcile, the Secret first."""
    async with cluster() as found:
        await found.reconcile()
        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(groups=2))
        found.kube.calls.clear()

        await found.reconcile(2)

        assert "*.orders-1.shop.svc" in hosts(found.shown)
        written = [call.plural for call in found.kube.calls if call.verb not in ("get", "list")]
        if "statefulsets" in written:
            assert written.index("secrets") < written.index("statefulsets")


async def test_without_the_right_on_secrets_the_set_says_what_to_set() -> None:
    """A new set gets no pods, which could not start; the condition names the value of the chart."""
    async with cluster() as found:
        found.kube.faults.append(Fault("get", "secrets", code=403, times=100))
        await found.reconcile()

        refused = condition(found.live(), "TlsRefused")
        assert refused is not None
        assert refused["reason"] == "NoRight"
        assert "tls.authority.enabled=true" in refused["message"]
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is None

        found.kube.faults.clear()
        await found.reconcile()

        assert condition(found.live(), "TlsRefused") is None
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is not None


async def test_a_right_that_is_taken_away_later_stops_nothing_but_renewals() -> None:
    """Objects of the set are kept as before, whom to trust too; then people are warned of the end."""
    async with cluster() as found:
        await found.reconcile()
        trusted = found.trusted
        found.kube.faults.append(Fault("get", "secrets", code=403, times=1000))
        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(groups=2))

        await found.reconcile()

        refused = condition(found.live(), "TlsRefused")
        assert refused is not None
        assert refused["reason"] == "NoRight"
        assert found.trusted == trusted
        assert found.live()["status"]["tls"]["notAfter"] == "2026-12-20T14:13:20Z"


async def test_a_renewal_that_fails_is_said_and_brokers_are_still_looked_after() -> None:
    """`ActionFailed` at once, `CertificateExpiring` when half of the time for it is over."""
    async with cluster() as found:
        await found.reconcile()
        found.kube.faults.append(Fault("update", "secrets", code=403, times=1000))

        await found.after(61 * DAY_MS)
        failed = condition(found.live(), "ActionFailed")
        assert failed is not None
        assert failed["reason"] == "Forbidden"
        assert condition(found.live(), "CertificateExpiring") is None
        found.kube.remove("configmaps", "orders-0", NAMESPACE)
        await found.reconcile()
        assert found.kube.get("configmaps", "orders-0", NAMESPACE) is not None

        await found.after(15 * DAY_MS)
        expiring = condition(found.live(), "CertificateExpiring")
        assert expiring is not None
        assert expiring["reason"] == "NotRenewed"
        assert "2026-12-20" in expiring["message"]

        found.kube.faults.clear()
        await found.reconcile()
        assert condition(found.live(), "CertificateExpiring") is None


async def test_a_secret_of_somebody_else_is_not_overwritten() -> None:
    """The set says whose name is taken, and waits."""
    async with cluster() as found:
        theirs = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "orders-certificate", "namespace": NAMESPACE},
            "data": {"password": "c2VjcmV0"},
        }
        found.kube.put(theirs)

        await found.reconcile()

        refused = condition(found.live(), "TlsRefused")
        assert refused is not None
        assert refused["reason"] == "ForeignSecret"
        assert found.entries("orders-certificate") == {"password": b"secret"}


async def test_no_key_gets_into_plans_logs_events_or_status() -> None:
    """Nor into any other object; of Secrets there are the two."""
    with capture_logs() as logs:
        async with cluster() as found:
            await found.reconcile()
            found.change(renew_authority="x", renew_certificates="y")
            for _ in range(4):
                await found.after(SPREAD_MS)
            keys = [
                content
                for secret in ("orders-authority", "orders-certificate")
                for name, content in found.entries(secret).items()
                if name.endswith(".key")
            ]
            others = {name: live for name, live in found.kube.objects.items() if name[1] != "secrets"}
            texts = [repr(found.plans), repr(logs), repr(others)]

    assert len(keys) == 2
    for key in keys:
        lines = key.decode().splitlines()[1:-1]
        for text in texts:
            assert not any(line in text for line in lines)
            assert base64.b64encode(key).decode()[:60] not in text
    assert "PRIVATE KEY" not in "".join(texts)
    assert any(each["event"] == "certificate issued" for each in logs)


async def test_two_operators_do_not_mix_what_they_write() -> None:
    """A Secret that has changed since it was observed is left as it is, and decided on again."""
    async with cluster() as found:
        await found.reconcile()
        found.change(renew_certificates="1")

        def touched(live: dict[str, Any]) -> None:
            live["metadata"].setdefault("annotations", {})["theirs"] = "1"

        real = found.reconciler.plan

        def overtaken(observed: Observed) -> Plan:
            decided = real(observed)
            found.kube.change("secrets", "orders-certificate", NAMESPACE, touched)
            return decided

        before = found.shown
        found.reconciler.plan = overtaken
        await found.reconcile(1)
        failed = condition(found.live(), "ActionFailed")
        assert failed is not None
        assert failed["reason"] == "Overtaken"
        assert found.shown == before

        found.reconciler.plan = real
        await found.reconcile(2)
        assert found.shown != before


async def test_a_set_with_an_issuer_gets_pods_when_cert_manager_has_issued() -> None:
    """Its Certificate belongs to the set; times and failures are cert-manager's own words."""
    async with cluster(**ISSUED) as found:
        await found.reconcile()
        certificate = found.kube.get("certificates", "orders-certificate", NAMESPACE)
        assert certificate is not None
        assert certificate["metadata"]["ownerReferences"][0]["name"] == "orders"
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) is None
        issue(found, "False", "Issuing", "issuer companys is not there")
        await found.reconcile()
        waits = condition(found.live(), "TlsRefused")
        assert waits is not None
        assert (waits["reason"], "issuer companys is not there" in waits["message"]) == ("NotIssued", True)

        times = {"notAfter": "2026-12-20T00:00:00Z", "renewalTime": "2026-11-20T00:00:00Z"}
        issue(found, "True", "Ready", "up to date", **times)
        await found.reconcile()

        assert condition(found.live(), "TlsRefused") is None
        assert found.live()["status"]["tls"] == {
            "source": "issuerRef",
            "secretName": "orders-certificate",
            "notAfter": "2026-12-20T00:00:00Z",
            "renewal": "2026-11-20T00:00:00Z",
        }
        pods = found.kube.get("statefulsets", "orders-0", NAMESPACE)
        assert pods is not None
        volumes = pods["spec"]["template"]["spec"]["volumes"]
        assert "orders-certificate" in [each.get("secret", {}).get("secretName") for each in volumes]

        await found.after(63 * DAY_MS)
        late = condition(found.live(), "CertificateExpiring")
        assert late is not None
        assert "cert-manager has not renewed it" in late["message"]


async def test_a_certificate_that_nobody_wants_any_more_goes() -> None:
    """Its Secret stays, which pods may still mount until they are replaced."""
    async with cluster(**ISSUED) as found:
        await found.reconcile()
        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].pop("tls"))

        await found.reconcile()

        assert found.kube.get("certificates", "orders-certificate", NAMESPACE) is None
        assert "tls" not in found.live()["status"]


@pytest.mark.parametrize(
    ("absent", "code", "reason", "said"),
    [
        (frozenset({"Certificate"}), 0, "NoCertManager", "install cert-manager"),
        (frozenset(), 403, "NoRight", "tls.certManager.enabled=true"),
    ],
)
async def test_an_issuer_that_cannot_be_asked_is_said(
    absent: frozenset[str], code: int, reason: str, said: str
) -> None:
    """Without cert-manager, and without the right; nothing is sent that would be refused."""
    async with FakeKube(absent=absent) as kube, KubeClient(Access(kube.url), manager="tester") as client:
        if code:
            kube.faults.append(Fault("get", "certificates", code=code, times=1000))
        found = Cluster(kube, client)
        found.create(**ISSUED)
        await found.reconcile()

        refused = condition(found.live(), "TlsRefused")
        assert refused is not None
        assert refused["reason"] == reason
        assert said in refused["message"]
        assert condition(found.live(), "ActionFailed") is None
        assert not found.kube.count("apply", "certificates")


async def test_a_plain_set_stays_plain_until_there_is_a_certificate() -> None:
    """Its objects are not changed and its pods not replaced meanwhile, and go on to be kept then."""
    async with cluster(groups=1, replicas=2) as found:
        await found.reconcile()
        before = found.kube.get("statefulsets", "orders-0", NAMESPACE)
        found.kube.faults.append(Fault("get", "secrets", code=403, times=1000))
        found.kube.change("brokersets", "orders", NAMESPACE, wants_authority)

        await found.reconcile()
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) == before
        found.kube.faults.clear()
        await found.reconcile()

        after = found.kube.get("statefulsets", "orders-0", NAMESPACE)
        assert after is not None
        volumes = after["spec"]["template"]["spec"]["volumes"]
        assert "orders-certificate" in [each.get("secret", {}).get("secretName") for each in volumes]


async def test_from_cert_manager_to_an_authority_pods_stay_until_the_name_of_the_secret_is_free() -> None:
    """Both have the Secret under one name, and cert-manager leaves its own behind."""
    async with cluster(**ISSUED) as found:
        await found.reconcile()
        issue(found, "True", "Ready", "up to date")
        secret = {"apiVersion": "v1", "kind": "Secret", "data": {}}
        secret["metadata"] = {"name": "orders-certificate", "namespace": NAMESPACE}
        found.kube.put(secret)
        await found.reconcile()
        before = found.kube.get("statefulsets", "orders-0", NAMESPACE)
        assert before is not None
        found.kube.change("brokersets", "orders", NAMESPACE, wants_authority)

        await found.reconcile()
        refused = condition(found.live(), "TlsRefused")
        assert refused is not None
        assert refused["reason"] == "ForeignSecret"
        assert found.kube.get("statefulsets", "orders-0", NAMESPACE) == before

        found.kube.remove("secrets", "orders-certificate", NAMESPACE)
        await found.reconcile()
        assert condition(found.live(), "TlsRefused") is None
        assert found.signer in found.trusted


async def test_an_authority_is_not_exchanged_while_pods_trust_it_alone() -> None:
    """Pods with the old and the new one would refuse each other; `permissive` is the way."""
    async with cluster() as found:
        await found.reconcile()
        other = {"secretName": "mine", "trustConfigMap": "ours", "mode": "enforcing"}
        found.kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(tls=other))

        await found.reconcile()

        ready = condition(found.live(), "Ready")
        assert ready is not None
        assert ready["reason"] == "InvalidSpec"
        assert "mode: permissive" in ready["message"]
        assert len(found.trusted) == 1


def _real_ms() -> int:
    from brokerset_runtime.clock import SystemClock

    return SystemClock().now_ms()


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    """Both ends in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(10):
        for end in (one, other):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
        if len(done) == 2:
            return True
    return False
