from __future__ import annotations

import asyncio

from brokerset_operator.health import Health
from brokerset_sim.loop import run


class FakeWatch:
    def __init__(self, lack: str | None) -> None:
        self._lack = lack

    def lack(self, now: float) -> str | None:
        return self._lack


def health(*, leads: bool, lease: float | None = 1.0, oldest: float = 0.0) -> Health:
    return Health(leads=lambda: leads, lease_seconds=lambda: lease, oldest_seconds=lambda: oldest)


def test_who_stands_by_is_ready_while_it_sees_the_lease() -> None:
    """A standby that cannot observe at the Lease could not take over."""

    async def work() -> None:
        assert health(leads=False).ready_problems() == []
        assert health(leads=False, lease=None).ready_problems() == ["the lease was not read yet"]
        assert health(leads=False, lease=31.0).ready_problems() == ["the lease was read last 31 s ago"]

    run(work())


def test_who_leads_is_ready_while_its_watches_live_and_changes_are_taken_in() -> None:
    """A dead watch, and a change that waits for a quarter of an hour, make the leader unready."""

    async def work() -> None:
        found = health(leads=True)
        found.watches = [FakeWatch(None), FakeWatch("the watch on pods hears nothing")]

        assert found.ready_problems() == ["the watch on pods hears nothing"]
        assert health(leads=True, oldest=1000.0).ready_problems() == [
            "a change waits since 1000 s; the log names the object and the reason"
        ]

    run(work())


def test_a_process_that_starts_or_ends_is_not_ready() -> None:
    """Readiness says what the process is at."""

    async def work() -> None:
        found = health(leads=True)
        found.starting = True
        found.ending = True

        assert found.ready_problems() == ["is stopping", "leads, and is starting its watches"]
        assert found.alive_problems() == []

    run(work())


def test_a_loop_that_stood_still_is_told() -> None:
    """A timer that is half a minute late means that the loop was blocked."""

    async def work() -> None:
        found = health(leads=False)
        task = asyncio.create_task(found.run())
        await asyncio.sleep(5)
        assert found.alive_problems() == []
        task.cancel()
        await asyncio.sleep(40)

        assert found.alive_problems() == ["the event loop's own timer is 41 s late"]

    run(work())
