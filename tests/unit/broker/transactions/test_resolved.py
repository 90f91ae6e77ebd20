"""What the log says of halves, in small cases; `tests/property/test_transactions.py` has the rest."""

from __future__ import annotations

from unittest import mock

import pytest

from brokerset_broker.transactions import resolved
from brokerset_broker.transactions.resolved import Ending, Resolved, State
from brokerset_formats.hosts import Host
from brokerset_formats.names import HALF_TOPIC
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record

HOST = Host(b"\x7f\x00\x00\x01", 10911)


def half(
    queue_offset: int, *, key: str = "", origin: int | None = None, born: int = 0, times: int = 0
) -> Record:
    """Its commit log offset is a thousand times its queue offset."""
    properties = {"UNIQ_KEY": key or f"K{queue_offset}"}
    if origin is not None:
        properties["TRAN_PREPARED_QUEUE_OFFSET"] = str(origin)
    if times:
        properties["TRANSACTION_CHECK_TIMES"] = str(times)
    return Record(
        queue_id=0,
        queue_offset=queue_offset,
        offset=1_000 * queue_offset,
        born_timestamp=born,
        born_host=HOST,
        store_timestamp=0,
        store_host=HOST,
        body=b"",
        topic=HALF_TOPIC,
        properties=encode_properties(properties),
    )


def known(*halves: Record, half_progress: int = 0, loaded: bool = True) -> Resolved:
    made = Resolved(half_progress)
    for each in halves:
        made.half_stored(each)
    if loaded:
        made.loaded()
    return made


def test_a_final_record_names_the_copy_that_a_restart_still_finds() -> None:
    """The progress has passed the first copy, and the op was never written."""
    first, second = half(0, key="K"), half(1, key="K", origin=0)
    master = known(first, second)
    named = master.newest_copy(first)

    restarted = known(second, half_progress=1, loaded=False)
    assert restarted.finals_scan_start() == 1_000
    restarted.final_stored(named)
    restarted.loaded()

    assert restarted.ending_of(second) is Ending.COMMITTED
    assert restarted.ops_to_write() == (1,)


def test_ends_of_one_turn_are_named_together_in_their_order() -> None:
    halves = [half(number) for number in range(4)]
    master = known(*halves)
    master.rolled_back(halves[2])
    master.final_stored(halves[0].offset)
    master.rolled_back(halves[3])

    assert master.ops_to_write() == (2, 0, 3)
    assert [master.state_at(number) for number in range(4)] == [
        State.RESOLVED,
        State.OPEN,
        State.RESOLVED,
        State.RESOLVED,
    ]
    master.op_stored(0, (2, 0, 3))
    assert master.ops_to_write() == ()
    assert [master.ending_of(each) for each in halves] == [
        Ending.COMMITTED,
        None,
        Ending.ROLLED_BACK,
        Ending.ROLLED_BACK,
    ]


def test_an_op_that_is_read_at_a_start_does_not_say_which_end_it_was() -> None:
    """In a log that was followed it was a rollback, since a final record would have come before."""
    reading = known(half(0), loaded=False)
    reading.op_stored(0, (0,))
    following = known(half(0))
    following.op_stored(0, (0,))

    assert reading.ending_of(half(0)) is Ending.ENDED
    assert following.ending_of(half(0)) is Ending.ROLLED_BACK


def test_all_copies_end_together_and_each_is_named() -> None:
    """Java may have passed the first copy, or not: it finds both resolved."""
    copies = half(0, key="K"), half(1, key="K", origin=0), half(2, key="K", origin=0)
    master = known(*copies)

    master.op_stored(0, (1,))

    assert [master.state_at(number) for number in range(3)] == [State.RESOLVED] * 3
    assert master.ops_to_write() == (0, 2)


def test_another_key_is_another_transaction() -> None:
    """A property that a client passed on ties no half to one of somebody else."""
    master = known(half(0, key="mine"), half(1, key="other", origin=0))

    master.op_stored(0, (0,))

    assert master.state_at(1) is State.OPEN


