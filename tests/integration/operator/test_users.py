"""Objects of the kind User, with a broker that checks requests and the rest of the set as the rig has it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict
from tests.integration.operator.test_topics import CONTROLLER, Controller

from brokerset_acl.access_book import WantedUser
from brokerset_acl.signatures import Credentials
from brokerset_acl.users import User, UserType
from brokerset_broker.app import Broker
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.access_users.plan import CreateUser, UpdateUser
from brokerset_operator.apply import Means
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.connecting import Connecting
from brokerset_operator.events import Events
from brokerset_operator.model import names
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.user_requests import UserRequests
from brokerset_operator.users import FINALIZER, USER, UserReconciler
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.send import SendMessageV2
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set, condition, operator, until
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import connect
from brokerset_spec.broker_settings import BrokerSettings

ADMIN = {"username": "admin", "password": "admin-password"}
INNER = {"accessKey": "broker", "secretKey": "broker-password"}
CONNECTING = Connecting(sign=Credentials(*ADMIN.values()).sign)
ONE, TWO, STOLEN = "password-number-one", "password-number-two", "password-of-a-thief"
"""Texts that are in no log line for another reason."""

POLICIES = [{"resources": ["Topic:orders-*"], "actions": ["Pub"]}]


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await work

    asyncio.run(bounded())


def secret(name: str, entries: dict[str, str], **more: Any) -> dict[str, Any]:
    """A Secret as the API has it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()},
        **more,
    }


def access_secret(**more: Any) -> dict[str, Any]:
    """That of the set."""
    entries = {
        "initAuthenticationUser": json.dumps(ADMIN),
        "innerClientAuthenticationCredentials": json.dumps(INNER),
    }
    return secret("orders-access", entries, **({"immutable": True} | more))


def user(name: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "User",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"brokerSetRef": {"name": "orders"}, "policies": POLICIES, **spec},
    }


class Bench:
    """The set `orders` with one broker that checks requests, and the reconciles of its Users."""

    def __init__(
        self, kube: FakeKube, client: KubeClient, controller: Controller, lines: Sequence[EventDict] = ()
    ) -> None:
        self.kube = kube
        self.controller = controller
        self.lines = lines
        """What operator and broker have logged."""
        clock = SystemClock()
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        self.reconciler = UserReconciler(means, ClaimIndex(), 300.0)

    async def reconcile(self, name: str = "shop") -> float | None:
        return await self.reconciler.reconcile(Key(USER, NAMESPACE, name))

    def ready(self, name: str = "shop") -> tuple[str, str]:
        found = condition(self.kube.get("users", name, NAMESPACE), "Ready")
        assert found is not None
        return found["status"], found["reason"]

    def status(self, name: str = "shop") -> dict[str, Any]:
        found = self.kube.get("users", name, NAMESPACE)
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status

    def events(self) -> list[str]:
        return [item["reason"] for key, item in self.kube.objects.items() if key[1] == "events"]

    def show_nowhere(self, *passwords: str) -> None:
        """Fails if one of the passwords is in a log line, or in an object that is no Secret."""
        assert "secret of a user written" in self.log_events() or "user changed" in self.log_events()
        objects = [item for key, item in self.kube.objects.items() if key[1] != "secrets"]
        for password in passwords:
            for text in (password, base64.b64encode(password.encode()).decode().rstrip("=")):
                assert [line for line in self.lines if text in str(line)] == []
                assert [item for item in objects if text in json.dumps(item)] == []

    def log_events(self) -> set[str]:
        return {line["event"] for line in self.lines}

    def entry(self, name: str, key: str) -> str:
        found = self.kube.get("secrets", name, NAMESPACE)
        assert found is not None
        return base64.b64decode(found["data"][key]).decode()

    async def send(self, credentials: Credentials | None, topic: str = "orders-new") -> int:
        """One message; the code of the answer."""
        return await send(self.controller.broker, credentials, topic)

    def made(self) -> Credentials:
        """What the Secret that the operator made is good for."""
        name = "shop-credentials"
        return Credentials(self.entry(name, "accessKey"), self.entry(name, "secretKey"))

    def delete(self, name: str = "shop") -> None:
        def begin(live: Any) -> None:
            live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z")

        self.kube.change("users", name, NAMESPACE, begin)


