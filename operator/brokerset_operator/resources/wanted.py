"""Everything that a set needs, as it has to be now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerset_operator.model.observed import Observed
from brokerset_operator.model.retired import retired_groups
from brokerset_operator.resources.brokers import broker_objects
from brokerset_operator.resources.certificates import (
    authorities_object,
    certificate_hosts,
    certificate_object,
)
from brokerset_operator.resources.controllers import controller_objects
from brokerset_operator.resources.external_access import external_objects, opened
from brokerset_operator.resources.monitoring import monitoring_objects
from brokerset_operator.resources.name_servers import name_server_objects
from brokerset_operator.resources.network_policies import network_objects
from brokerset_operator.resources.set_facts import facts_of
from brokerset_operator.resources.surroundings import master_objects, rights_objects
from brokerset_protocol.external_routes import ExternalAddresses


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of a set is to be there now; the way to what the manifest says is the plan's business."""

    controller_replicas: int
    """Pods of controllers, its members when it is formed; this must stay what it was until then."""

    raft_join: bool
    """Whether controllers have formed a group, so that one without data waits to be added to it."""

    groups: Mapping[int, int]
    """Replicas of each group's StatefulSet, by index; also of groups that are on their way out."""

    read_only_groups: frozenset[int] = frozenset()
    """Groups that are drained."""

    external: ExternalAddresses | None = None
    """What clients outside the cluster are told; None when the manifest lets none in."""


def wanted_objects(observed: Observed, shape: Shape) -> tuple[Mapping[str, Any], ...]:
    """Every object of the set, complete for server-side apply, in an order in which they can be made.

    What pods need comes before the StatefulSets that make them. `observed` must have a valid manifest.
    """
    facts = facts_of(observed)
    hosts = certificate_hosts(facts, shape.groups, shape.external)
    about_tls = (authorities_object(facts, observed), certificate_object(facts, observed, hosts))
    found = [each for each in about_tls if each is not None]
    found += [*rights_objects(facts, shape.groups), *network_objects(facts)]
    found += controller_objects(
        facts, replicas=shape.controller_replicas, raft_join=shape.raft_join, external=shape.external
    )
    found += name_server_objects(facts, external=shape.external)
    for index, replicas in sorted(shape.groups.items()):
        service, endpoint_slice = master_objects(facts, index)
        found += [opened(facts, index, service), endpoint_slice]
        found += broker_objects(facts, index, replicas=replicas, read_only=index in shape.read_only_groups)
    found += external_objects(facts, shape.groups)
    found += monitoring_objects(facts, observed.operator, retired_groups(observed.status))
    return tuple(found)
