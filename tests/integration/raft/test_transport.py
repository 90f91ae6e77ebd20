"""The transport over real sockets: strangers, wrong addresses, lost and returning peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerset_raft import frames
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.frames import Decoder, Hello, Refusal, Welcome, encode
from brokerset_raft.messages import (
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    Message,
    VoteReply,
    VoteRequest,
)
from brokerset_raft.transport import TcpTransport, TransportLimits, split_address
from brokerset_rig.certificates import LOOPBACK, Certificates
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.tls import Tls

QUICK = TransportLimits(beat_seconds=0.05, linger_seconds=0.2, connect_seconds_max=0.5)


class Peer:
    """A transport and what it received."""

    def __init__(
        self, node_id: int, group: str = "g", limits: TransportLimits = QUICK, tls: Tls | None = None
    ) -> None:
        self.node_id = node_id
        self.port = free_port()
        self.received: list[Message] = []
        self.transport = TcpTransport(group, node_id, self.received.append, tls, limits=limits)

    @property
    def member(self) -> Member:
        return Member(self.node_id, f"127.0.0.1:{self.port}", "-")

    def beat(self, target: int, number: int = 1) -> None:
        self.transport.send(Message(self.node_id, target, Heartbeat(1, 1, number)))


def group_of(*peers: Peer) -> Configuration:
    return Configuration(tuple(peer.member for peer in peers))


@asynccontextmanager
async def listening(*peers: Peer) -> AsyncIterator[None]:
    try:
        for peer in peers:
            await peer.transport.listen("127.0.0.1", peer.port)
        yield
    finally:
        for peer in peers:
            await peer.transport.close()


async def talk(port: int, data: bytes) -> bytes:
    """Send bytes as a stranger; returns what comes until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_messages_arrive_in_order() -> None:
    """Also those that were sent before there was a connection."""

    one, two = Peer(1), Peer(2)
    async with listening(one, two):
        one.transport.use(group_of(one, two))
        for number in range(500):
            one.beat(2, number)

        await until(lambda: len(two.received) == 500)

        assert two.received == [Message(1, 2, Heartbeat(1, 1, n)) for n in range(500)]
        assert one.transport.counters.sent == 500


async def test_answers_find_a_node_without_an_address() -> None:
    """A node that knows no members yet answers over the connection that the other has opened."""

    leader, learner = Peer(1), Peer(2)
    async with listening(leader, learner):
        leader.transport.use(group_of(leader, learner))
        leader.beat(2)
        await until(lambda: bool(learner.received))

        learner.transport.send(Message(2, 1, HeartbeatReply(1, 1)))
        await until(lambda: bool(leader.received))

        learner.transport.send(Message(2, 9, HeartbeatReply(1, 1)))
        assert leader.received == [Message(2, 1, HeartbeatReply(1, 1))]
        assert learner.transport.counters.dropped == 1


async def test_a_peer_goes_and_comes_back() -> None:
    """The connection is made again by itself, and one peer's absence does not hold up another."""

    one, two, three = Peer(1), Peer(2), Peer(3)
    async with listening(one, two):
        one.transport.use(group_of(one, two, three))
        one.beat(3)
        one.beat(2)
        await until(lambda: bool(two.received))
        await two.transport.close()
        again = Peer(2)
        again.port = two.port
        async with listening(again, three):
            one.beat(2, 7)
            await until(lambda: bool(three.received))

            def retried() -> bool:
                one.beat(2, 8)
                return any(m.body == Heartbeat(1, 1, 8) for m in again.received)

            await until(retried)
            assert one.transport.counters.connects == 3


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello(99, "g", 1, 2), "version 99 is not"),
        (Hello(frames.PROTOCOL_VERSION, "other", 1, 2), "group 'other' is not 'g'"),
        (Hello(frames.PROTOCOL_VERSION, "g", 1, 3), "node 3 is wanted, but this is node 2"),
        (Hello(frames.PROTOCOL_VERSION, "g", 2, 2), "its own id"),
    ],
)
async def test_wrong_greetings_are_refused(hello: Hello, reason: str) -> None:
    """The answer says why, the connection is closed and counted, and nothing is delivered."""

    node = Peer(2)
    async with listening(node):
        answer = await talk(node.port, encode(hello) + encode(Heartbeat(9, 9, 9)))

        (refusal,) = Decoder().feed(answer)
        assert isinstance(refusal, Refusal)
        assert reason in refusal.reason
        assert node.transport.counters.refused == 1
        assert node.received == []


