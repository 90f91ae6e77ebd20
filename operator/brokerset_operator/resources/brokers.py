"""The objects of one broker group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.resources.live_settings import restarting
from brokerset_operator.resources.pod_parts import from_pod
from brokerset_operator.resources.pod_template import (
    ProcessFacts,
    disruption_budget,
    headless_service,
    stateful_set,
)
from brokerset_operator.resources.set_facts import NewObject, SetFacts
from brokerset_operator.resources.settings_files import BROKER_FILE, broker_config_map, broker_settings
from brokerset_spec.pod_template import PodTemplate

COMPONENT: Final = "broker"

PORTS: Final[Mapping[str, int]] = {
    "remoting": names.REMOTING_PORT,
    "fast": names.FAST_PORT,
    "ha": names.HA_PORT,
    "http": names.HTTP_PORT,
}

LEDGER_PORTS: Final[Mapping[str, int]] = {
    "remoting": names.REMOTING_PORT,
    "fast": names.FAST_PORT,
    "dledger": names.DLEDGER_PORT,
    "http": names.HTTP_PORT,
}
"""Of members of a DLedger group."""

REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "256Mi"}
"""Measured: 25 MiB of its own, loaded or not; the rest is for the page cache of its files."""

STARTUP_SECONDS_MAX: Final = 3600
"""Longest time until a broker answers at all: it may have to check and index a big log after a crash."""

GRACE_SECONDS: Final = 45
"""A broker hands over, flushes and ends within 30 s."""


def broker_objects(
    facts: SetFacts, index: int, *, replicas: int, read_only: bool = False
) -> tuple[NewObject, ...]:
    """Settings, headless Service, disruption budget and StatefulSet of group `index`.

    `read_only`: the group is drained; its brokers are told so at run time, and stay so after a restart.
    """
    name = names.group_set(facts.name, index)
    settings = broker_settings(facts, index)
    process = ProcessFacts(
        component=COMPONENT,
        group=name,
        module="brokerset_broker",
        settings_file=BROKER_FILE,
        config_map=name,
        settings=restarting(settings),
        ports=LEDGER_PORTS if facts.manifest.is_dledger else PORTS,
        environment=(
            from_pod("POD_NAME", "metadata.name"),
            from_pod("POD_IP", "status.podIP"),
            *_addresses(facts, name),
            *_member(facts),
        ),
        requests=REQUESTS,
        resources=PodTemplate.model_validate(facts.manifest.spec.pod_template).resources,
        storage=facts.manifest.spec.storage.size,
        storage_class=facts.manifest.spec.storage.class_name,
        startup_seconds_max=STARTUP_SECONDS_MAX,
        grace_seconds=GRACE_SECONDS,
        service_account=names.service_account(facts.name),
    )
    return (
        broker_config_map(facts, index, settings, read_only=read_only),
        headless_service(facts, process, name),
        disruption_budget(facts, process, name),
        stateful_set(facts, process, name=name, replicas=replicas),
    )


def _member(facts: SetFacts) -> tuple[Mapping[str, Any], ...]:
    """Which member of its DLedger group a broker is."""
    if not facts.manifest.is_dledger:
        return ()
    return (
        from_pod("POD_INDEX", f"metadata.labels['{names.POD_INDEX_LABEL}']"),
        {"name": "BROKERSET_SET_dLegerSelfId", "value": "n$(POD_INDEX)"},
    )


def _addresses(facts: SetFacts, group: str) -> tuple[Mapping[str, Any], ...]:
    """Brokers and controllers know each other by pod IP; clients are told what `advertise` says."""
    found: list[Mapping[str, Any]] = [{"name": "BROKERSET_SET_brokerIP1", "value": "$(POD_IP)"}]
    if facts.manifest.spec.advertise != "podIP":
        host = f"$(POD_NAME).{group}.{facts.namespace}.svc:{names.REMOTING_PORT}"
        found.append({"name": "BROKERSET_SET_advertisedAddress", "value": host})
    return tuple(found)
