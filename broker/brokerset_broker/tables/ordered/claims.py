"""Who pulls and acknowledges which queue for which group, on a master, and what of it is allowed. Pure.

Fences are raised here at once, and confirmed later. Sessions of pulls are in memory alone: after a change of
the master a session claims again. All of it goes with the role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

from brokerset_broker.tables.ordered.shared_pulls import PullLog, SharedQueue
from brokerset_broker.tables.ordered.values import SHARED_SESSION, ClaimKey, Fence

SENT_BACK_MAX: Final = 4_096
"""Copies for retry that a session is remembered to have asked for; then one may come twice."""


class PullSession:
    """What one session was given of one queue, by this master."""

    __slots__ = ("epoch", "given_end", "sent_back", "session")

    def __init__(self, epoch: int, session: str, given_end: int) -> None:
        self.epoch = epoch
        self.session = session
        self.given_end = given_end
        """Queue offset behind what it was given."""

        self.sent_back: dict[int, int] = {}
        """Queue offset -> end in the log of the copy that was made of the message."""

    def give(self, next_queue_offset: int) -> None:
        """It has everything below, or was told that there is nothing for it."""
        self.given_end = max(self.given_end, next_queue_offset)

    def has(self, queue_offset: int) -> bool:
        """Whether it was given a message."""
        return queue_offset < self.given_end

    def note_copy(self, queue_offset: int, end: int) -> None:
        """A copy of a message was stored for retry, up to `end` of the log."""
        while len(self.sent_back) >= SENT_BACK_MAX:
            del self.sent_back[next(iter(self.sent_back))]
        self.sent_back[queue_offset] = end


class Standing(Enum):
    """What a session is to a queue."""

    OWNER = "owner"
    STALE = "stale"
    """Another one has overtaken it, or it has released the queue."""
    NOT_CLAIMED = "not claimed"


class Claims:
    """The claims of all queues of a master."""

    __slots__ = ("_reset", "_sessions", "raised", "shared")

    def __init__(self) -> None:
        self.raised: dict[ClaimKey, Fence] = {}
        """Fences on their way to the table."""

        self.shared: dict[ClaimKey, SharedQueue] = {}
        """Queues with pull logs of Shared groups."""

        self._sessions: dict[ClaimKey, PullSession] = {}
        self._reset: dict[ClaimKey, None] = {}

    def __len__(self) -> int:
        return len(self._sessions) + sum(len(queue.logs) for queue in self.shared.values())

    def fence(self, key: ClaimKey, confirmed: Fence | None) -> Fence | None:
        """The fence that counts: the confirmed one, or one that is on its way there."""
        if not self.raised:
            return confirmed
        raised = self.raised.get(key)
        return raised if raised is not None and raised.overtakes(confirmed) else confirmed

    def raise_fence(self, key: ClaimKey, fence: Fence) -> None:
        """Refuse lower epochs from now on; the session of pulls of another owner ends."""
        self.raised[key] = fence
        known = self._sessions.get(key)
        if known is not None and (fence.released or (known.epoch, known.session) != fence[:2]):
            del self._sessions[key]
        queue = self.shared.get(key)
        if queue is not None and not (fence.is_shared and fence.epoch == queue.epoch):
            del self.shared[key]

    def confirmed(self, key: ClaimKey, fence: Fence) -> None:
        """The table has the fence now."""
        raised = self.raised.get(key)
        if raised is not None and not raised.overtakes(fence):
            del self.raised[key]

    def session(self, key: ClaimKey, session: str) -> PullSession | PullLog | None:
        """The pulls of who owns the queue now, or of one session of a Shared group."""
        queue = self.shared.get(key)
        return self._sessions.get(key) if queue is None else queue.logs.get(session)

    def begin(self, key: ClaimKey, epoch: int, session: str, given_end: int) -> PullSession:
        """The claim of a session is confirmed: it pulls from now on. Repeated, it keeps what it was given."""
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = PullSession(epoch, session, given_end)
        found.give(given_end)
        self._reset.pop(key, None)
        return found

    def was_reset(self, key: ClaimKey) -> bool:
        """Whether offsets were set from outside since a session last claimed: then what it was given before
        counts no more."""
        return key in self._reset

    def offsets_set(self, topic: str, group: str, queues: Iterable[int]) -> None:
        """Offsets were set from outside: who pulls must claim again."""
        for queue_id in queues:
            key = ClaimKey(topic, group, queue_id)
            self._sessions.pop(key, None)
            self.shared.pop(key, None)
            self._reset[key] = None

    def forget_group(self, group: str) -> None:
        """The offsets of a group are gone."""
        for key in [key for key in (*self._sessions, *self.shared) if key.group == group]:
            self.offsets_set(key.topic, group, (key.queue_id,))

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self.forget(lambda key: key.topic == topic)

    def forget(self, gone: Callable[[ClaimKey], bool]) -> None:
        """Queues of topics that were deleted, or that are retired."""
        tables: tuple[dict[ClaimKey, Any], ...] = (self.raised, self._sessions, self.shared, self._reset)
        for table in tables:
            for key in [key for key in table if gone(key)]:
                del table[key]

    def clear(self) -> None:
        """This broker leads no more, or begins to lead."""
        self.raised.clear()
        self._sessions.clear()
        self.shared.clear()
        self._reset.clear()


def standing(fence: Fence | None, pulls: PullSession | PullLog | None, epoch: int, session: str) -> Standing:
    """What a session with an epoch is to a queue with a fence."""
    if fence is None or epoch > fence.epoch:
        return Standing.NOT_CLAIMED
    if epoch < fence.epoch or fence.session not in (session, SHARED_SESSION) or fence.released:
        return Standing.STALE
    return Standing.OWNER if pulls is not None else Standing.NOT_CLAIMED


def may_claim(fence: Fence | None, wanted: Fence) -> bool:
    """Whether a queue with a fence may get another one: its epoch is newer, or the claim is repeated."""
    return fence is None or wanted.epoch > fence.epoch or fence == wanted


class AckVerdict(Enum):
    """What becomes of an ack."""

    ADVANCE = "advance"
    KNOWN = "known"
    """All of it was acknowledged before."""
    GAP = "gap"
    NOT_GIVEN = "not given"


def decide_ack(position: int, given_end: int, first: int, last: int) -> AckVerdict:
    """An ack of the messages from `first` to `last`, both included; `position` is the next one to be acked.

    The position neither goes back nor jumps over a message.
    """
    if last < position:
        return AckVerdict.KNOWN
    if last >= given_end:
        return AckVerdict.NOT_GIVEN
    return AckVerdict.GAP if first > position else AckVerdict.ADVANCE
