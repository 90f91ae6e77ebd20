"""Ordered subjects beside RocketMQ's orderly consumer (Java broker, Java client), in one run on one machine.

`ordered.py [--size small|full] [--only ours|java] [--out FILE]` prints a table. Two consumer processes of one group
handle messages of many keys while a third process sends. Exit status 1 if messages of a key were handled in another
order than they were sent, or not at all.

* sends and handled messages a second with 1, 8 and 1,024 keys
* from sending to handling at a steady rate
* one key among 1,000 that is never handled: how many messages of the others are, with and without it
* takeover: the longest time in which messages of a key were not handled, after a consumer was killed, hung (SIGSTOP),
  ended in order, or joined
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from brokerset_rig import stack
from brokerset_rig.measuring import arguments, makes, markdown, ratio, shown, spread

ordered_servers: Any = import_module("ordered_servers")  # next to this file, in no package
Servers = Any

PARTITIONS = 8
CONSUMERS = 2
STEADY_KEYS, STEADY_RATE = 64, 400
POISONED_KEYS, POISONED_RATE, POISON = 1_000, 500, "7"
WORK_MS = 1
START_SECONDS, END_SECONDS = 40.0, 20.0

SECONDS = {
    "small": {"load": 5, "steady": 8, "takeover": 12},
    "full": {"load": 15, "steady": 20, "takeover": 30},
}
TAKEOVERS = ("kill", "hang", "leave", "join")
JAVA_HANG_SECONDS = 150
"""A Java broker drops the connection of a client that is silent for 120 s, and its locks after 60 s."""


@dataclass
class Consumer:
    """A consumer process; its lines are read as they come."""

    process: subprocess.Popen[str]
    handled: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Key, sequence, sent and handled (nanoseconds of the machine's monotonic clock)."""

    started: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("H "):
                _, key, sequence, sent, handled = line.split()
                self.handled.append((key, int(sequence), int(sent), int(handled)))
            elif line.startswith("started"):
                self.started.set()


@contextmanager
def consumers(servers: Servers, topic: str, count: int, **options: object) -> Iterator[list[Consumer]]:
    """Consumer processes of one group, killed at the end."""
    found: list[Consumer] = []
    try:
        for _ in range(count):
            found.append(begin_consumer(servers, topic, **options))
        for each in found:
            assert each.started.wait(START_SECONDS), "a consumer did not start"
        yield found
    finally:
        for each in found:
            with suppress(ProcessLookupError):
                os.kill(each.process.pid, signal.SIGKILL)
            each.process.wait()


def begin_consumer(servers: Servers, topic: str, **options: object) -> Consumer:
    consumer = Consumer(servers.spawn("consume", topic=topic, group=f"{topic}-group", **options))
    threading.Thread(target=consumer.read, daemon=True).start()
    return consumer


def produce(servers: Servers, topic: str, **options: object) -> dict[str, Any]:
    """Send until the time is over; what the producer says."""
    process = servers.spawn("produce", topic=topic, **options)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def until_handled(running: list[Consumer], count: int, seconds: float = END_SECONDS) -> int:
    """Wait until so many different messages were handled; how many were."""
    deadline = time.monotonic() + seconds
    while True:
        seen = len({(key, number) for each in running for key, number, _, _ in list(each.handled)})
        if seen >= count or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


def in_order(running: list[Consumer]) -> bool:
    """Whether the first handlings of each key are in the order of sending."""
    first: dict[str, dict[int, int]] = defaultdict(dict)
    for each in running:
        for key, number, _, handled in each.handled:
            known = first[key].get(number)
            first[key][number] = handled if known is None else min(known, handled)
    return all(
        [number for number, _ in sorted(times.items(), key=lambda item: (item[1], item[0]))] == sorted(times)
        for times in first.values()
    )


def load(servers: Servers, keys: int, seconds: int) -> dict[str, Any]:
    """As fast as it goes."""
    topic = servers.topic(PARTITIONS)
    with consumers(servers, topic, CONSUMERS) as running:
        sent = produce(servers, topic, keys=keys, seconds=seconds, rate=0)
        seen = until_handled(running, sent["sent"], 60.0)
        times = [handled for each in running for _, _, _, handled in each.handled]
        took = (max(times) - min(times)) / 1e9 if len(times) > 1 else float("nan")
        return {
            "sendsPerSecond": sent["perSecond"],
            "handledPerSecond": round(len(times) / took, 1),
            "failed": sent["failed"],
            "ok": seen >= sent["sent"] > 0 and in_order(running),
        }


