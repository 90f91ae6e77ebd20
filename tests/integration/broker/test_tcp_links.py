"""Links of the HA port over real sockets, on both loops."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.member.ha import tcp_links, tls_pipes
from brokerset_broker.member.ha.link_socket import LinkSocket
from brokerset_broker.member.ha.links import HaNetwork, LinkClosed, MasterLink, PeerRefused, SlaveLink
from brokerset_broker.member.ha.tcp_links import HaLimits, HaPortTaken, TcpHaNetwork
from brokerset_broker.member.ha.tcp_master_link import AHEAD_BYTES
from brokerset_broker.store.replica_log import ReplicaLog, ReplicaLogFailed
from brokerset_protocol.ha_packets import (
    TRANSFER_HEADER_SIZE,
    Ack,
    MasterHandshake,
    PeerIdentity,
    SlaveHandshake,
    TransferHeader,
    encode_ack,
    encode_master_handshake,
    encode_slave_handshake,
    encode_transfer_header,
)
from brokerset_rig.certificates import LOOPBACK, Certificates
from brokerset_rig.fake_replica_log import FakeReplicaLog
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.steady_time import SteadyLoop, SteadyUvloop
from brokerset_rig.waiting import until
from brokerset_runtime.tls import Tls

SEGMENT = 1024 * 1024
SLAVE = SlaveHandshake(2)
MASTER = MasterHandshake(0, 1, ((1, 0),))
GONE = r"closed by the peer|connection lost"
IDENTITY = PeerIdentity("cluster", "group", 2, "nonce", 3, 0)


@pytest.fixture(params=[SteadyLoop, SteadyUvloop], ids=["asyncio", "uvloop"], autouse=True)
def loop_factory(request: pytest.FixtureRequest) -> object:
    """Each test runs on both loops."""
    return request.param


@dataclass
class Master:
    """A listening network, and the links that slaves made to it."""

    network: TcpHaNetwork
    links: list[SlaveLink] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def link(self, number: int = 0) -> SlaveLink:
        """The link with this number, once it is there."""
        while len(self.links) <= number:
            self.arrived.clear()
            await self.arrived.wait()
        return self.links[number]

    def take(self, link: SlaveLink) -> None:
        """A slave has connected."""
        self.links.append(link)
        self.arrived.set()


@asynccontextmanager
async def master(**changes: Any) -> AsyncIterator[Master]:
    network = TcpHaNetwork(host="127.0.0.1", port=0, **changes)
    found = Master(network)
    network.on_slave(found.take)
    await network.listen()
    try:
        yield found
    finally:
        network.close()
        await asyncio.sleep(0)


async def pair(side: Master, number: int = 0) -> tuple[SlaveLink, MasterLink]:
    """Two ends that have shaken hands."""
    theirs = await side.network.connect(f"127.0.0.1:{side.network.port}", 5)
    ours = await side.link(number)
    answer = asyncio.create_task(theirs.shake_hands(SLAVE))
    assert await ours.handshake() == SLAVE
    await ours.send_handshake(MASTER)
    assert await answer == MASTER
    return ours, theirs


def plain(port: int) -> socket.socket:
    """A socket that speaks for itself."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setblocking(False)
    return connection


async def send_all(log: FakeReplicaLog, link: SlaveLink, chunk: int) -> None:
    """Send the whole log in chunks that keep to its files."""
    offset = log.begin
    while offset < log.end:
        size = min(chunk, log.end - offset, log.segment_bytes - offset % log.segment_bytes)
        await link.send(TransferHeader(offset, 1, 0, offset, size), log)
        offset += size


def as_protocols(network: TcpHaNetwork, log: FakeReplicaLog) -> tuple[HaNetwork, ReplicaLog]:
    """Only the type checker looks at this: the classes are what the protocols ask for."""
    return network, log


