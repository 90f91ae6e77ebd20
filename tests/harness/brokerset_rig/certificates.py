"""Files of TLS for tests: an authority, and processes with certificates of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from brokerset_runtime.tls.authority import Authority

LOOPBACK = ("127.0.0.1", "localhost")
DAY = timedelta(days=1)


class Certificates:
    """A folder with an authority's certificate; writes certificates and configurations of processes there."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.renew_authority(name)

    def renew_authority(self, name: str) -> None:
        """Make an authority that signs from now on, and name it alone in `authority.pem`."""
        self.authority = Authority.make(name)
        self._replace("authority.pem", self.authority.certificate)

    def issue(self, name: str, hosts: Iterable[str] = LOOPBACK, *, lifetime: timedelta = DAY) -> None:
        """Write `NAME.pem` and `NAME.key`, in place of those that were there."""
        issued = self.authority.issue(name, hosts, lifetime=lifetime)
        for ending, data in (("pem", issued.certificate), ("key", issued.key)):
            self._replace(f"{name}.{ending}", data)

    def revoke(
        self,
        *names: str,
        file: str = "revoked.pem",
        lifetime: timedelta = DAY,
        age: timedelta = DAY,
        by: Authority | None = None,
    ) -> Path:
        """Write the list of certificates that the authority, or `by`, has revoked: those of `names` alone.

        It is `age` old, and good for `lifetime` from now.
        """
        by = by or self.authority
        authority = x509.load_pem_x509_certificate(by.certificate)
        key = serialization.load_pem_private_key(by.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(now - age)
            .next_update(now + lifetime)
        )
        for name in names:
            certificate = x509.load_pem_x509_certificate((self.folder / f"{name}.pem").read_bytes())
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(certificate.serial_number)
                .revocation_date(now - age)
                .build()
            )
        crl = builder.sign(key, hashes.SHA256())
        self._replace(file, crl.public_bytes(serialization.Encoding.PEM))
        return self.folder / file

    def config(self, name: str = "both", **values: str) -> Path:
        """Write `NAME.properties` for a server and client with the certificate `NAME`; `values` by Java's keys,
        with `_` for each dot, come on top, and an empty one takes a line out."""
        if not (self.folder / f"{name}.pem").exists():
            self.issue(name)
        lines = {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": f"{name}.pem",
            "tls.server.keyPath": f"{name}.key",
            "tls.enable": "true",
            "tls.client.trustCertPath": "authority.pem",
        } | {key.replace("_", "."): value for key, value in values.items()}
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items() if value))
        return file

    def _replace(self, name: str, data: bytes) -> None:
        new = self.folder / f"{name}.new"
        new.write_bytes(data)
        new.replace(self.folder / name)
