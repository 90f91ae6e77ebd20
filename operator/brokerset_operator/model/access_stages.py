"""How far the access control of a set has got, pod by pod, and which stage comes next (`spec.acl`). Pure.

How a set goes on from one stage to the next is in `staging`. Pods of two stages next to each other always let
each other in, because who is checked by somebody has signed before:

* `SIGNING`: brokers sign what they ask. Controllers and name servers are as before.
* `ADMINISTRATION`: controllers and name servers check who administers, and sign what they ask brokers, which
  they do not before: who registers with them could send signed requests on.
* `ENFORCING`: brokers check, too.
* `AUTHORIZING`: controllers go by policies, so clients of ordered subjects need rights there. By now they
  have the users of all groups, which they do not have when they begin to check, and clients sign for brokers.

Of sets that share controllers all sign as the same users: those of one Secret, which each of them names. They
go together: such a set's brokers sign before the controllers check, and check after these. Controllers go by
policies while all of these sets are to check: clients of one that checks nobody need not sign.

The operator signs in every stage. Brokers are the same in the first two and in the last two, so brokers and
controllers are replaced twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.observed import Observed
from brokerset_operator.model.peers import PeerSet
from brokerset_operator.model.staging import (
    Ladder,
    comes_along,
    component_of,
    kept_by,
    position,
    processes,
    template_metadata,
)
from brokerset_spec.manifest import BrokerSet
from brokerset_spec.set_parts import ENFORCING

ANNOTATION: Final = f"{names.DOMAIN}/access"
"""Of a pod: what it does about access."""

SECRET_ANNOTATION: Final = f"{names.DOMAIN}/access-secret"
"""Of a pod: the Secret with its users."""

SIGNS: Final = "signing"
CHECKS: Final = "checking"
AUTHORIZES: Final = "authorizing"
"""What a pod does. Of brokers `CHECKS` says that they go by policies as well."""


class AccessStage(IntEnum):
    """What pods of a set do about access."""

    OPEN = 0
    SIGNING = 1
    ADMINISTRATION = 2
    ENFORCING = 3
    AUTHORIZING = 4


POLICIES_LOG_FORMAT: Final = 6
"""Format of the controllers' log in the first version whose controllers go by policies."""


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
    """What a pod of a component does in a stage: `SIGNS`, `CHECKS`, `AUTHORIZES`, or empty for nothing."""
    if component == "broker":
        return ("", SIGNS, SIGNS, CHECKS, CHECKS)[stage]
    return ("", "", CHECKS, CHECKS, AUTHORIZES)[stage]


def wanted_stage(manifest: BrokerSet) -> AccessStage:
    """Where a set is to get."""
    acl = manifest.spec.acl
    if acl.secret_name is None:
        return AccessStage.OPEN
    if acl.mode != ENFORCING:
        return AccessStage.SIGNING
    has_controllers = not manifest.is_dledger and manifest.spec.controllers.ref is None
    return AccessStage.AUTHORIZING if has_controllers else AccessStage.ENFORCING


LADDER: Final = Ladder(
    annotation=ANNOTATION,
    wanted=wanted_stage,
    names=tuple(stage.name.lower() for stage in AccessStage),
    written=does,
    alike={AUTHORIZES: CHECKS},
)

LEFT_OUT: Final = frozenset({AccessStage.ADMINISTRATION, AccessStage.AUTHORIZING})
"""Stages that a set does not have whose controllers are another set's: nothing would change in them."""


def next_step(observed: Observed) -> AccessStep:
    """Return the stage that templates are to have now; `observed` must have a valid manifest."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    wanted = wanted_stage(observed.manifest)
    if any(each.manifest and wanted_stage(each.manifest) < AccessStage.ENFORCING for each in observed.peers):
        wanted = min(wanted, AccessStage.ENFORCING)
    joined = observed.manifest.spec.controllers.ref is not None
    at = position(LADDER, observed, wanted, LEFT_OUT if joined else frozenset())
    now = AccessStage(at.now)
    if now is AccessStage.AUTHORIZING and _is_new(observed) and _has_another_image(observed):
        return AccessStep(AccessStage.ENFORCING, wanted)  # until controllers say what they know
    if at.following == now:
        return AccessStep(now, wanted)
    up = at.following > now
    mine = observed.manifest.spec.acl.secret_name
    others = sorted(set(_secrets(observed)) - {mine})
    waits = at.waits_for or (f"a pod has the users of Secret {others[0]}" if others and up else "")
    if not waits and joined and not up and (owner := _goes_by_policies(observed.peers)) is not None:
        waits = f"controllers of BrokerSet {owner} go by policies, and end that first"
    if waits:
        return AccessStep(now, wanted, waits)
    if up and observed.access_problem is not None:
        return AccessStep(now, wanted, refused=observed.access_problem)
    if (peer := kept_by(LADDER, observed.peers, at)) is not None:
        if comes_along(LADDER, peer, at):
            why = f"pods of BrokerSet {peer.name}, which shares controllers, come first"
            return AccessStep(now, wanted, why)
        return AccessStep(now, wanted, refused=_apart(peer, mine, up=up))
    if at.following >= AccessStage.ADMINISTRATION and up:
        waits, refused = _other_users(observed.peers, mine)
        if waits or refused:
            return AccessStep(now, wanted, waits, refused)
    if at.following == AccessStage.AUTHORIZING:
        waits, refused = _without_policies(observed)
        if waits or refused:
            return AccessStep(now, wanted, waits, refused)
    return AccessStep(AccessStage(at.following), wanted)


def must_wait(observed: Observed) -> str | None:
    """Why a set without pods is not made yet: it would be open, or nobody could administer it."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    if not _is_new(observed):
        return None
    if (problem := _let_in_by_none(observed)) is not None:
        return problem
    return None if wanted_stage(observed.manifest) is AccessStage.OPEN else observed.access_problem