# -- streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunk", [1, 100, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 256 * 1024, 4 * 1024 * 1024 - 36]
)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_log_arrives_as_it_is(tmp_path: Path, chunk: int, secure: bool) -> None:
    """Whatever the size of the chunks, also over the ends of files, each byte arrives, and each header."""

    total = 2_000 if chunk == 1 else 300_000 if chunk == 100 else 3 * SEGMENT + 12_345

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    copy = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    log.append(os.urandom(total))
    tls = Tls(Certificates(tmp_path / "certificates").config()) if secure else None
    async with master(tls=tls) as side:
        ours, theirs = await pair(side)
        headers: list[TransferHeader] = []
        acks: list[int] = []
        complete = asyncio.Event()

        def heard(packet: Ack) -> None:
            acks.append(packet.offset)
            if packet.offset == total:
                complete.set()

        def on_header(header: TransferHeader) -> None:
            assert header.offset == copy.end
            headers.append(header)
            theirs.send_ack(Ack(copy.end))

        ours.on_ack(heard)
        theirs.receive_into(copy, on_header)
        await send_all(log, ours, chunk)
        await ours.send(TransferHeader(total, 1, 0, total, 0), log)
        await complete.wait()

        assert copy.content() == log.content()
        assert headers[-1] == TransferHeader(total, 1, 0, total, 0)
        assert sum(header.size for header in headers) == total
        assert acks == sorted(acks)


async def test_strangers_are_refused(tmp_path: Path) -> None:
    """At a port with TLS a slave shows a certificate of the same authority; so does a master to its slave."""
    certificates, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    tls = Tls(certificates.config())
    trusting = Tls(others.config(tls_client_trustCertPath=str(certificates.folder / "authority.pem")))
    async with master(tls=tls) as side:
        address = f"127.0.0.1:{side.network.port}"
        for given, reason in (
            (Tls(others.config("other")), "certificate is refused"),
            (trusting, GONE),
            (None, GONE),
        ):
            network = TcpHaNetwork(host="127.0.0.1", port=0, tls=given)
            with pytest.raises(LinkClosed, match=reason):
                await (await network.connect(address, 5)).shake_hands(SLAVE)
            network.close()
        assert side.links == []
        await pair(side)


async def test_a_client_of_the_set_with_its_certificate_is_no_slave_and_no_master(tmp_path: Path) -> None:
    """Nor is a member with an expired certificate, or one that is asked at a host that its own is not for."""
    certificates = SetCertificates(tmp_path)
    member = certificates.member()
    others = (
        (certificates.client(), "issuer certificate"),
        (certificates.expired(), "has expired"),
    )
    async with master(tls=member) as side:
        for attacker, _ in others:
            network = TcpHaNetwork(host="127.0.0.1", port=0, tls=attacker)
            with pytest.raises(LinkClosed):
                await (await network.connect(f"127.0.0.1:{side.network.port}", 5)).shake_hands(SLAVE)
            network.close()
        assert side.links == []
        await pair(side)
    elsewhere = certificates.member("elsewhere", ("elsewhere",))
    for there, reason in (*others, (elsewhere, "not valid for '127.0.0.1'")):
        async with master(tls=there) as side:
            network = TcpHaNetwork(host="127.0.0.1", port=0, tls=member)
            with pytest.raises(LinkClosed, match=f"{reason}.*members/authority.pem"):
                await network.connect(f"127.0.0.1:{side.network.port}", 5)
            network.close()
            assert side.links == []


async def test_a_member_without_one_of_the_names_is_no_slave_and_no_master(tmp_path: Path) -> None:
    """By `tls.members.ha.names`; those of other ports do not count."""
    certificates = SetCertificates(tmp_path)
    names = {"tls_members_ha_names": "*.orders-0.shop.svc", "tls_members_raft_names": "nobody"}
    broker = certificates.member("broker", (*LOOPBACK, "a.orders-0.shop.svc"), **names)
    controller = certificates.member("controller")
    async with master(tls=broker) as side:
        network = TcpHaNetwork(host="127.0.0.1", port=0, tls=controller)
        with pytest.raises(LinkClosed):
            await (await network.connect(f"127.0.0.1:{side.network.port}", 60)).shake_hands(SLAVE)
        network.close()
        assert side.links == []
        slave = TcpHaNetwork(host="127.0.0.1", port=0, tls=broker)
        await slave.connect(f"127.0.0.1:{side.network.port}", 60)
        await until(lambda: len(side.links) == 1, 60)
        slave.close()
    async with master(tls=controller) as side:
        network = TcpHaNetwork(host="127.0.0.1", port=0, tls=broker)
        with pytest.raises(LinkClosed, match=r"for none of \*\.orders-0\.shop\.svc"):
            await network.connect(f"127.0.0.1:{side.network.port}", 60)
        network.close()