async def send(address: str, credentials: Credentials | None, topic: str) -> int:
    """One message to a topic, signed or not; the code of the answer."""
    connection = await connect(address, sign=None if credentials is None else credentials.sign)
    try:
        header = SendMessageV2(
            producer_group="g",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        answer = await connection.call(Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), b"x"), 10)
        return answer.code
    finally:
        connection.close()
        await connection.wait_closed()


@asynccontextmanager
async def bench(folder: Path, **acl: Any) -> AsyncIterator[Bench]:
    settings = BrokerSettings(
        store_path_root_dir=folder,
        bind_address="127.0.0.1",
        listen_port=0,
        http_port=0,
        broker_name="orders-0",
        broker_ip1="127.0.0.1",
        mapped_file_size_commit_log=64 * 1024 * 1024,
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=json.dumps(ADMIN),
        inner_client_authentication_credentials=json.dumps(INNER),
    )
    captured = ExitStack()
    lines = captured.enter_context(capture_logs())
    broker = Broker(settings)
    await broker.start()
    running = asyncio.create_task(broker.run())
    controller = Controller(f"127.0.0.1:{broker.port}")
    await controller.server.listen(CONTROLLER, names.CONTROLLER_PORT)
    try:
        async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
            live = broker_set(acl={"secretName": "orders-access"} | acl)
            controller.owner = kube.put(live)["metadata"]["uid"]
            kube.put(access_secret())
            kube.put(a_pod("orders-controller-0", "controller", ip=CONTROLLER))
            yield Bench(kube, client, controller, lines)
    finally:
        captured.close()
        await controller.server.close(0.1)
        await broker.close()
        await running


def test_a_user_with_a_password_that_is_made_is_let_in_and_nobody_else_is(tmp_path: Path) -> None:
    """The Secret has what clients and tools need; a send without a signature, or beyond the policies, is
    refused."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(user())

            again = await found.reconcile()

            assert again is not None
            assert again > 200
            assert found.ready() == ("True", "AsWanted")
            made = found.made()
            assert made.access_key == "shop"
            assert await found.send(made) == ResponseCode.SUCCESS
            assert await found.send(made, "invoices") == ResponseCode.NO_PERMISSION
            assert await found.send(None) == ResponseCode.NO_PERMISSION
            live = found.kube.get("users", "shop", NAMESPACE)
            assert live is not None
            assert live["metadata"]["finalizers"] == [FINALIZER]
            assert live["status"]["groups"] == ["orders-0"]
            assert live["status"]["secretName"] == "shop-credentials"
            assert made.secret_key not in json.dumps(live)
            owner = found.kube.get("secrets", "shop-credentials", NAMESPACE)
            assert owner is not None
            assert owner["metadata"]["ownerReferences"][0]["uid"] == live["metadata"]["uid"]
            tools = found.entry("shop-credentials", "tools.yml")
            assert tools == f'accessKey: "shop"\nsecretKey: "{made.secret_key}"\n'
            assert sorted(found.events()) == ["PasswordMade", "UserCreated"]
            before = len(found.kube.calls)
            await found.reconcile()
            assert {call.verb for call in found.kube.calls[before:]} == {"get", "list"}
            assert found.made() == made
            found.show_nowhere(made.secret_key, ADMIN["password"], INNER["secretKey"])

    run(work())


def test_changed_policies_and_drift_are_put_right(tmp_path: Path) -> None:
    """What the manifest no longer allows is refused, and what somebody changed with mqadmin is put back."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(user())
            await found.reconcile()
            found.kube.change(
                "users",
                "shop",
                NAMESPACE,
                lambda live: live["spec"].update(
                    policies=[{"resources": ["Topic:invoices"], "actions": ["Pub", "Sub"]}]
                ),
            )

            await found.reconcile()

            assert await found.send(found.made()) == ResponseCode.NO_PERMISSION
            assert await found.send(found.made(), "invoices") == ResponseCode.SUCCESS
            async with UserRequests(CONNECTING) as requests:
                address = found.controller.broker
                stolen = WantedUser("shop", "stolen", UserType.SUPER)
                await requests.carry_out(address, UpdateUser(stolen))
            assert await found.send(Credentials("shop", "stolen"), "anything") == ResponseCode.SUCCESS

            await found.reconcile()

            assert await found.send(Credentials("shop", "stolen"), "anything") == ResponseCode.NO_PERMISSION
            assert await found.send(found.made(), "anything") == ResponseCode.NO_PERMISSION
            assert await found.send(found.made(), "invoices") == ResponseCode.SUCCESS
            assert "UserCorrected" in found.events()

    run(work())


