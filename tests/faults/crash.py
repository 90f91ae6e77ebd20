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
from brokerset_rig.acked_load import QUEUES, Ledger, create_topic, verify, write

WRITERS = 3
SEGMENT_BYTES = 4 * 1024 * 1024


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
                create_topic(port)
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
