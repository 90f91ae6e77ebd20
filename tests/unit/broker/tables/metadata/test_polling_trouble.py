"""A poll of metadata that fails for good is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_broker.tables.metadata.polling import FAILED_SECONDS, Master
from brokerset_protocol.commands import Command
from brokerset_rig.metadata_parts import MemoryStore, Replica
from brokerset_runtime.remoting import ConnectionClosed

pytestmark = pytest.mark.virtual


class Silent:
    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        raise ConnectionClosed("refused")

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError


async def test_a_poll_that_fails_for_good_is_shown(tmp_path: Path) -> None:
    """After half a minute the problem says so, and what to do; it goes when the master is ours again."""

    masters = [Master("java:10911", is_ours=False)]
    replica = Replica(tmp_path, MemoryStore(), asker=Silent(), master=lambda: masters[0])
    log = replica.log
    log.load()
    task = asyncio.create_task(log.run())
    await log.start_following()
    await asyncio.sleep(FAILED_SECONDS - 5)
    assert log.trouble() is None
    await asyncio.sleep(15)
    trouble = log.trouble()
    assert trouble is not None
    assert "refused" in trouble[0]
    masters[0] = Master("ours:10911", is_ours=True)
    await asyncio.sleep(3)
    assert log.trouble() is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
