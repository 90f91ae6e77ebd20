"""What a slave does with its master's handshake."""

from __future__ import annotations

from brokerset_broker.member.ha.following import (
    Follow,
    FullResync,
    OwnLog,
    Refuse,
    Truncate,
    crosses_epoch,
    decide_following,
    due_entries,
    proves_absence,
    with_label,
)
from brokerset_formats.epochs import EpochEntry, EpochHistory, history_of

MASTER = history_of([(1, 0), (2, 100), (5, 200)])


def test_an_empty_log_begins_with_what_comes() -> None:
    """Without bytes there is nothing to compare."""
    assert decide_following(OwnLog(0, 0, 0, EpochHistory()), MASTER, 300) == FullResync()
    assert decide_following(OwnLog(500, 500, 0, history_of([(9, 500)])), MASTER, 300) == FullResync()


def test_a_prefix_is_followed_from_its_end() -> None:
    """A log that the master has as a whole goes on where it ends."""
    own = OwnLog(0, 150, 150, history_of([(1, 0), (2, 100)]))

    assert decide_following(own, MASTER, 300) == Follow(150, own.history)


def test_an_epoch_without_bytes_goes() -> None:
    """An epoch of ours that has no byte and that the master does not have is forgotten."""
    own = OwnLog(0, 200, 0, history_of([(1, 0), (2, 100), (3, 200)]))

    assert decide_following(own, MASTER, 300) == Follow(200, history_of([(1, 0), (2, 100)]))


def test_what_the_master_does_not_have_is_cut() -> None:
    """The cut is where the last common epoch ends in either log, and proof is needed below what is
    confirmed."""
    own = OwnLog(0, 250, 180, history_of([(1, 0), (2, 100), (3, 180)]))
    longer = OwnLog(0, 250, 220, history_of([(1, 0), (2, 100)]))

    assert decide_following(own, MASTER, 300) == Truncate(180, history_of([(1, 0), (2, 100)]), False)
    assert decide_following(longer, MASTER, 300) == Truncate(200, history_of([(1, 0), (2, 100)]), True)


def test_the_same_offsets_of_another_epoch_are_cut() -> None:
    """Not lengths but epochs say what is common: the same end under another master is another log."""
    own = OwnLog(0, 300, 0, history_of([(1, 0), (2, 100), (4, 200)]))

    assert decide_following(own, MASTER, 300) == Truncate(200, history_of([(1, 0), (2, 100)]), False)


def test_a_longer_log_of_the_same_epoch_is_cut_at_the_masters_end() -> None:
    """What we have behind the master's end goes."""
    assert decide_following(OwnLog(0, 400, 0, MASTER), MASTER, 300) == Truncate(300, MASTER, False)


def test_a_cut_before_the_first_byte_is_a_new_beginning() -> None:
    """When nothing would be left, the log is resynced; with proof if something of it was confirmed."""
    own = OwnLog(200, 400, 300, history_of([(1, 0), (2, 100), (4, 200)]))

    assert decide_following(own, MASTER, 300) == FullResync(needs_proof=True)
    assert decide_following(OwnLog(200, 400, 0, own.history), MASTER, 300) == FullResync()


def test_a_log_older_than_the_group_keeps_begins_anew() -> None:
    """When the master has dropped everything that we have, there is nothing to go on from."""
    own = OwnLog(0, 90, 90, history_of([(1, 0)]))

    assert decide_following(own, history_of([(2, 100), (5, 200)]), 300) == FullResync(needs_proof=True)


def test_a_tail_that_nobody_confirmed_does_not_keep_an_old_log() -> None:
    """An old master wrote on alone, into what the group's next epoch has; meanwhile the group has dropped all
    that it had in common. Only what was confirmed counts: it lies before all that the group keeps."""
    master = history_of([(2, 100), (5, 200)])
    history = history_of([(1, 0)])

    assert decide_following(OwnLog(0, 130, 90, history), master, 300) == FullResync(needs_proof=True)
    assert isinstance(decide_following(OwnLog(0, 130, 110, history), master, 300), Refuse)


