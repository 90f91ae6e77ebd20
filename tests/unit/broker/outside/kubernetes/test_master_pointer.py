"""A master leads its group's Service to itself, through conflicts and an API server that is away."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from brokerset_broker.outside.kubernetes.api import ApiFailed, SliceConflict
from brokerset_broker.outside.kubernetes.master_pointer import MasterPointer
from brokerset_broker.outside.kubernetes.master_slice import EPOCH_ANNOTATION


class FakeSlice:
    """A slice in memory, with an API server's rule about resource versions."""

    def __init__(self) -> None:
        self.version = 1
        self.address = ""
        self.epoch = 0
        self.failures: list[ApiFailed] = []
        self.on_read: Callable[[], None] = lambda: None
        self.patches = 0
        self.changed = asyncio.Event()
        self.closed = False

    async def read(self) -> Mapping[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        found = {
            "metadata": {
                "namespace": "shop",
                "resourceVersion": str(self.version),
                "annotations": {EPOCH_ANNOTATION: str(self.epoch)},
            },
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
        }
        self.on_read()
        return copy.deepcopy(found)

    async def patch(self, change: Mapping[str, Any]) -> None:
        if change["metadata"]["resourceVersion"] != str(self.version):
            raise SliceConflict("changed")
        self.put(
            change["endpoints"][0]["addresses"][0], int(change["metadata"]["annotations"][EPOCH_ANNOTATION])
        )
        self.patches += 1
        self.changed.set()

    def put(self, address: str, epoch: int) -> None:
        self.address, self.epoch, self.version = address, epoch, self.version + 1

    async def close(self) -> None:
        self.closed = True


def _run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(bounded())


class Running:
    """A pointer that runs, and the epoch that it leads in."""

    def __init__(self) -> None:
        self.slice = FakeSlice()
        self.epoch: int | None = None
        self.pointer = MasterPointer(self.slice, pod="p", pod_ip="10.0.0.7", leads=lambda: self.epoch)
        self.task = asyncio.create_task(self.pointer.run())

    async def lead(self, epoch: int) -> None:
        self.epoch = epoch
        self.slice.changed.clear()
        self.pointer.wake()
        await self.slice.changed.wait()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.slice.closed


def test_a_new_master_leads_the_service_to_itself() -> None:
    """And a slave writes nothing."""

    async def scenario() -> None:
        running = Running()
        running.pointer.wake()
        await asyncio.sleep(0)
        assert running.slice.patches == 0

        await running.lead(3)

        assert (running.slice.address, running.slice.epoch) == ("10.0.0.7", 3)
        await running.end()

    _run(scenario)


def test_it_goes_on_after_failures_and_conflicts() -> None:
    """An API server that is away, or a slice that somebody else changed between reading and writing."""

    async def scenario() -> None:
        running = Running()
        running.slice.failures = [ApiFailed("away"), ApiFailed("away")]
        others = iter([lambda: running.slice.put("10.0.0.1", 2)])
        running.slice.on_read = lambda: next(others, lambda: None)()

        await running.lead(3)

        assert (running.slice.address, running.slice.epoch) == ("10.0.0.7", 3)
        await running.end()

    _run(scenario)


def test_who_lost_the_mastership_while_reading_writes_nothing() -> None:
    """The role is looked at once more after the slice was read."""

    async def scenario() -> None:
        running = Running()
        read = asyncio.Event()

        def lose() -> None:
            running.epoch = None
            read.set()

        running.slice.on_read = lose
        running.epoch = 3
        running.pointer.wake()
        await read.wait()
        for _ in range(10):
            await asyncio.sleep(0)

        assert running.slice.patches == 0
        await running.end()

    _run(scenario)


def test_a_later_master_is_left_alone() -> None:
    """An old master that still believes in its role cannot take clients away from the new one."""

    async def scenario() -> None:
        running = Running()
        running.slice.put("10.0.0.1", 9)
        read = asyncio.Event()
        running.slice.on_read = read.set
        running.epoch = 3
        running.pointer.wake()
        await read.wait()
        for _ in range(10):
            await asyncio.sleep(0)

        assert (running.slice.address, running.slice.patches) == ("10.0.0.1", 0)
        await running.end()

    _run(scenario)
