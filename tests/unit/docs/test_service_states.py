"""What runbooks and alerts tell of a state is what `decide_mode` does in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import ModeKind, ServiceFacts, decide_mode
from brokerset_operator.resources.alerts import BROKER_ALERTS, CONTROLLER_ALERTS, DLEDGER_ALERTS

RUNBOOKS: Final = Path(__file__).parents[3] / "docs" / "runbooks"

LONG_MS: Final = 60_000
"""Longer than any request is held, so the mode is the one that lasts."""

STATES: Final = {
    "lease lost, others acknowledge": ServiceFacts(
        role=Role.MASTER, lease_required=True, lease_valid=False, lease_lost_for_ms=LONG_MS, in_sync=3
    ),
    "lease lost, acknowledges alone": ServiceFacts(
        role=Role.MASTER,
        lease_required=True,
        lease_valid=False,
        lease_lost_for_ms=LONG_MS,
        acknowledged_alone=True,
    ),
    "too few in sync": ServiceFacts(
        role=Role.MASTER, enough_in_sync=False, not_enough_for_ms=LONG_MS, needs_min=2
    ),
    "slave without a master": ServiceFacts(role=Role.SLAVE, no_master_for_ms=LONG_MS),
    "no role": ServiceFacts(role=Role.NONE),
    "fenced": ServiceFacts(role=Role.SLAVE, fenced=True, master_address="10.0.0.1:10911"),
}

TOLD: Final = {
    "BrokersetControllersWithoutLeader": (
        "lease lost, others acknowledge",
        "lease lost, acknowledges alone",
    ),
    "BrokersetLeaseLost": ("lease lost, others acknowledge", "lease lost, acknowledges alone"),
    "BrokersetSendsRefused": ("too few in sync",),
    "BrokersetGroupWithoutMaster": ("slave without a master", "no role"),
    "BrokersetDLedgerWithoutLeader": ("slave without a master", "no role"),
    "BrokersetDLedgerOldLogDiffers": ("no role",),
    "BrokersetReplicaFencedLong": ("fenced",),
    "BrokersetIdentityRefused": ("no role",),
    "BrokersetRoleChangeFailing": ("no role",),
}
"""The states that the runbook of each alert has to tell."""

IN_ALERTS: Final = {
    "BrokersetControllersWithoutLeader": ("lease lost, others acknowledge",),
    "BrokersetLeaseLost": ("lease lost, others acknowledge", "lease lost, acknowledges alone"),
    "BrokersetSendsRefused": ("too few in sync",),
    "BrokersetDLedgerWithoutLeader": ("slave without a master",),
}
"""The states that the description of each alert has to tell."""


def statement(facts: ServiceFacts) -> str:
    """What clients see, as documents say it: classes with one outcome together, what is served first."""
    modes = decide_mode(facts)
    outcomes: dict[str, list[str]] = {}
    for name, mode in (("sends", modes.writes), ("reads", modes.reads), ("locks", modes.locks)):
        assert mode.kind in (ModeKind.SERVE, ModeKind.REFUSE), "a state that lasts holds nothing"
        served = mode.kind is ModeKind.SERVE
        outcomes.setdefault("served" if served else f"refused with code {int(mode.code)}", []).append(name)
    return "; ".join(
        f"{_listed(names)} are {outcome}"
        for outcome, names in sorted(outcomes.items(), key=lambda item: item[0] != "served")
    )


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@pytest.mark.parametrize("page", TOLD)
def test_a_runbook_says_what_is_served(page: str) -> None:
    """Each statement stands in the page as the decision makes it."""
    text = " ".join((RUNBOOKS / f"{page}.md").read_text().split())

    for state in TOLD[page]:
        assert f": {statement(STATES[state])}." in text, f"{page}.md on: {state}"


@pytest.mark.parametrize("name", IN_ALERTS)
def test_an_alert_says_what_is_served(name: str) -> None:
    """Each statement stands in the description as the decision makes it."""
    alerts = (*CONTROLLER_ALERTS, *BROKER_ALERTS, *DLEDGER_ALERTS)
    (alert,) = (each for each in alerts if each.name == name)

    for state in IN_ALERTS[name]:
        assert f": {statement(STATES[state])}." in alert.description, state
