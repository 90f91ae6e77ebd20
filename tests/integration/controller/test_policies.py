"""Policies at controllers: clients of ordered subjects, and administrators who are no Super users."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs

from brokerset_acl.signatures import FORWARDER, WRONG_SIGNATURE, Credentials
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message
from brokerset_client.ordered import HandlingContext, OrderedClient, OrderedMessage
from brokerset_client.ordered.consuming.handling import Handler
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.local_servers import Client
from brokerset_rig.stack import free_port
from brokerset_rig.user_clusters import (
    HOST,
    ROOT,
    SECONDS_MAX,
    UserCluster,
    allow,
    client_at,
    create_user,
    user_cluster,
)
from brokerset_rig.waiting import until

APP = Credentials("app", "key")
DENIED, UNKNOWN = ResponseCode.NO_PERMISSION, ResponseCode.BROKERSET_SUBJECT_UNKNOWN
START, HEARTBEAT, ROUTE = (
    RequestCode.BROKERSET_START_PRODUCER,
    RequestCode.BROKERSET_CONSUMER_HEARTBEAT,
    RequestCode.BROKERSET_SUBJECT_ROUTE,
)


async def produce(
    client: Client, subject: str = "s", more: Mapping[str, Any] = MappingProxyType({})
) -> Command:
    """Start a producer; who is let through hears that there is no such subject."""
    return await client.call(START, subject=subject, producerId="p", **more)


async def consume(client: Client, subject: str = "s", group: str = "g") -> Command:
    """Be a consumer, in the same way."""
    return await client.call(
        HEARTBEAT, subject=subject, consumerGroup=group, session="5e551", clientId="c",
        consumeStrategy="Exclusive",
    )  # fmt: skip


async def allow_from(client: Client, resource: str, address: str, *actions: str) -> None:
    entry = {"resource": resource, "actions": actions, "sourceIps": [address], "decision": "Allow"}
    body = json.dumps({"subject": "User:app", "policies": [{"entries": [entry]}]}).encode()
    assert (await client.call(RequestCode.AUTH_CREATE_ACL, body, subject="User:app")).code == 0


async def test_clients_of_subjects_need_rights_on_topic_and_group(tmp_path: Path) -> None:
    """Whoever has not signed, has altered what was signed, or lacks one of the rights, is refused with the
    reason and what to do; routes of controllers stay open."""
    async with user_cluster(tmp_path, {}, authorization_enabled=True) as cluster:
        address = cluster.controllers.address(0)
        async with client_at(address, ROOT) as root, client_at(address, APP) as app:
            assert (await create_user(root, "app")).code == 0
            for asked in (produce, consume):
                refused = await asked(app)
                assert refused.code == DENIED
                assert "no permission to access" in (refused.remark or "")
                assert "brokerset acl allow" in (refused.remark or "")
            await allow(root, "app", "Topic:s", "Pub")
            assert (await produce(app)).code == UNKNOWN
            assert (await produce(app, "other")).code == DENIED
            assert (await consume(app)).code == DENIED
            await allow(root, "app", "Topic:s", "Pub", "Sub")
            assert "Group:g" in ((await consume(app)).remark or "")
            await allow(root, "app", "Group:g", "Sub")
            assert (await consume(app)).code == UNKNOWN
            assert (await consume(app, group="other")).code == DENIED

        altered = Command(START, {"subject": "s", "producerId": "p"})
        APP.sign(altered)
        altered.ext["subject"] = "t"
        async with client_at(address, None) as anybody:
            assert (await anybody.connection.call(altered, SECONDS_MAX)).remark.startswith(WRONG_SIGNATURE)  # type: ignore[union-attr]  # the assertion fails without one
            assert (await produce(anybody)).remark.startswith("username cannot be null.")  # type: ignore[union-attr]  # as above
            for code in (RequestCode.CONTROLLER_GET_METADATA_INFO, RequestCode.BROKERSET_CONTROLLER_STATUS):
                assert (await anybody.call(code)).code == 0


async def test_the_address_of_the_connection_counts_and_no_other(tmp_path: Path) -> None:
    """A policy for another address gives nothing, and no field of a request makes it one's own."""
    async with user_cluster(tmp_path, {}, authorization_enabled=True) as cluster:
        address = cluster.controllers.address(0)
        async with client_at(address, ROOT) as root, client_at(address, APP) as app:
            await create_user(root, "app")
            await allow_from(root, "Topic:s", "10.1.2.3", "Pub")
            claims = {"bornHost": "10.1.2.3", "brokersetForwarded": "true", FORWARDER: "inner"}
            for more in ({}, claims):
                refused = await produce(app, more=more)
                assert refused.code == DENIED
                assert HOST in (refused.remark or "")
            await allow_from(root, "Topic:s", HOST, "Pub")
            assert (await produce(app)).code == UNKNOWN


