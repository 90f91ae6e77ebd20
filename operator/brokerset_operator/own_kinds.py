"""Which kinds of ours a cluster serves: BrokerSets are waited for, all others may come later or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient, Object
from brokerset_kube.errors import KubeError
from brokerset_kube.kinds import Kind

log = structlog.get_logger(__name__)

REQUIRED: Final = kinds.BROKER_SET
"""Without it there is nothing to do."""

MISSING_SECONDS: Final = 5.0
"""Pause until it is checked again whether the cluster knows BrokerSets, or can list them."""

CHECK_SECONDS: Final = 15.0
"""Pause between two checks while a kind is missing; somebody may be about to install it."""

REST_SECONDS: Final = 300.0
"""Pause between two checks while all are there."""

Know = Callable[[str, Iterable[Object]], None]
"""Called with a kind that is served from now on, and all its objects; with none when it is gone."""


class OwnKinds:
    """Checks now and then; `served` is what may be watched and listed."""

    def __init__(
        self,
        client: KubeClient,
        namespaces: Sequence[str | None],
        *,
        know: Know,
        gone: Callable[[str], None],
        on_served: Callable[[str, bool], None] = lambda kind, served: None,
    ) -> None:
        """`gone` is called with a kind that is served no more, `on_served` with each after each check."""
        self._client = client
        self._namespaces = namespaces
        self._know = know
        self._gone = gone
        self._on_served = on_served
        self._changed = asyncio.Event()
        self._reasons: dict[Kind, str] = {}
        self.served: tuple[Kind, ...] = ()

    async def begin(self) -> None:
        """Wait until BrokerSets are served and were listed; what else is there is known then, too.

        All that people write is listed before the first reconcile: what one may do depends on the others.
        """
        while True:
            await self.check()
            if REQUIRED in self.served:
                return
            await asyncio.sleep(MISSING_SECONDS)

    async def follow(self) -> None:
        """Check now and then, until cancelled."""
        while True:
            await asyncio.sleep(REST_SECONDS if len(self.served) == len(kinds.OWN) else CHECK_SECONDS)
            await self.check()

    async def watch(self, watch: Callable[[Sequence[Kind]], Awaitable[None]]) -> None:
        """Run a watch of what is served, and another one when that changes, until cancelled.

        A watch that fails because a kind has gone is replaced by one without it. Raises what a watch raises
        otherwise.
        """
        while True:
            self._changed.clear()
            watched = self.served
            watching = asyncio.ensure_future(watch(watched))
            changing = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((watching, changing), return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    await self.check()
                    if self.served == watched:
                        await watching
                        return
                    log.warning("watch ended with a kind that it watched", reason=str(_problem(watching)))
            finally:
                for task in (watching, changing):
                    task.cancel()
                await asyncio.wait((watching, changing))

    async def check(self) -> None:
        """Ask the cluster what it serves, and list what is new."""
        try:
            known = await self._client.serves_which(kinds.OWN)
        except KubeError as error:
            log.warning("cluster cannot be asked what it knows", reason=str(error))
            return
        if REQUIRED not in known and self.served:
            return  # the whole group is on its way: what runs stays as it is
        found = []
        for kind in kinds.OWN:
            if kind not in known:
                self._lacks(kind, "the cluster does not know it")
            elif kind in self.served or await self._list(kind):
                found.append(kind)
        for kind in self.served:
            if kind not in found:
                log.warning("kind is not served any more", kind=kind.kind)
                self._gone(kind.kind)
        if tuple(found) != self.served:
            self._changed.set()
        self.served = tuple(found)
        for kind in kinds.OWN:
            self._on_served(kind.kind, kind in found)

    async def _list(self, kind: Kind) -> bool:
        items: list[Any] = []
        try:
            for namespace in self._namespaces:
                items += (await self._client.list(kind, namespace)).items
        except KubeError as error:
            self._lacks(kind, str(error))
            return False
        self._know(kind.kind, items)
        if self._reasons.pop(kind, None) is not None:
            log.info("kind is served now", kind=kind.kind)
        return True

    def _lacks(self, kind: Kind, reason: str) -> None:
        """Say it once for each reason; of BrokerSets, without which nothing goes, each time."""
        if kind != REQUIRED and self._reasons.get(kind) == reason:
            return
        self._reasons[kind] = reason
        advice = "apply crds/, and the chart of this version: objects of this kind are not looked after"
        log.warning("kind cannot be served", kind=kind.kind, reason=reason, advice=advice)


def _problem(task: asyncio.Future[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
