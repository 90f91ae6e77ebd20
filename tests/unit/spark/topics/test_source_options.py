"""Options of the wire source."""

from __future__ import annotations

import pytest

from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics.offsets import EARLIEST, QueueKey
from brokerset_spark.topics.options import COMMITTED, read_options

GIVEN = {"nameServers": "a:9876, b:9876", "topic": "t"}


def test_names_of_kafka_and_ours_mean_the_same() -> None:
    """`subscribe` and `topic`, `subscribePattern` and `topicPattern`, in any case."""
    assert read_options({"NAMESERVERS": "a:1", "subscribe": "t,u"}).topics == ("t", "u")
    assert read_options({"nameservers": "a:1", "subscribePattern": "t.*"}).topic_pattern == "t.*"
    assert read_options(GIVEN).name_servers == "a:9876;b:9876"


def test_offsets_are_read() -> None:
    """Words, numbers, and the special ones -2 and -1."""
    assert read_options(GIVEN | {"startingOffsets": "Earliest"}).starting == EARLIEST
    found = read_options(GIVEN | {"startingOffsets": '{"t": {"a": {"0": -2, "1": 7}}}'}).starting
    assert found == {QueueKey("t", "a", 0): -2, QueueKey("t", "a", 1): 7}
    committed = read_options(GIVEN | {"startingOffsets": "committed", "groupId": "g"})
    assert committed.starting == COMMITTED
    assert read_options(GIVEN | {"startingTimestamp": "1970-01-01T00:00:01Z"}).starting_times == 1000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nameServers": ""}, "no name server"),
        ({"topicPattern": "t.*"}, "give one of them"),
        ({"topicPattern": "("}, "not a regular expression"),
        ({"subscribe": "u"}, "mean the same"),
        ({"startingOffsets": "soon"}, "must be JSON"),
        ({"startingOffsets": '{"t": {"a": {"0": -4}}}'}, "no whole number"),
        ({"startingOffsets": '{"t": {"a": {"x": 1}}}'}, "no queue id"),
        ({"startingOffsets": '{"t": "soon"}'}, "'soon' is no offset"),
        ({"endingOffsets": '{"t": "earliest"}'}, "'earliest' is no offset"),
        ({"startingOffsetsByTimestamp": '{"t": "earliest"}'}, "'earliest' is no offset"),
        ({"startingOffsets": "committed"}, "needs groupId"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"assign": "{}", "topic": ""}, "must be JSON"),
        ({"maxOffsetsPerTrigger": "0"}, "above 0"),
        ({"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"}, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5"}, "must be a time"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
        ({"readFrom": "slave"}, "must be one of master, replica, auto"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "starting times"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t":{"a":{"0":1}}}'}, "one of them"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, str], said: str) -> None:
    """Each wrong option has a sentence of its own."""
    with pytest.raises(OptionsError, match=said):
        read_options(GIVEN | changes)


def test_all_problems_are_in_one_error() -> None:
    """Nobody mends options one by one."""
    with pytest.raises(OptionsError) as caught:
        read_options({"topic": "t", "minPartitions": "x", "other": "1"})
    assert len(caught.value.problems) == 3
