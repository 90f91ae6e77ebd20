"""Messages that wait to be handed out, and which of them may leave before the disk is done."""

from __future__ import annotations

from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    Body,
    CampaignNow,
    Heartbeat,
    HeartbeatReply,
    Message,
)

_FREE_ONCE_TERM_IS_SYNCED = (AppendRequest, Heartbeat, HeartbeatReply, CampaignNow)
"""Messages that promise nothing but the sender's term."""


class Outbox:
    """The messages of one node since the last `Ready`, in order."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._messages: list[Message] = []

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, target: int, body: Body) -> None:
        """Send this with the next `Ready`."""
        self._messages.append(Message(self._source, target, body))

    def withdraw_from(self, index: int) -> None:
        """The entries from `index` on are truncated before they were synced: do not acknowledge them."""
        self._messages = [
            message
            for message in self._messages
            if not (
                isinstance(message.body, AppendReply)
                and message.body.success
                and message.body.match_index >= index
            )
        ]

    def take(self, *, term_is_synced: bool) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Those that may leave at once, and those that must wait for the disk; none is left."""
        messages, self._messages = self._messages, []
        if not term_is_synced:
            return (), tuple(messages)
        return (
            tuple(m for m in messages if isinstance(m.body, _FREE_ONCE_TERM_IS_SYNCED)),
            tuple(m for m in messages if not isinstance(m.body, _FREE_ONCE_TERM_IS_SYNCED)),
        )
