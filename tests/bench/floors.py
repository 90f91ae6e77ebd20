"""What this machine gives without any broker: records synced to the disk, and bytes over loopback into a file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench import priority

RECORD = b"x" * 1024
FILE_BYTES = 64 << 20
CHUNK = 1 << 20
ENDED_SECONDS_MAX = 60.0


def synced_per_second(folder: Path, records: int, seconds: float) -> float:
    """Records of 1 KB a second, `records` of them written and then synced at a time, into a file that is there."""
    path = folder / "fsync-floor"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        os.fsync(descriptor)
        block = RECORD * records
        done, begun = 0, time.monotonic()
        while (now := time.monotonic()) - begun < seconds:
            os.pwrite(descriptor, block, done * len(block) % FILE_BYTES)
            os.fdatasync(descriptor)
            done += 1
        return done * records / (now - begun)
    finally:
        os.close(descriptor)
        path.unlink()


SENDER = """
import os, socket, sys
source = os.open(sys.argv[1], os.O_RDONLY)
peer = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
position, size = 0, os.fstat(source).st_size
while position < size:
    position += os.sendfile(peer.fileno(), source, position, size - position)
"""

RECEIVER = f"""
import socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    peer, _ = listener.accept()
buffer = memoryview(bytearray({CHUNK}))
begun, received = time.monotonic(), 0
with peer, open(sys.argv[1], "wb", buffering=0) as target:
    while count := peer.recv_into(buffer):
        target.write(buffer[:count])
        received += count
print(received / (time.monotonic() - begun))
"""


def copied_mib_per_second(folder: Path, size: int) -> float:
    """A file in the page cache, sent with sendfile by one process and written to a file by another, in MiB a second.

    Both have the share of the processor that servers have, and nothing of the first file is left to be written.
    """
    source, target = folder / "copy-source", folder / "copy-target"
    with source.open("wb") as stream:
        for _ in range(0, size, CHUNK):
            stream.write(os.urandom(CHUNK))
        os.fsync(stream.fileno())
    with _raised(RECEIVER, target) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        with _raised(SENDER, source, port) as sender:
            rate = receiver.stdout.readline()
            if not rate or sender.wait(ENDED_SECONDS_MAX):
                raise ChildProcessError("the copy over loopback has failed")
    for path in (source, target):
        path.unlink()
    return float(rate) / (1 << 20)


@contextmanager
def _raised(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process with a program of ours, in a session as servers have it; it has ended afterwards."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    priority.raise_session(process.pid)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
