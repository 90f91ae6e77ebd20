"""Part of a file to a socket by `sendfile`, in a thread: neither disk nor peer holds up the event loop."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final

from brokerset_broker.outside.store_stream.pace import Pace

STEP_BYTES: Final = 256 * 1024
"""Bytes that are booked and sent at once; at the default rate 200 such steps a second."""

STALL_SECONDS_MAX: Final = 30.0
"""Longest time that a peer may take nothing."""

_POLL_MS: Final = 250


class SendingEnded(Exception):
    """Not all was sent; the connection has to be closed, so that the peer sees that something is missing."""


def send_part(
    target: int,
    source: int,
    position: int,
    end: int,
    *,
    pace: Pace,
    stop: threading.Event,
    still_there: Callable[[int], bool],
    forget: bool,
) -> None:
    """Send positions from `position` to `end` of an open file to a socket that does not block.

    `still_there(position)` is asked after each step whether what lies below was still valid: a log may be cut
    while it is read. With `forget` the page cache need not keep the part. Raises `SendingEnded`.
    """
    poller = select.poll()
    poller.register(target, select.POLLOUT)
    while position < end:
        step_end = min(position + STEP_BYTES, end)
        if stop.wait(pace.take(step_end - position)):
            raise SendingEnded("the broker closes")
        begin = position
        heard = time.monotonic()
        while position < step_end:
            try:
                sent = os.sendfile(target, source, position, step_end - position)
            except BlockingIOError:
                poller.poll(_POLL_MS)
                if stop.is_set():
                    raise SendingEnded("the broker closes") from None
                if time.monotonic() - heard > STALL_SECONDS_MAX:
                    raise SendingEnded("the peer takes nothing") from None
                continue
            except OSError as error:
                raise SendingEnded(error.strerror or str(error)) from error
            if sent == 0:
                raise SendingEnded("the file has become shorter")
            position += sent
            heard = time.monotonic()
        if not still_there(position):
            raise SendingEnded("the log was truncated meanwhile")
        if forget:
            os.posix_fadvise(source, begin, position - begin, os.POSIX_FADV_DONTNEED)
