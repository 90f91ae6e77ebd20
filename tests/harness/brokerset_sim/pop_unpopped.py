"""What a group could pop, as the log says: messages that no check point of it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A message of a queue."""

    topic: str
    queue_id: int
    queue_offset: int


class Unpopped:
    """For each group the messages that it has not popped yet, in the order of the log."""

    def __init__(self) -> None:
        self.now = 0.0
        """The time of the world, in seconds: whoever reads the log sets it before."""

        self._since: dict[str, dict[QueuePlace, float]] = {}

    def forget(self) -> None:
        """The log is read from its beginning again."""
        self._since = {}

    def add(self, groups: Iterable[str], place: QueuePlace) -> None:
        """A message is there for these groups."""
        for group in groups:
            self._since.setdefault(group, {})[place] = self.now

    def take(self, group: str, place: QueuePlace) -> None:
        """A check point of the group names it."""
        self._since.get(group, {}).pop(place, None)

    def of(self, group: str, queue_id: int) -> dict[QueuePlace, float]:
        """What a pop of a queue, or with a negative number of all, could give, and since when.

        A pop of one queue reads all queues of retry topics.
        """
        return {
            place: since
            for place, since in self._since.get(group, {}).items()
            if queue_id < 0 or place.queue_id == queue_id or place.topic.startswith(RETRY_PREFIX)
        }

    def places(self) -> dict[QueuePlace, None]:
        """What any group has not popped."""
        return dict.fromkeys(place for known in self._since.values() for place in known)

    def is_there(self, group: str, place: QueuePlace) -> bool:
        """Whether the group could pop this message."""
        return place in self._since.get(group, {})
