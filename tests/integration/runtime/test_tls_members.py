"""The ports of members: only who shows a certificate of their authority comes through, clients do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from brokerset_protocol.commands import Command
from brokerset_rig.certificates import LOOPBACK
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, ConnectionClosed, RemotingServer, connect
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.tls import Tls
from brokerset_runtime.tls.arrivals import Arrivals

ECHO = 1
REFUSED = "connection at a port of members failed"


def echo(connection: Connection, command: Command) -> Command:
    return command.reply(0)


@pytest.fixture
def certificates(tmp_path: Path) -> SetCertificates:
    return SetCertificates(tmp_path)


@asynccontextmanager
async def serving(tls: Tls, *, members_only: bool = True) -> AsyncIterator[str]:
    server = RemotingServer({ECHO: echo}, tls=tls, members_only=members_only)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.close(0)


async def ask(address: str, tls: Tls | None, *, to_member: bool = True) -> int:
    """The code of the answer to one request. Raises `ConnectionClosed`."""
    connection = await connect(address, tls=tls, timeout=10, to_member=to_member)
    try:
        return (await connection.call(Command(ECHO, {}), 10)).code
    finally:
        connection.abort()


async def test_a_client_is_no_member_and_a_member_is_served_wherever_clients_are(
    certificates: SetCertificates,
) -> None:
    """Two authorities, two kinds of ports."""
    member, client = certificates.member(), certificates.client()
    async with serving(member) as members, serving(member, members_only=False) as clients:
        assert await ask(members, member) == 0
        assert await ask(clients, member, to_member=False) == 0
        assert await ask(clients, client, to_member=False) == 0
        for to_member in (True, False):
            with pytest.raises(ConnectionClosed, match="does not trust the authority of our certificate"):
                await ask(members, client, to_member=to_member)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_refusal_says_who_came_which_authority_was_expected_and_what_to_do(
    certificates: SetCertificates, version: str
) -> None:
    """In the log of who refuses, whatever was shown: a client's, an expired one, none, plain bytes."""
    member = certificates.member(tls_protocols=version)
    expired = certificates.expired()
    nothing = Tls(
        certificates.members.config("nothing", tls_server_mode="disabled", tls_server_certPath="",
                                    tls_server_keyPath="")
    )  # fmt: skip
    for peer, subject, reason in (
        (certificates.client(), "CN=shop", "unable to get local issuer certificate"),
        (expired, "CN=late", "certificate has expired"),
        (nothing, "none shown", "the client showed no certificate"),
        (None, "none shown", "it does not use TLS"),
    ):
        with capture_logs() as lines:
            async with serving(member) as address:
                if peer is None:
                    assert await ask(address, None) == 16
                else:
                    with pytest.raises(ConnectionClosed):
                        await ask(address, peer)
                await until(lambda: [line for line in lines if line["event"] == REFUSED])
        (line,) = [line for line in lines if line["event"] == REFUSED]
        assert line["peer"][0] == "127.0.0.1"
        assert line["subject"] == subject
        assert reason in line["reason"]
        assert line["authority"] == str(certificates.members.folder / "authority.pem")
        assert line["next_step"].startswith("if it is a member, ")


async def test_a_member_refuses_who_serves_without_being_the_member_that_was_asked(
    certificates: SetCertificates,
) -> None:
    """A client's certificate, an expired one, and that of another host; the error names the authority."""
    member = certificates.member()
    for there, reason in (
        (certificates.client(), "unable to get (local )?issuer certificate"),
        (certificates.expired(), "certificate has expired"),
        (certificates.member("elsewhere", ("10.9.9.9", "elsewhere")), "IP address mismatch"),
    ):
        async with serving(there) as address:
            with pytest.raises(
                ConnectionClosed, match=f"{reason}.*; members are whom .*/members/authority.pem"
            ):
                await ask(address, member)


async def test_a_careless_client_is_no_careless_member(certificates: SetCertificates, tmp_path: Path) -> None:
    """`tls.client.authServer=false` is about servers of others; members check each other all the same."""
    careless = certificates.member(tls_client_authServer="false")
    strange = SetCertificates(tmp_path / "strange").member(tls_server_need_client_auth="")
    async with serving(strange, members_only=False) as address:
        with pytest.raises(ConnectionClosed, match=r"members are whom .*/members/authority\.pem"):
            await ask(address, careless)


