"""Certificates of a set whose members and clients have authorities of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerset_rig.certificates import DAY, LOOPBACK, Certificates
from brokerset_runtime.tls import Tls
from brokerset_runtime.tls.authority import Authority


class SetCertificates:
    """One authority for members, another one for clients."""

    def __init__(self, folder: Path) -> None:
        self.members = Certificates(folder / "members", "members of the set")
        self.clients = Certificates(folder / "clients", "clients of the set")

    def put_below_root(self) -> bytes:
        """Replace both authorities by some that one root has signed; returns its key, and writes `root.pem`."""
        key = ec.generate_private_key(ec.SECP256R1())
        now, name = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])

        def signed(subject: x509.Name, of: ec.EllipticCurvePublicKey) -> bytes:
            certificate = (
                x509.CertificateBuilder()
                .subject_name(subject)
                .issuer_name(name)
                .public_key(of)
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - timedelta(hours=1))
                .not_valid_after(now + timedelta(hours=1))
                .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(of), critical=False)
                .sign(key, hashes.SHA256())
            )
            return certificate.public_bytes(serialization.Encoding.PEM)

        root = signed(name, key.public_key())
        for each in (self.members, self.clients):
            own = x509.load_pem_x509_certificate(each.authority.certificate)
            public = own.public_key()
            assert isinstance(public, ec.EllipticCurvePublicKey)
            each.authority = Authority(signed(own.subject, public), each.authority.key)
            (each.folder / "authority.pem").write_bytes(each.authority.certificate)
            (each.folder / "root.pem").write_bytes(root)
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def member(
        self,
        name: str = "member",
        hosts: tuple[str, ...] = LOOPBACK,
        lifetime: timedelta = DAY,
        /,
        **values: str,
    ) -> Tls:
        """A process of the set, which serves clients that show certificates, too."""
        self.members.issue(name, hosts, lifetime=lifetime)
        return Tls(
            self.members.config(
                name,
                **{
                    "tls_server_need_client_auth": "require",
                    "tls_server_trustCertPath": str(self.clients.folder / "authority.pem"),
                    "tls_members_trustCertPath": "authority.pem",
                    "tls_client_certPath": f"{name}.pem",
                    "tls_client_keyPath": f"{name}.key",
                }
                | values,
            )
        )

    def expired(self) -> Tls:
        """A member whose certificate, of the subject `CN=late`, has expired."""
        return self.member("late", LOOPBACK, timedelta(hours=-1))

    def client(self, name: str = "shop") -> Tls:
        """A client of the set; it serves with its own certificate, too, as an attacker may."""
        return Tls(
            self.clients.config(
                name,
                tls_client_trustCertPath=str(self.members.folder / "authority.pem"),
                tls_client_certPath=f"{name}.pem",
                tls_client_keyPath=f"{name}.key",
            )
        )
