"""The gateway over real sockets: held, forwarded and refused requests, in both header encodings."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokerset_broker.member.gateway.gateway import Gateway
from brokerset_broker.member.gateway.waiting_requests import Holding
from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import Mode, ModeKind, Modes, ServiceFacts, decide_mode
from brokerset_broker.requests.request_classes import FORWARDED, NOT_HERE
from brokerset_formats.hosts import Host
from brokerset_protocol.commands import Command, CommandReader, encode
from brokerset_rig.gateway_front import (
    COMMIT,
    INFO,
    LOCK,
    PULL,
    QUERY,
    SEND,
    SERVING,
    SWITCHING,
    UNREGISTER,
    connected,
    following,
    fronting,
    request,
)
from brokerset_rig.local_servers import Setup
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection, RemotingServer, connect
from brokerset_runtime.remoting.connection import Reply


async def test_held_requests_are_served_in_their_order() -> None:
    """One-way requests too; what needs no hold overtakes them; what comes while they leave stays behind."""

    async with fronting() as front, connected(front) as one, connected(front) as two:
        front.gateway.use(SWITCHING)
        futures = [(one, two)[n % 2].start_call(request(n)) for n in range(10)]
        one.send(encode(request(10, oneway=True)))
        await until(lambda: len(front.gateway.holding) == 11)
        assert (await one.call(request(99, PULL), 5)).code == 0
        assert front.gateway.holding.counters.held == 11
        assert sorted(c.in_flight for c in front.server.connections.values()) == [5, 6]

        front.gateway.use(SERVING)
        late = one.start_call(request(11))
        replies = await asyncio.gather(*futures, late)

        assert [reply.ext["n"] for reply in replies] == [str(n) for n in (*range(10), 11)]
        mine = [n for n in front.numbers() if n != "99" and (int(n) % 2 == 0 or n == "11")]
        assert mine == ["0", "2", "4", "6", "8", "10", "11"]
        assert [c.in_flight for c in front.server.connections.values()] == [0, 0]
        assert front.gateway.handlers[SEND] == front.note


async def test_a_request_behind_held_ones_does_not_overtake_them() -> None:
    """While a lane is emptied, requests of connections that still have some wait behind those."""

    async with fronting() as front, connected(front) as one, connected(front) as two:
        front.gateway.use(SWITCHING)
        futures = [one.start_call(request(n)) for n in range(3)]
        await until(lambda: len(front.gateway.holding) == 3)
        front.gateway.holding.release("other", lambda: None)  # the turn is taken
        front.gateway.use(SERVING)
        peers = list(front.server.connections.values())
        behind, beside = peers if peers[0].in_flight else reversed(peers)

        waits = front.gateway.handlers[SEND](behind, request(3))
        served = front.gateway.handlers[SEND](beside, request(4))
        behind.in_flight += 1  # the connection's part of a deferred answer
        await asyncio.gather(*futures)
        await until(lambda: len(front.served) == 5)

        assert isinstance(served, Command)
        assert not isinstance(waits, Command)
        assert front.numbers() == ["4", "0", "1", "2", "3"]
        assert two.is_open


async def test_a_hold_ends_with_the_refusal_that_was_announced() -> None:
    """After its time writes are refused at once, and progress is told from what is here."""

    loop = asyncio.get_running_loop()
    async with fronting() as front, connected(front) as one:
        facts = ServiceFacts(role=Role.SLAVE, no_master_for_ms=800)
        modes, over = decide_mode(facts), decide_mode(replace(facts, no_master_for_ms=1_000))
        assert modes.for_ms == 200
        front.gateway.use(modes)
        loop.call_later(modes.for_ms / 1000, front.gateway.use, over)
        began = loop.time()

        held, progress = await asyncio.gather(one.call(request(1), 5), one.call(request(2, QUERY), 5))
        waited = loop.time() - began
        at_once = await one.call(request(3), 5)

        assert (held.code, held.remark) == (
            2,
            "[REJECTREQUEST]system busy, start flow control for a while",
        )
        assert NOT_HERE not in held.ext
        assert 0.15 < waited < 1.5
        assert progress.code == 0
        assert at_once.code == 2
        assert front.gateway.refused == 2


async def test_a_request_is_held_for_a_bounded_time_only() -> None:
    """Though the switch goes on, its client is told in time to try again."""

    async with fronting() as front, connected(front) as one:
        front.gateway.use(SWITCHING)

        reply = await one.call(request(1), 5)

        assert reply.code == 14
        assert "try again" in (reply.remark or "")
        assert front.gateway.holding.counters.expired == 1
        assert [c.in_flight for c in front.server.connections.values()] == [0]


async def test_what_a_closed_connection_held_is_dropped() -> None:
    """It is not served later, and its room is free again."""

    async with fronting(holding=Holding(held_max=2)) as front, connected(front) as two:
        front.gateway.use(SWITCHING)
        async with connected(front) as one:
            for number in range(2):
                one.send(encode(request(number, oneway=True)))
            await until(lambda: len(front.gateway.holding) == 2)
            full = await two.call(request(7), 5)
        await until(lambda: len(front.gateway.holding) == 0)
        future = two.start_call(request(5))
        await until(lambda: len(front.gateway.holding) == 1)
        front.gateway.use(SERVING)

        assert full.code == 2
        assert (await future).code == 0
        assert front.numbers() == ["5"]


async def test_closing_refuses_what_is_held() -> None:
    """Clients go elsewhere at once, and requests about the broker are answered to the end."""

    async with fronting() as front, connected(front) as one:
        front.gateway.use(SWITCHING)
        future = one.start_call(request(1))
        await until(lambda: len(front.gateway.holding) == 1)

        front.gateway.close()

        assert ((await future).code, (await one.call(request(2, PULL), 5)).code) == (14, 14)
        assert (await one.call(request(3, INFO), 5)).code == 0


async def test_the_lease_is_asked_before_each_guarded_request() -> None:
    """When it has ended unnoticed, the request is treated by the modes that are set then."""

    lease = [True]
    leased = ServiceFacts(role=Role.MASTER, lease_required=True)
    lost = ServiceFacts(role=Role.MASTER, lease_required=True, lease_valid=False, acknowledged_alone=True)

    def lapse() -> None:
        front.gateway.use(decide_mode(lost))

    async with (
        fronting(lease_ok=lambda: lease[0], on_lapse=lapse) as front,
        fronting(lease_ok=lambda: lease[0]) as deaf,
        connected(front) as one,
        connected(deaf) as other,
    ):
        front.gateway.use(decide_mode(leased))
        deaf.gateway.use(decide_mode(leased))
        assert (await one.call(request(1, PULL), 5)).code == 0
        assert front.gateway.handlers[SEND] == front.note
        lease[0] = False

        commit = one.start_call(request(2, COMMIT))
        await until(lambda: len(front.gateway.holding) == 1)
        refused = [(await one.call(request(3, code), 5)).code for code in (PULL, LOCK, QUERY)]
        lease[0] = True
        front.gateway.use(decide_mode(leased))

        assert refused == [14, 14, 14]
        assert (await commit).code == 0
        lease[0] = False
        lapsed = await other.call(request(4, PULL), 5)
        assert (lapsed.code, "lease" in (lapsed.remark or "")) == (14, True)
        assert (await other.call(request(5, SEND), 5)).code == 0


async def test_a_master_that_gave_up_its_lease_reads_on_for_a_moment() -> None:
    """A switchover gives the lease up: reads go on as a slave's do, until the role changes or time is up."""

    given_up = ServiceFacts(
        role=Role.MASTER,
        lease_required=True,
        lease_valid=False,
        lease_given_up=True,
        switching=True,
        lease_lost_for_ms=700,
    )

    over = asyncio.Event()

    def lapse() -> None:
        front.gateway.use(decide_mode(replace(given_up, lease_lost_for_ms=1_000 if over.is_set() else 700)))

    async with fronting(lease_ok=lambda: False, on_lapse=lapse) as front, connected(front) as one:
        front.gateway.use(decide_mode(ServiceFacts(role=Role.MASTER, lease_required=True)))

        first = await one.call(request(1, PULL), 5)
        lock = asyncio.ensure_future(one.call(request(2, LOCK), 5))
        while not front.gateway.holding.count:  # noqa: ASYNC110  # it arrives soon
            await asyncio.sleep(0.01)
        over.set()
        lapse()
        last = await one.call(request(3, PULL), 5)

        assert (first.code, (await lock).code, last.code) == (0, 14, 14)


