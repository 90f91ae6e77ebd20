"""`kubectl brokerset fence` and `unfence`: one list in an annotation, and nobody's entry is lost."""

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
from brokerset_cli.kubernetes.kube_api import KubeApi
from brokerset_cli.kubernetes.options import kube_options, timeout_option
from brokerset_cli.kubernetes.sets import GroupView, Request, SetView
from brokerset_cli.options import json_option
from brokerset_cli.output import fail, write_json

WAIT_SECONDS: Final = 60

FENCED_MAX: Final = 64
"""Most brokers that the operator takes in one annotation."""


def entries(value: str | None) -> list[str]:
    """The brokers that an annotation lists, as they are written there."""
    return [each.strip() for each in (value or "").split(",") if each.strip()]


def is_entry(entry: str, group: GroupView, broker_id: int) -> bool:
    """Whether an entry names this broker, by the group's name or by its StatefulSet's."""
    name, _, number = entry.partition("/")
    return name in (group.name, group.resource) and number.isdecimal() and int(number) == broker_id


def with_entry(value: str | None, group: GroupView, broker_id: int) -> str:
    """The list with a broker in it."""
    listed = entries(value)
    if not any(is_entry(each, group, broker_id) for each in listed):
        listed.append(f"{group.name}/{broker_id}")
    return ",".join(listed)


def without_entry(value: str | None, group: GroupView, broker_id: int) -> str | None:
    """The list without a broker; None when nothing is left."""
    return ",".join(each for each in entries(value) if not is_entry(each, group, broker_id)) or None


def _role(seen: SetView, group: str, broker_id: int) -> str | None:
    found = seen.group(group)
    broker = found.broker(broker_id) if found is not None else None
    return broker.role if broker is not None else None


def _answer(seen: SetView) -> Request | None:
    """What the operator says about the annotation as it is now."""
    found, value = seen.requests.get(names.FENCE_REQUEST), seen.annotations.get(names.FENCE) or ""
    return found if found is not None and found.value == value else None


def _await(
    api: KubeApi, set_name: str, group: GroupView, broker_id: int, *, fenced: bool, seconds: float
) -> SetView:
    progress = Progress()
    what = f"{group.name}/{broker_id}"

    def done(seen: SetView) -> SetView | None:
        there = any(is_entry(each, group, broker_id) for each in entries(seen.annotations.get(names.FENCE)))
        if there != fenced:
            change = "out of the list" if fenced else "into the list again"
            fail(
                f"somebody else put {what} {change} while this waited",
                f"`kubectl brokerset status {seen.place}` shows what was done",
            )
        answer, role = _answer(seen), _role(seen, group.name, broker_id)
        if answer is not None and not answer.open and answer.state != names.FINISHED:
            fail(f"{what}: {answer.state}: {answer.message}", _take_back(set_name, seen))
        if answer is not None and answer.open:
            progress.say(answer.message)
        if fenced:
            return seen if answer is not None and role == names.FENCED else None
        # The answer goes with the last entry, so its absence is an answer too.
        heard = answer is not None or names.FENCE_REQUEST not in seen.requests
        return seen if heard and role != names.FENCED else None

    found, seen = wait_for(api, set_name, done, seconds)
    if found is not None:
        return found
    waiting = _answer(seen) if seen is not None else None
    verb = "fenced" if fenced else "taken in again"
    if seen is None or waiting is None:
        no_answer(seen, set_name, f"the request that {what} be {verb}", seconds)
    advice = f"the operator goes on trying for {names.PATIENCE_SECONDS // 60} minutes"
    fail(
        f"{what} was not {verb} within {seconds:g} s: {waiting.message}",
        f"{advice}. {_take_back(set_name, seen)}",
    )


def _take_back(set_name: str, seen: SetView) -> str:
    listed = seen.annotations.get(names.FENCE) or "empty"
    return (
        f"the annotation {names.FENCE} is {listed}; `kubectl brokerset unfence {seen.name} GROUP ID -n"
        f" {seen.namespace}` takes"
        " an entry out"
    )


def _check_fence(seen: SetView, group: GroupView, broker_id: int) -> None:
    need_answers(seen)
    broker = group.broker(broker_id)
    if broker is None:
        fail(f"{group.name} has no broker {broker_id}", f"its brokers are {group.ids}")
    if group.master_id == broker_id:
        fail(
            f"{group.name}/{broker_id} is the master; a master is not fenced",
            f"`kubectl brokerset switchover {seen.name} {group.name} -n {seen.namespace}` first",
        )


