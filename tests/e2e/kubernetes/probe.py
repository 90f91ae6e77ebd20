"""Connects to a Service again and again, and tells each change of the outcome; runs in a pod.

    python probe.py HOST PORT

Lines on standard output, until standard input ends: the time in milliseconds since 1970, and what a connection
that was begun then came to: `ok`, the name of an error, or `late`.
"""

from __future__ import annotations

import asyncio
import errno
import sys
import time
from typing import Final

PAUSE_SECONDS: Final = 0.01
CONNECT_SECONDS_MAX: Final = 0.25


async def outcome_of(host: str, port: int) -> str:
    """What becomes of one attempt."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return "late"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    writer.transport.abort()
    return "ok"


async def probe(host: str, port: int) -> None:
    """Ask until the input ends."""
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    address = str((await loop.getaddrinfo(host, port))[0][4][0])
    before = ""
    while not ended.done():
        began = time.time()
        outcome = await outcome_of(address, port)
        if outcome != before:
            print(round(began * 1000), outcome, flush=True)
            before = outcome
        await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(probe(sys.argv[1], int(sys.argv[2])))
