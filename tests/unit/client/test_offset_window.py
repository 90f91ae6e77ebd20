"""What may be stored while messages finish in any order, and when fetching pauses."""

from __future__ import annotations

import pytest

from brokerset_client.offset_window import OffsetWindow, WindowLimits


def filled(*queue_offsets: int, size: int = 100) -> OffsetWindow:
    window = OffsetWindow(queue_offsets[0])
    window.add([(queue_offset, size) for queue_offset in queue_offsets], queue_offsets[-1] + 1)
    return window


def test_the_lowest_unfinished_holds_the_offset_back() -> None:
    window = filled(5, 6, 7, 8)

    seen = [window.commit_offset]
    for queue_offset in (6, 8, 5, 7):
        window.finish(queue_offset)
        seen.append(window.commit_offset)

    assert seen == [5, 5, 5, 7, 9]


def test_an_empty_window_is_where_scanning_is() -> None:
    """Filtered messages move the offset, too, once nothing before them is unfinished."""
    window = OffsetWindow(3)

    window.add([], 40)

    assert window.commit_offset == 40


def test_filtered_messages_do_not_pass_an_unfinished_one() -> None:
    window = filled(3)

    window.add([], 40)
    held = window.commit_offset
    window.finish(3)

    assert (held, window.commit_offset) == (3, 40)


def test_finishing_twice_or_what_is_not_there_changes_nothing() -> None:
    window = filled(1, 2)

    window.finish(1)
    window.finish(1)
    window.finish(99)

    assert (window.commit_offset, window.count, window.bytes) == (2, 1, 100)


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        (WindowLimits(messages_max=3), True),
        (WindowLimits(messages_max=4), False),
        (WindowLimits(bytes_max=300), True),
        (WindowLimits(bytes_max=301), False),
        (WindowLimits(span_max=10), True),
        (WindowLimits(span_max=11), False),
    ],
)
def test_each_limit_pauses_fetching(limits: WindowLimits, full: bool) -> None:
    assert filled(0, 1, 10).is_full(limits) is full


def test_an_orderly_queue_has_no_span() -> None:
    assert not filled(0, 5000).is_full(WindowLimits(span_max=10), by_span=False)
