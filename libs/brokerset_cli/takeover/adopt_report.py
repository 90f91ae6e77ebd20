"""What `adopt` shows: findings, replicas, steps; and with which exit code it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from brokerset_cli.output import write_json, write_table
from brokerset_cli.takeover.adopt_plan import GroupFacts
from brokerset_cli.takeover.cluster_look import Cluster
from brokerset_cli.takeover.flow import Step, StepState, current, show
from brokerset_cli.takeover.flow import as_json as steps_json
from brokerset_cli.takeover.obstacles import Finding

YOURS_EXIT: Final = 3
"""Exit code when the next step is the person's."""

NO_CONTROLLERS: Final = Finding(
    "no-controllers",
    "no broker names any controllers; give them with --controllers, or see `brokerset upgrade classic`",
)


def show_findings(findings: Sequence[Finding]) -> None:
    """Write obstacles and warnings to standard error."""
    for each in findings:
        word, colour = ("Obstacle", "red") if each.blocks else ("Warning", "yellow")
        click.secho(f"{word}: {each.text}", fg=colour, err=True)


def report(
    cluster: Cluster,
    groups: Sequence[GroupFacts],
    findings: Sequence[Finding],
    steps: Sequence[Step],
    pauses: Mapping[str, float],
    as_json: bool,
    last: str | None = None,
) -> int:
    """Write how things stand; returns the exit code. `last` is the step behind which it was to stop."""
    step = current(steps)
    blocked = any(each.blocks for each in findings) or (step is not None and step.state is StepState.BLOCKED)
    yours = step is not None and step.state is StepState.YOURS
    if as_json:
        write_json(
            {
                "cluster": cluster.name,
                "nameServers": cluster.name_servers,
                "controllers": cluster.controllers,
                "obstacles": _as_json([each for each in findings if each.blocks]),
                "warnings": _as_json([each for each in findings if not each.blocks]),
                "steps": steps_json(steps),
                "pauseSeconds": dict(pauses),
            }
        )
    else:
        show_findings(findings)
        _show_groups(groups)
        if steps:
            show(steps)
        if not blocked and step is None:
            done = f"Done up to {last}." if last is not None else "All of it is done."
            click.echo(done if groups else "Nothing of ours is left.")
    return 1 if blocked else YOURS_EXIT if yours else 0


def _show_groups(groups: Sequence[GroupFacts]) -> None:
    if not groups:
        return
    write_table(
        ("group", "id", "make", "address", "role", "in sync", "log end"),
        [
            (
                group.name,
                each.broker_id,
                "ours" if each.ours else "Java",
                each.address,
                ("master" if each.broker_id == group.master_id else "slave") if each.alive else "dead",
                "yes" if each.in_sync else "no",
                each.log_end,
            )
            for group in groups
            for each in group.replicas
        ],
    )
    click.echo()


def _as_json(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"name": each.name, "text": each.text} for each in findings]
