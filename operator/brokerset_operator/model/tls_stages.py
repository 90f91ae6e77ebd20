"""How far the TLS of a set has got, pod by pod, and which stage comes next. Pure.

A pod's template says which file of keys its process reads (`resources/tls_files`). How a set goes on from one
stage to the next is in `staging`. Pods of two stages next to each other always reach each other:

* below `ACCEPTING` all connect plain, and ports of members refuse TLS, as nobody knows an authority;
* `ACCEPTING` pods take TLS at each port, plain too, and connect plain;
* `CONNECTING` pods connect by TLS, and still take plain;
* `ENFORCING` pods refuse plain;
* `ASKING` pods show their certificate to whoever asks, and ask clients, who need not show any;
* `REQUIRING` pods refuse clients that show none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.certificates import OwnCertificates, certificate_secret, trust_config_map
from brokerset_operator.model.observed import Object, Observed
from brokerset_operator.model.staging import Ladder, position, processes, template_metadata
from brokerset_spec.manifest import BrokerSet

ANNOTATION: Final = f"{names.DOMAIN}/tls"
"""Of a pod: its stage. Pods below `ACCEPTING` have none."""

VOLUME: Final = "tls"
TRUST_VOLUME: Final = "tls-trust"
CLIENTS_VOLUME: Final = "tls-clients"
"""Names of the volumes of a pod with its certificate, with whom it trusts, and who signs clients."""


class TlsStage(IntEnum):
    """What a pod does about TLS."""

    SERVING = 0
    """Serves clients by it, or has none."""

    ACCEPTING = 1
    CONNECTING = 2
    ENFORCING = 3
    ASKING = 4
    REQUIRING = 5


LADDER: Final = Ladder(
    annotation=ANNOTATION,
    names=tuple(stage.name.lower() for stage in TlsStage),
    written=lambda _, stage: TlsStage(stage).name.lower() if stage > TlsStage.SERVING else "",
)


@dataclass(frozen=True, slots=True)
class TlsStep:
    """The stage of the templates in this reconcile, and what keeps it from being what is wanted."""

    stage: TlsStage
    wanted: TlsStage
    waits_for: str = ""
    """What goes on by itself, until the next stage begins."""

    refused: str = ""
    """Why the next stage is not begun, and what people have to do."""


def wanted_stage(manifest: BrokerSet) -> TlsStage:
    """Where a set is to get."""
    tls = manifest.spec.tls
    if tls.clients_mode != "none":
        return TlsStage.REQUIRING if tls.clients_mode == "require" else TlsStage.ASKING
    if tls.mode == "enforcing":
        return TlsStage.ENFORCING
    return TlsStage.SERVING if trust_config_map(manifest) is None else TlsStage.ACCEPTING


def next_step(observed: Observed) -> TlsStep:
    """Return the stage that templates are to have now; `observed` must have a valid manifest."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    wanted = wanted_stage(observed.manifest)
    at = position(LADDER, observed, wanted)
    now = TlsStage(at.now)
    if now == wanted:
        return TlsStep(now, wanted)
    if at.waits_for:
        return TlsStep(now, wanted, at.waits_for)
    refused = _why_not_on(observed, now) if wanted > now else ""
    if refused:
        return TlsStep(now, wanted, refused=refused)
    return TlsStep(TlsStage(at.following), wanted)


def connects_by_tls(pods: Mapping[str, Object]) -> bool:
    """Whether to connect to a set's pods by TLS: as soon as all of them do, or one refuses plain.

    All take it then, for nobody is `CONNECTING` before all are `ACCEPTING`. No sooner: the first pod that
    connects shows whether the certificate is any good, and if not the operator has to see the others.
    """
    stages = [_stage(pod.get("metadata") or {}) for _, pod in processes(pods)]
    if max(stages, default=TlsStage.SERVING) >= TlsStage.ENFORCING:
        return True
    return min(stages, default=TlsStage.SERVING) >= TlsStage.CONNECTING


