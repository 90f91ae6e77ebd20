"""Connections that never get to the point, next to clients that do: `half_open.py [--connections 5000]`.

The remoting, HTTP and HA ports of a broker, a name server, and the port and Raft port of a controller, which all take
TLS and plain requests, get connections of three kinds: nothing at all, a ClientHello that stops in the middle, a plain
request that does; some of the last two go on with a byte a second. A healthy client sends and pulls before and
meanwhile, and new ones come by TLS. Afterwards they have seen no failure and no long wait compared with the times
before, memory has grown by no more than `GROWTH_MIB_MAX` for each port, the servers have closed all of those
connections within their limits, and no file descriptor is left over.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from brokerset_protocol.ha_packets import SlaveHandshake, encode_slave_handshake
from brokerset_raft import frames
from brokerset_rig import stack, wire
from brokerset_rig.process_memory import anonymous_mib
from brokerset_runtime.tls.arrivals import ARRIVALS_MAX
from brokerset_runtime.tls.authority import Authority

TOPIC = "healthy"
CLUSTER_INFO = 106
CONTROLLER_METADATA = 1005
BASE_CALLS = 1_000
GROWTH_MIB_MAX = 64
"""Of a process for each port, at its highest: 5,000 connections of about 6 KiB each, 1,000 of them in a handshake, twice over."""

P99_FACTOR_MAX = 10.0
P99_SECONDS_FLOOR = 0.05
"""What p99 may always be: two processors serve two servers, the attacker and the client."""

ARRIVING_SECONDS_MAX = 2.0
DESCRIPTORS_SPARE = 8
CLOSED_SECONDS_MAX = 75.0
"""After the last was opened: `frame_seconds_max` of the servers is 60, `HANDSHAKE_SECONDS_MAX` 10; less at HA and Raft."""

HTTP_CLOSED_SECONDS_MAX = 140.0
"""`wait_seconds_max` of HTTP ports is 120."""

READY_SECONDS_MAX = 60.0
"""Until the broker is elected and takes messages."""

PORTS = 6
OPEN_MAX = 3_000
"""Connections that a port has at once: 1,000 before the end of their handshake, plain ones, and those not yet seen to end."""

TRICKLING = 50
"""Connections of each trickling kind and server: enough to be there at each tick of a limit."""


def client_hello() -> bytes:
    """The first bytes of a real client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


HELLO = client_hello()
HUGE = (16 * 1024 * 1024 - 4).to_bytes(4, "big") + b"\x00\x00\x10\x00{"
HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: "
RAFT_HELLO = frames.encode(frames.Hello(frames.PROTOCOL_VERSION, "x" * 200, 1, 2))
SLAVE_HELLO = encode_slave_handshake(SlaveHandshake(7))


@dataclass(frozen=True, slots=True)
class Target:
    """One port of a server, and what to say there without getting to the point."""

    name: str
    server: stack.Server
    port: int
    half: bytes = HUGE
    """The begin of a plain request."""

    trickle: bytes = bytes(1_000)
    """How it goes on, a byte a second."""

    closed_seconds_max: float = CLOSED_SECONDS_MAX


