"""`kubectl brokerset switchover`: another master, by the operator, and its answer."""

from __future__ import annotations

import time
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
from brokerset_cli.kubernetes.kube_api import KubeApi
from brokerset_cli.kubernetes.options import kube_options, timeout_option
from brokerset_cli.kubernetes.sets import GroupView, Request, SetView
from brokerset_cli.options import json_option
from brokerset_cli.output import fail, write_json

WAIT_SECONDS: Final = 60


def answer_of(seen: SetView, value: str) -> Request | None:
    """The operator's answer to the switchover `value`, for good or not."""
    found = seen.requests.get(names.SWITCH_OVER_REQUEST)
    return found if found is not None and found.value == value else None


def _ask(api: KubeApi, name: str, value: str, *, instead: bool, seconds: float) -> None:
    """Write the annotation so that the operator acts on it, also when it was asked for the same before.

    Every value is acted on once. One that is answered has to be forgotten first: without the annotation the
    operator drops its answer.
    """

    def is_answered(seen: SetView) -> bool:
        found = answer_of(seen, value)
        return found is not None and not found.open

    def forget(seen: SetView) -> dict[str, str | None]:
        return {names.SWITCH_OVER: None} if is_answered(seen) else {}

    def write(seen: SetView) -> dict[str, str | None]:
        other, there = seen.requests.get(names.SWITCH_OVER_REQUEST), seen.annotations.get(names.SWITCH_OVER)
        going = other is not None and other.open and other.value == there
        if other is not None and going and other.value != value and not instead:
            fail(
                f"the operator is still at another switchover of {name}, {other.value}: {other.message}",
                "wait for it, or give --instead to drop it",
            )
        return {names.SWITCH_OVER: value}

    if is_answered(edit(api, name, forget)):
        gone, seen = wait_for(api, name, lambda seen: None if is_answered(seen) else True, max(seconds, 1.0))
        if gone is None:
            no_answer(seen, name, "the end of the switchover before this one", max(seconds, 1.0))
    edit(api, name, write)


def _await(api: KubeApi, name: str, value: str, seconds: float) -> tuple[Request, SetView]:
    progress = Progress()

    def answered(seen: SetView) -> Request | None:
        there = seen.annotations.get(names.SWITCH_OVER)
        if there != value:
            fail(
                f"somebody took the request for {value} back: the annotation is {there or 'gone'} now",
                f"`kubectl brokerset status {seen.place}` shows what was done",
            )
        found = answer_of(seen, value)
        if found is not None and found.open:
            progress.say(found.message)
        return found if found is not None and not found.open else None

    found, seen = wait_for(api, name, answered, seconds)
    if found is not None and seen is not None:
        return found, seen
    waiting = answer_of(seen, value) if seen is not None else None
    if seen is None or waiting is None:
        no_answer(seen, name, f"the switchover to {value}", seconds)
    fail(
        f"no switchover within {seconds:.0f} s: {waiting.message}",
        f"the operator goes on trying for {names.PATIENCE_SECONDS // 60} minutes; `kubectl brokerset status "
        f"{seen.place}` shows it. To take it back: `kubectl annotate brokerset {seen.place}"
        f" {names.SWITCH_OVER}-`",
    )


def _check(seen: SetView, given: str, to: int | None) -> GroupView:
    need_answers(seen)
    group = one_group(seen, given)
    if to is not None and group.brokers and group.broker(to) is None:
        fail(
            f"{group.name} has no broker {to}",
            f"its brokers are {group.ids}; `kubectl brokerset status {seen.place}` shows them",
        )
    return group


@click.command(short_help="Let another broker of a group be master.")
@click.argument("set_name", metavar="SET")
@click.argument("group")
@click.option(
    "--to", type=click.IntRange(0), metavar="ID", help="The new master. [default: who has most of the log]"
)
@click.option("--instead", is_flag=True, help="Drop another switchover that the operator is still at.")
@timeout_option(WAIT_SECONDS, "Wait so long for the answer; 0 asks and does not wait.")
@kube_options
@json_option
def switchover(
    api: KubeApi,
    set_name: str,
    group: str,
    to: int | None,
    instead: bool,
    timeout_seconds: int,
    as_json: bool,
) -> None:
    """Let another in-sync broker of GROUP be master; sends wait a moment and none fails."""
    began = time.monotonic()
    before = fetch_set(api, set_name)
    chosen = _check(before, group, to)
    value = chosen.name if to is None else f"{chosen.name}/{to}"
    if to is not None and chosen.master_id == to:
        _show(before, chosen.name, value, names.FINISHED, f"broker {to} is master already", as_json)
        return
    _ask(api, set_name, value, instead=instead, seconds=timeout_seconds)
    if not timeout_seconds:
        _show(before, chosen.name, value, "Asked", "the operator does it; see status", as_json)
        return
    answer, after = _await(api, set_name, value, max(timeout_seconds - (time.monotonic() - began), 1.0))
    if answer.state != names.FINISHED and not as_json:
        fail(
            f"{chosen.name}: {answer.state}: {answer.message}",
            f"the master is as before; `kubectl brokerset status {after.place}` shows who is in sync",
        )
    _show(after, chosen.name, value, answer.state, answer.message, as_json)
    if answer.state != names.FINISHED:
        raise SystemExit(1)


def _show(seen: SetView, name: str, value: str, state: str, message: str, as_json: bool) -> None:
    group = seen.group(name)
    if as_json:
        write_json(
            {
                "set": seen.name,
                "namespace": seen.namespace,
                "group": name,
                "value": value,
                "state": state,
                "message": message,
                "masterId": group.master_id if group is not None else None,
                "masterPod": group.master_pod if group is not None else None,
                "masterEpoch": group.epoch if group is not None else None,
            }
        )
        return
    place = ""
    if state == names.FINISHED and group is not None and group.master_pod is not None:
        place = f" (pod {group.master_pod}, epoch {group.epoch})"
    click.echo(f"{name}: {state}: {message}{place}")
