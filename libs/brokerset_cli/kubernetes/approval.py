"""`kubectl brokerset approve`, `pause` and `resume`: what the operator may do, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.edits import (
    Progress,
    edit,
    fetch_set,
    need_answers,
    no_answer,
    one_group,
    wait_for,
)
from brokerset_cli.kubernetes.kube_api import KubeApi, selector
from brokerset_cli.kubernetes.options import kube_options, timeout_option
from brokerset_cli.kubernetes.sets import GroupView, PodView, SetView, read_pod
from brokerset_cli.output import fail
from brokerset_kube.kinds import POD

WAIT_SECONDS: Final = 30


def is_asked(seen: SetView, group: GroupView, pods: Sequence[PodView]) -> bool:
    """Whether the operator waits for a word about this group in its epoch of now; `pods` are the group's.

    The condition's reason says that something waits. It is this group if its slaves were made again and its
    master was not: of a group whose turn has not come, or is over, all pods are alike.
    """
    found = seen.condition(names.PROGRESSING)
    if found is None or found.reason != names.REASON_APPROVAL:
        return False
    if group.epoch is None or group.master_pod is None:
        return False
    master = next((pod for pod in pods if pod.name == group.master_pod), None)
    others = [pod for pod in pods if pod.name != group.master_pod]
    return master is None or not others or all(pod.make != master.make for pod in others)


def approvals(seen: SetView, group: GroupView) -> str:
    """The annotation with this group's epoch in it; entries of epochs that are over are dropped."""
    current = {f"{name}/{each.epoch}" for each in seen.groups for name in (each.name, each.resource)}
    given = (seen.annotations.get(names.APPROVE) or "").replace(" ", "").split(",")
    kept = [each for each in given if each in current]
    wanted = f"{group.name}/{group.epoch}"
    return ",".join(kept if wanted in kept else [*kept, wanted])


@click.command(short_help="Let a supervised update go on.")
@click.argument("set_name", metavar="SET")
@click.argument("group")
@timeout_option(WAIT_SECONDS, "Wait so long until the update goes on; 0 does not wait.")
@kube_options
def approve(api: KubeApi, set_name: str, group: str, timeout_seconds: int) -> None:
    """Let a supervised update go on: the master of GROUP hands over and is replaced, in this epoch only."""
    chosen: GroupView | None = None

    def asked(now: SetView, of: GroupView) -> bool:
        labels = selector({names.SET_LABEL: set_name, names.GROUP_LABEL: of.resource})
        return is_asked(now, of, [read_pod(each) for each in api.objects(POD, labels)])

    def write(now: SetView) -> dict[str, str | None]:
        nonlocal chosen
        need_answers(now)
        chosen = one_group(now, group)
        if f"{chosen.name}/{chosen.epoch}" in (now.annotations.get(names.APPROVE) or "").split(","):
            return {}
        if not asked(now, chosen):
            fail(f"nothing of {chosen.name} waits for approval", _why_not_asked(now))
        return {names.APPROVE: approvals(now, chosen)}

    edit(api, set_name, write)
    assert chosen is not None, "edit has called write"
    given, progress = chosen, Progress()
    said = f"{given.name} may hand over in epoch {given.epoch}"
    if not timeout_seconds:
        click.echo(f"{said}.")
        return

    def goes_on(now: SetView) -> str | None:
        found, state = now.condition(names.PROGRESSING), now.group(given.name)
        if state is not None and state.epoch is not None and state.epoch != given.epoch:
            return f"broker {state.master_id} is master now, in epoch {state.epoch}"
        if asked(now, given):
            progress.say("the operator has not seen it yet")
            return None
        return found.message if found is not None and found.message else "the operator goes on"

    found, seen = wait_for(api, set_name, goes_on, timeout_seconds)
    if found is None:
        no_answer(seen, set_name, f"the approval of {given.name}", timeout_seconds)
    click.echo(f"{said}: {found}.")


def _why_not_asked(seen: SetView) -> str:
    if seen.strategy != "supervised":
        return "its update strategy is automatic: the operator asks nobody"
    found = seen.condition(names.PROGRESSING)
    state = (
        f"{found.reason}{f': {found.message}' if found.message else ''}" if found is not None else "not there"
    )
    return f"condition Progressing is {state}; `kubectl brokerset status {seen.place}` shows when it waits"


@click.command(short_help="Let the operator change nothing.")
@click.argument("set_name", metavar="SET")
@timeout_option(WAIT_SECONDS, "Wait so long until the operator has heard it; 0 does not wait.")
@kube_options
def pause(api: KubeApi, set_name: str, timeout_seconds: int) -> None:
    """Let the operator change nothing of SET; brokers go on and fail over without it."""
    seen = edit(api, set_name, lambda _seen: {names.PAUSED: "true"})
    if timeout_seconds:
        _hear(api, set_name, paused=True, seconds=timeout_seconds)
    click.echo(f"{set_name} is paused. Go on with: kubectl brokerset resume {seen.place}")


@click.command(short_help="Let the operator go on after a pause.")
@click.argument("set_name", metavar="SET")
@timeout_option(WAIT_SECONDS, "Wait so long until the operator has heard it; 0 does not wait.")
@kube_options
def resume(api: KubeApi, set_name: str, timeout_seconds: int) -> None:
    """Let the operator go on with SET after a pause."""
    seen = fetch_set(api, set_name)
    if not seen.annotations.get(names.PAUSED):
        click.echo(f"{set_name} is not paused.")
        return
    edit(api, set_name, lambda _seen: {names.PAUSED: None})
    if timeout_seconds:
        _hear(api, set_name, paused=False, seconds=timeout_seconds)
    click.echo(f"{set_name} goes on; `kubectl brokerset status {seen.place}` shows what is done.")


def _hear(api: KubeApi, set_name: str, *, paused: bool, seconds: float) -> None:
    def heard(seen: SetView) -> bool | None:
        found = seen.condition(names.PROGRESSING)
        if found is None:
            return None
        # Of a manifest that is not valid the operator carries out nothing, and says so instead.
        if found.reason == names.REASON_INVALID:
            return True
        return True if (found.reason == names.REASON_PAUSED) == paused else None

    found, seen = wait_for(api, set_name, heard, seconds)
    if found is None:
        no_answer(seen, set_name, f"the annotation {names.PAUSED}", seconds)
