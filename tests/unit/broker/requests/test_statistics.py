"""Counters and the rates made of them."""

from __future__ import annotations

import json
from pathlib import Path

from brokerset_broker.requests import statistics as module
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_runtime.clock import ManualClock

PEERS = Path(__file__).parents[3] / "peers"
DAY_MS = 86_400_000


def pass_samples(stats: BrokerStats, clock: ManualClock, count: int) -> None:
    for _ in range(count):
        clock.advance(module.SAMPLE_SECONDS * 1000)
        stats.sample()


def test_rates_are_over_the_last_minute() -> None:
    """Twenty messages in ten seconds are two a second; a minute later they are none."""
    clock = ManualClock()
    stats = BrokerStats(clock)
    stats.put("t", 20, 2_000)
    stats.got("g", "t", 10, 1_000)
    pass_samples(stats, clock, 1)

    assert stats.topic_put_tps("t") == 2.0
    assert stats.group_get_tps("g", "t") == 1.0
    pass_samples(stats, clock, 5)
    assert round(stats.topic_put_tps("t"), 6) == round(20 / 60, 6)
    pass_samples(stats, clock, 1)

    assert stats.topic_put_tps("t") == 0.0
    assert stats.topic_put_tps("unknown") == 0.0


def test_counters_are_seen_under_java_s_names() -> None:
    """By topic, by `topic@group`, for messages and bytes; the hour has ten-minute samples."""
    clock = ManualClock()
    stats = BrokerStats(clock)
    stats.put("t", 6, 60)
    stats.put("t", 2, 20)
    stats.got("g", "t", 5, 50)
    stats.group_back("g", "t").messages += 1
    pass_samples(stats, clock, 60)

    put = stats.view("TOPIC_PUT_NUMS", "t")
    size = stats.view("TOPIC_PUT_SIZE", "t")
    got = stats.view("GROUP_GET_NUMS", "t@g")

    assert put is not None
    assert (put.stats_hour.sum, put.stats_hour.avgpt) == (8, 4.0)
    assert put.stats_minute.sum == 0
    assert size is not None
    assert size.stats_hour.sum == 80
    assert got is not None
    assert got.stats_hour.sum == 5
    assert stats.view("SNDBCK_PUT_NUMS", "t@g") is not None
    assert stats.view("BROKER_PUT_NUMS", "DefaultCluster") is not None
    assert stats.view("TOPIC_PUT_NUMS", "unknown") is None
    assert stats.view("NO_SUCH_NAME", "t") is None


def test_totals_of_yesterday_and_today() -> None:
    """At midnight the totals become those of the morning."""
    clock = ManualClock()
    stats = BrokerStats(clock)
    stats.put("t", 5, 50)
    clock.advance(DAY_MS)
    stats.sample()
    stats.put("t", 7, 70)
    clock.advance(DAY_MS)
    stats.sample()
    stats.put("t", 1, 10)

    table = stats.runtime_table()

    assert table["msgPutTotalYesterdayMorning"] == "5"
    assert table["msgPutTotalTodayMorning"] == "12"
    assert table["msgPutTotalTodayNow"] == "13"
    assert table["putMessageAverageSize"] == "10.0"


def test_the_table_has_java_s_keys_and_three_rates() -> None:
    """`mqadmin` takes the first number of each rate."""
    clock = ManualClock()
    stats = BrokerStats(clock)
    stats.put("t", 60, 600)
    stats.missed()
    stats.put_took(0.5)
    stats.put_took(30_000)
    pass_samples(stats, clock, 6)
    golden = json.loads(json.loads((PEERS / "golden/wire/broker-28-runtime-info.json").read_text())["body"])

    table = stats.runtime_table()

    assert table["putTps"] == "0.0 1.0 1.0"
    assert table["getMissTps"].count(" ") == 2
    assert set(table) <= set(golden["table"])
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:0 [0~10ms]:1 ")
    assert table["putMessageDistributeTime"].endswith("[10s~]:1 ")
    assert table["putMessageEntireTimeMax"] == "30000"


def test_counters_have_a_limit_and_quiet_ones_go() -> None:
    """One topic too many is counted for the broker alone; a day without traffic frees its place."""
    clock = ManualClock()
    stats = BrokerStats(clock)
    stats.series_max = 1
    stats.quiet_samples_max = 3
    stats.put("t", 1, 1)
    stats.put("u", 1, 1)

    assert [topic for topic, _ in stats.topics()] == ["t"]
    assert stats.put_messages == 2
    pass_samples(stats, clock, 6)
    assert list(stats.topics()) == []


def test_counters_go_with_their_topic_or_group() -> None:
    """Deleted names leave no counters."""
    stats = BrokerStats(ManualClock())
    stats.put("t", 1, 1)
    stats.got("g", "t", 1, 1)
    stats.got("h", "u", 1, 1)

    stats.forget_topic("t")
    stats.forget_group("h")

    assert list(stats.topics()) == []
    assert list(stats.groups()) == []


def test_sampling_pauses() -> None:
    """Many counters are sampled in several turns of the loop."""
    stats = BrokerStats(ManualClock())
    for number in range(module.STEP_SERIES * 2):
        stats.put(f"t{number}", 1, 1)

    assert len(list(stats.sample_in_steps())) == 2