async def test_a_permissive_port_of_members_takes_plain_ones_and_still_no_clients(
    certificates: SetCertificates,
) -> None:
    """For the time while a set moves to TLS."""
    async with serving(certificates.member(tls_server_mode="permissive")) as address:
        assert await ask(address, None) == 0
        with pytest.raises(ConnectionClosed):
            await ask(address, certificates.client())


async def test_members_may_show_each_other_other_certificates_than_clients(
    certificates: SetCertificates,
) -> None:
    """A server certificate of the outside, which the authority of members has not signed."""
    certificates.clients.issue("public")
    public = str(certificates.clients.folder / "public")
    member = certificates.member(
        "inner",
        tls_server_certPath=f"{public}.pem",
        tls_server_keyPath=f"{public}.key",
        tls_client_trustCertPath=f"{certificates.clients.folder}/authority.pem",
        tls_members_certPath="inner.pem",
        tls_members_keyPath="inner.key",
    )
    async with serving(member) as members, serving(member, members_only=False) as clients:
        assert await ask(members, member) == 0
        assert await ask(clients, member, to_member=False) == 0


async def test_without_the_key_clients_that_show_certificates_are_members_and_that_is_said(
    certificates: SetCertificates,
) -> None:
    """The default of before: `tls.server.trustCertPath` says who is a member, too."""
    same = str(certificates.clients.folder / "authority.pem")
    copy = certificates.clients.folder / "copy.pem"
    copy.write_bytes((certificates.clients.folder / "authority.pem").read_bytes())
    for values, warned in (
        ({"tls_members_trustCertPath": ""}, True),
        ({"tls_members_trustCertPath": same}, True),
        ({"tls_members_trustCertPath": str(copy)}, True),
        ({"tls_members_trustCertPath": "", "tls_server_need_client_auth": ""}, False),
        ({}, False),
    ):
        member = certificates.member(**values)
        with capture_logs() as lines:
            async with serving(member) as address:
                if "tls_members_trustCertPath" in values:
                    assert await ask(address, certificates.client()) == 0
        warnings = [line["next_step"] for line in lines if "let in as a member" in line["event"]]
        assert [("tls.members.trustCertPath" in each) for each in warnings] == [True] * warned


def test_errors_name_the_keys_of_members(certificates: SetCertificates) -> None:
    """As for every other file."""
    (certificates.members.folder / "junk.pem").write_text("junk")
    for values, text in (
        ({"tls_members_trustCertPath": "junk.pem"}, "tls.members.trustCertPath=.*has no certificate in PEM"),
        (
            {"tls_members_certPath": "member.pem"},
            "tls.members.certPath and tls.members.keyPath belong together",
        ),
        (
            {"tls_members_certPath": "junk.pem", "tls_members_keyPath": "member.key"},
            "tls.members.certPath=.*is no certificate and key",
        ),
    ):
        with pytest.raises(SettingsError, match=text):
            certificates.member(**values)


async def test_new_authorities_of_members_are_used_without_a_restart(certificates: SetCertificates) -> None:
    """Files that only members need are observed as all others."""
    member, client = certificates.member(), certificates.client()
    async with serving(member) as address:
        with pytest.raises(ConnectionClosed):
            await ask(address, client)
        file = certificates.members.folder / "authority.pem"
        file.write_bytes(file.read_bytes() + certificates.clients.authority.certificate)
        assert await asyncio.to_thread(member.refresh)
        assert await ask(address, client) == 0


def test_ports_of_members_alone_are_warned_of(certificates: SetCertificates) -> None:
    """Where clients come anyway there is nothing to say."""
    member = certificates.member(tls_members_trustCertPath="")
    with capture_logs() as lines:
        Arrivals(member, asyncio.Protocol)
    assert lines == []


