"""The objects of a set's controllers, which are its name servers too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.resources import external_access
from brokerset_operator.resources.name_servers import name_server_service
from brokerset_operator.resources.pod_parts import from_pod
from brokerset_operator.resources.pod_template import (
    ProcessFacts,
    disruption_budget,
    headless_service,
    stateful_set,
)
from brokerset_operator.resources.quantities import smaller
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.settings_files import (
    CONTROLLER_FILE,
    SETTINGS_FOLDER,
    controller_config_map,
    controller_settings,
)
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_spec.manifest import ControllerStorage
from brokerset_spec.pod_template import Resources

COMPONENT: Final = "controller"

PORTS: Final[Mapping[str, int]] = {
    "namesrv": names.NAMESRV_PORT,
    "raft": names.RAFT_PORT,
    "controller": names.CONTROLLER_PORT,
    "http": names.HTTP_PORT,
}

REQUESTS: Final[Mapping[str, str]] = {"cpu": "50m", "memory": "128Mi"}
"""Measured: 50 MiB with thousands of brokers registered."""

STORAGE_MAX: Final = "20Gi"
"""Most that a controller's volume has unless the manifest says its size: its log is cut again and again.
Not less, because there are storage classes that make none below that."""

STARTUP_SECONDS_MAX: Final = 600
"""Longest time until a controller answers at all; it reads a snapshot and the log after it."""

GRACE_SECONDS: Final = 15
"""A controller takes up to 1 s to hand over its leadership, and twice up to 3 s to answer what it is at."""


def controller_objects(
    facts: SetFacts, *, replicas: int, raft_join: bool, external: ExternalAddresses | None = None
) -> tuple[NewObject, ...]:
    """Settings, Services, disruption budget and StatefulSet; nothing when another set's controllers serve.

    `raft_join` is true from the moment on that controllers have formed a group: whoever then has no data
    waits until it is added, because an emptied volume must not vote with forgotten votes. `external` is what
    name servers tell clients outside.
    """
    if not facts.has_controllers:
        return ()
    wanted, storage = facts.manifest.spec.controllers, facts.manifest.spec.storage
    own = wanted.storage or ControllerStorage()
    name = names.controller_set(facts.name)
    settings = {
        **controller_settings(facts, replicas=replicas, raft_join=raft_join),
        **external_access.name_server_settings(facts, SETTINGS_FOLDER),
    }
    process = ProcessFacts(
        component=COMPONENT,
        group=None,
        module="brokerset_controller",
        settings_file=CONTROLLER_FILE,
        config_map=name,
        settings=settings,
        ports={**PORTS, **external_access.name_server_ports(facts)},
        environment=(
            from_pod("POD_NAME", "metadata.name"),
            from_pod("POD_INDEX", f"metadata.labels['{names.POD_INDEX_LABEL}']"),
            {"name": "BROKERSET_SET_controllerDLegerSelfId", "value": "n$(POD_INDEX)"},
        ),
        requests=REQUESTS,
        resources=wanted.resources or Resources(),
        storage=own.size or smaller(storage.size, STORAGE_MAX),
        storage_class=own.class_name or storage.class_name,
        startup_seconds_max=STARTUP_SECONDS_MAX,
        grace_seconds=GRACE_SECONDS,
    )
    return (
        controller_config_map(facts, settings, external_access.addresses_file(external)),
        headless_service(facts, process, name),
        name_server_service(facts),
        disruption_budget(facts, process, name),
        stateful_set(facts, process, name=name, replicas=replicas),
    )