class Healthy:
    """A client that sends a message and pulls it, and notes how long each time took."""

    def __init__(self, port: int) -> None:
        self._client = wire.Client(port)
        self.seconds: list[float] = []

    def call(self) -> None:
        """Once. Raises `AssertionError` for a wrong answer, `OSError` if there is none within ten seconds."""
        before = time.monotonic()
        body = f"healthy {len(self.seconds)}".encode()
        sent = self._client.call(wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), body)
        assert sent.code == 0, f"send answers {sent.code} {sent.remark}"
        place = wire.pull_ext(TOPIC, int(sent.ext["queueId"]), int(sent.ext["queueOffset"]), count=1)
        got = self._client.call(wire.PULL, place)
        assert got.code == 0, f"pull answers {got.code} {got.remark}"
        assert next(wire.records(got.body)).body == body
        self.seconds.append(time.monotonic() - before)

    def take_p99(self) -> float:
        """Of the calls since the last time, in seconds."""
        ordered = sorted(self.seconds)
        self.seconds = []
        return ordered[len(ordered) * 99 // 100]

    def close(self) -> None:
        self._client.socket.close()


class SecureClient(wire.Client):
    """A client that has just come by TLS, and believes the authority in `file`."""

    def __init__(self, port: int, file: Path) -> None:
        self._context = ssl.create_default_context(cafile=str(file))
        super().__init__(port)

    def _connected(self, port: int) -> socket.socket:
        return self._context.wrap_socket(super()._connected(port), server_hostname="127.0.0.1")


class Arriving:
    """New clients of all ports for clients, by TLS: that many wait in a handshake must not keep out who ends it."""

    def __init__(self, targets: list[Target], authority: Path) -> None:
        self._targets = targets
        self._authority = authority
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._due = 0.0
        self.seconds: list[float] = []

    def call(self) -> None:
        """A client of each, ten times a second at most. Raises like `Healthy.call`."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 0.1
        for target in self._targets:
            before = time.monotonic()
            if target.name == "broker http":
                answer: object = self._healthz(target.port)
                good = answer == b"HTTP/1.0 200 OK"
            else:
                with SecureClient(target.port, self._authority) as client:
                    answer = client.call(*QUERIES[target.name]).code
                good = answer == 0
            assert good, f"{target.name} answers {answer!r} to a new client"
            self.seconds.append(time.monotonic() - before)

    def _healthz(self, port: int) -> bytes:
        plain = socket.create_connection(("127.0.0.1", port), 10)
        with self._tls.wrap_socket(plain, server_hostname="127.0.0.1") as probe:
            probe.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            return probe.makefile("rb").readline().strip()


QUERIES = {
    "broker": (wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), b"new"),
    "namesrv": (CLUSTER_INFO, {}, b""),
    "controller": (CONTROLLER_METADATA, {}, b""),
}
"""What new clients ask."""


class Attack:
    """Connections to one port, opened a few at a time, of which some trickle."""

    def __init__(self, target: Target, count: int) -> None:
        self.target = target
        self._kinds = {"silent": b"", "half hello": HELLO[: len(HELLO) // 2], "half request": target.half}
        self.opened = 0
        self.lost = 0
        self.count = count
        self._open = selectors.DefaultSelector()
        self._trickling: dict[socket.socket, bytes] = {}
        self._next_drop = 0.0

    @property
    def remaining(self) -> int:
        """How many the server has not closed."""
        return len(self._open.get_map())

    def open_some(self) -> bool:
        """Twenty more of each kind in turn; False: all were opened."""
        for _ in range(min(20, self.count - self.opened)):
            kind = list(self._kinds)[self.opened % len(self._kinds)]
            connection = socket.create_connection(("127.0.0.1", self.target.port), 10)
            self._send(connection, self._kinds[kind])
            connection.setblocking(False)
            self._open.register(connection, selectors.EVENT_READ)
            rest = {"half hello": HELLO[len(HELLO) // 2 : -1], "half request": self.target.trickle}.get(
                kind, b""
            )
            if rest and len(self._trickling) < TRICKLING * 2:
                self._trickling[connection] = rest
            self.opened += 1
        return self.opened < self.count

    def trickle(self) -> None:
        """One byte a second on those that trickle; take leave of those that the server has closed."""
        for key, _ in self._open.select(0):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            with suppress(OSError):
                if connection.recv(4096):  # an alert before the end
                    continue
            self._open.unregister(connection)
            self._trickling.pop(connection, None)
            connection.close()
        if time.monotonic() >= self._next_drop:
            self._next_drop = time.monotonic() + 1.0
            for connection, rest in list(self._trickling.items()):
                self._send(connection, rest[:1])
                self._trickling[connection] = rest[1:]

    def _send(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.sendall(data)
        except OSError:
            self.lost += 1  # closed meanwhile, and seen by the next `trickle`

    def close(self) -> None:
        for key in list(self._open.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._open.close()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def certificates(folder: Path) -> Path:
    """A file of TLS settings with a certificate for this machine; plain requests are served, too."""
    authority = Authority.make("half open")
    (folder / "authority.pem").write_bytes(authority.certificate)
    issued = authority.issue("server", ["127.0.0.1"])
    (folder / "server.pem").write_bytes(issued.certificate)
    (folder / "server.key").write_bytes(issued.key)
    file = folder / "tls.properties"
    file.write_text(
        "tls.server.mode=permissive\ntls.server.certPath=server.pem\ntls.server.keyPath=server.key\n"
        "tls.members.trustCertPath=authority.pem\n"
    )
    return file


def run(count: int, folder: Path) -> list[str]:
    """Attack all ports with `count` connections each; returns what is wrong."""
    ports = stack.free_ports(5, below=2)
    file = str(certificates(folder))
    namesrv = stack.our_namesrv(folder, ports[0])
    namesrv.command += ["--tlsConfigFile", file]
    controllers = stack.our_controllers(folder, [ports[2]], [ports[3]], {"tlsConfigFile": file})
    settings = {
        "tlsConfigFile": file,
        "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
        "httpPort": str(ports[4]),
        "enableControllerMode": "true",
        "controllerAddr": controllers.addresses,
    }
    with namesrv, controllers, stack.our_broker(folder, ports[1], namesrv.address, settings) as broker:
        (controller,) = controllers.servers
        targets = [
            Target("broker", broker, broker.port),
            Target("namesrv", namesrv, namesrv.port),
            Target("controller", controller, controller.port),
            Target("broker http", broker, ports[4], HEAD, b"x" * 1_000, HTTP_CLOSED_SECONDS_MAX),
            Target("broker ha", broker, broker.port + 1, SLAVE_HELLO[:3], SLAVE_HELLO[3:-1]),
            Target("controller raft", controller, controller.port - 1, RAFT_HELLO[:20], RAFT_HELLO[20:-1]),
        ]
        healthy = elected(broker)
        for _ in range(BASE_CALLS):
            healthy.call()
        base = healthy.take_p99()
        servers = (broker, namesrv, controller)
        arriving = Arriving(targets[:4], folder / "authority.pem")
        arriving.call()
        before = {server.name: (anonymous_mib(server.pid), descriptors(server.pid)) for server in servers}
        attacks = [Attack(target, count) for target in targets]
        try:
            problems = besiege(healthy, arriving, attacks, before)
        finally:
            for attack in attacks:
                attack.close()
        p99 = healthy.take_p99()
        print(f"healthy client: p99 {base * 1000:.1f} ms before, {p99 * 1000:.1f} ms under attack")
        slowest = max(arriving.seconds)
        print(f"{len(arriving.seconds)} new clients by TLS, the slowest served in {slowest * 1000:.0f} ms")
        if slowest > ARRIVING_SECONDS_MAX:
            problems.append(f"a new client waited {slowest:.1f} s")
        if p99 > max(P99_SECONDS_FLOOR, P99_FACTOR_MAX * base):
            problems.append(f"the healthy client's p99 went from {base:.4f} s to {p99:.4f} s")
        for target in (targets[1], targets[2]):
            with wire.Client(target.port) as client:
                if client.call(*QUERIES[target.name]).code != 0:
                    problems.append(f"{target.name} does not answer")
        healthy.close()
        for server in servers:
            left = descriptors(server.pid) - before[server.name][1]
            if left > DESCRIPTORS_SPARE:
                problems.append(f"{server.name} has {left} more descriptors than before")
    if any("Traceback" in log.read_text(errors="replace") for log in folder.rglob("*.log")):
        problems.append(f"an unexpected exception: see the logs in {folder}")
    return problems


def elected(broker: stack.Server) -> Healthy:
    """A client that the broker serves, as soon as it is master."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        healthy = Healthy(broker.port)
        try:
            healthy.call()
        except (AssertionError, OSError):
            healthy.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            healthy.seconds.clear()
            return healthy


def besiege(
    healthy: Healthy, arriving: Arriving, attacks: list[Attack], before: dict[str, tuple[float, int]]
) -> list[str]:
    """Open all, go on until the servers have closed all, or for as long as their limits allow."""
    problems: list[str] = []
    growth = dict.fromkeys(before, 0.0)
    most = dict.fromkeys(before, 0)
    pids = {attack.target.server.name: attack.target.server.pid for attack in attacks}

    def step(more: Callable[[Attack], object]) -> None:
        for attack in attacks:
            more(attack)
            attack.trickle()
        healthy.call()
        arriving.call()
        for name, pid in pids.items():
            growth[name] = max(growth[name], anonymous_mib(pid) - before[name][0])
            most[name] = max(most[name], descriptors(pid) - before[name][1])

    begun = time.monotonic()
    while any(attack.opened < attack.count for attack in attacks):
        step(Attack.open_some)
    opened = time.monotonic()
    waiting = attacks
    while waiting:
        step(lambda attack: None)
        passed = time.monotonic() - opened
        for attack in [each for each in waiting if not each.remaining]:
            print(f"{attack.target.name}: {attack.opened} opened, the last closed after {passed:.0f} s")
        waiting = [each for each in waiting if each.remaining]
        for attack in [each for each in waiting if passed > each.target.closed_seconds_max]:
            waiting.remove(attack)
            problems.append(
                f"{attack.target.name} has not closed {attack.remaining} connections"
                f" in {attack.target.closed_seconds_max:g} s"
            )
        time.sleep(0.01)
    print(f"all opened in {opened - begun:.0f} s")
    for name in pids:
        allowed = GROWTH_MIB_MAX * sum(attack.target.server.name == name for attack in attacks)
        print(f"{name}: at most {most[name]} open at once, {growth[name]:.1f} MiB more memory")
        if growth[name] > allowed:
            problems.append(f"{name} took {growth[name]:.1f} MiB more, {allowed} are allowed")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5_000, help="to each port")
    options = parser.parse_args()
    needed, (soft, _) = (
        min(options.connections, OPEN_MAX) * PORTS + 100,
        resource.getrlimit(resource.RLIMIT_NOFILE),
    )
    if soft < needed:
        parser.error(f"{needed} descriptors are needed, {soft} allowed: raise them (ulimit -n {needed})")
    print(f"half open: {options.connections} connections to each port, {ARRIVALS_MAX} may wait", flush=True)
    with stack.Workspace("half-open") as folder:
        problems = run(options.connections, folder)
        if problems:
            print(*problems, sep="\n")
            raise SystemExit(1)
    print("all closed, nothing left over, the healthy client undisturbed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
