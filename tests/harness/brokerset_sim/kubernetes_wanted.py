"""The few objects that the model of Kubernetes knows, in the form of the operator's real builders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import access_stages, names
from brokerset_operator.model.certificates import (
    AuthoritySecret,
    Certificate,
    CertificateSecret,
    OwnCertificates,
)
from brokerset_operator.model.observed import Object, Observed
from brokerset_operator.model.password_rotation import template_secret
from brokerset_operator.model.tls_stages import ANNOTATION, TlsStage, next_step
from brokerset_operator.resources.live_settings import restarting
from brokerset_operator.resources.settings_files import BROKER_FILE, read_file
from brokerset_operator.resources.wanted import Shape
from brokerset_spec.manifest import BrokerSet

NAME: Final = "orders"
NAMESPACE: Final = "shop"
UID: Final = "set-uid"

YEARS_SECONDS: Final = 1e9
GROUPS_MAX: Final = 100
HOSTS: Final = frozenset(
    f"{host}.{NAMESPACE}.svc"
    for host in (
        names.namesrv_service(NAME),
        f"*.{names.controller_set(NAME)}",
        f"*.{names.namesrv_pods_service(NAME)}",
        *(f"*.{names.group_set(NAME, index)}" for index in range(GROUPS_MAX)),
        *(names.master_service(NAME, index) for index in range(GROUPS_MAX)),
    )
)
"""What a certificate is for, of whichever groups."""

READ_ONLY: Final = 4
READ_AND_WRITE: Final = 6
"""Values of `brokerPermission`."""


def wanted_of_model(observed: Observed, shape: Shape) -> tuple[Mapping[str, Any], ...]:
    """The few objects that the model knows, in the form of the real builders."""
    manifest = observed.manifest
    assert manifest is not None, "the model's manifests are valid"
    spec = manifest.spec
    size = spec.storage.size
    when_deleted = spec.storage.when_deleted
    found: list[Mapping[str, Any]] = []
    controllers = names.controller_set(NAME)
    settings = {"raftJoin": "true" if shape.raft_join else "false"}
    own = spec.controllers.storage
    controllers_size = own.size if own is not None and own.size is not None else "1Gi"
    if manifest.is_dledger and not manifest.controllers_wanted:
        name_servers, image = names.namesrv_set(NAME), observed.operator.image
        found.append(_config_map(observed, name_servers, {"needWaitForService": "true"}))
        found.append(_stateful_set(name_servers, 2, image, observed, "1Gi", when_deleted))
    elif spec.controllers.ref is None:
        found.append(_config_map(observed, controllers, settings))
        found.append(
            _stateful_set(
                controllers,
                shape.controller_replicas,
                observed.operator.image,
                observed,
                controllers_size,
                when_deleted,
            )
        )
    for index, replicas in sorted(shape.groups.items()):
        name = names.group_set(NAME, index)
        old = settings_of(observed.config_maps.get(name, {}))
        expected = old.get("expectedReplicas") or str(spec.replicas)
        given = {key: str(value) for key, value in sorted(spec.config.items())}
        given["minInSyncReplicas"] = str(manifest.min_in_sync_replicas)
        mark = f"{restarting(given)} {observed.operator.image}"
        file = {**given, "expectedReplicas": expected}
        if index in shape.read_only_groups:
            file["brokerPermission"] = str(READ_ONLY)
        found.append(_config_map(observed, name, file))
        found.append(
            {"kind": "EndpointSlice", "apiVersion": "v1", "metadata": _meta(observed, f"{name}-master", name)}
        )
        found.append(_stateful_set(name, replicas, mark, observed, size, when_deleted))
    return tuple(found)


def _meta(observed: Observed, name: str, group: str | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "labels": names.labels(NAME, group=group),
        "ownerReferences": [{"kind": "BrokerSet", "name": NAME, "uid": observed.meta.uid}],
    }


def _config_map(observed: Observed, name: str, data: dict[str, str]) -> Mapping[str, Any]:
    group = None if name in (names.controller_set(NAME), names.namesrv_set(NAME)) else name
    text = "".join(f"{key}={value}\n" for key, value in data.items())
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": _meta(observed, name, group),
        "data": {BROKER_FILE: text},
    }


def certificates_of(manifest: BrokerSet, now: float) -> OwnCertificates | None:
    """What an authority of the set's own has made, if there is to be one: good for years, for all names."""
    if manifest.spec.tls.authority is None:
        return None
    of_all = Certificate(
        fingerprint="f", made=now - 1, not_after=now + YEARS_SECONDS, names=HOSTS, pem="the only one"
    )
    return OwnCertificates(
        authority=AuthoritySecret(version="1", signing=of_all),
        certificate=CertificateSecret(version="1", shown=of_all, signed_by="f"),
        published=((of_all, now - 1),),
    )


def settings_of(config_map: Object) -> dict[str, str]:
    """What a ConfigMap says."""
    return read_file(config_map)


def permission_of(file: Mapping[str, str]) -> int:
    """What a file says that a group permits."""
    return int(file.get("brokerPermission", READ_AND_WRITE))


def started_with(keeper: str, file: Mapping[str, str]) -> dict[str, str]:
    """What a broker says of its settings that has just read its file."""
    defaults = {"minInSyncReplicas": "1", "fileReservedTime": "72", "brokerName": keeper, "ownerUid": UID}
    return {name: file.get(name, text) for name, text in defaults.items()}


def _stateful_set(
    name: str, replicas: int, mark: str, observed: Observed, size: str, when_deleted: str
) -> Mapping[str, Any]:
    stage = next_step(observed).stage
    annotations = {names.HASH_ANNOTATION: f"{mark} {stage.name}"}
    if stage > TlsStage.SERVING:
        annotations[ANNOTATION] = stage.name.lower()
    named = name.rpartition("-")[2]
    component = named if named in ("controller", "namesrv") else "broker"
    if done := access_stages.does(component, access_stages.next_step(observed).stage):
        secret = str(template_secret(observed))
        annotations |= {access_stages.ANNOTATION: done, access_stages.SECRET_ANNOTATION: secret}
        annotations[names.HASH_ANNOTATION] += f" {done} {secret}"
    return {
        "kind": "StatefulSet",
        "apiVersion": "apps/v1",
        "metadata": _meta(observed, name),
        "spec": {
            "replicas": replicas,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": when_deleted, "whenScaled": "Retain"},
            "template": {
                "metadata": {
                    "labels": {names.COMPONENT_LABEL: component},
                    "annotations": annotations,
                },
                "spec": {"containers": [{"name": "main", "image": observed.operator.image}]},
            },
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": names.VOLUME},
                    "spec": {"resources": {"requests": {"storage": size}}},
                }
            ],
        },
    }
