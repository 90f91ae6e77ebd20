"""What `adopt` shows: findings, replicas, steps; and with which exit code it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from brokerset_cli.folder import DataFolder
from brokerset_cli.output import write_json, write_table
from brokerset_cli.takeover.adopt_plan import GroupFacts
from brokerset_cli.takeover.cluster_observation import Cluster
from brokerset_cli.takeover.finish_plan import LEAVE, FinishFacts
from brokerset_cli.takeover.flow import show
from brokerset_cli.takeover.joined_set import own_name_servers
from brokerset_cli.takeover.obstacles import Finding
from brokerset_cli.takeover.steps import Step, StepState, as_json, current

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
    to_json: bool,
    last: str | None = None,
) -> int:
    """Write how things stand; returns the exit code. `last` is the step behind which it was to stop."""
    blocks = any(each.blocks for each in findings)
    if to_json:
        about = {
            "cluster": cluster.name,
            "nameServers": cluster.name_servers,
            "controllers": cluster.controllers,
            "obstacles": _as_json([each for each in findings if each.blocks]),
            "warnings": _as_json([each for each in findings if not each.blocks]),
        }
        _write_steps(about, steps, pauses)
    else:
        show_findings(findings)
        _show_groups(groups)
        if steps:
            show(steps)
        if not blocks and current(steps) is None:
            done = f"Done up to {last}." if last is not None else "All of it is done."
            click.echo(done if groups else "Nothing of ours is left.")
    return 1 if blocks else exit_code(steps)


def exit_code(steps: Sequence[Step]) -> int:
    """Whose turn it is."""
    step = current(steps)
    codes = {StepState.YOURS: YOURS_EXIT, StepState.BLOCKED: 1}
    return 0 if step is None else codes.get(step.state, 0)


def report_finish(
    facts: FinishFacts,
    steps: Sequence[Step],
    pauses: Mapping[str, float],
    to_json: bool,
    last: str | None,
    *,
    goes_on: bool,
) -> int:
    """Write how far the set has left Java's cluster; returns the exit code.

    `goes_on` is whether the command was given with `--finish`, which goes on; else it is said that this does.
    """
    step = current(steps)
    if to_json:
        about = {
            "nameServers": facts.name_servers,
            "javaNameServers": facts.java_name_servers,
            "javaControllers": facts.java_controllers,
        }
        _write_steps(about, steps, pauses)
    else:
        _show_groups([each.as_group_facts() for each in facts.groups])
        show(steps)
        if step is not None and not goes_on:
            click.echo(f"`brokerset adopt --data {facts.folder} --finish` goes on.")
        elif step is None and last is not None and steps[-1].name != LEAVE:
            click.echo(f"Done up to {last}.")
        elif step is None:
            click.echo("All of it is done.")
            click.echo(ordinary_text(facts.folder, facts.name_servers))
    return exit_code(steps)


def _write_steps(about: Mapping[str, object], steps: Sequence[Step], pauses: Mapping[str, float]) -> None:
    write_json({**about, "steps": as_json(steps), "pauseSeconds": dict(pauses)})


def report_ordinary(folder: DataFolder, to_json: bool) -> int:
    """Say that a set has left the cluster that it joined before; returns the exit code."""
    name_servers = own_name_servers(folder.memory())
    if to_json:
        _write_steps({"nameServers": name_servers}, (), {})
    else:
        click.echo(f"Nothing is left to do. {ordinary_text(str(folder.path), name_servers)}")
    return 0


def ordinary_text(folder: str, name_servers: str) -> str:
    """What people must know about a set that belongs to nobody else any more."""
    return (
        f"{folder} has an ordinary set now. Clients use namesrvAddr={name_servers}. Java's controllers and "
        "name servers are not needed for it any more, and may be stopped unless they serve other clusters. "
        "Do not start the old Java brokers again: they lack everything that was sent since, and clients that "
        "still know Java's name servers would use them."
    )


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
