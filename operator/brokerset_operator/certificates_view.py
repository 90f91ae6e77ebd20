"""Reads what there is of a certificate that the operator keeps, or has cert-manager keep; keys end here.

Of Secrets only what is in `model/certificates` leaves this module: whether a key fits is said, not the key.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient, Object
from brokerset_kube.errors import Forbidden, NotFound
from brokerset_operator.model import names
from brokerset_operator.model.certificates import (
    CLOCK_SKEW_SECONDS,
    AuthoritySecret,
    Certificate,
    CertificateSecret,
    IssuedCertificate,
    Obstacle,
    OwnCertificates,
)
from brokerset_operator.plan import reasons
from brokerset_operator.plan.objects import items, owned_by, part, seconds, text
from brokerset_operator.resources.certificates import read_since
from brokerset_operator.resources.tls_files import AUTHORITIES_FILE, CERTIFICATE_FILE, KEY_FILE
from brokerset_spec.manifest import BrokerSet

if TYPE_CHECKING:
    from cryptography import x509

SIGNING: Final = ("ca.crt", "ca.key")
FOLLOWING: Final = ("next.crt", "next.key")
RETIRED: Final = "retired.crt"
SHOWN: Final = (CERTIFICATE_FILE, KEY_FILE)
"""Entries of the two Secrets."""

RENEWED: Final = f"{names.DOMAIN}/renewed-for"
"""Annotation of both: the request of a person that was done last."""

AUTHORITY_OFF: Final = (
    "the operator may not keep Secrets, which spec.tls.authority needs: install its chart with"
    " tls.authority.enabled=true, or use secretName"
)
CERT_MANAGER_OFF: Final = (
    "the operator may not keep Certificates, which spec.tls.issuerRef needs: install its chart with"
    " tls.certManager.enabled=true, or use secretName"
)
NO_CERT_MANAGER: Final = (
    "the cluster has no Certificates, which spec.tls.issuerRef needs: install cert-manager, or use authority"
    " or secretName"
)


async def observe_certificates(
    client: KubeClient, live: Object, manifest: BrokerSet | None, config_maps: Mapping[str, Object]
) -> tuple[OwnCertificates | IssuedCertificate | None, Object | None]:
    """What there is, and the Certificate of cert-manager if there is one of ours.

    Raises a `KubeError` if the API server does not tell.
    """
    tls = None if manifest is None else manifest.spec.tls
    issued, found = None, None
    # One that is wanted no more is observed until it is gone, whatever the source is now.
    if (tls is not None and tls.issuer_ref is not None) or _source(live) == "issuerRef":
        issued, found = await _issued(client, live)
    if tls is not None and tls.authority is not None:
        return await _own(client, live, config_maps), found
    return (issued if tls is not None and tls.issuer_ref is not None else None), found


async def secret_versions(client: KubeClient, namespace: str, secrets: Iterable[str]) -> dict[str, str]:
    """Resource versions of Secrets by name; those that are gone, or may not be read, are left out."""
    found = {}
    for name in secrets:
        try:
            secret = await client.get(kinds.SECRET, name, namespace)
        except (NotFound, Forbidden):
            continue
        found[name] = str(secret["metadata"]["resourceVersion"])
    return found


def decoded(secret: Mapping[str, Any], entry: str) -> bytes:
    """An entry of a Secret; empty if it is not there or wrong."""
    try:
        return base64.b64decode(str(part(secret, "data").get(entry, "")), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _source(live: Object) -> object:
    """Who kept the certificate when the status was written last."""
    return part(part(live, "status"), "tls").get("source")


async def _own(client: KubeClient, live: Object, config_maps: Mapping[str, Object]) -> OwnCertificates:
    metadata = live["metadata"]
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    trust = config_maps.get(names.authority(name)) or await _trust_by_name(client, name, namespace)
    if trust is not None and not owned_by(trust, uid):
        why = (
            f"ConfigMap {names.authority(name)} is not of this BrokerSet, whose authority would overwrite it:"
            " rename or delete it, or use secretName"
        )
        return OwnCertificates(problem=Obstacle(reasons.FOREIGN_CONFIG_MAP, why), foreign_trust=True)
    published = _published(trust or {})
    found: dict[str, Object] = {}
    for secret in (names.authority(name), names.certificate(name)):
        try:
            each = await client.get(kinds.SECRET, secret, namespace)
        except NotFound:
            continue
        except Forbidden:
            return OwnCertificates(problem=Obstacle(reasons.NO_RIGHT, AUTHORITY_OFF), published=published)
        if not owned_by(each, uid):
            why = (
                f"Secret {secret} is not of this BrokerSet, whose authority would overwrite it: rename or"
                " delete it, or use secretName"
            )
            return OwnCertificates(problem=Obstacle(reasons.FOREIGN_SECRET, why), published=published)
        found[secret] = each
    authority, certificate = found.get(names.authority(name)), found.get(names.certificate(name))
    seen = OwnCertificates(
        authority=None if authority is None else read_authority(authority), published=published
    )
    if certificate is None:
        return seen
    known = (*seen.trusted, *(each for each, _ in published))
    return OwnCertificates(
        authority=seen.authority, certificate=read_certificate(certificate, known), published=published
    )


async def _trust_by_name(client: KubeClient, name: str, namespace: str) -> Object | None:
    """The ConfigMap where a set's own authority is to be published, which may lack the labels of ours."""
    try:
        return await client.get(kinds.CONFIG_MAP, names.authority(name), namespace)
    except NotFound:
        return None


