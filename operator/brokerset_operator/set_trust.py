"""Whom the operator trusts when it connects to the pods of a set: whom the set's own ConfigMap names.

The operator reads ConfigMaps of the namespaces that it watches anyway, so it needs no right on Secrets, and
none that it has not had. Who can change that ConfigMap can change the set's settings as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.errors import Forbidden, NotFound
from brokerset_operator.model import names
from brokerset_operator.model.tls_stages import connects_by_tls
from brokerset_operator.plan.objects import part, text
from brokerset_operator.resources.tls_files import AUTHORITIES_FILE, server_name
from brokerset_runtime.tls import ClientTls, trust_of


@dataclass(frozen=True, slots=True)
class SetTrust:
    """What a set's ConfigMap of authorities is good for."""

    given: ClientTls | None = None
    """For connections to its pods; None without a ConfigMap, or if that is wrong."""

    problem: str | None = None
    """What is wrong with the ConfigMap, and what to do."""

    def towards(self, pods: Mapping[str, Mapping[str, Any]]) -> ClientTls | None:
        """How to connect to these pods of the set: by TLS if they do so among themselves.

        None: as the operator's own environment says. Without authorities pods that refuse plain stay silent.
        """
        return self.given if connects_by_tls(pods) else None


async def trust_in(client: KubeClient, broker_set: Mapping[str, Any]) -> SetTrust:
    """Read the authorities of a BrokerSet. Raises a `KubeError` if the API server does not tell."""
    metadata = broker_set["metadata"]
    asked = part(part(broker_set, "spec"), "tls")
    if own := isinstance(asked.get("authority"), Mapping):
        name: str | None = names.authority(str(metadata["name"]))
    else:
        name = text(asked.get("trustConfigMap"))
    if name is None:
        return SetTrust()
    where = f"ConfigMap {name} (spec.tls.trustConfigMap)"
    advice = f"it needs an entry {AUTHORITIES_FILE} with the authorities that sign the set's certificates"
    try:
        found = await client.get(kinds.CONFIG_MAP, name, metadata["namespace"])
    except NotFound:
        if own:
            return SetTrust()  # the operator makes it, see `plan/certificates`
        return SetTrust(problem=f"{where} is not there: make it; {advice}")
    except Forbidden as error:
        return SetTrust(problem=f"{where} may not be read: {error.message}")
    return trust_by(found, where, advice, server_name(metadata["name"], metadata["namespace"]))


def trust_by(config_map: Mapping[str, Any], where: str, advice: str, expected: str) -> SetTrust:
    """Trust what a ConfigMap has, in servers that show a certificate for the name `expected`."""
    try:
        return SetTrust(trust_of(str(part(config_map, "data").get(AUTHORITIES_FILE, "")), expected))
    except ValueError as error:
        return SetTrust(problem=f"{where} {error}: {advice}")
