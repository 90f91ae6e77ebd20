"""What members of a DLedger group say, put together, judged, and told to people and scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerset_cli.folder import DataFolder, SetState
from brokerset_cli.ledger_view import (
    BEHIND_BYTES,
    groups_json,
    ledger_problems,
    show_groups,
)
from brokerset_cli.options import controller_address, observed_controllers
from brokerset_cli.output import CommandFailed
from brokerset_client.broker_facts import BrokerFacts, facts_from
from brokerset_client.ledger_groups import LedgerGroup, ledger_groups

PEERS = "n0-h:11;n1-h:21;n2-h:31"
NAMES = {"h:10": "orders-0", "h:20": "orders-0", "h:30": "orders-0"}
PROCESSES = {"h:10": "orders-0-0", "h:20": "orders-0-1", "h:30": "orders-0-2"}
ADDRESSES = {"h:11": "h:10", "h:21": "h:20", "h:31": "h:30"}


def _table(number: int, role: str = "FOLLOWER", *, term: int = 3, leader: str = "n0") -> dict[str, str]:
    return {
        "brokersetRole": {"LEADER": "master", "FOLLOWER": "slave"}.get(role, "none"),
        "brokersetReplicaId": str(number + 1),
        "brokersetMasterEpoch": str(term),
        "brokersetMaxOffset": "900",
        "brokersetConfirmedOffset": "800",
        "brokersetInSync": "1,2" if role == "LEADER" else "",
        "brokersetLeaseMs": "1234" if role == "LEADER" else "-1",
        "brokersetReplicas": _replicas(100) if role == "LEADER" else "[]",
        "brokersetProblem": "",
        "brokersetDLedgerSelfId": f"n{number}",
        "brokersetDLedgerPeers": PEERS,
        "brokersetDLedgerRole": role,
        "brokersetDLedgerTerm": str(term),
        "brokersetDLedgerLeader": leader,
        "brokersetDLedgerBeginIndex": "0",
        "brokersetDLedgerEndIndex": "9",
        "brokersetDLedgerCommittedIndex": "8",
    }


def _replicas(lag: int) -> str:
    return json.dumps(
        [
            {"id": 2, "address": "h:21", "acknowledged": 900, "lagBytes": 0, "inSync": True},
            {"id": 3, "address": "h:31", "acknowledged": 900 - lag, "lagBytes": lag, "inSync": False},
        ]
    )


def _group(*tables: dict[str, str] | None) -> LedgerGroup:
    facts: dict[str, BrokerFacts] = {}
    for number, table in enumerate(tables):
        if table is not None:
            found = facts_from(f"h:{number + 1}0", table)
            assert found is not None
            facts[found.address] = found
    (group,) = ledger_groups(facts, NAMES, ADDRESSES)
    return group


WHOLE = (_table(0, "LEADER"), _table(1), _table(2))


def test_members_are_found_by_what_any_of_them_says() -> None:
    group = _group(None, _table(1), None)

    assert [(each.member, each.broker_id, each.address) for each in group.members] == [
        ("n0", 1, "h:10"), ("n1", 2, "h:20"), ("n2", 3, "h:30"),
    ]  # fmt: skip
    assert [each.facts is not None for each in group.members] == [False, True, False]


def test_brokers_of_groups_with_controllers_are_left_out() -> None:
    facts = facts_from("h:10", {"brokersetRole": "master", "brokersetMaxOffset": "9"})

    assert facts is not None
    assert ledger_groups({"h:10": facts}, NAMES) == ()


def test_a_leader_of_an_older_term_is_not_taken_for_the_leader() -> None:
    group = _group(_table(0, "LEADER", term=2), _table(1, "LEADER", term=3, leader="n1"), _table(2))

    assert group.leader is not None
    assert (group.leader.member, group.term) == ("n1", 3)


@pytest.mark.parametrize(
    ("tables", "problems"),
    [
        (WHOLE, []),
        (
            (None, _table(1, "CANDIDATE", leader=""), None),
            [
                "orders-0 has no master: no member leads (1 of 3 answer): it takes more than half of them, "
                "which run and reach each other",
                "orders-0: n0 at h:10 gives no answer; see that it runs",
                "orders-0: n2 at h:30 gives no answer; see that it runs",
            ],
        ),
        (
            (
                _table(0, "LEADER") | {"brokersetRole": "none", "brokersetProblem": "its log fails"},
                *WHOLE[1:],
            ),
            ["orders-0 has no master: n0 leads in term 3 and does not serve yet: its log fails"],
        ),
        (
            (WHOLE[0], WHOLE[1], _table(2, "CANDIDATE", term=2, leader="")),
            ["orders-0: n2 follows nobody in term 2, and n0 leads in 3"],
        ),
        (
            (WHOLE[0] | {"brokersetReplicas": _replicas(BEHIND_BYTES + 1)}, *WHOLE[1:]),
            [f"orders-0: n2 is {BEHIND_BYTES + 1:,} bytes behind n0"],
        ),
    ],
    ids=["whole", "without-leader", "not-serving", "not-following", "behind"],
)
def test_what_is_wrong_with_a_group_is_said_with_the_reason(
    tables: tuple[dict[str, str] | None, ...], problems: list[str]
) -> None:
    assert ledger_problems([_group(*tables)]) == problems


def test_a_group_of_which_nobody_answers_is_a_problem() -> None:
    assert ledger_problems((), ("orders-0",)) == ["orders-0: no member answers; start its brokers"]


def test_people_see_role_term_leader_indexes_and_who_is_behind(capsys: pytest.CaptureFixture[str]) -> None:
    show_groups([_group(WHOLE[0], WHOLE[1], None)], PROCESSES, print)

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "orders-0, a DLedger: n0 leads, term 3; in sync: 1, 2"
    assert lines[2] == "1 n0 orders-0-0 h:10 leader 3 n0 0 9 8 0 yes 1,234 ms"
    assert lines[3] == "2 n1 orders-0-1 h:20 follower 3 n0 0 9 8 0 yes -"
    assert lines[4] == "3 n2 orders-0-2 h:30 no answer - - - - - 100 no -"


def test_every_key_is_always_there_for_scripts() -> None:
    (found,) = groups_json([_group(WHOLE[0], None, WHOLE[2])], PROCESSES)

    assert (found["brokerName"], found["leader"], found["masterId"], found["term"]) == (
        "orders-0",
        "n0",
        1,
        3,
    )
    assert len({frozenset(member) for member in found["members"]}) == 1
    assert [member["lagBytes"] for member in found["members"]] == [0, 0, 100]
    assert [member["answers"] for member in found["members"]] == [True, False, True]


def test_commands_get_a_group_in_the_form_of_the_controllers() -> None:
    state = _group(WHOLE[0], None, WHOLE[2]).state({"h:30": 4})

    assert (state.broker_name, state.master_id, state.master_epoch) == ("orders-0", 1, 4)
    assert [(each.broker_id, each.address, each.standing, each.incarnation) for each in state.replicas] == [
        (1, "h:10", "alive", 0), (2, "h:20", "dead", 0), (3, "h:30", "alive", 4),
    ]  # fmt: skip
    assert (state.sync_state_set, state.advice) == ((1, 2), None)


def test_commands_for_controllers_ask_no_others_when_the_set_has_none(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.write_state(SetState("orders", "C", "running", "h:9876", 0, None, 0, (), mode="dledger"))

    assert observed_controllers(None, folder.path) == ""
    assert controller_address("h:1", folder.path) == "h:1"
    with pytest.raises(CommandFailed, match="has no controllers: each of its groups elects its leader"):
        controller_address(None, folder.path)
