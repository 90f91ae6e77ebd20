"""A client of brokers for code without an event loop: Spark's planner and its tasks.

Spark forks its Python workers and uses them again for other tasks, so a client belongs to one process and is
shared by all that it does for the same name servers.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from brokerset_client.instance import ClientInstance

T = TypeVar("T")
START_SECONDS: Final = 30.0


class ClientThread:
    """Runs a client on an event loop in a daemon thread, which ends with the process."""

    def __init__(self, name_servers: str) -> None:
        """`name_servers`: `host:port`, several with `;` between them. `ClientError` or TimeoutError if none
        answers; then nothing is left of the thread."""
        self.instance = ClientInstance(name_servers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokerset-client", daemon=True)
        self._thread.start()
        try:
            self.run(self.instance.start(), START_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Does `work` on the loop and returns what it returns; TimeoutError after `seconds`."""
        future = self.begin(work)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Lets `work` be done on the loop while the caller does something else."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Ends connections, loop and thread."""
        self.run(self.instance.close(), START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()


_LOCK: Final = threading.Lock()
_CLIENTS: Final[dict[tuple[int, str], ClientThread]] = {}


def client_of(name_servers: str) -> ClientThread:
    """The client of this process for these name servers, also after a fork; made at the first call, which
    several threads may make at once. Raises as `ClientThread` does."""
    with _LOCK:
        key = os.getpid(), name_servers
        if key not in _CLIENTS:
            _CLIENTS[key] = ClientThread(name_servers)
        return _CLIENTS[key]
