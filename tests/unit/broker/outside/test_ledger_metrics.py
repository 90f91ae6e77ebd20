"""The metrics of a member of a DLedger group are those of the document, with the numbers that were seen."""

from __future__ import annotations

import re
from pathlib import Path

from brokerset_broker.member.dledger.views import LedgerProblem
from brokerset_broker.member.ha.views import ReplicaView
from brokerset_broker.member.role import Role, RoleState
from brokerset_broker.outside.ledger_metrics import LedgerMeasurements, measured_families
from brokerset_broker.outside.replication_metrics import Families
from brokerset_dledger.driver import MemberStatus
from brokerset_dledger.node import Role as LedgerRole

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"

STATUS = MemberStatus(
    role=LedgerRole.LEADER,
    term=7,
    leader_id="n0",
    serves=True,
    begin_index=2,
    end_index=90,
    committed_index=80,
    watermarks={"n0": 90, "n1": 85, "n2": 60},
    transferee=None,
    leader_address="h:1",
    recovering=False,
)
BEHIND = ReplicaView(3, "h:3", 600, 400, False, False, True, -1, 0)
SEEN = LedgerMeasurements(
    role=RoleState(role=Role.MASTER, epoch=7),
    status=STATUS,
    replica_id=1,
    max_offset=1000,
    confirmed_offset=900,
    replicas=(BEHIND,),
    waiting=5,
    elections=2,
    members=3,
    brokerset_only=True,
    problem=LedgerProblem.OLD_LOG,
)


def test_every_metric_is_documented_with_its_meaning() -> None:
    section = PAGE.read_text().split("\n## Broker in DLedger mode\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \| (\w+) \| (?:`(\w+)` )?\| (.+) \|$", section, re.M)

    families = list(measured_families(SEEN, Families({"cluster": "C"})))

    exported = [
        (f"{each.name}_total" if each.type == "counter" else each.name, each.type) for each in families
    ]
    assert [(name, kind) for name, kind, _, _ in documented] == exported
    for (name, _, label, meaning), family in zip(documented, families, strict=True):
        assert meaning.startswith(family.documentation), name
        assert all(
            set(sample.labels) - {"cluster"} == ({label} if label else set()) for sample in family.samples
        )


def test_a_leader_tells_its_indexes_and_who_is_behind() -> None:
    samples = {
        (sample.name.removeprefix("brokerset_broker_"), *list(sample.labels.values())[1:]): sample.value
        for family in measured_families(SEEN, Families({"cluster": "C"}))
        for sample in family.samples
    }

    assert samples["role", "master"] == samples["dledger_role", "leader"] == 1
    assert samples["dledger_role", "follower"] == 0
    assert (samples["dledger_term",], samples["master_epoch",]) == (7, 7)
    assert (samples["dledger_end_index",], samples["dledger_committed_index",]) == (90, 80)
    assert (samples["in_sync_replicas",], samples["replica_lag_bytes", "3"]) == (2, 400)
    assert (samples["dledger_members",], samples["dledger_brokerset_only",]) == (3, 1)
    assert samples["membership_problem", "old_log_differs"] == 1
    assert samples["membership_problem", "no_leader"] == 0
    assert (samples["waiting_acknowledgements",], samples["dledger_elections_total",]) == (5, 2)
