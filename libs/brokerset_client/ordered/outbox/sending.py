"""Sends the rows of an outbox: per logical partition one after the other, by the process that is the owner.

The steps for a row are: read, send, wait for confirmation, delete in a transaction that checks the lease.
Only then comes the next row of its logical partition. Whatever crashes between two of them leaves the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import structlog
from sqlalchemy import Connection, Engine, Row, delete, func, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from brokerset_client.errors import ClientError, MessageInvalid
from brokerset_client.ordered.outbox.adding import message_of
from brokerset_client.ordered.outbox.lease import NOBODY, LeaseTable, LeaseWatch
from brokerset_client.ordered.outbox.tables import OWNER_MAX, OutboxTables
from brokerset_client.ordered.producing.errors import (
    MessageRefused,
    ProducerFenced,
    ProducerFull,
    TooManySubjects,
)
from brokerset_client.ordered.producing.producer import EpochGuard, OrderedProducer, OrderedSendResult
from brokerset_formats.order_stamps import PRODUCER_ID
from brokerset_runtime.clock import Clock, SystemClock

log = structlog.get_logger(__name__)

T = TypeVar("T")

PROBLEM_MAX: Final = 1_000
"""Characters of a refusal that are kept in the row."""


TICK_SECONDS: Final = 0.001
"""Shortest wait for a time: loops wake up a little before it, and must not spin until it is there."""

RETRIES_MAX: Final = 2_000
"""Failed rows that wait for their retry; of more of them the oldest are sent again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Times in milliseconds, and bounds."""

    poll_ms: int = 200
    """How often the table is read while nothing happens; `OutboxSender.wake` makes it sooner."""

    lease_ms: int = 10_000
    """How long an owner may be silent before another process takes over."""

    beat_ms: int = 2_000
    """How often an owner says that it is there."""

    lanes_max: int = 256
    """Logical partitions with a row on its way at the same time."""

    retry_ms: int = 1_000
    """Wait after the database, or a subject, did not work."""

    stop_ms: int = 5_000
    """How long `stop` waits for rows on their way; what is not confirmed then is sent by the next owner."""

    def problems(self) -> list[str]:
        """What is wrong, one sentence each."""
        names = ("poll_ms", "lease_ms", "beat_ms", "lanes_max", "retry_ms", "stop_ms")
        found = [f"{name} must be positive" for name in names if getattr(self, name) <= 0]
        if 3 * self.beat_ms > self.lease_ms:
            found.append("lease_ms must be three beats (beat_ms) at least")
        return found


class Transactions(Protocol):
    """Runs work in a transaction that commits if it returns, and rolls back if it raises."""

    async def run(self, work: Callable[[Connection], T]) -> T:
        """One transaction."""


class ThreadTransactions:
    """Transactions of an engine, in a thread, so that the loop never waits for a database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run one transaction."""
        return await asyncio.to_thread(self._run, work)

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)


class Lane(NamedTuple):
    """A logical partition of a subject."""

    subject: str
    logical: int


class _Ownership:
    """What an owner has: its epoch, its producer, its rows on their way."""

    def __init__(self, epoch: int, producer: OrderedProducer) -> None:
        self.epoch = epoch
        self.producer = producer
        self.sending: dict[Lane, tuple[int, asyncio.Future[OrderedSendResult]]] = {}
        self.retries: dict[int, float] = {}
        """Rows that failed, and when they are sent again."""


class LeaseLost(Exception):
    """Another process is the owner now."""


class OutboxSender:
    """Sends what `Outbox.add` wrote. One in each process that may do it; `run` ends with `stop`.

    `name` is that of the outbox, and the id of its producer: the same in all processes, and used by nothing
    else. `make_producer` gets it, and a guard for `OrderedProducer(…, producer_id=, may_use_epoch=)`.

    A message that the broker refuses, or that cannot be sent at all, stops its logical partition: the row has
    the reason in `problem`, and the rows behind it wait until somebody has deleted or mended it, and set
    `problem` to NULL. Everything else is tried again.
    """

    def __init__(
        self,
        database: Engine | Transactions,
        make_producer: Callable[[str, EpochGuard], OrderedProducer],
        *,
        owner: str,
        name: str = "outbox",
        tables: OutboxTables | None = None,
        clock: Clock | None = None,
        settings: OutboxSettings | None = None,
    ) -> None:
        self.settings = settings or OutboxSettings()
        problems = self.settings.problems()
        if PRODUCER_ID.fullmatch(name) is None:
            problems.append(f"name {name[:80]!r}: 1 to 64 of letters, digits, '_', '-', '.'")
        if not 0 < len(owner) <= OWNER_MAX:
            problems.append(f"owner has {len(owner)} characters, 1 to {OWNER_MAX} are allowed")
        if owner == NOBODY:
            problems.append(f"owner is {NOBODY!r}, which means that there is none: use another name")
        if problems:
            raise ValueError("; ".join(problems))
        self.name = name
        self.owner = owner
        self.tables = tables or OutboxTables()
        self.is_owner = False
        self._database = ThreadTransactions(database) if isinstance(database, Engine) else database
        self._make_producer = make_producer
        self._clock = clock or SystemClock()
        self._lease = LeaseTable(self.tables, name)
        self._wake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """A transaction has committed rows: read them now. To be called in the loop of `run`."""
        self._wake.set()

    def stop(self) -> None:
        """End `run`: the row of each lane that is on its way is waited for, the lease is released."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Wait for the lease, send as its owner; start over when it is lost, until `stop`."""
        watch = LeaseWatch(self.settings.lease_ms)
        while not self._stopping:
            try:
                epoch = await self._acquire(watch)
                if epoch is None:
                    await self._pause(self.settings.beat_ms)
                    continue
                await self._own(epoch)
            except (LeaseLost, ProducerFenced) as error:
                log.warning("outbox has another owner", outbox=self.name, owner=self.owner, reason=str(error))
                await self._pause(self.settings.retry_ms)
            except (SQLAlchemyError, ClientError) as error:
                log.warning("outbox does not work", outbox=self.name, owner=self.owner, reason=str(error))
                await self._pause(self.settings.retry_ms)

    # -- ownership ----------------------------------------------------------------------------------------

    async def _acquire(self, watch: LeaseWatch) -> int | None:
        now = self._clock.monotonic()

        def work(connection: Connection) -> int | None:
            row = self._lease.read(connection)
            return self._lease.take(connection, row, self.owner) if watch.may_take(row, now) else None

        try:
            epoch = await self._database.run(work)
        except IntegrityError:
            return None  # another candidate was quicker with the first row
        watch.own_epoch = epoch if epoch is not None else watch.own_epoch
        return epoch

    async def _own(self, epoch: int) -> None:
        """Send until the lease is lost, or `stop`.

        The producer starts after the lease was taken, so its epoch is above that of every former owner, and
        a former owner that gets a higher one by chance does not use it: it asks for the lease again first.
        """
        own = _Ownership(epoch, self._make_producer(self.name, self._guard(epoch)))
        log.info("outbox has this owner", outbox=self.name, owner=self.owner, epoch=epoch)
        self.is_owner = True
        try:
            await own.producer.start()
            await self._send_rows(own)
        except ProducerFenced:
            # At the end this process fences itself, if the database does not say in time whether it may use
            # an epoch. It releases the lease all the same: of another owner's nothing is changed by that.
            if not self._stopping:
                raise
        finally:
            self.is_owner = False
            await own.producer.close(0)
        await self._database.run(lambda connection: self._lease.release(connection, epoch))

    def _guard(self, epoch: int) -> EpochGuard:
        async def may_use_epoch(subject: str, producer_epoch: int) -> bool:
            while True:
                try:
                    return await self._database.run(lambda connection: self._lease.still(connection, epoch))
                except SQLAlchemyError as error:
                    log.warning("outbox does not work", outbox=self.name, reason=str(error))
                if self._stopping:
                    return False
                await asyncio.sleep(self.settings.retry_ms / 1000)

        return may_use_epoch

    # -- rows ---------------------------------------------------------------------------------------------

    async def _send_rows(self, own: _Ownership) -> None:
        beat_at = self._clock.monotonic()
        stop_at: float | None = None
        while True:
            ended = {lane: sent for lane, sent in own.sending.items() if sent[1].done()}
            now = self._clock.monotonic()
            if ended or now >= beat_at:
                await self._settle(own, ended)
                beat_at = now + self.settings.beat_ms / 1000
            if self._stopping:
                stop_at = stop_at or now + self.settings.stop_ms / 1000
                if not own.sending or now >= stop_at:
                    return
            else:
                for row in await self._database.run(lambda connection: self._heads(connection, own)):
                    await self._send(own, row)
            await self._wait(own, beat_at)

    def _heads(self, connection: Connection, own: _Ownership) -> list[Row[Any]]:
        """The first row of each logical partition that has none on its way; not behind a problem."""
        room = self.settings.lanes_max - len(own.sending)
        if room <= 0:
            return []
        messages = self.tables.messages
        first = select(func.min(messages.c.id).label("id")).group_by(messages.c.subject, messages.c.logical)
        heads = first.subquery()
        now = self._clock.monotonic()
        own.retries = {
            number: when for number, when in list(own.retries.items())[-RETRIES_MAX:] if when > now
        }
        not_now = [*own.retries, *(number for number, _ in own.sending.values())]
        statement = (
            select(messages)
            .join(heads, messages.c.id == heads.c.id)
            .where(messages.c.problem.is_(None), messages.c.id.not_in(not_now))
            .order_by(messages.c.id)
            .limit(room)
        )
        return list(connection.execute(statement))

    async def _send(self, own: _Ownership, row: Row[Any]) -> None:
        lane = Lane(row.subject, row.logical)
        assert lane not in own.sending
        message = message_of(row, self.name)
        try:
            future = await own.producer.send_async(message, key=row.order_key, timeout=0)
        except ProducerFull:
            return  # there will be room when rows that are on their way are confirmed
        except (MessageInvalid, TooManySubjects) as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        own.sending[lane] = (row.id, future)

    async def _settle(
        self, own: _Ownership, ended: dict[Lane, tuple[int, asyncio.Future[OrderedSendResult]]]
    ) -> None:
        """Delete what is confirmed, note what is refused; what failed otherwise is sent again."""
        stored: list[int] = []
        refused: dict[int, str] = {}
        fenced: BaseException | None = None
        for number, future in ended.values():
            error = future.exception()
            if error is None:
                stored.append(number)
            elif isinstance(error, MessageInvalid | MessageRefused):
                refused[number] = str(error)[:PROBLEM_MAX]
                log.error("outbox message cannot be sent", outbox=self.name, row=number, reason=str(error))
            elif isinstance(error, ProducerFenced):
                fenced = error
            else:
                log.warning("outbox message failed", outbox=self.name, row=number, reason=str(error))
                own.retries[number] = self._clock.monotonic() + self.settings.retry_ms / 1000

        def work(connection: Connection) -> None:
            if not self._lease.still(connection, own.epoch):
                raise LeaseLost(f"epoch {own.epoch} of outbox {self.name!r} is over")
            messages = self.tables.messages
            if stored:
                connection.execute(delete(messages).where(messages.c.id.in_(stored)))
            for number, problem in refused.items():
                connection.execute(update(messages).where(messages.c.id == number).values(problem=problem))

        await self._database.run(work)
        # Only now may the next row of a lane follow.
        for lane in ended:
            del own.sending[lane]
        if fenced is not None:
            raise fenced

    async def _wait(self, own: _Ownership, beat_at: float) -> None:
        """Until a row is confirmed, somebody calls `wake`, or it is time to read the table or to beat."""
        if any(future.done() for _, future in own.sending.values()):
            return
        until_beat = max(TICK_SECONDS, beat_at - self._clock.monotonic())
        waker = asyncio.ensure_future(self._wake.wait())
        waited: list[Awaitable[object]] = [waker, *(future for _, future in own.sending.values())]
        try:
            await asyncio.wait(
                waited,  # type: ignore[type-var]  # futures and a task, all of them futures
                timeout=min(self.settings.poll_ms / 1000, until_beat),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waker.cancel()
            self._wake.clear()

    async def _pause(self, milliseconds: int) -> None:
        if not self._stopping:
            try:
                async with asyncio.timeout(milliseconds / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
