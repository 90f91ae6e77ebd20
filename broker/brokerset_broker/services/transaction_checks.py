"""Asks producers about transactions that they did not end, on the broker that leads (Java:
TransactionalMessageCheckService).

The decisions are `transactions.check_pass`'s; here they are carried out: records are read and appended,
producers asked, and the progress saved as consumer offsets of CID_RMQ_SYS_TRANS, as Java has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.transaction_counts import TransactionCounts
from brokerset_broker.requests.transaction_log import LogEnds, TransactionLog
from brokerset_broker.services.transaction_loading import TransactionLoading
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.channels import Channel
from brokerset_broker.tables.config_files import ConfigFile
from brokerset_broker.tables.offsets import BROKER, OffsetManager
from brokerset_broker.tables.producers import ProducerTable
from brokerset_broker.tables.topics import TopicManager
from brokerset_broker.transactions.check_pass import (
    Answer,
    Append,
    CanAsk,
    CheckLimits,
    GivenUp,
    NoHalf,
    NotAppended,
    Pause,
    Place,
    ReadHalf,
    SaveProgress,
    SendCheck,
    check_pass,
    check_request,
)
from brokerset_broker.transactions.resolved import Resolved
from brokerset_formats.errors import FormatError
from brokerset_formats.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from brokerset_formats.properties import Property, find_property
from brokerset_formats.records import Record
from brokerset_formats.transactions import HALF_QUEUE_ID, target_of
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

PROGRESS_SECONDS: Final = 1.0
"""Pause between two looks at how far the progress can move without a pass of checks."""

PROGRESS_HALVES_MAX: Final = 2_000
"""Halves that one such look passes over; about 1 ms."""

LOAD_SLICE_SECONDS: Final = 0.001
"""Time that reading the store takes before others have their turn."""

RETRY_SECONDS: Final = 5.0
"""Pause after something went wrong that nobody expected."""

UNSENT_BYTES_MAX: Final = 1024 * 1024
"""A producer with so many bytes unread is asked nothing more; another one of its group is."""

QUESTIONS_MAX: Final = 1_000
"""Questions that wait until their halves are as safe as messages; then the pass waits, too. Sends wait in the
same list, which has a limit."""

UNSENT_PAUSE_SECONDS: Final = 0.01
"""How long a pass waits for such a producer before it sees again whether it reads."""

UNSENT_PAUSES_MAX: Final = 100
"""How often it does so before it goes on."""

LOGGED_MAX: Final = 20
"""Transactions given up in one pass of which each is logged; then only their number is."""

PRODUCERS_TRIED: Final = 3
"""Producers of a group of which one is looked for that reads."""


class _NotThereYet(Exception):
    """What is in the log is not safe yet, so that it cannot be read, or nobody be asked: the pass ends."""


def _group_of(half: Record) -> str | None:
    group = find_property(half.properties, Property.PGROUP.encode())
    return None if group is None else group.decode("utf-8", "replace")


def _topic_of(half: Record) -> str:
    topic = find_property(half.properties, Property.REAL_TOPIC.encode())
    return "" if topic is None else topic.decode("utf-8", "replace")


def _reads(channel: Channel) -> bool:
    return channel.unsent_bytes < UNSENT_BYTES_MAX


class TransactionChecks:
    """Reads what is open when the broker begins to lead, then checks it from time to time.

    A `RoleService`: it runs where the broker leads.
    """

    name: Final = "transactions"

    def __init__(
        self,
        *,
        live: LiveSettings,
        store: MessageStore,
        clock: Clock,
        log_of_transactions: TransactionLog,
        topics: TopicManager,
        offsets: OffsetManager,
        producers: ProducerTable,
        admission: Admission,
        may_ask: Callable[[Channel, str], bool] = lambda _channel, _topic: True,
    ) -> None:
        """`may_ask` says whether a client may be asked about a message of a topic, which it is sent: producer
        groups are what clients say."""
        self._may_ask = may_ask
        self._live = live
        self._store = store
        self._clock = clock
        self._log = log_of_transactions
        self._topics = topics
        self._offsets = offsets
        self._producers = producers
        self._admission = admission
        self._task: asyncio.Task[None] | None = None
        folder = live.current.store_path_root_dir / "config"
        self._file = ConfigFile(folder / "transactionMetrics", lambda: self.counts.table().encode)
        self._saved: tuple[int, int] | None = None
        self._unasked: set[str] = set()
        self._asked: Channel | None = None
        self._questions = 0
        self._is_unsafe = False
        self._given_up_before = 0
        self.checks = 0
        """Questions sent to producers since start."""
        self.given_up = 0
        """Half messages given up since start."""

    @property
    def counts(self) -> TransactionCounts:
        """What was begun and ended."""
        return self._log.counts

    @property
    def metrics_path(self) -> Path:
        """`config/transactionMetrics`."""
        return self._file.path

    # -- the role -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Called on the loop by a master, before it serves."""
        self._task = asyncio.get_running_loop().create_task(self._run(self._log.begin_loading()))

    async def drain(self) -> None:
        """Name what was ended in this turn in op records."""
        self._log.write_ops()

    def stop(self) -> None:
        """Append nothing any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = self._asked = None
            self._log.stop()

    async def _run(self, ends: LogEnds) -> None:
        while not await self._load(TransactionLoading(self._store, self._offsets, ends)):  # noqa: ASYNC110  # of a disk
            await asyncio.sleep(RETRY_SECONDS)
        clock = self._clock
        checked = clock.monotonic()
        while True:
            interval = self._live.current.transaction_check_interval / 1000
            due = checked + interval - clock.monotonic()
            await asyncio.sleep(min(max(due, 0.01), PROGRESS_SECONDS))
            try:
                if self._admission.refuses_writes:
                    pass  # nobody could be asked before what is stored now is safe
                elif clock.monotonic() >= checked + self._live.current.transaction_check_interval / 1000:
                    if await self._pass():
                        checked = clock.monotonic()
                    else:
                        await asyncio.sleep(PROGRESS_SECONDS)
                else:
                    await self._keep_up()
            except Exception:  # the edge of a task: without it nothing would be checked any more
                log.error("checking transactions failed; it goes on soon", exc_info=True)
                checked = clock.monotonic()
                await asyncio.sleep(RETRY_SECONDS)

    async def _load(self, loading: TransactionLoading) -> bool:
        """Read the store; False if that failed, and nothing can be ended before it works."""
        began = self._clock.monotonic()
        until = began + LOAD_SLICE_SECONDS
        try:
            for _ in loading.steps():
                if self._clock.monotonic() >= until:
                    await asyncio.sleep(0)
                    until = self._clock.monotonic() + LOAD_SLICE_SECONDS
        except Exception:  # the edge of a task
            log.critical("open transactions cannot be read from the store; it is tried again", exc_info=True)
            return False
        resolved = loading.resolved
        known = self._offsets.query(TRANSACTION_GROUP, HALF_TOPIC, HALF_QUEUE_ID) is not None
        self._saved = (resolved.half_progress, resolved.op_progress) if known else None
        self._log.loaded(resolved, loading.topics)
        halves = len(loading.topics)
        if halves:
            log.info(
                "transactions are known",
                half_messages=halves,
                not_ended=sum(1 for _ in resolved.open_halves()),
                seconds=round(self._clock.monotonic() - began, 3),
            )
        return True

    # -- progress -----------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Move the progress over what has ended, so that whoever leads next has little to read."""
        resolved = self._resolved()
        while True:
            self._log.write_ops()  # before the progress passes what they name
            before = resolved.half_progress
            resolved.advance(resolved.passable_end(PROGRESS_HALVES_MAX))
            if resolved.half_progress - before < PROGRESS_HALVES_MAX:
                break
            await asyncio.sleep(0)
        await self._save(SaveProgress(resolved.half_progress, resolved.op_progress))

    async def _save(self, progress: SaveProgress) -> None:
        """Save it when all that it stands for is as safe as messages; else the next one is for both.

        From the first half on, so that who drains a broker sees by the group's lag that something is open.
        """
        wanted = (progress.half_progress, progress.op_progress)
        if wanted == self._saved or not self._resolved().half_end or not await self._is_safe():
            return  # without any transaction ever, there is no progress, as with Java
        self._saved = wanted
        for topic, queue_offset in zip((HALF_TOPIC, OP_HALF_TOPIC), wanted, strict=True):
            self._offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE_ID, queue_offset, BROKER)

    async def _write_progress(self) -> None:
        """Have the file say it soon: op records do not name copies below the progress any more, and a Java
        broker that goes on with the store from an older one would ask about those again."""
        try:
            await self._offsets.saved()
        except OSError as error:
            log.error("the progress of transactions cannot be written", reason=str(error))

    async def _is_safe(self) -> bool:
        end = self._log.end
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(safe: bool) -> None:
            if not done.done():
                done.set_result(safe)

        when_durable = self._admission.when_durable
        if when_durable is None:
            self._store.when_flushed(end, answer)
        else:
            when_durable(end, lambda status: answer(status is PutStatus.PUT_OK))
        return await done

    def _resolved(self) -> Resolved:
        resolved = self._log.resolved
        assert resolved is not None, "it is known as long as this runs"
        return resolved

    # -- a pass -------------------------------------------------------------------------------------------

    async def _pass(self) -> bool:
        """Make one. False if nobody could be asked, as what is stored does not become safe: each half would
        lose a check."""
        if self._admission.when_durable is not None and not await self._is_safe():
            return False
        self._is_unsafe = False
        settings = self._live.current
        limits = CheckLimits(
            transaction_timeout_ms=settings.transaction_time_out,
            check_max=settings.transaction_check_max,
            reserved_ms=settings.file_reserved_time * 3_600_000,
        )
        self._unasked.clear()
        self._given_up_before = self.given_up
        started_ms = max(self._clock.now_ms(), self._store.log.store_timestamp)
        steps = check_pass(self._resolved(), limits, started_ms=started_ms)
        answer: Answer
        try:
            step = next(steps)
            while True:
                answer = None
                match step:
                    case ReadHalf():
                        answer = self._read(step.queue_offset)
                    case Append():
                        answer = self._append(step)
                    case CanAsk():
                        answer = self._can_ask(step.half)
                    case SendCheck():
                        await self._ask(step.half)
                    case GivenUp():
                        self._note(step)
                    case Pause():
                        self._log.write_superseded()
                        await asyncio.sleep(0)
                    case SaveProgress():
                        self._log.write_superseded()  # the progress stands for it
                        await self._save(step)
                        await self._write_progress()
                self._log.write_ops()  # before the progress passes what they name
                step = steps.send(answer)
        except (StopIteration, _NotThereYet):
            pass
        finally:
            steps.close()
            self._log.write_superseded()
        more = self.given_up - self._given_up_before - LOGGED_MAX
        if more > 0:
            log.error("more transactions are given up", count=more)
        return True

    def _read(self, queue_offset: int) -> Record | NoHalf:
        if self._is_unsafe:
            raise _NotThereYet
        store = self._store
        offset = self._resolved().place_of(queue_offset)
        if offset is None:
            first = store.queue_min(HALF_TOPIC, HALF_QUEUE_ID)
            if queue_offset < first:
                return NoHalf(first, "the log does not have it any more")
            unit = store.unit(HALF_TOPIC, HALF_QUEUE_ID, queue_offset)
            if unit is None:
                return NoHalf(queue_offset + 1, "the half topic has nothing there")
            offset = unit[0]
        if offset >= store.max_offset:
            raise _NotThereYet  # in a DLedger what is not committed yet
        half = self._log.read_half(offset)
        if half is None or half.queue_offset != queue_offset:
            return NoHalf(queue_offset + 1, f"there is no half message at offset {offset} of the log")
        return half

    def _append(self, step: Append) -> Place | NotAppended:
        message = step.message
        try:
            if message.topic == HALF_TOPIC:
                appended = self._log.append_half(message, step.supersedes)
            elif self._topics.create_own(message.topic) is None:
                return NotAppended(False, f"topic[{message.topic}] cannot be made")
            else:
                appended = self._log.append(message)
        except StoreRefused as refused:
            log.warning("a half message waits for the store", topic=message.topic, reason=refused.reason)
            return NotAppended(refused.is_final, refused.reason)
        self._log.end = appended.end
        return Place(appended.queue_offset, appended.offset, appended.store_timestamp)

    def _note(self, step: GivenUp) -> None:
        self.given_up += 1
        target = "unknown"
        if step.half is not None:
            try:
                target, _ = target_of(step.half)
            except FormatError:
                pass
            else:
                self.counts.given_up(target)
        if self.given_up - self._given_up_before > LOGGED_MAX:
            return
        log.error(
            "a transaction is given up: its message stays undelivered until somebody resumes it",
            topic=target,
            queue_offset=step.queue_offset,
            reason=step.reason,
        )

    # -- questions ----------------------------------------------------------------------------------------

    def _can_ask(self, half: Record) -> bool:
        """Whether a producer of its group is connected, and reads what it is asked.

        A half that names no group counts as asked about, so that it is given up: nobody will ever come.
        """
        group, topic = _group_of(half), _topic_of(half)
        if group is None or self._producers.any_of(
            group, lambda channel: _reads(channel) and self._may_ask(channel, topic)
        ):
            return True
        self._not_asked(group, "none is connected that reads what it is asked, and may send to the topic")
        return False

    async def _ask(self, half: Record) -> None:
        """Ask a producer when the copy that it is to answer for is as safe as a message."""
        group = _group_of(half)
        if group is None:
            self._not_asked("", "a half message names no producer group")
            return
        await self._let_read()
        end = half.offset + half.size
        ask = partial(self._ask_now, group, half)
        self._questions += 1
        when_durable = self._admission.when_durable
        if when_durable is None:
            ask(PutStatus.PUT_OK)
        else:
            when_durable(end, ask)

    def _ask_now(self, group: str, half: Record, status: PutStatus) -> None:
        self._questions -= 1
        self._is_unsafe |= status is not PutStatus.PUT_OK
        if self._log.resolved is None or status is not PutStatus.PUT_OK:
            return  # the next pass asks again
        topic = _topic_of(half)
        for _ in range(PRODUCERS_TRIED):
            channel = self._producers.pick(group, lambda channel: self._may_ask(channel, topic))
            if channel is None:
                self._not_asked(group, "none is connected")
                return
            if _reads(channel):
                break
        else:
            self._not_asked(group, "those that are connected do not read what they were asked")
            return
        header, body = check_request(half, self._live.current.broker_name)
        self._asked = channel
        channel.notify(Command(RequestCode.CHECK_TRANSACTION_STATE, ext=header.to_ext(), body=body))
        self.checks += 1

    def _not_asked(self, group: str, reason: str) -> None:
        """Once for each group and pass. A check counts if a producer was there when the pass came to it."""
        if group not in self._unasked:
            self._unasked.add(group)
            log.warning("no producer can be asked about its transactions", group=group, reason=reason)

    async def _let_read(self) -> None:
        """Many questions: let halves become safe, and the producer asked last take what it was asked."""
        while self._questions >= QUESTIONS_MAX:  # noqa: ASYNC110  # each is answered, in time or not
            await asyncio.sleep(UNSENT_PAUSE_SECONDS)
        for _ in range(UNSENT_PAUSES_MAX):
            if self._asked is None or self._asked.unsent_bytes < UNSENT_BYTES_MAX:
                return
            await asyncio.sleep(UNSENT_PAUSE_SECONDS)
        self._asked = None

    # -- metrics ------------------------------------------------------------------------------------------

    async def write_metrics(self) -> None:
        """Write `config/transactionMetrics` every `transactionMetricFlushInterval`, until cancelled."""
        while True:
            await asyncio.sleep(self._live.current.transaction_metric_flush_interval / 1000)
            try:
                await self.persist()
            except OSError as error:
                log.error("transactionMetrics cannot be written", reason=str(error))

    async def persist(self) -> None:
        """Write it if something has changed. Raises OSError."""
        if not self._live.current.enable_transaction_metrics or not self.counts.changed:
            return
        self.counts.changed = False
        self._file.touch()
        try:
            await self._file.saved()
        except OSError:
            self.counts.changed = True
            raise
