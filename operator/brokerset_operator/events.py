"""Events of BrokerSets and Topics, for `kubectl describe`: each said once, repetitions counted."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import structlog

from brokerset_kube.client import KubeClient
from brokerset_kube.errors import AlreadyExists, KubeError
from brokerset_kube.kinds import EVENT
from brokerset_operator.elector import micro_time
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

REPEAT_SECONDS: Final = 600.0
"""The same Event is not told again within this time; the API server keeps an Event for an hour."""

REMEMBERED_MAX: Final = 4096
"""Events that are remembered for that; the oldest is forgotten first."""

NOTE_LENGTH_MAX: Final = 1024
"""Longest text of an Event (`events.k8s.io`)."""

NAME_LENGTH_MAX: Final = 200
"""How much of an object's name an Event's name begins with."""

ACTION: Final = "Reconcile"


class Events:
    """Tells people what was done and why; a failure to tell is logged, and stops nothing."""

    def __init__(self, client: KubeClient, clock: Clock, instance: str) -> None:
        self._client = client
        self._clock = clock
        self._instance = instance
        self._emitted: OrderedDict[str, float] = OrderedDict()

    async def emit(
        self, about: Mapping[str, Any], reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Say something about an object, unless it was said lately."""
        metadata = about["metadata"]
        key = hashlib.sha256("\0".join((metadata["uid"], reason, message)).encode()).hexdigest()[:16]
        now = self._clock.monotonic()
        said_at = self._emitted.get(key)
        if said_at is not None and now - said_at < REPEAT_SECONDS:
            return
        self._emitted[key] = now
        self._emitted.move_to_end(key)
        if len(self._emitted) > REMEMBERED_MAX:
            self._emitted.popitem(last=False)
        try:
            await self._write(about, f"{metadata['name'][:NAME_LENGTH_MAX]}.{key}", reason, message, warning)
        except KubeError as error:
            log.warning("event was not written", reason=str(error), event_reason=reason)

    async def _write(
        self, about: Mapping[str, Any], name: str, reason: str, message: str, warning: bool
    ) -> None:
        metadata = about["metadata"]
        moment = micro_time(self._clock.now_ms())
        event: dict[str, Any] = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": moment,
            "reportingController": f"brokerset.io/{self._client.manager}",
            "reportingInstance": self._instance,
            "action": ACTION,
            "reason": reason,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "note": message[:NOTE_LENGTH_MAX],
            "type": "Warning" if warning else "Normal",
        }
        try:
            await self._client.create(event)
        except AlreadyExists:
            # Said before, perhaps by the operator that led before this one.
            live = await self._client.get(EVENT, name, metadata["namespace"])
            count = int((live.get("series") or {}).get("count") or 1) + 1
            series = {"count": count, "lastObservedTime": moment}
            await self._client.merge_patch(EVENT, name, metadata["namespace"], {"series": series})