async def test_only_who_may_create_the_topic_creates_the_subject(tmp_path: Path) -> None:
    """A producer's wish to have it created counts with that right, and is left out without."""
    async with user_cluster(tmp_path, {"a": 1}, authorization_enabled=True) as cluster:
        address = cluster.controllers.address(0)
        async with client_at(address, ROOT) as root, client_at(address, APP) as app:
            await create_user(root, "app")
            await allow(root, "app", "Topic:s", "Pub")
            assert (await app.call(ROUTE, subject="s", create="true")).code == UNKNOWN
            await allow(root, "app", "Topic:s", "Pub", "Create")
            assert (await app.call(ROUTE, subject="s", create="true")).code == 0


async def test_users_administer_what_policies_allow(tmp_path: Path) -> None:
    """Rights on the cluster whose groups the controllers have; never what only members may ask."""
    async with user_cluster(tmp_path, {"a": 1}, authorization_enabled=True) as cluster:
        address = cluster.controllers.address(0)
        async with client_at(address, ROOT) as root, client_at(address, APP) as app:
            await create_user(root, "app")
            await allow(root, "app", "Cluster:another", "Get", "Update")
            assert (await app.call(RequestCode.GET_CONTROLLER_CONFIG)).code == DENIED
            await allow(root, "app", "Cluster:DefaultCluster", "Get", "Update")
            assert (await app.call(RequestCode.GET_CONTROLLER_CONFIG)).code == 0
            assert (await create_user(app, "more")).code == 0
            assert (await create_user(app, "boss", userType="Super")).code != 0
            assert b"root-key" not in (await app.call(RequestCode.AUTH_LIST_USER)).body
            for code in (RequestCode.BROKERSET_GET_ACCESS, RequestCode.CONTROLLER_REGISTER_BROKER):
                refused = await app.call(code, brokerName="a")
                assert refused.code == DENIED
                assert "only a super user may" in (refused.remark or "")


async def test_a_failover_of_controllers_keeps_the_decision(tmp_path: Path) -> None:
    """What was decided before counts at the next leader; who does not lead says so to clients that sign."""
    async with user_cluster(tmp_path, {}, controllers=3, authorization_enabled=True) as cluster:
        controllers = cluster.controllers
        first = await controllers.leader()
        async with client_at(controllers.address(first), ROOT) as root:
            await create_user(root, "app")
            await create_user(root, "other")
            await allow(root, "app", "Topic:s", "Pub")
        follower = next(iter(set(controllers.running) - {first}))
        for user, code in ((APP, 2007), (Credentials("other", "key"), 2007), (None, DENIED)):
            async with client_at(controllers.address(follower), user) as client:
                assert (await produce(client)).code == code

        await controllers.stop(first)
        second = await controllers.leader()

        for user, code in ((APP, UNKNOWN), (Credentials("other", "key"), DENIED)):
            async with client_at(controllers.address(second), user) as client:
                assert (await produce(client)).code == code