@click.command(short_help="Let a broker serve nobody; it goes on following.")
@click.argument("set_name", metavar="SET")
@click.argument("group")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0))
@timeout_option(WAIT_SECONDS, "Wait so long for the answer; 0 asks and does not wait.")
@kube_options
@json_option
def fence(
    api: KubeApi, set_name: str, group: str, broker_id: int, timeout_seconds: int, as_json: bool
) -> None:
    """Let broker ID of GROUP serve nobody; it goes on following, and is never elected."""
    seen = fetch_set(api, set_name)
    chosen = one_group(seen, group)
    _check_fence(seen, chosen, broker_id)

    def write(now: SetView) -> dict[str, str | None]:
        value = with_entry(now.annotations.get(names.FENCE), chosen, broker_id)
        if len(entries(value)) > FENCED_MAX:
            fail(
                f"more than {FENCED_MAX} brokers would be in the annotation {names.FENCE}",
                "take others in again first, with `kubectl brokerset unfence`",
            )
        return {names.FENCE: value}

    edit(api, set_name, write)
    if timeout_seconds:
        seen = _await(api, set_name, chosen, broker_id, fenced=True, seconds=timeout_seconds)
    _show(api, seen, chosen, broker_id, fenced=True, waited=bool(timeout_seconds), as_json=as_json)


@click.command(short_help="Let a fenced broker take part again.")
@click.argument("set_name", metavar="SET")
@click.argument("group")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0))
@timeout_option(WAIT_SECONDS, "Wait so long for the answer; 0 asks and does not wait.")
@kube_options
@json_option
def unfence(
    api: KubeApi, set_name: str, group: str, broker_id: int, timeout_seconds: int, as_json: bool
) -> None:
    """Let broker ID of GROUP take part again."""
    seen = fetch_set(api, set_name)
    chosen = one_group(seen, group)
    need_answers(seen)

    def write(now: SetView) -> dict[str, str | None]:
        return {names.FENCE: without_entry(now.annotations.get(names.FENCE), chosen, broker_id)}

    before = edit(api, set_name, write)
    if not _ours(before, chosen, broker_id):
        if _role(before, chosen.name, broker_id) == names.FENCED:
            fail(
                f"{chosen.name}/{broker_id} is fenced, but not by the annotation {names.FENCE}",
                f"to bring it under the operator and take it back: `kubectl brokerset fence {set_name} "
                f"{chosen.name} {broker_id} -n {before.namespace}`, then this command again",
            )
        if not as_json:
            click.echo(f"{chosen.name}/{broker_id} is not fenced.")
            return
        timeout_seconds = 0
    if timeout_seconds:
        seen = _await(api, set_name, chosen, broker_id, fenced=False, seconds=timeout_seconds)
    _show(api, seen, chosen, broker_id, fenced=False, waited=bool(timeout_seconds), as_json=as_json)


def _ours(seen: SetView, group: GroupView, broker_id: int) -> bool:
    """Whether the annotation, or what the operator did because of it, has to do with this broker."""
    request = seen.requests.get(names.FENCE_REQUEST)
    known: Sequence[str] = (*entries(seen.annotations.get(names.FENCE)), *(request.fenced if request else ()))
    return any(is_entry(each, group, broker_id) for each in known)


def _show(
    api: KubeApi,
    seen: SetView,
    group: GroupView,
    broker_id: int,
    *,
    fenced: bool,
    waited: bool,
    as_json: bool,
) -> None:
    what, role = f"{group.name}/{broker_id}", _role(seen, group.name, broker_id)
    if as_json:
        write_json(
            {
                "set": seen.name,
                "namespace": seen.namespace,
                "group": group.name,
                "brokerId": broker_id,
                "fenced": role == names.FENCED,
                "asked": "fence" if fenced else "unfence",
                "role": role,
            }
        )
    elif not waited:
        click.echo(f"{what}: asked; `kubectl brokerset status {seen.place}` shows when it is done.")
    elif fenced:
        back = f"kubectl brokerset unfence {seen.name} {group.name} {broker_id} -n {seen.namespace}"
        click.echo(f"{what} is fenced. Take it back with: {back}")
    else:
        click.echo(
            f"{what} takes part again; `kubectl brokerset status {seen.place}` shows when it is in sync."
        )