GREETING = encode(Hello(frames.PROTOCOL_VERSION, "g", 1, 2))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 100,
        b"\xff" * 100,
        encode(Heartbeat(1, 1, 1)),
        encode(Welcome()),
        GREETING + GREETING,
        GREETING + b"\x7f\xff\xff\xff",
        GREETING + encode(Heartbeat(1, 1, 1))[:-1] + b"?",
    ],
)
async def test_garbage_ends_only_its_own_connection(data: bytes) -> None:
    """It is counted, and another peer goes on."""

    one, two = Peer(3), Peer(2)
    async with listening(one, two):
        one.transport.use(group_of(one, two))
        one.beat(2)
        await until(lambda: bool(two.received))

        await talk(two.port, data)

        assert two.transport.counters.protocol_errors == 1
        one.beat(2, 2)
        await until(lambda: len(two.received) == 2)
        assert one.transport.counters.connects == 1


@pytest.mark.parametrize("data", [b"", GREETING[:5], GREETING, GREETING + encode(Heartbeat(1, 1, 1))[:6]])
async def test_silent_and_stuck_connections_are_closed(data: bytes) -> None:
    """Whoever says nothing, or does not end a frame, is not kept permanently."""

    node = Peer(2)
    async with listening(node):
        async with asyncio.timeout(5):
            await talk(node.port, data)

        assert node.received == []


async def test_a_trickling_frame_is_given_up() -> None:
    """Bytes that come one by one keep a connection alive, but not permanently."""

    node = Peer(2)
    async with listening(node):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(GREETING + (1000).to_bytes(4, "big"))
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        while await reader.read(100):
                            pass
        writer.close()


async def test_a_peer_that_accepts_and_says_nothing() -> None:
    """A hanging process's kernel accepts connections: they are given up, and tried again."""

    one, two = Peer(1), Peer(2)
    with socket.create_server(("127.0.0.1", two.port)) as hanging:
        async with listening(one):
            one.transport.use(group_of(one, two))
            hanging.setblocking(False)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(10):
                for _ in range(2):
                    connection, _ = await loop.sock_accept(hanging)
                    connection.close()

            assert one.transport.counters.connects == 0


async def test_a_peer_that_greets_back_and_never_reads() -> None:
    """What waits for it is bounded, the rest is dropped, and the connection is given up and made again."""

    limits = TransportLimits(write_buffer_bytes=1 << 16, queue_bytes_max=1 << 20, beat_seconds=0.05)
    one, two = Peer(1, limits=limits), Peer(2)
    big = AppendRequest(1, 0, 0, (Entry(1, 1, EntryKind.DATA, bytes(256 << 10)),), 0)
    greeted: list[asyncio.StreamWriter] = []

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Welcome()))
        greeted.append(writer)

    server = await asyncio.start_server(greet, "127.0.0.1", two.port, limit=1024)
    async with listening(one):
        one.transport.use(group_of(one, two))
        await until(lambda: one.transport.counters.connects == 1)

        for _ in range(200):
            one.transport.send(Message(1, 2, big))
            await asyncio.sleep(0)

        waiting = 200 - one.transport.counters.sent - one.transport.counters.dropped
        assert 0 < waiting * (256 << 10) <= limits.queue_bytes_max
        await until(lambda: one.transport.counters.connects >= 2)
    server.close()
    for writer in greeted:
        writer.transport.abort()


async def test_too_many_connections() -> None:
    """One more than the limit is closed at once."""

    node = Peer(2, limits=TransportLimits(connections_max=1))
    async with listening(node):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(GREETING)
        await reader.readexactly(len(encode(Welcome())))

        assert await talk(node.port, b"") == b""

        assert node.transport.counters.refused == 1
        writer.close()


async def test_a_full_queue_drops_the_oldest_that_is_repeated_anyway() -> None:
    """Votes stay; appends and heartbeats go first; memory is bounded in messages and in bytes."""

    limits = TransportLimits(queue_messages_max=10, queue_bytes_max=5000, beat_seconds=0.05)
    one, two = Peer(1, limits=limits), Peer(2)
    async with listening(one):
        one.transport.use(group_of(one, two))
        vote = Message(1, 2, VoteReply(1, True))
        one.transport.send(vote)
        for number in range(100):
            one.beat(2, number)
        big = AppendRequest(1, 0, 0, (Entry(1, 1, EntryKind.DATA, bytes(4900)),), 0)
        one.transport.send(Message(1, 2, big))
        one.transport.send(Message(1, 2, VoteReply(2, True)))

        async with listening(two):
            await until(lambda: two.received[-1:] == [Message(1, 2, VoteReply(2, True))])

        assert two.received[0] == vote
        assert len(two.received) <= 10
        assert one.transport.counters.dropped == 103 - len(two.received)