def test_a_given_password_counts_and_a_changed_one_replaces_it(tmp_path: Path) -> None:
    """No Secret is made; one that is not there is waited for, and named."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(user(passwordSecret={"name": "given"}))
            assert await found.reconcile() == 5.0
            assert found.ready() == ("False", "SecretMissing")
            found.kube.put(secret("given", {"password": f"{ONE}\n"}))
            await found.reconcile()
            assert found.ready() == ("False", "SecretMissing")

            for password, other in ((ONE, TWO), (TWO, ONE)):
                found.kube.put(secret("given", {"password": password}))
                await found.reconcile()

                assert found.ready() == ("True", "AsWanted")
                assert await found.send(Credentials("shop", password)) == ResponseCode.SUCCESS
                assert await found.send(Credentials("shop", other)) == ResponseCode.NO_PERMISSION
            assert found.kube.get("secrets", "shop-credentials", NAMESPACE) is None
            found.show_nowhere(ONE, TWO)

    run(work())


def test_the_password_of_before_counts_for_the_time_that_the_manifest_says(tmp_path: Path) -> None:
    """When the Secret has changed; what somebody else has set is not kept. Without the time it is over."""
    one, two, stolen = (Credentials("shop", password) for password in (ONE, TWO, STOLEN))

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(user(passwordSecret={"name": "given"}, passwordOverlapSeconds=3600))
            found.kube.put(secret("given", {"password": ONE}))
            await found.reconcile()
            assert "formerPasswordUntil" not in found.status()

            found.kube.put(secret("given", {"password": TWO}))
            await found.reconcile()
            for _ in range(2):
                assert [await found.send(each) for each in (one, two)] == [ResponseCode.SUCCESS] * 2
                assert found.status()["formerPasswordUntil"] > "2026"
                found.kube.change("users", "shop", NAMESPACE, lambda live: live["spec"].update(policies=[]))
                found.kube.change(
                    "users", "shop", NAMESPACE, lambda live: live["spec"].update(policies=POLICIES)
                )
                await found.reconcile()

            async with UserRequests(CONNECTING) as requests:
                wanted = WantedUser("shop", STOLEN, former_seconds=60)
                await requests.carry_out(found.controller.broker, UpdateUser(wanted))
            await found.reconcile()
            refused = [ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS]
            assert [await found.send(each) for each in (stolen, one, two)] == refused

            found.kube.put(secret("given", {"password": ONE}))
            await found.reconcile()
            assert await found.send(two) == ResponseCode.SUCCESS
            found.kube.change(
                "users", "shop", NAMESPACE, lambda live: live["spec"].update(passwordOverlapSeconds=0)
            )
            await found.reconcile()
            assert await found.send(two) == ResponseCode.NO_PERMISSION
            assert "formerPasswordUntil" not in found.status()
            assert found.ready() == ("True", "AsWanted")
            found.show_nowhere(ONE, TWO, STOLEN)

    run(work())


def test_a_deleted_user_is_let_in_no_more(tmp_path: Path) -> None:
    """The object waits until all groups have forgotten it; when the set is gone it waits for nobody."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(user())
            found.kube.put(user("other"))
            await found.reconcile()
            await found.reconcile("other")
            made = found.made()
            found.controller.master = None
            found.delete()
            with pytest.raises(RetryAfter):
                await found.reconcile()
            assert found.ready() == ("False", "DeletionWaits")
            assert await found.send(made) == ResponseCode.SUCCESS

            found.controller.master = 1
            await found.reconcile()

            assert found.kube.get("users", "shop", NAMESPACE) is None
            assert await found.send(made) == ResponseCode.NO_PERMISSION
            assert await found.reconcile() == GONE

            found.kube.remove("brokersets", "orders", NAMESPACE)
            found.delete("other")
            await found.reconcile("other")
            assert found.kube.get("users", "other", NAMESPACE) is None

    run(work())


