"""Digests of sealed files, made once, at the pace of everything else that is read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from brokerset_broker.outside.store_stream.files import OpenFile
from brokerset_broker.outside.store_stream.pace import Pace

ALGORITHM: Final = "sha-256"
"""As HTTP names it (RFC 9530)."""

STEP_BYTES: Final = 256 * 1024
KEPT_MAX: Final = 4_096
"""Digests that are remembered; the oldest one goes first."""

WAITING_MAX: Final = 8
"""Files whose digests are asked for and not made yet."""


class TooManyDigests(Exception):
    """So many are being made that another one would have to wait for long."""


class Digests:
    """Digests by name and state of a file."""

    def __init__(self, pace: Pace, stop: threading.Event, executor: Executor) -> None:
        """`executor` should have one thread: digests are made one after the other."""
        self._pace = pace
        self._stop = stop
        self._executor = executor
        self._made: dict[tuple[str, str], bytes] = {}
        self._making: dict[tuple[str, str], asyncio.Future[bytes]] = {}

    def known(self, path: str, etag: str) -> bytes | None:
        """A digest that was made before."""
        return self._made.get((path, etag))

    def make(self, path: str, file: OpenFile, still_there: Callable[[], bool]) -> asyncio.Future[bytes]:
        """The digest of the whole file, now or later; closes `file`. Raises `TooManyDigests`.

        The future fails with OSError when the file cannot be read, or was truncated. Who waits for it
        must shield it: others may wait, too.
        """
        key = path, file.etag
        making = self._making.get(key)
        if making is not None:
            file.close()
            return making
        if len(self._making) >= WAITING_MAX:
            file.close()
            raise TooManyDigests
        loop = asyncio.get_running_loop()
        making = loop.run_in_executor(self._executor, self._digest, file, still_there)
        self._making[key] = making

        def made(done: asyncio.Future[bytes]) -> None:
            del self._making[key]
            if not done.cancelled() and done.exception() is None:
                while len(self._made) >= KEPT_MAX:
                    del self._made[next(iter(self._made))]
                self._made[key] = done.result()

        making.add_done_callback(made)
        return making

    def _digest(self, file: OpenFile, still_there: Callable[[], bool]) -> bytes:
        try:
            total = hashlib.sha256()
            piece = bytearray(STEP_BYTES)
            view = memoryview(piece)
            position = 0
            while position < file.readable:
                size = min(STEP_BYTES, file.readable - position)
                if self._stop.wait(self._pace.take(size)):
                    raise OSError("the broker closes")
                count = os.preadv(file.descriptor, [view[:size]], position)
                if count == 0:
                    raise OSError("the file has become shorter")
                total.update(view[:count])
                os.posix_fadvise(file.descriptor, position, count, os.POSIX_FADV_DONTNEED)
                position += count
            if not still_there():
                raise OSError("the log was truncated meanwhile")
            return total.digest()
        finally:
            file.close()
