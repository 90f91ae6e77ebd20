"""Other passwords for the two users of a set's Secret, step by step (`model/password_rotation`)."""

from __future__ import annotations

from typing import Final

from brokerset_operator.model import actions
from brokerset_operator.model.password_rotation import (
    KEPT_SECONDS,
    RotationStep,
    next_rotation_step,
    other_secrets,
)
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Facts
from brokerset_operator.plan.steps import Steps

REMEMBERED: Final = "changed_users"


def rotate_passwords(facts: Facts) -> Steps:
    """Change them, say what is waited for, and end the former ones when no pod needs them."""
    observed = facts.observed
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    step, seen = next_rotation_step(observed), observed.passwords
    secret = observed.manifest.spec.acl.secret_name or ""
    others = ", ".join(other_secrets(observed))
    match step:
        case RotationStep.NONE:
            return
        case RotationStep.AWAIT if seen is not None and seen.problem:
            yield steps.Raise(
                reasons.ACCESS_REFUSED, reasons.UNSAFE, f"{seen.problem}; pods stay as they are"
            )
            yield steps.Waits(seen.problem, steps.WAIT_SECONDS)
        case RotationStep.AWAIT:
            why = f"all members accept the passwords of Secret {secret}, before a pod has them"
            yield steps.GoesOn(reasons.CHANGING_ACCESS, why)
        case RotationStep.NOTE:
            yield steps.Remember(None, {REMEMBERED: secret})
            why = f"users get the passwords of Secret {secret}; those of {others} are accepted, too"
            yield steps.GoesOn(reasons.CHANGING_ACCESS, why, steps.AT_ONCE_SECONDS)
        case RotationStep.CHANGE:
            yield actions.ChangePasswords(secret, KEPT_SECONDS)
            yield steps.GoesOn(reasons.CHANGING_ACCESS, f"users get the passwords of Secret {secret}")
        case RotationStep.ROLL:
            why = f"pods get Secret {secret} instead of {others}, one at a time"
            yield steps.GoesOn(reasons.CHANGING_ACCESS, why)
        case RotationStep.END:
            yield actions.EndFormerPasswords(secret)
            why = f"all pods have Secret {secret}, and former passwords end"
            yield steps.GoesOn(reasons.CHANGING_ACCESS, why)
        case RotationStep.FORGET:
            yield steps.Remember(None, {REMEMBERED: ""})
