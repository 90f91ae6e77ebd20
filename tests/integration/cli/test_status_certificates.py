"""`brokerset status --watch` while certificates are replaced, next to a name server; both are processes."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from brokerset_rig import stack
from brokerset_rig.certificates import Certificates
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE

SECONDS_MAX = 30.0


class Views:
    """What the command writes, one view a line, for as long as it runs."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._found: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        self._found.extend(json.loads(line) for line in stream)

    def wait(self, count: int) -> dict[str, Any]:
        """The view that is written when `count` more were begun and written from now on."""
        wanted = len(self._found) + count
        wait_until(lambda: len(self._found) > wanted or not self._thread.is_alive())  # one was under way
        assert len(self._found) > wanted, "the command has ended"
        return self._found[-1]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def shows_certificate_of(port: int, authority: Path) -> bool:
    """Whether who listens there has a certificate of this authority in force."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            context.wrap_socket(plain, server_hostname="127.0.0.1").close()
    except ssl.SSLError:
        return False
    return True


def test_a_watch_goes_on_when_the_authority_changes(tmp_path: Path) -> None:
    """The next views come by connections that trust the new authority, and the old one no more."""
    certificates = Certificates(tmp_path / "certificates", "old")
    file = certificates.config("server")
    namesrv = stack.our_namesrv(tmp_path, stack.free_port())
    namesrv.command += ["--tlsConfigFile", str(file)]
    command = [
        sys.executable,
        "-m",
        "brokerset_cli.main",
        "status",
        "--watch",
        "--json",
        "--namesrv",
        namesrv.address,
    ]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: str(file)}
    with namesrv, subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as watch:
        try:
            assert watch.stdout is not None
            views = Views(watch.stdout)
            before = views.wait(0)

            certificates.renew_authority("new")
            certificates.issue("server")
            wait_until(lambda: shows_certificate_of(namesrv.port, certificates.folder / "authority.pem"))
            after = views.wait(1)
        finally:
            watch.terminate()

    assert "knows no broker" in before["problems"][0]
    assert after == before