def test_a_deleted_user_goes_from_each_group_that_has_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a master, which comes first here, keeps the object and nobody's rights elsewhere."""
    groups_of = UserReconciler._groups_of

    async def with_another(self: UserReconciler, *given: Any) -> dict[str, GroupState | None]:
        found = await groups_of(self, *given)
        state = found["orders-0"]
        assert state is not None
        return {"orders-": replace(state, broker_name="orders-", master_id=None), **found}

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(user())
            await found.reconcile()
            made = found.made()
            monkeypatch.setattr(UserReconciler, "_groups_of", with_another)
            found.delete()

            with pytest.raises(RetryAfter, match="orders- has no living master"):
                await found.reconcile()

            assert await found.send(made) == ResponseCode.NO_PERMISSION
            assert found.ready() == ("False", "DeletionWaits")

    run(work())


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    """Each with a reason, and nothing is sent to brokers."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            cases: dict[str, tuple[dict[str, Any], str]] = {
                "admin": (user("admin"), "NameReserved"),
                "inner": (user("inner", username="broker"), "NameReserved"),
                "nowhere": (user("nowhere", brokerSetRef={"name": "none"}), "BrokerSetMissing"),
                "odd": (
                    user("odd", policies=[{**POLICIES[0], "sourceIps": ["somewhere"]}]),
                    "InvalidSpec",
                ),
                "taken": (user("taken"), "SecretTaken"),
            }
            found.kube.put(secret("taken-credentials", {"secretKey": "somebody's"}))
            for name, (live, reason) in cases.items():
                found.kube.put(live)
                await found.reconcile(name)
                assert found.ready(name) == ("False", reason)

            found.kube.put(user("first", username="same"))
            await found.reconcile("first")
            found.kube.put(user("second", username="same"))
            await found.reconcile("second")
            reasons = {found.ready("first")[1], found.ready("second")[1]}
            assert reasons == {"AsWanted", "NameTaken"}

            found.kube.put(access_secret(data={}))
            await found.reconcile("first")
            assert found.ready("first") == ("False", "NoCredentials")
            found.kube.change(
                "brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(acl={"secretName": None})
            )
            await found.reconcile("first")
            assert found.ready("first") == ("False", "AccessOff")

    run(work())


def test_a_user_that_was_there_before_is_adopted(tmp_path: Path) -> None:
    """One that mqadmin made becomes what the manifest says."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            async with UserRequests(CONNECTING) as requests:
                await requests.carry_out(
                    found.controller.broker, CreateUser(User("shop", "old", UserType.SUPER))
                )
            found.kube.put(user())

            await found.reconcile()

            assert found.ready() == ("True", "AsWanted")
            assert await found.send(Credentials("shop", "old")) == ResponseCode.NO_PERMISSION
            assert await found.send(found.made(), "invoices") == ResponseCode.NO_PERMISSION
            assert await found.send(found.made()) == ResponseCode.SUCCESS

    run(work())


def test_a_user_that_appears_while_it_is_made_becomes_what_is_wanted(tmp_path: Path) -> None:
    """Controllers have users of all groups; what was made at one is heard of by the next a moment later."""

    async def work() -> None:
        async with bench(tmp_path) as found, UserRequests(CONNECTING) as requests:
            for password in ("first", "second"):
                made = CreateUser(User("boss", password, UserType.SUPER))
                await requests.carry_out(found.controller.broker, made)

            assert await found.send(Credentials("boss", "second")) == ResponseCode.SUCCESS
            assert await found.send(Credentials("boss", "first")) == ResponseCode.NO_PERMISSION

    run(work())


def test_a_changed_secret_is_acted_on_at_once(tmp_path: Path) -> None:
    """By the watch of a whole operator: no regular reconcile comes within the test."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(secret("given", {"password": "one"}))
            found.kube.put(user(passwordSecret={"name": "given"}))
            async with operator(found.kube, watch_secrets=True, resync_seconds=86_400):
                await until(lambda: condition(found.kube.get("users", "shop", NAMESPACE), "Ready"))
                await until(lambda: found.ready() == ("True", "AsWanted"))
                assert await found.send(Credentials("shop", "one")) == ResponseCode.SUCCESS

                found.kube.put(secret("given", {"password": "two"}))

                # brokers tell nobody
                while await found.send(Credentials("shop", "two")) != ResponseCode.SUCCESS:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert await found.send(Credentials("shop", "one")) == ResponseCode.NO_PERMISSION

    run(work())
