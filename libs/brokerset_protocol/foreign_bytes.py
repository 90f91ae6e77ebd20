"""What speaks on a connection whose bytes are no remoting commands: TLS, PROXY protocol, HTTP, SSH."""

from __future__ import annotations

from typing import Final

_TLS_HANDSHAKE: Final = b"\x16\x03"
"""Record type 22 and the major version of SSL 3.0 up to TLS 1.3."""

_STARTS: Final = {
    b"PROX": "a PROXY protocol header (version 1); switch it off at the load balancer",
    b"\r\n\r\n": "a PROXY protocol header (version 2); switch it off at the load balancer",
    b"PRI ": "HTTP/2; clients that speak gRPC are not served here, use a remoting client",
    b"SSH-": "SSH",
} | dict.fromkeys(
    (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC"),
    "an HTTP request; probes and scrapers use the port for HTTP",
)
"""The first four bytes tell, so a peer that sends one byte at a time is named as well."""


def name_foreign(start: bytes) -> str | None:
    """What bytes that begin like `start` (at least four) look like, and what to do; None if unknown.

    To be asked only where a frame has an impossible length: all of these read as more than 200 MB.
    """
    if start.startswith(_TLS_HANDSHAKE):
        return "TLS, which this server is not set up for (tlsConfigFile); or switch it off in the client"
    return _STARTS.get(bytes(start[:4]))
