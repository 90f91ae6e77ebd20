"""What every builder has to know of one set, gathered once from what is observed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_operator.model import access_stages, certificates, names, password_rotation, tls_stages
from brokerset_operator.model.observed import Object, Observed, OperatorPods
from brokerset_spec.manifest import API_VERSION, KIND, BrokerSet

OWNER_UID: Final = f"{names.DOMAIN}/owner-uid"
"""Annotation of every claim: the UID that its data is bound to."""

API_VERSIONS: Final = {
    "Certificate": "cert-manager.io/v1",
    "ConfigMap": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "StatefulSet": "apps/v1",
}
"""Kinds of objects that sets consist of."""

TOGETHER_FILE: Final = "tls-authorities.crt"
"""In ConfigMaps with settings: whom pods trust that connect to pods of several sets."""

NewObject = dict[str, Any]
"""An object as it is sent to the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFacts:
    """One set, as builders see it."""

    name: str
    namespace: str
    uid: str
    """Of the BrokerSet; everything but claims is owned by it."""

    owner_uid: str
    """What brokers and controllers are bound to, see `owner_uid_of`."""

    manifest: BrokerSet
    image: str
    ip_family: str
    """See `Operator.ip_family`."""

    operator_pods: OperatorPods | None
    """See `Operator.pods`."""

    tls_stage: tls_stages.TlsStage
    """Of the pods that templates make."""

    access_stage: access_stages.AccessStage
    """The same for access control."""

    access_secret: str | None
    """The Secret with the users of these pods."""

    trusted_together: str
    """Whom pods trust that connect to those of sets that share controllers, in PEM; empty for a set alone."""

    config_maps: Mapping[str, Object]
    """As they are now: some settings never change once a group has them."""

    @property
    def controllers_of(self) -> str:
        """Name of the set, in the same namespace, whose controllers serve."""
        ref = self.manifest.spec.controllers.ref
        return ref.name if ref is not None else self.name

    @property
    def has_controllers(self) -> bool:
        """Whether the set runs controllers of its own."""
        return self.manifest.spec.controllers.ref is None and self.manifest.controllers_wanted > 0

    @property
    def has_name_servers(self) -> bool:
        """Whether name servers run by themselves: no controllers have them in them."""
        return self.manifest.is_dledger and not self.has_controllers

    @property
    def name_servers_component(self) -> str:
        """Component of the pods that serve names."""
        return "namesrv" if self.has_name_servers else "controller"

    def an_object(
        self,
        kind: str,
        name: str,
        *,
        component: str | None = None,
        group: str | None = None,
        labels: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> NewObject:
        """An object of the set with labels and owner; `rest` has its other parts (`spec`, `data`, …)."""
        return {
            "apiVersion": API_VERSIONS[kind],
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {**names.labels(self.name, component, group), **(labels or {})},
                "ownerReferences": [
                    {
                        "apiVersion": API_VERSION,
                        "kind": KIND,
                        "name": self.name,
                        "uid": self.uid,
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            **rest,
        }

    def a_service(
        self,
        name: str,
        ports: list[NewObject],
        *,
        component: str,
        group: str | None = None,
        selector: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> NewObject:
        """A Service of the set; without a selector somebody else says where it leads."""
        given = {"selector": dict(selector)} if selector is not None else {}
        return self.an_object(
            "Service", name, component=component, group=group, spec={**spec, **given, "ports": ports}
        )


def facts_of(observed: Observed) -> SetFacts:
    """Gather the facts; `observed` must have a valid manifest."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    return SetFacts(
        name=observed.meta.name,
        namespace=observed.meta.namespace,
        uid=observed.meta.uid,
        owner_uid=owner_uid_of(observed),
        manifest=observed.manifest,
        image=observed.manifest.spec.image or observed.operator.image,
        ip_family=observed.operator.ip_family,
        operator_pods=observed.operator.pods,
        tls_stage=tls_stages.next_step(observed).stage,
        access_stage=access_stages.next_step(observed).stage,
        access_secret=password_rotation.template_secret(observed),
        trusted_together=trusted_together(observed),
        config_maps=observed.config_maps,
    )


def trusted_together(observed: Observed) -> str:
    """Authorities of the set and of those with which it shares controllers; empty if these have none.

    What cannot be read now stays as it was written: pods would lose whom they need.
    """
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    others = [each.authorities for each in observed.peers if each.authorities]
    if certificates.trust_config_map(observed.manifest) is None:
        return ""
    seen, own = observed.certificates, observed.authorities
    if isinstance(seen, certificates.OwnCertificates) and seen.trusted:
        own = "".join(each.pem for each in seen.trusted)
    if not own or any(each.unknown is not None for each in observed.peers):
        written = (part.get(TOGETHER_FILE) for part in _data_of(observed.config_maps))
        return next((str(each) for each in written if each), "")
    return "".join((own, *others)) if others else ""


def _data_of(config_maps: Mapping[str, Object]) -> Iterator[Mapping[str, Any]]:
    for _, each in sorted(config_maps.items()):
        yield each.get("data") or {}


def owner_uid_of(observed: Observed) -> str:
    """The UID that the set's data is bound to, see `uid_of_data`."""
    return uid_of_data(observed.meta.name, observed.meta.uid, observed.claims)


def uid_of_data(name: str, uid: str, claims: Mapping[str, Object]) -> str:
    """The UID that a set's data is bound to: the BrokerSet's own, or of the one which made the volumes.

    Volumes outlive a BrokerSet (`storage.whenDeleted: Retain`). When a BrokerSet of the same name is made
    again its pods get those volumes, and must go on under the UID that controllers and broker groups know:
    under a new one they would be refused as somebody else's. Controllers' claims decide before brokers'.
    """
    shape = re.compile(rf"{names.VOLUME}-{re.escape(name)}-(?:(controller)|(\d+))-(\d+)")
    found: list[tuple[bool, int, int, str]] = []
    for claim_name, claim in claims.items():
        match = shape.fullmatch(claim_name)
        written = ((claim.get("metadata") or {}).get("annotations") or {}).get(OWNER_UID)
        if match is not None and written:
            found.append((match[1] is None, int(match[2] or 0), int(match[3]), written))
    return min(found)[3] if found else uid