async def test_members_check_each_other_whatever_holds_for_clients(tmp_path: Path) -> None:
    """`tls.client.authServer=false` lets no strange master in; without an authority no slave comes in."""
    certificates, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    careless = Tls(certificates.config("careless", tls_client_authServer="false"))
    trusts = str(certificates.folder / "authority.pem")
    strange = Tls(others.config("strange", tls_client_trustCertPath=trusts))
    nobody = Tls(certificates.config("nobody", tls_client_trustCertPath=""))
    ours = Tls(certificates.config(tls_client_trustCertPath="", tls_server_trustCertPath="authority.pem"))
    for there, here, reason in (
        (strange, careless, "certificate is refused"),
        (nobody, careless, "closed the connection"),
        (ours, nobody, "certificate is refused"),
    ):
        async with master(tls=there) as side:
            network = TcpHaNetwork(host="127.0.0.1", port=0, tls=here)
            with pytest.raises(LinkClosed, match=reason):
                await (await network.connect(f"127.0.0.1:{side.network.port}", 5)).shake_hands(SLAVE)
            network.close()
            assert side.links == []
    async with master(tls=ours) as side:
        await pair(side)


async def test_a_slave_by_tls_hears_why_there_is_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is none, and no descriptors for the pair of sockets, are said as any other failure is."""
    tls = Tls(Certificates(tmp_path).config())

    def full() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with master(tls=tls) as side:
        with pytest.raises(LinkClosed, match="no name of a host"):
            await side.network.connect(".elsewhere:1", 5)
        monkeypatch.setattr(socket, "socketpair", full)
        with pytest.raises(LinkClosed, match="Too many open files"):
            await side.network.connect(f"127.0.0.1:{side.network.port}", 5)


class _Network:
    """The transport of a connection whose peer takes nothing."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def get_extra_info(self, name: str) -> object:
        return None

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


async def test_a_peer_that_reads_nothing_does_not_keep_a_closed_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the link has written is dropped after a while, as without TLS."""
    monkeypatch.setattr(tls_pipes, "CLOSE_SECONDS_MAX", 0.0)
    given: list[socket.socket] = []
    outer, network = tls_pipes._Outer(lambda plain, _: given.append(plain)), _Network()
    outer.connection_made(network)  # type: ignore[arg-type]  # what it uses of a transport
    given[0].send(b"unread")
    network.write = lambda data: None  # type: ignore[attr-defined]  # it takes it, and sends it never
    given[0].close()

    await until(lambda: network.done == ["close", "abort"])
    outer.connection_lost(None)


async def test_a_connection_that_is_lost_at_once_is_the_links_end() -> None:
    """The link reads what came, and then that there is no more."""
    given: list[socket.socket] = []
    outer, network = tls_pipes._Outer(lambda plain, _: given.append(plain)), _Network()
    outer.connection_made(network)  # type: ignore[arg-type]  # what it uses of a transport
    outer.data_received(b"last words")
    outer.connection_lost(None)

    with given[0] as plain:
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.sock_recv(plain, 100), 10) == b"last words"
        assert await asyncio.wait_for(loop.sock_recv(plain, 100), 10) == b""
    assert network.done == []


@pytest.mark.parametrize("piece", [1, 7, 35, 37, 100])
async def test_packets_in_any_pieces(tmp_path: Path, piece: int) -> None:
    """A handshake, transfers and heartbeats that come in pieces are taken as if they came whole."""

    bodies = [os.urandom(size) for size in (0, 1, 36, 0, 500)]

    copy = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    data = encode_master_handshake(MASTER)
    offset = 0
    for body in bodies:
        data += encode_transfer_header(TransferHeader(offset, 1, 0, offset, len(body))) + body
        offset += len(body)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        link = await network.connect(f"127.0.0.1:{server.getsockname()[1]}", 5)
        connection, _ = await loop.sock_accept(server)
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            shaking = asyncio.create_task(link.shake_hands(SLAVE))
            assert await loop.sock_recv(connection, 100) == encode_slave_handshake(SLAVE)
            sizes: list[int] = []

            async def feed() -> None:
                for begin in range(0, len(data), piece):
                    await loop.sock_sendall(connection, data[begin : begin + piece])
                    await asyncio.sleep(0)

            feeding = asyncio.create_task(feed())
            assert await shaking == MASTER
            link.receive_into(copy, lambda header: sizes.append(header.size))
            await feeding
            await until(lambda: len(sizes) == len(bodies) and copy.end == offset)
            network.close()

    assert copy.content() == b"".join(bodies)
    assert sizes == [len(body) for body in bodies]


async def test_nothing_of_a_big_packet_is_copied_when_another_one_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a big packet the next header alone is read ahead, so that a body goes into the log's memory as
    it comes; behind a small one many packets are read at once."""

    chunk, chunks = AHEAD_BYTES, 8
    read_ahead: list[int] = []
    receive, receive_parts = LinkSocket.receive, LinkSocket.receive_parts

    def noted(self: LinkSocket, room: memoryview) -> int | None:
        read_ahead.append(len(room))
        return receive(self, room)

    def parts_noted(self: LinkSocket, first: memoryview, second: memoryview) -> int | None:
        read_ahead.append(len(second))
        return receive_parts(self, first, second)

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    copy = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    log.append(os.urandom(chunk * chunks))
    async with master() as side:
        ours, theirs = await pair(side)
        await ours.send(TransferHeader(0, 1, 0, 0, chunk), log)
        theirs.receive_into(copy, lambda header: None)
        await until(lambda: copy.end == chunk)
        monkeypatch.setattr(LinkSocket, "receive", noted)
        monkeypatch.setattr(LinkSocket, "receive_parts", parts_noted)
        for number in range(1, chunks):
            await ours.send(TransferHeader(chunk * number, 1, 0, 0, chunk), log)
        await until(lambda: copy.end == log.end)
        big = list(read_ahead)
        await ours.send(TransferHeader(log.end, 1, 0, 0, 0), log)
        await until(lambda: read_ahead[-1] == AHEAD_BYTES)

    assert copy.content() == log.content()
    assert max(big) <= TRANSFER_HEADER_SIZE


