"""How far the access control of a set has got, pod by pod, and which stage comes next (`spec.acl`). Pure.

How a set goes on from one stage to the next is in `staging`. Pods of two stages next to each other always let
each other in, because who is checked by somebody has signed before:

* `SIGNING`: brokers sign what they ask. Controllers and name servers are as before.
* `ADMINISTRATION`: controllers and name servers check who administers, and sign what they ask brokers, which
  they do not before: who registers with them could send signed requests on.
* `ENFORCING`: brokers check, too.

The operator signs in every stage. Brokers are the same in the first two, and controllers in the last two, so
brokers are replaced twice and controllers once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.observed import Observed
from brokerset_operator.model.staging import Ladder, position, processes, template_metadata
from brokerset_spec.manifest import BrokerSet
from brokerset_spec.set_parts import ENFORCING

ANNOTATION: Final = f"{names.DOMAIN}/access"
"""Of a pod: what it does about access."""

SECRET_ANNOTATION: Final = f"{names.DOMAIN}/access-secret"
"""Of a pod: the Secret with its users."""

SIGNS: Final = "signing"
CHECKS: Final = "checking"
"""What a pod does."""


class AccessStage(IntEnum):
    """What pods of a set do about access."""

    OPEN = 0
    SIGNING = 1
    ADMINISTRATION = 2
    ENFORCING = 3


@dataclass(frozen=True, slots=True)
class AccessStep:
    """The stage of the templates in this reconcile, and what keeps it from being what is wanted."""

    stage: AccessStage
    wanted: AccessStage
    waits_for: str = ""
    """What goes on by itself, until the next stage begins."""

    refused: str = ""
    """Why the next stage is not begun, and what people have to do."""


def does(component: str, stage: int) -> str:
    """What a pod of a component does in a stage: `SIGNS`, `CHECKS`, or empty for nothing."""
    if component == "broker":
        return ("", SIGNS, SIGNS, CHECKS)[stage]
    return CHECKS if stage >= AccessStage.ADMINISTRATION else ""


LADDER: Final = Ladder(
    annotation=ANNOTATION, names=tuple(stage.name.lower() for stage in AccessStage), written=does
)


def wanted_stage(manifest: BrokerSet) -> AccessStage:
    """Where a set is to get."""
    acl = manifest.spec.acl
    if acl.secret_name is None:
        return AccessStage.OPEN
    return AccessStage.ENFORCING if acl.mode == ENFORCING else AccessStage.SIGNING


def next_step(observed: Observed) -> AccessStep:
    """Return the stage that templates are to have now; `observed` must have a valid manifest."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    wanted = wanted_stage(observed.manifest)
    at = position(LADDER, observed, wanted)
    now = AccessStage(at.now)
    if now == wanted:
        return AccessStep(now, wanted)
    others = sorted(set(_secrets(observed)) - {observed.manifest.spec.acl.secret_name})
    waits = at.waits_for or (f"a pod has the users of Secret {others[0]}" if others and wanted > now else "")
    if waits:
        return AccessStep(now, wanted, waits)
    refused = _why_not_on(observed) if wanted > now else ""
    if refused:
        return AccessStep(now, wanted, refused=refused)
    return AccessStep(AccessStage(at.following), wanted)


def must_wait(observed: Observed) -> str | None:
    """Why a set without pods is not made yet: it would be open, or nobody could administer it."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    there = observed.stateful_sets or list(processes(observed.pods))
    if there or wanted_stage(observed.manifest) is AccessStage.OPEN:
        return None
    return observed.access_problem


def changed_too_soon(observed: Observed) -> str | None:
    """What the manifest must not change yet, and what to do; None when pods can do without.

    Pods that check let nobody in who signs with other passwords, nor can the way back begin without them.
    """
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    secret = observed.manifest.spec.acl.secret_name
    if not any(text == CHECKS for text in _done(observed)):
        return None
    others = sorted(set(_secrets(observed)) - {secret})
    if not others:
        return None
    return (
        f"spec.acl.secretName: pods of the set check who signs with the users of Secret {others[0]}; put it"
        " back with mode: permissive, and change or take it out when Progressing says Done"
    )


def _why_not_on(observed: Observed) -> str:
    """Why a set must not get any further."""
    if observed.access_problem is not None:
        return observed.access_problem
    if observed.shared_by:
        sets = ", ".join(observed.shared_by)
        return (
            f"controllers of this set serve {sets}, whose brokers sign nothing: give each of these sets"
            " controllers of its own, or leave acl out"
        )
    return ""


def _all(observed: Observed) -> Iterator[Mapping[str, Any]]:
    """Annotations of pods and templates."""
    pods = (pod.get("metadata") or {} for _, pod in processes(observed.pods))
    for metadata in (*pods, *template_metadata(observed)):
        yield metadata.get("annotations") or {}


def _done(observed: Observed) -> list[str]:
    return [str(annotations.get(ANNOTATION, "")) for annotations in _all(observed)]


def _secrets(observed: Observed) -> list[str]:
    return [
        str(annotations[SECRET_ANNOTATION])
        for annotations in _all(observed)
        if SECRET_ANNOTATION in annotations
    ]
