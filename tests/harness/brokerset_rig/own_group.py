"""Three controllers and one group of our brokers that nobody supervises, for what hurts them: their processes, state and logs."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from brokerset_bench.log_comparison import digest, first_difference
from brokerset_bench.probes import GroupView, NoAnswer, Prober
from brokerset_bench.server_process import ServerProcess
from brokerset_bench.sets import our_set
from brokerset_cli.replication_view import fetch_broker_facts
from brokerset_rig.stack import StackError
from brokerset_spec.plan import broker_folder

WHOLE_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.05
SMALL = ("mappedFileSizeCommitLog=16777216", "maxHashSlotNum=10000", "maxIndexNum=40000")
"""Settings for logs that begin new files now and then."""


class OwnGroup:
    """The processes of one group. A context manager: keeps the folder when something failed, never a process."""

    def __init__(self, name: str, *, replicas: int = 3, settings: Sequence[str] = (), port: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"brokerset-{name}-"))
        self.set = our_set(
            self.folder, replicas=replicas, settings=(*SMALL, *settings), port=port, network=None
        )

    def __enter__(self) -> OwnGroup:
        self.set.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.set.end()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"kept {self.folder}", flush=True)

    def commit_log(self, broker: ServerProcess) -> Path:
        """The folder with the files of a broker's log."""
        return broker_folder(self.folder, broker.name) / "store" / "commitlog"

    async def look(self, prober: Prober) -> GroupView:
        """The group as the leading controller knows it; asked again while nobody leads."""
        return await self.until("a controller leads", prober, lambda look: True)

    async def until_led(self, prober: Prober, before: GroupView) -> GroupView:
        """The first look after `before` with a new master, whose process runs; some processes may have been ended."""
        running = {process.address for process in self.set.brokers if process.running}
        return await self.until(
            "a new master leads",
            prober,
            lambda look: look.epoch > before.epoch and look.master in running,
            all_run=False,
        )

    async def until(
        self,
        what: str,
        prober: Prober,
        condition: Callable[[GroupView], bool],
        seconds: float = WHOLE_SECONDS_MAX,
        *,
        all_run: bool = True,
    ) -> GroupView:
        """The first look that meets the condition. Raises `StackError`, with `all_run` also when a process has ended."""
        last: object = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if all_run and (ended := self.set.ended()):
                        raise StackError(ended)
                    try:
                        last = look = await prober.group(self.set.controller_addresses, self.set.group)
                        if condition(look):
                            return look
                    except NoAnswer as error:
                        last = error
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise StackError(f"not within {seconds:g} s: {what}; last seen: {last}") from None

    async def all_in_sync(self, prober: Prober) -> GroupView:
        """The first look in which every broker is in sync, whether somebody writes or not."""
        brokers = self.set.broker_addresses
        return await self.until(
            "all brokers are in sync",
            prober,
            lambda look: look.master in brokers and len(look.in_sync) == len(brokers),
        )

    async def same_logs(self, prober: Prober) -> tuple[int, int]:
        """Wait until everything is confirmed everywhere, then compare byte for byte; from where to where.

        Nobody may write meanwhile. Raises `StackError` when logs differ.
        """
        try:
            await prober.until_whole(
                self.set.controller_addresses,
                self.set.group,
                self.set.broker_addresses,
                WHOLE_SECONDS_MAX,
                self.set.ended,
            )
        except NoAnswer as error:
            raise StackError(str(error)) from None
        end = await self._confirmed_everywhere()
        logs = [self.commit_log(broker) for broker in self.set.brokers]
        begin = max(min(int(path.name) for path in log.iterdir() if path.name.isdigit()) for log in logs)
        if len({digest(log, begin, end) for log in logs}) != 1:
            at = first_difference(logs, begin, end)
            raise StackError(f"the logs differ from offset {at:,} of {begin:,} to {end:,} on")
        return begin, end

    async def _confirmed_everywhere(self) -> int:
        told: dict[str, int | None] = {}
        try:
            async with asyncio.timeout(WHOLE_SECONDS_MAX):
                while True:
                    facts = await fetch_broker_facts(self.set.broker_addresses)
                    end = max((each.max_offset or 0 for each in facts.values() if each.is_master), default=0)
                    told = {address: each.confirmed_offset for address, each in facts.items()}
                    if end and len(told) == len(self.set.brokers) and set(told.values()) == {end}:
                        return end
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise StackError(f"not everything is confirmed after {WHOLE_SECONDS_MAX:g} s: {told}") from None

    def tracebacks(self) -> list[str]:
        """Log files with exceptions that nobody expected."""
        return [
            str(process.log_file)
            for process in (*self.set.controllers, *self.set.brokers)
            if process.log_file.exists() and "Traceback" in process.log_file.read_text(errors="replace")
        ]
