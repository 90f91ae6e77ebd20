"""One TLS connection without a socket: bytes in, bytes out, and a clear reason when it fails."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any, Final

from brokerset_runtime.tls.shown_certificates import shown_name, shown_subject

RECORD_BYTES: Final = 64 * 1024
"""Asked for at a time: more than one record holds."""


REVOKED: Final = 23
"""Certificate revoked; this and the next are codes of `X509_verify_cert_error_string` (X509_V_ERR_…)."""

NO_LIST: Final = 3
LIST_EXPIRED: Final = 12


class TlsError(ConnectionError):
    """The two ends do not come, or stay, together; the text says why."""


class TlsSession:
    """Encrypts what is written and decrypts what is received; `take` gives what is to be sent.

    What is written before the two ends have agreed leaves as soon as they have.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None) -> None:
        self.established = False
        """Whether the two ends have agreed; a client may then still be refused by the server."""

        self.ended = False
        """Whether the other end has said that nothing more will come."""

        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._received, self._to_send, server_side=server_side, server_hostname=server_name
        )
        self._early: list[bytes] = []

    def begin(self) -> None:
        """Make the first message of a client. Raises `TlsError`."""
        self._agree()

    def receive(self, data: bytes) -> bytes:
        """Take what the other end has sent, and return what it means: maybe nothing yet.

        Raises `TlsError`; then `take` has what tells the other end.
        """
        received, read = self._received, self._object.read
        received.write(data)
        if not self.established and not self._agree():
            return b""
        chunks: list[bytes] = []
        try:
            # An exception for every chunk would cost a third of the time of a small request.
            while received.pending:
                chunk = read(RECORD_BYTES)
                if not chunk:
                    self.ended = True
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TlsError(reason(error)) from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def write(self, data: bytes) -> None:
        """Encrypt; a session that has ended drops it. Raises `TlsError`."""
        if not self.established:
            self._early.append(data)
            return
        try:
            self._object.write(data)
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TlsError(reason(error)) from None

    def take(self) -> bytes:
        """What is to be sent to the other end now."""
        return self._to_send.read()

    def close(self) -> None:
        """Say that nothing more will come, if the two ends have agreed; `take` has it."""
        if not self.established:
            return
        with suppress(ssl.SSLError):  # it would wait for the other end to say the same, which nobody does
            self._object.unwrap()

    def shown_subject(self) -> str | None:
        """Whose certificate the client of a port of members has shown, verified or not."""
        return shown_subject(self._object)

    def shown_certificate(self) -> bytes | None:
        """What the other end has shown and OpenSSL has taken, in DER; of sessions that have agreed."""
        return self._object.getpeercert(binary_form=True)

    def shown_names(self) -> tuple[tuple[str, str], ...]:
        """What that certificate is for, by kind (`DNS`, `IP Address`, `URI`); of contexts that check it."""
        found: Any = (self._object.getpeercert() or {}).get("subjectAltName", ())
        return tuple(found)

    def _agree(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(self._reason(error)) from None
        self.established = True
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        return True

    def _reason(self, error: ssl.SSLError) -> str:
        why = reason(error)
        if not isinstance(error, ssl.SSLCertVerificationError) or error.verify_code != REVOKED:
            return why
        return f"{why}: {shown_name(self._object) or 'unknown'}"


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate, and this server requires one",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires a certificate (tls.client.certPath)",
    "TLSV1_ALERT_UNKNOWN_CA": "the other end does not trust the authority of our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other end says that our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end refuses our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end refuses our certificate",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the other end says that our certificate is revoked",
    "WRONG_VERSION_NUMBER": "the other end does not speak TLS",
    "HTTP_REQUEST": "the other end does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the other end speaks older versions of TLS only",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other end speaks none of our versions of TLS",
    "NO_SHARED_CIPHER": "the two ends have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other end accepts none of our ciphers, or requires a certificate",
}


_ADVICE: Final = {
    NO_LIST: " (its authority, or one above it, has no list in the file of crlPath)",
    LIST_EXPIRED: " (the list of its authority in the file of crlPath: put a newer one there)",
}


def reason(error: ssl.SSLError) -> str:
    """Why TLS failed, as who runs the processes can use it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _ADVICE.get(error.verify_code, "")
        return f"the other end's certificate is refused: {error.verify_message.rstrip('.')}{advice}"
    name = error.reason or ""
    return _REASONS.get(name, f"TLS failed: {name.lower().replace('_', ' ') or error}")