async def test_requests_are_passed_on_to_a_real_broker(setup: Setup) -> None:
    """Sends under short and long names, batches, commits and progress, in both encodings; the answers are the
    master's, and the born host is the client's."""

    async with setup.pair() as (broker, direct):
        await direct.create_topic("T")
        broker._send._in_group = True
        async with fronting(broker._handlers()) as front, connected(front) as one:
            front.gateway.use(following(broker.port))
            client = type(direct)(one)

            replies = [
                await client.send("T", b"json"),
                await client.send("T", b"binary", binary=True),
                await client.send_batch("T", [b"x", b"y"]),
                await client.call(
                    10, b"long", producerGroup="pg", topic="T", defaultTopic="TBW102",
                    defaultTopicQueueNums=4, queueId=0, sysFlag=0, bornTimestamp=1, flag=0, properties="",
                ),
            ]  # fmt: skip
            assert [reply.code for reply in replies] == [0, 0, 0, 0], [r.remark for r in replies]
            assert [reply.ext["queueOffset"] for reply in replies] == ["0", "1", "2", "4"]
            assert [reply.binary for reply in replies] == [False, True, False, False]
            await direct.heartbeat("cg", "T")  # makes the group
            fields = {"consumerGroup": "cg", "topic": "T", "queueId": "0", "commitOffset": "3"}
            one.notify(Command(COMMIT, fields))
            found = Command(-1)
            while found.ext.get("offset") != "3":
                found = await client.call(QUERY, consumerGroup="cg", topic="T", queueId=0)
            pulled = setup.records(await direct.pull("T", 0))

            assert [record.body for record in pulled] == [b"json", b"binary", b"x", b"y", b"long"]
            assert {record.born_host for record in pulled} == {Host.from_text(*one.local)}
            assert (front.forwarder.in_flight, front.forwarder.bytes) == (0, 0)


