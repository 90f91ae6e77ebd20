"""Many small jobs, a bounded number of them at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)

Job = Callable[[], Coroutine[Any, Any, None]]
"""Starts one job when its turn has come."""


class WorkerPool:
    """Runs jobs in the order in which they came, at most `size` at once.

    Jobs wait until `run` is on. Who adds jobs bounds their number; here every kind has at most one job
    for each replica or group.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[Job] = deque()
        self._busy = 0
        self._group: asyncio.TaskGroup | None = None

    def add(self, job: Job) -> None:
        """Have a job done; never waits."""
        self._waiting.append(job)
        self._start()

    async def run(self) -> None:
        """Do the jobs, for as long as this task runs; those that wait at its end stay."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._start()
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None  # first of all: jobs that end, or are added, begin no others any more

    def _start(self) -> None:
        while self._group is not None and self._busy < self._size and len(self._waiting) > 0:
            self._busy += 1
            self._group.create_task(self._work(self._waiting.popleft()))

    async def _work(self, job: Job) -> None:
        try:
            while True:
                try:
                    await job()
                except Exception as error:  # the edge of a task: the other groups still need this controller
                    log.error("job of the controller failed", exc_info=error)
                if not self._waiting:
                    return
                job = self._waiting.popleft()
        finally:
            self._busy -= 1
