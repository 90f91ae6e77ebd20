"""What the state of a DLedger member means for the broker."""

from __future__ import annotations

from dataclasses import replace

from brokerset_broker.member.dledger.member_settings import node_config
from brokerset_broker.member.dledger.news import LedgerLease, broker_id_of, in_sync, member_of, news_of
from brokerset_dledger.driver import MemberStatus
from brokerset_dledger.node import Role
from brokerset_spec.broker_settings import BrokerSettings

FOLLOWS = MemberStatus(
    role=Role.FOLLOWER,
    term=5,
    leader_id="n2",
    serves=False,
    begin_index=0,
    end_index=9,
    committed_index=8,
    watermarks={},
    transferee=None,
    leader_address=None,
    recovering=False,
)
LEADS = replace(
    FOLLOWS, role=Role.LEADER, leader_id="n0", serves=True, watermarks={"n0": 9, "n1": 8, "n2": 3}
)


def test_the_id_of_a_broker_is_the_number_of_its_member_plus_one() -> None:
    assert [broker_id_of(member) for member in ("n0", "n1", "n12")] == [1, 2, 13]
    assert [member_of(broker_id) for broker_id in (1, 2, 13)] == ["n0", "n1", "n12"]


def test_who_leads_is_master_in_the_epoch_behind_the_term() -> None:
    news = news_of(FOLLOWS, "10.0.0.3:10911")
    assert (news.epoch, news.master_id, news.master_address) == (6, 3, "10.0.0.3:10911")
    assert news_of(replace(FOLLOWS, leader_id=None), None).master_id is None


def test_members_that_have_all_that_is_committed_are_in_sync() -> None:
    assert in_sync(LEADS) == ("n0", "n1")
    assert in_sync(FOLLOWS) == ()
    assert news_of(LEADS, None).sync_state_set == {1, 2}


def test_a_lease_counts_for_the_term_that_it_was_won_in() -> None:
    lease = LedgerLease(term=lambda: 5, may_serve=lambda: True, serves_until=lambda: 12.0, now=lambda: 10.0)
    assert lease.valid(10.0, 6)
    assert not lease.valid(10.0, 5)
    assert lease.ends_at == 12.0
    assert LedgerLease(
        term=lambda: 5, may_serve=lambda: True, serves_until=lambda: float("inf"), now=lambda: 10.0
    ).ends_at < float("inf")


def test_a_group_of_ours_has_short_times_and_one_with_java_has_javas() -> None:
    settings = BrokerSettings(
        broker_name="b",
        enable_dledger_commit_log=True,
        dledger_peers="n0-h:1;n1-h:2;n2-h:3",
        dledger_self_id="n1",
        preferred_leader_id="n2",
    )
    mixed = node_config(settings)
    assert (mixed.group, mixed.node_id, mixed.peers) == ("b", "n1", ("n0", "n1", "n2"))
    assert (mixed.alone, mixed.heartbeat, mixed.preferred_leaders) == (False, 2_000, ("n2",))
    ours = node_config(replace(settings, dledger_brokerset_only=True, dledger_group="g"))
    assert (ours.alone, ours.group) == (True, "g")
    assert ours.silence_max < 1_000


def test_entries_count_when_they_are_on_the_disk_if_sends_wait_for_it() -> None:
    settings = BrokerSettings(enable_dledger_commit_log=True, dledger_peers="n0-h:1", dledger_self_id="n0")
    assert not node_config(settings).sync_before_ack
    assert node_config(replace(settings, flush_disk_type="SYNC_FLUSH")).sync_before_ack
