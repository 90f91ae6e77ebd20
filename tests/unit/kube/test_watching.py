from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from brokerset_kube import kinds, watching
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_kube.watching import Watch, key_of
from brokerset_rig.fake_kube import FakeKube, Fault

SECONDS = 10.0


def config_map(name: str, label: str | None = "orders", **data: str) -> dict[str, Any]:
    labels = {} if label is None else {"brokerset.io/set": label}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "data": data,
    }


class Heard:
    """What a watch told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.lists: list[bool] = []
        self.last: Mapping[str, Any] = {}
        self._changed = asyncio.Event()

    def on_object(self, event: str, found: Mapping[str, Any]) -> None:
        self.events.append((event, found["metadata"]["name"]))
        self.last = found
        self._changed.set()

    def on_listed(self, again: bool) -> None:
        self.lists.append(again)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watched(silence: float = 60.0) -> AsyncIterator[tuple[FakeKube, Heard, Watch]]:
    heard = Heard()
    async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
        kube.put(config_map("first"))
        watch = Watch(
            client,
            kinds.CONFIG_MAP,
            heard.on_object,
            labels="brokerset.io/set",
            on_listed=heard.on_listed,
            silence=silence,
        )
        task = asyncio.create_task(watch.run())
        try:
            await heard.until(lambda: bool(heard.lists))
            await until(lambda: kube.watches == 1)
            yield kube, heard, watch
        finally:
            task.cancel()
            await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  # states change in many ways, none tells
            await asyncio.sleep(0.01)


def test_what_is_there_is_listed_and_what_changes_is_told() -> None:
    """Objects come as LISTED first, then as they change; others than those selected do not."""

    async def work() -> None:
        async with watched() as (kube, heard, watch):
            kube.put(config_map("stranger", None))
            kube.put(config_map("second"))
            kube.change("configmaps", "second", "shop", lambda live: live["data"].update(x="1"))
            kube.remove("configmaps", "first", "shop")
            await heard.until(lambda: len(heard.events) == 4)

            assert heard.events == [
                ("LISTED", "first"),
                ("ADDED", "second"),
                ("MODIFIED", "second"),
                ("DELETED", "first"),
            ]
            assert "data" not in heard.last
            assert key_of(heard.last) == ("shop", "first")
            assert watch.lack(asyncio.get_running_loop().time()) is None

    asyncio.run(work())


def test_a_watch_that_is_cut_goes_on_where_it_was() -> None:
    """After a break nothing is listed again, and nothing that happened meanwhile is missed."""

    async def work() -> None:
        async with watched() as (kube, heard, _):
            kube.faults.append(Fault("watch", "configmaps", code=503, times=1))
            kube.drop_watches()
            kube.put(config_map("meanwhile"))
            await heard.until(lambda: ("ADDED", "meanwhile") in heard.events)

            assert heard.lists == [False]

    asyncio.run(work())


def test_a_watch_whose_place_is_too_old_lists_again() -> None:
    """410 leads to a fresh list, and the hearer is told that deletions may have been missed."""

    async def work() -> None:
        async with watched() as (kube, heard, _):
            kube.drop_watches()
            kube.remove("configmaps", "first", "shop")
            kube.put(config_map("second"))
            kube.compact()
            await heard.until(lambda: len(heard.lists) == 2)

            assert heard.lists == [False, True]
            assert heard.events[-1] == ("LISTED", "second")

    asyncio.run(work())


@pytest.mark.parametrize("code", [410, 500])
def test_an_error_inside_the_stream_leads_to_a_fresh_list(code: int) -> None:
    """An ERROR event ends the request, and the next one begins with a list."""

    async def work() -> None:
        async with watched() as (kube, heard, _):
            kube.say_error(code)
            await heard.until(lambda: len(heard.lists) == 2)

    asyncio.run(work())


def test_bookmarks_move_the_place_forward() -> None:
    """After a bookmark, history before it may be forgotten without a new list."""

    async def work() -> None:
        async with watched() as (kube, heard, watch):
            for number in range(3):
                kube.put(config_map(f"stranger{number}", None))
            kube.bookmark()
            await until(lambda: watch.place == str(kube.version))
            kube.compact()
            kube.drop_watches()
            await until(lambda: kube.count("watch") == 2)
            kube.put(config_map("late"))
            await heard.until(lambda: ("ADDED", "late") in heard.events)

            assert heard.lists == [False]

    asyncio.run(work())


def test_a_silent_watch_is_made_anew() -> None:
    """When nothing comes for too long, not even a bookmark, the request is given up and made again."""

    async def work() -> None:
        async with watched(silence=0.2) as (kube, heard, _):
            await until(lambda: kube.count("watch") >= 2)
            kube.put(config_map("late"))
            await heard.until(lambda: ("ADDED", "late") in heard.events)

            assert heard.lists == [False]

    asyncio.run(work())


def test_a_watch_that_may_not_list_says_why() -> None:
    """Until the first list is done the watch is not to be relied on, with the reason."""

    async def work() -> None:
        async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
            kube.forbidden.add(("list", "pods"))
            watch = Watch(client, kinds.POD, lambda event, found: None)
            task = asyncio.create_task(watch.run())
            await until(lambda: watch.problem is not None)

            lack = watch.lack(asyncio.get_running_loop().time())

            assert lack is not None
            assert "pods were not listed yet" in lack
            assert "verb list, resource pods" in lack
            kube.forbidden.clear()
            await until(lambda: watch.lack(asyncio.get_running_loop().time()) is None)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(work())


def test_a_watch_that_hears_nothing_is_told_as_dead() -> None:
    """Long after the last sign of life the watch says that it lacks one."""

    async def work() -> None:
        async with watched() as (_, _, watch):
            now = asyncio.get_running_loop().time()

            assert watch.lack(now + watching.STALE_SECONDS + 1) == "the watch on configmaps hears nothing"

    asyncio.run(work())


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    """After a 429 the next request comes no sooner than Retry-After says."""

    async def work() -> None:
        async with watched() as (kube, heard, _):
            kube.faults.append(Fault("watch", "configmaps", code=429, retry_after="2", times=1))
            kube.drop_watches()
            await until(lambda: not kube.faults[0].times)
            refused = asyncio.get_running_loop().time()
            kube.change("configmaps", "first", "shop", lambda live: live["data"].update(x="2"))
            await heard.until(lambda: ("MODIFIED", "first") in heard.events)

            assert asyncio.get_running_loop().time() - refused >= 1.9

    asyncio.run(work())
