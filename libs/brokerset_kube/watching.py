"""A watch that goes on permanently: list, follow, go on after breaks, list again when that is too late.

Nothing is kept but a resource version: who is told of an event looks for himself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from brokerset_kube.client import KubeClient, Object
from brokerset_kube.errors import Gone, KubeError, Request, error_of_status
from brokerset_kube.kinds import Kind

log = structlog.get_logger(__name__)

WATCH_SECONDS_MIN: Final = 240
"""Shortest time after which the server ends a watch request; the longest is nearly twice that."""

SILENCE_SECONDS: Final = 70.0
"""A watch on which nothing comes for so long is made again; bookmarks come about once a minute."""

RETRY_SECONDS_FIRST: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0
"""Longest pause between two attempts to watch."""

BREAK_SECONDS: Final = 0.2
"""Pause before a watch that has ended is made again, lest a server that ends each at once is flooded."""

STALE_SECONDS: Final = 180.0
"""A watch that has heard nothing for longer is told as dead."""

OnObject = Callable[[str, Mapping[str, Any]], None]
"""Called with LISTED, ADDED, MODIFIED or DELETED, and the object or its metadata; must return at once."""


class Watch:
    """Follows the objects of one kind; `run` ends only when it is cancelled."""

    def __init__(
        self,
        client: KubeClient,
        kind: Kind,
        on_object: OnObject,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        metadata_only: bool = True,
        on_listed: Callable[[bool], None] | None = None,
        silence: float = SILENCE_SECONDS,
        randomness: random.Random | None = None,
    ) -> None:
        """`on_listed` is called after each complete list, with whether it is not the first.

        What was deleted between two lists is told by neither: after a second one, look at everything.
        """
        self._client = client
        self._kind = kind
        self._on_object = on_object
        self._namespace = namespace
        self._labels = labels
        self._metadata_only = metadata_only
        self._on_listed = on_listed
        self._silence = silence
        self._random = randomness or random.Random()
        self._heard_at: float | None = None
        self._lists = 0
        self._place: str | None = None  # version of the last event, for going on after a break
        self.problem: str | None = None
        """Why it cannot watch at the moment."""

    @property
    def place(self) -> str | None:
        """Resource version up to which everything was told; None when a list comes next."""
        return self._place

    @property
    def name(self) -> str:
        """What it watches, for people."""
        where = f" in {self._namespace}" if self._namespace else ""
        return f"{self._kind.plural}{where}"

    def lack(self, now: float) -> str | None:
        """Why this watch must not be relied on at `now` (the loop's time), or None."""
        if self._lists == 0:
            return f"{self.name} were not listed yet" + (f": {self.problem}" if self.problem else "")
        if self._heard_at is None or now - self._heard_at > max(STALE_SECONDS, 2 * self._silence):
            return f"the watch on {self.name} hears nothing" + (f": {self.problem}" if self.problem else "")
        return None

    async def run(self) -> None:
        """Watch for as long as this task runs."""
        version = ""
        failures = 0
        while True:
            try:
                if not version:
                    version = await self._list()
                version = await self._follow(version)
                failures = 0
                await asyncio.sleep(BREAK_SECONDS)
            except Gone:
                version = ""
                log.info("watch starts again", resource=self.name, reason="its place is too old")
                await asyncio.sleep(BREAK_SECONDS)
            except KubeError as error:
                failures += 1
                if failures > 1 or self._lists == 0:
                    self.problem = str(error)
                    log.warning("watch is broken", resource=self.name, reason=str(error), failures=failures)
                version = self._place or ""
                await asyncio.sleep(max(self._pause(failures), error.retry_after or 0.0))

    async def _list(self) -> str:
        listing = await self._client.list(
            self._kind, self._namespace, labels=self._labels, metadata_only=self._metadata_only
        )
        self._heard()
        for item in listing.items:
            self._on_object("LISTED", item)
        again = self._lists > 0
        self._lists += 1
        self._place = listing.resource_version
        if self._on_listed is not None:
            self._on_listed(again)
        return listing.resource_version

    async def _follow(self, version: str) -> str:
        """One request; returns from where on the next one goes on."""
        seconds = self._random.randrange(WATCH_SECONDS_MIN, 2 * WATCH_SECONDS_MIN)
        async with self._client.stream(
            self._kind,
            self._namespace,
            resource_version=version,
            seconds=seconds,
            silence=self._silence,
            labels=self._labels,
            metadata_only=self._metadata_only,
        ) as events:
            self._heard()
            async for event in events:
                version = self._take(event) or version
        return version

    def _take(self, event: Mapping[str, Any]) -> str | None:
        kind, found = str(event.get("type")), event.get("object") or {}
        if kind == "ERROR":
            self._place = None  # whatever it is: a fresh list heals it
            request = Request("watch", self._kind.plural, self._kind.group, self._namespace)
            raise error_of_status(request, found)
        self._heard()
        version = (found.get("metadata") or {}).get("resourceVersion")
        if version:
            self._place = str(version)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._on_object(kind, found)
        return self._place

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self.problem = None

    def _pause(self, failures: int) -> float:
        longest: float = min(RETRY_SECONDS_FIRST * 2 ** min(failures - 1, 16), RETRY_SECONDS_MAX)
        return self._random.uniform(longest / 2, longest)


def key_of(item: Object | Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])
