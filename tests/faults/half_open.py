"""Connections that never get to the point, next to a client that does: `half_open.py [--connections 5000]`.

A broker and a name server that take TLS and plain requests get connections of three kinds: nothing at all, a ClientHello
that stops in the middle, a plain frame that promises 16 MiB; some of the last two go on with a byte a second. A healthy
client sends and pulls before and meanwhile, and new ones come by TLS. Afterwards they have seen no failure and no long
wait compared with the times before, memory has grown by no more than `GROWTH_MIB_MAX`, the servers have closed all of
those connections within their limits, and no file descriptor is left over.
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
from pathlib import Path

from brokerset_rig import stack, wire
from brokerset_rig.process_memory import anonymous_mib
from brokerset_runtime.tls.arrivals import ARRIVALS_MAX
from brokerset_runtime.tls.authority import Authority

TOPIC = "healthy"
CLUSTER_INFO = 106
BASE_CALLS = 1_000
GROWTH_MIB_MAX = 64
"""Of a process, at its highest: 5,000 connections of about 6 KiB each, 1,000 of them in a handshake, twice over."""

P99_FACTOR_MAX = 10.0
P99_SECONDS_FLOOR = 0.05
"""What p99 may always be: two processors serve two servers, the attacker and the client."""

ARRIVING_SECONDS_MAX = 2.0
DESCRIPTORS_SPARE = 8
CLOSED_SECONDS_MAX = 75.0
"""After the last was opened: `frame_seconds_max` of the servers is 60, `HANDSHAKE_SECONDS_MAX` 10."""

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
KINDS = {"silent": b"", "half hello": HELLO[: len(HELLO) // 2], "huge frame": HUGE}


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
    """New clients of both servers, by TLS: that many wait in a handshake must not keep out who ends it."""

    def __init__(self, servers: tuple[stack.Server, stack.Server], authority: Path) -> None:
        self._broker, self._namesrv = servers
        self._authority = authority
        self._due = 0.0
        self.seconds: list[float] = []

    def call(self) -> None:
        """A client of each server, ten times a second at most. Raises like `Healthy.call`."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 0.1
        for server in (self._broker, self._namesrv):
            before = time.monotonic()
            with SecureClient(server.port, self._authority) as client:
                if server is self._namesrv:
                    code = client.call(CLUSTER_INFO, {}).code
                else:
                    code = client.call(wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), b"new").code
            assert code == 0, f"{server.name} answers {code} to a new client"
            self.seconds.append(time.monotonic() - before)


class Attack:
    """Connections to one server, opened a few at a time, of which some trickle."""

    def __init__(self, server: stack.Server, count: int) -> None:
        self.server = server
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
            kind = list(KINDS)[self.opened % len(KINDS)]
            connection = socket.create_connection(("127.0.0.1", self.server.port), 10)
            self._send(connection, KINDS[kind])
            connection.setblocking(False)
            self._open.register(connection, selectors.EVENT_READ)
            rest = {"half hello": HELLO[len(HELLO) // 2 : -1], "huge frame": bytes(1_000)}.get(kind, b"")
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
    )
    return file


def run(count: int, folder: Path) -> list[str]:
    """Attack both servers with `count` connections each; returns what is wrong."""
    ports = stack.free_ports(2, below=2)
    file = str(certificates(folder))
    namesrv = stack.our_namesrv(folder, ports[0])
    namesrv.command += ["--tlsConfigFile", file]
    settings = {"tlsConfigFile": file, "mappedFileSizeCommitLog": str(64 * 1024 * 1024)}
    with namesrv, stack.our_broker(folder, ports[1], namesrv.address, settings) as broker:
        healthy = Healthy(broker.port)
        for _ in range(BASE_CALLS):
            healthy.call()
        base = healthy.take_p99()
        servers = (broker, namesrv)
        arriving = Arriving(servers, folder / "authority.pem")
        arriving.call()
        before = {server.name: (anonymous_mib(server.pid), descriptors(server.pid)) for server in servers}
        attacks = [Attack(server, count) for server in servers]
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
        with wire.Client(namesrv.port) as client:
            if client.call(CLUSTER_INFO, {}).code != 0:
                problems.append("the name server does not answer")
        healthy.close()
        for server in servers:
            left = descriptors(server.pid) - before[server.name][1]
            if left > DESCRIPTORS_SPARE:
                problems.append(f"{server.name} has {left} more descriptors than before")
    if any("Traceback" in log.read_text(errors="replace") for log in folder.glob("*.log")):
        problems.append(f"an unexpected exception: see the logs in {folder}")
    return problems


def besiege(
    healthy: Healthy, arriving: Arriving, attacks: list[Attack], before: dict[str, tuple[float, int]]
) -> list[str]:
    """Open all, go on until the servers have closed all, or for as long as their limits allow."""
    problems: list[str] = []
    growth = dict.fromkeys(before, 0.0)
    most = dict.fromkeys(before, 0)

    def step(more: Callable[[Attack], object]) -> None:
        for attack in attacks:
            more(attack)
            attack.trickle()
        healthy.call()
        arriving.call()
        for attack in attacks:
            name, pid = attack.server.name, attack.server.pid
            growth[name] = max(growth[name], anonymous_mib(pid) - before[name][0])
            most[name] = max(most[name], descriptors(pid) - before[name][1])

    while any(attack.opened < attack.count for attack in attacks):
        step(Attack.open_some)
    deadline = time.monotonic() + CLOSED_SECONDS_MAX
    while any(attack.remaining for attack in attacks) and time.monotonic() < deadline:
        step(lambda attack: None)
        time.sleep(0.01)
    for attack in attacks:
        name = attack.server.name
        print(
            f"{name}: {attack.opened} opened, at most {most[name]} open at once, {attack.remaining} left; "
            f"at most {growth[name]:.1f} MiB more memory"
        )
        if attack.remaining:
            problems.append(
                f"{name} has not closed {attack.remaining} connections in {CLOSED_SECONDS_MAX:g} s"
            )
        if growth[name] > GROWTH_MIB_MAX:
            problems.append(f"{name} took {growth[name]:.1f} MiB more")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=5_000, help="to each of the two servers")
    options = parser.parse_args()
    needed, (soft, _) = options.connections * 2 + 100, resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        parser.error(f"{needed} descriptors are needed, {soft} allowed: raise them (ulimit -n {needed})")
    print(f"half open: {options.connections} connections to each server, {ARRIVALS_MAX} may wait", flush=True)
    with stack.Workspace("half-open") as folder:
        problems = run(options.connections, folder)
        if problems:
            print(*problems, sep="\n")
            raise SystemExit(1)
    print("all closed, nothing left over, the healthy client undisturbed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
