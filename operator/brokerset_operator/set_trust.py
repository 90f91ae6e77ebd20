"""Whom the operator trusts when it connects to the pods of a set: whom the set's own ConfigMap names.

The operator reads ConfigMaps of the namespaces that it watches anyway, so it needs no right on Secrets, and
none that it has not had. Who can change that ConfigMap can change the set's settings as well.

Where pods ask clients for certificates the operator shows the set's own, which it has issued itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.errors import Forbidden, NotFound
from brokerset_operator.certificates_view import SHOWN, decoded
from brokerset_operator.controllers_view import controllers_of
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

    authorities: str = ""
    """In PEM: all that are trusted, those of sets that share controllers among them."""

    def towards(self, pods: Mapping[str, Mapping[str, Any]]) -> ClientTls | None:
        """How to connect to these pods of the set: by TLS if they do so among themselves.

        None: as the operator's own environment says. Without authorities pods that refuse plain stay silent.
        """
        return self.given if connects_by_tls(pods) else None


@dataclass(frozen=True, slots=True)
class Authorities:
    """What a set's ConfigMap of authorities says."""

    text: str = ""
    """In PEM; empty without a ConfigMap, or if that is wrong."""

    problem: str | None = None
    """What is wrong with it, and what to do."""


async def trust_in(client: KubeClient, broker_set: Mapping[str, Any]) -> tuple[SetTrust, Authorities]:
    """Read whom to trust in a BrokerSet, and its own authorities, which may be fewer.

    Pods of sets that share controllers are asked together. Raises a `KubeError` if the API server does not
    tell.
    """
    metadata, serving = broker_set["metadata"], controllers_of(broker_set)
    own = await authorities_of(client, broker_set)
    texts = [own.text]
    if serving != metadata["name"]:
        try:
            other = await client.get(kinds.BROKER_SET, serving, metadata["namespace"])
        except NotFound:
            pass
        else:
            texts.append((await authorities_of(client, other)).text)
    known = "".join(each for each in texts if each)
    expected = server_name(serving, metadata["namespace"])
    tls = part(part(broker_set, "spec"), "tls")
    clients = part(tls, "clients")
    shown = await _shown(client, broker_set) if known and clients and "authority" in tls else None
    try:
        given = trust_of(known, expected, shown) if known else None
    except ValueError:  # the pair is wrong, which pods show: it is issued again
        given = trust_of(known, expected)
    asks = clients.get("mode", "none") != "none"
    problem = own.problem or (await _problem_of(client, clients, metadata) if asks else None)
    return SetTrust(given, problem, known), own


async def authorities_of(client: KubeClient, broker_set: Mapping[str, Any]) -> Authorities:
    """Read a BrokerSet's own authorities. Raises a `KubeError` if the API server does not tell."""
    metadata = broker_set["metadata"]
    asked = part(part(broker_set, "spec"), "tls")
    if own := isinstance(asked.get("authority"), Mapping):
        name: str | None = names.authority(str(metadata["name"]))
    else:
        name = text(asked.get("trustConfigMap"))
    if name is None:
        return Authorities()
    where = f"ConfigMap {name} (spec.tls.trustConfigMap)"
    advice = f"it needs an entry {AUTHORITIES_FILE} with the authorities that sign the set's certificates"
    try:
        found = await client.get(kinds.CONFIG_MAP, name, metadata["namespace"])
    except NotFound:
        if own:
            return Authorities()  # the operator makes it, see `plan/certificates`
        return Authorities(problem=f"{where} is not there: make it; {advice}")
    except Forbidden as error:
        return Authorities(problem=f"{where} may not be read: {error.message}")
    return authorities_by(found, where, advice)


def authorities_by(config_map: Mapping[str, Any], where: str, advice: str) -> Authorities:
    """What a ConfigMap says; what cannot be used is a problem."""
    found = str(part(config_map, "data").get(AUTHORITIES_FILE, ""))
    try:
        trust_of(found, "any")
    except ValueError as error:
        return Authorities(problem=f"{where} {error}: {advice}")
    return Authorities(found if found.endswith("\n") else f"{found}\n")


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
    return authorities_by(found, where, advice).problem
