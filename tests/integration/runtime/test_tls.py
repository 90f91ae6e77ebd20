"""TLS on the port of the remoting protocol: who comes through, who is refused, and what each hears."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from brokerset_protocol.commands import Command, encode
from brokerset_rig.certificates import Certificates
from brokerset_rig.steady_time import SteadyLoop
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, ConnectionClosed, RemotingServer, ServerLimits, connect
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.tls import Tls, TlsConfig, arrivals, contexts, read_tls_config

ECHO = 1
HELLO = b"\x16\x03\x01\x00\x80"
"""The beginning of a handshake."""


def echo(connection: Connection, command: Command) -> Command:
    reply = command.reply(0)
    reply.body = command.body
    return reply


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@asynccontextmanager
async def serving(tls: Tls | None) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer({ECHO: echo}, tls=tls)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.close(0)


async def ask(address: str, tls: Tls | None, body: bytes = b"hello") -> bytes:
    """The body of the answer to one request."""
    connection = await connect(address, tls=tls, timeout=10)
    try:
        reply = await connection.call(Command(ECHO, {}, body), 10)
        assert reply.code == 0, reply.remark
        return reply.body
    finally:
        connection.abort()


async def test_requests_and_answers_of_all_sizes_are_encrypted(certificates: Certificates) -> None:
    """From nothing to the largest frame, many at once, in both directions."""
    tls = Tls(certificates.config())
    async with serving(tls) as (_, address):
        connection = await connect(address, tls=tls)
        sizes = [0, 1, 16_383, 16_384, 16_385, 65_536, 1_000_000, 15_000_000]
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]

        replies = await asyncio.gather(*(connection.call(Command(ECHO, {}, body), 20) for body in bodies))

        assert [reply.body for reply in replies] == bodies
        connection.close()
        await connection.wait_closed()


async def test_nothing_of_a_request_is_readable_on_the_way(certificates: Certificates) -> None:
    """A listener between the two ends sees neither the body nor the header."""
    tls = Tls(certificates.config())
    seen = bytearray()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async with serving(tls) as (_, address):
        port = int(address.rpartition(":")[2])

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

        listener = await asyncio.start_server(between, "127.0.0.1", 0)
        async with listener:
            there = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            assert await ask(there, tls, b"a secret text") == b"a secret text"

    assert len(seen) > 500
    assert b"a secret text" not in seen
    assert b'"code"' not in seen


async def test_a_permissive_server_takes_both_on_one_port(certificates: Certificates) -> None:
    """Clients move one after the other."""
    tls = Tls(certificates.config(tls_server_mode="permissive"))
    async with serving(tls) as (_, address):
        assert await ask(address, None) == b"hello"
        assert await ask(address, tls) == b"hello"


async def test_an_enforcing_server_says_why_it_refuses_a_plain_request(certificates: Certificates) -> None:
    """Its one answer names the setting of the client; then the connection is closed."""
    tls = Tls(certificates.config())
    async with serving(tls) as (server, address):
        connection = await connect(address)

        reply = await connection.call(Command(ECHO, {}, b"hello"), 10)

        assert reply.code == 16
        assert "set tls.enable=true" in (reply.remark or "")
        await connection.wait_closed()
        await until(lambda: not server.connections)


async def test_a_server_without_tls_closes_what_begins_a_handshake(certificates: Certificates) -> None:
    """With and without a file that says so, the client hears of it as a failed connection."""
    tls = Tls(certificates.config())
    certificates.issue("plain")
    disabled = Tls(certificates.config("plain", tls_server_mode="disabled"))
    for mode in (None, disabled):
        async with serving(mode) as (_, address):
            with pytest.raises(ConnectionClosed, match="by TLS"):
                await ask(address, tls)


async def test_a_client_refuses_a_server_that_it_cannot_check(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Of another authority, expired, or for another host: each is said in words."""
    client = Tls(certificates.config())
    others = Certificates(tmp_path / "others")
    certificates.issue("expired", lifetime=timedelta(seconds=-1))
    certificates.issue("elsewhere", ["broker.example"])
    for file, text in (
        (others.config(), "unable to get local issuer certificate"),
        (certificates.config("expired"), "certificate has expired"),
        (certificates.config("elsewhere"), "not valid for '127.0.0.1'"),
    ):
        tls = Tls(file)
        async with serving(tls) as (_, address):
            with pytest.raises(ConnectionClosed, match=text):
                await ask(address, client)
            await until(lambda tls=tls: tls.handshakes_failed["clients"] == 1)  # type: ignore[misc]  # each its own