async def test_packets_behind_the_handshake_are_kept(tmp_path: Path) -> None:
    """What comes in one piece with a handshake is not lost, on either end."""

    copy = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    loop = asyncio.get_running_loop()
    async with master() as side:
        with plain(side.network.port) as slave:
            java = encode_slave_handshake(SLAVE)
            await loop.sock_sendall(slave, java + java + encode_ack(Ack(3)) + encode_ack(Ack(5)))
            link = await side.link()
            assert await link.handshake() == SLAVE
            acks: list[Ack] = []
            link.on_ack(acks.append)
            await until(lambda: bool(acks))
            assert acks[-1] == Ack(5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        connected = await network.connect(f"127.0.0.1:{server.getsockname()[1]}", 5)
        connection, _ = await loop.sock_accept(server)
        with connection:
            first = encode_transfer_header(TransferHeader(0, 1, 0, 0, 4)) + b"abcd"
            await loop.sock_sendall(connection, encode_master_handshake(MASTER) + first)
            await connected.shake_hands(SLAVE)
            await asyncio.sleep(0.01)
            connected.receive_into(copy, lambda _: None)
            await until(lambda: copy.content() == b"abcd")
        assert await connected.closed() in (
            "closed by the peer",
            "connection lost: Connection reset by peer",
        )
        network.close()


async def test_header_is_awaited_before_its_bytes(tmp_path: Path) -> None:
    """What `on_header` returns is awaited before anything behind the header is taken, then all goes on."""

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    copy = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    log.append(os.urandom(300_000))
    go = asyncio.Event()
    seen: list[int] = []
    async with master() as side:
        ours, theirs = await pair(side)

        async def wait() -> None:
            assert copy.end == 0
            await go.wait()
            assert copy.end == 0

        def on_header(header: TransferHeader) -> Awaitable[None] | None:
            seen.append(header.offset)
            return wait() if header.offset == 0 else None

        theirs.receive_into(copy, on_header)
        await send_all(log, ours, 70_000)
        await until(lambda: bool(seen))
        await asyncio.sleep(0.01)
        assert (seen, copy.end) == ([0], 0)
        go.set()
        await until(lambda: copy.end == log.end)
        assert copy.content() == log.content()


# -- ends -------------------------------------------------------------------------------------------------


async def test_refusals_of_the_owner_close_with_their_reason(tmp_path: Path) -> None:
    """What `on_header` raises, at once or later, and a log without room, end the link with their text."""

    def raises(_: TransferHeader) -> None:
        raise LinkClosed("not this master")

    async def raises_later(_: TransferHeader) -> None:
        await asyncio.sleep(0)
        raise ReplicaLogFailed("no such epoch")

    def has_a_bug(_: TransferHeader) -> None:
        raise KeyError("x")

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    log.append(b"x" * 100)
    full = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    full.problem = "the disk is full"
    cases: list[tuple[Callable[[TransferHeader], Awaitable[None] | None], str]] = [
        (raises, "not this master"),
        (raises_later, "no such epoch"),
        (has_a_bug, "KeyError: 'x'"),
        (lambda _: None, "the disk is full"),
    ]
    async with master() as side:
        for number, (on_header, reason) in enumerate(cases):
            ours, theirs = await pair(side, number)
            ended: list[str] = []
            ours.on_close(ended.append)
            theirs.receive_into(full, on_header)
            await send_all(log, ours, 100)
            assert await theirs.closed() == reason
            assert await theirs.closed() == reason
            await until(lambda ended=ended: bool(ended))  # type: ignore[misc]  # a default binds it
            theirs.send_ack(Ack(1))
            with pytest.raises(LinkClosed):
                await ours.send(TransferHeader(0, 1, 0, 0, 0), log)
            assert len(ended) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a slave's handshake was due"),
        (bytes.fromhex("00000001 0000 8000 0000000000000002 7fffffff"), "has 2147483647 bytes"),
        (b"\xff" * 100, "a slave's handshake was due"),
        (bytes.fromhex("00000001 0000 0000 0000000f") + b"127.0.0.1:10911", "names its address"),
        (bytes.fromhex("00000000 00001000"), "without controllers"),
    ],
)
async def test_garbage_to_a_master_closes(data: bytes, reason: str) -> None:
    """Bytes that are no handshake close the connection with a reason, and others go on."""

    loop = asyncio.get_running_loop()
    async with master() as side:
        with plain(side.network.port) as slave:
            await loop.sock_sendall(slave, data)
            with pytest.raises(PeerRefused, match=reason):
                await (await side.link()).handshake()
            await pair(side, 1)


