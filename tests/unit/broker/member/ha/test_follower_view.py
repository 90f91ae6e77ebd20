"""What a slave tells of its connection to its master while it has none."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.ha.follower import Follower, FollowerParts, InForce
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.role import Role, RoleState
from brokerset_protocol.ha_packets import PeerIdentity
from brokerset_rig.fake_ha import CLUSTER, GROUP, FakeLog, MemoryDisk, run_blocking
from brokerset_spec.broker_settings import BrokerSettings


class _AwayThenSilent:
    """Controllers' side of a slave whose master is away at the first try, and silent at the second."""

    def __init__(self) -> None:
        self.tries = 0
        self.second = asyncio.Event()

    async def find_master(self, change: RoleState) -> Any:
        self.tries += 1
        if self.tries == 1:
            raise LinkClosed("the master is away")
        self.second.set()
        await asyncio.Event().wait()

    def ask_soon(self) -> None:
        """Nobody listens."""


@pytest.mark.timeout(20)
async def test_the_last_failure_is_told_while_the_next_try_goes_on() -> None:
    """Who asks in that moment gets the reason, as before and after it."""

    group = _AwayThenSilent()
    follower = Follower(
        FollowerParts(
            settings=BrokerSettings,
            log=FakeLog(),
            epochs=EpochFile(MemoryDisk()),
            network=cast(Any, None),
            group=cast(Any, group),
            run_blocking=run_blocking,
            identity=lambda: PeerIdentity(CLUSTER, GROUP, 2, "nonce", 1),
            in_force=InForce,
            on_truncated=lambda _: None,
        )
    )
    running = asyncio.create_task(follower.run())
    follower.follow(RoleState(Role.SLAVE, 1, master_id=1))
    await group.second.wait()

    found = follower.view()

    assert (found.state, found.problem) == ("looking", "the master is away")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