async def test_every_request_of_a_broker_is_classified(setup: Setup) -> None:
    """A handler whose code is not in the table cannot be put behind a gateway."""

    async with setup.broker() as broker:
        handlers = broker._handlers()
        gateway = Gateway(handlers)

        assert gateway.handlers.keys() == handlers.keys()
        with pytest.raises(ValueError, match="12345"):
            Gateway({12_345: next(iter(handlers.values()))})
        gateway.close()


async def test_a_master_that_dies_leaves_the_end_open() -> None:
    """A send is not sent twice by us and its client hears that nobody knows; progress is asked for again."""

    calls: list[Command] = []

    def die(connection: Connection, command: Command) -> Reply:
        calls.append(command)
        connection.abort()
        return None

    async with fronting({SEND: die, QUERY: die}) as master, fronting() as front, connected(front) as one:
        front.gateway.use(following(master.port))

        sent = await one.call(request(1, binary=True), 5)
        assert len(calls) == 1
        asked = await one.call(request(2, QUERY), 5)

        assert (sent.code, sent.binary) == (14, True)
        assert "not known" in (sent.remark or "")
        assert (asked.code, len(calls) > 3) == (14, True)
        assert front.forwarder.counters.unclear == 1
        assert front.forwarder.counters.repeated > 1
        assert front.forwarder.in_flight == 0


async def test_a_master_that_does_not_listen_yet_is_asked_again() -> None:
    """Nobody has carried the request out, so it may be repeated, for a while."""

    (port,) = free_ports(1)
    async with fronting() as front, connected(front) as one:
        front.gateway.use(following(port))
        future = one.start_call(request(1))
        await until(lambda: front.forwarder.counters.repeated > 0)
        async with fronting(port=port) as master:
            reply = await future

            assert (reply.code, master.numbers()) == (0, ["1"])
            assert FORWARDED in master.served[0].ext
        given_up = await one.call(request(2), 5)
        assert (given_up.code, "not carried out" in (given_up.remark or "")) == (14, True)


async def test_two_brokers_that_take_each_other_for_the_master_pass_nothing_around() -> None:
    """The second one holds what was passed on already, and refuses it as a slave does."""

    async with fronting() as one, fronting() as two, connected(one) as client:
        one.gateway.use(following(two.port))
        two.gateway.use(following(one.port))

        reply = await client.call(request(1), 10)

        assert (reply.code, reply.remark) == (
            2,
            "[REJECTREQUEST]system busy, start flow control for a while",
        )
        assert NOT_HERE not in reply.ext
        assert two.forwarder.counters.forwarded == 0
        assert one.served == two.served == []


