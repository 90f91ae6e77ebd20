"""Names, labels and addresses of everything that belongs to a BrokerSet. Pure."""

from __future__ import annotations

from typing import Final

NAMESRV_PORT: Final = 9876
RAFT_PORT: Final = 9877
CONTROLLER_PORT: Final = 9878
NAMESRV_EXTERNAL_PORT: Final = 9879
REMOTING_PORT: Final = 10911
FAST_PORT: Final = 10909
HA_PORT: Final = 10912
DLEDGER_PORT: Final = 40911
HTTP_PORT: Final = 8080

DOMAIN: Final = "brokerset.io"
SET_LABEL: Final = f"{DOMAIN}/set"
GROUP_LABEL: Final = f"{DOMAIN}/group"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
HASH_ANNOTATION: Final = f"{DOMAIN}/config-hash"
EPOCH_ANNOTATION: Final = f"{DOMAIN}/epoch"
FIELD_MANAGER: Final = "brokerset-operator"

PAUSED: Final = f"{DOMAIN}/paused"
SWITCH_OVER: Final = f"{DOMAIN}/switchover"
FENCE: Final = f"{DOMAIN}/fence"
APPROVE: Final = f"{DOMAIN}/approve-switchover"
BELOW_MINIMUM: Final = f"{DOMAIN}/allow-below-minimum"
DISCARD_GROUP: Final = f"{DOMAIN}/discard-group"
DELETE_CLAIMS: Final = f"{DOMAIN}/delete-claims-on-scale-in"
OPERATOR: Final = f"{DOMAIN}/operator"
RENEW_CERTIFICATES: Final = f"{DOMAIN}/renew-certificates"
RENEW_AUTHORITY: Final = f"{DOMAIN}/renew-authority"

VOLUME: Final = "data"
"""Name of the claim template: claims are `data-<pod>`."""

RUNBOOKS: Final = "https://brokerset.io/runbooks"
"""Where the page of each alert is, under the alert's name, unless the installation says another place."""


def controller_set(name: str) -> str:
    """StatefulSet, headless Service, ConfigMap and PDB of the controllers."""
    return f"{name}-controller"


def controller_pod(name: str, node_id: int) -> str:
    """Pod of a controller."""
    return f"{name}-controller-{node_id}"


def namesrv_service(name: str) -> str:
    """Service of all name servers."""
    return f"{name}-namesrv"


def namesrv_set(name: str) -> str:
    """StatefulSet, ConfigMap and PDB of name servers that are no controllers."""
    return f"{name}-namesrv"


def namesrv_pods_service(name: str) -> str:
    """Headless Service of these."""
    return f"{name}-namesrv-pods"


def namesrv_external_service(name: str) -> str:
    """Service of all name servers for clients outside the cluster."""
    return f"{name}-namesrv-external"


def broker_external_service(pod: str) -> str:
    """Service of a single broker for clients outside the cluster."""
    return f"{pod}-external"


def group_set(name: str, index: int) -> str:
    """StatefulSet, headless Service, ConfigMap and PDB of a broker group."""
    return f"{name}-{index}"


def broker_pod(name: str, index: int, ordinal: int) -> str:
    """Pod of a broker."""
    return f"{name}-{index}-{ordinal}"


def master_service(name: str, index: int) -> str:
    """Service, and its EndpointSlice, that leads to a group's master."""
    return f"{name}-{index}-master"


def claim_of(pod: str) -> str:
    """Claim of a pod."""
    return f"{VOLUME}-{pod}"


def authority(name: str) -> str:
    """Secret with the keys of a set's own authority, and ConfigMap with the authorities to trust."""
    return f"{name}-authority"


def certificate(name: str) -> str:
    """Secret that pods mount, and Certificate of cert-manager, where the operator keeps either."""
    return f"{name}-certificate"


def service_account(name: str) -> str:
    """Account of brokers."""
    return f"{name}-broker"


def controller_host(name: str, namespace: str, node_id: int) -> str:
    """DNS name of a controller's pod."""
    return f"{controller_pod(name, node_id)}.{controller_set(name)}.{namespace}.svc"


def broker_host(name: str, namespace: str, index: int, ordinal: int) -> str:
    """DNS name of a broker's pod."""
    return f"{broker_pod(name, index, ordinal)}.{group_set(name, index)}.{namespace}.svc"


def ledger_peer(name: str, namespace: str, index: int, ordinal: int) -> str:
    """Where the other members of its DLedger group reach a broker."""
    return f"{broker_host(name, namespace, index, ordinal)}:{DLEDGER_PORT}"


def labels(name: str, component: str | None = None, group: str | None = None) -> dict[str, str]:
    """Labels of an object; `group` is the name of the group's StatefulSet."""
    found = {
        "app.kubernetes.io/name": "brokerset",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        SET_LABEL: name,
    }
    if component is not None:
        found[COMPONENT_LABEL] = component
    if group is not None:
        found[GROUP_LABEL] = group
    return found


def selector(name: str, component: str, group: str | None = None) -> dict[str, str]:
    """Labels that select pods; these never change."""
    found = {SET_LABEL: name, COMPONENT_LABEL: component}
    if group is not None:
        found[GROUP_LABEL] = group
    return found
