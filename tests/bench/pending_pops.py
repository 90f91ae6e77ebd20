"""Many popped messages that nobody has acked: what they cost in memory, and until a broker serves after a restart.

`pending_pops.py [--count 1000000] [--each 32] [--make ours|java]`: a broker gets so many messages, and a group pops all of
them, so many with each pop, for an hour. Then it is killed and started again, and one message more is sent: the
time counts until the group is given that one, by pops that are sent all the time. Memory is what the process has in
pages of no file; of a JVM, which keeps what it has freed, also what lives in its heap after a collection. Prints the
figures as JSON. Exit status 1 if a message was given out twice; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench import generator
from tests.bench.generator import QUEUES, Generator
from tests.bench.sides import HEAP, SIDES, await_first_send

from brokerset_rig import stack, stores, wire
from brokerset_rig.measuring import cpu_seconds, memory_mib

POP = 200050
HOUR_MS = 3_600_000
BODY = 100
SEND_BATCH = 32
CONSUMERS = 8
STARTED_SECONDS_MAX = 300.0
POP_PAUSE_SECONDS = 0.005
FOUND = 0
JCMD_SECONDS_MAX = 60.0
HEAP_USED = re.compile(r"used (\d+)K")


def broker(make: str, folder: Path, port: int, namesrv: str) -> stack.Server:
    """Not started yet; in its store is what it left there before."""
    settings = {"mappedFileSizeCommitLog": str(1 << 30), "popCheckPointsMax": "2000000"}
    if make == "java":
        os.environ.setdefault("BROKER_HEAP", HEAP)
        settings.pop("popCheckPointsMax")
        return stack.java_broker(folder, port, namesrv, settings)
    server = stack.our_broker(folder, port, namesrv, settings)
    server.environment.update(SIDES["native"].variables)
    return server


def anonymous_mib(server: stack.Server) -> float:
    """Pages of its process that are no pages of files."""
    return memory_mib(server.pid)["anonymous"]


def live_mib(make: str, server: stack.Server) -> float:
    """What is in use: of a JVM its heap after a full collection, else the same as `anonymous_mib`."""
    if make != "java":
        return anonymous_mib(server)
    for command in ("GC.run", "GC.heap_info"):
        done = subprocess.run(
            ["jcmd", str(server.pid), command], capture_output=True, text=True, timeout=JCMD_SECONDS_MAX
        )
    if done.returncode or not (used := HEAP_USED.search(done.stdout)):
        raise stack.StackError(f"jcmd {server.pid} {command}: {done.stdout[-300:]} {done.stderr[-300:]}")
    return int(used[1]) / 1024


def until_given(port: int, topic: str, group: str) -> tuple[int, float]:
    """Pop until something comes: how many messages that were, and the longest answer in ms."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": str(HOUR_MS),
           "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false"}  # fmt: skip
    deadline, worst = time.monotonic() + STARTED_SECONDS_MAX, 0.0
    while time.monotonic() < deadline:
        with suppress(OSError), wire.Client(port, 60) as client:
            while time.monotonic() < deadline:
                begun = time.monotonic()
                answer = client.call(POP, {**ext, "bornTime": str(time.time_ns() // 1_000_000)})
                worst = max(worst, (time.monotonic() - begun) * 1000)
                if answer.code == FOUND and answer.body:
                    named = answer.ext["msgOffsetInfo"].split(";")
                    return sum(len(item.split(" ")[2].split(",")) for item in named), worst
                time.sleep(POP_PAUSE_SECONDS)
        time.sleep(POP_PAUSE_SECONDS)
    raise stack.StackError(f"no pop was answered with a message in {STARTED_SECONDS_MAX:g} s")


def run(make: str, count: int, each: int) -> tuple[dict[str, Any], list[str]]:
    """The figures, and what is wrong."""
    load = Generator(stores.loadgen())
    figures: dict[str, Any] = {"make": make, "count": count, "each": each}
    with stack.Workspace("pending-pops") as folder:
        namesrv = stack.our_namesrv(folder, stack.free_port()).start()
        port = stack.free_ports(1, below=2)[0]
        server = broker(make, folder, port, namesrv.address).start()
        try:
            await_first_send(port)
            topic = generator.new_topic(port, "pending")
            count = -(-count // SEND_BATCH) * SEND_BATCH
            flags: dict[str, object] = {"size": BODY, "count": count, "window": 4, "batch": SEND_BATCH}
            load.answer(server.address, "send", topic, flags)
            generator.await_indexed(port, topic, count)
            figures["memorySentMib"] = round(anonymous_mib(server), 1)
            live = live_mib(make, server)
            cpu = cpu_seconds(server.pid)
            flags = {"conns": CONSUMERS, "acks": "none", "each": each, "invisible": HOUR_MS}
            popped = load.answer(server.address, "pop", topic, flags)
            figures["poppedPerSecond"] = popped["perSecond"]
            figures["popCpuUs"] = round((cpu_seconds(server.pid) - cpu) / popped["messages"] * 1e6, 2)
            grown = anonymous_mib(server) - figures["memorySentMib"]
            figures["memoryOutMib"] = round(anonymous_mib(server), 1)
            figures["bytesEachMessage"] = round(grown * (1 << 20) / count, 1)
            figures["bytesEachPop"] = round(grown * (1 << 20) / popped["pops"], 1)
            figures["memoryLiveMib"] = round(live_mib(make, server), 1)
            figures["liveBytesEachMessage"] = round((figures["memoryLiveMib"] - live) * (1 << 20) / count, 1)
            server.kill()
            begun = time.monotonic()
            server = broker(make, folder, port, namesrv.address).start()
            await_first_send(port)
            figures["startMs"] = round((time.monotonic() - begun) * 1000)
            load.answer(server.address, "send", topic, {"size": BODY, "count": 1, "window": 1, "queues": 1})
            given, worst = until_given(port, topic, popped["group"])
            figures["givenAfterMs"] = round((time.monotonic() - begun) * 1000)
            figures["longestPopMs"] = round(worst, 1)
            figures["memoryRestartedMib"] = round(anonymous_mib(server), 1)
        finally:
            server.stop()
            namesrv.stop()
    again = given - 1
    return figures, [f"{again} messages were given out again after the restart"] if again else []


def main() -> int:
    """Run it from a shell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=32)
    parser.add_argument("--make", choices=("ours", "java"), default="ours")
    options = parser.parse_args()
    figures, problems = run(options.make, options.count, options.each)
    print(json.dumps(figures | {"problems": problems, "queues": QUEUES}, indent=2))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
