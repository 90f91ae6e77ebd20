"""Members of Java's DLedger and one of ours with TLS, by RocketMQ's settings of it."""

from __future__ import annotations

from pathlib import Path

from brokerset_protocol.bodies.dledger import DLedgerRequestCode, MetadataRequest
from brokerset_protocol.commands import Command
from brokerset_rig.dledger_suite import GROUP, LedgerGroup, Member
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.stack import free_ports
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, connect
from brokerset_runtime.tls import Tls

COUNT = 20


def java_config(folder: Path) -> Path:
    """The file of a member of Java that asks for certificates of members, and checks them."""
    file = folder / "java.properties"
    file.write_text(
        f"""\
tls.test.mode.enable=false
tls.server.need.client.auth=require
tls.server.authClient=true
tls.server.certPath={folder}/member.pem
tls.server.keyPath={folder}/member.key
tls.server.trustCertPath={folder}/authority.pem
tls.client.authServer=true
tls.client.certPath={folder}/member.pem
tls.client.keyPath={folder}/member.key
tls.client.trustCertPath={folder}/authority.pem
"""
    )
    return file


async def members_of_both_makes(folder: Path) -> list[str]:
    """They elect and replicate, also after their leader was killed; who is no member is answered by none."""
    certificates = SetCertificates(folder / "certificates")
    tls, client = certificates.member(), certificates.client()
    files = {"java": java_config(certificates.members.folder), "ours": tls.file}
    ids = [f"n{number}" for number in range(3)]
    peers = ";".join(f"{each}-127.0.0.1:{port}" for each, port in zip(ids, free_ports(3), strict=True))
    makes = ("java", "java", "ours")
    members = [
        Member(each, make, folder, peers, False, tls=files[make])
        for each, make in zip(ids, makes, strict=True)
    ]
    pool = ConnectionPool(tls=tls, to_members=True)
    group = LedgerGroup(members, PoolRequester(pool))
    problems: list[str] = []
    try:
        for member in members:
            member.start()
        killed = group.leader = await group.find_leader()
        await group.wait_for_all()
        await append(group, COUNT)
        problems += [
            f"{who} is answered by {member.member_id} ({member.make})"
            for member in members
            for who, shown in (("a client", client), ("who uses no TLS", None))
            if await is_answered(member.address, shown)
        ]
        killed.stop()
        group.leader = await group.find_leader(other_than=killed)
        await append(group, 2 * COUNT)
        if len(group.acknowledged) < 2 * COUNT:
            problems.append(f"{len(group.acknowledged)} of {2 * COUNT} records are acknowledged")
    finally:
        for member in members:
            member.stop()
        await pool.close()
    return problems


async def append(group: LedgerGroup, wanted: int) -> None:
    """Append until so many are acknowledged, or as many more tries were for nothing."""
    for _ in range(2 * wanted):
        if len(group.acknowledged) >= wanted:
            return
        group.number += 1
        await group.append(b"%d" % group.number)


async def is_answered(address: str, tls: Tls | None) -> bool:
    """Whether somebody there says what the group's state is."""
    request = MetadataRequest(group=GROUP, remote_id="n0")
    try:
        connection = await connect(address, tls=tls, timeout=10)
    except ConnectionClosed:
        return False
    try:
        command = Command(DLedgerRequestCode.METADATA, body=request.to_json())
        return b"term" in (await connection.call(command, 10)).body
    except ConnectionClosed:
        return False
    finally:
        connection.abort()
