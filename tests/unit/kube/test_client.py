from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from brokerset_kube import kinds
from brokerset_kube.client import CONNECTIONS_MAX, PAGE_SIZE, KubeClient
from brokerset_kube.credentials import Access
from brokerset_kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    Request,
    Unavailable,
)
from brokerset_rig.fake_kube import FakeKube, Fault


def config_map(name: str, namespace: str = "shop", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name[:1]}},
        "data": data,
    }


@asynccontextmanager
async def cluster(
    *, timeout: float = 5.0, on_call: Callable[[Request, str, float], None] | None = None
) -> AsyncIterator[tuple[FakeKube, KubeClient]]:
    async with (
        FakeKube(absent=frozenset({"PodMonitor"})) as kube,
        KubeClient(Access(kube.url), manager="tester", timeout=timeout, on_call=on_call) as client,
    ):
        yield kube, client


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_an_object_is_made_read_changed_and_deleted() -> None:
    """The requests of an object's life do what they say."""

    async def work() -> None:
        async with cluster() as (_, client):
            made = await client.create(config_map("a", x="1"))
            read = await client.get(kinds.CONFIG_MAP, "a", "shop")
            patched = await client.merge_patch(kinds.CONFIG_MAP, "a", "shop", {"data": {"x": None, "y": "2"}})
            replaced = await client.replace({**patched, "data": {"z": "3"}})
            deleted = await client.delete(kinds.CONFIG_MAP, "a", "shop")

            assert made == read
            assert patched["data"] == {"y": "2"}
            assert replaced["data"] == {"z": "3"}
            assert deleted is True
            assert await client.delete(kinds.CONFIG_MAP, "a", "shop") is False
            with pytest.raises(NotFound):
                await client.get(kinds.CONFIG_MAP, "a", "shop")
            assert client.calls == {"create": 1, "get": 2, "patch": 1, "update": 1, "delete": 2}

    run(work())


def test_a_second_object_of_a_name_is_refused_or_found() -> None:
    """Create says that the name is taken."""

    async def work() -> None:
        async with cluster() as (kube, client):
            made = await client.create(config_map("a", x="1"))

            with pytest.raises(AlreadyExists):
                await client.create(config_map("a"))
            assert kube.get("configmaps", "a", "shop") == made

    run(work())


def test_lists_are_read_page_by_page_and_have_kind_and_version() -> None:
    """All pages together are the list, and every item says what it is."""

    async def work() -> None:
        async with cluster() as (kube, client):
            for number in range(PAGE_SIZE + 20):
                kube.put(config_map(f"a{number:04d}"))
            kube.put(config_map("b"))
            kube.put(config_map("a", "other"))

            listing = await client.list(kinds.CONFIG_MAP, "shop", labels="app=a")

            assert len(listing.items) == PAGE_SIZE + 20
            assert listing.items[0]["kind"] == "ConfigMap"
            assert listing.resource_version == str(kube.version)
            assert kube.count("list") == 2

    run(work())


def test_a_list_whose_pages_have_expired_is_read_anew() -> None:
    """410 in the middle of a list starts it again, once."""

    async def work() -> None:
        async with cluster() as (kube, client):
            for number in range(PAGE_SIZE + 20):
                kube.put(config_map(f"a{number:04d}"))
            kube.faults.append(Fault("list", "configmaps", code=200, times=1))  # lets the first page through
            kube.faults.append(Fault("list", "configmaps", code=410, reason="Expired"))

            listing = await client.list(kinds.CONFIG_MAP, "shop")

            assert len(listing.items) == PAGE_SIZE + 20
            assert kube.count("list") == 4

    run(work())


def test_only_metadata_is_sent_when_only_that_is_wanted() -> None:
    """A list of metadata has no data."""

    async def work() -> None:
        async with cluster() as (kube, client):
            kube.put(config_map("a", x="1"))

            listing = await client.list(kinds.CONFIG_MAP, "shop", metadata_only=True)

            assert "data" not in listing.items[0]
            assert listing.items[0]["metadata"]["name"] == "a"

    run(work())


def test_server_side_apply_makes_changes_and_removes() -> None:
    """What the same manager applied before and does not any more goes; what others added stays."""

    async def work() -> None:
        async with cluster() as (kube, client):
            await client.apply(config_map("a", x="1", y="2"))
            kube.change("configmaps", "a", "shop", lambda live: live["data"].update(other="3"))

            applied = await client.apply(config_map("a", x="5"))

            assert applied["data"] == {"x": "5", "other": "3"}
            assert client.calls == {"apply": 2}

    run(work())


def test_a_patch_that_names_an_older_version_is_refused() -> None:
    """A merge patch with a version changes nothing that has changed since."""

    async def work() -> None:
        async with cluster() as (kube, client):
            made = kube.put(config_map("a", x="1"))
            version = made["metadata"]["resourceVersion"]
            kube.change("configmaps", "a", "shop", lambda live: live["data"].update(x="2"))

            with pytest.raises(Conflict):
                await client.merge_patch(
                    kinds.CONFIG_MAP, "a", "shop", {"data": {"x": "3"}}, resource_version=version
                )
            assert (await client.get(kinds.CONFIG_MAP, "a", "shop"))["data"] == {"x": "2"}

    run(work())


