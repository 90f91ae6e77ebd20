"""Plans for tests: a manifest, folders and ports as they come."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import orjson

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.manifest import BrokerSet, read_manifest, read_manifest_text
from brokerset_spec.plan import LocalPlan, PortWishes, plan_local
from brokerset_spec.set_memory import SetMemory

DATA = Path("/data")
NEW = SetMemory(uid="u1")


def manifest_of(**spec: Any) -> BrokerSet:
    head = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}
    local = spec.get("groups") == "auto"
    document = {**head, "spec": spec}
    return read_manifest_text(orjson.dumps(document).decode()) if local else read_manifest(document)


def plan_of(
    manifest: BrokerSet | None = None,
    *,
    memory: SetMemory = NEW,
    is_free: Callable[[int], bool] = lambda _: True,
    wishes: PortWishes | None = None,
    host: str = "127.0.0.1",
    with_data: Collection[int] | None = None,
    cores: int = 1,
) -> LocalPlan:
    return plan_local(
        manifest or manifest_of(),
        DATA,
        memory=memory,
        is_free=is_free,
        wishes=wishes,
        host=host,
        with_data=with_data,
        cores=cores,
    )


def brokers_of(plan: LocalPlan) -> list[BrokerSettings]:
    return [p.settings for p in plan.brokers if isinstance(p.settings, BrokerSettings)]


def controllers_of(plan: LocalPlan) -> list[ControllerSettings]:
    return [p.settings for p in plan.controllers if isinstance(p.settings, ControllerSettings)]
