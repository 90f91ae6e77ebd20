"""A set that was started with `--tls`: its own processes and clients come through at every port, nobody else does."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from brokerset_cli.set_tls import clients_file, make_tls, processes_file
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.ha_packets import SlaveHandshake, encode_slave_handshake
from brokerset_raft import frames
from brokerset_raft.frames import Hello
from brokerset_rig.local_set import LocalSet, Sending, local_set
from brokerset_runtime.files import write_atomically
from brokerset_runtime.remoting import connect
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE, Tls
from brokerset_runtime.tls.authority import Authority

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: secure}
spec:
  replicas: 3
  controllers: {replicas: 3}
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""

RAFT_GREETING = frames.encode(Hello(frames.PROTOCOL_VERSION, "nobody's", 98, 99))
HA_GREETING = encode_slave_handshake(SlaveHandshake(9))
"""What a member says first, and what makes the other side answer."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """Three controllers and three brokers, with TLS everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ENVIRONMENT_VARIABLE, raising=False)
        with local_set(tmp_path_factory.mktemp("secure"), MANIFEST, "--tls") as found:
            patch.setenv(ENVIRONMENT_VARIABLE, str(processes_file(found.data)))
            found.until_whole()
            yield found


def ports_of(local: LocalSet) -> dict[str, str]:
    """Every address that the set's processes listen on for each other and for clients, by what it is for."""
    (group,) = local.status()["groups"]
    (master,) = [each["process"] for each in group["replicas"] if each["role"] == "master"]
    controller = next(iter(local.processes("controller").values()))
    broker = local.processes("broker")[master]  # slaves answer nobody who wants to follow
    return {
        "name server": controller["namesrv"],
        "controller": controller["address"],
        "raft": controller["raft"],
        "broker": broker["address"],
        "replication": broker["ha"],
    }


def http_ports(local: LocalSet) -> list[str]:
    """Addresses of the ports that processes of the set serve metrics on."""
    found = [*local.processes("controller").values(), *local.processes("broker").values()]
    hosts = [(each["address"].rpartition(":")[0], each["httpPort"]) for each in found]
    return [f"{host}:{port}" for host, port in hosts if port]


def test_commands_work_as_they_do_without_tls(secure: LocalSet) -> None:
    """They find in the folder what they need."""
    secure("topic", "create", "seen")
    secure("send", "seen", "--count", "100")
    shown = secure("consume", "seen", "--group", "readers", "--count", "100", "--json").stdout
    assert len(shown.splitlines()) == 100
    (master,) = [r for r in secure.status()["groups"][0]["replicas"] if r["role"] == "master"]
    assert master["confirmedOffset"] == master["maxOffset"]


async def test_nothing_is_served_in_plain_text(secure: LocalSet) -> None:
    """A request is refused with the reason; at the ports of members alone the connection is closed."""
    for what, address in ports_of(secure).items():
        if what in ("raft", "replication"):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode_slave_handshake(SlaveHandshake(9)))
            assert await asyncio.wait_for(reader.read(), 20) == b"", what
            writer.close()
            continue
        connection = await connect(address)
        reply = await connection.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO, {}), 20)
        assert (reply.code, "by TLS only" in (reply.remark or "")) == (16, True), what
        connection.abort()


def test_metrics_and_health_are_served_by_tls_alone(secure: LocalSet) -> None:
    """To whoever trusts the authority, with no certificate of its own."""
    context = ssl.create_default_context(cafile=str(secure.data / "tls" / "authority.pem"))
    ports = http_ports(secure)
    assert len(ports) >= 3
    for address in ports:
        with urllib.request.urlopen(f"https://{address}/metrics", timeout=20, context=context) as answer:
            assert b"# HELP" in answer.read()
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://{address}/healthz", timeout=20).close()


@pytest.mark.parametrize("shown", [None, "client", "processes"])
async def test_members_alone_come_through_where_members_talk(secure: LocalSet, shown: str | None) -> None:
    """Raft and replication answer to a member's certificate, and neither to a client's nor to none."""
    tls = secure.data / "tls"
    context = ssl.create_default_context(cafile=str(tls / "authority.pem"))
    if shown is not None:
        context.load_cert_chain(tls / f"{shown}.pem", tls / f"{shown}.key")
    ports = ports_of(secure)
    for address, greeting in ((ports["raft"], RAFT_GREETING), (ports["replication"], HA_GREETING)):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(greeting)
        answer = b""
        with suppress(ssl.SSLError, ConnectionError):
            answer = await asyncio.wait_for(reader.read(1), 20)
        assert (answer != b"") == (shown == "processes"), address
        writer.transport.abort()
        with suppress(ssl.SSLError, ConnectionError):
            await asyncio.wait_for(writer.wait_closed(), 20)


