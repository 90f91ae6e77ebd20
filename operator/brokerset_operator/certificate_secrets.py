"""Makes and changes the Secrets of a set's own authority: the one place where its keys are made and used.

A Secret is replaced only as the one that the decision was made on, so two operators, or an operator and a
person, never mix what they write. Nothing here is logged but names, times and fingerprints.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient, Object
from brokerset_operator.certificates_view import (
    FOLLOWING,
    RENEWED,
    RETIRED,
    SHOWN,
    SIGNING,
    decoded,
    read_authority,
)
from brokerset_operator.model import names
from brokerset_operator.model.actions import IssueCertificate, WriteAuthority
from brokerset_operator.model.observed import Meta
from brokerset_operator.plan.objects import time_text
from brokerset_spec.manifest import API_VERSION, KIND

if TYPE_CHECKING:
    from brokerset_runtime.tls.authority import Authority

log = structlog.get_logger(__name__)

AUTHORITY_TYPE: Final = "Opaque"
CERTIFICATE_TYPE: Final = "kubernetes.io/tls"


class SecretOvertaken(Exception):
    """A Secret is not what the decision was made on; the next reconcile decides again."""


async def write_authority(client: KubeClient, meta: Meta, action: WriteAuthority, now: float) -> None:
    """Carry out one step of an authority. Raises `SecretOvertaken`, or a `KubeError`."""
    name = names.authority(meta.name)
    live = await _as_decided(client, meta, name, action.version)
    data = dict((live or {}).get("data") or {})
    match action.change:
        case "make":
            data = _entries(SIGNING, _new_authority(meta, action.days, now))
        case "prepare":
            data |= _entries(FOLLOWING, _new_authority(meta, action.days, now))
        case "promote":
            if any(entry not in data for entry in FOLLOWING):
                raise SecretOvertaken(f"Secret {name} has no next authority any more")
            data |= {now: data.pop(then) for now, then in zip(SIGNING, FOLLOWING, strict=True)}
    if action.change != "prepare":
        data[RETIRED] = _encoded("".join(action.trusted).encode())
    await _write(client, meta, live, name, AUTHORITY_TYPE, data, action.renewal)
    log.info(
        "authority changed",
        set=f"{meta.namespace}/{meta.name}",
        change=action.change,
        trusted_besides=len(action.trusted),
        reason=action.why,
    )


async def issue_certificate(client: KubeClient, meta: Meta, action: IssueCertificate, now: float) -> None:
    """Issue a certificate with a new key. Raises `SecretOvertaken`, or a `KubeError`."""
    from brokerset_runtime.tls.authority import Authority

    name = names.certificate(meta.name)
    live = await _as_decided(client, meta, name, action.version)
    secret = await client.get(kinds.SECRET, names.authority(meta.name), meta.namespace)
    signing = read_authority(secret).signing
    if signing is None or signing.fingerprint != action.authority:
        raise SecretOvertaken(f"another authority signs for {meta.name} by now")
    authority = Authority(*(decoded(secret, entry) for entry in SIGNING))
    # A certificate that outlives who signed it is refused then all the same.
    lifetime = min(timedelta(days=action.days), timedelta(seconds=signing.not_after - now))
    issued = authority.issue(
        f"{meta.namespace}/{meta.name}",
        action.hosts,
        lifetime=lifetime,
        now=datetime.fromtimestamp(now, UTC),
    )
    pair = (issued.certificate, issued.key)
    data = dict(zip(SHOWN, map(_encoded, pair), strict=True))
    await _write(client, meta, live, name, CERTIFICATE_TYPE, data, action.renewal)
    log.info(
        "certificate issued",
        set=f"{meta.namespace}/{meta.name}",
        until=time_text(now + lifetime.total_seconds()),
        names=len(action.hosts),
        reason=action.why,
    )


def _new_authority(meta: Meta, days: int, now: float) -> Authority:
    from brokerset_runtime.tls.authority import Authority

    # Two authorities of a set have different names: some peers choose among them by name alone.
    name = f"{os.urandom(4).hex()} {meta.namespace}/{meta.name}"
    return Authority.make(name, lifetime=timedelta(days=days), now=datetime.fromtimestamp(now, UTC))


async def _as_decided(client: KubeClient, meta: Meta, name: str, version: str | None) -> Object | None:
    """The Secret, if it is the one of that version; None for one that is to be made."""
    if version is None:
        return None
    live = await client.get(kinds.SECRET, name, meta.namespace)
    if str(live["metadata"]["resourceVersion"]) != version:
        raise SecretOvertaken(f"Secret {name} has changed meanwhile")
    return live


async def _write(
    client: KubeClient,
    meta: Meta,
    live: Object | None,
    name: str,
    kind: str,
    data: Mapping[str, str],
    renewal: str,
) -> None:
    metadata: dict[str, Any] = dict(live["metadata"]) if live is not None else {}
    metadata |= {
        "name": name,
        "namespace": meta.namespace,
        "labels": {**(metadata.get("labels") or {}), **names.labels(meta.name)},
        "annotations": {**(metadata.get("annotations") or {}), RENEWED: renewal},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": meta.name,
                "uid": meta.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    metadata.pop("managedFields", None)
    secret = {
        "apiVersion": kinds.SECRET.api_version,
        "kind": kinds.SECRET.kind,
        "type": kind,
        "metadata": metadata,
        "data": dict(data),
    }
    await (client.create(secret) if live is None else client.replace(secret))


def _entries(entries: tuple[str, str], made: Authority) -> dict[str, str]:
    return dict(zip(entries, map(_encoded, (made.certificate, made.key)), strict=True))


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