def steady(servers: Servers, seconds: int) -> dict[str, Any]:
    """From sending to handling."""
    topic = servers.topic(PARTITIONS)
    with consumers(servers, topic, CONSUMERS) as running:
        produce(servers, topic, keys=STEADY_KEYS, seconds=2, rate=STEADY_RATE)  # everybody is warm then
        until_handled(running, 2 * STEADY_RATE - STEADY_RATE // 10)
        warm = [len(each.handled) for each in running]
        sent = produce(servers, topic, keys=STEADY_KEYS, seconds=seconds, rate=STEADY_RATE)
        time.sleep(2.0)
        found = [
            (handled - sent_at) / 1e9
            for each, skipped in zip(running, warm, strict=True)
            for _, _, sent_at, handled in each.handled[skipped:]
        ]
        return spread(found) | {"ok": len(found) >= sent["sent"]}


def poisoned(servers: Servers, seconds: int) -> dict[str, Any]:
    """Handled messages of other keys while one is never handled, as a share of those without it."""
    shares = []
    for poison in ("", POISON):
        topic = servers.topic(PARTITIONS)
        with consumers(servers, topic, CONSUMERS, workMs=WORK_MS, poison=poison) as running:
            sent = produce(servers, topic, keys=POISONED_KEYS, seconds=seconds, rate=POISONED_RATE)
            time.sleep(2.0)
            others = {
                (key, number) for each in running for key, number, _, _ in each.handled if key != POISON
            }
            shares.append(len(others) / (sent["sent"] * (POISONED_KEYS - 1) / POISONED_KEYS))
    return {"others": round(shares[1] / shares[0], 4), "ok": shares[0] > 0.99}


def takeover(servers: Servers, how: str, seconds: int) -> dict[str, Any]:
    """The longest time in which a key had no message handled, from the fault on."""
    topic = servers.topic(PARTITIONS)
    with consumers(servers, topic, CONSUMERS) as running:
        sender = servers.spawn("produce", topic=topic, keys=STEADY_KEYS, seconds=seconds, rate=STEADY_RATE)
        time.sleep(4.0)
        fault_at = time.monotonic_ns()
        if how == "join":
            running.append(begin_consumer(servers, topic))
        else:
            victim = running[0].process.pid
            os.kill(victim, {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "leave": signal.SIGTERM}[how])
        out, _ = sender.communicate()
        sent = json.loads(out.strip().splitlines()[-1])
        seen = until_handled(running, sent["sent"])
        open_end = time.monotonic_ns() if seen < sent["sent"] else None
        gaps = [gap for times in by_key(running).values() for gap in gaps_after(times, fault_at, open_end)]
        return {
            "longestMs": round(max(gaps, default=0) / 1e6, 1),
            "middleMs": round(statistics.median(gaps) / 1e6, 1) if gaps else None,
            "failed": sent["failed"],
            "ok": seen >= sent["sent"] > 0 and in_order(running),
        }


def by_key(running: list[Consumer]) -> dict[str, list[int]]:
    times: dict[str, list[int]] = defaultdict(list)
    for each in running:
        for key, _, _, handled in each.handled:
            times[key].append(handled)
    return {key: sorted(found) for key, found in times.items()}


def gaps_after(times: list[int], moment: int, open_end: int | None) -> list[int]:
    """The longest pause between two handlings of a key, of those that end after a moment.

    While messages are not handled, the pause since the last one counts, too.
    """
    ends = [*times[1:], *([open_end] if open_end is not None else [])]
    pauses = [after - before for before, after in zip(times, ends, strict=False) if after > moment]
    return [max(pauses)] if pauses else []


def measure(who: str, size: str) -> dict[str, Any]:
    """Everything about one make."""
    seconds = SECONDS[size]
    begin: Callable[[Path], Any] = (
        ordered_servers.java_servers if who == "java" else ordered_servers.our_servers
    )
    found: dict[str, Any] = {}
    with stack.Workspace("bench-ordered") as folder, begin(folder) as servers:
        for keys in (1, 8, 1_024):
            found[f"load-{keys}"] = load(servers, keys, seconds["load"])
            print(who, f"load-{keys}", found[f"load-{keys}"], file=sys.stderr, flush=True)
        found["steady"] = steady(servers, seconds["steady"])
        print(who, "steady", found["steady"], file=sys.stderr, flush=True)
        found["poisoned"] = poisoned(servers, seconds["steady"])
        print(who, "poisoned", found["poisoned"], file=sys.stderr, flush=True)
        for how in TAKEOVERS:
            long = JAVA_HANG_SECONDS if who == "java" and how == "hang" else servers.takeover_seconds
            found[how] = takeover(servers, how, max(seconds["takeover"], long))
            print(who, how, found[how], file=sys.stderr, flush=True)
    return found


ROWS = (
    *((f"sends, {keys:,} keys", f"load-{keys}", "sendsPerSecond", "/s") for keys in (1, 8, 1_024)),
    *((f"handled, {keys:,} keys", f"load-{keys}", "handledPerSecond", "/s") for keys in (1, 8, 1_024)),
    ("sending to handling, p50", "steady", "p50ms", "ms"),
    ("… p99", "steady", "p99ms", "ms"),
    ("handled of 999 keys beside one that is not, share", "poisoned", "others", ""),
    ("consumer killed: longest pause of a key", "kill", "longestMs", "ms"),
    ("consumer hung: longest pause", "hang", "longestMs", "ms"),
    ("consumer ended in order: longest pause", "leave", "longestMs", "ms"),
    ("consumer joined: longest pause", "join", "longestMs", "ms"),
)


def table(results: dict[str, Any]) -> str:
    rows = []
    for label, entry, key, unit in ROWS:
        java = results.get("java", {}).get(entry, {}).get(key)
        ours = results.get("ours", {}).get(entry, {}).get(key)
        rows.append((label, shown(java, unit), shown(ours, unit), ratio(ours, java)))
    return markdown(("what", "Java", "ours", "ours / Java"), rows)


def main() -> int:
    options = arguments(__doc__, "ordered.json").parse_args()
    results = {who: measure(who, options.size) for who in makes(options)}
    options.out.write_text(json.dumps(results, indent=1))
    print(table(results))
    wrong = [
        f"{who} {name}" for who, found in results.items() for name, each in found.items() if not each["ok"]
    ]
    if wrong:
        print("wrong, or not everything was handled in time:", ", ".join(wrong), file=sys.stderr)
    return 1 if any(name.startswith("ours") for name in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