def test_only_the_very_object_is_deleted() -> None:
    """A delete that names a uid leaves a later object of the same name alone."""

    async def work() -> None:
        async with cluster() as (kube, client):
            kube.put(config_map("a"))

            with pytest.raises(Conflict):
                await client.delete(kinds.CONFIG_MAP, "a", "shop", uid="another")
            assert kube.get("configmaps", "a", "shop") is not None

    run(work())


def test_what_is_owned_goes_with_its_owner_unless_it_is_orphaned() -> None:
    """The propagation policy is passed on."""

    async def work() -> None:
        async with cluster() as (kube, client):
            for name in ("kept", "gone"):
                owner = kube.put(config_map(name))
                child = config_map(f"{name}-child")
                child["metadata"]["ownerReferences"] = [{"uid": owner["metadata"]["uid"]}]
                kube.put(child)

            await client.delete(kinds.CONFIG_MAP, "kept", "shop", orphan=True)
            await client.delete(kinds.CONFIG_MAP, "gone", "shop")

            assert kube.get("configmaps", "kept-child", "shop") is not None
            assert kube.get("configmaps", "gone-child", "shop") is None

    run(work())


def test_a_lease_does_not_wait_for_slow_lists() -> None:
    """With as many requests under way as there may be, the Lease is read all the same."""

    async def work() -> None:
        async with cluster() as (kube, client), asyncio.TaskGroup() as group:
            kube.put(
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": "operator", "namespace": "shop"},
                }
            )
            kube.faults.append(Fault("list", "pods", code=200, delay=60, times=CONNECTIONS_MAX))
            lists = [group.create_task(client.list(kinds.POD, "shop")) for _ in range(CONNECTIONS_MAX)]
            async with asyncio.timeout(5):
                while kube.count("list", "pods") < CONNECTIONS_MAX:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.01)

            async with asyncio.timeout(5):
                await client.get(kinds.LEASE, "operator", "shop")
            for task in lists:
                task.cancel()

    run(work())


def test_a_missing_right_is_an_error_of_its_own() -> None:
    """403 is Forbidden and names the right."""

    async def work() -> None:
        async with cluster() as (kube, client):
            kube.forbidden.add(("list", "nodes"))

            with pytest.raises(Forbidden, match="verb list, resource nodes"):
                await client.list(kinds.NODE)

    run(work())


def test_a_broken_connection_is_tried_again_where_that_is_harmless() -> None:
    """Reads and applies survive one closed connection; a create does not pretend to know."""

    async def work() -> None:
        async with cluster() as (kube, client):
            kube.put(config_map("a"))
            kube.faults.append(Fault("get", "configmaps", code=0))
            assert (await client.get(kinds.CONFIG_MAP, "a", "shop"))["metadata"]["name"] == "a"
            kube.faults.append(Fault("apply", "configmaps", code=0))
            assert (await client.apply(config_map("a", x="1")))["data"] == {"x": "1"}

            kube.faults.append(Fault("create", "configmaps", code=0, after=True))
            with pytest.raises(Unavailable):
                await client.create(config_map("b"))
            assert kube.get("configmaps", "b", "shop") is not None

    run(work())


def test_a_server_that_is_slow_or_gone_is_unavailable() -> None:
    """A time-out, a refused connection and a 503 have the same type."""

    async def work() -> None:
        async with cluster(timeout=0.2) as (kube, client):
            kube.faults.append(Fault("get", "configmaps", code=200, delay=0.5))
            with pytest.raises(Unavailable, match=r"no answer in 0\.2 s"):
                await client.get(kinds.CONFIG_MAP, "a", "shop")
            kube.faults.append(Fault("get", "configmaps", code=503, retry_after="4"))
            with pytest.raises(Unavailable) as caught:
                await client.get(kinds.CONFIG_MAP, "a", "shop")
            assert caught.value.retry_after == 4.0
        async with KubeClient(Access("http://127.0.0.1:1"), manager="tester") as nobody:
            with pytest.raises(Unavailable):
                await nobody.get(kinds.CONFIG_MAP, "a", "shop")

    run(work())


def test_optional_kinds_are_found_by_asking() -> None:
    """A kind that the cluster does not know is no error."""

    async def work() -> None:
        async with cluster() as (_, client):
            assert await client.serves(kinds.BROKER_SET) is True
            assert await client.serves(kinds.POD_MONITOR) is False
            assert await client.serves(kinds.PROMETHEUS_RULE) is True

    run(work())


def test_every_request_is_reported_with_its_outcome() -> None:
    """Who counts is told verb, resource and outcome."""
    told: list[tuple[str, str, str]] = []

    def on_call(request: Request, outcome: str, seconds: float) -> None:
        told.append((request.verb, request.resource, outcome))

    async def work() -> None:
        async with cluster(on_call=on_call) as (_, client):
            await client.apply(config_map("a"))
            with pytest.raises(NotFound):
                await client.get(kinds.CONFIG_MAP, "b", "shop")

    run(work())
    assert told == [("apply", "configmaps", "ok"), ("get", "configmaps", "NotFound")]


@pytest.mark.parametrize("text", ["[]", "no JSON"])
def test_an_answer_that_is_no_object_is_an_error(text: str) -> None:
    """What answers may be something else than an API server: no other exception comes out."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    async def work() -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(application) as server:
            client = KubeClient(Access(str(server.make_url("")).rstrip("/")), manager="test")
            async with client:
                with pytest.raises(Unavailable):
                    await client.get(kinds.POD, "a", "shop")

    run(work())