async def test_names_need_not_be_checked(certificates: Certificates) -> None:
    """As Java's clients do it: the authority is what counts."""
    certificates.issue("elsewhere", ["broker.example"])
    client = Tls(certificates.config(tls_client_verifyName="false"))
    async with serving(Tls(certificates.config("elsewhere"))) as (_, address):
        assert await ask(address, client) == b"hello"


@pytest.mark.parametrize("loop_factory", [SteadyLoop], ids=["asyncio"])
async def test_a_name_with_its_last_dot_is_the_same_name(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, loop_factory: object
) -> None:
    """As a name is written that no search list is to complete; not every resolver knows `localhost.`."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *given, **named: resolve(host.rstrip("."), *given, **named)
    )
    tls = Tls(certificates.config())
    async with serving(tls) as (_, address):
        assert await ask(f"localhost.:{address.rpartition(':')[2]}", tls) == b"hello"


async def test_a_server_that_requires_certificates_refuses_who_has_none(
    certificates: Certificates, tmp_path: Path
) -> None:
    """None, and one of another authority; a good one comes through."""
    asks = {"tls_server_need_client_auth": "require", "tls_server_trustCertPath": "authority.pem"}
    shows = {"tls_client_certPath": "both.pem", "tls_client_keyPath": "both.key"}
    server = Tls(certificates.config("server", **asks))
    good = Tls(certificates.config("both", **shows))
    others = Certificates(tmp_path / "others")
    strange = others.config(
        "both", **shows, tls_client_trustCertPath=str(certificates.folder / "authority.pem")
    )
    none = Tls(certificates.config("none"))
    async with serving(server) as (_, address):
        assert await ask(address, good) == b"hello"
        with pytest.raises(ConnectionClosed, match="requires a certificate"):
            await ask(address, none)
        with pytest.raises(ConnectionClosed, match="does not trust the authority of our certificate"):
            await ask(address, Tls(strange))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("kind", ["expired", "of another authority", "none"])
async def test_a_client_whose_certificate_is_not_good_hears_why_and_the_log_says_it(
    certificates: Certificates, tmp_path: Path, kind: str, version: str
) -> None:
    """At a port of clients with `require`; nothing that it asks is carried out, and it is counted."""
    certificates.issue("late", lifetime=timedelta(hours=-1))
    stranger = Certificates(tmp_path / "others")
    stranger.issue("stranger")
    shown, heard, logged = {
        "expired": (f"{certificates.folder}/late", "our certificate has expired", "certificate has expired"),
        "of another authority": (
            f"{stranger.folder}/stranger",
            "does not trust the authority of our certificate",
            "unable to get local issuer certificate",
        ),
        "none": ("", "requires a certificate", "the client showed no certificate"),
    }[kind]
    keys = {"tls_client_certPath": f"{shown}.pem", "tls_client_keyPath": f"{shown}.key"} if shown else {}
    server = Tls(
        certificates.config(
            "server",
            tls_server_need_client_auth="require",
            tls_server_trustCertPath="authority.pem",
            tls_protocols=version,
        )
    )
    client = Tls(certificates.config("client", **keys))

    with capture_logs() as lines:
        async with serving(server) as (_, address):
            with pytest.raises(ConnectionClosed, match=heard):
                await ask(address, client)
            await until(lambda: server.handshakes_failed["clients"] == 1, 60)

    (line,) = [each for each in lines if each["event"] == "TLS handshake failed"]
    assert logged in line["reason"]
    assert line["peer"][0] == "127.0.0.1"


async def test_new_certificates_are_used_without_a_restart(certificates: Certificates) -> None:
    """Connections that are open stay; new ones see the new certificate; a half change waits for its rest."""
    file = certificates.config()
    tls = Tls(file)
    async with serving(tls) as (_, address):
        before = await connect(address, tls=tls)
        old_key = (certificates.folder / "both.key").read_bytes()
        certificates.issue("both", lifetime=timedelta(days=2))
        new_key = (certificates.folder / "both.key").read_bytes()
        (certificates.folder / "both.key").write_bytes(old_key)

        assert not tls.refresh()
        assert tls.failures == 1
        assert await ask(address, tls) == b"hello"

        (certificates.folder / "both.key").write_bytes(new_key)

        assert tls.refresh()
        assert not tls.refresh()
        shown = await certificate_of(address)
        assert shown == ssl.PEM_cert_to_DER_cert((certificates.folder / "both.pem").read_text())
        assert (await before.call(Command(ECHO, {}, b"still here"), 10)).body == b"still here"
        before.abort()


async def certificate_of(address: str) -> bytes | None:
    """What a server shows, in DER."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


