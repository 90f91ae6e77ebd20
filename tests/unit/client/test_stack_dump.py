"""What the threads and tasks of a client do, as text of a bounded size."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_client import stack_dump


async def test_a_waiting_task_is_shown_with_its_place() -> None:
    """Its name, its function and the line at which it waits."""

    async def waits_for_an_order() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waits_for_an_order(), name="order 7")
    await asyncio.sleep(0)

    text = stack_dump.stack_dump()
    task.cancel()

    assert "thread MainThread" in text
    assert "task order 7" in text
    assert "in waits_for_an_order" in text


async def test_the_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tasks are counted instead of shown, and a long text ends early."""
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(5)]
    monkeypatch.setattr(stack_dump, "TASKS_MAX", 2)

    assert "more tasks" in stack_dump.stack_dump()
    monkeypatch.setattr(stack_dump, "SIZE_MAX", 50)
    assert len(stack_dump.stack_dump()) < 100
    for task in tasks:
        task.cancel()
