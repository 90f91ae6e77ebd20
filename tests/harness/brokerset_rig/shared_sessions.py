"""Sessions of a Shared group that claim, pull and acknowledge at an `OrderedBroker`."""

from __future__ import annotations

from typing import Any

from brokerset_rig.local_servers import bodies
from brokerset_rig.ordered_broker import Call, OrderedBroker, owner, pull_fields


class Session:
    """One session that pulls from where it is, and acknowledges by pull sequences."""

    def __init__(self, master: OrderedBroker, name: str) -> None:
        self.master, self.name = master, name
        self.start = self.following = -1

    async def claim(self, pulled_to: int = -1, **more: Any) -> Call:
        call = await self.master.call(
            21_032, **owner(1, self.name, **more), pulledTo=pulled_to, shared="true"
        )
        if call.code == 0 and pulled_to < 0:
            self.start = self.following = int(call.ext["position"])
        return call

    async def pull(self, count: int = 32, sequence: int | None = None, **more: Any) -> list[bytes]:
        """The bodies of what it gets."""
        call = await self.pull_call(self.following if sequence is None else sequence, count, **more)
        assert call.answer is not None
        found = bodies(call.answer)
        self.following = int(call.ext["nextBeginOffset"])
        return found

    async def pull_call(self, sequence: int, count: int = 32, **more: Any) -> Call:
        fields = pull_fields(sequence, 1, self.name, maxMsgNums=count, suspendTimeoutMillis=0, sysFlag=4)
        return await self.master.call(11, **(fields | more))

    async def ack(self, first: int, last: int) -> Call:
        """`first` and `last` count from the begin of its pull log."""
        return await self.master.ack(self.start + first, self.start + last, 1, self.name)


async def shared(master: OrderedBroker, *names: str) -> list[Session]:
    """Sessions that have claimed the queue."""
    made = [Session(master, name) for name in names]
    for session in made:
        assert (await session.claim()).code == 0
    return made


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]