async def test_members_may_be_those_of_one_authority_below_a_root(certificates: SetCertificates) -> None:
    """Another authority of the same root signs clients; the file of members names neither it nor the root."""
    certificates.put_below_root()
    member, client = certificates.member(), certificates.client()
    async with serving(member) as address:
        assert await ask(address, member) == 0
        with pytest.raises(ConnectionClosed):
            await ask(address, client)
        # The attacker brings its whole chain, root and all.
        shown = certificates.clients.folder / "shop.pem"
        chain = (
            certificates.clients.authority.certificate
            + (certificates.clients.folder / "root.pem").read_bytes()
        )
        shown.write_bytes(shown.read_bytes() + chain)
        with pytest.raises(ConnectionClosed):
            await ask(address, Tls(client.file))


CONTROLLERS = "*.orders-controller.shop.svc"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_who_has_none_of_the_names_of_members_is_refused_and_the_log_says_which(
    certificates: SetCertificates, version: str
) -> None:
    """Though the authority of members has signed it; where clients are served it goes on being served."""
    controller, broker = (
        certificates.member(
            name,
            (*LOOPBACK, f"{name}.{name.rpartition('-')[0]}.shop.svc"),
            tls_protocols=version,
            tls_members_dledger_names=CONTROLLERS,
        )
        for name in ("orders-controller-0", "orders-0-0")
    )
    async with serving(controller) as members, serving(controller, members_only=False) as clients:
        assert await ask(members, controller) == 0
        assert await ask(clients, broker, to_member=False) == 0
        plain = certificates.member("orders-0-0", tls_members_dledger_names="")  # itself it checks no names
        with capture_logs() as lines:
            with pytest.raises(ConnectionClosed):
                await ask(members, plain)
            await until(lambda: [line for line in lines if line["event"] == REFUSED], 60)
    (line,) = [line for line in lines if line["event"] == REFUSED]
    assert line["subject"] == "CN=orders-0-0"
    assert "is for 127.0.0.1, localhost, and for none of *.orders-controller.shop.svc" in line["reason"]
    assert "tls.members.dledger.names" in line["reason"]


async def test_a_member_connects_to_nobody_without_one_of_the_names(certificates: SetCertificates) -> None:
    """The certificate there is good, and for the host that was asked for."""
    controller = certificates.member(
        "orders-controller-0", (*LOOPBACK, "a.orders-controller.shop.svc"), tls_members_names=CONTROLLERS
    )
    broker = certificates.member("orders-0-0", (*LOOPBACK, "a.orders-0.shop.svc"))
    async with serving(broker) as address:
        assert await ask(address, broker) == 0
        with pytest.raises(ConnectionClosed, match=r"a\.orders-0\.shop\.svc, and for none of \*\.orders"):
            await ask(address, controller)
        assert await ask(address, controller, to_member=False) == 0


async def test_names_of_one_port_say_nothing_of_another_one(certificates: SetCertificates) -> None:
    """So brokers replicate, and have no vote among controllers."""
    member = certificates.member(tls_members_raft_names=CONTROLLERS, tls_members_ha_names="localhost")
    async with serving(member) as dledger:
        assert await ask(dledger, member) == 0


async def test_new_names_are_used_without_a_restart(certificates: SetCertificates) -> None:
    """The file of keys is observed as certificates are."""
    member, other = certificates.member(), certificates.member("other", (*LOOPBACK, "a.orders-0.shop.svc"))
    async with serving(member) as address:
        assert await ask(address, other) == 0
        member.file.write_text(f"{member.file.read_text()}tls.members.names={CONTROLLERS}\n")
        assert member.refresh()
        with pytest.raises(ConnectionClosed):
            await ask(address, other)


async def test_clients_that_show_nothing_are_counted_where_they_are_asked_to(
    certificates: SetCertificates,
) -> None:
    """So it is known when `require` keeps out nobody any more."""
    asking = certificates.member(tls_server_need_client_auth="optional")
    silent = certificates.member(tls_server_need_client_auth="")
    trusts = str(certificates.members.folder / "authority.pem")
    nothing = Tls(certificates.clients.config("nothing", tls_client_trustCertPath=trusts))
    for tls, counted in ((asking, 1), (silent, 0)):
        async with serving(tls, members_only=False) as address:
            assert await ask(address, certificates.client(), to_member=False) == 0
            assert await ask(address, nothing, to_member=False) == 0
        assert tls.without_certificate == counted
