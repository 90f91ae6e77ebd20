"""What metrics and `config/transactionMetrics` tell of transactions, by the topic that they are for.

Source: `TransactionMetrics` and `BrokerMetricsManager` of Java 5.5. Java's gauge is what a broker counted
since its file was made; here a broker that begins to lead counts what is open in its store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from brokerset_formats.config.transaction_metrics import TopicTransactions, TransactionMetrics
from brokerset_formats.config.versions import DataVersion

LATENCY_BOUNDS: Final = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
"""Java's buckets of `rocketmq_finish_message_latency`, in seconds."""

TOPICS_MAX: Final = 20_000
"""Topics that are counted; transactions of further ones show nowhere."""


class TopicCounts:
    """Transactions of one topic."""

    __slots__ = ("changed_ms", "committed", "latencies", "latency_sum", "open", "rolled_back")

    def __init__(self) -> None:
        self.open = 0
        """Half messages that wait for their end."""
        self.changed_ms = 0
        """When `open` changed last, milliseconds since 1970."""
        self.committed = 0
        self.rolled_back = 0
        self.latencies = [0] * (len(LATENCY_BOUNDS) + 1)
        """Commits by the seconds since the producer made the message, in the classes of `LATENCY_BOUNDS`."""
        self.latency_sum = 0.0
        """Seconds of all commits."""


class TransactionCounts:
    """Counters since start, but for `open`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.topics: dict[str, TopicCounts] = {}
        self._version = DataVersion()
        self.changed = False
        """Whether `table` says something else than when somebody set this to False."""

    def _of(self, topic: str) -> TopicCounts:
        found = self.topics.get(topic)
        if found is None:
            found = TopicCounts()
            if len(self.topics) < TOPICS_MAX:
                self.topics[topic] = found
        return found

    def _opened(self, topic: str, count: int) -> TopicCounts:
        found = self._of(topic)
        found.open = max(0, found.open + count)
        found.changed_ms = self._now_ms()
        self.changed = True
        return found

    def begun(self, topic: str) -> None:
        """A half message was stored, or one that was given up was resumed."""
        self._opened(topic, 1)

    def committed(self, topic: str, *born_ms: int) -> None:
        """Transactions whose messages were made then were committed."""
        found = self._opened(topic, -len(born_ms))
        found.committed += len(born_ms)
        now_ms, latencies = found.changed_ms, found.latencies
        for each_ms in born_ms:
            seconds = max(0.0, (now_ms - each_ms) / 1000)
            found.latency_sum += seconds
            latencies[bisect_left(LATENCY_BOUNDS, seconds)] += 1

    def rolled_back(self, topic: str) -> None:
        """A transaction was rolled back."""
        self._opened(topic, -1).rolled_back += 1

    def given_up(self, topic: str) -> None:
        """A half message is not checked any more."""
        self._opened(topic, -1)

    def set_open(self, topics: Iterable[str]) -> None:
        """One entry for each half message that is open; what was counted before is forgotten."""
        for known in self.topics.values():
            known.open = 0
        for topic in topics:
            self._opened(topic, 1)
        self.changed = True

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        if self.topics.pop(topic, None) is not None:
            self.changed = True

    def latency_buckets(self, topic: str) -> list[tuple[str, float]]:
        """The cumulated classes of seconds between message and commit, with Java's bounds."""
        counts = self.topics[topic].latencies
        texts = [*(str(bound) for bound in LATENCY_BOUNDS), "+Inf"]
        return [(text, float(sum(counts[: index + 1]))) for index, text in enumerate(texts)]

    def table(self) -> TransactionMetrics:
        """What the file holds; of topics that have or had a transaction."""
        self._version = self._version.next(self._now_ms())
        counts: Mapping[str, TopicTransactions] = {
            topic: TopicTransactions(each.open, each.changed_ms) for topic, each in self.topics.items()
        }
        return TransactionMetrics(self._version, counts)
