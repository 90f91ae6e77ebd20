"""The files that the operator renders for each stage of TLS, with real processes' ends of connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.operator.resources.sets import build

from brokerset_operator.model.tls_stages import TlsStage
from brokerset_operator.resources.tls_files import (
    CLIENTS_FOLDER,
    CONFIG_FILE,
    SECRET_FOLDER,
    STAGE_FILES,
    TRUST_FOLDER,
)
from brokerset_operator.set_trust import trust_by
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RemotingServer
from brokerset_runtime.remoting.connection import Connection
from brokerset_runtime.tls import ClientTls, ShownPair, Tls, trust_of
from brokerset_runtime.tls.authority import Authority

ECHO = 1
SPEC = {
    "tls": {
        "authority": {},
        "mode": "enforcing",
        "clients": {"mode": "require", "trustConfigMap": "shop-clients"},
    }
}
NAME = "orders-namesrv.shop.svc"
STAGES = list(TlsStage)
CLIENTS = Authority.make("clients of the shop")


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Who signs the set's certificates, and of others."""
    return Authority.make("tests")


@pytest.fixture
def pods(tmp_path: Path, authority: Authority) -> dict[TlsStage, Tls]:
    """What processes read in pods of each stage: the ConfigMap's files, Secret and authorities mounted."""
    return _pods(tmp_path, authority, [NAME, "*.orders-0.shop.svc"])


def _pods(folder: Path, authority: Authority, names: list[str]) -> dict[TlsStage, Tls]:
    issued = authority.issue("orders", names)
    for name, content in {
        "tls.crt": issued.certificate,
        "tls.key": issued.key,
        "ca.crt": authority.certificate,
    }.items():
        (folder / name).write_bytes(content)
    clients = folder / "clients"
    clients.mkdir()
    (clients / "ca.crt").write_bytes(CLIENTS.certificate)
    files = build(SPEC)["ConfigMap", "orders-0"]["data"]
    found = {}
    for stage in TlsStage:
        name = STAGE_FILES.get(stage, CONFIG_FILE)
        text = files[name].replace(SECRET_FOLDER, str(folder)).replace(TRUST_FOLDER, str(folder))
        text = text.replace(CLIENTS_FOLDER, str(clients))
        (folder / name).write_text(text, encoding="utf-8")
        found[stage] = Tls(folder / name)
    return found


async def _echo(_: Connection, command: Command) -> Command:
    return command.reply(0)


async def reaches(server_tls: Tls, client: ClientTls | None, *, member: bool = False) -> bool:
    """Whether a request is answered, at a port for everybody or for members."""
    server = RemotingServer({ECHO: _echo}, tls=server_tls, members_only=member)
    port = await server.listen("127.0.0.1", 0)
    pool = ConnectionPool(tls=client, to_members=member)
    try:
        connection = await pool.get(f"127.0.0.1:{port}", 5)
        return (await connection.call(Command(ECHO), 5)).code == 0
    except ConnectionClosed:
        return False
    finally:
        await pool.close()
        await server.close(0)


@pytest.mark.parametrize("member", [False, True], ids=["for everybody", "of members"])
@pytest.mark.parametrize("stage", STAGES[:-1])
def test_pods_of_two_stages_next_to_each_other_reach_each_other(
    stage: TlsStage, member: bool, pods: dict[TlsStage, Tls]
) -> None:
    """By IP, at both kinds of ports, in both directions; those of one stage, too."""

    async def work() -> list[bool]:
        pair = (pods[stage], pods[TlsStage(stage + 1)])
        return [await reaches(server, client, member=member) for server in pair for client in pair]

    assert asyncio.run(work()) == [True] * 4


def test_a_stage_that_is_left_out_would_keep_pods_out(pods: dict[TlsStage, Tls]) -> None:
    """That is why there are so many."""
    plain, accepting, connecting, enforcing, _, requiring = (pods[stage] for stage in STAGES)

    async def work() -> list[bool]:
        return [
            await reaches(plain, connecting, member=True),
            await reaches(enforcing, accepting),
            await reaches(enforcing, accepting, member=True),
            await reaches(requiring, enforcing),
        ]

    assert asyncio.run(work()) == [False] * 4


