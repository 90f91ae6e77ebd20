"""What people are told of a set's way to the mode of TLS that its manifest asks for.

What is done is in the objects: each template has the stage that `model/tls_stages` says, and pods with older
templates are replaced as after every change (`rollout`).
"""

from __future__ import annotations

from brokerset_operator.model.tls_stages import next_step
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Facts
from brokerset_operator.plan.steps import Steps


def report_tls(facts: Facts) -> Steps:
    """Say what is waited for, and what keeps the set from getting any further."""
    step, trouble = next_step(facts.observed), facts.observed.tls_trust_problem
    if step.refused:
        yield steps.Raise(reasons.TLS_REFUSED, reasons.UNSAFE, f"{step.refused}; pods stay as they are")
        yield steps.Waits(step.refused, steps.WAIT_SECONDS)
    elif trouble is not None:
        yield steps.Raise(reasons.TLS_REFUSED, reasons.NO_TRUST, trouble)
        yield steps.Waits(trouble, steps.WAIT_SECONDS)
    elif step.stage != step.wanted:
        now, end = step.stage.name.lower(), step.wanted.name.lower()
        why = f"TLS of the set becomes {end}; now pods become {now}"
        yield steps.GoesOn(reasons.CHANGING_TLS, why)
