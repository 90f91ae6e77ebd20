"""How far broadcasting groups are: the slowest member of each queue, kept for people to look at.

Source: `BroadcastOffsetManager`. Members of such a group keep their own offsets; the broker only watches
their pulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BROADCAST_SUFFIX = "@broadcast"
"""Added to the group in the key of the offset table."""

MEMBER_LIVE_SECONDS = 120.0
"""A member that has not pulled for so long counts no more (`broadcastOffsetExpireSecond`)."""


@dataclass(slots=True)
class _Member:
    seen: float
    offsets: dict[int, int] = field(default_factory=dict)


class BroadcastOffsets:
    """The members of broadcasting groups and where each of them is."""

    members_max = 100_000
    """Members that are watched; further ones are not."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], dict[str, _Member]] = {}
        self._count = 0

    def pulled(
        self, group: str, topic: str, queue_id: int, client_id: str, queue_offset: int, now: float
    ) -> None:
        """A member asks for `queue_offset` next; `now` in seconds of the monotonic clock."""
        members = self._keys.setdefault((group, topic), {})
        member = members.get(client_id)
        if member is None:
            if self._count >= self.members_max:
                return
            self._count += 1
            member = members[client_id] = _Member(now)
        member.seen = now
        member.offsets[queue_id] = queue_offset

    def slowest(self, now: float) -> list[tuple[str, str, int, int]]:
        """(group with suffix, topic, queue id, least queue offset) of each queue; forgets silent members."""
        found = []
        for (group, topic), members in list(self._keys.items()):
            for client_id in [
                name for name, member in members.items() if now - member.seen > MEMBER_LIVE_SECONDS
            ]:
                del members[client_id]
                self._count -= 1
            least: dict[int, int] = {}
            for member in members.values():
                for queue_id, queue_offset in member.offsets.items():
                    least[queue_id] = min(queue_offset, least.get(queue_id, queue_offset))
            found += [(group + BROADCAST_SUFFIX, topic, queue, offset) for queue, offset in least.items()]
            if not members:
                del self._keys[(group, topic)]
        return found
