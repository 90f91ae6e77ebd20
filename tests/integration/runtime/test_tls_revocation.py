"""Revoked certificates: who shows one is refused, and loses the connections that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from brokerset_protocol.commands import Command
from brokerset_rig.certificates import Certificates
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, ConnectionClosed, RemotingServer, connect
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.tls import Tls, contexts
from brokerset_runtime.tls.authority import Authority
from brokerset_runtime.tls.metrics import tls_registry
from brokerset_runtime.tls.revocation import ListFile, RevocationList, read_lists

ECHO = 1
YEAR = timedelta(days=365)


def echo(connection: Connection, command: Command) -> Command:
    return command.reply(0)


@pytest.fixture
def certificates(tmp_path: Path) -> SetCertificates:
    """Of a set whose members and clients have lists that are empty."""
    both = SetCertificates(tmp_path)
    both.members.revoke()
    both.clients.revoke()
    return both


def member(certificates: SetCertificates, name: str = "member", **values: str) -> Tls:
    """A process of the set that checks all others."""
    lists = {
        "tls_server_crlPath": str(certificates.clients.folder / "revoked.pem"),
        "tls_members_crlPath": "revoked.pem",
    }
    return certificates.member(name, **lists | values)


@asynccontextmanager
async def serving(tls: Tls, *, members_only: bool = False) -> AsyncIterator[str]:
    server = RemotingServer({ECHO: echo}, tls=tls, members_only=members_only)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.close(0)


async def ask(address: str, tls: Tls, *, to_member: bool = False) -> int:
    """The code of the answer to one request. Raises `ConnectionClosed`."""
    connection = await connect(address, tls=tls, timeout=60, to_member=to_member)
    try:
        return (await connection.call(Command(ECHO, {}), 60)).code
    finally:
        connection.abort()


def serial(certificates: Certificates, name: str) -> str:
    """As `openssl x509 -serial` writes it."""
    from cryptography import x509

    pem = (certificates.folder / f"{name}.pem").read_bytes()
    return f"{x509.load_pem_x509_certificate(pem).serial_number:X}"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_client_whose_certificate_is_revoked_is_refused_and_the_log_names_it(
    certificates: SetCertificates, version: str
) -> None:
    """Others of the same authority are served, members too; the client hears why it is not."""
    good, bad = certificates.client("shop"), certificates.client("thief")
    certificates.clients.revoke("thief")
    server = member(certificates, tls_protocols=version)
    async with serving(server) as address:
        assert await ask(address, good) == 0
        assert await ask(address, server) == 0
        with capture_logs() as lines:
            with pytest.raises(ConnectionClosed, match="says that our certificate is revoked"):
                await ask(address, bad)
            await until(lambda: [line for line in lines if line["event"] == "TLS handshake failed"])
    (line,) = [line for line in lines if line["event"] == "TLS handshake failed"]
    name = f"CN=thief, serial {serial(certificates.clients, 'thief')}"
    assert line["reason"] == f"the other end's certificate is refused: certificate revoked: {name}"


async def test_a_member_whose_certificate_is_revoked_is_none_in_either_direction(
    certificates: SetCertificates,
) -> None:
    """At ports of members, and where members connect."""
    good, bad = member(certificates), certificates.member("lost")
    certificates.members.revoke("lost")
    good = Tls(good.file)
    async with serving(good, members_only=True) as address:
        assert await ask(address, good, to_member=True) == 0
        with capture_logs() as lines:
            with pytest.raises(ConnectionClosed, match="our certificate is revoked"):
                await ask(address, bad, to_member=True)
            await until(lambda: [each for each in lines if "port of members failed" in each["event"]])
        (line,) = [each for each in lines if "port of members failed" in each["event"]]
        assert line["subject"] == "CN=lost"
        assert (
            f"certificate revoked: CN=lost, serial {serial(certificates.members, 'lost')}" in line["reason"]
        )
    async with serving(bad, members_only=True) as address:
        with pytest.raises(ConnectionClosed, match="certificate revoked: CN=lost, serial"):
            await ask(address, good, to_member=True)


async def test_a_client_refuses_a_server_whose_certificate_is_revoked(tmp_path: Path) -> None:
    """By `tls.client.crlPath`."""
    certificates = Certificates(tmp_path)
    server = Tls(certificates.config("server"))
    certificates.revoke()
    client = Tls(certificates.config("client", tls_client_crlPath="revoked.pem"))
    async with serving(server) as address:
        assert await ask(address, client) == 0
        certificates.revoke("server")
        with pytest.raises(ConnectionClosed, match="certificate revoked: CN=server, serial"):
            await ask(address, Tls(client.file))


@pytest.mark.parametrize("to_member", [False, True])
async def test_a_new_list_closes_connections_of_what_it_revokes_and_no_others(
    certificates: SetCertificates, to_member: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart, at ports of clients and of members."""
    monkeypatch.setattr(contexts, "WATCH_SECONDS", 0.05)
    of = certificates.members if to_member else certificates.clients
    make = certificates.member if to_member else certificates.client
    good, bad = make("shop"), make("thief")
    server = member(certificates)
    watch = asyncio.create_task(server.watch())
    try:
        async with serving(server, members_only=to_member) as address:
            stays = await connect(address, tls=good, to_member=to_member)
            goes = [await connect(address, tls=bad, to_member=to_member) for _ in range(2)]
            for each in (stays, *goes):
                assert (await each.call(Command(ECHO, {}), 60)).code == 0
            with capture_logs() as lines:
                of.revoke("thief", age=timedelta(hours=1))
                await until(lambda: not any(each.is_open for each in goes) and server.revoked_closed, 60)
            (line,) = [each for each in lines if each["event"].startswith("connections closed")]
            assert line["certificate"] == f"CN=thief, serial {serial(of, 'thief')}"
            assert line["connections"] == 2
            assert server.revoked_closed == 2
            assert (await stays.call(Command(ECHO, {}), 60)).code == 0
            with pytest.raises(ConnectionClosed, match="our certificate is revoked"):
                await ask(address, bad, to_member=to_member)
            stays.abort()
    finally:
        watch.cancel()


