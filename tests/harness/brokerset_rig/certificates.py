"""Files of TLS for tests: an authority, and processes with certificates of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

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
