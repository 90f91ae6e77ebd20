"""The transactional outbox on a real SQLite file: rolled back, crashed at every step, two processes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, select, update
from sqlalchemy.dialects import mssql, mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable

from brokerset_client.errors import MessageInvalid
from brokerset_client.messages import Message
from brokerset_client.ordered.outbox.adding import OUTBOX_ID, Outbox
from brokerset_client.ordered.outbox.lease import NOBODY, LeaseRow, LeaseTable, LeaseWatch
from brokerset_client.ordered.outbox.sending import OutboxSender, OutboxSettings, ThreadTransactions
from brokerset_client.ordered.outbox.tables import OutboxTables
from brokerset_client.ordered.producing.producer import EpochGuard, OrderedProducer
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_sim.loop import VirtualLoop
from brokerset_sim.ordered_send_model import ModelSubject
from brokerset_sim.ordered_send_transport import LoopClock, ModelTransport

T = TypeVar("T")

TABLES = OutboxTables()
SETTINGS = OutboxSettings(poll_ms=250, lease_ms=1_500, beat_ms=500, retry_ms=100)


class Crash(BaseException):
    """The process ends here."""


class Steps:
    """Counts what a process does, and ends it at one step."""

    def __init__(self, crash_at: int = 0) -> None:
        self.count = 0
        self.crash_at = crash_at

    def pass_one(self) -> None:
        self.count += 1
        if self.crash_at and self.count >= self.crash_at:
            raise Crash  # and whatever else the process does ends here, too


class InlineTransactions:
    """Transactions in the loop, with a step before the work, before the commit, and behind it."""

    def __init__(self, engine: Engine, steps: Steps | None = None) -> None:
        self._engine = engine
        self._steps = steps or Steps()
        self.paused = asyncio.Event()
        self.paused.set()

    async def run(self, work: Callable[[Connection], T]) -> T:
        await self.paused.wait()
        self._steps.pass_one()
        with self._engine.begin() as connection:
            result = work(connection)
            self._steps.pass_one()
        self._steps.pass_one()
        return result


class SteppedTransport(ModelTransport):
    """A process may end before a request leaves it, and before it reads the answer."""

    def __init__(self, model: ModelSubject, steps: Steps | None = None) -> None:
        super().__init__(model)
        self._steps = steps or Steps()

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        self._steps.pass_one()
        answer = await super().ask_master(topic, broker_group, command, timeout)
        self._steps.pass_one()
        return answer


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/orders.db")
    # A real file; but what these tests end is a process, and never the machine.
    event.listen(made, "connect", lambda raw, _record: raw.execute("PRAGMA synchronous=OFF"))
    TABLES.metadata.create_all(made)
    yield made
    made.dispose()


def model(order: OrderStrategy = OrderStrategy.STRICT) -> ModelSubject:
    made = ModelSubject("orders", order, ("broker-a", "broker-b"))
    made.scale(2)
    return made


def sender(
    database: InlineTransactions, transport: ModelTransport, owner: str = "one", seed: int = 1
) -> OutboxSender:
    def make_producer(producer_id: str, guard: EpochGuard) -> OrderedProducer:
        return OrderedProducer(
            transport,
            clock=LoopClock(),
            producer_id=producer_id,
            random=Random(seed),
            may_use_epoch=guard,
        )

    return OutboxSender(
        database, make_producer, owner=owner, tables=TABLES, clock=LoopClock(), settings=SETTINGS
    )


def add(engine: Engine, *pairs: tuple[str, str]) -> None:
    """One transaction for each key and text."""
    outbox = Outbox(TABLES, random=Random(3))
    for key, text in pairs:
        with engine.begin() as connection:
            outbox.add(connection, Message(topic="orders", body=text.encode()), key)


def rows(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(connection.execute(select(func.count()).select_from(TABLES.messages)).scalar_one())


def texts(subject: ModelSubject, key: str) -> list[str]:
    return [each.body.decode() for each in subject.logged() if each.key == key]


def once(found: list[str]) -> list[str]:
    """Without repetitions that come directly behind the first one."""
    return [text for at, text in enumerate(found) if at == 0 or text != found[at - 1]]


def run(scene: Callable[[], Awaitable[None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # a table of a database has no event
            await asyncio.sleep(0.2)


def test_rows_are_sent_in_their_order_and_deleted(engine: Engine) -> None:
    """Committed rows are sent per key in the order of their ids, with all they have (statement 34)."""

    async def scene() -> None:
        subject = model()
        add(engine, *[(f"k{number % 3}", str(number)) for number in range(30)])
        with engine.begin() as connection:
            rich = Message(
                topic="orders", body=b"rich", tags="t", keys=("a", "b"), flag=7, properties={"x": "ü"}
            )
            number = Outbox(TABLES).add(connection, rich, "rich")
        sending = sender(InlineTransactions(engine), ModelTransport(subject))
        running = asyncio.ensure_future(sending.run())
        await until(lambda: rows(engine) == 0)
        sending.stop()
        await running

        for key in range(3):
            assert texts(subject, f"k{key}") == [str(number) for number in range(30) if number % 3 == key]
        (found,) = [each for each in subject.logged() if each.key == "rich"]
        assert {name: found.properties[name] for name in ("TAGS", "KEYS", "x", OUTBOX_ID)} == {
            "TAGS": "t",
            "KEYS": "a b",
            "x": "ü",
            OUTBOX_ID: f"outbox:{number}",
        }

    run(scene)


def test_a_rolled_back_message_is_never_sent(engine: Engine) -> None:
    """A message of a transaction that was rolled back is never sent, whatever its id (statement 35)."""

    async def scene() -> None:
        subject = model()
        outbox = Outbox(TABLES)
        add(engine, ("k", "1"))
        with engine.connect() as connection:
            outbox.add(connection, Message(topic="orders", body=b"never"), "k")
            connection.rollback()
        add(engine, ("k", "2"))
        sending = sender(InlineTransactions(engine), ModelTransport(subject))
        running = asyncio.ensure_future(sending.run())
        await until(lambda: rows(engine) == 0)
        sending.stop()
        await running

        assert texts(subject, "k") == ["1", "2"]

    run(scene)


def test_a_crash_at_every_step_loses_nothing_and_keeps_the_order(engine: Engine) -> None:
    """A crash anywhere: keys in order; a repetition comes directly behind (statement 34)."""

    async def crashed(subject: ModelSubject, steps: Steps) -> None:
        transport = SteppedTransport(subject, steps)
        sending = sender(InlineTransactions(engine, steps), transport, "first")
        running = asyncio.ensure_future(sending.run())
        failures: list[BaseException] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
        for _ in range(200):
            await asyncio.sleep(0.01)
            if steps.count >= steps.crash_at or running.done():
                break
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)
        await asyncio.gather(running, return_exceptions=True)

    async def scene(crash_at: int) -> tuple[bool, list[str]]:
        subject = model()
        add(engine, *[(f"k{number % 2}", str(number)) for number in range(4)])
        steps = Steps(crash_at)
        with contextlib.suppress(Crash):
            await crashed(subject, steps)
        again = sender(InlineTransactions(engine), ModelTransport(subject), "second", seed=2)
        running = asyncio.ensure_future(again.run())
        await until(lambda: rows(engine) == 0)
        again.stop()
        await running
        for key in range(2):
            own = [str(number) for number in range(4) if number % 2 == key]
            assert once(texts(subject, f"k{key}")) == own, crash_at
        found = texts(subject, "k0") + texts(subject, "k1")
        return steps.count >= crash_at, found

    repeated = 0
    for crash_at in range(1, 200):
        loop = VirtualLoop()
        try:
            reached, found = loop.run_until_complete(scene(crash_at))
        finally:
            loop.close()
        with engine.begin() as connection:
            connection.execute(TABLES.lease.delete())
        repeated += len(found) > 4
        if not reached:
            break

    assert crash_at > 20
    assert repeated > 1


class GatedTransport(ModelTransport):
    """Requests of a process that can be paused: what it has sent arrives when it goes on."""

    def __init__(self, subject: ModelSubject) -> None:
        super().__init__(subject)
        self.sends_pass = asyncio.Event()
        self.sends_pass.set()
        self.epochs_pass = asyncio.Event()
        self.epochs_pass.set()

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        await self.sends_pass.wait()
        return await super().ask_master(topic, broker_group, command, timeout)

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        if command.code == RequestCode.BROKERSET_START_PRODUCER:
            await self.epochs_pass.wait()
        return await super().ask_controllers(command, timeout)


def test_the_second_process_waits_and_takes_over_at_once_after_a_stop(engine: Engine) -> None:
    """One process sends at a time; after a graceful end the other one follows at once."""

    async def scene() -> None:
        subject = model()
        transport = ModelTransport(subject)
        first = sender(InlineTransactions(engine), transport, "first")
        second = sender(InlineTransactions(engine), transport, "second")
        running = [asyncio.ensure_future(each.run()) for each in (first, second)]
        await asyncio.sleep(30)
        assert (first.is_owner, second.is_owner) == (True, False)
        first.stop()
        await running[0]
        stopped = asyncio.get_running_loop().time()
        await until(lambda: second.is_owner)
        assert asyncio.get_running_loop().time() - stopped <= SETTINGS.beat_ms / 1000 + 0.2
        add(engine, ("k", "1"))
        await until(lambda: rows(engine) == 0)
        second.stop()
        await running[1]

        assert texts(subject, "k") == ["1"]

    run(scene)


@pytest.mark.parametrize("paused", ["before its send", "before its epoch"])
def test_a_paused_owner_cannot_disturb_the_order(engine: Engine, paused: str) -> None:
    """A process that slept through the end of its lease is fenced, wherever it slept (statements 26, 34)."""
    assert _with_a_paused_owner(engine, paused, guarded=True) == ["1", "2", "3"]


def test_without_its_guard_a_paused_owner_would_disturb_the_order(engine: Engine) -> None:
    """The test before can fail: an epoch that is used without asking for the lease repeats a message late."""
    assert _with_a_paused_owner(engine, "before its epoch", guarded=False) == ["1", "2", "3", "1"]


def _with_a_paused_owner(engine: Engine, paused: str, *, guarded: bool) -> list[str]:
    subject = model()

    async def unguarded(_subject: str, _epoch: int) -> bool:
        return True

    async def scene() -> None:
        add(engine, ("k", "1"), ("k", "2"), ("k", "3"))
        database, transport = InlineTransactions(engine), GatedTransport(subject)
        (transport.sends_pass if paused == "before its send" else transport.epochs_pass).clear()
        first = sender(database, transport, "first")
        if not guarded:
            first._guard = lambda epoch: unguarded  # type: ignore[method-assign]  # the broken variant
        running = [asyncio.ensure_future(first.run())]
        await asyncio.sleep(0.3)
        database.paused.clear()  # it sleeps: nothing of it reaches the database, either
        second = sender(InlineTransactions(engine), ModelTransport(subject), "second", seed=2)
        running.append(asyncio.ensure_future(second.run()))
        await until(lambda: rows(engine) == 0)
        transport.sends_pass.set()
        transport.epochs_pass.set()
        if not guarded:
            await asyncio.sleep(1)
        database.paused.set()
        await asyncio.sleep(1)
        for each in (first, second):
            each.stop()
        await asyncio.gather(*running)

    run(scene)
    return texts(subject, "k")


def test_a_message_that_is_refused_stops_its_key_alone(engine: Engine) -> None:
    """The broker refuses a row: it keeps the reason, its key waits for somebody, other keys go on."""

    async def scene() -> None:
        subject = model()
        subject.illegal = {b"bad"}
        add(engine, ("k", "1"), ("k", "bad"), ("k", "2"), ("other", "3"))
        sending = sender(InlineTransactions(engine), ModelTransport(subject))
        running = asyncio.ensure_future(sending.run())
        await asyncio.sleep(10)
        assert texts(subject, "k") == ["1"]
        assert texts(subject, "other") == ["3"]
        with engine.begin() as connection:
            problem = TABLES.messages.c.problem
            (reason,) = connection.execute(select(problem).where(problem.is_not(None))).scalars()
            assert "refuses" in reason
            connection.execute(
                update(TABLES.messages).where(problem.is_not(None)).values(body=b"good", problem=None)
            )
        await until(lambda: rows(engine) == 0)
        sending.stop()
        await running

        assert texts(subject, "k") == ["1", "good", "2"]

    run(scene)


def test_a_dead_broker_and_a_failing_database_only_delay(engine: Engine) -> None:
    """Failures of both sides are tried again; the order stays, and nothing is lost (statements 27, 34)."""

    async def scene() -> None:
        subject = model()
        transport = ModelTransport(subject)
        database = FailingTransactions(engine)
        add(engine, *[("k", str(number)) for number in range(8)])
        sending = sender(database, transport)
        running = asyncio.ensure_future(sending.run())
        transport.down = {"broker-a", "broker-b"}
        await asyncio.sleep(10)
        transport.down = set()
        database.fail_each = 3
        await asyncio.sleep(5)
        database.fail_each = 0
        await until(lambda: rows(engine) == 0)
        sending.stop()
        await running

        assert once(texts(subject, "k")) == [str(number) for number in range(8)]

    run(scene)


class FailingTransactions(InlineTransactions):
    """Every so many transactions the database is not there when it shall commit."""

    fail_each = 0
    fail_next = 0
    _runs = 0

    async def run(self, work: Callable[[Connection], T]) -> T:
        self._runs += 1
        failing = self.fail_each and self._runs % self.fail_each == 0
        if self.fail_next:
            self.fail_next -= 1
            failing = True
        if failing:
            with self._engine.connect() as connection:
                work(connection)
                connection.rollback()
            raise OperationalError("COMMIT", None, Exception("the server has gone away"))
        return await super().run(work)


def test_a_full_producer_does_not_stop_the_beat(engine: Engine) -> None:
    """Rows that find no room in the producer wait in the table, and the owner stays owner (statement 30)."""

    async def scene() -> None:
        subject = model()
        transport = ModelTransport(subject)
        transport.down = {"broker-a", "broker-b"}
        add(engine, *[(f"k{number}", "x" * 500) for number in range(20)])
        sending = OutboxSender(
            InlineTransactions(engine),
            lambda producer_id, guard: OrderedProducer(
                transport,
                clock=LoopClock(),
                producer_id=producer_id,
                settings=ProducerSettings(bytes_max=4_000),
                random=Random(1),
                may_use_epoch=guard,
            ),
            owner="one",
            tables=TABLES,
            clock=LoopClock(),
            settings=SETTINGS,
        )
        running = asyncio.ensure_future(sending.run())
        other = LeaseWatch(SETTINGS.lease_ms)
        lease = LeaseTable(TABLES, "outbox")
        for _ in range(100):
            await asyncio.sleep(0.1)
            with engine.begin() as connection:
                assert not other.may_take(lease.read(connection), asyncio.get_running_loop().time())
        transport.down = set()
        await until(lambda: rows(engine) == 0)
        sending.stop()
        await running

        assert len(subject.logged()) == 20

    run(scene)


def test_what_cannot_be_sent_never_gets_into_the_table(engine: Engine) -> None:
    """`add` raises in the business transaction for what no broker would take."""
    outbox = Outbox(TABLES)
    bad = (
        Message(topic="orders"),
        Message(topic="or/ders", body=b"x"),
        Message(topic="orders", body=b"x", delay_level=1),
        Message(topic="orders", body=bytes(5_000_000)),
        Message(topic="orders", body=b"x", properties={OUTBOX_ID: "1"}),
        Message(topic="orders", body=b"x", properties={"a": "x" * 33_000}),
        Message(topic="orders", body=b"x", system_properties={"UNIQ_KEY": "1"}),
    )

    for message in bad:
        with engine.begin() as connection, pytest.raises(MessageInvalid):
            outbox.add(connection, message, "k")

    assert rows(engine) == 0


def test_a_lease_is_taken_only_from_who_is_silent() -> None:
    """Counts that change keep the lease; one that stays as long as the lease gives it up."""
    watch = LeaseWatch(1_000)

    assert watch.may_take(None, 0.0)
    assert not watch.may_take(LeaseRow("a", 1, 0), 0.0)
    assert not watch.may_take(LeaseRow("a", 1, 1), 0.9)
    assert not watch.may_take(LeaseRow("a", 1, 1), 1.8)
    assert watch.may_take(LeaseRow("a", 1, 1), 2.0)
    assert watch.may_take(LeaseRow(NOBODY, 1, 2), 2.0)


def test_of_two_candidates_one_becomes_owner(engine: Engine) -> None:
    """Who acts on what another one has changed meanwhile gets nothing, and epochs only grow."""
    lease = LeaseTable(TABLES, "outbox")

    with engine.begin() as connection:
        assert lease.take(connection, None, "a") == 1
        seen = lease.read(connection)
        assert lease.still(connection, 1)
        assert lease.take(connection, seen, "b") is None
        seen = lease.read(connection)
        assert lease.take(connection, seen, "b") == 2
        assert lease.take(connection, seen, "c") is None
        assert not lease.still(connection, 1)
        lease.release(connection, 1)
        assert lease.read(connection) == LeaseRow("b", 2, 0)
        lease.release(connection, 2)
        assert not lease.still(connection, 2)


def test_transactions_run_in_a_thread(engine: Engine) -> None:
    """Work commits if it returns, rolls back if it raises, and never runs in the loop's thread."""

    async def scene() -> None:
        database = ThreadTransactions(engine)
        outbox = Outbox(TABLES)
        threads: list[int] = []

        def work(connection: Connection) -> int:
            threads.append(threading.get_ident())
            return outbox.add(connection, Message(topic="orders", body=b"x"), "k")

        def fails(connection: Connection) -> int:
            work(connection)
            raise ZeroDivisionError

        assert await database.run(work) == 1
        with pytest.raises(ZeroDivisionError):
            await database.run(fails)
        assert threading.get_ident() not in threads

    asyncio.run(scene())

    assert rows(engine) == 1


