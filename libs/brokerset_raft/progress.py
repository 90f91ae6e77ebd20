"""What a leader knows about one follower, and how much it may send: probe, replicate, snapshot."""

from __future__ import annotations

from collections import deque
from enum import Enum

from brokerset_raft.messages import SnapshotMeta


class Flow(Enum):
    """How a follower is fed."""

    PROBE = "probe"
    """Where the logs agree is not known: one message, then wait for its answer or a heartbeat's."""

    REPLICATE = "replicate"
    """They agree up to `match_index`: many messages are on their way."""

    SNAPSHOT = "snapshot"
    """The follower's next entry is gone: pieces of a snapshot, one on its way."""


class Progress:
    """One follower, or learner, as its leader sees it."""

    def __init__(self, next_index: int, in_flight_max: int) -> None:
        self.match_index = 0
        """Last entry known to agree with ours and to be synced there."""
        self.next_index = next_index
        """First entry of the next message."""
        self.flow = Flow.PROBE
        self.active = True
        """Heard since the last check of the quorum."""
        self.round = 0
        """Highest heartbeat round that was answered."""
        self.meta: SnapshotMeta | None = None
        """The snapshot that is on its way."""
        self.offset = 0
        """Where the piece that is on its way starts."""
        self._active_before = False
        self._in_flight: deque[int] = deque()
        self._in_flight_max = in_flight_max
        self._probing = False
        self._seen: tuple[Flow, int, int] | None = None

    @property
    def paused(self) -> bool:
        """Whether no entries may be sent before an answer comes."""
        match self.flow:
            case Flow.PROBE:
                return self._probing
            case Flow.REPLICATE:
                return len(self._in_flight) >= self._in_flight_max
            case Flow.SNAPSHOT:
                return True

    @property
    def heard_lately(self) -> bool:
        """Whether it was heard within the last two checks of the quorum."""
        return self.active or self._active_before

    def checked(self) -> None:
        """The quorum was checked; what is heard from now on counts for the next check."""
        self._active_before, self.active = self.active, False

    def sent(self, last_index: int, *, empty: bool) -> None:
        """A message with entries up to `last_index`, or with none, was sent."""
        if self.flow is Flow.PROBE:
            self._probing = True
        elif not empty:
            self.next_index = last_index + 1
            self._in_flight.append(last_index)

    def accepted(self, match_index: int) -> bool:
        """The follower agrees up to `match_index`; returns whether that was news."""
        news = match_index > self.match_index
        self.match_index = max(self.match_index, match_index)
        self.next_index = max(self.next_index, self.match_index + 1)
        while self._in_flight and self._in_flight[0] <= match_index:
            self._in_flight.popleft()
        if self.flow is Flow.PROBE and match_index == self.match_index:
            self.replicate()
            return True
        if self.flow is Flow.SNAPSHOT and self.meta is not None and self.match_index >= self.meta.index:
            self.replicate()
        return news

    def refused(self, refused_index: int, hint_index: int) -> bool:
        """The follower lacks `refused_index`; look for the agreement at the hint. False: an old refusal."""
        match self.flow:
            case Flow.SNAPSHOT:
                return False
            case Flow.REPLICATE:
                if refused_index <= self.match_index:
                    return False
                self.probe()
                return True
            case Flow.PROBE:
                if refused_index != self.next_index - 1 or refused_index <= self.match_index:
                    return False
                self.next_index = max(min(refused_index, hint_index + 1), self.match_index + 1)
                self._probing = False
                return True

    def probe(self) -> None:
        """Find again, carefully, where the logs agree."""
        self._change(Flow.PROBE)
        self.next_index = self.match_index + 1

    def replicate(self) -> None:
        """The logs agree up to `match_index`: send at full speed."""
        self._change(Flow.REPLICATE)
        self.next_index = self.match_index + 1

    def send_snapshot(self, meta: SnapshotMeta) -> None:
        """Feed this snapshot from its first byte."""
        self._change(Flow.SNAPSHOT)
        self.meta = meta

    def resume(self) -> None:
        """A heartbeat was answered, so another probe may be tried."""
        self._probing = False

    def stalled(self) -> bool:
        """Whether nothing has moved since this was last asked, as when a message was lost."""
        now = (self.flow, self.match_index, self.offset)
        stalled, self._seen = now == self._seen, now
        return stalled

    def _change(self, flow: Flow) -> None:
        self.flow = flow
        self.meta = None
        self.offset = 0
        self._in_flight.clear()
        self._probing = False
        self._seen = None
