"""How far the TLS of a set has got, pod by pod, and which stage comes next. Pure.

A pod is in one stage from its start to its end: its template says which file of keys its process reads
(`resources/tls_files`). Pods of two stages next to each other always reach each other:

* below `ACCEPTING` all connect plain, and ports of members refuse TLS, as nobody knows an authority;
* `ACCEPTING` pods take TLS at each port, plain too, and connect plain;
* `CONNECTING` pods connect by TLS, and still take plain;
* `ENFORCING` pods refuse plain.

So templates go on by one stage, in either direction, when every pod of the set is in the stage of its
template; and back at any time, as pods are in these two stages then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.certificates import OwnCertificates, certificate_secret, trust_config_map
from brokerset_operator.model.observed import Object, Observed
from brokerset_spec.manifest import BrokerSet

ANNOTATION: Final = f"{names.DOMAIN}/tls"
"""Of a pod: its stage. Pods below `ACCEPTING` have none."""

VOLUME: Final = "tls"
TRUST_VOLUME: Final = "tls-trust"
"""Names of the volumes of a pod with its certificate, and with whom it trusts."""

PROCESSES: Final = frozenset({"controller", "broker", "namesrv"})
"""Components whose pods talk to each other."""


class TlsStage(IntEnum):
    """What a pod does about TLS."""

    SERVING = 0
    """Serves clients by it, or has none."""

    ACCEPTING = 1
    CONNECTING = 2
    ENFORCING = 3


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
    if tls.mode == "enforcing":
        return TlsStage.ENFORCING
    return TlsStage.SERVING if trust_config_map(manifest) is None else TlsStage.ACCEPTING


def next_step(observed: Observed) -> TlsStep:
    """Return the stage that templates are to have now; `observed` must have a valid manifest."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    wanted = wanted_stage(observed.manifest)
    pods = _pods(observed.pods)
    templates = [_template_stage(each) for each in observed.stateful_sets.values()]
    if not templates and not pods:
        return TlsStep(wanted, wanted)
    stages = templates or list(pods.values())
    # Templates differ only while a reconcile was interrupted that changes them: by one stage.
    now = max(stages) if wanted >= max(stages) else min(stages)
    if now == wanted:
        return TlsStep(now, wanted)
    following = TlsStage(now + (1 if wanted > now else -1))
    others = sorted(name for name, stage in pods.items() if stage not in (now, following))
    missing = sorted(_expected(observed.stateful_sets) - pods.keys())
    if following in pods.values():
        missing = []  # a way back: those that are made meanwhile are in one of the two stages as well
    if others or missing or min(stages) != max(stages):
        first = (others or missing or ["a StatefulSet"])[0]
        return TlsStep(now, wanted, f"{first} is not {now.name.lower()} yet")
    refused = _why_not_on(observed, now) if wanted > now else ""
    if refused:
        return TlsStep(now, wanted, refused=refused)
    return TlsStep(following, wanted)


def connects_by_tls(pods: Mapping[str, Object]) -> bool:
    """Whether to connect to a set's pods by TLS: as soon as all of them do, or one refuses plain.

    All take it then, for nobody is `CONNECTING` before all are `ACCEPTING`. No sooner: the first pod that
    connects shows whether the certificate is any good, and if not the operator has to see the others.
    """
    stages = _pods(pods).values()
    if TlsStage.ENFORCING in stages:
        return True
    return min(stages, default=TlsStage.SERVING) >= TlsStage.CONNECTING


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
    if trusted is not None and not another and spec.controllers.ref is None:
        return None  # the manifest has a Secret, too
    templates = map(_template_stage, observed.stateful_sets.values())
    stages = (*_pods(observed.pods).values(), *templates)
    if max(stages, default=TlsStage.SERVING) < TlsStage.CONNECTING:
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


def _pods(pods: Mapping[str, Object]) -> dict[str, TlsStage]:
    found = {}
    for name, pod in pods.items():
        metadata = pod.get("metadata") or {}
        if (metadata.get("labels") or {}).get(names.COMPONENT_LABEL) in PROCESSES:
            found[name] = _stage(metadata)
    return found


def _expected(stateful_sets: Mapping[str, Object]) -> set[str]:
    return {
        f"{name}-{ordinal}"
        for name, each in stateful_sets.items()
        for ordinal in range(int((each.get("spec") or {}).get("replicas", 1)))
    }


def _template_stage(stateful_set: Object) -> TlsStage:
    template = (stateful_set.get("spec") or {}).get("template") or {}
    return _stage(template.get("metadata") or {})


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
