"""What speaks on a plain port though it is no remoting client."""

from __future__ import annotations

import pytest

from brokerset_protocol.commands import Command, CommandReader, encode


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\x16\x03\x03\x00\x10", "TLS"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "PROXY protocol header (version 1)"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", "PROXY protocol header (version 2)"),
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
        (b"POST / HTTP/1.1\r\n", "HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
    ],
)
@pytest.mark.parametrize("step", [1, 4, 100])
def test_what_speaks_on_a_plain_port_is_named(data: bytes, name: str, step: int) -> None:
    """However few bytes come at a time, also behind a command that was understood."""
    for before in (b"", encode(Command(34, {}))):
        reader = CommandReader()

        for at in range(0, len(before + data), step):
            reader.feed((before + data)[at : at + step])

        assert name in str(reader.error)
        assert "frame of" not in str(reader.error)


def test_other_bytes_are_reported_by_their_length() -> None:
    reader = CommandReader()

    reader.feed(b"\x7f\xff\xff\xff....")

    assert str(reader.error) == "frame of 2147483647 bytes, 4 to 16777212 allowed"
