"""A local set that gets another broker group: topics that are there already use it after one command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig.local_set import LocalSet

pytestmark = pytest.mark.long

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: orders}
spec:
  groups: %s
  replicas: 1
  controllers: {replicas: 1}
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LocalSet]:
    command = LocalSet(tmp_path / "data")
    yield command
    command.end()


def queues_of(cli: LocalSet, topic: str) -> dict[str, int]:
    found = json.loads(cli("topic", "describe", topic, "--json").stdout)
    return {each["broker"]: each["writeQueues"] for each in found["brokers"]}


def test_messages_of_an_older_topic_flow_through_a_new_group_after_a_rebalance(cli: LocalSet) -> None:
    cli.up(MANIFEST % 1)
    cli.until_healthy()
    cli("topic", "create", "letters", "--queues", "2")
    cli("send", "letters", "--count", "10")
    cli("group", "create", "readers", "--retries", "3")
    cli("consume", "letters", "--group", "readers", "--count", "10", "--json")
    cli("down")
    cli.up(MANIFEST % 2)
    cli.until_healthy()

    planned = json.loads(cli("topic", "rebalance", "--all", "--dry-run", "--json").stdout)
    untouched = queues_of(cli, "letters")
    cli("topic", "rebalance", "--all", "--yes")

    assert [(each["topic"], each["missing"]) for each in planned] == [("letters", ["orders-1"])]
    assert untouched == {"orders-0": 2}
    assert queues_of(cli, "letters") == {"orders-0": 2, "orders-1": 2}
    sent = json.loads(cli("send", "letters", "--count", "40", "--json").stdout)
    assert {name.split("/")[0] for name in sent["queues"]} == {"orders-0", "orders-1"}
    read = cli("consume", "letters", "--group", "readers", "--count", "40", "--json").stdout
    assert len(read.splitlines()) == 40
    assert json.loads(cli("group", "describe", "readers", "--json").stdout)["lag"] == 0
    assert "Nothing to do" in cli("topic", "rebalance", "letters", "--yes").stdout


def test_auto_runs_the_groups_that_the_folder_has(cli: LocalSet) -> None:
    cli.up(MANIFEST % 3)
    cli("down")

    cli.up(MANIFEST % "auto")

    assert sorted(cli.processes("broker")) == ["orders-0-0", "orders-1-0", "orders-2-0"]


def test_a_topic_that_promises_an_order_is_named_and_nothing_is_changed(cli: LocalSet) -> None:
    cli.up(MANIFEST % 1)
    cli.until_healthy()
    cli("subject", "create", "trades", "--partitions", "2")
    cli("down")
    cli.up(MANIFEST % 2)
    cli.until_healthy()

    refused = cli("topic", "rebalance", "trades", "--yes", code=1)
    listed = cli("topic", "rebalance", "--all", "--yes")

    assert "brokerset subject scale" in refused.stderr
    assert "brokerset subject scale" in listed.stdout
    assert queues_of(cli, "trades") == {"orders-0": 2}
