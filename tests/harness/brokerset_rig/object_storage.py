"""Object storage on loopback for tests: moto's S3 server as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from brokerset_rig.stack import free_port

_READY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """An S3 server with one bucket; the environment of this process leads clients to it."""

    endpoint: str
    bucket: str = "bucket"

    def url(self, path: str) -> str:
        """The URL of a place in the bucket, for pyarrow and for our jobs."""
        return f"s3://{self.bucket}/{path}"


@contextmanager
def object_storage() -> Iterator[ObjectStorage]:
    """A server that lives as long as the context. Credentials and endpoint go by environment variables, as users
    give them."""
    port = free_port()
    storage = ObjectStorage(f"http://127.0.0.1:{port}")
    given = {
        "AWS_ENDPOINT_URL": storage.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            _make_bucket(storage, server)
            yield storage
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            server.terminate()


def _make_bucket(storage: ObjectStorage, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _READY_SECONDS
    request = urllib.request.Request(f"{storage.endpoint}/{storage.bucket}", method="PUT")
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except OSError:
            assert server.poll() is None, "the S3 server ended"
            assert time.monotonic() < until, "the S3 server does not answer"
            time.sleep(0.05)
        else:
            return