def jobs_use_tls(manifest: BrokerSet, pods: Mapping[str, Object]) -> bool:
    """Whether a job that begins now connects to the set by TLS; `manifest` says whom to trust.

    On the way to `enforcing` as soon as all pods take it, so that none is refused before its end; else as
    long as one refuses plain, or all pods use it themselves.
    """
    stages = [_stage(pod.get("metadata") or {}) for _, pod in processes(pods)]
    enforcing = wanted_stage(manifest) >= TlsStage.ENFORCING
    if max(stages, default=TlsStage.SERVING) >= TlsStage.ENFORCING or (enforcing and not stages):
        return True
    least = TlsStage.ACCEPTING if enforcing else TlsStage.CONNECTING
    return min(stages, default=TlsStage.SERVING) >= least


def forgotten(observed: Observed) -> str | None:
    """What the manifest must not leave out yet, and what to do; None when pods can do without.

    Pods from `CONNECTING` on cannot be made without certificate and authorities, nor the way back begin.
    """
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    spec = observed.manifest.spec
    trusted, own = trust_config_map(observed.manifest), _names_of_own(observed.meta.name)
    before = {
        found for each in observed.stateful_sets.values() if (found := _mounted_by(each))[1] is not None
    }
    is_own, was_own = own == (certificate_secret(observed.manifest), trusted), own in before
    another = trusted is not None and bool(before) and (is_own != was_own or _trust_is_foreign(observed))
    served = trusted is not None and not another and spec.controllers.ref is None
    if served and spec.tls.clients is not None:
        return None  # the manifest has a Secret, too
    pods = (pod.get("metadata") or {} for _, pod in processes(observed.pods))
    stages = [_stage(metadata) for metadata in (*pods, *template_metadata(observed))]
    highest = max(stages, default=TlsStage.SERVING)
    if highest >= TlsStage.ASKING and spec.tls.clients is None:
        return (
            "spec.tls.clients: pods of the set ask clients for certificates; put it back with mode: none, and"
            " take it out when Progressing says Done"
        )
    if served or highest < TlsStage.CONNECTING:
        return None
    if another:
        trusts = ", ".join(sorted({str(trust) for _, trust in before}))
        return (
            f"spec.tls: pods of the set trust ConfigMap {trusts} alone, and"
            " would refuse those of another authority; put it back with mode: permissive, and change it when"
            " Progressing says Done"
        )
    if trusted is not None:
        return (
            "spec.controllers.ref: pods of the set connect to its own controllers by TLS; take it out with"
            " mode: permissive, and put it back when Progressing says Done"
        )
    return (
        "spec.tls: pods of the set connect to each other by TLS, and need secretName and trustConfigMap; put"
        " both back with mode: permissive, and take them out when Progressing says Done"
    )


def _why_not_on(observed: Observed, now: TlsStage) -> str:
    """Why a set must not get any further."""
    if observed.tls_trust_problem is not None:
        return observed.tls_trust_problem
    if now >= TlsStage.ACCEPTING and observed.shared_by:
        sets = ", ".join(observed.shared_by)
        return (
            f"controllers of this set serve {sets}, whose pods connect without TLS: give each of these sets"
            " controllers of its own, or use mode: permissive"
        )
    return ""


def _names_of_own(name: str) -> tuple[str, str]:
    """Secret and ConfigMap that pods mount of a set with an authority of its own."""
    return names.certificate(name), names.authority(name)


def _trust_is_foreign(observed: Observed) -> bool:
    """Whether what pods trust under the name of the own authority's ConfigMap is somebody else's.

    A set that had its own authority goes on: there a copy has taken the place of its ConfigMap.
    """
    seen, status = observed.certificates, observed.status.get("tls") or {}
    return isinstance(seen, OwnCertificates) and seen.foreign_trust and status.get("source") != "authority"


def _mounted_by(stateful_set: Object) -> tuple[str | None, str | None]:
    """The Secret with a certificate, and the ConfigMap of authorities, that pods of a template mount."""
    template = (stateful_set.get("spec") or {}).get("template") or {}
    volumes = {each.get("name"): each for each in (template.get("spec") or {}).get("volumes") or ()}
    return (
        ((volumes.get(VOLUME) or {}).get("secret") or {}).get("secretName"),
        ((volumes.get(TRUST_VOLUME) or {}).get("configMap") or {}).get("name"),
    )


def _stage(metadata: Mapping[str, Any]) -> TlsStage:
    written = str((metadata.get("annotations") or {}).get(ANNOTATION, ""))
    return next((stage for stage in TlsStage if stage.name.lower() == written), TlsStage.SERVING)
