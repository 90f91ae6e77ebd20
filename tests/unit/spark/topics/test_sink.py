"""What the sink decides before anything is sent: options, columns, messages, identities of tasks."""

from __future__ import annotations

import asyncio
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, IntegerType, StringType, StructType

from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message
from brokerset_client.ordered.client import OrderedClient
from brokerset_protocol.bodies.ordered import PartitionRoute, SubjectRoute
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics.client_thread import ClientThread
from brokerset_spark.topics.sink.options import SinkOptions, read_options
from brokerset_spark.topics.sink.ordered import (
    OrderedSender,
    PinnedTransport,
    TaskIdentity,
    partitions_digest,
)
from brokerset_spark.topics.sink.plain import PlainSender, SinkFailed
from brokerset_spark.topics.sink.rows import (
    MESSAGE_OVERHEAD,
    Row,
    RowInvalid,
    digest_of_all,
    in_order,
    rows_of,
)
from brokerset_spark.topics.sink.writers import _close

ADDRESS = {"nameservers": "127.0.0.1:9876"}
OPTIONS = SinkOptions(name_servers="127.0.0.1:9876", topic="orders")


def schema_of(text: str) -> StructType:
    kinds: dict[str, DataType] = {"string": StringType(), "int": IntegerType()}
    made = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        made.add(name, kinds[kind])
    return made


def problems(schema: str, **given: str) -> tuple[str, ...]:
    with pytest.raises(OptionsError) as error:
        read_options(ADDRESS | given, schema_of(schema))
    return error.value.problems


def rows(columns: dict[str, list[object]], options: SinkOptions = OPTIONS) -> list[Row]:
    return list(rows_of(pa.RecordBatch.from_pydict(columns), options))


def test_all_problems_are_named_at_once() -> None:
    """Unknown options and columns, wrong types and what is missing are in one error."""
    found = problems("value int, extra string, queueId int", batchBytes="x", nosuch="1")

    assert [each.split(":")[0] for each in found] == [
        "batchBytes=x", "nosuch", "column value", "column extra", "topic", "column queueId",
    ]  # fmt: skip


def test_a_broker_is_named_with_its_queue_or_not_at_all() -> None:
    """A column brokerName alone would be passed over in silence."""
    assert problems("value string, brokerName string", topic="t")[0].startswith(
        "column brokerName: needs queueId"
    )


def test_a_row_is_counted_by_its_bytes() -> None:
    """Not by its letters: a request of many rows would be larger than brokers take."""
    row = rows({"value": ["x"], "key": ["\u00e4" * 50], "headers": [[("\u00f6", "\u6f22" * 100)]]})[0]

    assert row.size == 1 + MESSAGE_OVERHEAD + 100 + 2 + 300


def test_idempotence_needs_ordered_subjects_and_keys() -> None:
    """Who asks for idempotence of plain topics is told that only ordered subjects have it."""
    assert "only ordered subjects" in problems("value string", topic="t", idempotence="true")[0]
    assert "orderKey" in problems("value string", topic="t", idempotence="true", ordered="true")[0]


def test_options_are_read_without_regard_to_case() -> None:
    """Spark hands options over in any case."""
    options = read_options(ADDRESS | {"INFLIGHT": "3", "topic": "t"}, schema_of("value string"))

    assert (options.name_servers, options.in_flight, options.topic) == ("127.0.0.1:9876", 3, "t")


def test_a_row_becomes_a_message() -> None:
    """Value, key, tags, headers, order key, delay and queue arrive where RocketMQ has them."""
    row = rows(
        {
            "value": ["hello"],
            "key": [b"k1 k2"],
            "tags": ["red"],
            "headers": [[{"key": "a", "value": b"1"}]],
            "orderKey": ["o"],
            "delay": [5_000],
            "brokerName": ["broker-a"],
            "queueId": [3],
        }
    )[0]

    message = row.message
    assert (message.topic, message.body, message.keys, message.tags) == (
        "orders",
        b"hello",
        ("k1", "k2"),
        "red",
    )
    assert (message.properties, message.sharding_key, message.delay_ms) == ({"a": "1"}, "o", 5_000)
    assert row.queue == ("broker-a", 3)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [None]}, "no value"),
        ({"value": [b"x"], "key": [b"\xff"]}, "no UTF-8"),
        ({"value": [b"x"], "headers": [[{"key": "KEYS", "value": "y"}]]}, "reserved"),
        ({"value": [b"x"], "headers": [[{"key": "a", "value": "y"}, {"key": "a", "value": "z"}]]}, "twice"),
        ({"value": [b"x"], "queueId": [None], "brokerName": ["b"]}, "only one of"),
        ({"value": [b"x"], "queueId": [-1], "brokerName": ["b"]}, "count from 0"),
    ],
)
def test_a_row_that_no_broker_takes_is_refused(columns: dict[str, list[object]], said: str) -> None:
    """The error names the topic and what is wrong with the row."""
    with pytest.raises(RowInvalid, match=said) as error:
        rows(columns)
    assert "orders" in str(error.value)


