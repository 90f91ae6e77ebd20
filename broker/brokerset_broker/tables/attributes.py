"""Attributes of topics and groups, and the `+key=value,-key` language in which they are changed.

Source: `AttributeUtil`, `AttributeParser`, `TopicAttributes`, `SubscriptionGroupAttributes`.
"""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

ATTRIBUTES_MAX = 64
"""Attributes in one change; Java knows fewer than ten."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What one attribute may hold: one of `choices`, or a number from `low` to `high`."""

    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    changeable: bool = True
    unsupported: tuple[str, ...] = ()
    """Values that Java knows and this broker does not serve."""

    def problem(self, value: str) -> str | None:
        """What is wrong with `value`, or `None`."""
        if value in self.unsupported:
            return f"{value} is not supported by this broker"
        if self.choices:
            return None if value in self.choices else f"value is not in set: [{', '.join(self.choices)}]"
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            return "value is not a number"
        return (
            None if self.low <= int(value) <= self.high else f"value is not in range({self.low}, {self.high})"
        )


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(("SimpleCQ",), changeable=False, unsupported=("BatchCQ",)),
    "cleanup.policy": Attribute(("DELETE",), changeable=False, unsupported=("COMPACTION",)),
    "message.type": Attribute(
        ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")
    ),
    "reserve.time": Attribute(low=-1, high=2**63 - 1),
    "lite.topic.expiration": Attribute(low=-1, high=43_200),
}

GROUP_ATTRIBUTES: Mapping[str, Attribute] = {"priority.factor": Attribute(low=0, high=100)}


def parse_changes(text: str | None) -> dict[str, str]:
    """`+a=1,-b` as `{"+a": "1", "-b": ""}`. Raises `Rejected` for anything else."""
    changes: dict[str, str] = {}
    for item in (text or "").split(","):
        if not item:
            continue
        key, separator, value = item.partition("=")
        if separator and not key.startswith("+"):
            raise _rejected(f"add/alter attribute format is wrong: {key}")
        if not separator and not key.startswith("-"):
            raise _rejected(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise _rejected(f"key duplication: {key}")
        changes[key] = value
    return changes


def alter(
    known: Mapping[str, Attribute], current: Mapping[str, str], changes: Mapping[str, str], *, create: bool
) -> dict[str, str]:
    """`current` after `changes`, whose keys begin with + or -. Raises `Rejected` with Java's reasons."""
    if len(changes) > ATTRIBUTES_MAX:
        raise _rejected(f"{len(changes)} attributes at once, at most {ATTRIBUTES_MAX}")
    result = dict(current)
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") or not key:
            raise _rejected(f"wrong format key: {signed}")
        if key in seen:
            raise _rejected(f"alter duplication key. key: {key}")
        seen.add(key)
        if sign == "-" and create:
            raise _rejected(f"only add attribute is supported while creating topic. key: {key}")
        if sign == "-" and key not in current:
            raise _rejected(f"attempt to delete a nonexistent key: {key}")
        attribute = known.get(key)
        if attribute is None:
            raise _rejected(f"unsupported key: {key}")
        if key in current and not attribute.changeable and (sign == "-" or current[key] != value):
            raise _rejected(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            del result[key]
            continue
        problem = attribute.problem(value)
        if problem is not None:
            raise _rejected(f"attribute {key}={value}: {problem}")
        result[key] = value
    return result


def _rejected(remark: str) -> Rejected:
    return Rejected(ResponseCode.INVALID_PARAMETER, remark)
