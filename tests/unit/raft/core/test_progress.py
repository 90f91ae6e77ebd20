"""What the leader may send to a follower, and what it makes of the answers."""

from __future__ import annotations

from brokerset_raft.configuration import Configuration
from brokerset_raft.messages import SnapshotMeta
from brokerset_raft.progress import Flow, Progress

META = SnapshotMeta(5, 1, Configuration(), 10, 0)


def replicating(match_index: int = 3, in_flight_max: int = 2) -> Progress:
    progress = Progress(match_index + 1, in_flight_max)
    progress.accepted(match_index)
    return progress


def test_probe_waits_for_its_answer() -> None:
    """One message, then silence until an answer or a heartbeat's."""
    progress = Progress(4, 2)
    progress.sent(4, empty=False)

    assert progress.paused
    progress.resume()
    assert not progress.paused
    assert progress.next_index == 4


def test_refused_probe_looks_at_the_hint_but_not_below_what_agrees() -> None:
    """The hint may come from anywhere; what was acknowledged stays."""
    progress = Progress(9, 2)
    progress.match_index = 3
    progress.sent(8, empty=True)

    assert progress.refused(8, 1)
    assert (progress.next_index, progress.paused) == (4, False)


def test_old_refusals_change_nothing() -> None:
    """A refusal of something else than the last probe was answered long ago."""
    probing, fast = Progress(9, 2), replicating()

    assert not probing.refused(4, 1)
    assert not fast.refused(3, 1)
    assert (probing.next_index, fast.flow) == (9, Flow.REPLICATE)


def test_window_closes_and_opens() -> None:
    """No more messages are on their way than allowed; one answer acknowledges all before it."""
    progress = replicating()
    progress.sent(4, empty=False)
    progress.sent(5, empty=False)
    assert progress.paused

    assert progress.accepted(5)

    assert not progress.paused
    assert (progress.match_index, progress.next_index) == (5, 6)


def test_empty_message_takes_no_place_in_the_window() -> None:
    """News of a commit never keeps entries from leaving."""
    progress = replicating(in_flight_max=1)

    progress.sent(3, empty=True)

    assert not progress.paused


def test_doubled_and_reordered_answers_are_no_news() -> None:
    """What is known does not shrink."""
    progress = replicating()
    progress.sent(5, empty=False)
    progress.accepted(5)

    assert not progress.accepted(5)
    assert not progress.accepted(4)
    assert progress.match_index == 5


def test_refusal_while_replicating_goes_back_to_probing() -> None:
    """A message was lost, so the rest of the window is void."""
    progress = replicating()
    progress.sent(4, empty=False)
    progress.sent(5, empty=False)

    assert progress.refused(4, 3)

    assert (progress.flow, progress.next_index, progress.paused) == (Flow.PROBE, 4, False)


def test_snapshot_pauses_until_it_is_covered() -> None:
    """No entries leave before the follower has what comes before them."""
    progress = replicating()
    progress.send_snapshot(META)
    assert progress.paused
    assert not progress.refused(4, 3)

    progress.accepted(4)
    assert progress.flow is Flow.SNAPSHOT
    progress.accepted(5)

    assert (progress.flow, progress.next_index) == (Flow.REPLICATE, 6)


def test_stalled_means_nothing_moved_since_asked() -> None:
    """The first question after a move says no."""
    progress = replicating()

    assert not progress.stalled()
    assert progress.stalled()
    progress.sent(4, empty=False)
    progress.accepted(4)
    assert not progress.stalled()