async def test_a_broker_that_becomes_master_serves_what_was_passed_on_early() -> None:
    """The old master knows its successor before that one does; no send is refused for it."""

    async with fronting() as old, fronting() as new, connected(old) as client:
        old.gateway.use(SWITCHING)
        new.gateway.use(following(old.port))
        futures = [client.start_call(request(n)) for n in range(5)]
        await until(lambda: len(old.gateway.holding) == 5)
        old.gateway.use(following(new.port))
        await until(lambda: len(new.gateway.holding) == 5)
        new.gateway.use(SERVING)

        replies = await asyncio.gather(*futures)

        assert [reply.code for reply in replies] == [0] * 5
        assert new.numbers() == ["0", "1", "2", "3", "4"]
        assert new.gateway.holding.count == 0


async def test_forwards_are_bounded() -> None:
    """By number and by bytes; what is beyond is refused with SYSTEM_BUSY."""

    async with (
        fronting() as master,
        fronting(forwarder={"in_flight_max": 2, "bytes_max": 3000}) as front,
        connected(front) as one,
    ):
        master.gateway.use(SWITCHING)
        front.gateway.use(following(master.port))
        large = request(0)
        large.body = bytes(3001)
        assert (await one.call(large, 5)).code == 2
        futures = [one.start_call(request(n)) for n in range(2)]
        await until(lambda: front.forwarder.in_flight == 2)

        refused = await one.call(request(2), 5)
        master.gateway.use(SERVING)

        assert refused.code == 2
        assert [reply.code for reply in await asyncio.gather(*futures)] == [0, 0]
        assert front.forwarder.counters.turned_away == 2


async def test_a_forward_goes_on_when_its_client_leaves() -> None:
    """As if the client had spoken to the master itself: the last commit of a consumer counts."""

    async with fronting() as master, fronting() as front:
        front.gateway.use(following(master.port))
        async with connected(front) as one:
            one.send(encode(request(1, COMMIT, oneway=True)))
        await until(lambda: bool(master.served))

        assert master.served[0].is_oneway
        await until(lambda: front.forwarder.in_flight == 0)


async def test_a_gateway_without_forwarder_refuses_what_it_should_pass_on() -> None:
    """As Java's slaves do."""

    served: list[Command] = []

    def serve(_connection: Connection, command: Command) -> Reply:
        served.append(command)
        return command.reply()

    gateway = Gateway({SEND: serve, INFO: serve})
    server = RemotingServer(gateway.handlers)
    port = await server.listen("127.0.0.1", 0)
    connection = await connect(f"127.0.0.1:{port}")
    gateway.use(following(port))
    mode = gateway.mode_of

    reply = await connection.call(request(1), 5)

    assert (reply.code, served, mode) == (2, [], mode)
    assert gateway.modes.forward_to == f"127.0.0.1:{port}"
    connection.close()
    gateway.close()
    await server.close(0.1)


async def test_raw_answers_keep_the_encoding_of_each_request() -> None:
    """A client may mix header encodings on one connection; each forwarded answer comes in its own."""

    async with fronting() as master, fronting() as front:
        front.gateway.use(following(master.port))
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        for opaque, binary in ((71, True), (72, False)):
            command = request(opaque, binary=binary)
            command.opaque = opaque
            writer.write(encode(command))
        parser, replies = CommandReader(), list[Command]()
        while len(replies) < 2:
            replies += parser.feed(await reader.read(4096))

        assert sorted((r.opaque, r.binary, r.ext["n"], r.flag) for r in replies) == [
            (71, True, "71", 1),
            (72, False, "72", 1),
        ]
        writer.close()
        await writer.wait_closed()


async def test_an_open_gateway_has_the_handlers_themselves_in_its_table() -> None:
    """So that serving costs nothing, before any change and after each; but for consumers that leave."""

    async with fronting() as front:
        before = dict(front.gateway.handlers)
        front.gateway.use(SWITCHING)
        front.gateway.use(Modes(writes=Mode(ModeKind.REFUSE, 1, "x")))
        held = front.gateway.handlers[SEND]
        front.gateway.use(SERVING)

        assert held != before[SEND]
        assert front.gateway.handlers == before
        assert {**before, UNREGISTER: front.note} == dict.fromkeys(before, front.note)
