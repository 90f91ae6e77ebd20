"""Whom `kubectl brokerset port-forward` trusts, and whom it cannot reach."""

from __future__ import annotations

from typing import Any, cast

import pytest

from brokerset_cli.kubernetes.kube_api import KubeApi
from brokerset_cli.kubernetes.set_trust import trust_of_set
from brokerset_cli.output import CommandFailed
from brokerset_runtime.tls.authority import Authority

AUTHORITIES = Authority.make("reports").certificate.decode()


class Api:
    """Has one BrokerSet."""

    namespace = "shop"

    def __init__(self, **spec: Any) -> None:
        self.spec = spec

    def broker_set(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": self.spec}


def test_certificates_are_for_the_name_servers_that_clients_of_the_set_ask() -> None:
    """A set that uses another one's controllers has no name servers of its own."""
    own = trust_of_set(cast(KubeApi, Api()), "reports", AUTHORITIES)
    joined = trust_of_set(cast(KubeApi, Api(controllers={"ref": {"name": "core"}})), "reports", AUTHORITIES)

    assert own.server_name == "reports-namesrv.shop.svc"
    assert joined.server_name == "core-namesrv.shop.svc"


def test_a_set_that_requires_certificates_is_refused_with_what_to_do() -> None:
    """There is none to show; one that only asks for them lets everybody in who trusts it."""
    with pytest.raises(CommandFailed, match="require certificates of clients"):
        trust_of_set(cast(KubeApi, Api(tls={"clients": {"mode": "require"}})), "orders", AUTHORITIES)

    trust_of_set(cast(KubeApi, Api(tls={"clients": {"mode": "optional"}})), "orders", AUTHORITIES)
