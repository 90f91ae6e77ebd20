"""Servers for interop runs, ours and Java's, each a process with a folder, a log and ports of its own."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "tests" / "peers"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 40.0
PORTS = (range(11_500, 15_000), range(61_000, 65_000))
"""Neither those that `brokerset up` takes when it may choose, nor those of outgoing connections."""

PORTS_BLOCK = 500
PORTS_FOLDER = Path("/tmp")
"""Of the lock that runs have in common, whatever TMPDIR each of them has."""

PORTS_EDGE = 4
"""Left free at both ends of a block: what servers open right next to the port they are given."""
_last_given = [0]


class StackError(Exception):
    """A server did not start or stop as it should; the message names its log."""


def free_ports(count: int, *, below: int = 2) -> list[int]:
    """`count` loopback ports that nobody listens on now, each with free ports around it: `below` right below, two above.

    A broker listens there, too: on the second one below, and for its slaves on the next one above.

    They lie outside the range from which the kernel takes ports for outgoing connections, so that none is lost meanwhile; in a
    block that no other run of this user takes from; and none is given again soon, so that who is stopped can come back.
    """
    block, after = _own_block(), _last_given
    found: list[int] = []
    for _ in range(0, len(block), below + 3):
        after[0] = (after[0] + below + 3) % len(block)
        port = block[after[0]]
        if all(_is_free(each) for each in range(port - below, port + 3)):
            found.append(port)
            if len(found) == count:
                return found
    raise StackError(f"no {count} free ports in {block}")


def free_port() -> int:
    """One port as `free_ports` finds them."""
    return free_ports(1)[0]


@cache
def _own_block() -> range:
    """The ports of this process: a lock, which the system gives back at its end, keeps others from them."""
    starts = [start for ports in PORTS for start in range(ports.start, ports.stop, PORTS_BLOCK)]
    blocks = [range(start, start + PORTS_BLOCK) for start in starts]
    random.SystemRandom().shuffle(blocks)
    path = PORTS_FOLDER / f"brokerset-test-ports-{os.getuid()}.lock"
    taken = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for block in blocks:
        with suppress(OSError):
            fcntl.lockf(taken, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, block.start)
            return range(block.start + PORTS_EDGE, block.stop - PORTS_EDGE)
    raise StackError(f"{len(blocks)} runs use all ports for tests: end some of them")


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

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> Server:
        """Begin and wait until the port is open."""
        return self.launch().ready()

    def launch(self) -> Server:
        """Begin, without waiting."""
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
        return self

    def ready(self) -> Server:
        """Wait until the port is open."""
        assert self._process is not None
        wait_port(self.port, self._process, self.log)
        return self

    def kill(self) -> None:
        """End the process as a crash would."""
        self.stop(signal.SIGKILL)

    def ended(self, seconds: float) -> bool:
        """Whether the process ends by itself within this time."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        return True

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


JAVA_IDLE = {"transactionMetricFlushInterval": "100", "timerFlushIntervalMs": "5000"}
"""Of these milliseconds the thread TransactionMetricsFlushService of 5.5.0 spends every second one in a busy loop (by default 3 s of 6),
and after the others the whole timer wheel is synced (by default each second): together most of a core for an idle broker."""


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
        **JAVA_IDLE,
        **(settings or {}),
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    env = {"PEERS_RUN": str(folder), "BROKER_HEAP": os.environ.get("BROKER_HEAP", "1g")}
    return Server("java-broker", [str(PEERS / "bin" / "broker"), str(conf)], port, folder, env)


def java_proxy(
    folder: Path, ports: Sequence[int], namesrv: str, settings: Mapping[str, str] | None = None
) -> Server:
    """Java's proxy in cluster mode: gRPC on the first port, remoting on the second one."""
    given = [f"{key}={value}" for key, value in (settings or {}).items()]
    command = [str(PEERS / "bin" / "proxy"), str(ports[0]), str(ports[1]), *given]
    return Server(
        "java-proxy", command, ports[0], folder, {"PEERS_RUN": str(folder), "NAMESRV_ADDR": namesrv}
    )


@dataclass(frozen=True, slots=True)
class Controllers:
    """Three controllers (or as many as asked for) and the name servers next to them. A context manager, as servers are."""

    servers: list[Server]
    others: list[Server]
    name_servers: str
    """Addresses, joined by semicolons."""

    @property
    def addresses(self) -> str:
        return ";".join(server.address for server in self.servers)

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self.servers]

    def __enter__(self) -> Controllers:
        every = [*self.servers, *self.others]
        for server in every:
            server.launch()
        for server in every:
            server.ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ending:
            for server in [*self.servers, *self.others]:
                if server.running:
                    ending.callback(server.kill)


CONTROLLER_GROUP = "peers-controller"
"""The group's name in the golden answers."""


def peers_text(ports: list[int]) -> str:
    """The list of controllers as both makes spell it."""
    return ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(ports))


def our_controllers(
    folder: Path, ports: list[int], name_server_ports: list[int], settings: Mapping[str, str] | None = None
) -> Controllers:
    """Our controllers with their name servers inside; the port below each of `ports` is the raft port."""
    servers = []
    for i, (port, name_server_port) in enumerate(zip(ports, name_server_ports, strict=True)):
        home = folder / f"controller-{i}"
        home.mkdir(parents=True, exist_ok=True)
        values = {
            "controllerDLegerGroup": CONTROLLER_GROUP,
            "controllerDLegerPeers": peers_text(ports),
            "controllerDLegerSelfId": f"n{i}",
            "controllerStorePath": str(home / "store"),
            "bindAddress": "127.0.0.1",
            "namesrvListenPort": str(name_server_port),
            "kvConfigPath": str(home / "kvConfig.json"),
            "configStorePath": str(home / "controller.properties"),
            **(settings or {}),
        }
        conf = home / "controller.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        command = [sys.executable, "-m", "brokerset_controller", "-c", str(conf)]
        servers.append(Server(f"controller-{i}", command, port, home))
    return Controllers(servers, [], ";".join(f"127.0.0.1:{port}" for port in name_server_ports))


def java_controllers(
    folder: Path, ports: list[int], name_server_ports: list[int], settings: Mapping[str, str] | None = None
) -> Controllers:
    """Java controllers (DLedger), and one name server of ours next to them on the first port."""
    given = [f"{key}={value}" for key, value in (settings or {}).items()]
    servers = [
        Server(f"java-controller-{i}",
               [str(PEERS / "bin" / "controller"), f"n{i}", peers_text(ports), str(folder / f"java-controller-{i}"),
                f"controllerDLegerGroup={CONTROLLER_GROUP}", *given],
               port, folder / f"java-controller-{i}", {"PEERS_RUN": str(folder)})
        for i, port in enumerate(ports)
    ]  # fmt: skip
    name_server = our_namesrv(folder / "namesrv", name_server_ports[0])
    return Controllers(servers, [name_server], name_server.address)


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
