"""Many timer messages that wait: what they cost in memory, at a restart, and when they are due.

`pending_timers.py [--count 1000000] [--seconds 60] [--filled]`: one broker of ours gets so many messages, which are due
in so many seconds of time that begin when all are sent; with 0 seconds none is due. `--filled`: they are written into
its store before it starts. In between it is stopped and started again. Prints the figures as JSON. Exit status 1 if a message was lost, early, or came twice; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from brokerset_broker.requests.timer_puts import TimerPuts
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.timers.put_decision import PutAside
from brokerset_broker.timers.settings import TimerSettings
from brokerset_formats.properties import encode_properties
from brokerset_protocol.commands import Command
from brokerset_rig import stack
from brokerset_rig.local_servers import Client
from brokerset_rig.measuring import cpu_seconds, memory_mib
from brokerset_rig.store_reading import read_commit_log
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import Connection, connect
from brokerset_spec.broker_settings import BrokerSettings

TOPIC = "pending"
QUEUES = 4
WINDOW = 128
BODY = bytes(200)
SENDS_PER_SECOND_MIN = 3_000
"""So much is expected of the machine: it says when the first message may be due."""

PING_SECONDS = 0.002


async def opened(address: str) -> Connection:
    while True:
        try:
            return await connect(address)
        except OSError:
            await asyncio.sleep(0.02)


async def put(address: str, count: int, first_ms: int, spread_ms: int) -> float:
    """Send all; messages a second."""
    connection = await opened(address)
    await Client(connection).create_topic(TOPIC, queues=QUEUES)
    numbers = iter(range(count))
    began = time.monotonic()

    async def work() -> None:
        for number in numbers:
            due_ms = first_ms + number * 7919 % spread_ms
            text = encode_properties({"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{number:032d}"}).decode()
            ext = {
                "a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0", "g": "1",
                "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            answer = await connection.call(Command(310, ext, BODY, version=479), 60)
            assert answer.code == 0, answer.remark

    await asyncio.gather(*(work() for _ in range(WINDOW)))
    rate = count / (time.monotonic() - began)
    connection.close()
    await connection.wait_closed()
    return rate


async def fill(folder: Path, settings: dict[str, str], count: int, first_ms: int, spread_ms: int) -> None:
    """Write the store that a broker has after so many sends, and no timer yet."""
    found = BrokerSettings(
        store_path_root_dir=folder,
        mapped_file_size_commit_log=int(settings["mappedFileSizeCommitLog"]),
        message_index_enable=False,
    )
    store, timers = MessageStore(found, SystemClock()), TimerSettings()
    store.load()
    store.start()
    puts = TimerPuts(lambda: timers, lambda _: 0, store.now_ms)
    for number in range(count):
        properties = {
            "TIMER_DELIVER_MS": str(first_ms + number * 7919 % spread_ms),
            "UNIQ_KEY": f"{number:032d}",
        }
        place = puts.put_aside(TOPIC, number % QUEUES, properties)
        assert isinstance(place, PutAside), place
        store.append(
            place.topic, 0, BODY, encode_properties(properties), flag=0, sys_flag=0, born_timestamp=1,
            born_host=bytes(8),
        )  # fmt: skip
        if number % 1000 == 0:
            await asyncio.sleep(0)
    await store.close()


async def until_taken(address: str) -> None:
    connection = await opened(address)
    while True:
        table = json.loads((await connection.call(Command(28), 60)).body)["table"]
        if table["timerOffsetBehind"] == "0":
            break
        await asyncio.sleep(0.1)
    connection.close()
    await connection.wait_closed()


async def ping(address: str, until: float | None, count: int) -> tuple[float, float, int]:
    """Ask how far the topic is, again and again: the longest and the 99th percentile of the answers in ms, and how
    many messages it had. Ends at `until` on the monotonic clock, or when it has `count` messages."""
    connection = await opened(address)
    took: list[float] = []
    found = 0
    while (time.monotonic() < until) if until is not None else (found < count):
        before, found = time.monotonic(), 0
        for queue in range(QUEUES):
            answer = await connection.call(Command(30, {"topic": TOPIC, "queueId": str(queue)}), 60)
            found += int(answer.ext.get("offset", 0))
        took.append((time.monotonic() - before) * 1000 / QUEUES)
        await asyncio.sleep(PING_SECONDS)
    connection.close()
    await connection.wait_closed()
    took.sort()
    return took[-1], took[len(took) * 99 // 100], found


def opened_after(log: Path, lines_before: int) -> float | None:
    """Milliseconds from when the broker listened until timers were at work again."""
    times = {}
    for line in log.read_text().splitlines()[lines_before:]:
        entry = json.loads(line)
        times[entry["event"]] = datetime.fromisoformat(entry["timestamp"]).timestamp()
    found = times.get("timer messages are at work")
    return None if found is None else round((found - times["broker listens"]) * 1000)


def run(count: int, seconds: int, filled: bool) -> tuple[dict[str, Any], list[str]]:
    figures: dict[str, Any] = {"count": count, "seconds": seconds}
    with stack.Workspace("pending-timers") as folder:
        port = stack.free_port()
        settings = {"mappedFileSizeCommitLog": str(1 << 30), "messageIndexEnable": "false"}
        store, log = folder / "broker-0" / "store", folder / "broker.log"
        ahead_s = count / SENDS_PER_SECOND_MIN + 30 if seconds else 3_600
        first_ms, spread_ms = int((time.time() + ahead_s) * 1000), (seconds or 3_600) * 1000
        if filled:
            asyncio.run(fill(store, settings, count, first_ms, spread_ms))
        broker = stack.our_broker(folder, port, "", settings)
        broker.start()
        try:
            figures["memoryEmptyMib"] = memory_mib(broker.pid)
            cpu, began = cpu_seconds(broker.pid), time.monotonic()
            if not filled:
                rate = asyncio.run(put(broker.address, count, first_ms, spread_ms))
                figures["putsPerSecond"] = round(rate)
            asyncio.run(until_taken(broker.address))
            figures["takenInSeconds"] = round(time.monotonic() - began, 1)
            figures["takingCpuSeconds"] = round(cpu_seconds(broker.pid) - cpu, 1)
            if time.time() * 1000 > first_ms:
                return figures, ["this machine is too slow: messages were due before all were sent"]
            figures["memoryPendingMib"] = memory_mib(broker.pid)
            began = time.monotonic()
            broker.stop()
            figures["stopMs"] = round((time.monotonic() - began) * 1000)
            lines = len(log.read_text().splitlines())
            began = time.monotonic()
            broker = stack.our_broker(folder, port, "", settings).start()
            figures["startMs"] = round((time.monotonic() - began) * 1000)
            worst, p99, _ = asyncio.run(ping(broker.address, time.monotonic() + 5, count))
            figures["afterStartAnswerMs"] = {"max": round(worst, 1), "p99": round(p99, 2)}
            figures["wheelOpenMs"] = opened_after(log, lines)
            figures["memoryRestartedMib"] = memory_mib(broker.pid)
            if not seconds:
                return figures, []
            time.sleep(max(0.0, first_ms / 1000 - time.time()))
            cpu, began = cpu_seconds(broker.pid), time.monotonic()
            worst, p99, _ = asyncio.run(ping(broker.address, None, count))
            took = time.monotonic() - began
            figures["deliveredInSeconds"] = round(took, 1)
            figures["deliveryCpuSeconds"] = round(cpu_seconds(broker.pid) - cpu, 1)
            figures["whileDeliveringAnswerMs"] = {"max": round(worst, 1), "p99": round(p99, 2)}
            figures["memoryDeliveredMib"] = memory_mib(broker.pid)
        finally:
            broker.stop()
        problems, late = check(store, count, first_ms, spread_ms)
    figures["lateMs"] = late
    return figures, problems


def check(store: Path, count: int, first_ms: int, spread_ms: int) -> tuple[list[str], dict[str, int]]:
    """What is wrong with what was delivered; how late messages were."""
    seen, late, problems = bytearray(count), [], []
    for each in read_commit_log(store):
        record = each.record
        if record.topic != TOPIC:
            continue
        start = record.properties.index(b"UNIQ_KEY\x01") + 9
        number = int(record.properties[start : start + 32])
        seen[number] += 1
        late.append(record.store_timestamp - (first_ms + number * 7919 % spread_ms))
    if min(late, default=0) < 0:
        problems.append(f"early by {-min(late)} ms")
    problems += [f"{seen.count(0)} were lost"] if seen.count(0) else []
    problems += [f"{count - seen.count(0) - seen.count(1)} came twice"] if max(seen) > 1 else []
    late.sort()
    return problems, {"p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100], "max": late[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--filled", action="store_true")
    options = parser.parse_args()
    figures, problems = run(options.count, options.seconds, options.filled)
    print(json.dumps(figures | {"problems": problems}, indent=2))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
