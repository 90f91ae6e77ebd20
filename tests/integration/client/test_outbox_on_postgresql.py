"""The transactional outbox on a real PostgreSQL: locks, ids and concurrent transactions are not SQLite's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, select, text
from sqlalchemy.exc import DataError, IntegrityError

from brokerset_client.messages import Message
from brokerset_client.ordered.outbox.adding import OUTBOX_ID, Outbox
from brokerset_client.ordered.outbox.lease import LeaseTable
from brokerset_client.ordered.outbox.sending import OutboxSender, OutboxSettings
from brokerset_client.ordered.outbox.tables import OutboxTables
from brokerset_client.ordered.producing.producer import EpochGuard, OrderedProducer
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.postgresql import postgresql
from brokerset_rig.waiting import until
from brokerset_sim.ordered_send_model import ModelSubject
from brokerset_sim.ordered_send_transport import ModelTransport

pytestmark = pytest.mark.long

TABLES = OutboxTables()
SETTINGS = OutboxSettings(poll_ms=50, lease_ms=600, beat_ms=200, retry_ms=50)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The address of a server that runs for this module alone."""
    with postgresql() as address:
        yield address


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = create_engine(database)
    TABLES.metadata.create_all(made)
    yield made
    TABLES.metadata.drop_all(made)
    made.dispose()


def model() -> ModelSubject:
    made = ModelSubject("orders", OrderStrategy.STRICT, ("broker-a", "broker-b"))
    made.scale(2)
    return made


def sender(engine: Engine, transport: ModelTransport, owner: str) -> OutboxSender:
    def make_producer(producer_id: str, guard: EpochGuard) -> OrderedProducer:
        return OrderedProducer(transport, producer_id=producer_id, may_use_epoch=guard)

    return OutboxSender(engine, make_producer, owner=owner, tables=TABLES, settings=SETTINGS)


def add(connection: Connection, key: str, body: str) -> int:
    return Outbox(TABLES, random=Random(3)).add(
        connection, Message(topic="orders", body=body.encode(), properties={"x": "ü€"}), key
    )


