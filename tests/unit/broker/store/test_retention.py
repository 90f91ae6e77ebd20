"""What goes when: by age at its hour, by need at any hour."""

from __future__ import annotations

import pytest

from brokerset_broker.store import retention
from brokerset_broker.store.retention import RetentionRules, Segment, decide_retention

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
RULES = RetentionRules(reserved_hours=72, delete_hours=frozenset({4}))
OLD_MS = NOW_MS - 72 * HOUR_MS
YOUNG_MS = OLD_MS + 1


def segments(*modified_ms: int) -> list[Segment]:
    return [Segment(number * 1024, 1024, when) for number, when in enumerate(modified_ms)]


def deleted(found: list[Segment], *, used: int = 10, hour: int = 4, manual: bool = False) -> list[int]:
    decision = decide_retention(found, RULES, used_percent=used, now_ms=NOW_MS, hour=hour, manual=manual)
    return [segment.first_offset for segment in decision.delete]


def test_expired_segments_go_at_their_hour() -> None:
    """At the hour, segments go in order up to the first that is too young."""
    found = segments(OLD_MS, OLD_MS, YOUNG_MS, OLD_MS, OLD_MS)

    assert deleted(found) == [0, 1024]
    assert deleted(found, hour=5) == []


def test_the_last_segment_never_goes() -> None:
    """The segment that is being written stays, however old or full."""
    assert deleted(segments(0)) == []
    assert deleted(segments(0), used=99) == []
    assert deleted(segments(0, 0), used=99) == [0]
    assert deleted([]) == []


def test_a_round_is_limited() -> None:
    """At most ten segments go in one round."""
    assert len(deleted(segments(*[0] * 30))) == 10
    assert len(deleted(segments(*[NOW_MS] * 30), used=90)) == 10


@pytest.mark.parametrize(
    ("used", "expected", "refused"),
    [
        (75, [], False),
        (76, [0], False),
        (85, [0], False),
        (86, [0, 1024], False),
        (90, [0, 1024], False),
        (91, [0, 1024], True),
    ],
)
def test_disk_thresholds(used: int, expected: list[int], refused: bool) -> None:
    """Above 75 % expired segments go at any hour, above 85 % all old ones, above 90 % writes fail."""
    found = segments(OLD_MS, YOUNG_MS, NOW_MS)

    decision = decide_retention(found, RULES, used_percent=used, now_ms=NOW_MS, hour=12)

    assert [segment.first_offset for segment in decision.delete] == expected
    assert decision.refuse_writes is refused


def test_a_request_counts_as_the_hour() -> None:
    """An administrator's request deletes expired segments only."""
    assert deleted(segments(OLD_MS, YOUNG_MS, NOW_MS), hour=12, manual=True) == [0]


def test_force_can_be_forbidden() -> None:
    """Without force a full disk refuses writes and deletes only what has expired."""
    rules = RetentionRules(force=False)

    decision = decide_retention(
        segments(OLD_MS, YOUNG_MS, NOW_MS), rules, used_percent=95, now_ms=NOW_MS, hour=12
    )

    assert [segment.first_offset for segment in decision.delete] == [0]
    assert decision.refuse_writes


def test_settings_out_of_range_count_as_the_nearest() -> None:
    """A warning level of 100 % cannot switch the protection off."""
    rules = RetentionRules(expire_percent=100, force_percent=100, warning_percent=100)

    decision = decide_retention(segments(NOW_MS, NOW_MS), rules, used_percent=91, now_ms=NOW_MS, hour=12)

    assert decision.refuse_writes
    assert len(decision.delete) == 1


def test_reasons_tell_what_happens() -> None:
    """The reason is for the log, so it differs with the cause."""
    reasons = {
        decide_retention([], RULES, used_percent=used, now_ms=NOW_MS, hour=hour, manual=manual).reason
        for used, hour, manual in (
            (10, 12, False),
            (10, 4, False),
            (10, 12, True),
            (80, 12, False),
            (88, 12, False),
        )
    }

    assert len(reasons) == 5


def test_used_percent_is_rounded_up() -> None:
    """As Java computes it: used of used + available."""
    assert retention.used_percent(1, 999) == 1
    assert retention.used_percent(0, 10) == 0
    assert retention.used_percent(10, 10) == 50
    assert retention.used_percent(0, 0) == 0


def test_delete_hours() -> None:
    """Several hours are separated by semicolons."""
    assert retention.parse_delete_hours("04") == {4}
    assert retention.parse_delete_hours("04;16;") == {4, 16}
    for wrong in ("24", "x", "-1"):
        with pytest.raises(ValueError, match=r"24|'x'|-1"):
            retention.parse_delete_hours(wrong)


def test_queue_files() -> None:
    """A queue's files go when all their messages are gone, but not the last, which holds the next number."""
    assert retention.expired_queue_files([100, 200, 300], 250) == 2
    assert retention.expired_queue_files([100, 200, 300], 200) == 1
    assert retention.expired_queue_files([100, 200, 300], 1000) == 2
    assert retention.expired_queue_files([100], 1000) == 0
    assert retention.expired_queue_files([], 1000) == 0
