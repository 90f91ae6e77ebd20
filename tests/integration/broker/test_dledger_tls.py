"""A DLedger group with TLS: its members prove to be members, clients with certificates are none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerset_broker.member.dledger import ledger_member
from brokerset_protocol.bodies.dledger import (
    AppendRequest,
    DLedgerBody,
    DLedgerRequestCode,
    HeartbeatRequest,
    MetadataRequest,
    VoteRequest,
)
from brokerset_protocol.commands import Command
from brokerset_rig.ledger_brokers import group, leads, member, patient_config
from brokerset_rig.local_servers import HOST, Client, bodies
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import ConnectionClosed, connect
from brokerset_runtime.tls import Tls
from brokerset_runtime.tls.authority import Authority

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause of this process costs a leader."""
    monkeypatch.setattr(ledger_member, "node_config", patient_config)


async def ask(address: str, tls: Tls | None, code: int, body: DLedgerBody) -> Command:
    """The answer to one request at the port of a member. Raises `ConnectionClosed`."""
    connection = await connect(address, tls=tls, timeout=10)
    try:
        return await connection.call(Command(code, body=body.to_json()), 10)
    finally:
        connection.abort()


async def test_who_is_no_member_can_neither_vote_nor_lead_nor_append(tmp_path: Path) -> None:
    """A client with its certificate, who comes in plain text, a member whose certificate has expired."""
    certificates = SetCertificates(tmp_path / "certificates")
    ours = certificates.member()
    late = certificates.expired()
    async with group(tmp_path / "group", tls_config_file=ours.file) as members:
        leader = await members.leader()
        term = member(leader).driver.status.term
        addresses = leader.settings.dledger_addresses()
        names: dict[str, Any] = {"group": leader.settings.broker_name, "leader_id": "n0", "local_id": "n0"}
        attacks: list[tuple[int, DLedgerBody]] = [
            (DLedgerRequestCode.VOTE, VoteRequest(**names, term=term + 9, ledger_end_index=10**9)),
            (DLedgerRequestCode.HEART_BEAT, HeartbeatRequest(**names, term=term + 9)),
            (DLedgerRequestCode.APPEND, AppendRequest(**names, body=b"forged")),
        ]
        with capture_logs() as lines:
            for address in addresses.values():
                for code, body in attacks:
                    for attacker in (certificates.client(), late):
                        with pytest.raises(ConnectionClosed):
                            await ask(address, attacker, code, body)
                    assert "by TLS only" in ((await ask(address, None, code, body)).remark or "")
        refusals = [line for line in lines if line["event"] == "connection at a port of members failed"]
        assert "CN=shop" in {line["subject"] for line in refusals}
        known = await ask(
            addresses["n0"], ours, DLedgerRequestCode.METADATA, MetadataRequest(**names, remote_id="n0")
        )
        assert known.code == 200
        assert leads(leader)
        assert {member(broker).driver.status.term for broker in members.brokers.values()} == {term}


async def test_a_new_authority_of_members_keeps_the_leader_and_loses_nothing(tmp_path: Path) -> None:
    """Under load: both are trusted, then new certificates are shown, then the old authority is forgotten."""
    certificates = SetCertificates(tmp_path / "certificates")
    ours = certificates.member(tls_server_need_client_auth="none")
    trusted = certificates.members.folder / "authority.pem"
    old = trusted.read_bytes()
    async with group(tmp_path / "group", tls_config_file=ours.file) as members:
        leader = await members.leader()
        term = member(leader).driver.status.term

        async def reloaded(count: int) -> None:
            await until(
                lambda: all(b.tls is not None and b.tls.reloads >= count for b in members.brokers.values())
            )

        connection = await connect(f"{HOST}:{leader.port}", tls=ours)
        client = Client(connection)
        await client.create_topic("t")
        sent: list[bytes] = []
        ended = asyncio.Event()

        async def produce() -> None:
            while not ended.is_set():
                body = b"%d" % len(sent)
                reply = await client.send("t", body)
                assert reply.code == 0, reply.remark
                sent.append(body)

        producing = asyncio.create_task(produce())
        await until(lambda: len(sent) >= 20)
        certificates.members.authority = Authority.make("the next one")
        trusted.write_bytes(old + certificates.members.authority.certificate)
        await reloaded(1)
        certificates.members.issue("member")
        await reloaded(2)
        trusted.write_bytes(certificates.members.authority.certificate)
        await reloaded(3)
        # New connections in both directions: of a follower that starts again, and of those that ask it.
        (number, *_) = [n for n, broker in members.brokers.items() if not leads(broker)]
        await members.stop(number)
        again = await members.start(number)
        wanted = len(sent) + 20
        await until(lambda: len(sent) >= wanted)
        await until(lambda: again.store.queue_max("t", 0) >= wanted)
        ended.set()
        await producing

        assert leads(leader)
        assert member(leader).driver.status.term == term
        await members.equal()
        found: list[bytes] = []
        while len(found) < len(sent):
            found += bodies(await client.pull("t", len(found)))
        assert found == sent
        connection.abort()