def rows(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(connection.execute(select(func.count()).select_from(TABLES.messages)).scalar_one())


def texts(subject: ModelSubject, key: str) -> list[str]:
    return [each.body.decode() for each in subject.logged() if each.key == key]


def in_threads(*works: Callable[[], object]) -> list[object]:
    """Results, or errors, of works that run at the same time."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
        return [each.exception() or each.result() for each in running]


async def test_rows_of_transactions_are_sent_in_order_unless_they_were_rolled_back(engine: Engine) -> None:
    """Bodies of all bytes, texts of all characters; an id is never used again (statements 34, 35)."""
    subject = model()
    with engine.begin() as connection:
        numbers = [add(connection, f"k{number % 3}", str(number)) for number in range(30)]
        binary = Message(topic="orders", body=bytes(range(256)), tags="t")
        Outbox(TABLES).add(connection, binary, "")
    with engine.connect() as connection:
        add(connection, "k0", "never")
        connection.rollback()
    sending = sender(engine, ModelTransport(subject), "one")
    running = asyncio.ensure_future(sending.run())
    await until(lambda: rows(engine) == 0)
    sending.stop()
    await running
    with engine.begin() as connection:
        later = add(connection, "k0", "later")

    for key in range(3):
        assert texts(subject, f"k{key}") == [str(number) for number in range(30) if number % 3 == key]
    logged = {each.body: each for each in subject.logged()}
    assert bytes(range(256)) in logged
    assert logged[b"7"].properties["x"] == "ü€"
    assert logged[b"7"].properties[OUTBOX_ID] == f"outbox:{numbers[7]}"
    assert later > max(numbers) + 2


async def test_the_order_of_a_key_is_that_of_its_commits_while_many_write(engine: Engine) -> None:
    """Transactions that lock their key's row before `add` are sent in the order in which they committed,
    while the sender reads and deletes (statement 34)."""
    subject = model()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE accounts (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO accounts VALUES ('k0', 0), ('k1', 0)"))

    def write(key: str) -> None:
        for _ in range(25):
            with engine.begin() as connection:
                update = text("UPDATE accounts SET version = version + 1 WHERE name = :key RETURNING version")
                version = connection.execute(update, {"key": key}).scalar_one()
                add(connection, key, str(version))

    sending = sender(engine, ModelTransport(subject), "one")
    running = asyncio.ensure_future(sending.run())
    failures = await asyncio.to_thread(in_threads, *[lambda key=key: write(key) for key in ("k0", "k1") * 2])
    await until(lambda: rows(engine) == 0)
    sending.stop()
    await running
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE accounts"))

    assert failures == [None] * 4
    for key in ("k0", "k1"):
        assert texts(subject, key) == [str(version) for version in range(1, 51)]


async def test_a_process_that_is_gone_is_replaced_when_its_lease_has_ended(engine: Engine) -> None:
    """It released nothing; its successor has a higher epoch, and sends what is left (statement 34)."""
    subject = model()
    transport = ModelTransport(subject)
    first, second = sender(engine, transport, "first"), sender(engine, transport, "second")
    running = asyncio.ensure_future(first.run())
    await until(lambda: first.is_owner)
    waiting = asyncio.ensure_future(second.run())
    with engine.begin() as connection:
        add(connection, "k", "1")
    await until(lambda: rows(engine) == 0)
    assert not second.is_owner
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with engine.begin() as connection:
        add(connection, "k", "2")
    await until(lambda: rows(engine) == 0)
    second.stop()
    await waiting
    with engine.begin() as connection:
        left = LeaseTable(TABLES, "outbox").read(connection)

    assert texts(subject, "k") == ["1", "2"]
    assert left is not None
    assert left.epoch == 2


def test_a_candidate_waits_for_the_owners_transaction_and_sees_its_beat(engine: Engine) -> None:
    """The row stays locked until the owner commits; then the candidate's statement finds another count, and
    takes nothing. After a rollback it takes the lease."""
    table = LeaseTable(TABLES, "outbox")
    with engine.begin() as connection:
        assert table.take(connection, None, "owner") == 1
    outcomes = []
    for commits in (True, False):
        with engine.begin() as connection:
            seen = table.read(connection)
        ended = threading.Event()

        def candidate(seen: object = seen, ended: threading.Event = ended) -> int | None:
            with engine.begin() as connection:
                try:
                    return table.take(connection, seen, "candidate")  # type: ignore[arg-type]  # a LeaseRow
                finally:
                    ended.set()

        with engine.connect() as owner, ThreadPoolExecutor(1) as pool:
            assert table.still(owner, 1)
            taking = pool.submit(candidate)
            assert not ended.wait(0.2)
            if commits:
                owner.commit()
            else:
                owner.rollback()
            outcomes.append(taking.result(10))

    assert outcomes == [None, 2]


def test_of_two_that_write_the_first_row_one_is_owner(engine: Engine) -> None:
    """The other one gets an `IntegrityError`, whoever is first."""
    table = LeaseTable(TABLES, "outbox")
    barrier = threading.Barrier(2)

    def take() -> int | None:
        with engine.begin() as connection:
            barrier.wait(10)
            return table.take(connection, None, "one of two")

    results = in_threads(take, take)

    assert sorted(str(type(each).__name__) for each in results) == ["IntegrityError", "int"]
    assert any(isinstance(each, IntegrityError) for each in results)


def test_a_key_that_the_database_cannot_store_fails_its_transaction(engine: Engine) -> None:
    """PostgreSQL has no character NUL in texts; nothing of the transaction is left."""

    def transaction() -> None:
        with engine.begin() as connection:
            add(connection, "k", "1")
            add(connection, "a\0key", "2")

    with pytest.raises(DataError, match="NUL"):
        transaction()

    assert rows(engine) == 0