def test_outsiders_are_refused_and_the_operator_is_served(
    pods: dict[TlsStage, Tls], authority: Authority
) -> None:
    """Plain at no port; the operator by what the ConfigMap has, at ports for everybody alone."""
    enforcing = pods[TlsStage.ENFORCING]
    operator = trust_by({"data": {"ca.crt": authority.certificate.decode()}}, "here", "", NAME).given

    async def work() -> None:
        assert not await reaches(enforcing, None)
        assert not await reaches(enforcing, None, member=True)
        assert await reaches(enforcing, operator)

    assert operator is not None
    asyncio.run(work())


def test_clients_that_are_asked_show_what_their_authority_has_signed_and_are_no_members(
    pods: dict[TlsStage, Tls], authority: Authority
) -> None:
    """In the stage `ASKING` who shows nothing is served, too; the operator shows the set's own."""
    asking, requiring = pods[TlsStage.ASKING], pods[TlsStage.REQUIRING]
    trusted = authority.certificate.decode()

    def client(signer: Authority | None) -> ClientTls:
        if signer is None:
            return trust_of(trusted, NAME)
        issued = signer.issue("shop")
        return trust_of(trusted, NAME, ShownPair(issued.certificate.decode(), issued.key.decode()))

    async def work() -> None:
        for signer, optional, required in (
            (CLIENTS, True, True),
            (authority, True, True),
            (None, True, False),
            (Authority.make("of others"), False, False),
        ):
            assert await reaches(asking, client(signer)) is optional
            assert await reaches(requiring, client(signer)) is required
        assert not await reaches(requiring, None)

    asyncio.run(work())


def test_a_client_of_the_set_is_let_in_at_no_port_of_members(
    tmp_path: Path, pods: dict[TlsStage, Tls]
) -> None:
    """The two authorities are two."""
    issued = CLIENTS.issue("shop")
    for name, content in {"shop.pem": issued.certificate, "shop.key": issued.key}.items():
        (tmp_path / name).write_bytes(content)
    file = tmp_path / "shop.properties"
    file.write_text(
        f"tls.enable=true\ntls.client.trustCertPath=ca.crt\ntls.client.serverName={NAME}\n"
        "tls.client.certPath=shop.pem\ntls.client.keyPath=shop.key\n"
    )
    shop, requiring = Tls(file), pods[TlsStage.REQUIRING]

    async def work() -> None:
        assert await reaches(requiring, shop)
        assert not await reaches(requiring, shop, member=True)
        assert await reaches(requiring, pods[TlsStage.ASKING], member=True)

    asyncio.run(work())


def test_a_key_of_another_certificate_is_said_and_not_shown() -> None:
    """The pair of a Secret that somebody has written."""
    one, other = CLIENTS.issue("one"), CLIENTS.issue("other")
    pair = ShownPair(one.certificate.decode(), other.key.decode())

    with pytest.raises(ValueError, match="is no certificate with its key"):
        trust_of(CLIENTS.certificate.decode(), NAME, pair)
    assert "PRIVATE" not in repr(pair)


def test_a_certificate_of_the_same_authority_for_another_name_is_no_pod_of_the_set(
    tmp_path: Path, pods: dict[TlsStage, Tls], authority: Authority
) -> None:
    """Neither pods nor operator send it anything, though it is at an address of theirs."""
    (tmp_path / "other").mkdir()
    other = _pods(tmp_path / "other", authority, ["invoices-namesrv.shop.svc", "127.0.0.1"])
    operator = trust_by({"data": {"ca.crt": authority.certificate.decode()}}, "here", "", NAME).given

    async def work() -> None:
        server = other[TlsStage.ENFORCING]
        assert not await reaches(server, pods[TlsStage.ENFORCING])
        assert not await reaches(server, pods[TlsStage.ENFORCING], member=True)
        assert not await reaches(server, operator)

    asyncio.run(work())


def test_a_config_map_without_authorities_says_what_is_missing() -> None:
    """The text is the condition's."""
    trust = trust_by({"data": {}}, "ConfigMap orders-authorities", "it needs an entry ca.crt", NAME)

    assert trust.given is None
    assert trust.problem == "ConfigMap orders-authorities has no certificate in PEM: it needs an entry ca.crt"
