"""Names of POP: the revive topic, its group, and the retry topics of a group and a topic.

Source: `PopAckConstants`, `KeyBuilder` and `ExtraInfoUtil` of Java 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brokerset_formats.names import RETRY_PREFIX, REVIVE_PREFIX

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""Its consumer offsets in the revive topic are the progress: the last record that is done."""

ORDER_REVIVE_QUEUE: Final = 999
"""Names no queue: the handle comes from an ordered pop, which has no check point."""

NORMAL: Final = 0
"""Retry flag of a message of the topic itself."""
RETRY_V1: Final = 1
"""Retry flag of a message of `%RETRY%<group>_<topic>`."""
RETRY_V2: Final = 2
"""Retry flag of a message of `%RETRY%<group>+<topic>`."""

RETRY_FLAGS: Final = (NORMAL, RETRY_V1, RETRY_V2)

_V1: Final = "_"
_V2: Final = "+"


def revive_topic(cluster: str) -> str:
    """The topic of a cluster's check points and acks."""
    return REVIVE_PREFIX + cluster


def pop_retry_topic(group: str, topic: str, flag: int = RETRY_V1) -> str:
    """The topic of the messages of `topic` that `group` gets again; `flag` is `RETRY_V1` or `RETRY_V2`."""
    return f"{RETRY_PREFIX}{group}{_V2 if flag == RETRY_V2 else _V1}{topic}"


def real_topic(group: str, topic: str, flag: int) -> str:
    """Where a message with a retry flag lies: in the topic, or in a retry topic of group and topic."""
    return topic if flag == NORMAL else pop_retry_topic(group, topic, flag)


def retry_flag_of(topic: str) -> int:
    """The flag that says in a handle what kind of topic the message lies in."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _V2 in topic else RETRY_V1


def normal_topic(group: str, topic: str) -> str:
    """The topic that a POP retry topic of `group` belongs to; any other name is its own."""
    for separator in (_V2, _V1):
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if topic.startswith(prefix) and len(topic) > len(prefix):
            return topic[len(prefix) :]
    return topic


def split_retry_v2(topic: str) -> tuple[str, str] | None:
    """Group and topic of a retry topic of V2; None for any other name."""
    group, found, name = topic.removeprefix(RETRY_PREFIX).partition(_V2)
    return (group, name) if found and group and name and topic.startswith(RETRY_PREFIX) else None


def split_retry_v1(topic: str) -> Iterator[tuple[str, str]]:
    """Every group and topic that a retry topic of V1 may belong to: its name does not say which."""
    if not topic.startswith(RETRY_PREFIX):
        return
    rest = topic.removeprefix(RETRY_PREFIX)
    at = rest.find(_V1, 1)
    while 0 < at < len(rest) - 1:
        yield rest[:at], rest[at + 1 :]
        at = rest.find(_V1, at + 1)