async def test_garbage_behind_a_handshake_closes() -> None:
    """Bytes that are no acknowledgement close the connection; a listener that comes late is told, too."""

    loop = asyncio.get_running_loop()
    async with master() as side:
        with plain(side.network.port) as slave:
            await loop.sock_sendall(slave, encode_slave_handshake(SLAVE))
            link = await side.link()
            await link.handshake()
            ended: list[str] = []
            link.on_close(ended.append)
            await loop.sock_sendall(slave, b"\0\0\0\5 and more than that")
            await until(lambda: bool(ended))
            link.on_close(ended.append)
            await until(lambda: len(ended) == 2)
            assert "an acknowledgement was due" in ended[0]
            assert ended[0] == ended[1]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode_transfer_header(TransferHeader(0, 1, 0, 0, 0))[:3] + b"\7" * 40, "a transfer was due"),
        (bytes.fromhex("00000002 7fffffff") + bytes(28), "transfer of 2147483647 bytes"),
        (encode_master_handshake(MASTER) * 2, "a transfer was due"),
    ],
)
async def test_garbage_to_a_slave_closes(tmp_path: Path, data: bytes, reason: str) -> None:
    """A master's bytes that are no transfer close the connection with a reason."""

    copy = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        link = await network.connect(f"127.0.0.1:{server.getsockname()[1]}", 5)
        connection, _ = await loop.sock_accept(server)
        with connection:
            await loop.sock_sendall(connection, encode_master_handshake(MASTER) + data)
            await link.shake_hands(SLAVE)
            link.receive_into(copy, lambda _: None)
            assert reason in await link.closed()
        network.close()
    assert copy.end == 0


async def test_peer_that_leaves_in_its_handshake() -> None:
    """A connection that ends after any byte of a handshake is told as closed, on both ends."""

    extended = SlaveHandshake(2, identity=IDENTITY)

    loop = asyncio.get_running_loop()
    hello, answer = encode_slave_handshake(extended), encode_master_handshake(MASTER)
    async with master() as side:
        for end in range(len(hello)):
            with plain(side.network.port) as slave:
                await loop.sock_sendall(slave, hello[:end])
            with pytest.raises(LinkClosed, match=GONE):
                await (await side.link(end)).handshake()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        for end in range(len(answer)):
            link = await network.connect(f"127.0.0.1:{server.getsockname()[1]}", 5)
            connection, _ = await loop.sock_accept(server)
            with connection:
                await loop.sock_sendall(connection, answer[:end])
            with pytest.raises(LinkClosed, match=GONE):
                await link.shake_hands(SLAVE)
        network.close()


