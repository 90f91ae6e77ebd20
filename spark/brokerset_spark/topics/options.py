"""Options of the wire source: read once, checked all at once, named like those of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from brokerset_client.instance import name_server_list
from brokerset_formats.light_queues import PREFIX as LIGHT
from brokerset_formats.properties import Property
from brokerset_spark.sources import option_values as values
from brokerset_spark.sources.option_values import Given, Option
from brokerset_spark.topics.offsets import EARLIEST, LATEST, QueueKey, all_of, flat

NAME: Final = "rocketmq"
COMMITTED: Final = -3
"""In `startingOffsets`: where the consumer group is."""

ReadFrom = Literal["master", "replica", "auto"]
Offsets = int | dict[QueueKey, int]
"""EARLIEST, LATEST or COMMITTED for all queues, or one for each."""

Times = int | dict[QueueKey, int] | None


def _name_servers(text: str) -> str:
    return ";".join(name_server_list(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values.names(text)))


def _pattern(text: str) -> str:
    return values.pattern(values.text(text))


def _assigned(text: str) -> frozenset[QueueKey]:
    example = 'must be JSON like {"topic": {"broker-a": [0, 1]}}'
    try:
        found = frozenset(
            QueueKey(topic, broker, _whole(queue))
            for topic, brokers in json.loads(text).items()
            for broker, queues in brokers.items()
            for queue in queues
        )
    except (json.JSONDecodeError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{example} ({error})") from error
    if not found:
        raise ValueError(example)
    return found


def _whole(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is no whole number from {least}")
    return value


def _by_queue(text: str, least: int, words: Mapping[str, int] | None = None) -> dict[QueueKey, int]:
    """`words` may stand for all queues of a topic."""
    try:
        given = json.loads(text)
        whole = {topic: value for topic, value in given.items() if isinstance(value, str)}
        parts = {topic: value for topic, value in given.items() if topic not in whole}
        if wrong := [value for value in whole.values() if value.lower() not in (words or {})]:
            raise ValueError(f"{wrong[0]!r} is no offset")
        found = {all_of(topic): (words or {})[value.lower()] for topic, value in whole.items()}
        return found | {key: _whole(value, least) for key, value in flat(parts).items()}
    except (json.JSONDecodeError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'must be JSON like {{"topic": {{"broker-a": {{"0": 12}}}}}} ({error})') from error


def _starting(text: str) -> Offsets:
    words = {"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED}
    return words[text.lower()] if text.lower() in words else _by_queue(text, COMMITTED, words)


def _ending(text: str) -> Offsets:
    if text.lower() == "latest":
        return LATEST
    if text.lower() == "earliest":
        raise ValueError("earliest would read nothing")
    return _by_queue(text, LATEST, {"latest": LATEST})


def _queue_times(text: str) -> dict[QueueKey, int]:
    return _by_queue(text, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query asks for. Times are milliseconds since 1970 unless the name says seconds."""

    name_servers: Annotated[str, Option("nameServers", _name_servers, ("namesrvAddr", "nameServer"))] = ""
    """Required."""

    topics: Annotated[tuple[str, ...], Option("topic", _names, ("subscribe", "topics"))] = ()
    topic_pattern: Annotated[str, Option("topicPattern", _pattern, ("subscribePattern",))] = ""
    assigned: Annotated[frozenset[QueueKey], Option("assign", _assigned)] = frozenset()
    starting: Annotated[Offsets | None, Option("startingOffsets", _starting)] = None
    """None: the earliest for a batch, the latest for a stream, as Kafka's source has it."""

    ending: Annotated[Offsets, Option("endingOffsets", _ending)] = LATEST
    starting_times: Times = None
    ending_times: Times = None
    latest_if_no_time: Annotated[
        bool, Option("startingOffsetsByTimestampStrategy", values.second("error", "latest"))
    ] = False
    """Whether a queue without a record from the starting time on begins at its end; else that is an error."""

    offsets_per_trigger: Annotated[int, Option("maxOffsetsPerTrigger", values.count)] = 0
    offsets_per_trigger_min: Annotated[int, Option("minOffsetsPerTrigger", values.count)] = 0
    """A batch waits until there are so many records, and at most `trigger_delay_seconds`."""

    trigger_delay_seconds: Annotated[float, Option("maxTriggerDelay", values.seconds)] = 900.0
    partitions_min: Annotated[int, Option("minPartitions", values.count)] = 0
    records_per_partition: Annotated[int, Option("maxRecordsPerPartition", values.count)] = 0
    fail_on_data_loss: Annotated[bool, Option("failOnDataLoss", values.truth)] = True
    fail_on_bad_body: Annotated[bool, Option("failOnBadBody", values.truth)] = True
    """Whether a compressed body that cannot be opened fails the query; else its `value` is null."""

    include_headers: Annotated[bool, Option("includeHeaders", values.truth)] = False
    group: Annotated[str, Option("groupId", values.text, ("consumerGroup",))] = ""
    read_from: Annotated[ReadFrom, Option("readFrom", values.choice("master", "replica", "auto"))] = "auto"
    fetch_seconds: Annotated[float, Option("fetchTimeoutSeconds", values.count)] = 120.0
    columns: Annotated[tuple[str, ...], Option("columns", _names)] = ()
    given: frozenset[str] = field(default_factory=frozenset)
    """Names of the options that were given, in small letters."""

    def wants(self, key: QueueKey) -> bool:
        """Whether a queue of one of the topics is read."""
        return not self.assigned or key in self.assigned


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """OptionsError with all problems."""
    given = Given(options)
    found = SourceOptions(
        **given.take_fields(SourceOptions),
        starting_times=_times_of(given, "starting"),
        ending_times=_times_of(given, "ending"),
        given=frozenset(name.lower() for name in options),
    )
    given.finish(NAME, list(_problems(found)))
    return found


def _times_of(given: Given, which: str) -> Times:
    one = given.take(Option(f"{which}Timestamp", values.time_ms))
    each: Times = given.take(Option(f"{which}OffsetsByTimestamp", _queue_times))
    if one is not None and each is not None:
        given.problems.append(f"{which}Timestamp and {which}OffsetsByTimestamp: give one of them")
    return each if each is not None else one


def _problems(found: SourceOptions) -> Iterator[str]:
    """What does not fit together."""
    if not {"nameservers", "namesrvaddr", "nameserver"} & found.given:
        yield "nameServers: missing; give the name servers, as namesrv-0:9876;namesrv-1:9876"
    if [bool(found.topics), bool(found.topic_pattern), bool(found.assigned)].count(True) != 1:
        yield "topic, topicPattern or assign: give one of them"
    for topic in sorted({*found.topics, *(key.topic for key in found.assigned)}):
        if topic.startswith(LIGHT):
            yield (
                f"{topic}: a light queue has no route; read the topic that its messages were sent to, and "
                f"filter by property {Property.INNER_MULTI_DISPATCH} (of lite topics {Property.LITE_TOPIC})"
            )
    if found.starting is not None and found.starting_times is not None:
        yield "startingOffsets and starting times: give one of them"
    if "endingoffsets" in found.given and found.ending_times is not None:
        yield "endingOffsets and ending times: give one of them"
    if _uses_committed(found.starting) and not found.group:
        yield "startingOffsets=committed needs groupId, the consumer group"
    if 0 < found.offsets_per_trigger < found.offsets_per_trigger_min:
        yield "minOffsetsPerTrigger is above maxOffsetsPerTrigger"


def _uses_committed(starting: Offsets | None) -> bool:
    return COMMITTED in starting.values() if isinstance(starting, dict) else starting == COMMITTED
