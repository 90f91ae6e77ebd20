"""A flow as people see it; what a flow is, is in `steps`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from brokerset_cli.output import write_table
from brokerset_cli.takeover.steps import Step, StepState, as_json, current, in_order

__all__ = ["Step", "StepState", "as_json", "current", "in_order", "show"]


def show(steps: Sequence[Step]) -> None:
    """Write the steps as a table, and below it what is to be done now."""
    write_table(
        ("step", "state", "what happens", "seen"),
        [(step.name, step.state.value, step.title, step.detail or None) for step in steps],
        empty="there is nothing to do",
    )
    for step in steps:
        if step.hint and step.state in (StepState.YOURS, StepState.BLOCKED):
            click.secho(f"{step.name}: ", bold=True, nl=False)
            click.echo(step.hint)
