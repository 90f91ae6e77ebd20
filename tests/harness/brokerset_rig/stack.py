"""Servers for interop runs, ours and Java's, each a process with a folder, a log and ports of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "tests" / "peers"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 40.0
PORTS = range(15_000, 30_000)


class StackError(Exception):
    """A server did not start or stop as it should; the message names its log."""


def free_ports(count: int, *, below: int = 0) -> list[int]:
    """`count` loopback ports that nobody listens on now, each with `below` free ports right below it.

    They lie under the range from which the kernel takes ports for outgoing connections, so that none is lost meanwhile.
    """
    found: list[int] = []
    candidate = PORTS.start + (os.getpid() * 37 + time.monotonic_ns() // 1_000_000) % len(PORTS)
    for _ in range(len(PORTS)):
        candidate = PORTS.start + (candidate - PORTS.start + 17) % len(PORTS)
        if all(_is_free(port) for port in range(candidate - below, candidate + 3)):
            found.append(candidate)
            if len(found) == count:
                return found
    raise StackError(f"no {count} free ports in {PORTS}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something listens on `port`. Raises `StackError` with the end of the log otherwise."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    raise StackError(f"nothing listens on port {port} (exit {process.poll()}); end of {log}:\n{tail}")


class Server:
    """One server process. A context manager: leaves no process behind."""

    def __init__(
        self, name: str, command: list[str], port: int, folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = command
        self.port = port
        self.folder = folder
        self.log = folder / f"{name}.log"
        self.environment = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        wait_port(self.port, self._process, self.log)
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit status."""
        process = self._process
        if process is None:
            return 0
        process.send_signal(how)
        try:
            status = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise StackError(
                f"{self.name} did not end in {STOP_SECONDS_MAX} s after {how.name}; see {self.log}"
            ) from None
        self._process = None
        return status

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()


def our_namesrv(folder: Path, port: int) -> Server:
    command = [sys.executable, "-m", "brokerset_namesrv", "--listenPort", str(port), "--bindAddress", "127.0.0.1",
               "--httpPort", "0", "--kvConfigPath", str(folder / "namesrv" / "kvConfig.json")]  # fmt: skip
    return Server("namesrv", command, port, folder)


def our_broker(folder: Path, port: int, namesrv: str, settings: Mapping[str, str] | None = None) -> Server:
    store = folder / "broker-0" / "store"
    conf = folder / "broker.conf"
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "listenPort": str(port),
        "httpPort": "0",
        "namesrvAddr": namesrv,
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "storePathRootDir": str(store),
        "mappedFileSizeCommitLog": "268435456",
        **(settings or {}),
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return Server("broker", [sys.executable, "-m", "brokerset_broker", "-c", str(conf)], port, folder)


def java_namesrv(folder: Path, port: int) -> Server:
    return Server(
        "java-namesrv", [str(PEERS / "bin" / "namesrv"), str(port)], port, folder, {"PEERS_RUN": str(folder)}
    )


def java_broker(folder: Path, port: int, namesrv: str, settings: Mapping[str, str] | None = None) -> Server:
    """A Java broker on the same store folder that `our_broker` uses, so that one can follow the other."""
    store = folder / "broker-0" / "store"
    conf = folder / "java-broker.conf"
    store.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "listenPort": str(port),
        "namesrvAddr": namesrv,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "haListenPort": str(port + 1),
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        "mappedFileSizeCommitLog": "268435456",
        "mappedFileSizeTimerLog": "10485760",
        "enablePropertyFilter": "true",
        **(settings or {}),
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    env = {"PEERS_RUN": str(folder), "BROKER_HEAP": os.environ.get("BROKER_HEAP", "1g")}
    return Server("java-broker", [str(PEERS / "bin" / "broker"), str(conf)], port, folder, env)


class Workspace:
    """A temporary folder that is kept, and named, when what ran in it failed."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"brokerset-{name}-"))

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            print(f"kept {self.path}", flush=True)
