"""The certificates of a process, in force from the moment that their files have changed."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from brokerset_runtime.settings import SettingsError
from brokerset_runtime.tls.config import ClientCertificates, KeyPair, TlsConfig, TlsMode, read_tls_config
from brokerset_runtime.tls.member_names import MemberPort, described, has_name
from brokerset_runtime.tls.shown_certificates import observe_certificates
from brokerset_runtime.tls.transport import TlsTransport

if TYPE_CHECKING:  # needs `cryptography`, which is loaded when there are lists
    from brokerset_runtime.tls.revocation import RevocationList

log = structlog.get_logger(__name__)

ENVIRONMENT_VARIABLE: Final = "BROKERSET_TLS_CONFIG_FILE"
"""Names the file for programs without settings of their own: clients and commands."""

MEMBER_AUTHORITY_KEY: Final = "tls.members.trustCertPath"

WATCH_SECONDS: Final = 2.0
"""Between two looks at the files: a rotated certificate is used so much later at most."""

Stamp = tuple[int, int, int]
"""Inode, size and time of change of a file."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    config: TlsConfig
    server: ssl.SSLContext | None
    members: ssl.SSLContext | None
    client: ssl.SSLContext | None
    client_of_members: ssl.SSLContext | None
    http: ssl.SSLContext | None
    revocations: tuple[RevocationList, ...]
    stamps: dict[Path, Stamp | None]


