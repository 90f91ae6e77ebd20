"""What people are told of a set's way to the access control that its manifest asks for.

What is done is in the objects: each template has the stage that `model/access_stages` says, and pods with
older templates are replaced as after every change (`rollout`).
"""

from __future__ import annotations

from brokerset_operator.model.access_stages import next_step
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Facts
from brokerset_operator.plan.steps import Steps


def report_access(facts: Facts) -> Steps:
    """Say what is waited for, and what keeps the set from getting any further."""
    step, trouble = next_step(facts.observed), facts.observed.access_problem
    if step.refused or trouble is not None:
        text = step.refused or trouble or ""
        reason = reasons.NO_CREDENTIALS if text == trouble else reasons.UNSAFE
        yield steps.Raise(reasons.ACCESS_REFUSED, reason, f"{text}; pods stay as they are")
        yield steps.Waits(text, steps.WAIT_SECONDS)
    elif step.stage != step.wanted:
        now, end = step.stage.name.lower(), step.wanted.name.lower()
        why = f"access control of the set becomes {end}; now it becomes {now}"
        yield steps.GoesOn(reasons.CHANGING_ACCESS, why)
