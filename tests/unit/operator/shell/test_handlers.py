"""The thread of kopf, which can hang in its own end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import kopf
import pytest

from brokerset_operator import handlers
from brokerset_operator.kube.credentials import Access


def test_a_kopf_that_does_not_end_when_it_is_told_to_is_ended_by_cancelling_all_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for one of its own tasks whatever happens, as a watch that waits for credentials makes it."""
    waiting = threading.Event()

    async def hang(**_: object) -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        waiting.set()
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    async def main() -> None:
        access = Access("http://127.0.0.1:1")
        watching = asyncio.ensure_future(handlers.run_kopf(access, (), (), lambda *_: None))
        await asyncio.to_thread(waiting.wait)
        watching.cancel()
        await asyncio.wait({watching})

    monkeypatch.setattr(kopf, "operator", hang)
    monkeypatch.setattr(handlers, "JOIN_SECONDS", 0.5)

    asyncio.run(main())

    assert not [each for each in threading.enumerate() if each.name == "kopf"]