@asynccontextmanager
async def subject_of(tmp_path: Path) -> AsyncIterator[tuple[UserCluster, str]]:
    """A broker group, a subject of two partitions, and two users who may use it; with the name server."""
    port = free_port()
    name_server = f"{HOST}:{port}"
    async with user_cluster(
        tmp_path, {"a": 1}, authorization_enabled=True, of_brokers={"namesrv_addr": name_server},
        enable_name_server=True, namesrv_listen_port=port, consumer_permission=2_000,
        consumer_stop_margin=200, consumer_wait_margin=500, consumer_heartbeat_interval=200,
    ) as cluster:  # fmt: skip
        address = cluster.controllers.address(0)
        async with SubjectAdmin(address, sign=ROOT.sign) as admin, client_at(address, ROOT) as root:
            await admin.create_subject("s", OrderStrategy.STRICT, partitions=2)
            await admin.wait_until_open("s", timeout=SECONDS_MAX)
            for name in ("app", "next"):
                await create_user(root, name)
                await allow(root, name, "Topic:s", "Pub", "Sub")
                await allow(root, name, "Group:g", "Sub")
        await cluster.until_known("next")
        await until(
            lambda: all("User:next" in each.access.book.acls for each in cluster.brokers()), SECONDS_MAX
        )
        yield cluster, name_server


@pytest.mark.long
async def test_who_loses_the_right_while_it_consumes_gives_way_to_others(tmp_path: Path) -> None:
    """It says once what is missing and what to do; its partitions go to another consumer of the group."""
    seen: dict[str, set[str]] = {"app": set(), "next": set()}

    def handler(name: str) -> Handler:
        async def handle(message: OrderedMessage, context: HandlingContext) -> None:
            seen[name].add(message.body.decode())

        return handle

    async with subject_of(tmp_path) as (cluster, name_server):
        with capture_logs() as logs:
            async with (
                ClientInstance(name_server, credentials=APP) as first,
                ClientInstance(name_server, credentials=Credentials("next", "key")) as second,
                OrderedClient(instance=first) as losing,
                OrderedClient(instance=second) as staying,
                staying.producer() as producer,
            ):
                consumer = losing.consumer(group="g")
                consumer.subscribe("s", handler("app"))
                consumer.start()
                await producer.send(Message(topic="s", body=b"one"), key="k")
                await until(lambda: seen["app"] == {"one"}, SECONDS_MAX)

                async with client_at(cluster.controllers.address(0), ROOT) as root:
                    await allow(root, "app", "Group:g", "Get")
                async with staying.consumer(group="g") as other:
                    other.subscribe("s", handler("next"))
                    async with asyncio.timeout(SECONDS_MAX):
                        while not seen["next"]:
                            await producer.send(Message(topic="s", body=b"more"), key="k")
                            await asyncio.sleep(0.05)
                await consumer.close(1.0)

    said = [line for line in logs if line["event"] == "controllers refuse the consumer"]
    assert len(said) == 1
    assert "Group:g" in said[0]["reason"]
    assert said[0]["log_level"] == "error"


@pytest.mark.long
async def test_a_producer_without_rights_says_once_what_to_do(tmp_path: Path) -> None:
    """Its message fails in its time, and the log says why."""
    async with subject_of(tmp_path) as (cluster, name_server):
        async with client_at(cluster.controllers.address(0), ROOT) as root:
            await allow(root, "app", "Topic:s", "Get")
        with capture_logs() as logs:
            async with (
                ClientInstance(name_server, credentials=APP) as instance,
                OrderedClient(instance=instance) as client,
                client.producer() as producer,
            ):
                sending = asyncio.create_task(producer.send(Message(topic="s", body=b"x"), key="k"))
                await until(
                    lambda: any(line["event"] == "controllers refuse the producer" for line in logs),
                    SECONDS_MAX,
                )
                sending.cancel()
    said = [line for line in logs if line["event"] == "controllers refuse the producer"]
    assert len(said) == 1
    assert "Topic:s" in said[0]["reason"]
