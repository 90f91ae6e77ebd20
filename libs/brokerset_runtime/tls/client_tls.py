"""What connections to others need of TLS, whoever has it: a process by its file, or text in memory."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

from brokerset_runtime.tls.member_names import MemberPort
from brokerset_runtime.tls.transport import TlsTransport

TRUSTS_MAX: Final = 64
"""Texts whose certificates are remembered: reading them takes about a millisecond."""


class ClientTls(Protocol):
    """TLS as a client has it; `contexts.Tls` is one."""

    @property
    def client(self) -> ssl.SSLContext | None:
        """For connections to others; None: plain."""

    @property
    def server_name(self) -> str | None:
        """The name that certificates of servers must be for; None: the host that is connected to."""

    @property
    def client_of_members(self) -> ssl.SSLContext | None:
        """For connections to ports of members, with a certificate of our own; None: plain."""

    @property
    def member_authorities(self) -> Path | None:
        """Who signs certificates of members; for errors."""

    def admit(self, transport: TlsTransport) -> str | None:
        """Why a server that OpenSSL has let pass is refused, by what it has shown; None: it is not."""

    def admit_member(self, transport: TlsTransport, port: MemberPort) -> str | None:
        """The same of a member, in either direction, at such a port."""


@dataclass(frozen=True, slots=True)
class ShownPair:
    """What a client shows to servers that ask: a certificate and its key, in PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServerTrust:
    """A client that trusts some authorities; it connects to no port of members."""

    client: ssl.SSLContext
    server_name: str
    client_of_members: None = None
    member_authorities: None = None

    def admit(self, transport: TlsTransport) -> str | None:
        """Nobody is refused: it has no lists."""
        return None

    def admit_member(self, transport: TlsTransport, port: MemberPort) -> str | None:
        """Everybody is refused: it is no member."""
        return "this client is no member"


@lru_cache(maxsize=TRUSTS_MAX)
def trust_of(authorities: str, server_name: str, shown: ShownPair | None = None) -> ServerTrust:
    """Trust servers that show a certificate for `server_name`, signed by one of `authorities` (PEM).

    Raises `ValueError` with what is wrong with the text.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError, TypeError):  # the latter for what is empty, or not ASCII
        raise ValueError("has no certificate in PEM") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as pods do: it may be one below a root
    if not context.cert_store_stats()["x509"]:
        raise ValueError("has no certificate in PEM")
    if shown is not None:
        _show(context, shown)
    return ServerTrust(context, server_name)


def _show(context: ssl.SSLContext, shown: ShownPair) -> None:
    """`ssl` reads keys from files alone: this one is in memory, and nobody else's."""
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(f"{shown.certificate}\n{shown.key}\n".encode())
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")  # none
        except ssl.SSLError:
            raise ValueError("is no certificate with its key in PEM") from None
