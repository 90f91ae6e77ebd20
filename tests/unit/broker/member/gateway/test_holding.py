"""Lanes of held requests: order, bounds, deadlines, slices; on the simulator's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from brokerset_broker.member.gateway.waiting_requests import HELD_SECONDS_MAX, RELEASE_SLICE, Holding, Refusal
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected

pytestmark = pytest.mark.virtual

REFUSAL = Refusal(14, "too long", (("where", "else"),))


class Peer:
    """A connection that notes what happens to its requests."""

    def __init__(self, served: list[int]) -> None:
        self.served = served
        self.refused: list[tuple[int, Command]] = []
        self.is_open = True
        self.when_served: Callable[[], None] | None = None

    def serve_deferred(self, commands: Sequence[Command]) -> None:
        self.served.extend(command.opaque for command in commands)
        if self.when_served is not None:
            self.when_served()

    def finish(self, command: Command, reply: Command) -> None:
        self.refused.append((command.opaque, reply))


def command(opaque: int, body: bytes = b"", *, oneway: bool = False) -> Command:
    return Command(310, {"b": "topic"}, body, opaque=opaque, flag=FLAG_ONEWAY if oneway else 0)


async def test_requests_of_a_connection_leave_in_their_order() -> None:
    """The connection whose first request came first is released first, as a whole."""

    served: list[int] = []
    first, second = Peer(served), Peer(served)
    holding = Holding()
    for opaque, peer in ((1, first), (2, second), (3, first), (4, second)):
        holding.hold("writes", peer, command(opaque), REFUSAL)
    holding.hold("locks", first, command(9), REFUSAL)
    done = asyncio.Event()

    holding.release("writes", done.set)
    await done.wait()

    assert served == [1, 3, 2, 4]
    assert holding.is_empty("writes")
    assert holding.has("locks", first)
    assert len(holding) == 1


async def test_one_turn_of_the_loop_releases_a_slice() -> None:
    """Others are served between the slices; what was held again meanwhile stays."""

    served: list[int] = []
    holding = Holding()
    peers = [Peer(served) for _ in range(RELEASE_SLICE * 2)]
    for number, peer in enumerate(peers):
        holding.hold("writes", peer, command(number), REFUSAL)
    done = asyncio.Event()

    holding.release("writes", done.set)
    await asyncio.sleep(0)
    after_one = len(served)
    holding.keep("writes")
    await asyncio.sleep(0.1)
    after_keep = len(served)
    holding.release("writes", done.set)
    await done.wait()

    assert (after_one, after_keep, len(served)) == (RELEASE_SLICE, RELEASE_SLICE, RELEASE_SLICE * 2)


async def test_a_request_is_refused_when_it_has_waited_for_too_long() -> None:
    """Each by its own deadline, within a few hundredths of a second; held again it keeps its age."""

    loop = asyncio.get_running_loop()
    peer = Peer([])
    holding = Holding()
    holding.hold("writes", peer, command(1), REFUSAL)
    holding.hold("writes", peer, command(2), REFUSAL, 0.5)
    began = loop.time()

    await asyncio.sleep(0.55)
    assert [opaque for opaque, _ in peer.refused] == [2]
    await asyncio.sleep(HELD_SECONDS_MAX - 0.5)

    assert [opaque for opaque, _ in peer.refused] == [2, 1]
    reply = peer.refused[1][1]
    assert (reply.code, reply.remark, reply.ext) == (14, "too long", {"where": "else"})
    assert (len(holding), holding.size, holding.counters.expired) == (0, 0, 2)
    assert holding.counters.held_ms_max >= int((HELD_SECONDS_MAX - 0.05) * 1000)
    assert loop.time() - began < 3


async def test_a_request_that_is_held_again_keeps_its_age() -> None:
    """Whatever happens meanwhile, nobody waits longer than `HELD_SECONDS_MAX`."""

    peer = Peer([])
    holding = Holding()
    again = command(1)
    holding.hold("writes", peer, again, REFUSAL)

    def hold_again() -> None:
        holding.hold("other", peer, again, REFUSAL)

    peer.when_served = hold_again

    await asyncio.sleep(2)
    holding.release("writes", lambda: None)
    await asyncio.sleep(HELD_SECONDS_MAX - 2 + 0.05)

    assert [opaque for opaque, _ in peer.refused] == [1]
    assert holding.is_empty("other")


async def test_bounds_of_requests_and_bytes_are_kept() -> None:
    """What is beyond them is refused with SYSTEM_BUSY, and room that was freed can be used again."""

    peer, other = Peer([]), Peer([])
    few, small = Holding(held_max=2), Holding(bytes_max=4000)
    for opaque in range(2):
        few.hold("writes", peer, command(opaque), REFUSAL)
    small.hold("writes", peer, command(0, bytes(3000)), REFUSAL)

    for holding, body in ((few, b""), (small, bytes(1000))):
        with pytest.raises(Rejected) as refused:
            holding.hold("writes", other, command(5, body), REFUSAL)
        assert refused.value.code == 2
        assert refused.value.remark.startswith("[REJECTREQUEST]")
        assert holding.counters.turned_away == 1
        holding.drop(peer)
        assert (holding.count, holding.size) == (0, 0)
        holding.hold("writes", other, command(5, body), REFUSAL)
        holding.close()


async def test_a_closed_connection_is_forgotten() -> None:
    """Nothing of it is served or refused later."""

    served: list[int] = []
    peer, other = Peer(served), Peer(served)
    holding = Holding()
    holding.hold("writes", peer, command(1), REFUSAL)
    holding.hold("writes", other, command(2), REFUSAL)
    peer.is_open = False

    holding.drop(peer)
    holding.release_all()

    assert served == [2]
    assert holding.counters.dropped == 1
    holding.close()
