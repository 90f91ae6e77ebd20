"""The table of handlers when the time of modes is over."""

from __future__ import annotations

import asyncio

from brokerset_broker.gateway.door import Gateway
from brokerset_broker.gateway.request_classes import RequestClass
from brokerset_broker.gateway.service_mode import ModeKind, ServiceFacts, decide_mode
from brokerset_broker.membership.role import Role

TURNS_MAX = 10_000


class TickingLoop(asyncio.SelectorEventLoop):
    """Its clock goes on at every look, so timers that are set one after the other fire in different turns."""

    _now = 0.0

    def time(self) -> float:
        self._now += 0.002
        return self._now


def test_classes_whose_time_ends_together_end_in_one_turn() -> None:
    """Nobody who was refused a lock because the lease is gone can still read."""
    lapsed = ServiceFacts(
        role=Role.MASTER, lease_required=True, lease_valid=False, switching=True, lease_lost_for_ms=900
    )
    classes = [kind for kind in RequestClass if kind is not RequestClass.OPEN]

    async def main() -> set[int]:
        gateway = Gateway({})
        gateway.use(decide_mode(lapsed))
        seen: set[int] = set()
        for _ in range(TURNS_MAX):
            seen.add(sum(gateway.mode_of(kind).kind is ModeKind.REFUSE for kind in classes))
            if len(classes) in seen:
                break
            await asyncio.sleep(0)
        gateway.close()
        return seen

    with asyncio.Runner(loop_factory=TickingLoop) as loop:
        assert loop.run(main()) == {0, len(classes)}