def test_a_refused_change_is_tried_again_when_a_file_that_it_names_is_mended(
    certificates: Certificates,
) -> None:
    """The file comes before the certificates that it names: these are none of those in force."""
    tls = Tls(certificates.config())
    certificates.config(tls_server_certPath="next.pem", tls_server_keyPath="next.key")
    for _ in range(2):
        assert not tls.refresh()
    assert tls.failures == 1

    certificates.issue("next")

    assert tls.refresh()
    assert not tls.refresh()
    assert (tls.reloads, tls.failures) == (1, 1)


def test_a_change_while_the_file_is_read_is_seen_the_next_time(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file said before, and how it looked after, would otherwise be taken for one."""

    def read_and_change(file: Path) -> TlsConfig:
        config = read_tls_config(file)
        certificates.config(tls_server_mode="permissive")
        return config

    file = certificates.config()
    with monkeypatch.context() as patch:
        patch.setattr(contexts, "read_tls_config", read_and_change)
        tls = Tls(file)
    assert tls.mode.value == "enforcing"

    assert tls.refresh()
    assert tls.mode.value == "permissive"


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_who_is_one_too_many_is_not_served(certificates: Certificates, encrypted: bool) -> None:
    """Not even the request that came together with the first byte."""
    served: list[Command] = []

    def count(connection: Connection, command: Command) -> Command:
        served.append(command)
        return command.reply(0)

    tls = Tls(certificates.config(tls_server_mode="permissive"))
    server = RemotingServer({ECHO: count}, limits=ServerLimits(connections_max=0), tls=tls)
    port = await server.listen("127.0.0.1", 0)
    try:
        with pytest.raises(ConnectionClosed):
            await ask(f"127.0.0.1:{port}", tls if encrypted else None)
        assert (server.refused, served) == (1, [])
    finally:
        await server.close(0)


async def test_bytes_that_are_no_handshake_harm_nobody(certificates: Certificates) -> None:
    """Whoever sends them is closed, and counted; others go on."""
    tls = Tls(certificates.config())
    async with serving(tls) as (_, address):
        _, _, port = address.rpartition(":")
        for number, junk in enumerate(
            (HELLO + b"x" * 200, b"\x16" + b"\x00" * 50, b"\x16" * 70_000), start=1
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(junk)
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await until(lambda number=number: tls.handshakes_failed["clients"] == number)  # type: ignore[misc]  # its own
        assert await ask(address, tls) == b"hello"


async def test_a_handshake_may_come_byte_by_byte(certificates: Certificates) -> None:
    """What the network splits is put together again."""
    tls = Tls(certificates.config())
    async with serving(tls) as (_, address):
        port = int(address.rpartition(":")[2])

        async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1):
                writer.write(data)
                await asyncio.sleep(0)
            writer.close()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(dribble(reader, there[1]), dribble(there[0], writer))

        listener = await asyncio.start_server(between, "127.0.0.1", 0)
        async with listener:
            assert await ask(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}", tls) == b"hello"


async def test_half_open_handshakes_are_bounded_and_undisturbing(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that has waited longest makes room; clients that mean well are served meanwhile."""
    monkeypatch.setattr(arrivals, "ARRIVALS_MAX", 20)
    tls = Tls(certificates.config())
    async with serving(tls) as (server, address):
        port = int(address.rpartition(":")[2])
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for number, (_, writer) in enumerate(slow):
            if number % 2:
                writer.write(HELLO)

        assert await ask(address, tls) == b"hello"
        await asyncio.wait_for(slow[0][0].read(), 10)
        await until(lambda: len(server._arrivals or ()) <= 20)
        for _, writer in slow:
            writer.close()


async def test_who_sends_nothing_is_closed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without a first byte, or without the rest of its handshake, ends by itself."""
    monkeypatch.setattr(arrivals, "HANDSHAKE_SECONDS_MAX", 0.05)
    async with serving(Tls(certificates.config())) as (_, address):
        port = int(address.rpartition(":")[2])
        for data in (b"", HELLO):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


async def test_who_reads_nothing_is_given_up(certificates: Certificates) -> None:
    """Answers that nobody takes are bounded in memory, as those of plain connections are."""
    tls = Tls(certificates.config())
    async with serving(tls) as (server, address):
        connection = await connect(address, tls=tls)
        await connection.call(
            Command(ECHO, {}, b"begin"), 10
        )  # until then only this end knows that they agree
        (served,) = server.connections.values()
        assert connection._transport is not None
        connection._transport.pause_reading()
        frame = encode(Command(ECHO, {}, b"x" * 1_000_000))
        for _ in range(30):
            connection.send(frame)
        await until(lambda: bool(served._backlog))
        assert served.unsent_bytes < 40_000_000
        connection._transport.resume_reading()
        assert (await connection.call(Command(ECHO, {}, b"end"), 20)).body == b"end"
        connection.abort()


def test_what_is_wrong_with_the_files_is_said_at_the_start(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Unknown keys and values, missing and foreign keys, files that are no certificates."""
    certificates.issue("other")
    (certificates.folder / "junk.pem").write_text("junk")
    for values, text in (
        ({"tls_server_mode": "strict"}, "tls.server.mode=strict: is one of disabled, permissive, enforcing"),
        ({"tls_sever_mode": "enforcing"}, "tls.sever.mode is no key of TLS"),
        ({"tls_server_keyPath": ""}, "belong together"),
        ({"tls_server_keyPath": "other.key"}, "the key is of another certificate"),
        ({"tls_server_certPath": "absent.pem"}, "cannot be read: No such file"),
        ({"tls_server_certPath": "junk.pem"}, "is no certificate and key in PEM"),
        ({"tls_client_trustCertPath": "junk.pem"}, "^tls.client.trustCertPath=.*has no certificate in PEM"),
        ({"tls_client_trustCertPath": "a\0b"}, "both.properties: embedded null"),
        ({"tls_server_need_client_auth": "require"}, "needs tls.server.trustCertPath"),
        ({"tls_protocols": "TLSv1.1"}, "TLSv1.1 is none of"),
        ({"tls_ciphers": "NOTHING"}, "OpenSSL knows none of them"),
        ({"tls_test_mode_enable": "true"}, "brokerset up --tls"),
    ):
        with pytest.raises(SettingsError, match=text):
            Tls(certificates.config("both", **values))
    with pytest.raises(SettingsError, match="cannot be read"):
        Tls(tmp_path / "nothing.properties")
