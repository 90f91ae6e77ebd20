"""Results that wait for the driver: on its disk, so that its memory does not grow with what is ready."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

Place = tuple[int, int]
"""First byte and size."""


class Shelf:
    """Values in a file without a name, which is empty again when the last one was taken."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="brokerset-results-", buffering=0)  # noqa: SIM115  # see close
        self._end = self._here = 0

    def put(self, value: Any) -> Place:
        """Keep a value; OSError if the disk is full."""
        data = value if isinstance(value, bytes) else pickle.dumps(value)
        start = self._end
        while self._end < start + len(data):
            self._end += os.pwrite(self._file.fileno(), data[self._end - start :], self._end)
        self._here += 1
        return start, len(data)

    def take(self, place: Place) -> Any:
        """The value that was put there; only once."""
        start, size = place
        value = pickle.loads(os.pread(self._file.fileno(), size, start))
        self._here -= 1
        if not self._here:
            self._file.truncate(0)
            self._end = 0
        return value

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class Inbox:
    """What tasks hand over, in the order in which they end; each task counts once, however often it ran."""

    def __init__(self, tasks: int) -> None:
        self._changed = threading.Condition()
        self._seen = bytearray(tasks)
        self._shelf, self._places = Shelf(), deque[Place]()
        self._ended = self._closed = False

    def put(self, number: int, packed: bytes) -> None:
        """The results of a task, pickled. Never waits, because Spark's scheduler does meanwhile."""
        with self._changed:
            if not self._closed and not self._seen[number]:
                self._places.append(self._shelf.put(packed))
                self._seen[number] = True
                self._changed.notify()

    def end(self) -> None:
        """No task runs any more."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def taken(self) -> Iterator[Any]:
        """The results of each task, until `end`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._places or self._ended)
                if not self._places:
                    return
                found = self._shelf.take(self._places.popleft())
            yield found

    @property
    def missing(self) -> int:
        """Tasks that have handed over nothing."""
        return len(self._seen) - sum(self._seen)

    def close(self) -> None:
        """What comes from now on is dropped."""
        with self._changed:
            self._closed = True
            self._shelf.close()
