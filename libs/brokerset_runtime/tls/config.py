"""What a process is to do about TLS, read from a file with the keys of Java's `tls.config.file`.

Source: RocketMQ 5.5.0, `TlsSystemConfig` and `TlsHelper`. Other than there, certificates that are named are
used without `tls.test.mode.enable=false`, and nothing ever trusts everybody by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from brokerset_runtime.settings import SettingsError, read_settings_file
from brokerset_runtime.tls.member_names import MemberPort, pattern_problem

E = TypeVar("E", bound=Enum)


class TlsMode(Enum):
    """What a server does with the first byte of a connection (`tls.server.mode`)."""

    DISABLED = "disabled"
    """Whoever begins a handshake is refused."""

    PERMISSIVE = "permissive"
    """Both are served on one port: for the time while clients move."""

    ENFORCING = "enforcing"
    """Plain requests are refused."""


class ClientCertificates(Enum):
    """Whether a server asks its clients for certificates (`tls.server.need.client.auth`)."""

    NONE = "none"
    OPTIONAL = "optional"
    """One that is shown must be good."""

    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Files in PEM of one end: its certificate, with those between it and the authority, and its key."""

    certificate: Path
    key: Path
    password: str = ""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS of a process: as a server, and as a client of others. Paths are of files in PEM."""

    mode: TlsMode = TlsMode.PERMISSIVE
    server: KeyPair | None = None
    client_certificates: ClientCertificates = ClientCertificates.NONE
    client_authorities: Path | None = None
    """Who signs the certificates of clients."""

    client_revocations: Path | None = None
    """Lists of certificates that those authorities have revoked, one of each (CRLs); None: not checked."""

    member: KeyPair | None = None
    """What members of a set show each other, in both directions; None: what they show everybody else."""

    member_authorities: Path | None = None
    """Who signs the certificates of members; None: whoever signs those of clients or servers."""

    member_revocations: Path | None = None
    """Lists of those authorities."""

    member_names: Mapping[MemberPort, tuple[str, ...]] = field(default_factory=dict)
    """Names of which a certificate must have one, to be a member's at such a port; none: whatever it has."""

    at_ha_port: bool = True
    """Whether replication between brokers uses TLS, too: Java's brokers have none there."""

    at_http_port: bool = True
    """Whether the HTTP port (metrics, health, store streams) takes TLS by `mode`, too."""

    enabled: bool = False
    """Whether connections to others use TLS."""

    client: KeyPair | None = None
    """What is shown to servers that ask."""

    server_authorities: Path | None = None
    """Who signs the certificates of servers; None: those that the system trusts."""

    server_revocations: Path | None = None
    """Lists of those authorities."""

    verify_server: bool = True
    """Whether a server's certificate is checked at all."""

    verify_name: bool = True
    """Whether it must be for the host that the connection goes to; Java never checks that."""

    server_name: str | None = None
    """The name that it must be for instead: processes that share a certificate have no fixed addresses."""

    ciphers: str = ""
    """Names as OpenSSL has them, for TLS 1.2; empty: what OpenSSL takes for good."""

    protocols: tuple[str, ...] = ()
    """`TLSv1.2`, `TLSv1.3`, or both, which is the default."""

    def files(self) -> tuple[Path, ...]:
        """All files that a change of certificates replaces."""
        pairs = [pair for pair in (self.server, self.client, self.member) if pair is not None]
        authorities = (self.client_authorities, self.server_authorities, self.member_authorities)
        revocations = (self.client_revocations, self.server_revocations, self.member_revocations)
        trusted = [path for path in (*authorities, *revocations) if path is not None]
        return (*(path for pair in pairs for path in (pair.certificate, pair.key)), *trusted)


PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
"""Older ones are refused: no supported client needs them."""

KEYS: Final = frozenset(
    {
        "tls.server.mode", "tls.server.need.client.auth", "tls.server.keyPath", "tls.server.keyPassword",
        "tls.server.certPath", "tls.server.authClient", "tls.server.trustCertPath",
        "tls.enable", "tls.client.keyPath", "tls.client.keyPassword", "tls.client.certPath",
        "tls.client.authServer", "tls.client.trustCertPath", "tls.client.verifyName", "tls.client.serverName",
        "tls.ciphers", "tls.protocols", "tls.test.mode.enable", "tls.ha.enable",
        "tls.http.enable",
        "tls.members.keyPath", "tls.members.keyPassword", "tls.members.certPath", "tls.members.trustCertPath",
        "tls.members.names", *(f"tls.members.{port.value}.names" for port in MemberPort),
        "tls.server.crlPath", "tls.client.crlPath", "tls.members.crlPath",
    }
)  # fmt: skip
"""Java's, and `tls.client.verifyName`, `tls.client.serverName`, `tls.ha.enable`, `tls.http.enable`,
`tls.*.crlPath` and `tls.members.*`."""


def read_tls_config(file: Path) -> TlsConfig:
    """Read a file of `key=value` lines.

    Relative paths in it are meant from its folder, so that a mounted Secret may hold all of them. Raises
    `SettingsError` with everything that is wrong.
    """
    return tls_config(read_settings_file(file), folder=file.parent, label=str(file))