def test_an_engine_of_the_application_is_enough(engine: Engine) -> None:
    """On a usual loop, with the database in threads, while rows are added: sent in order, and deleted."""
    subject = model()

    async def scene() -> None:
        transport = ModelTransport(subject, latency=0.0)
        sending = OutboxSender(
            engine,
            lambda producer_id, guard: OrderedProducer(
                transport, producer_id=producer_id, may_use_epoch=guard
            ),
            owner="one",
            tables=TABLES,
        )
        running = asyncio.ensure_future(sending.run())
        for number in range(10):
            await asyncio.to_thread(add, engine, ("k", str(number)))
            sending.wake()
        async with asyncio.timeout(20):
            while await asyncio.to_thread(rows, engine):  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.01)
        sending.stop()
        await running

    asyncio.run(scene())

    assert texts(subject, "k") == [str(number) for number in range(10)]


@pytest.mark.parametrize("database_answers", [True, False])
def test_a_stop_while_an_epoch_is_asked_for_releases_the_lease(
    engine: Engine, database_answers: bool
) -> None:
    """Who is stopped before its first epoch was given lets the next process begin at once."""

    async def scene() -> None:
        add(engine, ("k", "1"))
        subject = model()
        database, transport = FailingTransactions(engine), GatedTransport(subject)
        transport.epochs_pass.clear()
        sending = sender(database, transport)
        running = asyncio.ensure_future(sending.run())
        await asyncio.sleep(0.4)
        sending.stop()
        await asyncio.sleep(0)
        if not database_answers:
            database.fail_next = 1
        transport.epochs_pass.set()
        await running
        with engine.begin() as connection:
            found = LeaseTable(TABLES, "outbox").read(connection)

        assert found is not None
        assert found.owner == NOBODY
        assert (texts(subject, "k"), rows(engine)) == ((["1"], 0) if database_answers else ([], 1))

    run(scene)


