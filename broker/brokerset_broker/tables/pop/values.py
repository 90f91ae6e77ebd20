"""How consumer groups get the messages of a topic, as values."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.metadata import MessageRequestMode, MessageRequestModeTable


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How a group gets the messages of a topic."""

    mode: MessageRequestMode

    share_queues: int
    """For POP: each client pops its own queues and those of so many clients behind it; 0 or less: all."""

    def to_json(self) -> list[object]:
        """As metadata records hold it."""
        return [self.mode.value, self.share_queues]

    @classmethod
    def from_json(cls, value: object) -> RequestMode:
        """Raises FormatError."""
        match value:
            case ["PULL" | "POP" as mode, int(share_queues)]:
                return cls(MessageRequestMode(mode), share_queues)
        raise FormatError(f"a request mode should be [PULL or POP, queues] and is {value!r}")


Modes = Mapping[str, RequestMode]
"""By `topic@group`."""


def mode_key(topic: str, group: str) -> str:
    """Under which the mode of a group is kept; no topic's name has an `@`."""
    return f"{topic}@{group}"


def parts_of(key: str) -> tuple[str, str]:
    """Topic and group of a key."""
    topic, _, group = key.partition("@")
    return topic, group


def modes_of(table: MessageRequestModeTable) -> dict[str, RequestMode]:
    """The modes of Java's table."""
    return {
        mode_key(topic, group): RequestMode(entry.mode, entry.pop_share_queue_num)
        for topic, groups in table.message_request_mode_map.items()
        for group, entry in groups.items()
    }
