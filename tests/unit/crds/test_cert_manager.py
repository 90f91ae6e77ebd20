"""The Certificate that the operator asks cert-manager for is what that operator's API server would accept."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.crds.test_kubeflow_example import problems
from tests.unit.operator.resources.sets import build

from brokerset_operator.model.certificates import IssuedCertificate
from brokerset_protocol.external_routes import ExternalAddresses

SCHEMA = Path(__file__).parent / "cert_manager" / "certificate.json"
SPEC = {
    "tls": {"issuerRef": {"name": "companys", "kind": "ClusterIssuer"}},
    "groups": 2,
    "external": {"type": "NodePort", "advertisedHost": "mq.example.com"},
}

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def certificate() -> dict[str, Any]:
    """As the operator applies it for a set with two groups that is reached from outside."""
    outside = ExternalAddresses(
        masters={"orders-0": "192.0.2.7:31000"}, hosts={"orders-0/10.0.0.9": "[fd00::9]:1"}
    )
    objects = build(SPEC, shape={"external": outside}, certificates=IssuedCertificate())
    return objects["Certificate", "orders-certificate"]


def test_the_certificate_is_valid(schema: dict[str, Any], certificate: dict[str, Any]) -> None:
    """Every field is one that cert-manager has, with a value that it takes."""
    assert (certificate["apiVersion"], certificate["kind"]) == ("cert-manager.io/v1", "Certificate")

    assert list(problems(certificate, schema)) == []


def test_it_names_everything_that_clients_connect_to(certificate: dict[str, Any]) -> None:
    """Services, pods and masters of all groups, and the addresses outside; IPs are no DNS names."""
    spec = certificate["spec"]

    assert spec["dnsNames"] == [
        "*.orders-0.shop.svc",
        "*.orders-1.shop.svc",
        "*.orders-controller.shop.svc",
        "mq.example.com",
        "orders-0-master.shop.svc",
        "orders-1-master.shop.svc",
        "orders-namesrv.shop.svc",
    ]
    assert spec["ipAddresses"] == ["192.0.2.7", "fd00::9"]
    assert spec["issuerRef"] == {"name": "companys", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert spec["secretName"] == "orders-certificate"
    assert certificate["metadata"]["ownerReferences"][0]["name"] == "orders"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda c: c["spec"].pop("secretName"), "secretName: is missing"),
        (lambda c: c["spec"].update(usages=["anything"]), "usages[0]: is none of"),
        (lambda c: c["spec"].update(hosts=[]), "spec.hosts: is not a field"),
        (lambda c: c["spec"]["privateKey"].update(size="256"), "privateKey.size: is no integer"),
    ],
)
def test_what_cert_manager_would_refuse_is_seen(
    schema: dict[str, Any], certificate: dict[str, Any], edit: Edit, said: str
) -> None:
    """The check above can fail."""
    changed = copy.deepcopy(certificate)
    edit(changed)

    assert any(said in problem for problem in problems(changed, schema))
