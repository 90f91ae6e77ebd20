"""Objects about a set's certificate that are no Secrets: whom to trust, and what cert-manager is asked for.

Secrets of a set's own authority are no objects of the plan: `certificate_secrets` makes and changes them, so
that no key is in any value here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.certificates import IssuedCertificate, OwnCertificates
from brokerset_operator.model.observed import Object, Observed
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.tls_files import AUTHORITIES_FILE, server_name
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_spec.set_parts import IssuerRef

SINCE_ANNOTATION: Final = f"{names.DOMAIN}/trusted-since"
"""Of the ConfigMap with authorities: since when each is there, as `fingerprint=seconds,…`."""

DURATION: Final = "2160h"
RENEW_BEFORE: Final = "720h"
"""90 days, renewed when 30 are left: as certificates of our own authority."""


def certificate_hosts(
    facts: SetFacts, groups: Iterable[int], external: ExternalAddresses | None = None
) -> tuple[str, ...]:
    """Names and addresses that a set's certificate is for, sorted.

    Pods are covered by the wildcard of their Service, so another number of replicas changes nothing. The name
    of the name servers' Service is what pods and operator expect of everybody (`tls_files`).
    """
    space = f"{facts.namespace}.svc"
    found = {server_name(facts.controllers_of, facts.namespace)}
    if facts.has_controllers:
        found.add(f"*.{names.controller_set(facts.name)}.{space}")
    if facts.has_name_servers:
        found.add(f"*.{names.namesrv_pods_service(facts.name)}.{space}")
    for index in groups:
        found |= {
            f"{names.master_service(facts.name, index)}.{space}",
            f"*.{names.group_set(facts.name, index)}.{space}",
        }
    return tuple(sorted(found | set(map(_canonical, _hosts_outside(facts, external)))))


def authorities_object(facts: SetFacts, observed: Observed) -> NewObject | None:
    """The ConfigMap with whom to trust, of a set with an authority of its own; None if nobody is known.

    While Secrets cannot be read it stays as it is.
    """
    name, seen = names.authority(facts.name), observed.certificates
    if facts.manifest.spec.tls.authority is None or not isinstance(seen, OwnCertificates):
        return None
    if not seen.trusted:
        return None
    since = {each.fingerprint: time for each, time in seen.published}
    times = ((each.fingerprint, since.get(each.fingerprint)) for each in seen.trusted)
    # A time that is not yet was written under a clock that was ahead: it begins again.
    text = ",".join(
        f"{of}={int(min(observed.now if time is None else time, observed.now))}" for of, time in times
    )
    found = facts.an_object(
        "ConfigMap", name, data={AUTHORITIES_FILE: "".join(each.pem for each in seen.trusted)}
    )
    found["metadata"]["annotations"] = {SINCE_ANNOTATION: text}
    return found


def read_since(config_map: Object) -> dict[str, float]:
    """Return since when each authority is in a ConfigMap, by fingerprint."""
    metadata = config_map.get("metadata") or {}
    text = str((metadata.get("annotations") or {}).get(SINCE_ANNOTATION, ""))
    pairs = (each.partition("=") for each in text.split(","))
    return {name: float(time) for name, _, time in pairs if time.isdecimal()}


def certificate_object(facts: SetFacts, observed: Observed, hosts: Iterable[str]) -> NewObject | None:
    """The Certificate that cert-manager is asked for; None without an issuer, or if there can be none."""
    issuer, seen = facts.manifest.spec.tls.issuer_ref, observed.certificates
    if issuer is None or not isinstance(seen, IssuedCertificate) or seen.problem is not None:
        return None
    name, listed = names.certificate(facts.name), tuple(hosts)
    addresses = [each for each in listed if is_address(each)]
    spec: dict[str, object] = {
        "secretName": name,
        "issuerRef": _issuer(issuer),
        "duration": DURATION,
        "renewBefore": RENEW_BEFORE,
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "usages": ["digital signature", "key encipherment", "server auth", "client auth"],
        "dnsNames": [each for each in listed if not is_address(each)],
    }
    return facts.an_object("Certificate", name, spec=spec | ({"ipAddresses": addresses} if addresses else {}))


def is_address(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _canonical(host: str) -> str:
    """A host as a certificate has it: one IPv6 address can be written in many ways."""
    return str(ipaddress.ip_address(host)) if is_address(host) else host


def _issuer(issuer: IssuerRef) -> Mapping[str, str]:
    return {"name": issuer.name, "kind": issuer.kind, "group": issuer.group}


def _hosts_outside(facts: SetFacts, external: ExternalAddresses | None) -> set[str]:
    """Hosts that clients outside the cluster are told, of name servers as far as the manifest has them."""
    asked = facts.manifest.spec.external
    if asked is None:
        return set()
    given = {asked.advertised_host, asked.name_servers.advertised_host}
    found = {host for host in given if host is not None}
    if external is not None:
        tables = (external.masters, external.brokers, external.hosts)
        found |= {address.rpartition(":")[0].strip("[]") for table in tables for address in table.values()}
    return found
