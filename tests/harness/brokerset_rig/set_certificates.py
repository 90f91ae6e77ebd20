"""Certificates of a set whose members and clients have authorities of their own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from brokerset_rig.certificates import DAY, LOOPBACK, Certificates
from brokerset_runtime.tls import Tls


class SetCertificates:
    """One authority for members, another one for clients."""

    def __init__(self, folder: Path) -> None:
        self.members = Certificates(folder / "members", "members of the set")
        self.clients = Certificates(folder / "clients", "clients of the set")

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
