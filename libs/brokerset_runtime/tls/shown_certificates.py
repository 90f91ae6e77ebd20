"""Whose certificate a peer has shown, also one that was refused: OpenSSL drops that before anybody can ask.

Python lets a context observe the messages of TLS (`SSLContext._msg_callback`, since 3.8, made for debugging).
Nothing is decided here: without that hook a refusal is logged without its subject. It costs 40 µs for each
MiB that a server encrypts, because it hears of the headers of records, too.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cryptography import x509

HANDSHAKE: Final = 22
"""Type of the records of a handshake (RFC 8446, 5.1)."""

CERTIFICATE: Final = 11
"""Type of the message with certificates (RFC 8446, 4)."""

HEADER_BYTES: Final = 4
LENGTH_BYTES: Final = 3
SUBJECT_CHARACTERS_MAX: Final = 200
"""More of a name is not logged: strangers choose it."""

_ATTRIBUTE: Final = "brokerset_shown_certificate"


def observe_certificates(context: ssl.SSLContext) -> None:
    """Let sessions of this context remember what the other ends show."""
    # The hook of the base class has plain numbers; that of `SSLContext` makes enums of each record's header.
    hook = getattr(ssl.SSLContext.__base__, "_msg_callback", None)
    if hook is not None:
        hook.__set__(context, _observed)


def shown_subject(session: ssl.SSLObject) -> str | None:
    """The subject of the certificate that the other end has shown; None if it has shown none."""
    return _described(session, lambda certificate: certificate.subject.rfc4514_string())


def shown_name(session: ssl.SSLObject) -> str | None:
    """Subject and serial of it, as revocation lists name it."""
    from brokerset_runtime.tls.revocation import name_of

    return _described(session, name_of)


def _described(session: ssl.SSLObject, describe: Callable[[x509.Certificate], str]) -> str | None:
    message = getattr(session, _ATTRIBUTE, None)
    if message is None:
        return None
    certificate = first_certificate(message)
    if certificate is None:
        return None
    from cryptography import x509

    try:
        text = describe(x509.load_der_x509_certificate(certificate))
    except Exception:  # strangers write them: an unknown version or type is an error of a class of its own
        return "unreadable"
    return ascii(text[:SUBJECT_CHARACTERS_MAX])[1:-1]


def first_certificate(message: bytes) -> bytes | None:
    """That of the peer itself, in DER, in a certificate message of TLS 1.3 or 1.2; None if there is none.

    That of 1.3 has a context before the list (RFC 8446, 4.4.2), that of 1.2 has none (RFC 5246, 7.4.2). The
    length of the list says which of the two it is.
    """
    if len(message) <= HEADER_BYTES:
        return None
    for begin in (HEADER_BYTES + 1 + message[HEADER_BYTES], HEADER_BYTES):
        first = begin + LENGTH_BYTES
        if first + _number(message, begin) == len(message):
            length = _number(message, first)
            certificate = message[first + LENGTH_BYTES : first + LENGTH_BYTES + length]
            return certificate if length and len(certificate) == length else None
    return None


def _number(message: bytes, position: int) -> int:
    return int.from_bytes(message[position : position + LENGTH_BYTES], "big")


def _observed(session: Any, direction: str, _: int, content: int, kind: int, data: bytes) -> None:
    if content == HANDSHAKE and kind == CERTIFICATE and direction == "read":
        setattr(session, _ATTRIBUTE, data)
