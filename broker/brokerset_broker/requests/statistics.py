"""Counters of messages in and out, by topic and by group, and the rates made of them.

Source: `BrokerStatsManager`, `StatsItem`, `StoreStatsService`, `BrokerStats`. The hot path adds integers;
everything else happens on a timer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import TypeVar

from brokerset_protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from brokerset_runtime.clock import Clock

SAMPLE_SECONDS = 10
"""Time between two samples of every counter."""

HOUR_EVERY = 60
"""Every so many samples one is kept for the hour: ten minutes."""

DAY_EVERY = 360
"""Every so many samples one is kept for the day: an hour."""

MINUTE_KEPT, HOUR_KEPT, DAY_KEPT = 7, 7, 25
"""Samples kept: Java's `StatsItem` has the same numbers."""

STEP_SERIES = 500
"""Counters sampled in one turn of the loop: about half a millisecond."""

STORE_KEPT = 61
"""Samples of the whole broker kept for the rate over ten minutes."""

TOOK_BOUNDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Upper ends of the classes of put times."""

_TOOK_NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip

K = TypeVar("K")

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"


class Flow:
    """What flowed through one topic or group since start: `flow.messages += 1` is the whole hot path."""

    __slots__ = ("calls", "messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        """Bytes."""
        self.calls = 0
        """Requests; a batch is one."""


_Sample = tuple[float, int, int, int]
"""Seconds of the monotonic clock, messages, bytes, calls."""


class _Series:
    """A flow with its samples: short lists, which share the tuples."""

    __slots__ = ("day", "flow", "hour", "minute", "quiet")

    def __init__(self, now: float) -> None:
        self.flow = Flow()
        zero = (now, 0, 0, 0)
        self.minute: list[_Sample] = [zero]
        self.hour: list[_Sample] = [zero]
        self.day: list[_Sample] = [zero]
        self.quiet = 0

    def sample(self, now: float, count: int) -> None:
        flow = self.flow
        self.quiet = self.quiet + 1 if flow.calls == self.minute[-1][3] else 0
        if self.quiet > MINUTE_KEPT and count % HOUR_EVERY:
            return  # all samples of the minute are equal already
        one = (now, flow.messages, flow.size, flow.calls)
        _keep(self.minute, one, MINUTE_KEPT)
        if count % HOUR_EVERY == 0:
            _keep(self.hour, one, HOUR_KEPT)
        if count % DAY_EVERY == 0:
            _keep(self.day, one, DAY_KEPT)


def _keep(samples: list[_Sample], one: _Sample, kept: int) -> None:
    samples.append(one)
    if len(samples) > kept:
        del samples[0]


def _rates(samples: list[_Sample], size: bool) -> BrokerStatsItem:
    if len(samples) < 2:
        return BrokerStatsItem()
    first, last = samples[0], samples[-1]
    total = last[2] - first[2] if size else last[1] - first[1]
    seconds = last[0] - first[0]
    calls = last[3] - first[3]
    return BrokerStatsItem(total, total / seconds if seconds > 0 else 0.0, total / calls if calls else 0.0)


class _StoreSample:
    __slots__ = ("at", "found", "missed", "put", "transferred")

    def __init__(self, at: float, put: int, found: int, missed: int, transferred: int) -> None:
        self.at = at
        self.put = put
        self.found = found
        self.missed = missed
        self.transferred = transferred


class BrokerStats:
    """All counters of a broker. The plain attributes are for the hot path: add to them."""

    series_max = 20_000
    """Topics and groups counted; what comes later is counted in the broker's totals only."""

    quiet_samples_max = DAY_KEPT * DAY_EVERY
    """A counter that did not move for so many samples is dropped: its rates are all zero by then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_ms = clock.now_ms()
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.put_calls = 0
        self.get_messages = 0
        self.found_calls = 0
        self.missed_calls = 0
        self._puts: dict[str, _Series] = {}
        self._gets: dict[tuple[str, str], _Series] = {}
        self._backs: dict[tuple[str, str], _Series] = {}
        self._overflow = Flow()
        self._broker_put = _Series(clock.monotonic())
        self._broker_get = _Series(clock.monotonic())
        self._samples = 0
        self._store: deque[_StoreSample] = deque([self._store_sample()], STORE_KEPT)
        self._took = [0] * len(_TOOK_NAMES)
        self._took_max_ms = 0
        self.get_took_max_ms = 0
        self._day = self._today()
        self.put_yesterday_morning = 0
        self.put_today_morning = 0
        self.get_yesterday_morning = 0
        self.get_today_morning = 0

    # -- hot path -----------------------------------------------------------------------------------------

    def topic_put(self, topic: str) -> Flow:
        """The counter of what was sent to a topic; do not keep it longer than the request."""
        series = self._puts.get(topic)
        return series.flow if series is not None else self._new(self._puts, topic)

    def group_get(self, group: str, topic: str) -> Flow:
        """The counter of what a group pulled from a topic; do not keep it longer than the request."""
        series = self._gets.get((group, topic))
        return series.flow if series is not None else self._new(self._gets, (group, topic))

    def group_back(self, group: str, topic: str) -> Flow:
        """The counter of what a group sent back."""
        series = self._backs.get((group, topic))
        return series.flow if series is not None else self._new(self._backs, (group, topic))

    def put(self, topic: str, messages: int, size: int) -> None:
        """Count messages of one send: for the topic and for the broker."""
        flow = self.topic_put(topic)
        flow.messages += messages
        flow.size += size
        flow.calls += 1
        self.put_messages += messages
        self.put_bytes += size
        self.put_calls += 1

    def got(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count messages of one pull that found some."""
        flow = self.group_get(group, topic)
        flow.messages += messages
        flow.size += size
        flow.calls += 1
        self.get_messages += messages
        self.found_calls += 1

    def missed(self) -> None:
        """Count a pull that found nothing."""
        self.missed_calls += 1

    def put_took(self, took_ms: float) -> None:
        """Note how long a send took; every one or a sample of them."""
        self._took[bisect_left(TOOK_BOUNDS_MS, took_ms)] += 1
        self._took_max_ms = max(self._took_max_ms, int(took_ms))

    # -- timer --------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Take one sample of everything; to be called every `SAMPLE_SECONDS`."""
        for _ in self.sample_in_steps():
            pass

    def sample_in_steps(self) -> Iterator[None]:
        """Take one sample of everything, with a pause after every `STEP_SERIES` counters."""
        self._samples += 1
        now = self._clock.monotonic()
        put, got = self._broker_put.flow, self._broker_get.flow
        put.messages, put.size, put.calls = self.put_messages, self.put_bytes, self.put_calls
        got.messages, got.calls = self.get_messages, self.found_calls
        self._broker_put.sample(now, self._samples)
        self._broker_get.sample(now, self._samples)
        self._store.append(self._store_sample())
        today = self._today()
        if today != self._day:
            self._day = today
            self.put_yesterday_morning, self.put_today_morning = self.put_today_morning, self.put_messages
            self.get_yesterday_morning, self.get_today_morning = self.get_today_morning, self.get_messages
        yield from self._sample_table(self._puts, now)
        yield from self._sample_table(self._gets, now)
        yield from self._sample_table(self._backs, now)

    async def run(self) -> None:
        """Sample for as long as this task runs."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            for _ in self.sample_in_steps():
                await asyncio.sleep(0)

    # -- answers ------------------------------------------------------------------------------------------

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """One counter by Java's names: a topic as key, `topic@group` for groups; `None` if there is none."""
        series: _Series | None
        topic, _, group = key.partition("@")
        size = name in (TOPIC_PUT_SIZE, GROUP_GET_SIZE)
        if name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            series = self._puts.get(key)
        elif name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            series = self._gets.get((group, topic))
        elif name == SNDBCK_PUT_NUMS:
            series = self._backs.get((group, topic))
        elif name == BROKER_PUT_NUMS:
            series = self._broker_put
        elif name == BROKER_GET_NUMS:
            series = self._broker_get
        else:
            series = None
        if series is None:
            return None
        return BrokerStatsData(
            _rates(series.minute, size), _rates(series.hour, size), _rates(series.day, size)
        )

    def topic_put_tps(self, topic: str) -> float:
        """Messages a second sent to the topic during the last minute."""
        series = self._puts.get(topic)
        return _rates(series.minute, False).tps if series is not None else 0.0

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages a second that the group pulled during the last minute."""
        series = self._gets.get((group, topic))
        return _rates(series.minute, False).tps if series is not None else 0.0

    def topics(self) -> Iterator[tuple[str, Flow]]:
        """Every counted topic, for metrics."""
        return ((topic, series.flow) for topic, series in self._puts.items())

    def groups(self) -> Iterator[tuple[str, str, Flow]]:
        """Every counted group with its topic, for metrics."""
        return ((group, topic, series.flow) for (group, topic), series in self._gets.items())

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self._puts.pop(topic, None)
        for table in (self._gets, self._backs):
            for key in [key for key in table if key[1] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        for table in (self._gets, self._backs):
            for key in [key for key in table if key[0] == group]:
                del table[key]

    def runtime_table(self) -> dict[str, str]:
        """The part of GET_BROKER_RUNTIME_INFO that is made of counters."""
        put, found, missed, transferred = (self._three_rates(index) for index in range(4))
        total = tuple(a + b for a, b in zip(found, missed, strict=True))
        average = self.put_bytes / self.put_messages if self.put_messages else 0.0
        return {
            "putTps": _three(put),
            "getFoundTps": _three(found),
            "getMissTps": _three(missed),
            "getTotalTps": _three(total),
            "getTransferredTps": _three(transferred),
            "putMessageTimesTotal": str(self.put_messages),
            "putMessageFailedTimes": str(self.put_failed),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(average),
            "putMessageEntireTimeMax": str(self._took_max_ms),
            "getMessageEntireTimeMax": str(self.get_took_max_ms),
            "putMessageDistributeTime": "".join(
                f"{name}:{count} " for name, count in zip(_TOOK_NAMES, self._took, strict=True)
            ),
            "putLatency99": f"{self._took_percentile(0.99):.2f}",
            "putLatency999": f"{self._took_percentile(0.999):.2f}",
            "msgPutTotalYesterdayMorning": str(self.put_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_today_morning),
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgGetTotalYesterdayMorning": str(self.get_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_today_morning),
            "msgGetTotalTodayNow": str(self.get_messages),
        }

    # -- inside -------------------------------------------------------------------------------------------

    def _new(self, table: dict[K, _Series], key: K) -> Flow:
        if len(self._puts) + len(self._gets) + len(self._backs) >= self.series_max:
            return self._overflow
        series = table[key] = _Series(self._clock.monotonic())
        return series.flow

    def _sample_table(self, table: dict[K, _Series], now: float) -> Iterator[None]:
        for number, (key, series) in enumerate(list(table.items()), start=1):
            series.sample(now, self._samples)
            if series.quiet > self.quiet_samples_max:
                table.pop(key, None)
            if number % STEP_SERIES == 0:
                yield

    def _store_sample(self) -> _StoreSample:
        return _StoreSample(
            self._clock.monotonic(), self.put_messages, self.found_calls, self.missed_calls, self.get_messages
        )

    def _three_rates(self, index: int) -> tuple[float, float, float]:
        """Rates over 10 s, 60 s and 600 s of put, found, missed or transferred."""
        name = ("put", "found", "missed", "transferred")[index]
        last = self._store[-1]
        rates = []
        for samples in (1, 6, 60):
            first = self._store[max(0, len(self._store) - 1 - samples)]
            seconds = last.at - first.at
            rates.append((getattr(last, name) - getattr(first, name)) / seconds if seconds > 0 else 0.0)
        return rates[0], rates[1], rates[2]

    def _took_percentile(self, part: float) -> float:
        """Upper end of the class of put times below which `part` of them are."""
        total = sum(self._took)
        seen = 0
        for index, count in enumerate(self._took):
            seen += count
            if total and seen >= total * part:
                return float(TOOK_BOUNDS_MS[index] if index < len(TOOK_BOUNDS_MS) else self._took_max_ms)
        return 0.0

    def _today(self) -> int:
        """Number of the day in the broker's local time."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone().date().toordinal()


def _three(rates: tuple[float, ...]) -> str:
    return " ".join(str(rate) for rate in rates)
