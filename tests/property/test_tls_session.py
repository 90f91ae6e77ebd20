"""Altered handshakes and records: a session raises `TlsError` alone, and gives no altered byte."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_runtime.tls.authority import Authority
from brokerset_runtime.tls.session import TlsError, TlsSession

ANSWER_BYTES_MAX = 16 * 1024
"""What a server answers to one message of a handshake: its certificate above all."""

CHANGE_CIPHERS = bytes.fromhex("140303000101")
"""A record without a meaning in TLS 1.3, which a server lets be absent or altered (RFC 8446, D.4)."""

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@st.composite
def alterations(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """What is done, where (a part of the length), and with which bytes."""
    kinds = st.sampled_from(["flip", "drop", "insert", "replace", "end"])
    one = st.tuples(kinds, st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=40))
    return draw(st.lists(one, min_size=1, max_size=4))


def altered(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    """The bytes after all changes."""
    for kind, part, given_bytes in changes:
        at = int(part * len(data))
        match kind:
            case "flip":
                data = (
                    data[:at] + bytes([data[at] ^ (given_bytes[0] or 1)]) + data[at + 1 :] if data else data
                )
            case "drop":
                data = data[:at] + data[at + len(given_bytes) :]
            case "insert":
                data = data[:at] + given_bytes + data[at:]
            case "replace":
                data = data[:at] + given_bytes + data[at + len(given_bytes) :]
            case "end":
                data = data[:at]
    return data


def pieces(data: bytes, ends: list[int]) -> list[bytes]:
    """The bytes as they may arrive: in pieces that end at any place."""
    bounds = sorted({0, len(data), *(end % (len(data) + 1) for end in ends)})
    return [data[begin:end] for begin, end in pairwise(bounds)]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """Of a server that asks for certificates, and of a client that shows one."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority.make("tests")
    issued = authority.issue("both", ["localhost"], lifetime=timedelta(days=1))
    for name, data in (("ca", authority.certificate), ("pem", issued.certificate), ("key", issued.key)):
        (folder / name).write_bytes(data)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.load_cert_chain(folder / "pem", folder / "key")
        context.load_verify_locations(folder / "ca")
    return server, client


def sessions(contexts: Contexts, version: ssl.TLSVersion) -> tuple[TlsSession, TlsSession]:
    """A server and a client that has said hello."""
    contexts[1].maximum_version = version
    client = TlsSession(contexts[1], server_side=False, server_name="localhost")
    client.begin()
    return TlsSession(contexts[0], server_side=True), client


def agree(server: TlsSession, client: TlsSession) -> None:
    """Pass messages until both have agreed."""
    for _ in range(4):
        server.receive(client.take())
        client.receive(server.take())
    assert server.established
    assert client.established


VERSIONS = st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
ENDS = st.lists(st.integers(0, 10_000), max_size=6)


@given(version=VERSIONS, message=st.sampled_from([1, 2]), changes=alterations(), ends=ENDS)
def test_an_altered_handshake_ends_with_a_reason_or_waits(
    contexts: Contexts,
    version: ssl.TLSVersion,
    message: int,
    changes: list[tuple[str, float, bytes]],
    ends: list[int],
) -> None:
    """Whichever message of the client is altered, however it arrives: answers are small, nobody is let in."""
    server, client = sessions(contexts, version)
    if message == 2:
        server.receive(client.take())
        client.receive(server.take())
    sent = client.take()
    received = altered(sent, changes)

    with suppress(TlsError):
        for piece in pieces(received, ends):
            assert server.receive(piece) == b""

    assert len(server.take()) <= ANSWER_BYTES_MAX
    assert not server.established or sent.removeprefix(CHANGE_CIPHERS) in received


@given(
    version=VERSIONS, texts=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4),
    changes=alterations(), ends=ENDS,
)  # fmt: skip
def test_no_altered_byte_is_given_to_who_reads(
    contexts: Contexts, version: ssl.TLSVersion, texts: list[bytes], changes: list[tuple[str, float, bytes]],
    ends: list[int],
) -> None:  # fmt: skip
    """What is read is a beginning of what was written, until the session fails."""
    server, client = sessions(contexts, version)
    agree(server, client)
    for text in texts:
        client.write(text)

    read = b""
    with suppress(TlsError):
        for piece in pieces(altered(client.take(), changes), ends):
            read += server.receive(piece)

    assert b"".join(texts).startswith(read)


@given(
    version=VERSIONS, sizes=st.lists(st.sampled_from([1, 200, 16_384, 16_385, 40_000]), max_size=4),
    ends=ENDS, closes=st.booleans(),
)  # fmt: skip
def test_all_that_was_written_is_read_and_the_end_is_noticed(
    contexts: Contexts, version: ssl.TLSVersion, sizes: list[int], ends: list[int], closes: bool
) -> None:
    """However many records it has, and wherever what is received of them ends."""
    server, client = sessions(contexts, version)
    agree(server, client)
    texts = [bytes([number]) * size for number, size in enumerate(sizes)]
    for text in texts:
        client.write(text)
    if closes:
        client.close()

    read = b"".join(server.receive(piece) for piece in pieces(client.take(), ends))

    assert read == b"".join(texts)
    assert server.ended is closes