def test_an_unknown_log_is_refused() -> None:
    """A log with nothing in common, or without epochs, is not thrown away silently."""
    for history in (history_of([(1, 10)]), EpochHistory()):
        decision = decide_following(OwnLog(0, 90, 60, history), MASTER, 300)

        assert isinstance(decision, Refuse)
        assert "brokerset replica replace" in decision.advice


def test_epochs_are_due_before_their_first_byte() -> None:
    """Before a byte is taken its epoch is known; later ones are not claimed yet."""
    own = history_of([(1, 0)])

    assert due_entries(own, MASTER, 99) == ()
    assert due_entries(own, MASTER, 100) == (EpochEntry(2, 100),)
    assert due_entries(EpochHistory(), MASTER, 200) == MASTER.entries


def test_labels_must_fit_the_handshake() -> None:
    """A newer epoch is learned from a label; one that contradicts the handshake is not believed."""
    assert with_label(MASTER, 5, 200) == MASTER
    assert with_label(MASTER, 7, 300) == history_of([(1, 0), (2, 100), (5, 200), (7, 300)])
    assert with_label(MASTER, 7, 200) == history_of([(1, 0), (2, 100), (7, 200)])
    assert with_label(MASTER, 7, 150) is None
    assert with_label(MASTER, 5, 201) is None
    assert with_label(MASTER, 4, 150) is None


def test_bytes_of_two_epochs_are_noticed() -> None:
    """A chunk may end at an epoch's start, and not behind it."""
    assert not crosses_epoch(MASTER, 50, 50)
    assert crosses_epoch(MASTER, 50, 51)
    assert not crosses_epoch(MASTER, 100, 100)


def test_proof_is_the_controllers_word_in_this_epoch() -> None:
    """Only a set of this epoch, without us, proves that nobody counts on us."""
    assert proves_absence(2, 5, 5, frozenset((1, 3)))
    assert not proves_absence(2, 5, 5, frozenset((1, 2)))
    assert not proves_absence(2, 5, 4, frozenset((1, 3)))
    assert not proves_absence(2, 5, 5, frozenset())


def test_what_nobody_confirmed_is_no_reason_to_refuse() -> None:
    """A log of which nothing was ever confirmed is emptied, with proof and a copy, although it has nothing in
    common with the master's: the first master of a group may have written alone."""
    own = OwnLog(0, 90, 0, history_of([(1, 0)]))

    assert decide_following(own, history_of([(2, 0)]), 300) == Truncate(0, EpochHistory(), True)
    assert isinstance(decide_following(OwnLog(0, 90, 0, EpochHistory()), MASTER, 300), Refuse)


def test_a_group_that_began_anew_is_followed_with_proof_and_a_copy() -> None:
    """After a possible loss of everything the group has a newer epoch from offset 0 on: what an older replica
    has can never get into that log again. Nothing of it goes without proof, and a copy is kept."""
    own = OwnLog(0, 500, 400, history_of([(1, 0)]))

    assert decide_following(own, history_of([(3, 0)]), 0) == Truncate(0, EpochHistory(), True)
    assert decide_following(own, history_of([(3, 0), (4, 900)]), 1_000) == Truncate(0, EpochHistory(), True)
    assert decide_following(OwnLog(200, 500, 400, own.history), history_of([(3, 100)]), 300) == Truncate(
        200, EpochHistory(), True
    )


def test_a_log_that_may_be_newer_or_begins_earlier_is_still_refused() -> None:
    """An epoch of ours that is not older than all of the group's, or bytes before the group's first: nobody
    knows what that is."""
    newer = OwnLog(0, 500, 400, history_of([(3, 0)]))
    earlier = OwnLog(0, 500, 400, history_of([(1, 0)]))

    assert isinstance(decide_following(newer, history_of([(2, 0), (5, 600)]), 900), Refuse)
    assert isinstance(decide_following(earlier, history_of([(3, 100)]), 900), Refuse)
