"""Which light queues are deleted, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.services.light_queue_expiry import LightQueueExpiry
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.metadata.records import Change, TopicsDeleted
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

MINUTE_MS = 60_000
LITE = {"message.type": "LITE", "lite.topic.expiration": "10"}


class Changes:
    """Deletes at once, unless something comes between the search and the decision."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.between: Callable[[], None] = lambda: None

    async def change(self, keys: Sequence[str], decide: Callable[[], Sequence[Change]]) -> None:
        self.between()
        for change in decide():
            assert isinstance(change, TopicsDeleted)
            for name in change.topics:
                assert f"topic:{name}" in keys
                self._store.delete_topic(name)


class Bench:
    """A store with light queues, a parent `p` whose lite topics live ten minutes, and a clock."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        live = LiveSettings(
            BrokerSettings(
                store_path_root_dir=root,
                enable_lmq=True,
                enable_multi_dispatch=True,
                min_lite_ttl=5 * MINUTE_MS,
            )
        )
        self.store = MessageStore(live.current, self.clock)
        self.store.load()
        self.topics = TopicManager(live, self.clock)
        self.topics.put(TopicConfig("p", attributes=LITE))
        self.changes = Changes(self.store)
        self.expiry = LightQueueExpiry(
            live=live,
            store=self.store,
            topics=self.topics,
            clock=self.clock,
            changes=lambda: self.changes,  # type: ignore[arg-type,return-value]  # the part of it that is used
        )

    def send(self, queue: str) -> None:
        self.store.append(
            "p", 0, b"body", f"INNER_MULTI_DISPATCH\x01{queue}\x02".encode(),
            flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8),
        )  # fmt: skip

    def expire(self) -> list[str]:
        """The light queues that are left."""
        asyncio.run(self.expiry.expire())
        return sorted(self.store.queues_table.light)

    def minutes(self, count: int) -> None:
        self.clock.advance(count * MINUTE_MS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.store.abandon()


def test_a_lite_topic_goes_when_its_last_message_is_as_old_as_its_parent_says(bench: Bench) -> None:
    """A new message lets it live on; plain light queues have no age."""
    for queue in ("%LMQ%$p$old", "%LMQ%$p$busy", "%LMQ%plain"):
        bench.send(queue)
    bench.minutes(9)
    bench.send("%LMQ%$p$busy")
    assert bench.expire() == ["%LMQ%$p$busy", "%LMQ%$p$old", "%LMQ%plain"]

    bench.minutes(2)
    assert bench.expire() == ["%LMQ%$p$busy", "%LMQ%plain"]

    bench.minutes(9)
    assert bench.expire() == ["%LMQ%plain"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"message.type": "LITE"},
        {"message.type": "LITE", "lite.topic.expiration": "-1"},
        {"message.type": "NORMAL", "lite.topic.expiration": "10"},
    ],
)
def test_without_an_age_lite_topics_stay(bench: Bench, attributes: dict[str, str]) -> None:
    bench.topics.put(TopicConfig("p", attributes=attributes))
    bench.send("%LMQ%$p$x")
    bench.send("%LMQ%$gone$x")
    bench.minutes(100_000)

    assert bench.expire() == ["%LMQ%$gone$x", "%LMQ%$p$x"]


def test_no_lite_topic_goes_before_the_least_age_of_all(bench: Bench) -> None:
    """`minLiteTTl` counts where a parent says less."""
    bench.topics.put(TopicConfig("p", attributes={**LITE, "lite.topic.expiration": "1"}))
    bench.send("%LMQ%$p$x")
    bench.minutes(4)
    assert bench.expire() == ["%LMQ%$p$x"]

    bench.minutes(2)
    assert bench.expire() == []


def test_a_message_between_search_and_decision_saves_the_lite_topic(bench: Bench) -> None:
    bench.send("%LMQ%$p$x")
    bench.minutes(11)
    bench.changes.between = lambda: bench.send("%LMQ%$p$x")

    assert bench.expire() == ["%LMQ%$p$x"]
    assert bench.store.queue_max("%LMQ%$p$x", 0) == 2


def test_a_light_queue_goes_with_the_last_of_its_records(bench: Bench) -> None:
    """Its next message is the first again."""
    bench.send("%LMQ%plain")
    assert bench.expire() == ["%LMQ%plain"]
    bench.store.queues_table.correct_min_offsets(bench.store.max_offset)

    assert bench.expire() == []
    bench.send("%LMQ%plain")
    assert bench.store.unit("%LMQ%plain", 0, 0) is not None


def test_many_are_deleted_in_parts(bench: Bench) -> None:
    """So that others get their turn."""
    sizes: list[int] = []
    before = [0]

    def note() -> None:
        sizes.append(len(bench.store.queues_table.light) - before[0])
        before[0] = len(bench.store.queues_table.light)

    bench.changes.between = note
    for number in range(45):
        bench.send(f"%LMQ%$p${number}")
    bench.minutes(11)

    assert bench.expire() == []
    assert sizes == [45, -20, -20]