async def test_silent_peers_are_closed() -> None:
    """Who does not shake hands in time is closed, also when nobody waits for the handshake."""

    limits = HaLimits(handshake_seconds_max=0.05)

    loop = asyncio.get_running_loop()
    async with master(limits=limits) as side:
        with plain(side.network.port) as slave, plain(side.network.port) as other:
            await loop.sock_sendall(slave, encode_slave_handshake(SLAVE)[:12])
            with pytest.raises(LinkClosed, match=r"no handshake in 0\.05 s"):
                await (await side.link()).handshake()
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(other, 1)
        link = await side.network.connect(f"127.0.0.1:{side.network.port}", 5)
        with pytest.raises(LinkClosed, match=r"no answer to the handshake in 0\.05 s|reset"):
            await link.shake_hands(SLAVE)


async def test_extension_that_nobody_asked_for_closes() -> None:
    """A master answers with an extension only to a slave that sent one."""

    answer = MasterHandshake(0, 1, (), PeerIdentity("cluster", "group", 1, "nonce", 3))

    async with master() as side:
        for number, hello in enumerate((SlaveHandshake(2, identity=IDENTITY), SLAVE)):
            theirs = await side.network.connect(f"127.0.0.1:{side.network.port}", 5)
            ours = await side.link(number)
            answered = asyncio.create_task(theirs.shake_hands(hello))
            assert await ours.handshake() == hello
            await ours.send_handshake(answer)
            if hello.identity is not None:
                assert await answered == answer
            else:
                with pytest.raises(LinkClosed, match="nobody asked for"):
                    await answered


# -- peers that do not read -------------------------------------------------------------------------------


async def test_slow_slave_holds_up_only_itself(tmp_path: Path) -> None:
    """While one slave reads nothing, another gets everything; when the link is closed, the sender is told."""

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    copy = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    log.append(os.urandom(16 * SEGMENT))
    async with master() as side:
        slow, _ = await pair(side, 0)
        fast, theirs = await pair(side, 1)
        theirs.receive_into(copy, lambda _: None)

        async def forever() -> None:
            while True:
                await send_all(log, slow, 256 * 1024)

        stuck = asyncio.create_task(forever())
        await send_all(log, fast, 256 * 1024)
        await until(lambda: copy.end == log.end)
        assert not stuck.done()
        slow.close("it reads nothing")
        slow.close("another reason")
        with pytest.raises(LinkClosed, match="it reads nothing"):
            await stuck


