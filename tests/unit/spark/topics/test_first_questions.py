"""What is asked before anything is read: useless answers, brokers that are away, clients that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest

from brokerset_client import calls
from brokerset_client.calls import PulledRecords, PullStatus
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import ClientInstance
from brokerset_spark.topics import client_thread, reading
from brokerset_spark.topics import stream as stream_module
from brokerset_spark.topics.brokers import Questions
from brokerset_spark.topics.client_thread import ClientThread
from brokerset_spark.topics.columns import source_schema, wire_schema
from brokerset_spark.topics.following import Ends, Seen
from brokerset_spark.topics.offsets import EARLIEST, Mark, QueueKey, StreamOffset
from brokerset_spark.topics.options import SourceOptions
from brokerset_spark.topics.planning import Range
from brokerset_spark.topics.pulls import pull_at
from brokerset_spark.topics.starting import BrokersSilent, check_all_answer
from brokerset_spark.topics.stream import TopicStream

KEY = QueueKey("t", "a", 0)
OPTIONS = SourceOptions(name_servers="n:1", assigned=frozenset((KEY,)))


def test_an_answer_that_leads_nowhere_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records with a next offset that is not behind the asked one would be pulled without end."""

    async def answer(*_: Any, **__: Any) -> PulledRecords:
        return PulledRecords(PullStatus.FOUND, b"x", 7, 0, 9, 0)

    monkeypatch.setattr(calls, "pull_records", answer)
    instance = cast(ClientInstance, None)

    assert asyncio.run(pull_at(instance, "a:1", KEY, 6)).next_queue_offset == 7
    with pytest.raises(RequestRefused, match="a pull at 7 gave records, and 7 as the next offset"):
        asyncio.run(pull_at(instance, "a:1", KEY, 7))


@pytest.mark.parametrize("seen", [Seen({}, silent=frozenset((("t", "a"),))), Seen({}, frozenset((KEY,)))])
def test_a_query_does_not_begin_without_its_brokers(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a broker does not answer or is not registered: a batch would give less, and a stream would take
    its queues for new ones later, and read them from their beginning."""
    with pytest.raises(BrokersSilent, match="broker a, which has queues of topic t"):
        check_all_answer(seen, OPTIONS)
    check_all_answer(seen, SourceOptions(name_servers="n:1", fail_on_data_loss=False))

    class Asking:
        async def observe(self, known: object) -> Seen:
            return seen

        async def confirmed(self, places: object) -> tuple[dict[QueueKey, None], frozenset[QueueKey]]:
            return {}, frozenset()

    def first(options: SourceOptions) -> object:
        stream = TopicStream(options, source_schema(options))
        monkeypatch.setattr(TopicStream, "_questions", Asking())
        return asyncio.run(stream._initial())

    with pytest.raises(BrokersSilent):
        first(OPTIONS)
    assert first(SourceOptions(name_servers="n:1", assigned=OPTIONS.assigned, starting=EARLIEST))


class Marking(Questions):
    """Stands for brokers: only these queues give their last record."""

    def __init__(self, given: dict[QueueKey, Mark | None]) -> None:
        super().__init__(cast(ClientInstance, object()), OPTIONS)
        self.given = given

    async def marks(
        self, places: Mapping[QueueKey, int], *, confirm: bool = False
    ) -> dict[QueueKey, Mark | None]:
        return {key: self.given[key] for key in places if key in self.given}

    async def compacted(self, topics: Iterable[str]) -> frozenset[str]:
        return frozenset({"holes"} & set(topics))

    async def observe(self, known: object = ()) -> Seen:
        return Seen({KEY: Ends(0, 7)})


def test_a_queue_whose_last_record_is_not_given_waits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A stream that stands still says for which queue, which record, and since when."""
    other, compacted = QueueKey("t", "a", 1), QueueKey("holes", "a", 0)
    asking = Marking({KEY: None, other: Mark(1, 2), compacted: None})

    marks, unsure = asyncio.run(asking.confirmed({KEY: 7, other: 3, compacted: 4}))

    assert (marks[other], unsure) == (Mark(1, 2), frozenset((KEY,)))
    assert "queue 0 of topic t on a: its broker does not give record 6" in caplog.text


def test_a_stream_does_not_begin_behind_what_may_disappear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end would look like that of another queue after a failover. With failOnDataLoss=false it begins."""
    monkeypatch.setattr(stream_module, "BELIEVE_SECONDS", 0.0)

    def first(given: dict[QueueKey, Mark | None], options: SourceOptions = OPTIONS) -> StreamOffset:
        monkeypatch.setattr(TopicStream, "_questions", Marking(given))
        return asyncio.run(TopicStream(options, source_schema(options))._initial())

    with pytest.raises(BrokersSilent, match="does not give record 6, behind which the stream is to begin"):
        first({KEY: None})
    assert first({KEY: Mark(1, 2)}) == StreamOffset({KEY: 7}, {KEY: Mark(1, 2)})
    assert first({KEY: None}, replace(OPTIONS, fail_on_data_loss=False)) == StreamOffset({KEY: 7})


def test_threads_that_ask_at_once_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one client for the same name servers, also if several threads make it."""
    begun = threading.Barrier(4)
    made: list[object] = []

    class Made:
        def __init__(self, _: str) -> None:
            made.append(self)

    def ask() -> ClientThread:
        begun.wait(10)
        return client_thread.client_of("n:threads")

    monkeypatch.setattr(client_thread, "ClientThread", Made)
    monkeypatch.setattr(client_thread, "_CLIENTS", {})
    with ThreadPoolExecutor(4) as pool:
        found = {id(each.result()) for each in [pool.submit(ask) for _ in range(4)]}

    assert found == {id(each) for each in made}
    assert len(made) == 1


def test_a_client_that_cannot_start_leaves_no_thread() -> None:
    """Spark tries a task again in the same process, each time with a new client."""
    before = set(threading.enumerate())

    with pytest.raises(ClientError):
        ClientThread("127.0.0.1:1")

    assert [each for each in threading.enumerate() if each not in before] == []


def test_a_task_that_ends_early_leaves_no_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a task is used again; what it has begun to pull for an error or a limit is ended."""
    begun: list[Future[Any]] = []

    class Waiting:
        instance = None

        def begin(self, work: Any) -> Future[Any]:
            work.close()
            begun.append(Future())
            return begun[-1]

    monkeypatch.setattr(reading, "client_of", lambda _: Waiting())
    schema = wire_schema(source_schema(OPTIONS))
    batches = reading.read_ranges([Range(KEY, 0, 5), Range(KEY, 5, 9)], OPTIONS, schema)
    monkeypatch.setattr(
        reading.RangeReader, "_taken", lambda _: (_ for _ in ()).throw(reading.DataLost("gone"))
    )

    with pytest.raises(reading.DataLost):
        next(batches)

    assert [each.cancelled() for each in begun] == [True, True]
