"""Filter expressions by tag, as consumers write them: `*`, or tags joined by `||`.

Source: RocketMQ's `FilterAPI`, `DefaultMessageFilter`.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats.hashing import java_hash
from brokerset_protocol.bodies.heartbeat import SUB_ALL, ExpressionType, SubscriptionData
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

TAG_SEPARATOR: Final = "||"

_JAVA_BLANKS: Final = "".join(map(chr, range(33)))

TAGS_MAX: Final = 4096
"""Tags of one expression; each is looked up for every message that is read."""

EXPRESSION_SIZE_MAX: Final = 131_072
"""Characters of one expression by tag: brokers keep the expressions of their consumers."""

KEPT_SIZE_MAX: Final = 4_194_304
"""Characters of all parsed expressions that a broker keeps for requests of one kind that bring their own."""


def parse(
    topic: str, expression: str | None, *, version: int = 0, expression_type: str | None = None
) -> SubscriptionData:
    """What an expression subscribes to; `version` is the `sub_version`, milliseconds.

    Raises `Rejected` (SUBSCRIPTION_PARSE_FAILED) for an expression without tags, with too many, or too long.
    """
    if expression_type is not None and expression_type != ExpressionType.TAG:
        if not expression:
            raise _unreadable(f"an expression of type {expression_type} must not be empty")
        return SubscriptionData(topic, expression, sub_version=version, expression_type=expression_type)
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, sub_version=version)
    if len(expression) > EXPRESSION_SIZE_MAX:
        raise _unreadable(f"{len(expression)} characters, at most {EXPRESSION_SIZE_MAX} are allowed")
    pieces = expression.split(TAG_SEPARATOR)
    if len(pieces) > TAGS_MAX:
        raise _unreadable(f"{len(pieces)} tags, at most {TAGS_MAX} are allowed")
    if not any(pieces):
        raise _unreadable("only separators")
    tags = frozenset(tag for piece in pieces if (tag := piece.strip(_JAVA_BLANKS)))
    return SubscriptionData(topic, expression, tags, frozenset(map(java_hash, tags)), version)


def filter_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """The tag codes that match, `None` for every message (also when something else decides: SQL, class)."""
    if (
        subscription.sub_string == SUB_ALL
        or subscription.class_filter_mode
        or subscription.expression_type != ExpressionType.TAG
    ):
        return None
    return subscription.code_set


def _unreadable(problem: str) -> Rejected:
    return Rejected(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {problem}"
    )
