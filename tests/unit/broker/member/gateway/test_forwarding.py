"""What a forwarder sends, repeats and answers, with an asker that does what the test says."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from brokerset_broker.member.gateway.forwarding import FORWARD_RETRY_SECONDS, Forwarder
from brokerset_broker.member.gateway.gateway import FORWARDED_HOLD_SECONDS, Gateway
from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import Modes, ServiceFacts, decide_mode
from brokerset_broker.requests.request_classes import BORN_HOST, FORWARDED, NOT_HERE
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import LocalProtocolError, Rejected
from brokerset_runtime.remoting import Connection, ConnectionClosed, RequestTimeout

pytestmark = pytest.mark.virtual

SEND, COMMIT, QUERY = 310, 15, 14
ELSEWHERE = Command(2, {NOT_HERE: "1"}, remark="not me", flag=1)


def nobody_listens() -> ConnectionClosed:
    error = ConnectionClosed("cannot connect")
    error.__cause__ = ConnectionRefusedError(111, "refused")
    return error


class Master:
    """An asker: one outcome after the other, the last one again and again."""

    def __init__(self, *outcomes: Command | BaseException) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[Command] = []
        self.told: list[Command] = []

    def _next(self) -> Command | BaseException:
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        self.asked.append(command)
        outcome = self._next()
        if isinstance(outcome, asyncio.CancelledError):
            await asyncio.sleep(1000)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        self.told.append(command)
        outcome = self._next()
        if isinstance(outcome, BaseException):
            raise outcome


class Client:
    """A connection that notes its answers."""

    peer = ("fd00::7", 4711)
    is_open = True

    def __init__(self) -> None:
        self.replies: list[Command] = []

    def finish(self, command: Command, reply: Command) -> None:
        if not command.is_oneway:
            self.replies.append(reply)


async def forwarded(
    master: Master, command: Command, target: str | None = "127.0.0.1:1"
) -> tuple[Command, Forwarder]:
    """The client's answer, and the forwarder."""
    forwarder, client = Forwarder(master), Client()
    forwarder.target = target
    forwarder.forward(cast(Connection, client), command, asyncio.get_running_loop().time())
    while not client.replies:  # noqa: ASYNC110  # on a virtual clock
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert (forwarder.in_flight, forwarder.bytes) == (0, 0)
    return client.replies[0], forwarder


async def test_a_request_is_copied_with_its_marks() -> None:
    """The client's command stays as it was; the answer gets its number and its encoding."""

    master = Master(Command(0, {"x": "y"}, b"answer", opaque=99, remark="r"))
    command = Command(SEND, {"b": "T"}, b"body", opaque=7, language=1, version=401, binary=True)

    reply, forwarder = await forwarded(master, command)

    sent = master.asked[0]
    assert sent.ext == {"b": "T", FORWARDED: "1", BORN_HOST: "[fd00::7]:4711"}
    assert (sent.body, sent.language, sent.version, sent.binary) == (b"body", 1, 401, True)
    assert command.ext == {"b": "T"}
    assert (reply.opaque, reply.binary, reply.flag) == (7, True, 1)
    assert (reply.ext, reply.body, reply.remark) == ({"x": "y"}, b"answer", "r")
    assert forwarder.counters.forwarded == 1


@pytest.mark.parametrize(
    ("outcome", "code", "tries"),
    [
        (nobody_listens(), SEND, "many"),
        (ELSEWHERE, SEND, "many"),
        (ConnectionClosed("lost"), SEND, "one"),
        (RequestTimeout("late"), SEND, "one"),
        (RequestTimeout("late"), COMMIT, "one"),
        (RequestTimeout("late"), QUERY, "many"),
        (LocalProtocolError("too large"), SEND, "one"),
        (ZeroDivisionError("nobody expected this"), SEND, "one"),
    ],
)
async def test_only_what_can_do_no_harm_is_repeated(
    outcome: Command | Exception, code: int, tries: str
) -> None:
    """A send whose end is unknown goes out once; every refusal has a code after which clients try again."""

    master = Master(outcome)
    loop = asyncio.get_running_loop()
    began = loop.time()

    reply, forwarder = await forwarded(master, Command(code, opaque=3))

    assert reply.code in (1, 2, 14)
    assert reply.opaque == 3
    assert NOT_HERE not in reply.ext
    assert (len(master.asked) > 3) is (tries == "many")
    assert loop.time() - began <= FORWARD_RETRY_SECONDS + 0.01
    assert forwarder.counters.repeated == len(master.asked) - 1


