"""Whom the operator trusts when it connects to the pods of a set: whom the set's own ConfigMap names.

The operator reads ConfigMaps of the namespaces that it watches anyway, so it needs no right on Secrets, and
none that it has not had. Who can change that ConfigMap can change the set's settings as well.

Where pods ask clients for certificates the operator shows the set's own, which it has issued itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.errors import Forbidden, NotFound
from brokerset_operator.certificates_view import SHOWN, decoded
from brokerset_operator.model import names
from brokerset_operator.model.tls_stages import connects_by_tls
from brokerset_operator.plan.objects import part, text
from brokerset_operator.resources.tls_files import AUTHORITIES_FILE, server_name
from brokerset_runtime.tls import ClientTls, ShownPair, trust_of


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
    expected = server_name(metadata["name"], metadata["namespace"])
    clients = part(asked, "clients")
    if not own or not clients:
        return trust_by(found, where, advice, expected)
    try:
        trust = SetTrust(trust_of(_authorities(found), expected, await _shown(client, broker_set)))
    except ValueError:  # maybe the pair is wrong, which pods show: it is issued again
        trust = trust_by(found, where, advice, expected)
    problem = None if clients.get("mode", "none") == "none" else await _problem_of(client, clients, metadata)
    return replace(trust, problem=trust.problem or problem)


def trust_by(config_map: Mapping[str, Any], where: str, advice: str, expected: str) -> SetTrust:
    """Trust what a ConfigMap has, in servers that show a certificate for the name `expected`."""
    try:
        return SetTrust(trust_of(_authorities(config_map), expected))
    except ValueError as error:
        return SetTrust(problem=f"{where} {error}: {advice}")


def _authorities(config_map: Mapping[str, Any]) -> str:
    return str(part(config_map, "data").get(AUTHORITIES_FILE, ""))


async def _shown(client: KubeClient, broker_set: Mapping[str, Any]) -> ShownPair | None:
    """The certificate of the set's pods; None while there is none that is good, which is made then."""
    metadata = broker_set["metadata"]
    try:
        secret = await client.get(
            kinds.SECRET, names.certificate(str(metadata["name"])), metadata["namespace"]
        )
        return ShownPair(*(decoded(secret, entry).decode() for entry in SHOWN))
    except (NotFound, Forbidden, ValueError):  # `plan/certificates` says what to do
        return None


async def _problem_of(
    client: KubeClient, clients: Mapping[str, Any], metadata: Mapping[str, Any]
) -> str | None:
    """What is wrong with the ConfigMap of clients' authorities: pods that mount it would not start."""
    name = text(clients.get("trustConfigMap"))
    if name is None:
        return None  # the manifest is invalid
    where = f"ConfigMap {name} (spec.tls.clients.trustConfigMap)"
    advice = f"it needs an entry {AUTHORITIES_FILE} with the authorities that sign certificates of clients"
    try:
        found = await client.get(kinds.CONFIG_MAP, name, metadata["namespace"])
    except NotFound:
        return f"{where} is not there: make it; {advice}"
    except Forbidden as error:
        return f"{where} may not be read: {error.message}"
    return trust_by(found, where, advice, "").problem