async def test_a_connection_to_a_server_that_is_revoked_is_closed_by_the_client(tmp_path: Path) -> None:
    """The server need not know of it."""
    certificates = Certificates(tmp_path)
    server = Tls(certificates.config("server"))
    certificates.revoke()
    client = Tls(certificates.config("client", tls_client_crlPath="revoked.pem"))
    async with serving(server) as address:
        connection = await connect(address, tls=client)
        assert (await connection.call(Command(ECHO, {}), 60)).code == 0
        certificates.revoke("server", age=timedelta(hours=1))
        assert client.refresh()
        client.close_revoked()
        await until(lambda: not connection.is_open, 60)
        with pytest.raises(ConnectionClosed, match="certificate revoked: CN=server"):
            await ask(address, client)


async def test_a_handshake_that_began_before_the_list_came_ends_without_a_connection(
    certificates: SetCertificates,
) -> None:
    """The list counts when the two ends agree."""
    server, bad = member(certificates), certificates.client("thief")
    before = server.server
    certificates.clients.revoke("thief")
    assert server.refresh()

    class Late(Tls):
        """Gives handshakes the context of before."""

        server = property(lambda self: before)

    server.__class__ = Late
    async with serving(server) as address:
        with pytest.raises(ConnectionClosed):
            await ask(address, bad)
        await until(lambda: server.handshakes_failed["clients"] == 1)


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ({"lifetime": timedelta(hours=-1)}, r"tls.server.crlPath=.*has expired at .* UTC: fetch a newer one"),
        ({"age": timedelta(hours=-1)}, "is of the future"),
        (None, "revoked.pem cannot be read: No such file"),
        (b"junk", "has no revocation list in PEM"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be understood"),
        ("certificate", "has a certificate; put authorities into tls.server.trustCertPath"),
        ("members", "has a list of CN=members of the set, which no authority in tls.server.trustCertPath="),
        ("namesake", "which no authority in tls.server.trustCertPath="),
        ("second", "has no list of CN=second: all its certificates would be refused"),
    ],
)
async def test_a_list_that_would_keep_out_all_ends_a_start_and_changes_nothing_later(
    certificates: SetCertificates, lists: object, problem: str
) -> None:
    """The error says which file, and what to do; what was good stays in force."""
    clients, good = certificates.clients, certificates.client("shop")
    thief = certificates.client("thief")
    clients.revoke("thief")
    running, file = member(certificates), clients.folder / "revoked.pem"
    match lists:
        case dict():
            clients.revoke(**lists)
        case None:
            file.unlink()
        case bytes():
            file.write_bytes(lists)
        case "certificate":
            file.write_bytes(file.read_bytes() + clients.authority.certificate)
        case "members":
            file.write_bytes((certificates.members.folder / "revoked.pem").read_bytes())
        case "namesake":
            own = (clients.folder / "authority.pem").read_bytes()
            clients.renew_authority("clients of the set")
            clients.revoke()
            (clients.folder / "authority.pem").write_bytes(own)
        case "second":
            own = (clients.folder / "authority.pem").read_bytes()
            Certificates(clients.folder / "other", "second")
            other = (clients.folder / "other" / "authority.pem").read_bytes()
            (clients.folder / "authority.pem").write_bytes(own + other)

    with pytest.raises(SettingsError, match=problem):
        Tls(running.file)
    with capture_logs() as lines:
        assert not running.refresh()
    assert "changed TLS files are not used" in lines[0]["event"]
    assert running.failures == 1
    async with serving(running) as address:
        assert await ask(address, good) == 0
        with pytest.raises(ConnectionClosed):
            await ask(address, thief)