@pytest.mark.parametrize(("born", "times", "linked"), [(7, 1, True), (8, 1, False), (7, 0, False)])
def test_a_copy_of_java_is_known_by_key_and_time(born: int, times: int, linked: bool) -> None:
    """Only one that a check made: the same object sent again is a new transaction."""
    master = known(half(0, key="K", born=7), half(1, key="K", born=born, times=times))
    ours = half(2, key="K", born=born, origin=1, times=times + 1)
    master.half_stored(ours)

    master.final_stored(0)

    assert (master.ending_of(ours) is Ending.COMMITTED) is linked


def test_an_op_of_halves_that_are_not_there_is_done() -> None:
    """Java waits for them without an end; so would the progress of the op topic."""
    master = known(half(0))
    master.op_stored(0, (5,))
    master.op_stored(1, ())
    master.op_stored(1, (0,))  # fed twice

    assert master.state_at(0) is State.OPEN
    master.follow(1)
    assert master.op_progress == 2


def test_old_final_records_say_nothing() -> None:
    master = known(half(3), half_progress=3)

    master.final_stored(2_000)

    assert master.state_at(3) is State.OPEN
    assert master.ending_of(half(2)) is Ending.OVER


def test_a_progress_beyond_what_is_open_was_a_masters_decision() -> None:
    """A replica sees no half given up but in the progress; a master asserts that it passes nothing open."""
    replica = known(half(0), half(1))
    with pytest.raises(AssertionError, match="half 0"):
        replica.advance(1)

    replica.follow(1)

    assert replica.ending_of(half(0)) is Ending.GIVEN_UP
    assert replica.half_progress == 1


def test_ends_are_remembered_for_a_while_behind_the_progress() -> None:
    halves = [half(number) for number in range(4)]
    with mock.patch.object(resolved, "RECENT_MAX", 2):
        master = known(*halves)
        for number in range(3):
            master.final_stored(1_000 * number)
            master.op_stored(number, (number,))
        master.advance(3)

    assert [master.ending_of(each) for each in halves[:3]] == [
        Ending.OVER,
        Ending.COMMITTED,
        Ending.COMMITTED,
    ]
    assert master.op_progress == 3


def test_a_copy_of_a_remembered_end_has_ended() -> None:
    """Java may append a half again whose op it has lost."""
    master = known(half(0, key="K"), half(1))
    master.final_stored(0)
    master.op_stored(0, (0,))
    master.advance(1)

    master.half_stored(half(2, key="K", origin=0))

    assert master.state_at(2) is State.RESOLVED
    assert master.ops_to_write() == (2,)


def test_too_many_open_or_resolved_halves_are_too_many() -> None:
    master = known(half(0), half(1), half(2))
    assert not master.is_full

    with mock.patch.object(resolved, "OPEN_MAX", 3):
        assert master.is_full
        master.op_stored(0, (1, 2))
        assert not master.is_full
        with mock.patch.object(resolved, "RESOLVED_MAX", 2):
            assert master.is_full


def test_a_far_progress_costs_no_more_than_what_is_known() -> None:
    """A restart may begin at 0, while the queue begins at a billion."""
    master = known(half(10**9), half(10**9 + 1))
    master.op_stored(0, (10**9,))

    master.advance(10**9 + 1)

    assert master.half_progress == 10**9 + 1
    assert master.state_at(10**9 + 1) is State.OPEN


def test_long_keys_cost_no_more_than_short_ones() -> None:
    """A client gives its messages keys of up to 32 KB, of which 300,000 may be open."""
    first, second = half(0, key="k" * 30_000), half(1, key="k" * 29_999 + "l")
    made = known(first, second, half_progress=0)

    assert len(resolved.key_of(first).unique_key) <= resolved.KEY_BYTES_MAX
    made.final_stored(first.offset, b"k" * 30_000)
    made.final_stored(second.offset, b"k" * 30_000)
    assert made.ending_of(first) is Ending.COMMITTED
    assert made.ending_of(second) is None
    made.half_begun(2, 2_000, b"k" * 30_000, 0)
    assert made.ending_of(half(2, key="k" * 30_000)) is None
