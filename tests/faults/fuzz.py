"""Mutated frames against a live broker and name server: `fuzz.py [--frames 1000000] [--seed N]`.

Frames of every kind are flipped, cut, stretched and spliced and sent in bursts, while a healthy client sends and pulls all the time. Afterwards both
processes still run, answer, have not grown, and the healthy client has seen no failure.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from brokerset_rig import stack, wire

BURST = 100
GROWTH_MIB_MAX = 48
HEALTHY_SECONDS_MAX = 5.0
GOLDEN = Path(__file__).parents[1] / "peers" / "golden" / "wire"
BROKER_TOPIC, HEALTHY_TOPIC = "fuzz", "healthy"


def corpus() -> list[bytes]:
    """Valid frames: the requests of the golden answers, and the ones that clients send all the time."""
    frames = []
    for path in sorted(GOLDEN.glob("*.json")):
        request = json.loads(path.read_text())["request"]
        frames.append(wire.frame(request["code"], request["ext"] or {}, request["body"].encode()))
    topic, queue = BROKER_TOPIC, {"topic": BROKER_TOPIC, "queueId": "0"}
    item = (
        struct.pack(">iiiii", 2 * 16 + 8 + 5, 0, 0, 0, 5)
        + b"hello"
        + struct.pack(">h", 16)
        + b"WAIT\x01true\x02KEY\x01a\x02"
    )
    frames += [
        wire.frame(wire.SEND_V2, wire.send_ext(topic, 0, "UNIQ_KEY\x01AC11000100010001000100010001\x02TAGS\x01A\x02"), b"x" * 300),
        wire.frame(320, wire.send_ext(topic, 1, "WAIT\x01true\x02", batch=True), item * 3),
        wire.frame(wire.SEND_V2, wire.send_ext(topic, 0, "DELAY\x011\x02"), b"later"),
        wire.frame(wire.PULL, wire.pull_ext(topic, 0, 0)),
        wire.frame(wire.PULL, wire.pull_ext(topic, 0, 1 << 40, suspend_ms=1000)),
        wire.frame(36, {"offset": "0", "group": "g", "delayLevel": "0", "originMsgId": "x", "originTopic": topic}),
        wire.frame(15, {"consumerGroup": "g", **queue, "commitOffset": "1"}),
        wire.frame(38, {"consumerGroup": "g"}),
        wire.frame(35, {"clientID": "c", "producerGroup": "p", "consumerGroup": "g"}),
        wire.frame(33, {"offset": "0"}),
        wire.frame(34, {}, json.dumps({"clientID": "fuzz", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [
            {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
             "subscriptionDataSet": [{"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, "expressionType": "TAG"}]}]}).encode()),
        wire.frame(103, {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "127.0.0.1:2", "brokerId": "0"},
                   b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{}}}'),
        wire.frame(100, {"namespace": "n", "key": "k", "value": "v"}),
    ]  # fmt: skip
    binary = struct.pack(">hBhiii", 30, 0, 479, 5, 0, 0) + struct.pack(">i", 0)
    frames.append(struct.pack(">iI", 4 + len(binary), 1 << 24 | len(binary)) + binary)
    return frames


def mutate(data: bytes, source: random.Random) -> tuple[bytes, bool]:
    """A spoilt frame, and whether its length field is still right, so that others may follow it."""
    spoilt = bytearray(data)
    kind = source.randrange(8)
    if kind == 0:  # flips behind the length
        for _ in range(source.randrange(1, 6)):
            spoilt[source.randrange(4, len(spoilt))] ^= 1 << source.randrange(8)
    elif kind == 1:  # another value somewhere in the header
        at = source.randrange(8, len(spoilt))
        spoilt[at : at + source.randrange(1, 8)] = source.randbytes(source.randrange(0, 12))
    elif kind == 2:  # a piece doubled
        at = source.randrange(8, len(spoilt))
        piece = spoilt[at : at + source.randrange(1, 64)]
        spoilt[at:at] = piece * source.randrange(1, 20)
    elif kind == 3:  # a number replaced by an odd one
        odd = source.choice(
            [
                b"-1",
                b"9223372036854775808",
                b"2147483648",
                b"NaN",
                b"",
                b"1e9",
                b"null",
                b"[]",
                b"99999999999999999999",
            ]
        )
        digits = [i for i in range(8, len(spoilt)) if spoilt[i : i + 1].isdigit()]
        if digits:
            at = source.choice(digits)
            spoilt[at : at + 1] = odd
    elif kind == 4:  # cut
        del spoilt[source.randrange(8, len(spoilt)) :]
    elif kind == 5:  # another header length
        spoilt[4:8] = struct.pack(
            ">I", source.choice([0, 1, len(spoilt), 0xFFFFFF, 1 << 24, source.getrandbits(32)])
        )
    elif kind == 6:  # a lying frame length: whatever follows is swallowed or the connection is closed
        spoilt[:4] = struct.pack(
            ">I", source.choice([0, 3, 4, len(spoilt) + 50, 0x7FFFFFFF, 0xFFFFFFFF, 20 << 20])
        )
        return bytes(spoilt), False
    else:
        return source.randbytes(source.randrange(1, 400)), False
    spoilt[:4] = struct.pack(">I", len(spoilt) - 4)
    return bytes(spoilt), True


def fuzz(port: int, frames: list[bytes], count: int, seed: int, progress: list[int], slot: int) -> None:
    source = random.Random(seed)
    connection: socket.socket | None = None
    while progress[slot] < count:
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port), 10)
        burst, last = [], True
        for _ in range(BURST):
            spoilt, last = mutate(source.choice(frames), source)
            burst.append(spoilt)
            if not last:
                break
        progress[slot] += len(burst)
        try:
            connection.settimeout(10)
            connection.sendall(b"".join(burst))
            while select.select([connection], [], [], 0)[0]:
                if not connection.recv(1 << 18):
                    raise ConnectionError
            if not last:
                connection.close()
                connection = None
        except OSError:
            if connection is not None:
                connection.close()
            connection = None
    if connection is not None:
        connection.close()


class Healthy(threading.Thread):
    """A well-behaved client beside all that."""

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


def anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} is gone")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"fuzz: {options.frames} frames, seed {options.seed}", flush=True)
    frames = corpus()
    with stack.Workspace("fuzz") as folder:
        ports = stack.free_ports(2, below=2)
        with (
            stack.our_namesrv(folder, ports[0]) as namesrv,
            stack.our_broker(folder, ports[1], namesrv.address) as broker,
        ):
            healthy = Healthy(broker.port)
            healthy.start()
            progress = [0, 0]
            memory: dict[str, float] = {}
            shares = [(broker, options.frames * 3 // 4), (namesrv, options.frames // 4)]
            threads = [
                threading.Thread(
                    target=fuzz, args=(server.port, frames, count, options.seed + i, progress, i)
                )
                for i, (server, count) in enumerate(shares)
            ]
            for thread in threads:
                thread.start()
            shown = 0
            while any(thread.is_alive() for thread in threads):
                threads[0].join(0.5)
                done = sum(progress)
                if not memory and done > options.frames // 4:
                    memory = {server.name: anonymous_mib(server.pid) for server, _ in shares}
                if done - shown >= options.frames // 10:
                    shown = done
                    print(f"{done} frames, {healthy.rounds} healthy rounds", flush=True)
            healthy.stop.set()
            healthy.join(20)
            problems = list(healthy.problems)
            for server, _ in shares:
                grown = anonymous_mib(server.pid) - memory.get(server.name, 0.0)
                print(
                    f"{server.name}: {anonymous_mib(server.pid):.0f} MiB anonymous memory, grown by {grown:.1f} MiB"
                )
                if grown > GROWTH_MIB_MAX:
                    problems.append(f"{server.name} has grown by {grown:.1f} MiB")
            with wire.Client(namesrv.port) as client:
                answer = client.call(106, {})
                if answer.code != 0:
                    problems.append(f"name server answers {answer.code} {answer.remark}")
            if healthy.rounds < 10:
                problems.append(f"the healthy client got through {healthy.rounds} rounds only")
            if healthy.slowest > HEALTHY_SECONDS_MAX:
                problems.append(f"the healthy client once waited {healthy.slowest:.1f} s")
            tracebacks = sum(
                path.read_text(errors="replace").count("Traceback") for path in folder.glob("*.log")
            )
            print(
                f"{sum(progress)} frames sent, {healthy.rounds} healthy rounds, slowest {healthy.slowest * 1000:.0f} ms, {tracebacks} tracebacks in logs"
            )
            if tracebacks:
                problems.append(f"{tracebacks} requests ended in an unexpected exception; see the logs")
            if problems:
                print(*problems, sep="\n")
                raise SystemExit(1)
    print("no crash, no growth, healthy clients undisturbed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
