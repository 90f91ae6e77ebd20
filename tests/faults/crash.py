"""`kill -9` in the middle of writing, many times: `crash.py [--runs 200] [--seed N]`.

A broker with SYNC_FLUSH takes messages from several pipelining writers and is killed at a random moment, then started again on the same
store. After every start, read from outside: each acknowledged message is there with its body at the queue offset that the answer
named, queues are dense, CRCs are right; keys of acknowledged messages are found through the index. Between some starts the harness itself damages
the unacknowledged end of the log: a torn tail, or garbage behind the last record.
"""

from __future__ import annotations

import argparse
import random
import signal
import struct
import sys
import threading
import time
from pathlib import Path

from brokerset_rig import stack, wire

QUEUES = 4
WRITERS = 3
WINDOW = 16
SEGMENT_BYTES = 4 * 1024 * 1024
TOPIC = "crash"


class Ledger:
    """What the broker acknowledged, kept by somebody who cannot be killed with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acked: list[dict[int, bytes]] = [{} for _ in range(QUEUES)]
        self.keys: list[str] = []
        self.count = 0

    def ack(self, queue_id: int, queue_offset: int, body: bytes, key: str) -> None:
        with self.lock:
            known = self.acked[queue_id].setdefault(queue_offset, body)
            if known != body:
                raise AssertionError(f"queue {queue_id} offset {queue_offset} was given twice")
            self.keys.append(key)
            self.count += 1


def write(port: int, writer: int, run: int, ledger: Ledger, seed: int) -> None:
    """Pipeline sends until the connection breaks."""
    source = random.Random(seed)
    waiting: dict[int, tuple[bytes, str]] = {}
    try:
        with wire.Client(port) as client:
            opaque = 0
            while True:
                while len(waiting) < WINDOW:
                    opaque += 1
                    body = f"{run}/{writer}/{opaque}/".encode() + source.randbytes(source.randrange(0, 2000))
                    key = f"K{run}-{writer}-{opaque}"
                    waiting[opaque] = (body, key)
                    ext = wire.send_ext(TOPIC, opaque % QUEUES, f"KEYS\x01{key}\x02WAIT\x01true\x02")
                    client.socket.sendall(wire.frame(wire.SEND_V2, ext, body, opaque))
                answer = client.read()
                body, key = waiting.pop(answer.opaque)
                if answer.code == 0:
                    ledger.ack(int(answer.ext["queueId"]), int(answer.ext["queueOffset"]), body, key)
    except OSError:
        return


def verify(port: int, ledger: Ledger, verified: list[int], source: random.Random) -> list[str]:
    """Read what came since the last time and compare; returns what is wrong."""
    problems: list[str] = []
    with wire.Client(port) as client:
        for queue_id in range(QUEUES):
            acked = ledger.acked[queue_id]
            at = verified[queue_id]
            end = int(client.call(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)}).ext["offset"])
            if acked and max(acked) >= end:
                problems.append(f"queue {queue_id} ends at {end}, but {max(acked)} was acknowledged")
            while at < end:
                answer = client.call(wire.PULL, wire.pull_ext(TOPIC, queue_id, at))
                if answer.code != 0:
                    problems.append(
                        f"queue {queue_id}: pull at {at} of {end} answers {answer.code} {answer.remark}"
                    )
                    break
                for stored in wire.records(answer.body):
                    if stored.queue_offset != at:
                        problems.append(f"queue {queue_id}: {stored.queue_offset} follows {at - 1}")
                    if not stored.crc_ok:
                        problems.append(f"queue {queue_id} offset {at}: CRC is wrong")
                    if at in acked and acked[at] != stored.body:
                        problems.append(f"queue {queue_id} offset {at}: another body than was acknowledged")
                    at = stored.queue_offset + 1
            verified[queue_id] = at
        for key in source.sample(ledger.keys, min(20, len(ledger.keys))) + ledger.keys[-5:]:
            ext = {
                "topic": TOPIC,
                "key": key,
                "maxNum": "8",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            found = client.call(wire.QUERY_MESSAGE, ext)
            marks = (
                [f"KEYS\x01{key}\x02" in stored.properties for stored in wire.records(found.body)]
                if found.code == 0
                else []
            )
            if not any(marks):
                problems.append(f"the index does not know the key {key} of an acknowledged message")
    return problems


def damage(store: Path, source: random.Random) -> str:
    """Spoil the end of the log behind the last whole record, as a power cut does."""
    segments = sorted((store / "commitlog").iterdir())
    begun = [path for path in segments if wire.begins_with_record(path)]
    # The next file is made ahead of need; now and then that one is spoilt instead.
    path = begun[-1] if begun and source.random() < 0.8 else segments[-1]
    position = 0
    data = bytearray(path.read_bytes())
    while position + 8 <= len(data):
        size, magic = struct.unpack_from(">II", data, position)
        if magic != wire.MAGIC_V1 or position + size > len(data):
            break
        position += size
    room = min(len(data) - position, 500)
    if room < 100:
        return "no damage: the segment is full"
    kind = source.choice(["garbage", "torn record"])
    if kind == "garbage":
        data[position : position + room] = source.randbytes(room)
    else:
        data[position : position + 90] = struct.pack(">II", 300, wire.MAGIC_V1) + source.randbytes(82)
    path.write_bytes(data)
    return f"{kind} behind position {position} of {path.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"crash: {options.runs} runs, seed {options.seed}", flush=True)
    source = random.Random(options.seed)
    ledger, verified = Ledger(), [0] * QUEUES
    with stack.Workspace("crash") as folder:
        (port,) = stack.free_ports(1, below=2)
        settings = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": str(SEGMENT_BYTES), "maxMessageSize": str(1024 * 1024), "mappedFileSizeConsumeQueue": "60000",
                    "maxHashSlotNum": "10000", "maxIndexNum": "40000"}  # fmt: skip
        broker = stack.our_broker(folder, port, "", settings)
        note = ""
        for run in range(options.runs + 1):
            before = time.monotonic()
            broker.start()
            started_ms = (time.monotonic() - before) * 1000
            if run == 0:
                with wire.Client(port) as client:
                    ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
                           "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
                    assert client.call(wire.CREATE_TOPIC, ext).code == 0
            problems = verify(port, ledger, verified, source)
            if problems:
                print(
                    f"run {run} (after {note}): {len(problems)} problems",
                    *problems[:10],
                    sep="\n  ",
                    flush=True,
                )
                broker.stop()
                raise SystemExit(1)
            if run % 10 == 0:
                print(
                    f"run {run}: {ledger.count} acknowledged, all there; last start {started_ms:.0f} ms",
                    flush=True,
                )
            if run == options.runs:
                break
            writers = [
                threading.Thread(target=write, args=(port, i, run, ledger, source.getrandbits(32)))
                for i in range(WRITERS)
            ]
            for thread in writers:
                thread.start()
            time.sleep(source.uniform(0.02, 0.5))  # the random moment of the crash is what is tested
            broker.stop(signal.SIGKILL)
            for thread in writers:
                thread.join()
            note = "kill"
            if source.random() < 0.3:
                note = damage(folder / "broker-0" / "store", source)
        broker.stop()
    print(
        f"{options.runs} kills, {ledger.count} acknowledged messages, none missing, queues dense, index agrees"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
