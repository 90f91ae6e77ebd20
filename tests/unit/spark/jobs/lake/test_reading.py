"""What a task of the lake does about what it cannot read: rows for readers, or the end of the pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from brokerset_client.calls import PulledRecords, PullStatus
from brokerset_rig.wire_answers import GIVEN_KEY, Given, given_answers, given_record, nothing_from
from brokerset_spark.jobs.lake.ranges import Control, Event
from brokerset_spark.jobs.lake.reading import RangeOutcome, read_queue
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.topics.client_thread import ClientThread
from brokerset_spark.topics.offsets import Mark
from brokerset_spark.topics.planning import Range
from brokerset_spark.topics.reading import Answers


def read(wanted: Range, given: Sequence[Answers]) -> tuple[int, list[tuple[Event, int, int]]]:
    outcome = RangeOutcome()
    chunks = list(read_queue(cast(ClientThread, Given(given)), wanted, outcome))
    assert sum(len(each.starts) for each in chunks) == outcome.messages
    return outcome.messages, [(each.event, each.start, each.end) for each in outcome.control]


def test_what_is_missing_is_a_row() -> None:
    """A pass goes on behind offsets without messages, and says which these are."""
    wanted = Range(GIVEN_KEY, 2, 9)
    assert read(wanted, [given_answers(2, 5, 6, 8)]) == (4, [(Event.GAP, 3, 5), (Event.GAP, 7, 8)])
    expired = [given_answers(2), nothing_from(3, 6, 9), given_answers(6, 7, 8)]
    assert read(wanted, expired) == (4, [(Event.EXPIRED, 3, 6)])


def test_a_topic_that_was_made_again_is_not_read_as_the_old_one() -> None:
    """Another record before the range: nothing of it is written, so that the pass can begin again."""
    wanted = Range(GIVEN_KEY, 2, 4, mark=Mark(1001))
    assert read(wanted, [given_answers(1, 2, 3)]) == (2, [])
    other = Range(GIVEN_KEY, 2, 4, mark=Mark(999))
    assert read(other, [given_answers(1, 2, 3)]) == (0, [(Event.RECREATED, 2, 4)])


def test_what_is_confirmed_and_does_not_come_ends_the_pass() -> None:
    """No row says of such messages that they are lost: the next pass reads them."""
    answer = PulledRecords(PullStatus.NO_NEW_MSG, b"", 3, 0, 3, 0)
    with pytest.raises(JobFailed, match="cannot be read at 3 of 5: the queue ends at 3"):
        RangeOutcome().late(GIVEN_KEY, 3, 5, answer)
    outcome = RangeOutcome()
    with pytest.raises(JobFailed, match="not there any more"):
        list(read_queue(cast(ClientThread, Given([nothing_from(2, 0, 2)])), Range(GIVEN_KEY, 2, 4), outcome))
    assert outcome.control == cast("list[Control]", [])


def test_a_damaged_record_ends_the_pass() -> None:
    """It is not written as another one's bytes; the error names the queue, and is none of the options."""
    record = bytearray(given_record(3))
    record[84:88] = (2).to_bytes(4, "big")  # of the body
    given = [Answers([given_record(2), bytes(record), given_record(4)], 5)]
    with pytest.raises(JobFailed, match="queue 0 of topic t on a"):
        read(Range(GIVEN_KEY, 2, 5), given)
