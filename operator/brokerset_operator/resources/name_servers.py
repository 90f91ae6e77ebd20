"""Name servers that run by themselves, for DLedger groups without controllers; and the Service of all.

Kubernetes replaces old ones, one at a time: they know nothing that brokers do not tell them again at once.
The volume has the key-value configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.model import names
from brokerset_operator.resources import external_access
from brokerset_operator.resources.pod_parts import from_pod, service_ports
from brokerset_operator.resources.pod_template import (
    BY_KUBERNETES,
    ProcessFacts,
    disruption_budget,
    headless_service,
    stateful_set,
)
from brokerset_operator.resources.quantities import smaller
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.settings_files import (
    NAMESRV_FILE,
    SETTINGS_FOLDER,
    namesrv_config_map,
    namesrv_settings,
)
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_spec.pod_template import Resources

COMPONENT: Final = "namesrv"

REPLICAS: Final = 2
"""One serves while the other is replaced, or its node is down."""

PORTS: Final[Mapping[str, int]] = {"namesrv": names.NAMESRV_PORT, "http": names.HTTP_PORT}

REQUESTS: Final[Mapping[str, str]] = {"cpu": "50m", "memory": "128Mi"}
"""As a controller's, which has a name server in it."""

STORAGE_MAX: Final = "20Gi"
"""Most that its volume has, as a controller's."""

STARTUP_SECONDS_MAX: Final = 120
GRACE_SECONDS: Final = 10
"""A name server lets requests finish for up to 3 s."""


def name_server_objects(
    facts: SetFacts, *, external: ExternalAddresses | None = None
) -> tuple[NewObject, ...]:
    """Settings, Services, disruption budget and StatefulSet; nothing where controllers serve names.

    `external` is what they tell clients outside.
    """
    if not facts.has_name_servers:
        return ()
    storage, name = facts.manifest.spec.storage, names.namesrv_set(facts.name)
    settings = {
        **namesrv_settings(facts),
        **external_access.name_server_settings(facts, SETTINGS_FOLDER),
    }
    process = ProcessFacts(
        component=COMPONENT,
        group=None,
        module="brokerset_namesrv",
        settings_file=NAMESRV_FILE,
        config_map=name,
        settings=settings,
        ports={**PORTS, **external_access.name_server_ports(facts)},
        environment=(from_pod("POD_NAME", "metadata.name"),),
        requests=REQUESTS,
        resources=Resources(),
        storage=smaller(storage.size, STORAGE_MAX),
        storage_class=storage.class_name,
        startup_seconds_max=STARTUP_SECONDS_MAX,
        grace_seconds=GRACE_SECONDS,
    )
    service = names.namesrv_pods_service(facts.name)
    return (
        namesrv_config_map(facts, settings, external_access.addresses_file(external)),
        headless_service(facts, process, service),
        name_server_service(facts),
        disruption_budget(facts, process, name),
        stateful_set(facts, process, name=name, replicas=REPLICAS, service=service, strategy=BY_KUBERNETES),
    )


def name_server_service(facts: SetFacts) -> NewObject:
    """One address for clients, which leads to name servers that are ready."""
    return facts.a_service(
        names.namesrv_service(facts.name),
        service_ports({"namesrv": names.NAMESRV_PORT}),
        component=facts.name_servers_component,
        selector=names.selector(facts.name, facts.name_servers_component),
        type="ClusterIP",
    )
