"""What the operator asks of a real DLedger group: who leads, and that it hands over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.broker.test_dledger_group import Group, group, member, patient

from brokerset_client.errors import RequestRefused
from brokerset_operator.ledger_view import LedgerAdmin, Member, query_groups

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

        async with LedgerAdmin(members) as admin:
            with pytest.raises(RequestRefused, match="nobody leads orders-0"):
                await admin.switch_over("orders-0")
        assert await query_groups(members[:2]) == {}
