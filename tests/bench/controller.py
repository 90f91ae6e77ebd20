"""Three controllers of ours and three of Java's, one after the other, under the same fake brokers: `controller.py [--size small|full]`.

Registrations, elections, the wait for one commit next to the disk's floor, memory, restart, and the loss of the leader (kill -9). Fake brokers are
raw connections that register, send heartbeats and ask for elections. Writes figures as JSON and prints a table. Exit status 1 only
if an answer was wrong; nothing is judged by time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from brokerset_rig import controllers as codes
from brokerset_rig import stack, wire
from brokerset_rig.controllers import CLUSTER, Panel, loads, until
from brokerset_rig.measuring import arguments, cpu_seconds, makes, markdown, memory_mib, ratio, shown, spread

ANSWER_SECONDS_MAX = 10.0
ENTRY_BYTES = 256
"""About what one event takes in a controller's log."""

REPLICAS = 3
TAKE_SNAPSHOT = 21004
KILL_PAUSE_SECONDS = 0.005
"""Between two tries after a kill; the resolution of that figure."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    groups: int
    elections: int
    commits: int
    kills: int
    kills_loaded: int
    restarts: int
    warm: int
    """Groups that are registered before anything is measured, for the compiler of the JVM."""

    clients: int = 32


SIZES = {
    ("ours", "small"): Size(1000, 1000, 300, 5, 2, 1, 20),
    ("java", "small"): Size(100, 200, 100, 2, 0, 0, 200),
    ("ours", "full"): Size(1000, 5000, 2000, 50, 10, 5, 20),
    ("java", "full"): Size(1000, 2000, 500, 5, 0, 3, 500),
}


class Wrong(Exception):
    """An answer that makes the figures worthless."""


class Line:
    """One connection of a fake broker, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._opaque = 0

    @classmethod
    async def open(cls, port: int) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> wire.Answer:
        self._opaque += 1
        self._writer.write(wire.frame(code, ext, body, self._opaque))
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                data = await self._reader.readexactly(size)
                length = int.from_bytes(data[:4], "big") & 0xFFFFFF
                header = json.loads(data[4 : 4 + length])
                if header["flag"] & 1 and header["opaque"] == self._opaque:
                    return wire.Answer(
                        header["code"],
                        self._opaque,
                        header.get("extFields") or {},
                        header.get("remark"),
                        data[4 + length :],
                    )

    async def sure(self, code: int, ext: dict[str, str], body: bytes = b"") -> wire.Answer:
        """An answer of code 0. Raises `Wrong`."""
        answer = await self.call(code, ext, body)
        if answer.code:
            raise Wrong(f"{code} with {ext} was answered {answer.code}: {answer.remark}")
        return answer

    async def close(self) -> None:
        self._writer.close()


def floor(appends: int) -> dict[str, float]:
    """One append and `fdatasync` after the other, of the size of one entry, on the disk of the temporary folder."""
    waits = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(appends):
            before = time.perf_counter()
            os.write(file.fileno(), b"x" * ENTRY_BYTES)
            os.fdatasync(file.fileno())
            waits.append(time.perf_counter() - before)
    return spread(waits)


def memory(servers: list[stack.Server]) -> dict[str, float]:
    """MiB, of the largest of the servers."""
    found = [memory_mib(server.pid) for server in servers]
    names = {"rssMiB": "resident", "anonMiB": "anonymous"}
    return {key: max(each[name] for each in found) for key, name in names.items()}


