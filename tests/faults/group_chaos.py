"""A group of three brokers and three controllers under random faults and load: `group_chaos.py [--rounds 20] [--seed N]`.

Each round does one to three things at once: kill -9, SIGTERM, or SIGSTOP for a while, of brokers, controllers, or all of a kind;
a switchover; a fence. `--only-stops` has all or most of them stopped together in every round, and nothing else. Two raw writers, which go on sending to old masters as well, and a consumer work all the time. After each round all brokers
must be in sync again while the load goes on. After every few rounds the load stops, everything is read to the end, and the history of
what was sent, acknowledged and read is judged from outside (`brokerset_bench.history`); the logs of all brokers must have the same bytes
up to the confirmed offset, which must be their end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from brokerset_bench.probes import NoAnswer, Prober
from brokerset_bench.server_process import ServerProcess
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_rig.judged_load import judged_load
from brokerset_rig.own_group import OwnGroup
from brokerset_rig.stack import StackError
from brokerset_runtime.logs import configure_logs

ROUNDS_TOGETHER = 5
"""Rounds under one load, judged together."""

HANG_SECONDS_MAX = 4.0
END_SECONDS_MAX = 30.0
SWITCH_SECONDS = 3.0

STOP_APART_SECONDS = (0.0, 0.05, 0.3, 2.0)
"""Within so long all that are stopped together get their SIGTERM; one of these is drawn."""

START_APART_SECONDS = (0.0, 0.3, 2.0)
"""The same for how long each is gone, when it has ended."""

IMPATIENCE_SECONDS_MAX = 1.0
"""Who does not wait for an orderly end kills the process within so long."""


class Chaos:
    """The faults, on processes that no two of them hurt at the same time."""

    def __init__(
        self, group: OwnGroup, prober: Prober, admin: ControllerAdmin, source: random.Random
    ) -> None:
        self._group = group
        self._prober = prober
        self._admin = admin
        self._source = source
        self.counts: Counter[str] = Counter()
        self._broker_faults: tuple[Callable[[ServerProcess], Awaitable[str]], ...] = (
            self._kill, self._kill, self._terminate, self._hang, self._hang, self._kill_twice, self._fence,
        )  # fmt: skip
        self._controller_faults = (self._kill, self._terminate, self._hang)

    async def disturb(self) -> list[str]:
        """One to three things at once, each mended when this returns; in words."""
        source, brokers = self._source, list(self._group.set.brokers)
        address = await self._master_address()
        master = next((b for b in brokers if b.address == address), None)
        source.shuffle(brokers)
        if master is not None and source.random() < 0.5:  # the master is what matters
            brokers.remove(master)
            brokers.insert(0, master)
        controllers = list(self._group.set.controllers)
        source.shuffle(controllers)
        work: list[Awaitable[str]] = []
        for _ in range(source.randint(1, 3)):
            kind = source.random()
            if kind < 0.55 and brokers:
                work.append(source.choice(self._broker_faults)(brokers.pop(0)))
            elif kind < 0.75 and controllers:
                work.append(source.choice(self._controller_faults)(controllers.pop(0)))
            elif kind < 0.87:
                work.append(self._switch_over())
            elif kind < 0.94 and len(brokers) == len(self._group.set.brokers):
                if kind < 0.9:
                    work.append(self._kill_all(brokers, "all brokers"))
                else:
                    work.append(self._stop_together(brokers, controllers))
                    controllers = []
                brokers = []
            elif len(controllers) == len(self._group.set.controllers):
                work.append(self._kill_all(controllers, "all controllers"))
                controllers = []
        delays = [source.random() * 0.5 for _ in work]
        done = await asyncio.gather(
            *(self._later(delay, one) for delay, one in zip(delays, work, strict=True))
        )
        return list(done) or ["nothing"]

    async def _later(self, delay: float, work: Awaitable[str]) -> str:
        await asyncio.sleep(delay)
        return await work

    async def _master_address(self) -> str:
        with suppress(NoAnswer):
            return (
                await self._prober.group(self._group.set.controller_addresses, self._group.set.group)
            ).master
        return ""

    async def _pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self._source.random() * seconds_max)

    async def _kill(self, process: ServerProcess) -> str:
        self.counts["kills"] += 1
        process.send(signal.SIGKILL)
        await self._pause(1.5)
        process.start()
        return f"{process.name} killed"

    async def _kill_twice(self, process: ServerProcess) -> str:
        self.counts["kills"] += 2
        process.send(signal.SIGKILL)
        process.start()
        await self._pause(1.5)
        process.send(signal.SIGKILL)
        process.start()
        return f"{process.name} killed, and again while it came back"

    async def _kill_all(self, processes: list[ServerProcess], what: str) -> str:
        self.counts["kills"] += len(processes)
        for process in processes:
            process.send(signal.SIGKILL)
        await self._pause(0.5)
        for process in processes:
            process.start()
        return f"{what} killed"

    async def _terminate(self, process: ServerProcess) -> str:
        self.counts["orderly ends"] += 1
        process.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                while process.running:  # noqa: ASYNC110  # another process sets no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise StackError(f"{process.name} has not ended {END_SECONDS_MAX:g} s after SIGTERM") from None
        await self._pause(0.5)
        process.start()
        return f"{process.name} ended in order"

    async def stop_all_together(self) -> list[str]:
        """What happens when a whole set is restarted, or its only node is drained: nothing else in this round."""
        return [await self._stop_together(list(self._group.set.brokers), list(self._group.set.controllers))]

    async def _stop_together(self, brokers: list[ServerProcess], controllers: list[ServerProcess]) -> str:
        """SIGTERM for brokers and maybe controllers within a moment; each comes back on its own.

        Now and then one broker stays, or somebody is impatient: what has not ended soon is killed.
        """
        source = self._source
        stopped = brokers[1:] if source.random() < 0.2 else brokers
        if source.random() < 0.6:
            stopped = stopped + controllers
        apart, gone = source.choice(STOP_APART_SECONDS), source.choice(START_APART_SECONDS)
        patience = END_SECONDS_MAX if source.random() < 0.75 else source.random() * IMPATIENCE_SECONDS_MAX
        self.counts["stops together"] += 1
        took = await asyncio.gather(
            *(
                self._stop_and_start(process, source.random() * apart, patience, source.random() * gone)
                for process in stopped
            )
        )
        names = ", ".join(sorted(process.name for process in stopped))
        killed = f", killed {patience:.2f} s later" if patience < END_SECONDS_MAX else ""
        return f"{names} stopped together in {apart:g} s{killed}, the last end took {max(took):.1f} s"

    async def _stop_and_start(
        self, process: ServerProcess, after: float, patience: float, gone: float
    ) -> float:
        """Stop one of several, start it again; returns how long its end took."""
        await asyncio.sleep(after)
        began = time.monotonic()
        process.send(signal.SIGTERM)
        while process.running:
            if time.monotonic() - began > patience:
                if patience >= END_SECONDS_MAX:
                    raise StackError(f"{process.name} has not ended {patience:g} s after SIGTERM")
                self.counts["kills"] += 1
                process.send(signal.SIGKILL)
            await asyncio.sleep(0.01)
        took = time.monotonic() - began
        await asyncio.sleep(gone)
        process.start()
        return took

    async def _hang(self, process: ServerProcess) -> str:
        self.counts["hangs"] += 1
        seconds = self._source.random() * HANG_SECONDS_MAX
        process.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send(signal.SIGCONT)
        return f"{process.name} hung for {seconds:.1f} s"

    async def _switch_over(self) -> str:
        self.counts["switchovers"] += 1
        try:
            done = await self._admin.switch_over(self._group.set.group, timeout=SWITCH_SECONDS)
        except ClientError as error:
            return f"no switchover ({type(error).__name__})"
        return f"switchover to {done.master_broker_id}"

    async def _fence(self, process: ServerProcess) -> str:
        self.counts["fences"] += 1
        try:
            (state,) = await self._admin.groups([self._group.set.group])
            replica = next(r for r in state.replicas if r.address == process.address)
            await self._admin.fence(state.broker_name, replica.broker_id)
        except (ClientError, ValueError, StopIteration) as error:
            return f"{process.name} not fenced ({type(error).__name__})"
        await self._pause(2.0)
        return f"{process.name} fenced for a while"

    async def unfence(self) -> None:
        """Take back every fence; also one whose request had an unclear end."""
        async with asyncio.timeout(END_SECONDS_MAX):
            while True:
                with suppress(ClientError, ValueError):
                    (state,) = await self._admin.groups([self._group.set.group])
                    for broker_id in state.fenced:
                        await self._admin.fence(state.broker_name, broker_id, fenced=False)
                    if not state.fenced:
                        return
                await asyncio.sleep(0.05)


async def run(options: argparse.Namespace, group: OwnGroup) -> None:
    """All rounds. Raises `StackError` with what is wrong."""
    source = random.Random(options.seed)
    acked = compared = 0
    async with Prober() as prober, ControllerAdmin(group.set.controller_addresses) as admin:
        chaos = Chaos(group, prober, admin, source)
        for first in range(0, options.rounds, ROUNDS_TOGETHER):
            async with judged_load(group, prober, f"chaos-{first}") as load:
                for number in range(first, min(first + ROUNDS_TOGETHER, options.rounds)):
                    acknowledged = load.acknowledged
                    did = await (chaos.stop_all_together() if options.only_stops else chaos.disturb())
                    mended = time.monotonic()
                    await chaos.unfence()
                    await group.all_in_sync(prober)
                    seconds = time.monotonic() - mended
                    await load.more_acknowledged()
                    print(
                        f"round {number}: {'; '.join(did)}; in sync after {seconds:.1f} s; "
                        f"{load.acknowledged - acknowledged} acknowledged, longest pause "
                        f"{load.longest_pause(acknowledged):.1f} s",
                        flush=True,
                    )
            print(f"judged: {load}", flush=True)
            acked += load.verdict.acked
            compared = load.compared[1] - load.compared[0]
    if wrong := group.tracebacks():
        raise StackError(f"unexpected exceptions are in {', '.join(wrong)}")
    counted = ", ".join(f"{count} {what}" for what, count in sorted(chaos.counts.items()))
    print(
        f"{options.rounds} rounds: {counted}; {acked:,} messages acknowledged, none lost; all logs have the same {compared:,} bytes"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only-stops", action="store_true", help="every round stops all of them together")
    parser.add_argument("--port", type=int, default=0, help="first of 300 ports; free ones otherwise")
    options = parser.parse_args()
    print(f"group chaos: {options.rounds} rounds, seed {options.seed}", flush=True)
    configure_logs("error", json=False)  # a client that loses its brokers on purpose has nothing to tell
    with OwnGroup("group-chaos", port=options.port) as group:
        asyncio.run(run(options, group))
    return 0


if __name__ == "__main__":
    sys.exit(main())
