"""What the operator asks of a real DLedger group: who leads, that it hands over, its topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.broker.test_dledger_group import patient

from brokerset_client.errors import RequestRefused
from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator import ledger_view
from brokerset_operator.apply import Means
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.events import Events
from brokerset_operator.ledger_view import LedgerAdmin, Member, query_groups
from brokerset_operator.reconcile_queue import Key, RetryAfter
from brokerset_operator.topics import FINALIZER, TOPIC, TopicReconciler
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.ledger_brokers import Group, group, leads, member
from brokerset_rig.operator_parts import NAMESPACE, broker_set, condition
from brokerset_rig.waiting import until
from brokerset_runtime.clock import SystemClock

pytestmark = pytest.mark.long

__all__ = ["patient"]


def members_of(running: Group) -> tuple[Member, ...]:
    """As the operator finds them by their pods."""
    peers = dict(each.split("-", 1) for each in running.peers.split(";"))
    return tuple(
        Member(f"orders-0-{number}", f"127.0.0.1:{broker.port}", "orders-0", number, peers[f"n{number}"], 1)
        for number, broker in running.brokers.items()
    )


async def test_members_tell_who_leads_and_a_switchover_makes_another_one_the_master(tmp_path: Path) -> None:
    async with group(tmp_path, broker_name="orders-0") as running:
        first = await running.leader()
        wanted = running.followers()[0]
        members = members_of(running)

        before = (await query_groups(members))["orders-0"]
        async with LedgerAdmin(members) as admin:
            answer = await admin.switch_over("orders-0", wanted.part.broker_id())
        after = (await query_groups(members))["orders-0"]

        assert (before.master_id, after.master_id) == (first.part.broker_id(), wanted.part.broker_id())
        assert before.sync_state_set == (1, 2, 3)
        assert after.master_epoch == member(wanted).driver.term + 1 > before.master_epoch
        assert answer.master_broker_id == wanted.part.broker_id()


async def test_a_group_without_a_leader_refuses_with_the_reason(tmp_path: Path) -> None:
    async with group(tmp_path, broker_name="orders-0") as running:
        await running.leader()
        members = members_of(running)
        for number in (0, 1):
            await running.stop(number)
        await until(lambda: not leads(running.brokers[2]))

        async with LedgerAdmin(members) as admin:
            with pytest.raises(RequestRefused, match="nobody leads orders-0"):
                await admin.switch_over("orders-0")
        assert await query_groups(members[:2]) == {}


async def test_a_topic_of_a_dledger_set_is_made_and_deleted_at_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no member answers its deletion waits: such a group is not taken for one that is gone."""
    document = {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": "payments", "namespace": NAMESPACE},
        "spec": {"brokerSetRef": {"name": "orders"}, "deletionPolicy": "Delete"},
    }
    async with (
        group(tmp_path, broker_name="orders-0") as running,
        FakeKube() as kube,
        KubeClient(Access(kube.url), manager="tester") as client,
    ):
        leader, clock = await running.leader(), SystemClock()
        monkeypatch.setattr(ledger_view, "members_of", lambda live, pods: members_of(running))
        kube.put(broker_set(replication={"mode": "dledger"}))
        kube.put(document)
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        reconciler, key = TopicReconciler(means, ClaimIndex(), 300.0), Key(TOPIC, NAMESPACE, "payments")

        await reconciler.reconcile(key)
        found = condition(kube.get("topics", "payments", NAMESPACE), "Ready")
        assert found is not None
        assert (found["status"], found["reason"]) == ("True", "AsWanted")
        assert leader.topics.get("payments") is not None

        await client.delete(kinds.TOPIC, "payments", NAMESPACE)
        monkeypatch.setattr(ledger_view, "members_of", lambda live, pods: ())
        with pytest.raises(RetryAfter, match="no member of orders-0 answers"):
            await reconciler.reconcile(key)
        held = kube.get("topics", "payments", NAMESPACE)
        assert held is not None
        assert held["metadata"]["finalizers"] == [FINALIZER]

        monkeypatch.setattr(ledger_view, "members_of", lambda live, pods: members_of(running))
        await reconciler.reconcile(key)
        assert leader.topics.get("payments") is None
        assert kube.get("topics", "payments", NAMESPACE) is None
