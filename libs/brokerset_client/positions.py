"""Where a group goes on in each queue: kept at the brokers, or, for broadcasting, in a file of this client.

Sources: `RemoteBrokerOffsetStore`, `LocalFileOffsetStore`, `RebalancePushImpl.computePullFromWhere`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from brokerset_client import calls
from brokerset_client.errors import BrokerUnreachable, ClientClosed, ClientError, RequestRefused
from brokerset_client.instance import ClientInstance
from brokerset_client.retry import COMMIT_AGAIN_CODES, Backoff
from brokerset_formats import names
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere
from brokerset_protocol.bodies.queues import MessageQueue, ResetOffsetBody
from brokerset_protocol.errors import Rejected
from brokerset_runtime.files import write_atomically

log = structlog.get_logger(__name__)

COMMIT_TROUBLE: Final = Backoff(first_ms=50, factor=1.6, max_ms=1000)
"""Waits before an offset is sent again that could not be stored. An election takes a second or two."""

DEFAULT_FOLDER = Path.home() / ".rocketmq_offsets"
"""Where Java clients keep the offsets of broadcasting groups."""


class Positions(Protocol):
    """A store of queue offsets for one group."""

    async def load(self, queue: MessageQueue, *, strict: bool) -> int | None:
        """Where to go on; None if nothing is stored. Raises `ClientError` if that cannot be told now.

        Unless `strict` it may be 0 though nothing is stored, for a queue that is still young.
        """
        ...

    async def save(
        self, offsets: Mapping[MessageQueue, int], *, surely: bool = False, seconds: float = 0.0
    ) -> None:
        """Store offsets. `surely` waits for the answer and raises `ClientError`; else a loss is made good
        later.

        `seconds`: how long it is tried again, because a master may have died and the next one be elected.
        """
        ...


class BrokerPositions:
    """Offsets at the master of each queue, shared by the group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def load(self, queue: MessageQueue, *, strict: bool) -> int | None:
        """QUERY_CONSUMER_OFFSET at the master, or at a slave while there is none."""
        address = await reader_address(self._instance, queue)
        return await calls.committed_offset(self._instance, address, self._group, queue, strict=strict)

    async def save(
        self, offsets: Mapping[MessageQueue, int], *, surely: bool = False, seconds: float = 0.0
    ) -> None:
        """UPDATE_CONSUMER_OFFSET for each queue, one-way unless `surely`."""
        deadline = asyncio.get_running_loop().time() + seconds
        stored = await asyncio.gather(
            *(self._store_until(deadline, *item, surely=surely) for item in offsets.items())
        )
        problems = [problem for problem in stored if problem is not None]
        if problems and surely:
            raise problems[0]

    async def _store_until(
        self, deadline: float, queue: MessageQueue, queue_offset: int, *, surely: bool
    ) -> ClientError | None:
        failures = 0
        while (problem := await self._store(queue, queue_offset, surely=surely)) is not None:
            failures += 1
            pause = COMMIT_TROUBLE.delay_ms(failures) / 1000
            if not may_pass(problem) or asyncio.get_running_loop().time() + pause > deadline:
                return problem
            await asyncio.sleep(pause)
            try:
                await self._instance.route(queue.topic, fresh=True)
            except ClientError as error:
                log.debug("no newer route to store an offset by", queue=str(queue), reason=str(error))
        return None

    async def _store(self, queue: MessageQueue, queue_offset: int, *, surely: bool) -> ClientError | None:
        try:
            address = await reader_address(self._instance, queue)
            await calls.commit_offset(
                self._instance, address, self._group, queue, queue_offset, oneway=not surely
            )
        except ClientError as error:
            return error
        return None


class LocalPositions:
    """Offsets in `<folder>/<client id>/<group>/offsets.json`. Only this client reads them.

    The file has the form of a reset's body, which is also the form of Java's `OffsetSerializeWrapper`.
    """

    def __init__(self, folder: Path, client_id: str, group: str) -> None:
        self.path = folder / client_id / group / "offsets.json"
        self._offsets: dict[MessageQueue, int] | None = None

    async def load(self, queue: MessageQueue, *, strict: bool) -> int | None:
        """From memory, or from the file the first time. A damaged file counts as empty, its backup is
        tried."""
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._read)
        return self._offsets.get(queue)

    async def save(
        self, offsets: Mapping[MessageQueue, int], *, surely: bool = False, seconds: float = 0.0
    ) -> None:
        """Write all offsets that are known, atomically."""
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._read)
        self._offsets.update(offsets)
        await asyncio.to_thread(self._write, ResetOffsetBody(self._offsets).to_json())

    def _write(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, data, backup=True)

    def _read(self) -> dict[MessageQueue, int]:
        for path in (self.path, self.path.with_name("offsets.json.bak")):
            try:
                return ResetOffsetBody.from_json(path.read_bytes()).offset_table
            except (FileNotFoundError, Rejected):
                continue
        return {}


def may_pass(problem: ClientError) -> bool:
    """Whether a commit that failed like this may succeed a moment later, here or at the next master."""
    if isinstance(problem, RequestRefused):
        return problem.code in COMMIT_AGAIN_CODES
    return not isinstance(problem, ClientClosed)


async def first_offset(
    instance: ClientInstance, queue: MessageQueue, where: ConsumeFromWhere, timestamp_ms: int
) -> int:
    """Where a group without a stored offset begins. Retry topics begin at their start: nothing in them is
    old. (Java skips what is in them if the group begins at a time.)"""
    if names.is_retry_topic(queue.topic):
        return 0
    if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
        return await calls.max_offset(instance, await reader_address(instance, queue), queue)
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return await calls.offset_at(instance, await reader_address(instance, queue), queue, timestamp_ms)
    return 0


async def reader_address(instance: ClientInstance, queue: MessageQueue, broker_id: int = 0) -> str:
    """Whom to ask about `queue`: the wished replica, else the master, else any. Raises
    `BrokerUnreachable`."""
    route = await instance.route(queue.topic)
    address = route.reader(queue.broker_name, broker_id)
    if address is None:
        raise BrokerUnreachable(
            queue.broker_name, "the name servers know no address of it now; its replicas may be starting"
        )
    return address