@pytest.mark.parametrize("chunk", [10, 3_000, 60_000, 200_000])
async def test_small_buffers_cut_packets_anywhere(tmp_path: Path, chunk: int) -> None:
    """When the kernel takes packets in parts only, a slave that reads in small pieces gets each byte."""

    total = 40_000 if chunk == 10 else 400_000

    loop = asyncio.get_running_loop()
    log = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    log.append(os.urandom(total))
    network = TcpHaNetwork(host="127.0.0.1", port=0)
    side = Master(network)
    network.on_slave(side.take)
    listener = tcp_links.bound_socket("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    network.listen_on(listener)
    with socket.socket() as slave:
        slave.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        slave.setblocking(False)
        await loop.sock_connect(slave, ("127.0.0.1", network.port))
        await loop.sock_sendall(slave, encode_slave_handshake(SLAVE))
        ours = await side.link()
        await ours.handshake()
        sending = asyncio.create_task(send_all(log, ours, chunk))
        data = b"".join(
            encode_transfer_header(TransferHeader(offset, 1, 0, offset, len(body))) + body
            for offset in range(0, total, chunk)
            if (body := log.content()[offset : offset + chunk])
        )
        got = bytearray()
        while len(got) < len(data):
            got += await loop.sock_recv(slave, 1_000)
        await sending
        assert got == data
    network.close()


async def test_master_that_resets_is_noticed_by_an_acknowledgement() -> None:
    """Writing to a master that has gone ends the link, although nobody reads yet."""

    async with master() as side:
        ours, theirs = await pair(side)
        ended: list[str] = []
        ours.on_close(ended.append)
        ours.close("away")
        await until(lambda: bool(ended))
        closed = asyncio.create_task(theirs.closed())
        while not closed.done():
            theirs.send_ack(Ack(1))
            await asyncio.sleep(0.001)
        assert await closed in (
            "connection lost: Connection reset by peer",
            "connection lost: Broken pipe",
        )


@pytest.mark.parametrize("size", [5_000, 256 * 1024])
async def test_slave_that_leaves_wakes_the_sender(tmp_path: Path, size: int) -> None:
    """A sender that waits for a slave is told when the slave has gone, in small and in big chunks."""

    log = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    log.append(os.urandom(SEGMENT))
    async with master() as side:
        ours, theirs = await pair(side)
        ended: list[str] = []
        ours.on_close(ended.append)

        async def forever() -> None:
            while True:
                await ours.send(TransferHeader(0, 1, 0, 0, size), log)

        stuck = asyncio.create_task(forever())
        await asyncio.sleep(0.05)
        assert not stuck.done()
        theirs.close("enough")
        with pytest.raises(LinkClosed, match=GONE):
            await stuck
        await until(lambda: len(ended) == 1)


async def test_sender_that_is_cancelled_in_a_packet_closes(tmp_path: Path) -> None:
    """A packet that was begun and cannot be finished ends the link: the slave cannot find the next one."""

    log = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    log.append(os.urandom(SEGMENT))
    async with master() as side:
        ours, _ = await pair(side)
        ended: list[str] = []
        ours.on_close(ended.append)

        async def forever() -> None:
            while True:
                await ours.send(TransferHeader(0, 1, 0, 0, SEGMENT), log)

        stuck = asyncio.create_task(forever())
        await asyncio.sleep(0.05)
        stuck.cancel()
        await asyncio.wait([stuck])
        await until(lambda: bool(ended))
        assert ended == ["sending was given up in the middle of a packet"]


async def test_acknowledgements_that_wait_are_replaced() -> None:
    """A master that does not read costs no memory: only the newest acknowledgement waits for it."""

    last = 2_000_000

    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        network = TcpHaNetwork(host="127.0.0.1", port=0)
        link = await network.connect(f"127.0.0.1:{server.getsockname()[1]}", 5)
        connection, _ = await loop.sock_accept(server)
        with connection:
            await loop.sock_sendall(connection, encode_master_handshake(MASTER))
            await link.shake_hands(SLAVE)
            for offset in range(last + 1):
                link.send_ack(Ack(offset))
            data = b""
            while not data.endswith(encode_ack(Ack(last))):
                data += await loop.sock_recv(connection, 1 << 20)
            data = data[16:]
            offsets = [int.from_bytes(data[at + 4 : at + 12], "big") for at in range(0, len(data), 12)]
            assert all(data[at : at + 4] == b"\0\0\0\2" for at in range(0, len(data), 12))
            assert offsets == sorted(offsets)
            assert len(offsets) < last
        network.close()


# -- the network ------------------------------------------------------------------------------------------


async def test_slaves_are_counted() -> None:
    """One slave too many is closed at once and counted; when another leaves there is room again."""

    loop = asyncio.get_running_loop()
    async with master(limits=HaLimits(slaves_max=2)) as side:
        with plain(side.network.port) as first, plain(side.network.port):
            await side.link(1)
            with plain(side.network.port) as third:
                assert await loop.sock_recv(third, 1) == b""
            assert (side.network.counters.accepted, side.network.counters.refused) == (2, 1)
            waiting = asyncio.create_task(side.links[0].handshake())
            first.close()
            with pytest.raises(LinkClosed):
                await waiting
            await pair(side, 2)


async def test_nobody_takes_slaves() -> None:
    """Before anybody asked for slaves their connections are closed at once."""

    network = TcpHaNetwork(host="127.0.0.1", port=0)
    port = await network.listen()
    with plain(port) as slave:
        assert await asyncio.get_running_loop().sock_recv(slave, 1) == b""
    assert network.counters.refused == 1
    network.close()


async def test_accepting_goes_on_when_descriptors_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors the port rests for a while, then slaves are accepted again."""

    refused: list[int] = []
    accept = socket.socket.accept

    def without_descriptors(listener: socket.socket) -> tuple[socket.socket, Any]:
        if len(refused) < 2:
            refused.append(1)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(tcp_links, "ACCEPT_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(socket.socket, "accept", without_descriptors)
    async with master() as side:
        await pair(side)
    assert len(refused) == 2


async def test_taken_port_is_told() -> None:
    """A port that somebody has is an error that names it and the setting."""

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HaPortTaken, match=f"127.0.0.1:{port}: Address already in use; .* haListenPort"):
            await TcpHaNetwork(host="127.0.0.1", port=port).listen()


async def test_socket_that_is_bound_already() -> None:
    """A network can listen on a socket that was bound before; closing it ends both ends of every link."""

    network = TcpHaNetwork(host="127.0.0.1", port=0)
    side = Master(network)
    network.on_slave(side.take)
    network.listen_on(tcp_links.bound_socket("127.0.0.1", 0))
    ours, theirs = await pair(side)
    ended: list[str] = []
    ours.on_close(ended.append)

    network.close()
    network.close()

    assert await theirs.closed() == "this broker closes its HA port"
    await until(lambda: ended == ["this broker closes its HA port"])
    with pytest.raises(LinkClosed, match="the network is closed"):
        await network.connect("127.0.0.1:1", 1)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:٣"])
async def test_bad_addresses_are_told(address: str) -> None:
    """An address that is none is a closed link with a text, as any other failure to connect."""

    with pytest.raises(LinkClosed, match="is no host:port"):
        await TcpHaNetwork(host="127.0.0.1", port=0).connect(address, 1)


@pytest.mark.parametrize("host", ["a" * 64, "a..b", ".a"])
async def test_names_that_no_host_can_have_are_told(host: str) -> None:
    """A name that cannot even be looked up is a closed link with a text: a peer may tell any."""

    with pytest.raises(LinkClosed):
        await TcpHaNetwork(host="127.0.0.1", port=0).connect(f"{host}:1", 5)


async def test_master_that_is_not_there() -> None:
    """A refused connection, and one that gets no answer, are told with the address."""

    network = TcpHaNetwork(host="127.0.0.1", port=0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(LinkClosed, match=f"cannot connect to 127.0.0.1:{port}: "):
            await network.connect(f"127.0.0.1:{port}", 5)
        silent.listen(0)
        with plain(port), pytest.raises(LinkClosed, match=r"no answer in 0\.1 s"):  # the queue is full
            await network.connect(f"127.0.0.1:{port}", 0.1)
    network.close()


# -- flow control and cold files --------------------------------------------------------------------------


async def test_flow_control_keeps_the_rate(tmp_path: Path) -> None:
    """With a rate a chunk takes its time in even pieces, and a heartbeat none."""

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    copy = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    log.append(os.urandom(500_000))
    async with master(rate=lambda: 1_000_000) as side:
        ours, theirs = await pair(side)
        theirs.receive_into(copy, lambda _: None)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await send_all(log, ours, 250_000)
        await ours.send(TransferHeader(log.end, 1, 0, 0, 0), log)
        assert loop.time() - begun > 0.25
        await until(lambda: copy.end == log.end)
        assert copy.content() == log.content()


async def test_cold_chunk_is_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not in memory are brought there in a thread before they are sent."""

    calls: list[int] = []
    probed = os.preadv

    def cold(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT:
            raise BlockingIOError
        return probed(descriptor, buffers, position, flags)

    async def in_thread(work: Callable[[], None]) -> None:
        calls.append(1)
        await asyncio.to_thread(work)

    log = FakeReplicaLog(tmp_path / "a", segment_bytes=SEGMENT)
    copy = FakeReplicaLog(tmp_path / "b", segment_bytes=SEGMENT)
    log.append(os.urandom(200_000))
    async with master(in_thread=in_thread) as side:
        ours, theirs = await pair(side)
        theirs.receive_into(copy, lambda _: None)
        monkeypatch.setattr(os, "preadv", cold)
        await send_all(log, ours, 100_000)
        await until(lambda: copy.end == log.end)
        assert copy.content() == log.content()
        assert len(calls) == 2


async def test_log_that_is_shorter_than_promised_closes(tmp_path: Path) -> None:
    """A header that promises more than the log gives is not sent; a file that ends early ends the link."""

    log = FakeReplicaLog(tmp_path, segment_bytes=SEGMENT)
    log.append(os.urandom(SEGMENT))
    async with master() as side:
        for number, size in enumerate((1_000, 200_000)):
            ours, _ = await pair(side, number)
            with pytest.raises(LinkClosed, match=f"the log gave 10 of {size} bytes at 1048566"):
                await ours.send(TransferHeader(SEGMENT - 10, 1, 0, 0, size), log)
        ours, _ = await pair(side, 2)
        os.truncate(tmp_path / f"{0:020d}", SEGMENT // 2)
        with pytest.raises(LinkClosed, match="the log's file ends 65536 bytes too early"):
            await ours.send(TransferHeader(SEGMENT // 2 - 65536, 1, 0, 0, 131_072), log)
