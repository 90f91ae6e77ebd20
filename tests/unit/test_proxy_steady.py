"""What the proxy suite makes of the messages that a client saw while the master changed."""

from __future__ import annotations

from brokerset_rig.proxy_steady import out_of_order, pause, repeated

CHANGE = (100.0, 120.0)


def test_a_message_may_come_again_when_its_acknowledgement_fell_into_a_change() -> None:
    """Shortly before the master died, and until the clients had gone on, an acknowledgement may be lost."""
    got = [(98.0, "before"), (110.0, "within"), (125.0, "before"), (126.0, "within")]
    assert repeated(got, [CHANGE]) == (["before", "within"], [])


def test_a_message_that_was_acknowledged_long_before_or_after_a_change_must_not_come_again() -> None:
    """Then nothing explains that it was delivered twice."""
    got = [(90.0, "early"), (121.0, "early"), (130.0, "late"), (150.0, "late"), (151.0, "once")]
    assert repeated(got, [CHANGE]) == ([], ["early", "late"])


def test_groups_are_in_order_when_each_message_comes_first_after_the_earlier_ones_of_its_group() -> None:
    """A repetition of an earlier message, and another group's messages, do not count."""
    got = [(0.0, "java-0"), (1.0, "java-3"), (2.0, "java-2"), (3.0, "java-0"), (4.0, "java-4")]
    assert out_of_order(got, 2) == []


def test_a_message_that_comes_after_a_later_one_of_its_group_is_named_with_it() -> None:
    """Both numbers are in the words."""
    assert out_of_order([(0.0, "java-4"), (1.0, "java-1"), (2.0, "java-2")], 2) == ["java-2 after 4"]


def test_the_longest_pause_that_ends_after_a_moment_counts() -> None:
    """One that ended before it does not."""
    assert pause([(0.0, "a"), (9.0, "b"), (11.0, "c"), (14.0, "d")], 10.0) == 3.0
    assert pause([(0.0, "a")], 10.0) == 0.0
