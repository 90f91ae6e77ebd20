"""Which change of an EndpointSlice makes a group's `-master` Service lead to this broker. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_formats.lazy_dataclasses import dataclass

EPOCH_ANNOTATION: Final = "brokerset.io/epoch"
"""The master epoch that the slice's address belongs to."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The slice leads to the master of a later epoch, and is left alone."""

    epoch: int


@dataclass(frozen=True, slots=True)
class InPlace:
    """The slice says what it has to say."""


@dataclass(frozen=True, slots=True)
class Change:
    """A merge patch; it fails if somebody else has changed the slice since it was read."""

    patch: Mapping[str, Any]


def decide_slice(
    found: Mapping[str, Any], *, pod: str, pod_ip: str, epoch: int
) -> Change | InPlace | Overtaken:
    """What the master of `epoch`, in the pod `pod`, does with the slice `found` (discovery.k8s.io/v1).

    An annotation that is no number counts as none. Ports, labels and owner are the operator's and stay.
    """
    metadata: Mapping[str, Any] = found.get("metadata") or {}
    written = str((metadata.get("annotations") or {}).get(EPOCH_ANNOTATION, ""))
    held = int(written) if written.isascii() and written.isdigit() else 0
    if held > epoch:
        return Overtaken(held)
    if held == epoch and _leads_to(found, pod_ip):
        return InPlace()
    endpoint = {
        "addresses": [pod_ip],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "name": pod, "namespace": str(metadata.get("namespace", ""))},
    }
    return Change(
        {
            "metadata": {
                "resourceVersion": str(metadata.get("resourceVersion", "")),
                "annotations": {EPOCH_ANNOTATION: str(epoch)},
            },
            "endpoints": [endpoint],
        }
    )


def _leads_to(found: Mapping[str, Any], pod_ip: str) -> bool:
    endpoints = found.get("endpoints") or []
    if len(endpoints) != 1:
        return False
    conditions = endpoints[0].get("conditions") or {}
    return endpoints[0].get("addresses") == [pod_ip] and conditions.get("ready") is True