class Tls:
    """TLS of a process by a file of its own (`config.py`); new connections use what the files say now.

    Files that are wrong when the process starts end it. Later they are reported, and what was good stays.
    """

    def __init__(self, file: Path) -> None:
        """Raises `SettingsError` with what is wrong with the file, or with those that it names."""
        self.file = file
        self.reloads = 0
        self.failures = 0
        self.handshakes_failed: Counter[str] = Counter()
        """By port: `clients`, `members`, `http`; so is the next."""

        self.plain_refused: Counter[str] = Counter()
        self.without_certificate = 0
        """Connections of clients that were asked for a certificate and showed none."""

        self.revoked_closed = 0
        """Connections that were open when their certificate was revoked."""

        from brokerset_runtime.tls.established import Established  # not read where there is no TLS

        self._established = Established()
        self._checked_for = 0
        self._loaded = _load(file)
        self._refused: tuple[dict[Path, Stamp | None], str] | None = None

    @property
    def mode(self) -> TlsMode:
        return self._loaded.config.mode

    @property
    def server(self) -> ssl.SSLContext | None:
        """For who connects to us; None: plain only."""
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext | None:
        """For connections to others; None: plain."""
        return self._loaded.client

    @property
    def server_name(self) -> str | None:
        """The name that certificates of servers must be for; None: the host that is connected to."""
        return self._loaded.config.server_name

    @property
    def at_ha_port(self) -> bool:
        """Whether replication between brokers uses TLS."""
        return self._loaded.config.at_ha_port

    def certificates(self) -> dict[str, Path]:
        """The files of what is shown, by whom it is shown to: `clients`, `servers`, `members`."""
        config = self._loaded.config
        pairs = {"clients": config.server, "servers": config.client, "members": config.member}
        return {shown_to: pair.certificate for shown_to, pair in pairs.items() if pair is not None}

    @property
    def http(self) -> ssl.SSLContext | None:
        """For who connects to the HTTP port, which asks nobody for a certificate; None: plain only."""
        return self._loaded.http

    @property
    def http_client(self) -> ssl.SSLContext | None:
        """For connections to the HTTP ports of processes with the same settings; None: plain."""
        return self._loaded.client if self._loaded.config.at_http_port else None

    @property
    def members(self) -> ssl.SSLContext | None:
        """For processes of the same set that connect to us: they show certificates, clients need not.

        None also where no authority is named: then nobody could say who is a member.
        """
        return self._loaded.members

    @property
    def member_authorities(self) -> Path | None:
        """Who signs certificates of members; None: nobody, so that no member is let in by TLS."""
        return _among_members(self._loaded.config).client_authorities

    @property
    def clients_may_be_members(self) -> bool:
        """Whether the authority of members also signs clients, or is only the one that we trust as a client:
        then maybe a public one."""
        config = self._loaded.config
        members, clients = self.member_authorities, config.client_authorities
        if clients is None:
            return config.member_authorities is None and members is not None
        asks = config.client_certificates is not ClientCertificates.NONE
        return asks and members is not None and _same(members, clients)

    @property
    def client_of_members(self) -> ssl.SSLContext | None:
        """For connections to processes of the same set, to which we show a certificate, too; None: plain."""
        return self._loaded.client_of_members

    @property
    def revocations(self) -> tuple[RevocationList, ...]:
        """The lists of revoked certificates that are in force."""
        return self._loaded.revocations

    def admit(self, transport: TlsTransport) -> str | None:
        """Remember who was let pass, to close it when its certificate is revoked; returns why it is refused.

        A handshake that began before a list came ends by the older one.
        """
        shown = transport.shown_certificate()
        if shown is None:
            self.without_certificate += self._loaded.config.client_certificates is not ClientCertificates.NONE
            return None
        self._established.add(transport, shown)
        name = self._revoked(shown)
        return (
            None if name is None else f"the other end's certificate is refused: certificate revoked: {name}"
        )

    def admit_member(self, transport: TlsTransport, port: MemberPort) -> str | None:
        """The same of a member, which must have one of the names of members at such a port, if there are."""
        names = self._loaded.config.member_names.get(port)
        if names and not has_name(shown := transport.shown_names(), names):
            return (
                f"the other end's certificate is for {described(shown)}, and for none of {', '.join(names)}"
                f" (tls.members.{port.value}.names, or tls.members.names without that)"
            )
        return self.admit(transport)

    def close_revoked(self) -> None:
        """Close connections whose certificate is on a list that has come since; from any thread."""
        if self._checked_for != self.reloads:
            self._checked_for = self.reloads
            if self._loaded.revocations:
                self.revoked_closed += self._established.close(self._revoked)

    def _revoked(self, shown: bytes) -> str | None:
        lists = self._loaded.revocations
        if not lists:
            return None
        from brokerset_runtime.tls.revocation import revoked_name

        return revoked_name(lists, shown)

    def refresh(self) -> bool:
        """Take what the files say if they have changed; returns whether something new is in force.

        A certificate and its key are two files, and are replaced one after the other: while they do not
        belong together the old ones stay. What was refused is tried again each time, since a file that it
        names may be mended that is none of those in force. Reads files: call it in a thread.
        """
        stamps = _stamps(self.file, self._loaded.config)
        if stamps == self._loaded.stamps:
            return False
        try:
            self._loaded = _load(self.file, self._loaded.revocations)
        except SettingsError as error:
            refused = stamps, str(error)
            if refused != self._refused:
                self._refused = refused
                self.failures += 1
                log.error("changed TLS files are not used; those before stay in force", problem=str(error))
            return False
        self._refused = None
        self.reloads += 1
        log.info("TLS files were changed; new connections use them", file=str(self.file))
        return True

    async def watch(self) -> None:
        """Refresh again and again, and close connections with what was revoked, while this task runs."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await asyncio.to_thread(self._follow)

    def _follow(self) -> None:
        self.refresh()
        self.close_revoked()


def tls_of_environment() -> Tls | None:
    """TLS by the file that `BROKERSET_TLS_CONFIG_FILE` names, the same for all who ask; None without it.

    Call it where connections are made: it takes what the files say then, so that commands and jobs that run
    for long need no watch. Raises `SettingsError` with what is wrong with the files when they are read first;
    afterwards what was good stays.
    """
    file = os.environ.get(ENVIRONMENT_VARIABLE)
    if not file:
        return None
    tls = _of_file(file)
    tls.refresh()
    return tls


@cache
def _of_file(file: str) -> Tls:
    return Tls(Path(file))


def _load(file: Path, in_force: tuple[RevocationList, ...] = ()) -> _Loaded:
    """`in_force` are the lists of before."""
    try:
        return _load_files(file, in_force)
    except ValueError as error:  # a password that is too long, a path with a zero byte
        raise SettingsError([f"{file}: {error}"]) from None


def _load_files(file: Path, in_force: tuple[RevocationList, ...]) -> _Loaded:
    # Stamps of before the files are read: what changes meanwhile is read the next time.
    stamp = _stamp(file)
    config = read_tls_config(file)
    stamps = _stamps(file, config) | {file: stamp}
    serves = config.mode is not TlsMode.DISABLED
    among = _among_members(config)
    revocations = _read_lists(config, in_force)
    # Those by the keys of their own first, so that errors name the key that was given.
    server = _server_context(config) if serves else None
    client = _client_context(config) if config.enabled else None
    return _Loaded(
        config,
        server=server,
        members=_members_context(among) if serves and among.client_authorities is not None else None,
        client=client,
        http=_server_context(replace(config, client_certificates=ClientCertificates.NONE))
        if serves and config.at_http_port
        else None,
        client_of_members=_client_context(among) if config.enabled else None,
        revocations=revocations,
        stamps=stamps,
    )


def _among_members(config: TlsConfig) -> TlsConfig:
    """Both ends prove who they are, by an authority that they share, whatever holds for clients."""
    members = config.member_authorities
    of_members = config.member_revocations
    of_clients, of_servers = config.client_revocations, config.server_revocations
    return replace(
        config,
        server=config.member or config.server,
        client_certificates=ClientCertificates.REQUIRE,
        client_authorities=members or config.client_authorities or config.server_authorities,
        client_revocations=of_members if members else of_clients if config.client_authorities else of_servers,
        server_authorities=members or config.server_authorities or config.client_authorities,
        server_revocations=of_members if members else of_servers if config.server_authorities else of_clients,
        verify_server=True,
        client=config.member or config.client or config.server,
    )


def _same(one: Path, other: Path) -> bool:
    """Whether two files are one, or a copy of the other."""
    try:
        return one == other or one.read_bytes() == other.read_bytes()
    except OSError:  # replaced just now
        return False


def _stamps(file: Path, config: TlsConfig) -> dict[Path, Stamp | None]:
    return {path: _stamp(path) for path in (file, *config.files())}


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert config.server is not None, "a configuration with a mode has certificates"
    _restrict(context, config)
    _show(context, config.server, "tls.members" if config.server is config.member else "tls.server")
    if config.client_certificates is not ClientCertificates.NONE:
        assert config.client_authorities is not None, "whoever asks knows the authorities"
        _trust(
            context, config.client_authorities, _authority_key(config, config.client_authorities, "server")
        )
        if config.member_authorities is not None:  # members are served wherever clients are
            _trust(context, config.member_authorities, MEMBER_AUTHORITY_KEY)
        require = config.client_certificates is ClientCertificates.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if require else ssl.CERT_OPTIONAL
        _check_lists(context, config.client_revocations, config.member_revocations)
    return context


def _members_context(config: TlsConfig) -> ssl.SSLContext:
    context = _server_context(config)
    observe_certificates(context)
    return context


def _client_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context, config)
    context.check_hostname = config.verify_server and config.verify_name
    context.verify_mode = ssl.CERT_REQUIRED if config.verify_server else ssl.CERT_NONE
    if config.server_authorities is not None:
        _trust(
            context, config.server_authorities, _authority_key(config, config.server_authorities, "client")
        )
    elif config.verify_server:
        context.load_default_certs()
    _check_lists(context, config.server_revocations)
    if config.client is not None:
        _show(context, config.client, "tls.members" if config.client is config.member else "tls.client")
    return context


def _read_lists(config: TlsConfig, in_force: tuple[RevocationList, ...]) -> tuple[RevocationList, ...]:
    """All lists of a configuration; `in_force` are those of before.

    Raises `SettingsError` where they would keep out everybody.
    """
    ends = (
        ("server", config.client_revocations, config.client_authorities),
        ("client", config.server_revocations, config.server_authorities),
        ("members", config.member_revocations, config.member_authorities),
    )
    if all(file is None for _, file, _ in ends):
        return ()
    from brokerset_runtime.tls import revocation

    sources = [
        revocation.ListFile(f"tls.{end}.crlPath", file, f"tls.{end}.trustCertPath", authorities)
        for end, file, authorities in ends
        if file is not None and authorities is not None
    ]
    now = datetime.now(UTC)
    return tuple(each for source in sources for each in revocation.read_lists(source, now, in_force))


def _check_lists(context: ssl.SSLContext, *files: Path | None) -> None:
    """Let OpenSSL refuse what is on the lists, and everybody while one is missing or has expired.

    Authorities of a chain need lists up to the root. Where one below a root is trusted by itself nothing
    above it is known, and lists count for the certificate that is shown alone.
    """
    given = [file for file in files if file is not None]
    if not given:
        return
    for file in given:
        try:
            context.load_verify_locations(file)
        except OSError:  # `ssl.SSLError` is one; it was good a moment ago
            raise SettingsError([f"{file}: was replaced while it was read"]) from None
    below_a_root = any(each["subject"] != each["issuer"] for each in context.get_ca_certs())
    partial = context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags |= (
        ssl.VERIFY_CRL_CHECK_LEAF if partial and below_a_root else ssl.VERIFY_CRL_CHECK_CHAIN
    )
    observe_certificates(context)


def _restrict(context: ssl.SSLContext, config: TlsConfig) -> None:
    versions = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
    given = [versions[name] for name in config.protocols] or list(versions.values())
    context.minimum_version, context.maximum_version = min(given), max(given)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if config.ciphers:
        try:
            context.set_ciphers(config.ciphers)
        except ssl.SSLError:
            raise SettingsError([f"tls.ciphers={config.ciphers}: OpenSSL knows none of them"]) from None


def _show(context: ssl.SSLContext, pair: KeyPair, prefix: str) -> None:
    where = f"{prefix}.certPath={pair.certificate}, {prefix}.keyPath={pair.key}"
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(pair.certificate, pair.key, password=lambda: pair.password)
    except ssl.SSLError as error:
        raise SettingsError([f"{where}: {_key_problem(error)}"]) from None
    except OSError as error:
        raise SettingsError([f"{where}: cannot be read: {error.strerror}"]) from None


def _key_problem(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is of another certificate"
    if error.reason in ("BAD_DECRYPT", "BAD_PASSWORD_READ", "PKCS12_CIPHERFINAL_ERROR"):
        return "the key's password is wrong or missing (keyPassword)"
    return f"is no certificate and key in PEM ({(error.reason or str(error)).lower().replace('_', ' ')})"


def _authority_key(config: TlsConfig, authorities: Path, end: str) -> str:
    """The key that named a file, for errors."""
    return MEMBER_AUTHORITY_KEY if authorities == config.member_authorities else f"tls.{end}.trustCertPath"


def _trust(context: ssl.SSLContext, authorities: Path, key: str) -> None:
    try:
        context.load_verify_locations(authorities)
        if key == MEMBER_AUTHORITY_KEY:  # may be one authority below a root that signs others, too
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    except ssl.SSLError:
        raise SettingsError([f"{key}={authorities}: has no certificate in PEM"]) from None
    except OSError as error:
        raise SettingsError([f"{key}={authorities}: cannot be read: {error.strerror}"]) from None
