"""Which mix of makes a group is, what holds there, and that it is said in the words of the document."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_cli.takeover.mix import (
    ALL_JAVA,
    ALL_OURS,
    JAVA_MASTER,
    JAVA_SLAVES,
    OURS_UNDER_JAVA,
    ROWS,
    Make,
    MixMember,
    Row,
    broker_make,
    controller_make,
    decide_mix,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "compatibility.md"
OURS, JAVA, UNKNOWN = Make.OURS, Make.JAVA, Make.UNKNOWN
NO_LEASE = (
    "Java's controllers: no lease, so a master that is cut off can be read from; copied folders and lost "
    "page caches are not noticed"
)


def _members(*makes: Make) -> list[MixMember]:
    """With the ids 1 to n, all in sync."""
    return [MixMember(number, make) for number, make in enumerate(makes, 1)]


@pytest.mark.parametrize(
    ("status", "metadata", "make"),
    [
        (0, 0, OURS),
        (0, None, OURS),
        (3, 0, JAVA),
        (3, 3, UNKNOWN),
        (None, None, UNKNOWN),
        (None, 0, UNKNOWN),
        (1, 0, UNKNOWN),
    ],
    ids=["ours", "ours-alone", "java", "a-broker", "silent", "half-silent", "in-trouble"],
)
def test_a_controller_is_javas_when_it_does_not_know_our_question_and_answers_javas(
    status: int | None, metadata: int | None, make: Make
) -> None:
    assert controller_make(status, metadata) is make


def test_a_broker_is_told_by_what_only_one_make_answers_and_not_by_its_version() -> None:
    java = {"brokerVersionDesc": "V5_5_0", "commitLogMaxOffset": "9"}

    assert broker_make({**java, "brokersetRole": "none"}) is OURS
    assert broker_make({**java, "brokersetNativeCore": "off (BROKERSET_NATIVE=off)"}) is OURS
    assert broker_make(java, {}) is JAVA
    assert broker_make(java, {"replicaId": "1"}) is OURS
    assert broker_make(java, None) is UNKNOWN
    assert broker_make(None, None) is UNKNOWN


@pytest.mark.parametrize(
    ("controllers", "makes", "row"),
    [
        (OURS, (OURS, OURS, OURS), ALL_OURS),
        (JAVA, (OURS, OURS), OURS_UNDER_JAVA),
        (OURS, (OURS, JAVA), JAVA_SLAVES),
        (JAVA, (OURS, OURS, JAVA), JAVA_SLAVES),
        (OURS, (JAVA, OURS), JAVA_MASTER),
        (JAVA, (JAVA, OURS, JAVA), JAVA_MASTER),
        (OURS, (JAVA, JAVA), ALL_JAVA),
        (UNKNOWN, (OURS, OURS), None),
        (OURS, (UNKNOWN, OURS), None),
        (OURS, (OURS, UNKNOWN), None),
    ],
)
def test_the_first_broker_leads_and_the_group_is_in_one_row_of_the_table(
    controllers: Make, makes: tuple[Make, ...], row: Row | None
) -> None:
    found = decide_mix("orders", controllers, _members(*makes), 1)

    assert found.row == row
    assert found.mixed is (JAVA in (controllers, *makes))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.master}-{row.slaves}-{row.controllers}")
def test_every_row_is_in_the_document_word_for_word(row: Row) -> None:
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]

    found = [cells[3] for cells in rows if cells[:3] == [row.master, row.slaves, row.controllers]]

    assert len(found) == 1
    assert found[0].rstrip(".") == row.holds


def test_a_group_that_is_ours_alone_lacks_nothing() -> None:
    found = decide_mix("orders", OURS, _members(OURS, OURS, OURS), 1)

    assert found.lacks == ()
    assert found.line() == "all brokerset: everything, and no reads from the past"


def test_each_thing_that_does_not_hold_names_who_is_the_reason() -> None:
    members = [MixMember(1, OURS, all_ack=True), MixMember(2, JAVA), MixMember(3, JAVA, in_sync=False)]

    found = decide_mix("orders", JAVA, members, 1)

    assert found.line() == (
        f"mix: our master 1, Java slaves 2, 3, Java controllers. Does not hold: {NO_LEASE}; "
        "Java slave orders/2: metadata by polling, up to 10 s; "
        "Java slave orders/3: metadata by polling, up to 10 s; it is not in sync, so it lacks messages, too"
    )


@pytest.mark.parametrize(("all_ack", "more"), [(True, 0), (None, 0), (False, 1)])
def test_a_java_master_is_named_with_what_its_death_and_its_relief_may_cost(
    all_ack: bool | None, more: int
) -> None:
    members = [MixMember(2, JAVA, all_ack=all_ack), MixMember(4, OURS)]

    found = decide_mix("orders", OURS, members, 2)

    assert found.lacks[0].startswith(
        "Java master orders/2: no lease; told to follow while it lives it may lose"
    )
    assert sum("allAckInSyncStateSet=false" in lack for lack in found.lacks) == more
    assert found.lacks[-1] == "our slave orders/4 of a Java master: metadata by polling, up to 5 s"


def test_a_master_of_ours_that_acknowledges_alone_does_not_keep_everything() -> None:
    found = decide_mix("orders", OURS, [MixMember(1, OURS, all_ack=False), MixMember(2, OURS)], 1)

    assert found.lacks == (
        "our master orders/1 has allAckInSyncStateSet=false: what it acknowledged can die with it",
    )
    assert "Does not hold: our master orders/1" in found.line()


def test_a_dead_slave_that_is_not_in_sync_changes_nothing_but_is_named() -> None:
    members = [MixMember(1, OURS), MixMember(2, OURS), MixMember(3, UNKNOWN, in_sync=False)]

    found = decide_mix("orders", OURS, members, 1)

    assert found.row == ALL_OURS
    assert found.lacks == ("slave orders/3 does not answer: whose it is is not known",)


def test_without_a_master_nobody_knows_what_holds() -> None:
    found = decide_mix("orders", JAVA, _members(OURS, JAVA), None)

    assert found.row is None
    assert found.to_json()["holds"].startswith("not known")
    assert "orders has no master" in found.lacks


def test_scripts_get_every_key_with_makes_by_id() -> None:
    members = [MixMember(1, OURS, "V5_5_0"), MixMember(2, JAVA)]

    assert decide_mix("orders", OURS, members, 2).to_json() == {
        "mixed": True,
        "controllers": "brokerset",
        "brokers": {
            "1": {"make": "brokerset", "version": "V5_5_0"},
            "2": {"make": "Java", "version": None},
        },
        "holds": JAVA_MASTER.holds,
        "lacks": list(decide_mix("orders", OURS, members, 2).lacks),
    }
