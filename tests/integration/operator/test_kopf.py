from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.handlers import KopfEnded, make_settings, run_kopf
from brokerset_rig.fake_kube import FakeKube, Fault
from brokerset_rig.operator_parts import NAMESPACE, broker_set, until


def run(work: Coroutine[Any, Any, None]) -> None:
    """Do it; afterwards no task of kopf may be left."""

    async def checked() -> None:
        await work
        coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
        assert not [one for one in coroutines if "/kopf/" in one.cr_code.co_filename]

    asyncio.run(checked())


class Heard:
    """Events that were passed on."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.task: asyncio.Task[None] | None = None

    def told(self, kind: str, event: str, live: Mapping[str, Any]) -> None:
        self.events.append((kind, event, live["metadata"]["name"]))


@asynccontextmanager
async def kopf_runs(kube: FakeKube, *namespaces: str) -> AsyncIterator[Heard]:
    """kopf, which ends soon when it is told to."""
    heard = Heard()
    async with KubeClient(Access(kube.url), manager="test") as client:
        heard.task = asyncio.create_task(run_kopf(client, namespaces, kinds.OWN, heard.told))
        try:
            yield heard
        finally:
            heard.task.cancel()
            async with asyncio.timeout(60):
                await asyncio.wait([heard.task])


def test_sets_and_topics_are_told_and_nothing_is_written() -> None:
    """What is there comes as LISTED, then each change; kopf adds neither finalizer nor annotation."""

    async def work() -> None:
        async with FakeKube() as kube:
            kube.put(broker_set())
            async with kopf_runs(kube) as heard:
                await until(lambda: kube.watches == len(kinds.OWN))
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
            assert {call.verb for call in kube.calls} == {"list", "watch"}

    run(work())


def test_kopf_ends_when_it_is_told_to_and_leaves_our_tasks_alone() -> None:
    """Tasks of our loop go on, also those that were started after kopf, and signals stay ours."""
    signals: list[int] = []

    async def work() -> None:
        async with FakeKube() as kube:
            loop = asyncio.get_running_loop()
            async with KubeClient(Access(kube.url), manager="test") as client:
                one = asyncio.create_task(
                    run_kopf(
                        client,
                        (),
                        kinds.OWN,
                        lambda *_: None,
                        take_signals=lambda: loop.add_signal_handler(signal.SIGTERM, signals.append, 1),
                    )
                )
                await until(lambda: kube.watches == len(kinds.OWN))
                later = asyncio.create_task(asyncio.sleep(3600))
                signal.raise_signal(signal.SIGTERM)
                await until(lambda: signals)
                one.cancel()
                await asyncio.wait([one])
                assert one.cancelled()
                assert not later.done()
                later.cancel()

    run(work())


@pytest.mark.parametrize("seed", range(4))
def test_kopf_ends_soon_whenever_it_is_told_to_while_a_kind_goes(seed: int) -> None:
    """Its other watches used to stay when one had failed: they took their cancellation for a pause."""
    chance = random.Random(seed)

    async def one() -> None:
        async with FakeKube() as kube, kopf_runs(kube) as heard:
            await until(lambda: kube.watches == len(kinds.OWN))
            kube.put(broker_set())
            kube.absent = frozenset({"StoreAudit"})
            kube.drop_watches()
            assert heard.task is not None
            await asyncio.wait([heard.task], timeout=chance.choice((0.0, chance.random(), 5.0)))

    async def work() -> None:
        await asyncio.gather(*(one() for _ in range(25)))

    run(work())


def test_only_named_namespaces_are_watched() -> None:
    """With namespaces there is one watch for each kind and namespace."""

    async def work() -> None:
        async with FakeKube() as kube:
            async with kopf_runs(kube, "shop", "bank") as heard:
                await until(lambda: kube.watches == 2 * len(kinds.OWN))
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
            await until(lambda: kube.watches == len(kinds.OWN))
            kube.faults.append(Fault("watch", "brokersets", code=503))
            kube.drop_watches()
            kube.put(broker_set("one"))
            await until(lambda: any(name == "one" for _, _, name in heard.events))
            kube.say_error(410)
            kube.put(broker_set("two"))
            await until(lambda: any(name == "two" for _, _, name in heard.events))

    run(work())


def test_kopf_asks_as_who_we_are_now() -> None:
    """A token that was renewed is read again when the API server refuses the old one."""

    class Renewed:
        def token(self, now: float, *, fresh: bool = False) -> str:
            return "new" if fresh else "old"

    async def work() -> None:
        async with FakeKube() as kube:
            kube.tokens = {"new"}
            access: Any = Access(kube.url, token=Renewed())  # type: ignore[arg-type]
            async with KubeClient(access, manager="test") as client:
                one = asyncio.create_task(run_kopf(client, (), kinds.OWN, lambda *_: None))
                await until(lambda: kube.watches == len(kinds.OWN))
                one.cancel()
                await asyncio.wait([one])

    run(work())


def test_kopf_is_told_to_write_and_to_look_for_nothing() -> None:
    """No Events, no peering, no scanning of namespaces, and no killing of the process."""
    settings = make_settings()

    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
    assert settings.peering.standalone is True
    assert settings.process.ultimate_exiting_timeout is None
