"""A set that has a certificate, on a fake API server: real reconciles, on a clock of the test."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from cryptography import x509

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import Means
from brokerset_operator.events import Events
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed, Operator
from brokerset_operator.observe import ClusterFacts
from brokerset_operator.plan.deciding import plan
from brokerset_operator.quiescence import QuiescentSets
from brokerset_operator.reconcile_queue import Key, RetryAfter
from brokerset_operator.set_reconciler import SET, SetReconciler
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, broker_set
from brokerset_runtime.clock import ManualClock

KEY = Key(SET, NAMESPACE, "orders")
DAY_MS = 86_400_000
SPREAD_MS = 300_000
ENFORCING: Final[dict[str, Any]] = {"tls": {"authority": {}, "mode": "enforcing"}, "groups": 1, "replicas": 2}
ISSUED: Final[dict[str, Any]] = {"tls": {"issuerRef": {"name": "companys"}}, "groups": 1, "replicas": 2}
SERVER_NAME = "orders-namesrv.shop.svc"


class Cluster:
    """A fake API server, and the operator's reconciles of the set `orders`."""

    def __init__(self, kube: FakeKube, client: KubeClient) -> None:
        self.kube, self.clock = kube, ManualClock(1_790_000_000_000)
        self.plans: list[Plan] = []
        facts = ClusterFacts(client, self.clock)
        means = Means(
            client=client, events=Events(client, self.clock, "tester"), clock=self.clock, leads=lambda: True
        )
        self.quiescent = QuiescentSets(self.clock, lambda: True, facts.optional_kinds)
        self.reconciler = SetReconciler(
            means,
            facts,
            Operator(image="brokerset:1"),
            self._plan,
            300.0,
            lambda _, __: None,
            lambda _, __: None,
            self.quiescent,
        )

    def _plan(self, observed: Observed) -> Plan:
        self.plans.append(plan(observed))
        return self.plans[-1]

    async def reconcile(self, times: int = 4) -> None:
        """As often as a step leads to another one at once."""
        for _ in range(times):
            try:
                await self.reconciler.reconcile(KEY)
            except RetryAfter:
                continue

    async def after(self, ms: int) -> None:
        """Reconciles later."""
        self.clock.advance(ms)
        await self.reconcile()

    def create(self, **spec: Any) -> None:
        self.kube.put(broker_set(**spec))

    def change(self, **annotations: str) -> None:
        def edit(live: dict[str, Any]) -> None:
            live["metadata"].setdefault("annotations", {}).update(
                {f"brokerset.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
            )

        self.kube.change("brokersets", "orders", NAMESPACE, edit)

    def live(self) -> dict[str, Any]:
        found = self.kube.get("brokersets", "orders", NAMESPACE)
        assert found is not None
        return found

    def entries(self, secret: str) -> dict[str, bytes]:
        found = self.kube.get("secrets", secret, NAMESPACE)
        assert found is not None, f"no Secret {secret}"
        return {name: base64.b64decode(text) for name, text in found["data"].items()}

    @property
    def shown(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.entries("orders-certificate")["tls.crt"])

    @property
    def trusted(self) -> list[x509.Certificate]:
        found = self.kube.get("configmaps", "orders-authority", NAMESPACE)
        assert found is not None, "no ConfigMap"
        return x509.load_pem_x509_certificates(found["data"]["ca.crt"].encode())

    @property
    def signer(self) -> x509.Certificate:
        """Who of those that are trusted has signed the certificate."""
        return next(each for each in self.trusted if each.subject == self.shown.issuer)


@asynccontextmanager
async def cluster(**spec: Any) -> AsyncIterator[Cluster]:
    async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
        found = Cluster(kube, client)
        found.create(**(spec or ENFORCING))
        yield found


def wants_authority(live: dict[str, Any]) -> None:
    live["spec"]["tls"] = {"authority": {}}


def issue(found: Cluster, status: str, reason: str, message: str, **times: str) -> None:
    """What cert-manager writes into the status of the Certificate."""
    ready = {"type": "Ready", "status": status, "reason": reason, "message": message}

    def edit(live: dict[str, Any]) -> None:
        live["status"] = {"conditions": [ready], **times}

    found.kube.change("certificates", "orders-certificate", NAMESPACE, edit)
