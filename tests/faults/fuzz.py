"""Mutated frames against a live broker and name server: `fuzz.py [--frames 1000000] [--seed N]`.

Two kinds are mixed: readable frames with odd fields and bodies, which reach the handlers, and frames with flipped, cut, stretched and spliced
bytes, which mostly end their connection. A healthy client sends and pulls all the time. Afterwards both processes still run, answer, have not
grown, have logged no unexpected exception, and the healthy client has seen no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import select
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from brokerset_rig import mutations, stack, wire
from brokerset_rig.process_memory import anonymous_mib

READABLE_MAX = 60
"""Readable frames of one burst; at the end of most comes one with spoilt bytes."""

SERVED_SHARE = 0.9
"""How many of the frames are made from requests that the server knows."""

UNKNOWN_REQUEST = 3
GROWTH_MIB_MAX = 48
HEALTHY_SECONDS_MAX = 5.0
HEALTHY_TOPIC = "healthy"
ANSWER = re.compile(rb'\{"code":(-?\d+),"extFields"')


class Share:
    """One server's part of the frames, sent by a thread of its own."""

    def __init__(self, server: stack.Server, count: int, seed: int) -> None:
        self.server = server
        self.count = count
        self.sent = 0
        self.answers: Counter[int] = Counter()
        self.connections = 0
        self._source = random.Random(seed)
        self._all = mutations.requests()
        self._served: list[mutations.Request] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with wire.Client(self.server.port) as client:
            for request in self._all:
                if client.call(request.code, request.ext, request.body).code != UNKNOWN_REQUEST:
                    self._served.append(request)
        while self.sent < self.count:
            with socket.create_connection(("127.0.0.1", self.server.port), 10) as connection:
                self.connections += 1
                with contextlib.suppress(
                    OSError
                ):  # closed by the server, as it should be after bytes that it cannot read
                    self._use(connection)

    def _use(self, connection: socket.socket) -> None:
        """Bursts on one connection, each read frame by frame, until bytes spoil it."""
        source = self._source
        for _ in range(20):
            frames = [
                mutations.mutate_fields(source.choice(self._some()), source, self._some())
                for _ in range(source.randrange(READABLE_MAX))
            ]
            goes_on = True
            if source.random() < 0.7 or not frames:
                spoilt, goes_on = mutations.mutate_bytes(mutations.plain(source.choice(self._some())), source)
                frames.append(spoilt)
            self.sent += len(frames)
            connection.sendall(b"".join(frames))
            if not goes_on:
                break
            while select.select([connection], [], [], 0.002)[0]:
                self._read(connection)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(20)
        while True:
            self._read(connection)

    def _some(self) -> list[mutations.Request]:
        """Mostly what this server knows."""
        return self._served if self._source.random() < SERVED_SHARE else self._all

    def _read(self, connection: socket.socket) -> None:
        data = connection.recv(1 << 18)
        if not data:
            raise ConnectionError
        self.answers.update(int(code) for code in ANSWER.findall(data))


class Healthy(threading.Thread):
    """A well-behaved client next to all that."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.stop = threading.Event()
        self.rounds = 0
        self.slowest = 0.0
        self.problems: list[str] = []

    def run(self) -> None:
        try:
            with wire.Client(self.port) as client:
                while not self.stop.is_set():
                    before = time.monotonic()
                    body = f"healthy {self.rounds}".encode()
                    sent = client.call(
                        wire.SEND_V2, wire.send_ext(HEALTHY_TOPIC, 0, "WAIT\x01true\x02"), body
                    )
                    if sent.code != 0:
                        self.problems.append(f"send answers {sent.code} {sent.remark}")
                        return
                    got = client.call(
                        wire.PULL,
                        wire.pull_ext(
                            HEALTHY_TOPIC, int(sent.ext["queueId"]), int(sent.ext["queueOffset"]), count=1
                        ),
                    )
                    if got.code != 0 or next(wire.records(got.body)).body != body:
                        self.problems.append(f"pull of what was just sent answers {got.code} {got.remark}")
                        return
                    self.rounds += 1
                    self.slowest = max(self.slowest, time.monotonic() - before)
                    self.stop.wait(0.005)
        except (OSError, ValueError) as error:
            self.problems.append(f"healthy client failed: {error!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"fuzz: {options.frames} frames, seed {options.seed}", flush=True)
    settings = {"mappedFileSizeCommitLog": str(64 * 1024 * 1024), "mappedFileSizeConsumeQueue": "6000", "enableLmq": "true", "enableMultiDispatch": "true", "maxHashSlotNum": "10000",
                "maxIndexNum": "40000", "recallMessageEnable": "true"}  # fmt: skip
    with stack.Workspace("fuzz") as folder:
        ports = stack.free_ports(2, below=2)
        with (
            stack.our_namesrv(folder, ports[0]) as namesrv,
            stack.our_broker(folder, ports[1], namesrv.address, settings) as broker,
        ):
            problems = attack(folder, broker, namesrv, options.frames, options.seed)
        if problems:
            print(*problems, sep="\n")
            raise SystemExit(1)
    print("no crash, no growth, healthy clients undisturbed")
    return 0


def attack(folder: Path, broker: stack.Server, namesrv: stack.Server, frames: int, seed: int) -> list[str]:
    """Send everything, look after the servers meanwhile; returns what is wrong."""
    healthy = Healthy(broker.port)
    healthy.start()
    shares = [Share(broker, frames * 3 // 4, seed), Share(namesrv, frames // 4, seed + 1)]
    memory: dict[str, float] = {}
    for share in shares:
        share.thread.start()
    shown = 0
    while any(share.thread.is_alive() for share in shares):
        shares[0].thread.join(0.5)
        done = sum(share.sent for share in shares)
        if not memory and done > frames // 4:
            memory = {share.server.name: anonymous_mib(share.server.pid) for share in shares}
        if done - shown >= frames // 10:
            shown = done
            print(f"{done} frames, {healthy.rounds} healthy rounds", flush=True)
    healthy.stop.set()
    healthy.join(20)
    problems = list(healthy.problems)
    for share in shares:
        now = anonymous_mib(share.server.pid)
        grown = now - memory.get(share.server.name, now)
        told = ", ".join(f"{code}: {count}" for code, count in share.answers.most_common(8))
        print(
            f"{share.server.name}: {share.sent} frames on {share.connections} connections; answers by code {told}; "
            f"{now:.0f} MiB anonymous memory, grown by {grown:.1f} MiB"
        )
        if share.sent < share.count:
            problems.append(f"{share.server.name}: only {share.sent} of {share.count} frames could be sent")
        if grown > GROWTH_MIB_MAX:
            problems.append(f"{share.server.name} has grown by {grown:.1f} MiB")
    with wire.Client(namesrv.port) as client:
        answer = client.call(106, {})
        if answer.code != 0:
            problems.append(f"name server answers {answer.code} {answer.remark}")
    if healthy.rounds < 10:
        problems.append(f"the healthy client got through {healthy.rounds} rounds only")
    if healthy.slowest > HEALTHY_SECONDS_MAX:
        problems.append(f"the healthy client once waited {healthy.slowest:.1f} s")
    tracebacks = sum(path.read_text(errors="replace").count("Traceback") for path in folder.glob("*.log"))
    print(
        f"{healthy.rounds} healthy rounds, slowest {healthy.slowest * 1000:.0f} ms, {tracebacks} tracebacks in logs"
    )
    if tracebacks:
        problems.append(f"{tracebacks} requests ended in an unexpected exception; see the logs")
    return problems


if __name__ == "__main__":
    sys.exit(main())
