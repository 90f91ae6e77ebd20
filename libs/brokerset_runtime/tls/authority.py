"""An authority of one's own, for who has none: its certificate, and those that it signs.

Elliptic keys (P-256), as every client of RocketMQ accepts them and a handshake costs least.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_SKEW: Final = timedelta(hours=1)
"""A certificate is good from so long before it is made: clocks of other machines may be behind."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, both in PEM; the key is PKCS #8 without a password, as Java reads it."""

    certificate: bytes
    key: bytes = field(repr=False)


class Authority:
    """Signs certificates for the hosts of one set."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Take one that was made before, both in PEM. Raises `ValueError` if they are no such."""
        self.certificate: Final = certificate
        self.key: Final = key
        self._certificate = x509.load_pem_x509_certificate(certificate)
        loaded = serialization.load_pem_private_key(key, password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not an elliptic one")
        if loaded.public_key() != self._certificate.public_key():
            raise ValueError("the authority's key is of another certificate")
        self._key = loaded

    @classmethod
    def make(
        cls, name: str, *, lifetime: timedelta = timedelta(days=3650), now: datetime | None = None
    ) -> Authority:
        """A new one, called `name`, that signs itself; `now` is for whoever has a clock of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            _certificate(subject, subject, key.public_key(), lifetime, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))

    def issue(
        self,
        name: str,
        hosts: Iterable[str] = (),
        *,
        lifetime: timedelta = timedelta(days=365),
        now: datetime | None = None,
    ) -> Issued:
        """A certificate for a process that serves at `hosts` (names and addresses) and is a client, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _certificate(_name(name), self._certificate.subject, key.public_key(), lifetime, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
            )
        )
        names = [_alternative(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
    now: datetime | None,
) -> x509.CertificateBuilder:
    now = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lifetime) - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
