"""Tag expressions."""

from __future__ import annotations

import pytest

from brokerset_protocol import subscriptions
from brokerset_protocol.bodies import SubscriptionData
from brokerset_protocol.errors import Rejected


def test_tags_and_codes_are_those_of_java() -> None:
    """The tags of the heartbeat vector have the codes that Java put there."""
    parsed = subscriptions.parse("TopicTest", "TagA || TagB", version=1700000000000)

    assert parsed == SubscriptionData(
        "TopicTest",
        "TagA || TagB",
        frozenset({"TagA", "TagB"}),
        frozenset({2598919, 2598920}),
        1700000000000,
    )
    assert subscriptions.filter_codes(parsed) == frozenset({2598919, 2598920})


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_is_a_star(expression: str | None) -> None:
    """No expression, an empty one and `*` match every message."""
    parsed = subscriptions.parse("T", expression)

    assert parsed == SubscriptionData("T", "*")
    assert subscriptions.filter_codes(parsed) is None


def test_empty_pieces_are_skipped() -> None:
    """Blanks around tags do not count, and pieces of blanks are no tags."""
    assert subscriptions.parse("T", " a || || b||").tags_set == {"a", "b"}
    assert subscriptions.filter_codes(subscriptions.parse("T", "   ")) == frozenset()


@pytest.mark.parametrize("expression", ["||", "||||", "a||" * subscriptions.TAGS_MAX, "a" * 131_073])
def test_bad_expressions_are_refused(expression: str) -> None:
    """Only separators, more tags than the limit, or more characters, cannot be subscribed to."""
    with pytest.raises(Rejected) as caught:
        subscriptions.parse("T", expression)

    assert caught.value.code == 23


def test_sql_is_kept_for_others_to_decide() -> None:
    """An SQL expression has no tag codes; an empty one is refused."""
    parsed = subscriptions.parse("T", "a > 5", expression_type="SQL92")

    assert (parsed.expression_type, parsed.code_set) == ("SQL92", frozenset())
    assert subscriptions.filter_codes(parsed) is None
    with pytest.raises(Rejected):
        subscriptions.parse("T", "", expression_type="SQL92")
