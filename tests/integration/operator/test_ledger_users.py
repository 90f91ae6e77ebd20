"""Users of a real DLedger group whose members check requests, made and deleted by the operator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.broker.test_dledger_group import patient
from tests.integration.operator.test_ledger_view import members_of
from tests.integration.operator.test_topics import Controller
from tests.integration.operator.test_users import ADMIN, CONNECTING, INNER, Bench, access_secret, send, user

from brokerset_acl.signatures import Credentials
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator import ledger_view
from brokerset_operator.ledger_view import LedgerAdmin, query_groups
from brokerset_operator.reconcile_queue import RetryAfter
from brokerset_protocol.codes import ResponseCode
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.ledger_brokers import Group, group
from brokerset_rig.operator_parts import NAMESPACE, broker_set

pytestmark = pytest.mark.long

__all__ = ["patient"]

SECONDS_MAX = 60.0

CHECKING = {
    "broker_name": "orders-0",
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps(ADMIN),
    "inner_client_authentication_credentials": json.dumps(INNER),
}


async def answers(running: Group, credentials: Credentials, expected: int) -> None:
    """Wait until whoever leads answers a send so."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            leader = await running.leader()
            if await send(f"127.0.0.1:{leader.port}", credentials, "orders-new") == expected:
                return
            await asyncio.sleep(0.05)


async def test_a_user_of_a_dledger_set_is_let_in_by_each_leader_until_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is metadata of the group, so a new leader knows it; while no member answers its deletion waits."""
    async with (
        group(tmp_path, **CHECKING) as running,
        FakeKube() as kube,
        KubeClient(Access(kube.url), manager="tester") as client,
    ):
        await running.leader()
        monkeypatch.setattr(ledger_view, "members_of", lambda live, pods: members_of(running))
        kube.put(broker_set(replication={"mode": "dledger"}, acl={"secretName": "orders-access"}))
        kube.put(access_secret())
        kube.put(user())
        found = Bench(kube, client, Controller(""))

        await found.reconcile()

        assert found.ready() == ("True", "AsWanted")
        made = found.made()
        await answers(running, made, ResponseCode.SUCCESS)
        await answers(running, Credentials("shop", "guessed"), ResponseCode.NO_PERMISSION)

        assert await query_groups(members_of(running)) == {}, "who signs nothing is told nothing"
        wanted = running.followers()[0].part.broker_id()
        async with LedgerAdmin(members_of(running), CONNECTING) as admin:
            answer = await admin.switch_over("orders-0", wanted)
        assert answer.master_broker_id == wanted
        await answers(running, made, ResponseCode.SUCCESS)

        found.delete()
        monkeypatch.setattr(ledger_view, "members_of", lambda live, pods: ())
        with pytest.raises(RetryAfter, match="orders-0 has no living master"):
            await found.reconcile()
        assert kube.get("users", "shop", NAMESPACE) is not None

        monkeypatch.setattr(ledger_view, "members_of", lambda live, pods: members_of(running))
        await found.reconcile()
        await answers(running, made, ResponseCode.NO_PERMISSION)
        assert kube.get("users", "shop", NAMESPACE) is None
