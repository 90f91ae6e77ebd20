from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brokerset_operator.handlers import KopfEnded, connection_info, make_settings, run_kopf
from brokerset_operator.kube import kinds
from brokerset_operator.kube.credentials import Access
from brokerset_rig.fake_kube import FakeKube, Fault
from brokerset_rig.operator_parts import NAMESPACE, broker_set, until


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


class Heard:
    """Events that were passed on, and the threads that passed them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.threads: set[int] = set()
        self.task: asyncio.Task[None] | None = None

    def told(self, kind: str, event: str, live: Mapping[str, Any]) -> None:
        self.events.append((kind, event, live["metadata"]["name"]))
        self.threads.add(threading.get_ident())


@asynccontextmanager
async def kopf_runs(kube: FakeKube, *namespaces: str) -> AsyncIterator[Heard]:
    heard = Heard()
    heard.task = asyncio.create_task(run_kopf(Access(kube.url), namespaces, kinds.OWN, heard.told))
    try:
        yield heard
    finally:
        heard.task.cancel()
        await asyncio.wait([heard.task])


def test_sets_and_topics_are_told_and_nothing_is_written() -> None:
    """What is there comes as LISTED, then each change; kopf adds neither finalizer nor annotation."""

    async def work() -> None:
        async with FakeKube() as kube:
            kube.put(broker_set())
            async with kopf_runs(kube) as heard:
                await until(lambda: kube.watches == 4)
                kube.put(
                    {
                        "apiVersion": "brokerset.io/v1alpha1",
                        "kind": "Topic",
                        "metadata": {"name": "payments", "namespace": NAMESPACE},
                        "spec": {"brokerSetRef": {"name": "orders"}},
                    }
                )
                kube.change("brokersets", "orders", NAMESPACE, lambda live: live["spec"].update(groups=2))
                await until(lambda: ("BrokerSet", "MODIFIED", "orders") in heard.events)
                await until(lambda: ("Topic", "ADDED", "payments") in heard.events)
                kube.remove("brokersets", "orders", NAMESPACE)
                await until(lambda: ("BrokerSet", "DELETED", "orders") in heard.events)

            assert heard.events[0] == ("BrokerSet", "LISTED", "orders")
            assert heard.threads == {threading.get_ident()}
            assert {call.verb for call in kube.calls} == {"list", "watch"}

    run(work())


def test_kopf_ends_when_it_is_told_to_and_leaves_our_tasks_alone() -> None:
    """Cancelling ends its thread soon; tasks of our loop go on, and signals stay ours."""

    async def work() -> None:
        async with FakeKube() as kube:
            other = asyncio.create_task(asyncio.sleep(3600))
            async with kopf_runs(kube):
                await until(lambda: kube.watches == 4)
            assert not other.done()
            assert [thread for thread in threading.enumerate() if thread.name == "kopf"] == []
            other.cancel()

    run(work())


def test_only_named_namespaces_are_watched() -> None:
    """With namespaces there is one watch for each kind and namespace."""

    async def work() -> None:
        async with FakeKube() as kube:
            async with kopf_runs(kube, "shop", "bank") as heard:
                await until(lambda: kube.watches == 8)
                kube.put(broker_set("orders", "other"))
                kube.put(broker_set("orders", "bank"))
                await until(lambda: heard.events)

            assert {call.namespace for call in kube.calls} == {"shop", "bank"}
            assert heard.events == [("BrokerSet", "ADDED", "orders")]

    run(work())


def test_a_kopf_that_gives_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing rights end kopf, and with it the process, instead of going on blind."""
    monkeypatch.setattr("brokerset_operator.handlers.RETRY_DELAYS", (0.1, 0.1))

    async def work() -> None:
        async with FakeKube() as kube:
            kube.forbidden.add(("list", "brokersets"))
            async with kopf_runs(kube) as heard:
                assert heard.task is not None
                with pytest.raises(KopfEnded, match="kopf has stopped"):
                    async with asyncio.timeout(30):
                        await asyncio.shield(heard.task)

    run(work())


def test_a_cut_watch_is_made_anew() -> None:
    """After a break, and after 410, events are told again."""

    async def work() -> None:
        async with FakeKube() as kube, kopf_runs(kube) as heard:
            await until(lambda: kube.watches == 4)
            kube.faults.append(Fault("watch", "brokersets", code=503))
            kube.drop_watches()
            kube.put(broker_set("one"))
            await until(lambda: any(name == "one" for _, _, name in heard.events))
            kube.say_error(410)
            kube.put(broker_set("two"))
            await until(lambda: any(name == "two" for _, _, name in heard.events))

    run(work())


def test_kopf_is_given_our_credentials() -> None:
    """Authority, token and certificate are passed on as kopf reads them."""
    access = Access(
        "https://10.0.0.1:443",
        token="secret",
        ca_data=b"# text before\n-----BEGIN CERTIFICATE-----",
        namespace="n",
    )

    info = connection_info(access)

    assert (info.server, info.scheme, info.token) == ("https://10.0.0.1:443", "Bearer", "secret")
    assert info.ca_data == b"-----BEGIN CERTIFICATE-----"


def test_kopf_is_told_to_write_and_to_look_for_nothing() -> None:
    """No Events, no peering, no scanning of namespaces, and no killing of the process."""
    settings = make_settings()

    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert settings.peering.standalone is True
    assert settings.process.ultimate_exiting_timeout is None