async def test_a_list_that_expires_while_it_is_in_force_keeps_out_everybody(
    certificates: SetCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could keep a newer list from a process would else bring back what it revokes."""
    certificates.clients.revoke(lifetime=timedelta(hours=-1))
    monkeypatch.setattr("brokerset_runtime.tls.contexts._read_lists", lambda *_: ())  # it was good then
    server = member(certificates)
    async with serving(server) as address:
        with capture_logs() as lines:
            with pytest.raises(ConnectionClosed):
                await ask(address, certificates.client())
            await until(lambda: [line for line in lines if line["event"] == "TLS handshake failed"])
    (line,) = [line for line in lines if line["event"] == "TLS handshake failed"]
    assert "CRL has expired (the list of its authority in the file of crlPath" in line["reason"]


def test_a_list_that_has_expired_keeps_back_no_list_of_another_authority(
    certificates: SetCertificates, tmp_path: Path
) -> None:
    """A process that runs takes both, and OpenSSL refuses what the old one is about; a start does not, and a
    better one in force is not replaced."""
    clients, members = certificates.clients, certificates.members
    source = ListFile("tls.server.crlPath", tmp_path / "lists", "tls.server.trustCertPath", tmp_path / "both")
    source.authorities.write_bytes(clients.authority.certificate + members.authority.certificate)

    def read(now: datetime, in_force: tuple[RevocationList, ...] = ()) -> tuple[RevocationList, ...]:
        source.file.write_bytes(
            b"".join((each.folder / "revoked.pem").read_bytes() for each in (clients, members))
        )
        return read_lists(source, now, in_force)

    now = datetime.now(UTC)
    later, before = now + timedelta(hours=2), read(now)
    clients.revoke(lifetime=timedelta(hours=1))
    old = read(now)
    certificates.member("lost")
    members.revoke("lost")

    _, found = read(later, old)
    assert found.serials == {int(serial(members, "lost"), 16)}
    for in_force in ((), before):
        with pytest.raises(SettingsError, match="CN=clients of the set has expired"):
            read(later, in_force)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"tls_server_trustCertPath": "", "tls_server_need_client_auth": ""},
            "needs tls.server.trustCertPath",
        ),
        ({"tls_members_trustCertPath": ""}, "needs tls.members.trustCertPath"),
        ({"tls_members_crlPath": ""}, "belong together where clients show certificates"),
        ({"tls_server_crlPath": ""}, "belong together where clients show certificates"),
        ({"tls_client_crlPath": "revoked.pem", "tls_client_authServer": "false"}, "counts for nothing"),
    ],
)
def test_keys_of_lists_that_would_count_for_nobody_or_against_all_are_refused(
    certificates: SetCertificates, values: dict[str, str], problem: str
) -> None:
    """At the start, with the keys that are missing."""
    with pytest.raises(SettingsError, match=problem):
        member(certificates, **values)


async def test_the_end_of_lists_and_what_was_closed_are_metrics(certificates: SetCertificates) -> None:
    """So that a list that nobody renews is seen before it keeps out everybody."""
    server = member(certificates)
    found = {
        (sample.name, sample.labels.get("authority")): sample.value
        for metric in tls_registry(server).collect()
        for sample in metric.samples
    }
    name = "brokerset_tls_revocation_list_end_seconds"
    assert (name, "CN=clients of the set") in found
    assert (name, "CN=members of the set") in found
    assert found["brokerset_tls_revoked_closed_total", None] == 0


async def test_an_authority_that_its_root_has_revoked_signs_nobody_any_more(
    certificates: SetCertificates,
) -> None:
    """Each authority of a chain needs a list, up to the root."""
    of = certificates.members
    key = certificates.put_below_root()
    root = Authority((of.folder / "root.pem").read_bytes(), key)
    chain = of.folder / "authorities.pem"
    chain.write_bytes((of.folder / "root.pem").read_bytes() + of.authority.certificate)
    lists = of.folder / "lists.pem"
    server = Tls(of.config("server"))
    trusting = {"tls_client_trustCertPath": "authorities.pem", "tls_client_crlPath": "lists.pem"}

    def revoke(*names: str) -> None:
        of.revoke(file="own.pem")
        of.revoke(*names, file="of_root.pem", by=root)
        lists.write_bytes(b"".join((of.folder / name).read_bytes() for name in ("own.pem", "of_root.pem")))

    async with serving(server) as address:
        revoke()
        assert await ask(address, Tls(of.config("client", **trusting))) == 0
        revoke("authority")
        with pytest.raises(ConnectionClosed, match="certificate revoked"):
            await ask(address, Tls(of.config("client", **trusting)))
    lists.write_bytes((of.folder / "own.pem").read_bytes())
    with pytest.raises(SettingsError, match="has no list of CN=root: all its certificates would be refused"):
        Tls(of.config("client", **trusting))


async def test_of_members_below_a_root_the_list_of_their_authority_counts_alone(
    certificates: SetCertificates,
) -> None:
    """Nobody above it is trusted, so nobody's list could be checked."""
    certificates.put_below_root()
    for each in (certificates.members, certificates.clients):
        each.revoke()
    server, lost = member(certificates), certificates.member("lost")
    async with serving(server, members_only=True) as members, serving(server) as clients:
        assert await ask(members, server, to_member=True) == 0
        assert await ask(clients, server) == 0
        certificates.members.revoke("lost", age=timedelta(hours=1))
        assert server.refresh()
        assert await ask(members, server, to_member=True) == 0
        for address, to_member in ((members, True), (clients, False)):
            with pytest.raises(ConnectionClosed, match="our certificate is revoked"):
                await ask(address, lost, to_member=to_member)