class Bench:
    """The figures of one make of controllers."""

    def __init__(self, group: stack.Controllers, size: Size, who: str) -> None:
        self.group = group
        self.size = size
        self.who = who
        self.panel = Panel(group.ports)
        self.address = ""
        self.measurements: dict[str, Any] = {}

    async def run(self) -> dict[str, Any]:
        async with AsyncExitStack() as ending:
            listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
            ending.push_async_callback(listener.wait_closed)
            ending.callback(listener.close)
            self.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            leader = await asyncio.to_thread(self.panel.serving, 60)
            self.measurements["idle"] = memory(self.group.servers)
            await self._register(leader, "warm", self.size.warm)
            await self._commits(leader)
            self.measurements["leader loss"] = await self._kills(self.size.kills, "lost")
            leader = await asyncio.to_thread(self.panel.serving, 60)
            self.measurements["registrations"] = await self._register(leader, "group", self.size.groups)
            self.measurements["loaded"] = memory(self.group.servers)
            await self._elections(leader)
            if self.who == "ours":
                found = await self._register(leader, "start", self.size.groups // 5, nonces=True)
                self.measurements["registrations with nonces"] = found
            if self.size.restarts:
                self.measurements["restart"] = await self._restarts()
            if self.size.kills_loaded:
                self.measurements["leader loss loaded"] = await self._kills(
                    self.size.kills_loaded, "lost-loaded"
                )
        return self.measurements

    async def _commits(self, leader: int) -> None:
        """One client, one commit at a time: a new group's first id (1013)."""
        line = await Line.open(leader)
        waits = []
        for number in range(self.size.commits):
            before = time.perf_counter()
            await line.sure(codes.APPLY_ID, self._application(f"commit-{number}", 1))
            waits.append(time.perf_counter() - before)
        await line.close()
        self.measurements["commit"] = spread(waits)
        self.measurements["floor"] = await asyncio.to_thread(floor, max(300, self.size.commits))
        over = self.measurements["commit"]["p50ms"] / self.measurements["floor"]["p50ms"]
        self.measurements["commit"]["floors"] = round(over, 1)

    def _application(self, name: str, broker_id: int) -> dict[str, str]:
        return {"clusterName": CLUSTER, "brokerName": name, "appliedBrokerId": str(broker_id),
                "registerCheckCode": f"{self.address};{broker_id}"}  # fmt: skip

    async def _register(
        self, leader: int, prefix: str, groups: int, *, nonces: bool = False
    ) -> dict[str, float]:
        """New brokers, three for each group: 1012, 1013, 1003; `nonces`: as our own brokers start, one commit more."""
        waits: list[float] = []
        names = [f"{prefix}-{number}" for number in range(groups)]

        async def client() -> None:
            line = await Line.open(leader)
            while names:
                name = names.pop()
                for _ in range(REPLICAS):
                    before = time.perf_counter()
                    ext = {"clusterName": CLUSTER, "brokerName": name}
                    answer = await line.sure(codes.NEXT_ID, ext)
                    broker_id = int(answer.ext["nextBrokerId"])
                    await line.sure(codes.APPLY_ID, self._application(name, broker_id))
                    start = (
                        {"nextNonce": f"{name}/{broker_id}", "logEpoch": "-1", "logOffset": "0"}
                        if nonces
                        else {}
                    )
                    await line.sure(
                        codes.REGISTER,
                        {
                            **ext,
                            **start,
                            "brokerId": str(broker_id),
                            "brokerAddress": self.address,
                            "invokeTime": "0",
                        },
                    )
                    waits.append(time.perf_counter() - before)
            await line.close()

        return await self._together(client, self.size.clients, waits)

    async def _elections(self, leader: int) -> None:
        """Designated elections that go to and fro between two replicas; the set is made whole again (1001) between them."""
        waits: list[float] = []
        left = [self.size.elections]
        groups = [f"group-{number}" for number in range(min(self.size.clients, self.size.groups))]
        beats = [await Line.open(port) for port in self.group.ports]
        for name in groups:
            for broker_id in (1, 2):
                for beat in beats:
                    await beat.sure(codes.HEARTBEAT, {
                        "clusterName": CLUSTER, "brokerName": name, "brokerAddr": self.address, "brokerId": str(broker_id),
                        "epoch": "0", "maxOffset": "0", "confirmOffset": "0", "heartbeatTimeoutMills": "3600000"})  # fmt: skip

        async def client() -> None:
            line = await Line.open(leader)
            name = groups.pop()
            master, epoch, set_epoch = await self._elect(line, name, 1, designate=False)
            while left[0] > 0:
                left[0] -= 1
                body = json.dumps({"syncStateSet": [1, 2], "syncStateSetEpoch": set_epoch}).encode()
                ext = {
                    "brokerName": name,
                    "masterBrokerId": str(master),
                    "masterEpoch": str(epoch),
                    "invokeTime": "0",
                }
                await line.sure(codes.ALTER_SYNC_SET, ext, body)
                before = time.perf_counter()
                wanted = 3 - master
                master, new_epoch, set_epoch = await self._elect(line, name, wanted, designate=True)
                waits.append(time.perf_counter() - before)
                if master != wanted or new_epoch <= epoch:
                    raise Wrong(
                        f"{name}: master {master} in epoch {new_epoch} instead of {wanted} above {epoch}"
                    )
                epoch = new_epoch
            await line.close()

        self.measurements["elections"] = await self._together(client, len(groups), waits)
        for beat in beats:
            await beat.close()

    async def _elect(self, line: Line, name: str, broker_id: int, *, designate: bool) -> tuple[int, int, int]:
        ext = {"clusterName": CLUSTER, "brokerName": name, "brokerId": str(broker_id),
               "designateElect": str(designate).lower(), "invokeTime": str(time.time_ns() // 1_000_000)}  # fmt: skip
        answer = await line.sure(codes.ELECT, ext)
        return (
            int(answer.ext["masterBrokerId"]),
            int(answer.ext["masterEpoch"]),
            int(answer.ext["syncStateSetEpoch"]),
        )

    async def _together(
        self, client: Callable[[], Coroutine[Any, Any, None]], count: int, waits: list[float]
    ) -> dict[str, float]:
        before, cpu = time.perf_counter(), self._cpu_seconds()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(client())
        seconds = time.perf_counter() - before
        return {
            "perSecond": round(len(waits) / seconds, 1),
            "clients": count,
            "serverCores": round((self._cpu_seconds() - cpu) / seconds, 2),
            **spread(waits),
        }

    def _cpu_seconds(self) -> float:
        return cpu_seconds(*(server.pid for server in self.group.servers))

    async def _restarts(self) -> dict[str, float]:
        """All three stopped and started: from the start to the first answer about a group, as one reads it before it elects."""
        waits = []
        for _ in range(self.size.restarts):
            if self.who == "ours":
                for port in self.group.ports:
                    line = await Line.open(port)
                    await line.sure(TAKE_SNAPSHOT, {})
                    await line.close()
            await asyncio.to_thread(self._stop_all)
            before = time.perf_counter()
            for server in self.group.servers:
                server.launch()
            ext = {"brokerName": "group-0"}
            answer = await asyncio.to_thread(self._patient, codes.REPLICA_INFO, ext)
            waits.append(time.perf_counter() - before)
            if answer.code or not loads(answer.body)["syncStateSet"]:
                raise Wrong(f"after the restart group-0 is {answer}")
        return spread(waits)

    def _patient(self, code: int, ext: dict[str, str]) -> wire.Answer:
        """The first answer of whoever serves, from all controllers in turn."""

        def attempt() -> wire.Answer | None:
            for server in self.group.servers:
                if not server.running:
                    continue
                try:
                    with wire.Client(server.port, ANSWER_SECONDS_MAX) as client:
                        answer = client.call(code, ext)
                except OSError:
                    continue
                if answer.code != codes.NOT_LEADER and answer.code != 1:
                    return answer
            time.sleep(KILL_PAUSE_SECONDS)
            return None

        return until(f"request {code} is served", attempt, 120)

    def _stop_all(self) -> None:
        for server in self.group.servers:
            server.stop(signal.SIGTERM if self.who == "ours" else signal.SIGKILL)

    async def _kills(self, count: int, name: str) -> dict[str, float]:
        """The leader is killed: until a commit of a new group's first id is answered by the next one."""
        waits = []
        for number in range(count):
            waits.append(await asyncio.to_thread(self._kill, f"{name}-{number}"))
        return spread(waits) if waits else {}

    def _kill(self, name: str) -> float:
        port = self.panel.serving(60)
        dead = next(server for server in self.group.servers if server.port == port)
        dead.kill()
        before = time.perf_counter()
        answer = self._patient(codes.APPLY_ID, self._application(name, 1))
        waited = time.perf_counter() - before
        if answer.code:
            raise Wrong(f"after the leader's death: {answer.code} {answer.remark}")
        dead.start()
        until("the killed one follows", lambda: self._follows(dead.port), 60)
        return waited

    def _follows(self, port: int) -> bool:
        """Whether this controller knows the leader and, ours, has all that is committed."""
        leader = self.panel.leader(60)
        if self.panel.metadata(port).get("controllerLeaderAddress") != f"127.0.0.1:{leader}":
            return False
        if self.who == "java":
            time.sleep(1.0)  # nothing tells whether it has caught up
            return True
        with wire.Client(port) as here, wire.Client(leader) as there:
            mine = json.loads(here.call(codes.CONTROLLER_STATUS, {}).body)
            wanted = json.loads(there.call(codes.CONTROLLER_STATUS, {}).body)
        return bool(mine["appliedIndex"] >= wanted["commitIndex"])


ROWS: list[tuple[str, str, str, str]] = [
    ("registrations (1012, 1013, 1003)", "registrations", "perSecond", "/s"),
    ("… p50", "registrations", "p50ms", "ms"),
    ("… p99", "registrations", "p99ms", "ms"),
    ("… cores of all three", "registrations", "serverCores", ""),
    ("the same with start nonces, as our brokers do", "registrations with nonces", "perSecond", "/s"),
    ("… p50", "registrations with nonces", "p50ms", "ms"),
    ("elections (1001, then 1002 with an id)", "elections", "perSecond", "/s"),
    ("… p50 of 1002", "elections", "p50ms", "ms"),
    ("… p99 of 1002", "elections", "p99ms", "ms"),
    ("one commit at a time (1013), p50", "commit", "p50ms", "ms"),
    ("… p99", "commit", "p99ms", "ms"),
    ("floor: append and fdatasync, p50", "floor", "p50ms", "ms"),
    ("… p99", "floor", "p99ms", "ms"),
    ("… a commit's p50 in floors", "commit", "floors", ""),
    ("anonymous memory, idle", "idle", "anonMiB", "MiB"),
    ("anonymous memory, groups registered", "loaded", "anonMiB", "MiB"),
    ("resident memory, groups registered", "loaded", "rssMiB", "MiB"),
    ("all three started again, to the first answer, p50", "restart", "p50ms", "ms"),
    ("leader killed, to the first commit, p50", "leader loss", "p50ms", "ms"),
    ("… p99", "leader loss", "p99ms", "ms"),
    ("… maximum", "leader loss", "maxms", "ms"),
    ("… with the groups registered, p50", "leader loss loaded", "p50ms", "ms"),
    ("… with the groups registered, maximum", "leader loss loaded", "maxms", "ms"),
]


def table(results: dict[str, Any]) -> str:
    """Java's, ours, and the ratio; the number of samples where there are few."""
    ours, java = results.get("ours", {}), results.get("java", {})
    rows = []
    for label, entry, key, unit in ROWS:
        cells, values = [], []
        for found in (java.get(entry) or {}, ours.get(entry) or {}):
            count = found.get("count", 1000)
            values.append(found.get(key))
            cells.append(
                shown(found.get(key), unit, f" (of {count})" if unit == "ms" and count < 100 else "")
            )
        rows.append((label, *cells, ratio(values[1] or None, values[0])))
    groups = f"{java.get('groups', '–')} in Java, {ours.get('groups', '–')} in ours"
    return markdown(
        (f"three controllers; groups of {REPLICAS}: {groups}", "Java", "ours", "ours / Java"), rows
    )


def measure(who: str, size: Size) -> dict[str, Any]:
    with stack.Workspace("bench") as folder:
        ports = stack.free_ports(6, below=2)
        make = stack.our_controllers if who == "ours" else stack.java_controllers
        with make(folder, ports[:3], ports[3:]) as group:
            return {"groups": size.groups + size.warm, **asyncio.run(Bench(group, size, who).run())}


def main() -> int:
    parser = arguments(__doc__, "bench-controller.json")
    parser.add_argument("--kills", type=int, help="how often our leader is killed")
    options = parser.parse_args()
    who_is_measured = makes(options)
    results = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    for who in who_is_measured:
        size = SIZES[who, options.size]
        if options.kills is not None and who == "ours":
            size = replace(size, kills=options.kills)
        wrong: list[BaseException] = []
        try:
            results[who] = measure(who, size)
        except* Wrong as error:
            wrong.extend(error.exceptions)
        if wrong:
            print(f"{who}: wrong answer: {wrong[0]}")
            return 1
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{table(results)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