def tls_config(values: Mapping[str, str], *, folder: Path, label: str) -> TlsConfig:
    """Understand the values by Java's keys; raises `SettingsError` with all problems."""
    reading = _Reading(values, folder)
    for key in values.keys() - KEYS:
        reading.problems.append(f"{key} is no key of TLS; there are: {', '.join(sorted(KEYS))}")
    if reading.truth("tls.test.mode.enable", default=False):
        reading.problems.append(
            "tls.test.mode.enable=true: certificates that nobody can check are not offered;"
            " `brokerset up --tls` makes an authority of its own for tests"
        )
    server, client = reading.pair("tls.server"), reading.pair("tls.client")
    mode = reading.one_of("tls.server.mode", TlsMode, TlsMode.PERMISSIVE if server else TlsMode.DISABLED)
    asked = reading.one_of("tls.server.need.client.auth", ClientCertificates, ClientCertificates.NONE)
    if reading.truth("tls.server.authClient", default=False) and asked is ClientCertificates.NONE:
        asked = ClientCertificates.OPTIONAL
    authorities = reading.path("tls.server.trustCertPath")
    if mode is not TlsMode.DISABLED and server is None:
        reading.problems.append(
            f"tls.server.mode={mode.value} needs tls.server.certPath and tls.server.keyPath"
        )
    if asked is not ClientCertificates.NONE and authorities is None:
        reading.problems.append(
            f"tls.server.need.client.auth={asked.value} needs tls.server.trustCertPath:"
            " the authorities that sign clients' certificates"
        )
    reading.lists(asked)
    if values.get("tls.client.serverName") and not (
        reading.truth("tls.client.authServer", default=True)
        and reading.truth("tls.client.verifyName", default=True)
    ):
        reading.problems.append(
            "tls.client.serverName would not be checked: leave it out, or leave tls.client.authServer"
            " and tls.client.verifyName at true"
        )
    config = TlsConfig(
        mode=mode,
        server=server,
        client_certificates=asked,
        client_authorities=authorities,
        client_revocations=reading.path("tls.server.crlPath"),
        member=reading.pair("tls.members"),
        member_authorities=reading.path("tls.members.trustCertPath"),
        member_names=reading.member_names(),
        member_revocations=reading.path("tls.members.crlPath"),
        at_ha_port=reading.truth("tls.ha.enable", default=True),
        at_http_port=reading.truth("tls.http.enable", default=True),
        enabled=reading.truth("tls.enable", default=False),
        client=client,
        server_authorities=reading.path("tls.client.trustCertPath"),
        server_revocations=reading.path("tls.client.crlPath"),
        verify_server=reading.truth("tls.client.authServer", default=True),
        verify_name=reading.truth("tls.client.verifyName", default=True),
        server_name=values.get("tls.client.serverName") or None,
        ciphers=values.get("tls.ciphers", "").replace(",", ":"),
        protocols=reading.protocols(),
    )
    if reading.problems:
        raise SettingsError([f"{label}: {problem}" for problem in reading.problems])
    return config


class _Reading:
    """Values of a file, and what is wrong with them."""

    def __init__(self, values: Mapping[str, str], folder: Path) -> None:
        self._values = values
        self._folder = folder
        self.problems: list[str] = []

    def truth(self, key: str, *, default: bool) -> bool:
        text = self._values.get(key, "")
        if text.lower() not in ("", "true", "false"):
            self.problems.append(f"{key}={text}: is true or false")
        return default if not text else text.lower() == "true"

    def path(self, key: str) -> Path | None:
        text = self._values.get(key, "")
        return self._folder / text if text else None

    def pair(self, prefix: str) -> KeyPair | None:
        certificate, key = self.path(f"{prefix}.certPath"), self.path(f"{prefix}.keyPath")
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            self.problems.append(f"{prefix}.certPath and {prefix}.keyPath belong together")
            return None
        return KeyPair(certificate, key, self._values.get(f"{prefix}.keyPassword", ""))

    def member_names(self) -> dict[MemberPort, tuple[str, ...]]:
        """Those of each port, where it has its own or there are some for all."""
        found = {port: self._names(f"tls.members.{port.value}.names") for port in MemberPort}
        of_all = self._names("tls.members.names")
        return {port: names or of_all for port, names in found.items() if names or of_all}

    def _names(self, key: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in self._values.get(key, "").split(",") if name.strip())
        self.problems += [f"{key}: {name} {why}" for name in names if (why := pattern_problem(name))]
        return names

    def lists(self, asked: ClientCertificates) -> None:
        """What keys of revocation lists need, because else they would count for nobody, or against all."""
        given = {end for end in ("server", "client", "members") if self._values.get(f"tls.{end}.crlPath")}
        for end in sorted(given):
            if not self._values.get(f"tls.{end}.trustCertPath"):
                self.problems.append(
                    f"tls.{end}.crlPath needs tls.{end}.trustCertPath: the authorities that sign these lists"
                )
        if "client" in given and not self.truth("tls.client.authServer", default=True):
            self.problems.append("tls.client.crlPath counts for nothing with tls.client.authServer=false")
        two = asked is not ClientCertificates.NONE and self._values.get("tls.members.trustCertPath")
        if two and len(given & {"server", "members"}) == 1:
            self.problems.append(
                "tls.server.crlPath and tls.members.crlPath belong together where clients show certificates:"
                " members come to these ports, too"
            )

    def one_of(self, key: str, kind: Callable[[Any], E], default: E) -> E:
        text = self._values.get(key, "").lower()
        if not text:
            return default
        try:
            return kind(text)
        except ValueError:
            names = ", ".join(each.value for each in type(default))
            self.problems.append(f"{key}={text}: is one of {names}")
            return default

    def protocols(self) -> tuple[str, ...]:
        text = self._values.get("tls.protocols", "")
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if name not in PROTOCOLS:
                self.problems.append(f"tls.protocols: {name} is none of {', '.join(PROTOCOLS)}")
        return names
