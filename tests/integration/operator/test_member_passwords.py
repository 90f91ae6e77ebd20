"""The operator changes the passwords of a set's Secret at real controllers and brokers that check."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator.test_users import secret

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import Means, carry_out
from brokerset_operator.connecting import Connecting
from brokerset_operator.controllers_view import ControllersView
from brokerset_operator.events import Events
from brokerset_operator.member_passwords import change_passwords, end_former_passwords, observe_passwords
from brokerset_operator.model.access_stages import ANNOTATION, AUTHORIZES, CHECKS, SECRET_ANNOTATION
from brokerset_operator.model.actions import ChangePasswords, EndFormerPasswords, Plan
from brokerset_operator.model.observed import Controllers, MemberPasswords, Operator
from brokerset_operator.model.password_rotation import RotationStep, next_rotation_step, template_secret
from brokerset_operator.observe import ClusterFacts, Seen, observe
from brokerset_operator.set_signing import SetSigning, signing_by, signing_of
from brokerset_operator.user_requests import UserRefused
from brokerset_protocol.commands import Command
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set
from brokerset_rig.user_clusters import HOST, SECONDS_MAX, UserCluster, user_cluster
from brokerset_runtime.clock import SystemClock

HOUR = 3_600


def entries(age: str, **names: str) -> dict[str, str]:
    """Of a Secret, with passwords of an age; those of `USERS` have none."""
    root, inner = names.get("root", "root"), names.get("inner", "inner")
    return {
        "initAuthenticationUser": json.dumps({"username": root, "password": f"{age}root-key"}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": inner, "secretKey": f"{age}inner-key"}
        ),
    }


def signing(age: str) -> SetSigning:
    """By a good Secret."""
    return signing_by(secret("orders-access", entries(age), immutable=True), "here")


async def view(cluster: UserCluster, as_whom: SetSigning) -> ControllersView:
    """The controllers, the leading one first."""
    leader = await cluster.controllers.leader()
    return ControllersView(
        controllers=Controllers(leader=leader),
        addresses=(cluster.controllers.address(leader),),
        connecting=Connecting(sign=as_whom.sign),
    )


def addresses(cluster: UserCluster) -> dict[str, str]:
    """Of the brokers."""
    return {str(number): f"{HOST}:{each.port}" for number, each in enumerate(cluster.brokers())}


async def test_passwords_change_with_the_former_ones_kept_and_then_settings_count_again(
    tmp_path: Path,
) -> None:
    """Repeated requests do no harm; the end is refused while controllers' settings are the former ones."""
    old, new = signing(""), signing("new-")
    async with user_cluster(tmp_path, {"a": 2}) as cluster:
        seen = await observe_passwords(new, await view(cluster, old), addresses(cluster))
        assert seen == MemberPasswords()

        for _ in range(2):
            await change_passwords(new, await view(cluster, old), HOUR)

        everywhere = MemberPasswords(changed=True, everywhere=True, former=True)
        for as_whom in (old, new):
            await until_seen(everywhere, new, cluster, as_whom)
        with pytest.raises(UserRefused, match="named by a setting"):
            await end_former_passwords(new, await view(cluster, old))
        settings = {
            "init_authentication_user": entries("new-")["initAuthenticationUser"],
            "inner_client_authentication_credentials": entries("new-")[
                "innerClientAuthenticationCredentials"
            ],
        }
        await cluster.restart_controllers(**settings)

        for _ in range(2):
            await end_former_passwords(new, await view(cluster, new))

        ended = await observe_passwords(new, await view(cluster, new), {})
        assert ended == MemberPasswords(changed=True, everywhere=True)
        refused = await observe_passwords(new, await view(cluster, old), {})
        assert refused is not None
        assert "key" not in refused.problem
        assert "refused AUTH_GET_USER" in refused.problem


async def until_seen(
    wanted: MemberPasswords, new: SetSigning, cluster: UserCluster, as_whom: SetSigning
) -> None:
    """Ask until it is so: brokers hear of a change with their next heartbeat."""
    async with asyncio.timeout(SECONDS_MAX):
        while (  # noqa: ASYNC110  # no event tells
            await observe_passwords(new, await view(cluster, as_whom), addresses(cluster)) != wanted
        ):
            await asyncio.sleep(0.01)


async def test_the_operator_signs_with_the_secret_that_pods_have() -> None:
    """Until none has it; if it is gone, with the manifest's. Another Secret must have the same users."""
    pods = [{"metadata": {"annotations": {ANNOTATION: CHECKS, SECRET_ANNOTATION: "first"}}}]
    live = broker_set(acl={"secretName": "second"})
    async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
        kube.put(secret("second", entries("new-"), immutable=True))
        assert await signed(client, live, pods) == await signed(client, live, [])
        kube.put(secret("first", entries(""), immutable=True))
        assert await signed(client, live, pods) != await signed(client, live, [])
        found = await signing_of(client, live, pods)
        assert found.passwords == {"inner": "new-inner-key", "root": "new-root-key"}
        assert found.problem is None
        assert "key" not in repr(found)

        kube.put(secret("first", entries("", root="other"), immutable=True))
        found = await signing_of(client, live, pods)
        assert "has the users inner, root, and pods have inner, other" in (found.problem or "")


async def test_nothing_is_asked_for_while_the_other_secret_is_missing_or_no_controller_leads() -> None:
    """The set is observed all the same, and templates keep the Secret that pods have."""
    kinds = {"orders-controller-0": ("controller", AUTHORIZES), "orders-0-0": ("broker", CHECKS)}
    clock = SystemClock()
    async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
        kube.put(broker_set(acl={"secretName": "second"}))
        kube.put(secret("first", entries(""), immutable=True))
        for name, (component, does) in kinds.items():
            kube.put(a_pod(name, component, annotations={ANNOTATION: does, SECRET_ANNOTATION: "first"}))

        async def seen() -> Seen:
            found = await observe(
                client,
                ClusterFacts(client, clock),
                clock,
                namespace=NAMESPACE,
                name="orders",
                installed=Operator(image="brokerset:1"),
            )
            assert found is not None
            assert template_secret(found.observed) == "first"
            assert next_rotation_step(found.observed) is RotationStep.AWAIT
            return found

        missing = (await seen()).observed.passwords
        assert missing is not None
        assert "Secret second (spec.acl.secretName) is not there" in missing.problem

        kube.put(secret("second", entries("new-"), immutable=True))
        assert (await seen()).observed.passwords is None
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        for action in (ChangePasswords("second", HOUR), EndFormerPasswords("second")):
            outcome = await carry_out(Plan((action,), {}, 5.0), await seen(), means)
            assert outcome.failure is not None
            assert "no controller leads" in outcome.failure.message


async def signed(client: KubeClient, live: dict[str, Any], pods: list[dict[str, Any]]) -> dict[str, str]:
    """What a signature is."""
    sign, command = (await signing_of(client, live, pods)).sign, Command(1)
    assert sign is not None
    sign(command)
    return dict(command.ext)