def test_each_attempt_has_one_order_and_one_digest() -> None:
    """Rows that arrive in another order are sorted alike; other rows have another digest."""
    options = SinkOptions(name_servers="a:1", topic="orders", ordered=True, order_by="at")
    columns: dict[str, list[object]] = {
        "value": ["a", "b", "c"],
        "orderKey": ["k", "k", "k"],
        "at": [2, 1, 1],
    }
    turned = {name: values[::-1] for name, values in columns.items()}

    first, second = (in_order(rows(each, options), "at") for each in (columns, turned))

    assert [row.message.body for row in first] == [row.message.body for row in second]
    assert first[2].message.body == b"a"
    assert digest_of_all(first) == digest_of_all(second)
    assert digest_of_all(first) != digest_of_all(first[::-1])


def test_epochs_grow_with_the_batch_whatever_is_in_it() -> None:
    """An earlier batch's attempt that comes late is fenced, never taken for the later one's."""
    low, high = TaskIdentity("q", 1, 4), TaskIdentity("q", 1, 5)

    assert low.epoch(2**32 - 1) < high.epoch(0) < 2**63
    assert low.producer_id("abc") == high.producer_id("abc")
    assert len(TaskIdentity("q" * 100, 10**9, 0).producer_id("0" * 12)) <= 64


def route(status: PartitionStatus, end: int = 1024) -> SubjectRoute:
    return SubjectRoute(
        subject="orders",
        order_strategy=OrderStrategy.STRICT,
        version=1,
        generation=1,
        partitions=(
            PartitionRoute(partition_id=0, status=status, broker_group="g", queue_id=0, first=0, end=end),
        ),
    )


class FakeTransport:
    """Answers every question with one route."""

    def __init__(self, answer: SubjectRoute) -> None:
        self.answer = answer

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        return Command(ResponseCode.SUCCESS, {}, self.answer.to_json())

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        raise AssertionError

    def route_is_stale(self, topic: str) -> None:
        raise AssertionError


async def test_a_task_ends_when_keys_move_to_other_partitions() -> None:
    """A partition that is being sealed changes nothing; other ranges are refused; the epoch is given once."""
    known = partitions_digest(route(PartitionStatus.OPEN))
    question = Command(RequestCode.BROKERSET_SUBJECT_ROUTE, {}, b"")
    start = Command(RequestCode.BROKERSET_START_PRODUCER, {}, b"")

    same = PinnedTransport(FakeTransport(route(PartitionStatus.SEALING)), 7, known)
    moved = PinnedTransport(FakeTransport(route(PartitionStatus.OPEN, 512)), 7, known)

    assert (await same.ask_controllers(question, 1)).code == ResponseCode.SUCCESS
    assert (await moved.ask_controllers(question, 1)).code == ResponseCode.BROKERSET_SUBJECT_REFUSED
    assert (await same.ask_controllers(start, 1)).ext == {"producerEpoch": "7"}
    assert (await same.ask_controllers(start, 1)).code == ResponseCode.BROKERSET_SUBJECT_REFUSED


class Broken:
    """A producer whose sends end without an answer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def send(self, message: Message, timeout: float, *, queue: object) -> None:
        raise self.error

    async def start(self) -> None:
        """Nothing to do."""

    async def send_async(
        self, message: Message, *, key: str | None, timeout: float
    ) -> asyncio.Future[object]:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    async def close(self, timeout: float = 0.0) -> None:
        raise self.error


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "e"), asyncio.CancelledError()])
async def test_no_task_passes_while_a_row_has_no_answer(error: BaseException) -> None:
    """Whatever ended its send: errors of the client, of anything else, and a cancelled send."""
    sender = PlainSender(ClientInstance("127.0.0.1:1"), OPTIONS)
    sender._producer = Broken(error)  # type: ignore[assignment]
    await sender.add(rows({"value": ["x"]}))

    with pytest.raises(SinkFailed, match=r"rows could not be sent: ."):
        await sender.finish()
    assert sender.rows == 0


async def test_an_ordered_task_does_not_pass_with_a_cancelled_send() -> None:
    """It is neither confirmed nor an error, and the row may be nowhere."""
    sender = OrderedSender(cast(OrderedClient, None), OPTIONS)
    sender._producers[""] = Broken(OSError())  # type: ignore[assignment]
    await sender.add(rows({"value": ["x"], "orderKey": ["k"]}))

    with pytest.raises(SinkFailed, match="cancelled"):
        await sender.finish()


def test_a_task_ends_as_its_rows_did(caplog: pytest.LogCaptureFixture) -> None:
    """Acknowledged rows are not sent again because leaving a broker failed; that is a warning."""

    class Loop:
        def run(self, work: object, seconds: float) -> None:
            asyncio.run(work)  # type: ignore[arg-type]

    _close(cast(ClientThread, Loop()), cast(PlainSender, Broken(OSError(5, "gone"))))

    assert "gone" in caplog.text