async def test_members_change() -> None:
    """A removed member still gets what is sent shortly after; a moved one is reached at its new address."""

    one, two, moved = Peer(1), Peer(2), Peer(2)
    async with listening(one, two, moved):
        one.transport.use(group_of(one, two))
        one.beat(2, 1)
        await until(lambda: len(two.received) == 1)

        one.transport.use(group_of(one))
        one.beat(2, 2)
        await until(lambda: len(two.received) == 2)
        dropped = one.transport.counters.dropped

        def gone() -> bool:
            one.beat(2, 3)
            return one.transport.counters.dropped > dropped

        await until(gone)
        one.transport.use(group_of(one, moved))
        one.beat(2, 4)
        await until(lambda: moved.received == [Message(1, 2, Heartbeat(1, 1, 4))])


async def test_tls_in_both_directions(tmp_path: Path) -> None:
    """With certificates on both sides messages arrive; who speaks plainly, or shows none, is refused."""
    certificates, others = Certificates(tmp_path / "ours"), Certificates(tmp_path / "others")
    tls = Tls(certificates.config())
    trusts = str(certificates.folder / "authority.pem")
    stranger = Tls(others.config(tls_client_trustCertPath=trusts))
    one, two, plain, strange = Peer(1, tls=tls), Peer(2, tls=tls), Peer(3), Peer(4, tls=stranger)
    async with listening(one, two, plain, strange):
        one.transport.use(group_of(one, two))
        for outsider in (plain, strange):
            outsider.transport.use(group_of(outsider, two))
            outsider.beat(2)
        one.beat(2)

        await until(lambda: two.received == [Message(1, 2, Heartbeat(1, 1, 1))])
        await until(lambda: refused(tls) >= 2)

        assert plain.transport.counters.connects == 0
        assert strange.transport.counters.connects == 0


async def test_a_client_of_the_set_with_its_certificate_cannot_vote(tmp_path: Path) -> None:
    """What it sends to a member never arrives, and a member sends it nothing; with a member's it would."""
    certificates = SetCertificates(tmp_path)
    member, late = certificates.member(), certificates.expired()
    two, other = Peer(2, tls=member), Peer(4, tls=member)
    attackers = (Peer(1, tls=certificates.client()), Peer(3, tls=late))
    vote = VoteRequest(term=9, last_index=99, last_term=8)
    async with listening(two, other, *attackers):
        two.transport.use(group_of(two, other, *attackers))
        for each in (*attackers, other):
            each.transport.use(group_of(each, two))
        for attacker in attackers:
            attacker.transport.send(Message(attacker.node_id, 2, vote))
            two.beat(attacker.node_id)
        await until(lambda: refused(member) >= 4)
        other.transport.send(Message(4, 2, vote))
        await until(lambda: bool(two.received))

        assert two.received == [Message(4, 2, vote)]
        assert [each.received for each in attackers] == [[], []]
        assert [each.transport.counters.connects for each in attackers] == [0, 0]


async def test_a_broker_of_the_set_with_its_certificate_cannot_vote_if_controllers_have_names(
    tmp_path: Path,
) -> None:
    """By `tls.members.raft.names`: it is a member, at other ports; and controllers send it nothing."""
    certificates = SetCertificates(tmp_path)
    names = {"tls_members_raft_names": "*.orders-controller.shop.svc"}
    one, two = (
        certificates.member(name, (*LOOPBACK, f"{name}.orders-controller.shop.svc"), **names)
        for name in ("one", "two")
    )
    broker = certificates.member("broker", (*LOOPBACK, "a.orders-0.shop.svc"))
    peers = Peer(1, tls=one), Peer(2, tls=two), Peer(3, tls=broker)
    vote = VoteRequest(term=9, last_index=99, last_term=8)
    async with listening(*peers):
        for peer in peers:
            peer.transport.use(group_of(*peers))
        peers[2].transport.send(Message(3, 2, vote))
        peers[1].beat(3)
        await until(lambda: refused(two) >= 1, 60)
        peers[0].transport.send(Message(1, 2, vote))
        await until(lambda: bool(peers[1].received), 60)

        assert peers[1].received == [Message(1, 2, vote)]
        assert peers[2].received == []
        assert peers[2].transport.counters.connects == 0


def refused(tls: Tls) -> int:
    """Connections of strangers at the ports of members."""
    return tls.handshakes_failed["members"] + tls.plain_refused["members"]


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x"])
def test_bad_addresses(address: str) -> None:
    """The error shows what was written and what is wanted."""
    with pytest.raises(ValueError, match="write host:port"):
        split_address(address)


def test_good_addresses() -> None:
    """Names, IPv4 and IPv6."""
    assert split_address("a.b:1") == ("a.b", 1)
    assert split_address("[::1]:65535") == ("::1", 65535)
