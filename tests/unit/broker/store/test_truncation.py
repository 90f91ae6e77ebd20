"""What a truncation of the log does to those who count on its end: the flusher, and what is confirmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.confirmation import Confirmation
from brokerset_broker.store.flush import Flusher


@dataclass
class Ends:
    """The offsets of a log, which is all that these parts look at here."""

    min_offset: int = 100
    max_offset: int = 300
    flushed_offset: int = 180

    def log(self) -> CommitLog:
        return cast(CommitLog, self)


async def test_who_waits_for_what_was_truncated_is_told_at_once() -> None:
    """A message that is cut is never flushed; those before the cut are still waited for."""

    ends = Ends()
    told: list[tuple[int, bool]] = []

    flusher = Flusher(ends.log(), 10_000, on_flushed=lambda: None, on_failure=lambda _: None)
    await flusher.pause()
    flusher.when_flushed(200, lambda done: told.append((200, done)))
    flusher.when_flushed(300, lambda done: told.append((300, done)))
    flusher.truncate(200)
    flusher.close()

    assert told == [(300, False)]


async def test_what_was_truncated_is_flushed_no_more() -> None:
    """New bytes at offsets that were flushed once are not on the disk because older ones were."""

    ends = Ends()

    flusher = Flusher(ends.log(), 10_000, on_flushed=lambda: None, on_failure=lambda _: None)
    flusher.truncate(150)
    flusher.close()

    assert ends.flushed_offset == 150


def test_a_checkpoint_confirms_only_what_the_log_has() -> None:
    """After a power loss the log may end before what was confirmed, and begin behind it."""
    confirmation = Confirmation(Ends().log())
    confirmation.replicated = True

    confirmation.load(500)
    assert confirmation.offset == 300

    confirmation.load(50)
    assert confirmation.offset == 100