async def _issued(client: KubeClient, live: Object) -> tuple[IssuedCertificate, Object | None]:
    metadata = live["metadata"]
    name = names.certificate(metadata["name"])
    try:
        found = await client.get(kinds.CERTIFICATE, name, metadata["namespace"])
    except Forbidden:
        return IssuedCertificate(problem=Obstacle(reasons.NO_RIGHT, CERT_MANAGER_OFF)), None
    except NotFound:
        if await client.serves(kinds.CERTIFICATE):
            return IssuedCertificate(), None
        return IssuedCertificate(problem=Obstacle(reasons.NO_CERT_MANAGER, NO_CERT_MANAGER)), None
    if not owned_by(found, metadata["uid"]):
        why = f"Certificate {name} is not of this BrokerSet: rename or delete it, or use secretName"
        return IssuedCertificate(problem=Obstacle(reasons.FOREIGN_SECRET, why)), None
    return issued_certificate(found), found


def issued_certificate(certificate: Object) -> IssuedCertificate:
    """What cert-manager says in the status of a Certificate."""
    status = part(certificate, "status")
    conditions = {str(each.get("type")): each for each in items(status, "conditions")}
    ready, issuing = conditions.get("Ready", {}), conditions.get("Issuing", {})
    of = ready.get("observedGeneration")
    if of is not None and of != part(certificate, "metadata").get("generation"):
        ready = {"message": "it has changed since it was judged"}
    said = (text(each.get("message")) for each in (issuing, ready) if each)
    return IssuedCertificate(
        ready=ready.get("status") == "True",
        message=next((each for each in said if each is not None), ""),
        not_before=seconds(status.get("notBefore")),
        not_after=seconds(status.get("notAfter")),
        renewal=seconds(status.get("renewalTime")),
    )


def read_authority(secret: Object) -> AuthoritySecret:
    """What a Secret of an authority has."""
    return AuthoritySecret(
        version=_version(secret),
        signing=_pair(secret, SIGNING),
        following=_pair(secret, FOLLOWING),
        retired=tuple(_certificate(each) for each in _certificates(decoded(secret, RETIRED))),
        renewal=_renewed(secret),
    )


def read_certificate(secret: Object, authorities: Iterable[Certificate]) -> CertificateSecret:
    """What a Secret that pods mount has, and which of some authorities has signed it."""
    shown = _pair(secret, SHOWN)
    signed_by = None if shown is None else _signed_by(shown, authorities)
    return CertificateSecret(
        version=_version(secret), shown=shown, signed_by=signed_by, renewal=_renewed(secret)
    )


def _published(config_map: Object) -> tuple[tuple[Certificate, float | None], ...]:
    listed = _certificates(str(part(config_map, "data").get(AUTHORITIES_FILE, "")).encode())
    since = read_since(config_map)
    found = map(_certificate, listed)
    return tuple((each, since.get(each.fingerprint)) for each in found)


def _pair(secret: Object, entries: tuple[str, str]) -> Certificate | None:
    """A certificate whose key is there; None if one of them is missing or wrong."""
    from cryptography.hazmat.primitives import serialization

    pem, key = (decoded(secret, entry) for entry in entries)
    try:
        (certificate, *_) = _certificates(pem)
        loaded = serialization.load_pem_private_key(key, password=None)
        fits = loaded.public_key() == certificate.public_key()
    except Exception:  # whoever wrote it: of each kind of damage the library has errors of its own
        return None
    return _certificate(certificate) if fits else None


def _certificates(pem: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _certificate(found: x509.Certificate) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    try:
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = frozenset(
            [
                *listed.get_values_for_type(x509.DNSName),
                *map(str, listed.get_values_for_type(x509.IPAddress)),
            ]
        )
    except x509.ExtensionNotFound:
        hosts = frozenset()
    return Certificate(
        fingerprint=found.fingerprint(hashes.SHA256()).hex(),
        made=found.not_valid_before_utc.timestamp() + CLOCK_SKEW_SECONDS,
        not_after=found.not_valid_after_utc.timestamp(),
        names=hosts,
        pem=found.public_bytes(serialization.Encoding.PEM).decode(),
    )


def _signed_by(shown: Certificate, authorities: Iterable[Certificate]) -> str | None:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    certificate = x509.load_pem_x509_certificate(shown.pem.encode())
    for each in authorities:
        try:
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(each.pem.encode()))
        except (ValueError, TypeError, InvalidSignature):
            continue
        return each.fingerprint
    return None


def _version(secret: Object) -> str:
    return str(secret["metadata"]["resourceVersion"])


def _renewed(secret: Object) -> str:
    return str(part(part(secret, "metadata"), "annotations").get(RENEWED, ""))
