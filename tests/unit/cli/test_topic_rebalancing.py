"""Which groups a topic is made on when groups were added."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from brokerset_cli.topic_rebalancing import as_new, decide_rebalance, is_made_by_clients, own_topics
from brokerset_cli.topics import topic
from brokerset_formats.config import TopicConfig
from brokerset_protocol.bodies.routes import BrokerData, ClusterInfo

LETTERS = TopicConfig("letters", 4, 4, attributes={"cleanup.policy": "DELETE"})
ONE = [{"a", "b", "c"}]


def test_a_topic_gets_its_settings_on_every_group_that_lacks_it() -> None:
    found = decide_rebalance({"a": LETTERS}, ONE, ["a", "b", "c"])

    assert found.missing == ("b", "c")
    assert found.config == LETTERS
    assert found.before == {"a": 4}
    assert found.after == {"a": 4, "b": 4, "c": 4}


def test_a_topic_that_is_everywhere_stays_as_it_is() -> None:
    found = decide_rebalance({group: LETTERS for group in "abc"}, ONE, ["a", "b", "c"])

    assert found.missing == ()
    assert found.after == found.before


def test_a_group_with_fewer_queues_keeps_them_and_new_ones_get_as_many_as_the_largest() -> None:
    fewer = replace(LETTERS, write_queue_nums=1)

    found = decide_rebalance({"a": fewer, "b": LETTERS}, ONE, ["a", "b", "c"])

    assert found.after == {"a": 1, "b": 4, "c": 4}


def test_a_group_that_takes_no_writes_gets_no_topic() -> None:
    assert decide_rebalance({"a": LETTERS}, ONE, ["a", "b"]).missing == ("b",)


def test_a_topic_does_not_spread_into_another_cluster() -> None:
    found = decide_rebalance({"a": LETTERS}, [{"a", "b"}, {"c"}], ["a", "b", "c"])

    assert found.missing == ("b",)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(LETTERS, order=True), "order=true"),
        (replace(LETTERS, attributes={"message.type": "FIFO"}), "brokerset subject scale"),
    ],
)
def test_a_topic_that_promises_an_order_within_queues_is_refused(config: TopicConfig, said: str) -> None:
    found = decide_rebalance({"a": config}, ONE, ["a", "b"])

    assert found.missing == ()
    assert said in found.refusal


def test_an_ordered_topic_that_is_everywhere_is_no_problem() -> None:
    ordered = replace(LETTERS, order=True)

    assert not decide_rebalance({"a": ordered, "b": ordered}, ONE, ["a", "b"]).refusal


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("letters", True),
        ("%RETRY%readers", False),
        ("%DLQ%readers", False),
        ("TBW102", False),
        ("broker-a", False),
        ("Shop", False),
        ("Shop_REPLY_TOPIC", False),
    ],
)
def test_topics_that_brokers_make_are_left_to_them(name: str, clients: bool) -> None:
    own = own_topics(ClusterInfo({"broker-a": BrokerData("Shop", "broker-a", {})}, {"Shop": ("broker-a",)}))

    assert is_made_by_clients(name, own) is clients


def test_a_request_that_makes_a_topic_adds_its_attributes() -> None:
    assert as_new(LETTERS).attributes == {"+cleanup.policy": "DELETE"}


@pytest.mark.parametrize("arguments", [[], ["letters", "--all"]])
def test_topics_are_named_or_all_are_meant(arguments: list[str]) -> None:
    done = CliRunner().invoke(topic, ["rebalance", *arguments])

    assert done.exit_code == 2
    assert "name topics, or give --all" in done.output
