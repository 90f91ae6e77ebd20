"""Light queues (LMQ): further queues of a message besides that of its topic, named in its properties.

`INNER_MULTI_DISPATCH` has their names, `INNER_MULTI_QUEUE_OFFSET` the number that the message has in each,
both with commas between. A light queue is the folder `consumequeue/<name>/0`, whose units point at records of
topics. The queue of a lite topic is the light queue `%LMQ%$<parent>$<child>`.

Source: `LmqDispatch`, `MultiDispatchUtils`, `MixAll.topicAllowsLMQ`, `LiteUtil` of 5.5.0.
"""

from __future__ import annotations

import re
from typing import Final

from brokerset_formats import names
from brokerset_formats.properties import find_property

PREFIX: Final = "%LMQ%"
LITE_PREFIX: Final = f"{PREFIX}$"
QUEUE_ID: Final = 0
"""A light queue has only this one."""

NAME_BYTES_MAX: Final = 255
"""The name of a light queue is that of a folder."""

QUEUES_OF_MESSAGE_MAX: Final = 128
"""Light queues of one message; Java limits them by the size of properties alone."""

CHILD_SIZE_MAX: Final = 64
"""Characters of the name of a lite topic (`maxLiteTopicSize` of Java's proxy)."""

PROPERTIES_MARK: Final = b"INNER_MULTI_"
"""Stands in the properties of every message that has, or wants, light queues."""

DISPATCH: Final = b"INNER_MULTI_DISPATCH"
OFFSETS: Final = b"INNER_MULTI_QUEUE_OFFSET"

_DIGITS_MAX: Final = 18
_OFFSET_SIZE_MAX: Final = _DIGITS_MAX + 1
_is_child = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_NEVER: Final = (names.RETRY_PREFIX, names.DLQ_PREFIX, names.SYSTEM_TOPIC_PREFIX)
_NEVER_BYTES: Final = tuple(prefix.encode() for prefix in _NEVER)
_WAITING: Final = frozenset({names.HALF_TOPIC, names.OP_HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC})
"""Java puts half messages into light queues, before anybody knows whether they are committed, and those that
were given up again."""


def is_light(name: str) -> bool:
    """Whether a topic, or a group, is that of a light queue."""
    return name.startswith(PREFIX)


def takes_light_queues(topic: str) -> bool:
    """Whether a message that is stored in `topic` now is put into its light queues: not while it waits for
    its time, its commit, or to be tried again."""
    return not topic.startswith(_NEVER) and topic != names.SCHEDULE_TOPIC and topic not in _WAITING


def check_child(child: str) -> str | None:
    """What is wrong with the name of a lite topic; None if nothing is."""
    if len(child) > CHILD_SIZE_MAX:
        return f"the lite topic {child[:CHILD_SIZE_MAX]}… exceeds {CHILD_SIZE_MAX} characters"
    if not _is_child(child):
        return f"the lite topic {child!r} may contain letters, digits, hyphens and underscores only"
    return None


def lite_queue(parent: str, child: str) -> str:
    """The light queue of a lite topic."""
    return f"{LITE_PREFIX}{parent}${child}"


def lite_topic_of(queue: str) -> tuple[str, str] | None:
    """Parent and child of the queue of a lite topic; None for any other queue."""
    parts = queue.removeprefix(LITE_PREFIX).split("$")
    if not queue.startswith(LITE_PREFIX) or len(parts) != 2 or not all(parts):
        return None
    return parts[0], parts[1]


def check_dispatch(value: str) -> str | None:
    """What is wrong with the light queues that a message names; None if nothing is."""
    wanted = _split(value)
    if not wanted:
        return "it names no queue"
    if len(wanted) > QUEUES_OF_MESSAGE_MAX:
        return f"it names {len(wanted)} queues, at most {QUEUES_OF_MESSAGE_MAX} are allowed"
    if len(set(wanted)) < len(wanted):
        return "it names a queue twice"
    for name in wanted:
        if not name.startswith(PREFIX) or len(name) == len(PREFIX):
            return f"{name[:80]!r} does not begin with {PREFIX}, followed by a name"
        if not _is_folder(name):
            return f"{name[:80]!r} is no name of a folder, which has no / and at most {NAME_BYTES_MAX} bytes"
    return None


def wanted_queues(topic: str, properties: bytes) -> tuple[str, ...]:
    """The light queues that a message gets when it is stored in `topic` now; each once.

    Names that cannot be are passed over: whoever stores a message again cannot refuse it.
    """
    if not takes_light_queues(topic):
        return ()
    value = find_property(properties, DISPATCH)
    if value is None:
        return ()
    wanted = _split(value.decode("utf-8", "replace"))
    found = dict.fromkeys(name for name in wanted if name != topic and _is_usable(name))
    return tuple(found)[:QUEUES_OF_MESSAGE_MAX]


def with_offsets(properties: bytes, queues: tuple[str, ...], offsets: tuple[int, ...]) -> bytes:
    """Properties that say which number the message has in each of its light queues.

    The names are written again where some were passed over. What a client says about offsets goes.
    """
    value = find_property(properties, DISPATCH)
    named = ",".join(queues).encode()
    gone = (OFFSETS,) if value == named or not queues else (OFFSETS, DISPATCH)
    rest = without_properties(properties, gone)
    if not queues:
        return rest
    if rest and rest[-1] != 2:
        rest += b"\x02"
    if len(gone) == 2:
        rest += b"%s\x01%s\x02" % (DISPATCH, named)
    return rest + b"%s\x01%s\x02" % (OFFSETS, ",".join(map(str, offsets)).encode())


def offsets_size_max(dispatch: str) -> int:
    """Bytes that `with_offsets` adds at most to a message that names these queues."""
    return len(OFFSETS) + 2 + _OFFSET_SIZE_MAX * (dispatch.count(",") + 1)


def without_properties(properties: bytes, names_: tuple[bytes, ...]) -> bytes:
    """Properties without some of them."""
    starts = tuple(name + b"\x01" for name in names_)
    pairs = properties.split(b"\x02")
    kept = [pair for pair in pairs if not pair.startswith(starts)]
    return properties if len(kept) == len(pairs) else b"\x02".join(kept)


def dispatched_queues(topic: bytes, properties: bytes) -> tuple[tuple[str, int], ...]:
    """The light queues that a record of the log is in, and its number in each.

    Nothing if what it says does not fit: then Java dispatches nothing either.
    """
    if PROPERTIES_MARK not in properties or topic.startswith(_NEVER_BYTES):
        return ()
    value = find_property(properties, OFFSETS)
    queues = find_property(properties, DISPATCH)
    if value is None or queues is None or topic == names.SCHEDULE_TOPIC.encode():
        return ()
    wanted = _split(queues.decode("utf-8", "replace"))
    offsets = _split(value.decode("utf-8", "replace"))
    if len(wanted) != len(offsets):
        return ()
    found: dict[str, int] = {}
    for name, number in zip(wanted, offsets, strict=True):
        if not _is_usable(name) or name.encode() == topic:
            continue
        if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX):
            return ()
        found.setdefault(name, int(number))
    return tuple(found.items())


def _split(text: str) -> list[str]:
    """The parts between commas; empty ones at the end do not count, as in Java."""
    parts = text.split(",")
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _is_usable(name: str) -> bool:
    return name.startswith(PREFIX) and len(name) > len(PREFIX) and _is_folder(name)


def _is_folder(name: str) -> bool:
    return len(name.encode()) <= NAME_BYTES_MAX and "/" not in name and "\0" not in name
