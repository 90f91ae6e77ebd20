"""Labels, annotations and words of the operator that this command relies on; a test compares both."""

from __future__ import annotations

from typing import Final

SET_LABEL: Final = "brokerset.io/set"
GROUP_LABEL: Final = "brokerset.io/group"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
CONTROLLER: Final = "controller"
BROKER: Final = "broker"
NAME_SERVER: Final = "namesrv"
"""Component of name servers that run by themselves, as groups elect their leaders without controllers."""

OPERATOR_SELECTOR: Final = "app.kubernetes.io/name=brokerset-operator"
"""Selects the operator's Deployment and pods, whatever the release is called."""

CONFIG_HASH: Final = "brokerset.io/config-hash"
"""Annotation of pods; a pod whose value is another one than its neighbours' was made from other settings."""

TLS: Final = "brokerset.io/tls"
"""Annotation of pods: what they do about TLS."""

TLS_ALONE: Final = frozenset({"enforcing", "asking", "requiring"})
"""Values of it: the pod refuses plain requests."""

AUTHORITIES_ENTRY: Final = "ca.crt"
"""Entry of a ConfigMap with the authorities to trust."""

PAUSED: Final = "brokerset.io/paused"
SWITCH_OVER: Final = "brokerset.io/switchover"
FENCE: Final = "brokerset.io/fence"
APPROVE: Final = "brokerset.io/approve-switchover"

SWITCH_OVER_REQUEST: Final = "switchover"
FENCE_REQUEST: Final = "fence"

ACCEPTED: Final = "Accepted"
WAITING: Final = "Waiting"
FINISHED: Final = "Done"
OPEN: Final = (ACCEPTED, WAITING)
"""States of requests that are not answered for good."""

PATIENCE_SECONDS: Final = 600
"""How long the operator goes on trying before it gives a request up."""

READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
CONTROLLERS_READY: Final = "ControllersReady"
REASON_PAUSED: Final = "Paused"
REASON_INVALID: Final = "InvalidSpec"
REASON_APPROVAL: Final = "WaitingForApproval"

FENCED: Final = "fenced"
MASTER: Final = "master"
"""Roles of brokers in the status."""


def authority(set_name: str) -> str:
    """ConfigMap with the authorities of a set that has an authority of its own."""
    return f"{set_name}-authority"


def server_name(set_name: str, namespace: str) -> str:
    """The name that each certificate of a set is for: that of its name servers' Service."""
    return f"{set_name}-namesrv.{namespace}.svc"
