"""What `status` shows of brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_cli.lag_view import lags_of
from brokerset_cli.pop_view import PopView, pop_problems, pop_view
from brokerset_cli.status import BrokerView, View, show
from brokerset_client.admin import GroupProgress
from brokerset_protocol.bodies.queues import MessageQueue

BROKER = BrokerView(
    cluster="C", group="orders-0", id=0, role="master", address="h:1", version="V5_5_0", native_core=None,
    boot_ms=None, put_per_second=0.0, get_per_second=0.0, stored_bytes=0, reachable=True,
)  # fmt: skip


def test_brokers_that_run_without_the_native_core_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is on, in a column; scripts get its version, or why it is off. Java's brokers have none."""
    brokers = tuple(
        replace(BROKER, address=address, native_core=core)
        for address, core in (
            ("h:1", "on (0.1.0)"),
            ("h:2", "off (brokerset-native is not installed)"),
            ("java:3", None),
        )
    )
    view = View("h:9", None, brokers, None, (), ())

    show(view)

    _, heads, *rows = capsys.readouterr().out.splitlines()
    at = heads.split().index("NATIVE")
    assert [row.split()[at] for row in rows] == ["on", "off", "-"]
    assert [each["nativeCore"] for each in view.to_json()["brokers"]] == [
        "on (0.1.0)", "off (brokerset-native is not installed)", None,
    ]  # fmt: skip
    assert view.to_json()["healthy"]


POPS = {
    "brokersetPopKnown": "true", "brokersetPopCheckPoints": "2", "brokersetPopCheckPointsMax": "500000",
    "brokersetPopInFlight": "40", "brokersetPopReviveLatencyMs": "0", "brokersetPopWaiting": "3",
}  # fmt: skip


def test_masters_with_popped_messages_are_shown_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Who pops nothing sees no table of it; a broker that says nothing, such as Java's, is no error."""
    idle = POPS | {"brokersetPopCheckPoints": "0", "brokersetPopWaiting": "0"}
    quiet = tuple(replace(BROKER, pops=pop_view(facts)) for facts in (idle, {}))
    view = View("h:9", None, quiet, None, (), ())
    show(view)
    nothing = capsys.readouterr().out

    view = View("h:9", None, (*quiet, replace(BROKER, group="orders-1", pops=pop_view(POPS))), None, (), ())
    show(view)

    assert "Popped messages" not in nothing
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Popped messages")
    assert lines[at + 1].split() == ["GROUP", "ID", "IN", "FLIGHT", "CHECK", "POINTS", "LATE", "WAITING"]
    assert lines[at + 2].split() == ["orders-1", "0", "40", "2", "of", "500,000", "-", "3"]
    assert len(lines) == at + 3
    assert view.to_json()["brokers"][2]["pops"]["inFlight"] == 40
    assert view.to_json()["brokers"][1]["pops"] is None


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, None),
        ({"brokersetPopKnown": "false"}, "does not serve pops and acks yet"),
        ({"brokersetPopReviveLatencyMs": "61000"}, "come back 61 s late"),
        ({"brokersetPopCheckPoints": "450000"}, "450000 open check points of 500000"),
    ],
)
def test_what_is_wrong_with_pops_is_a_problem(facts: dict[str, str], says: str | None) -> None:
    """The same limits as those of the alerts."""
    pops: PopView | None = pop_view(POPS | facts)

    found = pop_problems("broker orders-0/0", pops)

    assert len(found) == (says is not None)
    assert all(says is not None and says in problem for problem in found)


def test_consumer_groups_are_shown_by_topic_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The queues of a topic together. Retries are a row only while messages wait there, and who has not asked
    sees no table."""
    progress = [
        GroupProgress(MessageQueue("orders", "b", 0), 10, 4, 1_700_000_000_000, 2),
        GroupProgress(MessageQueue("orders", "b", 1), 5, 5, 0),
        GroupProgress(MessageQueue("%RETRY%lake", "b", 0), 3, 3, 0),
    ]
    view = View("h:9", None, (BROKER,), None, (), (), tuple(lags_of("lake", progress)))

    show(view)
    text = capsys.readouterr().out
    show(replace(view, lags=None))

    *_, title, heads, row = text.splitlines()
    assert title == "Consumer groups"
    assert heads.split()[:4] == ["GROUP", "TOPIC", "QUEUES", "LAG"]
    assert row.split()[:5] == ["lake", "orders", "2", "6", "2"]
    assert "Consumer groups" not in capsys.readouterr().out
    assert view.to_json()["consumerGroups"] == [
        {
            "group": "lake",
            "topic": "orders",
            "queues": 2,
            "lag": 6,
            "inFlight": 2,
            "lastTimestamp": 1_700_000_000_000,
        }
    ]
    assert "consumerGroups" not in replace(view, lags=None).to_json()
