"""Bringing the commit log to the disk: one flush answers everybody who waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import SimpleQueue

import structlog

from brokerset_broker.store import answers
from brokerset_broker.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

WAITERS_MAX = 65_536
"""Sends that wait for the disk; further ones are told at once that it takes too long."""

DIRTY_BYTES_MIN = 4 * 4096
"""With asynchronous flushing, less than this waits for `THOROUGH_INTERVAL_S` (as in RocketMQ)."""

THOROUGH_INTERVAL_S = 10.0
"""After this time everything is flushed, however little it is."""


class SyncThread:
    """A thread that does one thing after the other; an executor's futures cost more than handing over."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Have `work` done, which raises nothing."""
        if self._closed:
            raise RuntimeError("the thread that flushes has been ended")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store-flush", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        """End it; what was submitted is done first."""
        self._closed = True
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()


class Flusher:
    """Flushes the commit log in a thread of its own. All methods are called on the event loop.

    While one flush is on its way, all that is appended meanwhile waits for the next: so the number of flushes
    does not grow with the number of those who wait. A failed flush is final: the kernel may have dropped the
    pages that it could not write, so trying again would confirm what is not on the disk.
    """

    def __init__(
        self,
        log: CommitLog,
        timeout_ms: int,
        *,
        on_flushed: Callable[[], None],
        on_failure: Callable[[OSError], None],
        guarding: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`guarding` is entered in the thread that syncs, and sees a failure before anybody else."""
        self._log = log
        self._guarding = guarding
        self._timeout_s = timeout_ms / 1000
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._thread = SyncThread()
        self._waiting: deque[tuple[int, Callable[[bool], None], float]] = deque()
        self._running = False
        self._paused = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._started_at = 0.0
        self._again = False
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.failed = False

    def when_flushed(self, end: int, callback: Callable[[bool], None]) -> None:
        """Call `callback(True)` when the log is on disk up to `end`, `callback(False)` if not in time.

        It may be called at once. Called with growing `end`, as appends come.
        """
        if end <= self._log.flushed_offset:
            callback(True)
            return
        if self.failed or len(self._waiting) >= WAITERS_MAX:
            callback(False)
            return
        loop = asyncio.get_running_loop()
        self._waiting.append((end, callback, loop.time() + self._timeout_s))
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._expire)
        self.kick()

    def kick(self) -> None:
        """Flush soon: at the end of this turn of the loop, or after the flush that is on its way."""
        if self._running or self._paused:
            self._again = True
        elif not self._scheduled and not self.failed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    async def flush(self) -> bool:
        """Flush what is there now and wait for it; False if it failed."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(done: bool) -> None:
            if not future.done():
                future.set_result(done)

        self.when_flushed(self._log.max_offset, answer)
        return await future

    def _start(self) -> None:
        self._scheduled = False
        if self._paused:
            self._again = True
            return
        begin, end = self._log.flushed_offset, self._log.max_offset
        if self._running or self.failed or begin >= end:
            return
        self._running = True
        self._idle.clear()
        store_timestamp = self._log.store_timestamp
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        self._thread.submit(partial(self._sync, loop, begin, end, store_timestamp))

    def _sync(self, loop: asyncio.AbstractEventLoop, begin: int, end: int, store_timestamp: int) -> None:
        error: BaseException | None = None
        try:
            with self._guarding():
                self._log.files.sync(begin, end)
        except BaseException as raised:  # the edge of a thread
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._finished, end, store_timestamp, error)

    def _finished(self, end: int, store_timestamp: int, error: BaseException | None) -> None:
        self._running = False
        self._idle.set()
        if error is not None:
            self._fail(error)
            return
        self._log.flushed_offset = max(end, self._log.flushed_offset)
        self._log.flushed_timestamp = store_timestamp
        waiting = self._waiting
        while waiting and waiting[0][0] <= end:
            answers.give(waiting.popleft()[1], True)
        again, self._again = self._again, False
        if waiting or again:
            self.kick()
        self._on_flushed()

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, OSError):
            raise error
        self.failed = True
        log.critical("the disk did not take the commit log; nothing is accepted any more", error=str(error))
        self._on_failure(error)
        waiting, self._waiting = self._waiting, deque()
        for _, callback, _ in waiting:
            answers.give(callback, False)

    async def pause(self) -> None:
        """Begin no flush until `resume`, and wait for the one that is on its way."""
        self._paused = True
        await self._idle.wait()

    def resume(self) -> None:
        """Flush again as before."""
        self._paused = False
        if self._waiting or self._again:
            self._again = False
            self.kick()

    def truncate(self, offset: int) -> None:
        """The log was truncated at `offset`: who waits for more is told that it did not get to the disk."""
        self._log.flushed_offset = min(self._log.flushed_offset, offset)
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            if entry[0] <= offset:
                self._waiting.append(entry)
            else:
                answers.give(entry[1], False)

    @property
    def age_ms(self) -> int | None:
        """How long the flush that is on its way has lasted; None without one."""
        if not self._running:
            return None
        return int((asyncio.get_running_loop().time() - self._started_at) * 1000)

    def _expire(self) -> None:
        """Tell those who have waited too long; the deque is in the order of deadlines."""
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._waiting and self._waiting[0][2] <= now:
            answers.give(self._waiting.popleft()[1], False)
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][2], self._expire)

    async def run(self, interval_ms: int) -> None:
        """Flush from time to time, until cancelled."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(interval_ms / 1000)
            dirty = self._log.max_offset - self._log.flushed_offset
            if dirty >= DIRTY_BYTES_MIN or (dirty and loop.time() - last >= THOROUGH_INTERVAL_S):
                self.kick()
                last = loop.time()
            elif not dirty:
                last = loop.time()

    def close(self) -> None:
        """End the thread; what is on its way is finished first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._thread.close()
