"""What metrics know of sent messages beyond `stats`: bytes and sizes by topic and kind, and dead letters."""

from __future__ import annotations

from typing import Final

SIZE_CLASSES: Final = 32
"""Records are counted by the number of binary digits of size - 1."""

SERIES_MAX: Final = 20_000
"""Topics and kinds that are counted apart; the others share one counter that is not shown."""


class TopicTraffic:
    """What was sent to one topic since start, for one kind of message."""

    __slots__ = ("bytes_in", "sizes")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.sizes = [0] * SIZE_CLASSES
        """Entry n counts the records of at most 2**n bytes that do not fit entry n - 1."""

    @property
    def messages_in(self) -> int:
        """Messages of any size."""
        return sum(self.sizes)

    def add(self, count: int, size: int) -> None:
        """Count `count` messages whose records have `size` bytes together."""
        self.bytes_in += size
        self.sizes[(size // count - 1).bit_length()] += count


class Traffic:
    """All such counters of a broker. Hot paths keep a `TopicTraffic` and add to it."""

    def __init__(self) -> None:
        self.incoming: dict[tuple[str, str], TopicTraffic] = {}
        """By topic and kind of message: `normal`, `fifo`, `delay`, `transaction`."""
        self.dead_lettered: dict[tuple[str, str], int] = {}
        """Messages given up, by group and topic."""
        self._overflow = TopicTraffic()

    def of_topic(self, topic: str, kind: str = "normal") -> TopicTraffic:
        """The counter of a topic, made when first asked for."""
        found = self.incoming.get((topic, kind))
        if found is None:
            if len(self.incoming) >= SERIES_MAX:
                return self._overflow
            found = self.incoming[topic, kind] = TopicTraffic()
        return found

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        for key in [key for key in self.incoming if key[0] == topic]:
            del self.incoming[key]

    def dead_letter(self, group: str, topic: str) -> None:
        """Count a message that went to a group's dead-letter topic."""
        key = (group, topic)
        if key in self.dead_lettered or len(self.dead_lettered) < SERIES_MAX:
            self.dead_lettered[key] = self.dead_lettered.get(key, 0) + 1