def test_a_producer_with_too_many_subjects_does_not_condemn_rows(engine: Engine) -> None:
    """A limit of the producer is no problem of the row: it stays, and other subjects go on."""

    async def scene() -> None:
        subject, other = model(), ModelSubject("other", OrderStrategy.STRICT, ("broker-a", "broker-b"))
        other.scale(2)
        transport = ModelTransport(subject, other)
        add(engine, ("k", "1"))
        with engine.begin() as connection:
            Outbox(TABLES).add(connection, Message(topic="other", body=b"x"), "k")
        add(engine, ("k", "2"))
        sending = OutboxSender(
            InlineTransactions(engine),
            lambda producer_id, guard: OrderedProducer(
                transport,
                clock=LoopClock(),
                producer_id=producer_id,
                settings=ProducerSettings(subjects_max=1),
                may_use_epoch=guard,
            ),
            owner="one",
            tables=TABLES,
            clock=LoopClock(),
            settings=SETTINGS,
        )
        running = asyncio.ensure_future(sending.run())
        await asyncio.sleep(5)
        sending.stop()
        await running

        assert texts(subject, "k") == ["1", "2"]
        with engine.begin() as connection:
            messages = TABLES.messages.c
            left = connection.execute(select(messages.subject, messages.problem)).all()
        assert [tuple(row) for row in left] == [("other", None)]

    run(scene)


