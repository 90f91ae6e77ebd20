"""What is proposed to controllers that have lost everything."""

from __future__ import annotations

from pathlib import Path

from brokerset_cli import rebuilding
from brokerset_cli.folder import DataFolder
from brokerset_cli.rebuilding import plan_rebuild
from brokerset_cli.takeover.adoption_journal import Finishing, Journal
from brokerset_client.controller_admin import BrokerObservation
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_spec.set_memory import SetMemory


def _broker(port: int, replica_id: int | None, *, group: str = "g", **more: object) -> BrokerObservation:
    values: dict[str, object] = {"nonce": f"n{port}", "check_code": f"c{port}", "incarnation": 2, **more}
    values = {"owner_uid": "u", "expected_replicas": 2, "next_broker_id": 3, "group_epoch": 4, **values}
    identity = BrokerIdentityAnswer(replica_id=replica_id, **values)  # type: ignore[arg-type]  # fields by name
    return BrokerObservation(f"127.0.0.1:{port}", "C", group, identity)


def test_ids_and_epochs_are_the_highest_that_any_broker_ever_saw() -> None:
    """Otherwise an id, or an epoch, would be given twice."""
    plan = plan_rebuild(
        [_broker(2, 2, next_broker_id=6, log_epoch=3), _broker(1, 1, group_epoch=5, log_epoch=9)], ()
    )

    (group,) = plan.groups
    assert (group.next_broker_id, group.master_epoch, group.master_id) == (6, 9, None)
    assert (group.sync_state_set, group.owner, group.expected_replicas) == ((), "u", 2)
    assert [(r.broker_id, r.address, r.check_code, r.nonce, r.incarnation) for r in group.replicas] == [
        (1, "127.0.0.1:1", "c1", "n1", 2),
        (2, "127.0.0.1:2", "c2", "n2", 2),
    ]
    assert (plan.notes, plan.obstacles) == ((), ())


def test_an_id_above_all_that_were_told_counts_too() -> None:
    plan = plan_rebuild([_broker(1, 8), _broker(2, 1)], ())

    assert plan.groups[0].next_broker_id == 9


def test_groups_that_the_controllers_know_are_left_alone() -> None:
    plan = plan_rebuild([_broker(1, 1), _broker(2, 2, group="other")], ["g"])

    assert [group.broker_name for group in plan.groups] == ["other"]
    assert "the controllers know the group g" in plan.notes[0]


def test_missing_brokers_and_those_without_an_id_are_said() -> None:
    plan = plan_rebuild([_broker(1, 1), _broker(2, None)], ())

    assert [replica.broker_id for replica in plan.groups[0].replicas] == [1]
    assert "127.0.0.1:2 has no id yet" in plan.notes[0]
    assert "1 of 2 brokers were found" in plan.notes[1]


def test_brokers_that_lost_their_page_caches_are_named() -> None:
    """Before anything is proposed, people see what may be missing; sound groups are not mentioned."""
    plan = plan_rebuild(
        [
            _broker(1, 1, lost_cache=True),
            _broker(2, 2, lost_cache=True),
            _broker(3, 1, group="other"),
            _broker(4, 2, group="other"),
        ],
        (),
    )

    assert [group.broker_name for group in plan.groups] == ["g", "other"]
    assert plan.obstacles == ()
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith("g: 127.0.0.1:1, 127.0.0.1:2 lost its page cache")


def test_copies_and_strangers_stop_the_proposal() -> None:
    copies = plan_rebuild([_broker(1, 1), _broker(2, 1)], ())
    strangers = plan_rebuild([_broker(1, 1), _broker(2, 2, owner_uid="v")], ())

    assert "both have the id 1" in copies.obstacles[0]
    assert "several sets (u, v)" in strangers.obstacles[0]


def test_copies_are_shown_with_both_addresses_and_a_process_at_two_is_none() -> None:
    """Two processes with one id draw different nonces; the same nonce is the same process."""
    same = plan_rebuild([_broker(1, 1), _broker(2, 1, nonce="n1"), _broker(3, 2)], ())
    copies = plan_rebuild([_broker(1, 1), _broker(2, 1, nonce="n2")], ())

    assert same.obstacles == ()
    assert [replica.broker_id for replica in same.groups[0].replicas] == [1, 2]
    assert "127.0.0.1:1 and 127.0.0.1:2 both have the id 1" in copies.obstacles[0]


def test_a_broker_that_is_kept_out_of_a_known_group_learns_the_way_in() -> None:
    """Another broker made the group before the rebuild."""
    out, member = (
        plan_rebuild([_broker(1, 1, registration=text)], ["g"])
        for text in ("the controllers do not know broker 1 of group g", "registered, slave")
    )

    assert "`brokerset clean g --all`" in out.notes[0]
    assert "brokerset clean" not in member.notes[0]


def test_ids_that_another_cluster_gave_are_not_given_again_by_hand_either(tmp_path: Path) -> None:
    """`adopt --finish` remembers them; a rebuild that a person asks for in between looks there, too."""
    DataFolder(tmp_path).write_memory(SetMemory("u"))
    journal = Journal(tmp_path)
    journal.begin({"g": (1, 2)}, 2)
    assert rebuilding._left_behind(tmp_path) == ({}, "")
    journal.finish(Finishing("j:9878", "j:9876", {}, {"g": 9, "other": 9}))
    groups = plan_rebuild([_broker(1, 3), _broker(2, 4), _broker(3, 1, group="other", owner_uid="x")], ())

    found = rebuilding.with_next_ids(groups.groups, *rebuilding._left_behind(tmp_path))

    assert {each.broker_name: each.next_broker_id for each in found} == {"g": 9, "other": 3}
