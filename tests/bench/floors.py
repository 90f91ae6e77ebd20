"""What this machine gives without any broker: records synced to the disk, and bytes over loopback into a file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

RECORD = b"x" * 1024
FILE_BYTES = 64 << 20
CHUNK = 1 << 20


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


def copied_mib_per_second(folder: Path, size: int) -> float:
    """A file in the page cache, sent by another process with sendfile and written to a file here, in MiB a second."""
    source, target = folder / "copy-source", folder / "copy-target"
    source.write_bytes(b"")
    with source.open("ab") as stream:
        for _ in range(0, size, CHUNK):
            stream.write(os.urandom(CHUNK))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        sender = subprocess.Popen([sys.executable, "-c", SENDER, str(source), port])
        peer, _ = listener.accept()
        buffer = memoryview(bytearray(CHUNK))
        begun, received = time.monotonic(), 0
        with peer, target.open("wb", buffering=0) as stream:
            while count := peer.recv_into(buffer):
                stream.write(buffer[:count])
                received += count
        took = time.monotonic() - begun
    sender.wait()
    for path in (source, target):
        path.unlink()
    return received / took / (1 << 20)