async def test_clients_of_the_set_are_served_where_clients_ask(secure: LocalSet) -> None:
    """With the file that the folder has for them."""
    client = Tls(clients_file(secure.data))
    connection = await connect(ports_of(secure)["name server"], tls=client)
    reply = await connection.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO, {}), 20)
    assert reply.code == 0
    connection.abort()


def test_nothing_acknowledged_is_lost_when_the_master_is_killed(secure: LocalSet) -> None:
    """Replication and the election of a new master work by TLS as they do without."""
    secure("topic", "create", "kept")
    secure.until_whole()
    with Sending(secure, "kept", at_least=50) as sending:
        group = secure.status()["groups"][0]
        (master,) = [r["process"] for r in group["replicas"] if r["brokerId"] == group["masterId"]]
        secure.kill(master)
        secure.until(
            lambda view: view["groups"][0]["masterEpoch"] > group["masterEpoch"], "another one leads"
        )
        wanted = len(sending.acknowledged) + 50
        secure.until(lambda _: len(sending.acknowledged) >= wanted, "messages are acknowledged again")
    secure.until_whole()
    assert set(sending.acknowledged) <= secure.bodies("kept", "all", set(sending.acknowledged))


def test_new_certificates_fail_no_send(secure: LocalSet) -> None:
    """Every process takes them within seconds, one after the other, while messages are sent."""
    secure("topic", "create", "rotated")
    secure.until_whole()
    address = ports_of(secure)["broker"]
    before = shown_at(address)
    with Sending(secure, "rotated", at_least=20) as sending:
        make_tls(secure.data, ["127.0.0.1"])
        secure.until(
            lambda _: all(shown_at(a) != before for a in ports_of(secure).values()), "all have new ones"
        )
        wanted = len(sending.acknowledged) + 20
        secure.until(lambda _: len(sending.acknowledged) >= wanted, "messages are acknowledged on")
    assert sending.failures == []


def test_a_new_authority_fails_no_send(secure: LocalSet) -> None:
    """As docs/security.md says: both are trusted, then new certificates are shown, then the old one is forgotten."""
    folder = secure.data / "tls"
    trusted = folder / "authority.pem"
    old, new = trusted.read_bytes(), Authority.make("the next one")
    stranger, member = folder / "old.pem", folder / "new.pem"
    stranger.write_bytes((folder / "processes.pem").read_bytes() + (folder / "processes.key").read_bytes())
    issued = new.issue("brokerset", ["127.0.0.1", "localhost"])
    member.write_bytes(issued.certificate + issued.key)
    secure("topic", "create", "trusted")
    secure.until_whole()
    raft = [each["raft"] for each in secure.processes("controller").values()]
    doors = {address: RAFT_GREETING for address in raft} | {ports_of(secure)["replication"]: HA_GREETING}
    with Sending(secure, "trusted", at_least=20) as sending:
        write_atomically(trusted, old + new.certificate)
        secure.until(lambda _: all(lets_in(*door, member) for door in doors.items()), "both are trusted")
        before = shown_at(raft[0])
        write_atomically(folder / "processes.key", issued.key)
        write_atomically(folder / "processes.pem", issued.certificate)
        secure.until(
            lambda _: before not in map(shown_at, ports_of(secure).values()), "all show new certificates"
        )
        write_atomically(trusted, new.certificate)
        secure.until(
            lambda _: not any(lets_in(*door, stranger) for door in doors.items()), "the old one is forgotten"
        )
        wanted = len(sending.acknowledged) + 20
        secure.until(lambda _: len(sending.acknowledged) >= wanted, "messages are acknowledged on")
    secure.kill("broker-0", "controller-0")  # whoever starts trusts the new one alone
    secure.until_whole()

    assert sending.failures == []
    assert set(sending.acknowledged) <= secure.bodies("trusted", "all", set(sending.acknowledged))


def lets_in(address: str, greeting: bytes, certificate: Path) -> bool:
    """Whether a port of members answers whoever shows a certificate; its file has the key as well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate)
    host, _, port = address.rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)), 20)) as secured:
        try:
            secured.sendall(greeting)
            return secured.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False


def shown_at(address: str) -> bytes | None:
    """The certificate of a server, in DER."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((host, int(port)), 20)) as secured:
        return secured.getpeercert(binary_form=True)