@pytest.mark.parametrize(
    ("dialect", "body", "text", "owner"),
    [
        (sqlite.dialect(), "BLOB", "TEXT", "VARCHAR(128)"),
        (postgresql.dialect(), "BYTEA", "TEXT", "VARCHAR(128)"),  # type: ignore[no-untyped-call]  # SQLAlchemy
        (mysql.dialect(), "MEDIUMBLOB", "MEDIUMTEXT", "VARCHAR(128)"),
        (mssql.dialect(deprecate_large_types=True), "VARBINARY(max)", "NVARCHAR(max)", "NVARCHAR(128)"),  # type: ignore[no-untyped-call]  # SQLAlchemy
    ],
)
def test_tables_fit_the_databases_that_are_meant(dialect: Dialect, body: str, text: str, owner: str) -> None:
    """Bodies and texts have types that take 4 MiB, and every character, in each of these databases."""
    made = str(CreateTable(TABLES.messages).compile(dialect=dialect))
    lease = str(CreateTable(TABLES.lease).compile(dialect=dialect))

    assert f"body {body} NOT NULL" in made
    for column in ("order_key", "properties", "problem"):
        assert f"{column} {text}" in made
    assert f"owner {owner}" in lease


def test_nobody_is_not_the_name_of_an_owner() -> None:
    """The mark of a released lease is a text that is not empty, and no process may be called so."""
    assert NOBODY
    with pytest.raises(ValueError, match="use another name"):
        OutboxSender(
            create_engine("sqlite://"), lambda _name, _guard: pytest.fail("it is not used"), owner=NOBODY
        )
