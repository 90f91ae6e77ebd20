"""Finding the leading controller, and asking it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from brokerset_broker.member.membership.controllers import LOOK_UP_SECONDS, Controllers, NoAnswer
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

pytestmark = pytest.mark.virtual

C0, C1, C2 = "c0:1", "c1:1", "c2:1"
Answer = Callable[[Command], Awaitable[Command]]


class Crowd:
    """Controllers by address: what each says to 1005, and to everything else."""

    def __init__(self) -> None:
        self.metadata: dict[str, dict[str, str] | None] = {}
        self.code: dict[str, int] = {}
        self.asked: list[tuple[str, int]] = []
        self.silent: set[str] = set()

    def leads(self, leader: str, *others: str) -> None:
        self.metadata[leader] = {"isLeader": "true", "controllerLeaderAddress": leader}
        for address in others:
            self.metadata[address] = {"isLeader": "false", "controllerLeaderAddress": leader}

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        self.asked.append((address, command.code))
        if address in self.silent:
            await asyncio.sleep(timeout)
            raise RequestTimeout(f"no answer from {address}")
        ext = self.metadata.get(address)
        if ext is None:
            raise ConnectionClosed(f"cannot connect to {address}")
        if command.code != 1005:
            return Command(self.code.get(address, 0))
        return Command(0, ext)

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError("nothing is told")


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


async def test_the_one_that_says_that_it_leads_is_asked_where_it_answered(crowd: Crowd) -> None:
    """Its own idea of its address may be one that cannot be reached from here."""

    crowd.metadata[C0] = {"isLeader": "true", "controllerLeaderAddress": "127.0.0.1:9"}
    controllers = Controllers([C0], crowd)

    await controllers.ask(Command(1004))

    assert controllers.leader == C0
    assert controllers.addresses == (C0,)


async def test_a_leader_that_only_others_name_is_dialed_there(crowd: Crowd) -> None:
    """The list of the settings may be a part; heartbeats go to the leader, too."""

    crowd.leads(C2, C0)
    controllers = Controllers([C0, C1], crowd)

    await controllers.ask(Command(1004))

    assert controllers.leader == C2
    assert controllers.addresses == (C0, C1, C2)


async def test_what_is_no_address_is_not_dialed(crowd: Crowd) -> None:
    """A leader or member that nobody can connect to by name must not end the broker."""

    crowd.metadata[C0] = {"isLeader": "false", "controllerLeaderAddress": "n0"}
    with pytest.raises(NoAnswer):
        await Controllers([C0], crowd).find_leader()

    crowd.metadata[C1] = {"isLeader": "true", "peers": "n0:a:99999;n1:b:2;n2::7;"}
    controllers = Controllers([C0, C1], crowd)

    assert await controllers.find_leader() == C1
    assert controllers.addresses == (C0, C1, "b:2")


async def test_a_silent_controller_holds_nobody_up(crowd: Crowd) -> None:
    """All are asked at once, and the leader's own word is enough."""

    crowd.leads(C2, C1)
    crowd.silent = {C0}
    begun = asyncio.get_running_loop().time()

    assert await Controllers([C0, C1, C2], crowd).find_leader() == C2

    assert asyncio.get_running_loop().time() == begun


async def test_nobody_answers(crowd: Crowd) -> None:
    """The reasons are told, after a bounded time."""

    crowd.silent = {C0}
    begun = asyncio.get_running_loop().time()

    with pytest.raises(NoAnswer, match="cannot connect to c1:1"):
        await Controllers([C0, C1], crowd).find_leader()

    assert asyncio.get_running_loop().time() - begun <= LOOK_UP_SECONDS


async def test_no_leader_is_known(crowd: Crowd) -> None:
    """As in the middle of an election."""

    crowd.metadata[C0] = {"isLeader": "false"}

    with pytest.raises(NoAnswer, match="none of them knows a leader"):
        await Controllers([C0], crowd).find_leader()


async def test_something_else_listens_there(crowd: Crowd) -> None:
    """A name server, for instance."""

    async def ask(address: str, command: Command, timeout: float) -> Command:
        return Command(3)

    crowd.ask = ask  # type: ignore[method-assign]  # another server

    with pytest.raises(NoAnswer, match="it may be no controller"):
        await Controllers([C0], crowd).find_leader()


async def test_one_that_does_not_lead_any_more_is_not_asked_again_first(crowd: Crowd) -> None:
    """Answer 2007; it may go on claiming to lead."""

    crowd.leads(C0)
    controllers = Controllers([C0, C1], crowd)
    await controllers.find_leader()
    crowd.code[C0] = 2007
    crowd.leads(C1)

    with pytest.raises(NoAnswer, match="does not lead any more"):
        await controllers.ask(Command(1004))
    await controllers.ask(Command(1004))

    assert controllers.leader == C1


async def test_a_leader_that_hangs_is_given_up_for_another_that_claims_to_lead(crowd: Crowd) -> None:
    """An old leader that is cut off from the others may still answer 1005."""

    crowd.leads(C0)
    controllers = Controllers([C0, C1], crowd)
    await controllers.find_leader()
    crowd.leads(C1)
    controllers.forget(C0)

    assert await controllers.find_leader() == C1


async def test_the_only_one_is_asked_again(crowd: Crowd) -> None:
    """Its connection broke, that is all."""

    crowd.leads(C0)
    controllers = Controllers([C0], crowd)
    await controllers.find_leader()
    controllers.forget(C0)

    assert await controllers.find_leader() == C0


async def test_searches_at_the_same_time_are_one(crowd: Crowd) -> None:
    """And each gets its result."""

    crowd.leads(C0)
    controllers = Controllers([C0], crowd)

    found = await asyncio.gather(*(controllers.find_leader() for _ in range(5)))

    assert (found, len(crowd.asked)) == ([C0] * 5, 1)


async def test_the_leader_is_asked_for_from_time_to_time(crowd: Crowd) -> None:
    """A new one is found before the old one fails."""

    crowd.leads(C0, C1)
    controllers = Controllers([C0, C1], crowd)
    await controllers.find_leader()
    task = asyncio.create_task(controllers.run(10))
    crowd.leads(C1, C0)
    controllers.changed.clear()

    await controllers.changed.wait()

    assert controllers.leader == C1
    task.cancel()


async def test_a_name_stands_for_all_its_records_and_a_failed_look_up_keeps_them(crowd: Crowd) -> None:
    """Losing the name service must not take the controllers away."""

    records: list[Sequence[str] | OSError] = [["10.0.0.1", "::1"], OSError("no such name"), ["10.0.0.2"]]

    async def resolver(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("controllers", 9878)
        found = records.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    crowd.leads("10.0.0.1:9878", "[::1]:9878", "10.0.0.2:9878")
    controllers = Controllers(["controllers:9878"], crowd, use_dns=True, resolver=resolver)
    await controllers.find_leader()
    assert list(controllers.addresses) == ["10.0.0.1:9878", "[::1]:9878"]
    await controllers.find_leader()
    assert list(controllers.addresses) == ["10.0.0.1:9878", "[::1]:9878"]
    await controllers.find_leader()
    assert list(controllers.addresses) == ["10.0.0.2:9878", "10.0.0.1:9878"]