async def test_a_refusal_of_the_real_master_goes_to_the_client() -> None:
    """Without the mark it is an answer like any other."""

    master = Master(Command(17, {}, remark="no such topic", flag=1))

    reply, _ = await forwarded(master, Command(SEND))

    assert (reply.code, reply.remark, len(master.asked)) == (17, "no such topic", 1)


async def test_without_a_master_the_client_is_told_so_in_the_end() -> None:
    """The master may become known meanwhile."""

    reply, forwarder = await forwarded(Master(Command(0)), Command(SEND), target=None)

    assert reply.code == 14
    assert forwarder.counters.failed == 1


async def test_one_way_requests_are_told_once() -> None:
    """Whether that works or not, nobody is answered, and nothing is left behind."""

    for outcome, target in ((Command(0), "a:1"), (ConnectionClosed("lost"), "a:1"), (Command(0), None)):
        master, client = Master(outcome), Client()
        forwarder = Forwarder(master)
        forwarder.target = target
        forwarder.forward(cast(Connection, client), Command(COMMIT, flag=FLAG_ONEWAY), 0.0)
        await asyncio.sleep(0.01)

        assert len(master.told) == (target is not None)
        assert (client.replies, forwarder.in_flight) == ([], 0)


async def test_closing_gives_up_what_is_on_its_way() -> None:
    """Its clients are answered; what never began is not counted permanently."""

    master, client = Master(asyncio.CancelledError()), Client()
    forwarder = Forwarder(master)
    forwarder.target = "127.0.0.1:1"
    forwarder.forward(cast(Connection, client), Command(SEND, opaque=1), 0.0)
    await asyncio.sleep(0.01)
    forwarder.forward(cast(Connection, client), Command(SEND, opaque=2), 0.0)

    await forwarder.close()

    assert [(reply.opaque, reply.code) for reply in client.replies] == [(1, 14)]
    assert forwarder.in_flight == 0


async def test_what_was_passed_on_is_refused_with_a_mark() -> None:
    """So that the broker that passed it on knows that it was not carried out; clients do not see the mark."""

    client = Client()
    gateway = Gateway({SEND: lambda _connection, command: command.reply()})
    connection = cast(Connection, client)
    marked = Command(SEND, {FORWARDED: "1"})

    gateway.use(decide_mode(ServiceFacts(role=Role.NONE)))
    refused = gateway.handlers[SEND](connection, marked)
    with pytest.raises(Rejected, match="no role"):
        gateway.handlers[SEND](connection, Command(SEND))
    gateway.use(decide_mode(ServiceFacts(role=Role.MASTER, enough_in_sync=False, not_enough_for_ms=9000)))
    with pytest.raises(Rejected, match="in-sync replicas not enough"):
        gateway.handlers[SEND](connection, marked)

    assert isinstance(refused, Command)
    assert (refused.code, refused.ext) == (14, {NOT_HERE: "1"})
    gateway.close()


