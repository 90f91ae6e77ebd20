"""The heart of `brokerset demo`: the master is killed while a writer writes and a reader reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import click

from brokerset_bench.demo_faults import REPORT, RETURN_SECONDS_MAX, kill, process_now
from brokerset_cli import client_session
from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.ledger_session import LedgerAdmin, group_admin
from brokerset_cli.output import fail, progress
from brokerset_cli.scaling import running_state
from brokerset_cli.switchover import address_of
from brokerset_cli.waiting import PAUSE_SECONDS, until
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView, SendStatus
from brokerset_client.producer import Producer
from brokerset_client.push_consumer import PushConsumer
from brokerset_client.retry import Backoff, SendRetry
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere

SENDS_PER_SECOND: Final = 2_000
"""Rate of the writer; fewer when there are too few messages for `LOAD_SECONDS_MIN`."""

LOAD_SECONDS_MIN: Final = 2.0
"""The writer takes at least so long, so that the crash happens in the middle."""

KILL_SHARE: Final = 0.4
"""The master is killed when so much of everything is acknowledged."""

IN_FLIGHT_MAX: Final = 64
"""Messages that wait for an acknowledgement at once."""

RETRY: Final = SendRetry(retries=1_000, backoff=Backoff(first_ms=10, max_ms=50))
"""Of the writer's producer: it asks again until its time-out, and reads the route again each time."""

SEND_SECONDS: Final = 10.0
"""A message without an acknowledgement after so long is sent again."""


@dataclass(slots=True)
class Writer:
    """Sends messages at a steady rate, each one until it is acknowledged."""

    producer: Producer
    messages: Sequence[Message]
    per_second: float
    done: Callable[[int], None]
    acknowledged_at: list[float] = field(default_factory=list)
    """Times of the acknowledgements, in their order."""

    repeated: int = 0
    """Messages that were sent again, because they were not acknowledged."""

    async def run(self) -> None:
        """Send everything. Raises `TimeoutError` when a message is not acknowledged for too long."""
        began = time.perf_counter()
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        async with asyncio.TaskGroup() as group:
            for number, message in enumerate(self.messages):
                await asyncio.sleep(max(0.0, began + number / self.per_second - time.perf_counter()))
                await room.acquire()
                group.create_task(self._send(message)).add_done_callback(lambda _: room.release())

    async def _send(self, message: Message) -> None:
        async with asyncio.timeout(RETURN_SECONDS_MAX):
            while True:
                try:
                    result = await self.producer.send(message, SEND_SECONDS)
                except ClientError:
                    await asyncio.sleep(PAUSE_SECONDS)
                else:
                    if result.status is SendStatus.SEND_OK:
                        break
                self.repeated += 1
        self.acknowledged_at.append(time.perf_counter())
        self.done(1)

    def gap(self, after: float) -> float:
        """Longest time without an acknowledgement that ended after this moment, in seconds."""
        return max(
            (later - earlier for earlier, later in pairwise(self.acknowledged_at) if later > after),
            default=0.0,
        )

    async def until_acknowledged(self, count: int) -> None:
        """Wait for so many acknowledgements."""
        while len(self.acknowledged_at) < count:  # noqa: ASYNC110  # what other processes do sets no event
            await asyncio.sleep(PAUSE_SECONDS / 10)


@dataclass(slots=True)
class Reader:
    """Counts the messages that a consumer group gets, by their key."""

    seen: dict[str, int] = field(default_factory=dict)
    """By key: how often."""

    async def listen(self, message: MessageView) -> None:
        """Take one message."""
        key = " ".join(message.keys)
        self.seen[key] = self.seen.get(key, 0) + 1

    @property
    def doubled(self) -> int:
        """Messages that came more than once."""
        return sum(times > 1 for times in self.seen.values())


@dataclass(frozen=True, slots=True)
class Failover:
    """What was seen."""

    killed: ProcessState
    before: GroupState
    after: GroupState
    gap: float
    """Seconds without an acknowledgement."""

    repeated: int
    in_sync_after: float
    """Seconds from the kill until the killed broker was a slave in sync."""

    doubled: int
    """Messages that the running reader got more than once."""


