"""Other passwords for the two users of a set's Secret while everybody is checked (`spec.acl`). Pure.

The manifest names another Secret with the same two names. Then, in this order:

1. As the administrator of the Secret that pods have, the operator changes the passwords at the controllers
   to those of the manifest's Secret, with the former ones kept: everybody accepts both.
2. When each broker has heard of it, templates get the manifest's Secret. Pods are replaced one at a time, and
   those of either Secret let each other in.
3. When no pod has the other Secret, what controllers have stored of the two users goes: the settings of all
   pods say the same, and count again. With it goes the former password.

Only controllers keep users for all who check. So sets in mode `dledger`, and those that share controllers,
do not have this way (`refusal`); `access_stages.changed_too_soon` says what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, Final

from brokerset_operator.model import access_stages
from brokerset_operator.model.access_stages import ANNOTATION, AUTHORIZES, CHECKS, SECRET_ANNOTATION
from brokerset_operator.model.observed import Observed
from brokerset_operator.model.staging import component_of, processes, template_metadata
from brokerset_spec.set_parts import ENFORCING

FORMER_LOG_FORMAT: Final = 6
"""Format of the controllers' log in the first version whose controllers keep former passwords."""

NOTED: Final = "changedUsers"
"""Field of `status.workflow`."""

KEPT_SECONDS: Final = 30 * 86_400
"""How long former passwords are accepted at most: as long as servers allow, since the time cannot be extended
while pods are replaced. It ends with the last pod that needs it."""


class RotationStep(Enum):
    """What is to be done now."""

    NONE = auto()
    NOTE = auto()
    """Write down that the passwords are those of the manifest's Secret from now on."""

    CHANGE = auto()
    AWAIT = auto()
    """Until the controllers answer, or until all brokers accept both."""

    ROLL = auto()
    END = auto()
    FORGET = auto()
    """Take out what was written down: nothing is stored of the users any more."""


def noted_secret(status: Mapping[str, Any]) -> str:
    """The Secret whose passwords `status.workflow` names as the newest ones; empty for none."""
    workflow = status.get("workflow")
    found = workflow.get(NOTED) if isinstance(workflow, Mapping) else None
    return found if isinstance(found, str) else ""


def concerns(observed: Observed) -> bool:
    """Whether something is left to be done, so that the controllers have to be asked who the users are."""
    return next_rotation_step(observed) is not RotationStep.NONE


def next_rotation_step(observed: Observed) -> RotationStep:
    """What to do now."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    acl, noted, others = observed.manifest.spec.acl, noted_secret(observed.status), other_secrets(observed)
    if (not others and not noted) or refusal(observed) is not None:
        return RotationStep.NONE
    seen = observed.passwords
    if seen is None or seen.problem:
        return RotationStep.AWAIT
    if noted != acl.secret_name:
        return RotationStep.NOTE
    if not seen.changed:
        return RotationStep.CHANGE
    if others:
        return RotationStep.ROLL if seen.everywhere else RotationStep.AWAIT
    return RotationStep.END if seen.former else RotationStep.FORGET


def template_secret(observed: Observed) -> str | None:
    """The Secret that templates name: the manifest's, as soon as pods with it are let in."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    mine, others = observed.manifest.spec.acl.secret_name, other_secrets(observed)
    if not others or _rolls(observed) or next_rotation_step(observed) is RotationStep.ROLL:
        return mine
    return others[0]


def changed_too_soon(observed: Observed) -> str | None:
    """What the manifest must not change yet, and what to do; None when pods can do with it."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    acl, others = observed.manifest.spec.acl, other_secrets(observed)
    found = sorted(secrets_checked_by(_annotations(observed)))
    noted = noted_secret(observed.status)
    leaves = acl.secret_name is None or acl.mode != ENFORCING
    # Servers keep one former password: with a third Secret's they would refuse the one that pods have.
    third = noted and acl.secret_name not in (*found, noted)
    if len(others) > 1 or (found and (third or (leaves and (len(found) > 1 or noted)))):
        known = sorted({*found, noted} - {""})
        return (
            f"spec.acl: pods that check get other passwords; name Secret {' or '.join(known)} with mode:"
            " enforcing until Progressing says Done"
        )
    if others and refusal(observed) is None:
        return None
    return access_stages.changed_too_soon(observed)


def refusal(observed: Observed) -> str | None:
    """Why pods that check cannot get other passwords for the same users; None if they can."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    spec = observed.manifest.spec
    if spec.acl.secret_name is None or spec.acl.mode != ENFORCING:
        return "the mode is not enforcing"
    shared = spec.controllers.ref is not None or (observed.peers and not _rolls(observed))
    if observed.manifest.is_dledger or shared:
        return "the controllers are not the set's own alone"
    if any(text != (CHECKS if kind == "broker" else AUTHORIZES) for kind, text in _done(observed)):
        return "pods do not all check by policies yet"
    if any(each.log_format < FORMER_LOG_FORMAT for each in observed.controllers.answers.values()):
        return "controllers are of an older version"
    return None


def other_secrets(observed: Observed) -> list[str]:
    """Secrets of pods and templates that check, and not the manifest's, sorted."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    mine = str(observed.manifest.spec.acl.secret_name)
    return sorted(secrets_checked_by(_annotations(observed)) - {mine})


def signing_secret(mine: str | None, metadata: Iterable[Mapping[str, Any]]) -> str | None:
    """The Secret as whose administrator the operator signs, by the metadata of pods: the one that pods have
    which check, as long as one has another Secret than the manifest's, `mine`."""
    found = secrets_checked_by(each.get("annotations") or {} for each in metadata)
    return min(found - {str(mine)}, default=mine)


def secrets_checked_by(annotations: Iterable[Mapping[str, Any]]) -> set[str]:
    """The Secrets of pods that check, by their annotations."""
    return {
        str(each[SECRET_ANNOTATION])
        for each in annotations
        if SECRET_ANNOTATION in each and each.get(ANNOTATION) in (CHECKS, AUTHORIZES)
    }


def _rolls(observed: Observed) -> bool:
    """Whether a template has the manifest's Secret: who made it so had seen that all accept both."""
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    mine = observed.manifest.spec.acl.secret_name
    return any(
        (metadata.get("annotations") or {}).get(SECRET_ANNOTATION) == mine
        for metadata in template_metadata(observed)
    )


def _metadata(observed: Observed) -> Iterator[Mapping[str, Any]]:
    yield from (pod.get("metadata") or {} for _, pod in processes(observed.pods))
    yield from template_metadata(observed)


def _annotations(observed: Observed) -> Iterator[Mapping[str, Any]]:
    return (metadata.get("annotations") or {} for metadata in _metadata(observed))


def _done(observed: Observed) -> Iterator[tuple[str, str]]:
    for metadata in _metadata(observed):
        annotations = metadata.get("annotations") or {}
        yield component_of(metadata), str(annotations.get(ANNOTATION, ""))
