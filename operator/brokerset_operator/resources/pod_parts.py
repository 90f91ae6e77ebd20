"""What all pods have in common, of sets and of jobs on store files: rights, places, amounts, ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.resources.quantities import canonical
from brokerset_operator.resources.set_facts import NewObject
from brokerset_spec.pod_template import PodTemplate, Resources

USER_ID: Final = 10001
"""User and group of every process, and group of its volume; the image has the same."""

TOKEN_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where programs look for the token of their pod's account."""

TOKEN_SECONDS: Final = 3607
"""Lifetime of a token as Kubernetes itself chooses it; the kubelet renews it in time."""


def pod_security() -> NewObject:
    """As our own user, whom the volumes belong to."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> NewObject:
    """Without any privilege, and with a file system that is read-only."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def placement(given: PodTemplate) -> NewObject:
    """Where pods may run, and what pulls their image, as far as the manifest says."""
    found: NewObject = {
        "nodeSelector": dict(given.node_selector),
        "tolerations": [each.model_dump(by_alias=True, exclude_defaults=True) for each in given.tolerations],
        "imagePullSecrets": [{"name": each.name} for each in given.image_pull_secrets],
    }
    return given_only(found)


def given_only(fields: Mapping[str, Any]) -> NewObject:
    """The fields that say something."""
    return {name: value for name, value in fields.items() if value}


def amounts(resources: Resources, least: Mapping[str, str]) -> NewObject:
    """Requests and limits; each request that is not named has its default.

    A default request above a limit would be refused; a limit alone is a request as well.
    """
    asked, limits = (
        {name: canonical(amount) for name, amount in given.items()}
        for given in (resources.requests, resources.limits)
    )
    requests = {name: amount for name, amount in least.items() if name not in limits}
    return given_only({"requests": {**requests, **asked}, "limits": limits})


def token_volume() -> NewObject:
    """The token of the pod's account, and by what certificate the API server is known."""
    sources: list[NewObject] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    return {"name": "token", "projected": {"sources": sources}}


def token_mount() -> NewObject:
    """Where programs look for it."""
    return {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True}


def container_ports(ports: Mapping[str, int]) -> list[NewObject]:
    """The ports of a container, by name."""
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()]


def service_ports(ports: Mapping[str, int]) -> list[NewObject]:
    """The ports of a Service that leads to the same ports of pods."""
    return [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports.items()
    ]


def from_pod(name: str, path: str) -> NewObject:
    """An environment variable with a fact about the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