def kill_master(folder: DataFolder, topic: str, messages: Sequence[Message]) -> None:
    """Kill the master with SIGKILL under load; ends the command when anything acknowledged is not read."""
    state = running_state(folder)
    found: Failover | None = None
    try:
        with progress("sending and reading", len(messages)) as done:
            found = client_session.run(
                state.namesrv, lambda instance: _kill_master(instance, folder, state, topic, messages, done)
            )
    except* TimeoutError:  # of the writer, in a group, or our own
        pass
    if found is None:
        fail(f"something did not happen within {RETURN_SECONDS_MAX:g} s of the master's death", REPORT)
    old, new = found.before, found.after
    names = {process.address: process.name for process in running_state(folder).processes}
    address = next(r.address for r in new.replicas if r.broker_id == new.master_id)
    name, group = found.killed.name, new.broker_name
    click.echo(
        f"{name} (process {found.killed.pid}) was killed; it was master {group}/{old.master_id} in epoch "
        f"{old.master_epoch}."
    )
    click.secho(
        f"No send was acknowledged for {found.gap * 1000:.0f} ms. {names.get(address, address)} is master "
        f"{group}/{new.master_id} in epoch {new.master_epoch}.",
        bold=True,
    )
    click.echo(
        f"{name} was started again and was a slave in sync {found.in_sync_after:.1f} s after it was killed."
    )
    click.echo(
        f"All {len(messages):,} messages were acknowledged, {found.repeated:,} of them when they were sent "
        f"again; a reader that ran all the time got every one, {found.doubled:,} more than once."
    )


async def _kill_master(
    instance: ClientInstance,
    folder: DataFolder,
    state: SetState,
    topic: str,
    messages: Sequence[Message],
    done: Callable[[int], None],
) -> Failover:
    per_second = min(SENDS_PER_SECOND, len(messages) / LOAD_SECONDS_MIN)
    reader = Reader()
    consumer = PushConsumer(
        "brokerset-demo-reader",
        instance=instance,
        listener=reader.listen,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    async with (
        group_admin(folder.path, state) as admin,
        Producer("brokerset-demo", instance=instance, retry=RETRY) as producer,
    ):
        writer = Writer(producer, messages, per_second, done)
        with _running(asyncio.create_task(writer.run())) as writing:
            async with asyncio.timeout(RETURN_SECONDS_MAX):
                await writer.until_acknowledged(1)  # so that the topic exists
            async with consumer, asyncio.timeout(2 * RETURN_SECONDS_MAX):
                await writer.until_acknowledged(round(KILL_SHARE * len(messages)))
                (before,) = await admin.groups()
                killed = _master_process(state, before)
                at = time.perf_counter()
                kill(killed)
                after = await _next_master(admin, before)
                await _in_sync(admin, folder, killed, before.master_id)
                in_sync_after = time.perf_counter() - at
                await writing
                await _all_read(reader, messages)
    return Failover(killed, before, after, writer.gap(at), writer.repeated, in_sync_after, reader.doubled)


@contextmanager
def _running(task: asyncio.Task[None]) -> Iterator[asyncio.Task[None]]:
    """End a task with the block, when an error ends that first."""
    try:
        yield task
    finally:
        task.cancel()


def _master_process(state: SetState, group: GroupState) -> ProcessState:
    address = address_of(group, group.master_id)
    found = next((process for process in state.processes if process.address == address), None)
    if found is None:
        fail(f"the master of {group.broker_name} is none of the processes that run here", REPORT)
    return found


async def _next_master(admin: ControllerAdmin | LedgerAdmin, before: GroupState) -> GroupState:
    while True:
        (group,) = await admin.groups()
        if group.master_id not in (None, before.master_id) and group.master_epoch > before.master_epoch:
            return group
        await asyncio.sleep(PAUSE_SECONDS)


async def _in_sync(
    admin: ControllerAdmin | LedgerAdmin, folder: DataFolder, killed: ProcessState, broker_id: int | None
) -> None:
    """Wait until the killed process runs again, with the id that it had, and is in sync."""

    async def is_back() -> bool:
        process = process_now(folder, killed.name)
        (group,) = await admin.groups()
        known = address_of(group, broker_id) == process.address and process.pid != killed.pid
        return known and process.state == "running" and broker_id in group.sync_state_set

    await until(is_back, 2 * RETURN_SECONDS_MAX)


async def _all_read(reader: Reader, messages: Sequence[Message]) -> None:
    """Wait until the reader has everything; ends the command when it has not in time."""
    wanted = {" ".join(message.keys) for message in messages}

    async def is_read() -> bool:
        return wanted <= reader.seen.keys()

    if not await until(is_read, RETURN_SECONDS_MAX):
        missing = sorted(wanted - reader.seen.keys())
        fail(f"{len(missing):,} acknowledged messages were not read: {', '.join(missing[:5])}, …", REPORT)
