"""Rates of a consumer: what is older than the window counts no more, and an idle one costs nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_client import consume_rates
from brokerset_client.consume_rates import MINUTE_SLOTS, SLOT_SECONDS, ConsumerWork
from brokerset_protocol.bodies.connections import ConsumeRates

MINUTE = MINUTE_SLOTS * SLOT_SECONDS


def test_rates_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    """Means are in milliseconds, rates in messages a second."""
    now = 1000.0
    work = ConsumerWork(lambda: now)
    work.pulled("t", 30, 0.010)
    work.pulled("t", 30, 0.030)
    work.consumed("t", 4, now - 0.002, failed=False)
    work.consumed("t", 2, now - 0.004, failed=True)

    rates = work.rates("t")
    assert rates.pull_rt == pytest.approx(20.0)
    assert rates.pull_tps == pytest.approx(1.0)
    assert rates.consume_rt == pytest.approx(3.0)
    assert rates.consume_ok_tps == pytest.approx(4 / 60)
    assert rates.consume_failed_tps == pytest.approx(2 / 60)
    assert rates.consume_failed_msgs == 2
    now += 2 * MINUTE
    assert work.rates("t") == ConsumeRates(consume_failed_msgs=2)
    now += 3600.0
    assert work.rates("t") == ConsumeRates()


def test_unknown_forgotten_and_too_many_topics_have_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting is bounded; what is beyond the bound is consumed all the same."""
    monkeypatch.setattr(consume_rates, "TOPICS_MAX", 1)
    work = ConsumerWork(lambda: 0.0)
    work.pulled("t", 1, 0.1)
    work.pulled("u", 1, 0.1)

    assert work.rates("u") == ConsumeRates()
    work.forget("t")
    assert work.rates("t") == ConsumeRates()
    work.consumed("u", 1, 0.0, failed=False)
    assert work.rates("u").consume_ok_tps > 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 9), st.booleans()), max_size=30))
def test_a_minute_has_all_of_its_newest_part_and_nothing_older_than_itself(
    steps: list[tuple[float, int, bool]],
) -> None:
    """Whatever the pauses, the sum lies between that of five sixths of the minute and that of all of it."""
    now = 0.0
    work = ConsumerWork(lambda: now)
    added = []
    for pause, messages, failed in steps:
        now += pause
        work.consumed("t", messages, now, failed=failed)
        added.append((now, messages, failed))

    rates = work.rates("t")

    done = [(at, messages) for at, messages, failed in added if not failed]
    surely = sum(messages for at, messages in done if at > now - MINUTE + SLOT_SECONDS)
    perhaps = sum(messages for at, messages in done if at > now - MINUTE)
    assert surely - 0.001 <= rates.consume_ok_tps * MINUTE <= perhaps + 0.001
    assert rates.consume_failed_msgs == sum(messages for _, messages, failed in added if failed)
