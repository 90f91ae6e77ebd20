"""The kinds of objects that we work with, and where the API serves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """API group; empty for the core."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def root(self) -> str:
        """Path of the kind's group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Path of all objects, those of a namespace, one object, or a part of it."""
        found = self.root
        if namespace is not None and self.namespaced:
            found += f"/namespaces/{namespace}"
        found += f"/{self.plural}"
        if name is not None:
            found += f"/{name}"
        return f"{found}/{subresource}" if subresource else found


CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODE: Final = Kind("v1", "Node", "nodes", namespaced=False)
POD: Final = Kind("v1", "Pod", "pods")
SECRET: Final = Kind("v1", "Secret", "secrets")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
JOB: Final = Kind("batch/v1", "Job", "jobs")
CERTIFICATE: Final = Kind("cert-manager.io/v1", "Certificate", "certificates")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
ENDPOINT_SLICE: Final = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
STORAGE_CLASS: Final = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
BROKER_SET: Final = Kind("brokerset.io/v1alpha1", "BrokerSet", "brokersets")
TOPIC: Final = Kind("brokerset.io/v1alpha1", "Topic", "topics")
SUBJECT: Final = Kind("brokerset.io/v1alpha1", "Subject", "subjects")
STORE_AUDIT: Final = Kind("brokerset.io/v1alpha1", "StoreAudit", "storeaudits")
STORE_MIGRATION: Final = Kind("brokerset.io/v1alpha1", "StoreMigration", "storemigrations")
STORE_EXPORT: Final = Kind("brokerset.io/v1alpha1", "StoreExport", "storeexports")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULE: Final = Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules")

OWN: Final = (BROKER_SET, TOPIC, SUBJECT, STORE_AUDIT, STORE_MIGRATION, STORE_EXPORT)
"""Kinds of the product, which people write."""

OPTIONAL: Final = (POD_MONITOR, PROMETHEUS_RULE)
"""Kinds that a cluster may lack; they are not asked for then."""

WHERE_ALLOWED: Final = (SECRET, CERTIFICATE)
"""Kinds that the operator has rights on only where its chart says so; read by name, and not watched."""

ALL: Final = tuple(kind for kind in globals().values() if isinstance(kind, Kind))
"""Every kind above."""

_BY_NAME: Final[Mapping[tuple[str, str], Kind]] = {(kind.api_version, kind.kind): kind for kind in ALL}


def kind_named(api_version: str, kind: str) -> Kind:
    """The kind of that name. Raises `KeyError` for one that we do not work with."""
    return _BY_NAME[api_version, kind]


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """The kind of an object. Raises `KeyError` for one that we do not work with."""
    return kind_named(manifest["apiVersion"], manifest["kind"])
