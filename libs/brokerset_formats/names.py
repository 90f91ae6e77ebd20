"""Names of topics and groups: what is allowed, what is reserved, and the names derived from a group."""

from __future__ import annotations

import re
from collections.abc import Collection

TOPIC_SIZE_MAX = 127
"""Characters of an ordinary topic."""

DERIVED_TOPIC_SIZE_MAX = 255
"""Characters of a retry or dead-letter topic, which holds a group's name and perhaps a topic's."""

GROUP_SIZE_MAX = 120
"""Characters of a group; its retry topic then fits an ordinary topic's length."""

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

DEFAULT_TOPIC = "TBW102"
"""Template of automatically created topics (`AUTO_CREATE_TOPIC_KEY_TOPIC`)."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Topic that a broker writes while POP consumers take messages; the cluster's name follows."""


SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Fixed system topics; a broker adds those named after itself and its cluster."""

SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics that only a broker itself may write. In Java that of the timer wheel is not among them: but whoever
writes it writes all of them, for its messages name the topics that they are delivered to."""

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        TRANSACTION_GROUP,
    }
)
"""Consumer groups that every broker has from its start."""

_PATTERN_TEXT = "^[%|a-zA-Z0-9_-]+$"
_is_legal = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch


def check_topic(name: str) -> str | None:
    """None if the name can be a topic's, else what is wrong with it, for the one who chose it."""
    if not name or name.isspace():
        return "The specified topic is blank."
    if not _is_legal(name):
        return f"The specified topic: {name}, contains illegal characters, allowing only {_PATTERN_TEXT}"
    size_max = DERIVED_TOPIC_SIZE_MAX if is_retry_topic(name) or is_dlq_topic(name) else TOPIC_SIZE_MAX
    if len(name) > size_max:
        return f"The specified topic is longer than topic max length {size_max}."
    return None


def check_group(name: str) -> str | None:
    """None if the name can be a consumer or producer group's, else what is wrong with it."""
    if not name or name.isspace():
        return "The specified group is blank."
    if not _is_legal(name):
        return f"The specified group: {name}, contains illegal characters, allowing only {_PATTERN_TEXT}"
    if len(name) > GROUP_SIZE_MAX:
        return f"The specified group is longer than group max length {GROUP_SIZE_MAX}."
    return None


def retry_topic(group: str) -> str:
    """The topic that holds messages which a group has to try again."""
    return RETRY_PREFIX + group


def ordered_retry_topic(group: str, subject: str) -> str:
    """The topic that holds copies of an ordered subject's messages which a group has to try again.

    A `%` is in no name of a subject, so the topic belongs to one group and subject.
    """
    return f"{RETRY_PREFIX}{group}%{subject}"


def split_ordered_retry_topic(topic: str) -> tuple[str, str] | None:
    """Group and subject of an `ordered_retry_topic`; None for any other topic."""
    group, _, subject = topic.removeprefix(RETRY_PREFIX).rpartition("%")
    return (group, subject) if is_retry_topic(topic) and group and subject else None


def dlq_topic(group: str) -> str:
    """The topic that holds messages which a group could not process (dead letters)."""
    return DLQ_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Whether the topic is some group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Whether the topic is some group's dead-letter topic."""
    return topic.startswith(DLQ_PREFIX)


def is_system_topic(topic: str, own_topics: Collection[str] = ()) -> bool:
    """Whether the topic is the system's; `own_topics` are those named after the broker and its cluster."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX) or topic in own_topics


def is_send_forbidden(topic: str) -> bool:
    """Whether clients may not send to the topic.

    Nor to the one that says what was popped, which Java allows: messages of every topic come again by it.
    """
    return topic in SEND_FORBIDDEN_TOPICS or topic.startswith(REVIVE_PREFIX)


def is_system_group(group: str) -> bool:
    """Whether the group belongs to the system (and must not be created, changed or deleted by clients)."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def reply_topic(cluster: str) -> str:
    """The topic of a cluster's request/reply messages."""
    return f"{cluster}_REPLY_TOPIC"
