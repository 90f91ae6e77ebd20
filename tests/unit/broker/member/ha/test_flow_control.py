"""How fast slaves may be sent to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.member.ha.flow_control import BURST_SECONDS, TokenBucket


@given(st.integers(1_024, 10**9), st.lists(st.integers(1, 4_194_268), min_size=1, max_size=30))
def test_average_keeps_to_the_rate(rate: int, sizes: list[int]) -> None:
    """Whatever the pieces: before the last one no more was sent than the rate and one burst allow."""
    bucket, now, sent = TokenBucket(rate, 0.0), 0.0, 0
    for size in sizes:
        while wait := bucket.wait_seconds(now):
            now += wait
        assert sent <= (now + BURST_SECONDS) * rate * 1.000001 + 1
        bucket.take(size)
        sent += size


def test_pause_gives_one_burst_only() -> None:
    """After a long silence a tenth of a second's bytes go at once, not more."""
    bucket = TokenBucket(1_000_000, 0.0)
    assert bucket.wait_seconds(100.0) == 0.0

    bucket.take(200_000)

    assert bucket.wait_seconds(100.0) == 0.1
    assert bucket.piece_bytes == 100_000
    assert TokenBucket(1_024, 0.0).piece_bytes == 1_024


def test_rate_can_change_while_it_runs() -> None:
    """A new rate counts from its moment on; time that runs backwards gives nothing."""
    bucket = TokenBucket(1_000, 0.0)
    bucket.take(1_100)

    bucket.change_rate(10_000, 0.0)

    assert bucket.wait_seconds(0.0) == 0.1
    assert bucket.wait_seconds(-5.0) == 0.1