def changed_too_soon(observed: Observed) -> str | None:
    """What the manifest must not change yet, and what to do; None when pods can do without.

    Pods that check let nobody in who signs with other passwords, nor can the way back begin without them.
    """
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    secret = observed.manifest.spec.acl.secret_name
    if not any(text in (CHECKS, AUTHORIZES) for text in _done(observed)):
        return _let_in_by_none(observed) if _done(observed) else None
    others = sorted(set(_secrets(observed)) - {secret})
    if not others:
        return None
    return (
        f"spec.acl.secretName: pods of the set check who signs with the users of Secret {others[0]}; put it"
        " back with mode: permissive, and change or take it out when Progressing says Done"
    )


def _goes_by_policies(peers: Iterable[PeerSet]) -> str | None:
    """The set whose controllers go by policies, so that clients of ordered subjects have to sign."""
    for peer in peers:
        if any((each.get("annotations") or {}).get(ANNOTATION) == AUTHORIZES for each in peer.pods):
            return peer.name
    return None


def _is_new(observed: Observed) -> bool:
    """Whether nothing was made of the set yet."""
    return not observed.stateful_sets and not list(processes(observed.pods))


def _has_another_image(observed: Observed) -> bool:
    """Whether the manifest names an image that is not the operator's own, so may be an older version."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    return observed.manifest.spec.image not in (None, observed.operator.image)


def _without_policies(observed: Observed) -> tuple[str, str]:
    """Why controllers cannot go by policies: what is waited for, and what people have to do.

    One of an older version would end at a setting that it does not know, so each has to say what it knows.
    """
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    pods = {name: pod for name, pod in processes(observed.pods) if _component(pod) == "controller"}
    image = observed.manifest.spec.image or observed.operator.image
    if late := sorted(name for name, pod in pods.items() if _image(pod) not in ("", image)):
        return f"{late[0]} does not have the image {image} yet", ""
    answers = observed.controllers.answers
    if silent := sorted(name for name in pods if int(name.rpartition("-")[2]) not in answers):
        return f"{silent[0]} does not answer", ""
    old = sorted(number for number, each in answers.items() if each.log_format < POLICIES_LOG_FORMAT)
    if not old:
        return "", ""
    return "", f"controller {old[0]} is of an older version, and knows no policies: name a newer spec.image"


def _component(pod: Mapping[str, Any]) -> str:
    return component_of(pod.get("metadata") or {})


def _image(pod: Mapping[str, Any]) -> str:
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image", ""))


def _let_in_by_none(observed: Observed) -> str | None:
    """Why nobody would let in pods that have the users of the manifest; None where they would be."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    mine = observed.manifest.spec.acl.secret_name
    for peer in observed.peers:
        annotations = [metadata.get("annotations") or {} for metadata in peer.pods]
        checks = [each for each in annotations if each.get(ANNOTATION) in (CHECKS, AUTHORIZES)]
        checking = {str(each.get(SECRET_ANNOTATION)) for each in checks}
        if checking - {mine}:
            return (
                f"spec.acl.secretName: pods of BrokerSet {peer.name}, which shares controllers with this one,"
                f" check who signs with the users of Secret {min(checking)}: name it here, too, or let that"
                " set have acl.mode: permissive until this one has it"
            )
    return None


def _apart(peer: PeerSet, mine: str | None, *, up: bool) -> str:
    """Why pods of a set that shares controllers keep this one where it is, and what to do."""
    if peer.manifest is None:
        return f"BrokerSet {peer.name} shares controllers with this one, and is invalid: correct it first"
    if up:
        return (
            f"BrokerSet {peer.name} shares controllers with this one, and its pods would not be let in, or"
            f" not sign: let its spec.acl name Secret {mine}, too, and have the same mode"
        )
    return (
        f"BrokerSet {peer.name} shares controllers with this one, and its pods check who signs: let it have"
        " acl.mode: permissive first"
    )


def _other_users(peers: Iterable[PeerSet], mine: str | None) -> tuple[str, str]:
    """Whose pods sign with other users than this set's: what is waited for, and what people have to do."""
    for peer in peers:
        if peer.manifest is not None and peer.manifest.spec.acl.secret_name != mine:
            return "", _apart(peer, mine, up=True)
        found = {str((each.get("annotations") or {}).get(SECRET_ANNOTATION, mine)) for each in peer.pods}
        if others := sorted(found - {str(mine)}):
            return f"a pod of BrokerSet {peer.name} has the users of Secret {others[0]}", ""
    return "", ""


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