async def test_what_was_passed_on_waits_for_a_second_at_a_slave() -> None:
    """Then it is refused as a slave does, with the mark."""

    loop = asyncio.get_running_loop()
    client = Client()
    gateway = Gateway(
        {SEND: lambda _connection, command: command.reply()}, forwarder=Forwarder(Master(Command(0)))
    )
    gateway.use(decide_mode(ServiceFacts(role=Role.SLAVE, master_address="127.0.0.1:1")))
    began = loop.time()

    gateway.handlers[SEND](cast(Connection, client), Command(SEND, {FORWARDED: "1"}))
    gateway.use(decide_mode(ServiceFacts(role=Role.SLAVE, master_address="127.0.0.1:2")))
    while not client.replies:  # noqa: ASYNC110  # on a virtual clock
        await asyncio.sleep(0.01)

    assert FORWARDED_HOLD_SECONDS <= loop.time() - began < FORWARDED_HOLD_SECONDS + 0.1
    assert (client.replies[0].code, client.replies[0].ext) == (2, {NOT_HERE: "1"})
    assert gateway.modes == Modes(
        writes=gateway.modes.writes,
        commits=gateway.modes.commits,
        locks=gateway.modes.locks,
        progress=gateway.modes.progress,
        ends=gateway.modes.ends,
        forward_to="127.0.0.1:2",
    )
    gateway.close()


async def test_a_request_that_the_old_master_did_not_carry_out_is_served_by_the_new_one() -> None:
    """When this broker has become master meanwhile, its own handlers get it at once."""

    class Leaving(Master):
        async def ask(self, address: str, command: Command, timeout: float) -> Command:
            forwarder.target = None
            return Command(2, {NOT_HERE: "1"}, flag=1)

    class Patient(Client):
        def __init__(self) -> None:
            super().__init__()
            self.again: list[Command] = []

        def serve_deferred(self, commands: list[Command]) -> None:
            self.again += commands

    forwarder = Forwarder(Leaving())

    client, command = Patient(), Command(SEND, {}, b"x", opaque=3)
    forwarder.target = "127.0.0.1:1"

    forwarder.forward(cast(Connection, client), command, asyncio.get_running_loop().time())
    await asyncio.sleep(0.001)

    assert (client.again, client.replies) == ([command], [])
    assert (forwarder.in_flight, forwarder.bytes) == (0, 0)


async def test_a_request_that_a_dying_master_did_not_carry_out_waits_here_for_the_next_one() -> None:
    """The master is known to have gone between two tries, or before the first: this broker's own handlers get
    the request, which wait for an election as for every other one. One-way requests, too.
    """

    class Patient(Client):
        def __init__(self) -> None:
            super().__init__()
            self.again: list[Command] = []

        def serve_deferred(self, commands: list[Command]) -> None:
            self.again += commands

    for gone_after, flag in ((0.001, 0), (0.0, 0), (0.0, FLAG_ONEWAY)):
        forwarder, client = Forwarder(Master(nobody_listens())), Patient()
        command = Command(COMMIT, {}, opaque=3, flag=flag)
        loop = asyncio.get_running_loop()
        forwarder.target = "127.0.0.1:1"

        forwarder.forward(cast(Connection, client), command, loop.time())
        if gone_after:
            await asyncio.sleep(gone_after)
        forwarder.target = None
        await asyncio.sleep(FORWARD_RETRY_SECONDS / 2)

        assert (client.again, client.replies) == ([command], [])
        assert (forwarder.in_flight, forwarder.bytes) == (0, 0)


async def test_what_was_passed_on_and_held_by_a_master_that_hands_over_is_sent_back_at_once() -> None:
    """Whoever passed it on may be the new master: it must not wait for who is a slave by now."""

    class Released(Client):
        def serve_deferred(self, commands: list[Command]) -> None:
            for command in commands:
                reply = gateway[0].handlers[SEND](cast(Connection, self), command)
                assert isinstance(reply, Command)
                self.replies.append(reply)

    gateway: list[Gateway] = []

    client = Released()
    gateway.append(
        Gateway(
            {SEND: lambda _connection, command: command.reply()},
            forwarder=Forwarder(Master(Command(0))),
        )
    )
    gateway[0].use(decide_mode(ServiceFacts(role=Role.MASTER, switching=True)))
    gateway[0].handlers[SEND](cast(Connection, client), Command(SEND, {FORWARDED: "1"}))

    gateway[0].use(decide_mode(ServiceFacts(role=Role.SLAVE, master_address="127.0.0.1:2")))
    await asyncio.sleep(0.001)

    assert [(reply.code, reply.ext) for reply in client.replies] == [(14, {NOT_HERE: "1"})]
    gateway[0].close()
