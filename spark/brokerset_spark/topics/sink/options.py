"""Options and columns of the sink, read once and checked all at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from brokerset_client.messages import BODY_SIZE_MAX
from brokerset_formats import names
from brokerset_spark.sources import option_values as values
from brokerset_spark.sources.option_values import Given, Option

SOURCE: Final = "rocketmq"
INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXTS: Final = (StringType, BinaryType)
_ADDRESSES: Final = re.compile(r"[^;,\s]+:\d{1,5}([;,][^;,\s]+:\d{1,5})*")
_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})
"""What Spark itself hands over."""


def _addresses(text: str) -> str:
    if _ADDRESSES.fullmatch(text) is None:
        raise ValueError("must be host:port, several with ; between them")
    return text.replace(",", ";")


def _valid(check: Callable[[str], str | None]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        problem = check(text)
        if problem is not None:
            raise ValueError(problem)
        return text

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write was asked for."""

    name_servers: Annotated[str, Option("nameServers", _addresses)] = ""
    """Required: `host:port`, several with `;` between them."""

    topic: Annotated[str | None, Option("topic", _valid(names.check_topic))] = None
    """Topic of all rows; without it the column `topic` names one in each row."""

    producer_group: Annotated[str, Option("producerGroup", _valid(names.check_group))] = "brokerset-spark"
    """What brokers know the sink as."""

    ordered: Annotated[bool, Option("ordered", values.truth)] = False
    """The topics are ordered subjects; rows with one `orderKey` keep their order."""

    idempotence: Annotated[bool, Option("idempotence", values.truth)] = False
    """Only with `ordered`: what a task that is run again sends a second time is not stored twice."""

    order_by: Annotated[str | None, Option("orderBy", values.text)] = None
    """A column, not sent, by which a task sorts its rows before it sends them; only with `ordered`."""

    batch_bytes: Annotated[int, Option("batchBytes", values.number_in(1, BODY_SIZE_MAX))] = 256 * 1024
    """Bytes from which on a request gets no further message."""

    batch_messages: Annotated[int, Option("batchMessages", values.number_in(1, 10_000))] = 1000
    """Messages in one request at most."""

    in_flight: Annotated[int, Option("inFlight", values.number_in(1, 256))] = 16
    """Requests of one task that are on their way; 1 keeps the order of rows in each queue."""

    send_timeout: Annotated[int, Option("sendTimeout", values.number_in(1_000, 3_600_000))] = 120_000
    """Milliseconds that one request may take with all its attempts; long enough for a failover."""


def read_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Options and schema of a write, checked together. OptionsError with all problems."""
    given = Given(options, passed_over=_SPARK_OPTIONS)
    found = SinkOptions(**given.take_fields(SinkOptions))
    given.finish(SOURCE, [*_problems(found), *column_problems(schema, found)])
    return found


def _problems(found: SinkOptions) -> Iterator[str]:
    if not found.name_servers:
        yield "nameServers: required, as host:port"
    if found.idempotence and not found.ordered:
        yield "idempotence: only ordered subjects have it; set ordered=true, or leave it out"
    if found.order_by is not None and not found.ordered:
        yield "orderBy: only ordered subjects have it; set ordered=true, or sort before the write"


# -- columns ----------------------------------------------------------------------------------------------


def _is_headers(kind: DataType) -> bool:
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, _TEXTS)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    entry = kind.elementType
    return (
        [each.name for each in entry.fields] == ["key", "value"]
        and isinstance(entry.fields[0].dataType, StringType)
        and isinstance(entry.fields[1].dataType, _TEXTS)
    )


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


COLUMNS: Final[Mapping[str, tuple[Callable[[DataType], bool], str]]] = {
    "value": (_is(*_TEXTS), "string or binary"),
    "body": (_is(*_TEXTS), "string or binary"),
    "topic": (_is(StringType), "string"),
    "key": (_is(*_TEXTS), "string or binary"),
    "tags": (_is(StringType), "string"),
    "headers": (_is_headers, "a map or an array of (key, value), keys string, values string or binary"),
    "properties": (_is_headers, "a map or an array of (key, value), keys string, values string or binary"),
    "orderKey": (_is(StringType), "string"),
    "brokerName": (_is(StringType), "string"),
    "queueId": (_is(*INTEGERS), "an integer"),
    "delay": (_is(*INTEGERS), "an integer, in milliseconds"),
}
"""Columns that a row may have; either of `value` and `body`, and of `headers` and `properties`."""


def column_problems(schema: StructType, options: SinkOptions) -> list[str]:
    """What is wrong with the columns, one sentence each."""
    found = {each.name: each.dataType for each in schema.fields}
    problems = []
    for name, kind in found.items():
        if name == options.order_by:
            continue
        if name not in COLUMNS:
            problems.append(f"column {name}: unknown; select from {', '.join(COLUMNS)}")
        elif not COLUMNS[name][0](kind):
            problems.append(f"column {name}: must be {COLUMNS[name][1]}, is {kind.simpleString()}")
    problems.extend(
        f"columns {first} and {second}: they are the same; keep one"
        for first, second in (("value", "body"), ("headers", "properties"))
        if first in found and second in found
    )
    if "value" not in found and "body" not in found:
        problems.append("column value: missing; it is the message's body, string or binary")
    if options.topic is None and "topic" not in found:
        problems.append("topic: give the option topic, or a column topic")
    if "queueId" in found and "brokerName" not in found:
        problems.append("column queueId: needs brokerName, because queue ids belong to one broker")
    if "brokerName" in found and "queueId" not in found and not options.ordered:
        problems.append("column brokerName: needs queueId; leave both out, and brokers take rows in turn")
    if options.order_by is not None and options.order_by not in found:
        problems.append(f"orderBy: there is no column {options.order_by}")
    if options.ordered:
        problems.extend(
            f"column {name}: rows of ordered subjects cannot have it"
            for name in ("queueId", "brokerName", "delay")
            if name in found
        )
        if "orderKey" not in found:
            problems.append("column orderKey: missing; ordered subjects order by it")
    return problems
