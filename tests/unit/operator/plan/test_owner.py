"""Which installation of the operator looks after a set, and what the others say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model import names
from brokerset_operator.plan.owner import (
    BELIEVED_SECONDS,
    RENEWED_SECONDS,
    Decision,
    Owner,
    claimed,
    read_owner,
    refusal_text,
    refused,
)
from brokerset_sim.kubernetes_worlds import condition, decide, settled

MINE, OTHER, THIRD = "system/mine", "elsewhere/other", "third/one"
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("marked", "wished", "exists", "decision"),
    [
        ("", "", None, Decision.CLAIM),
        (MINE, "", None, Decision.WORK),
        (OTHER, "", True, Decision.REFUSE),
        (OTHER, "", None, Decision.REFUSE),
        (OTHER, "", False, Decision.CLAIM),
        (OTHER, MINE, True, Decision.CLAIM),
        (MINE, MINE, None, Decision.WORK),
        (MINE, OTHER, None, Decision.REFUSE),
        ("", OTHER, None, Decision.REFUSE),
        (OTHER, OTHER, True, Decision.LEAVE),
        (OTHER, OTHER, False, Decision.LEAVE),
        (THIRD, OTHER, False, Decision.REFUSE),
    ],
)
def test_one_installation_works_on_a_set(
    marked: str, wished: str, exists: bool | None, decision: Decision
) -> None:
    """The annotation decides, then the mark; one that is gone gives its sets up, unless it is wished for."""
    assert Owner(marked, wished).decide(MINE, exists) is decision


@pytest.mark.parametrize("marked", ["", MINE, OTHER])
@pytest.mark.parametrize("wished", ["", MINE, OTHER, THIRD])
def test_two_installations_that_exist_never_both_work(marked: str, wished: str) -> None:
    """Whatever a set says, at most one goes on with it, and at most one takes it, once it has a mark."""
    busy = {Decision.WORK, Decision.CLAIM}

    both = [Owner(marked, wished).decide(mine, True) in busy for mine in (MINE, OTHER)]

    assert sum(both) <= 1 or not (marked or wished)


def live(**status: Any) -> dict[str, Any]:
    """A BrokerSet that another installation has."""
    return {"metadata": {"name": "orders", "generation": 4}, "status": {"operator": OTHER, **status}}


def test_a_refusal_is_a_condition_next_to_those_of_the_owner() -> None:
    """It names both, and says what to do; nothing of the owner's status changes."""
    theirs = {"type": "Ready", "status": "True", "reason": "AsWanted", "message": "fine"}
    given = live(conditions=[theirs], phase="Ready", workflow={"groups": []})

    status = refused(given, MINE, refusal_text(MINE, read_owner(given), True), NOW)

    assert status is not None
    assert {key: status[key] for key in ("operator", "phase", "workflow")} == {
        "operator": OTHER,
        "phase": "Ready",
        "workflow": {"groups": []},
    }
    assert status["conditions"][0] == theirs
    assert condition(status, "OperatorConflict") == ("True", "OtherOperator")
    message = status["conditions"][1]["message"]
    assert OTHER in message
    assert f"{names.OPERATOR}={MINE}" in message
    assert "kubectl delete lease -n elsewhere other" in message


def test_what_cannot_be_seen_is_not_advised() -> None:
    """An installation with rights in some namespaces does not see when the other one's Lease is gone."""
    assert "delete lease" not in refusal_text(MINE, Owner(OTHER, ""), None)


def test_a_refusal_is_said_once_and_renewed_and_one_is_enough() -> None:
    """Two that leave a set alone do not write against each other either."""
    first = refused(live(), MINE, "text", NOW)
    assert first is not None
    written = {"metadata": {"name": "orders"}, "status": first}

    assert refused(written, MINE, "text", NOW + RENEWED_SECONDS - 1) is None
    again = refused(written, MINE, "text", NOW + RENEWED_SECONDS)
    assert again is not None
    assert again["conditions"][0]["lastTransitionTime"] == first["conditions"][0]["lastTransitionTime"]
    assert refused(written, THIRD, "text", NOW + BELIEVED_SECONDS - 1) is None
    assert refused(written, THIRD, "text", NOW + BELIEVED_SECONDS) is not None


def test_the_owner_carries_a_refusal_over_until_nobody_renews_it() -> None:
    """The other operator is not asked: it may be gone, and cannot take its word back."""
    world = settled()
    given = world.observe_now()
    given = replace(given, operator=replace(given.operator, installation=OTHER))
    said = refused({"metadata": {}, "status": world.status}, MINE, "text", given.now)
    assert said is not None

    soon = decide(replace(given, status=said)).status
    late = decide(replace(given, status=said, now=given.now + BELIEVED_SECONDS)).status

    assert condition(dict(soon), "OperatorConflict") == ("True", "OtherOperator")
    assert soon["refused"] == said["refused"]
    assert soon["operator"] == OTHER
    assert condition(dict(late), "OperatorConflict") is None
    assert "refused" not in late


def test_who_takes_a_set_takes_its_own_refusal_back() -> None:
    """All else that was known stays: the new owner goes on where the old one was."""
    said = refused(live(workflow={"groups": [1]}, conditions=[]), MINE, "text", NOW)
    assert said is not None

    status = claimed(said, MINE)

    assert status == {"operator": MINE, "workflow": {"groups": [1]}, "conditions": []}
