"""Annotations of a BrokerSet changed safely, and the operator's answer waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeVar

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Trouble
from brokerset_cli.kubernetes.sets import GroupView, SetView, read_set
from brokerset_cli.output import fail

EDITS_MAX: Final = 10
"""Tries to change an object that others change as well; the operator writes its status while it works."""

POLL_SECONDS: Final = 0.5
"""Pause between two looks for an answer."""

T = TypeVar("T")

Change = Callable[[SetView], Mapping[str, str | None]]
"""Says from a set as it is which annotations it must have; None for one that must go."""


def fetch_set(api: KubeApi, name: str) -> SetView:
    """The set as it is now, without its pods. Raises `ApiFailed`."""
    return read_set(api.broker_set(name))


def edit(api: KubeApi, name: str, change: Change) -> SetView:
    """Change annotations as `change` says; returns the set as it was before.

    What is written depends on what was read, so it is written only if nobody changed the set in between;
    else everything starts from scratch. Raises `ApiFailed`.
    """
    for _ in range(EDITS_MAX):
        seen = fetch_set(api, name)
        wanted = {key: value for key, value in change(seen).items() if seen.annotations.get(key) != value}
        if not wanted:
            return seen
        try:
            api.annotate(name, wanted, seen.resource_version)
        except ApiFailed as error:
            if error.trouble is not Trouble.CONFLICT:
                raise
        else:
            return seen
    fail(
        f"BrokerSet {name} was changed by others {EDITS_MAX} times at the same moment; nothing was written",
        "try again; if it stays so, `kubectl get brokerset -w` shows what changes",
    )


def wait_for(
    api: KubeApi, name: str, check: Callable[[SetView], T | None], seconds: float
) -> tuple[T | None, SetView | None]:
    """Look until `check` finds something; returns it, or None at the time-out, and the set as seen last.

    That the API server cannot be reached for a while is no reason to give up earlier.
    """
    deadline = time.monotonic() + seconds
    seen: SetView | None = None
    while True:
        try:
            seen = fetch_set(api, name)
            found = check(seen)
        except ApiFailed as error:
            if error.trouble not in (Trouble.UNREACHABLE, Trouble.TIMEOUT) or time.monotonic() >= deadline:
                raise
            found = None
        if found is not None or time.monotonic() >= deadline:
            return found, seen
        time.sleep(POLL_SECONDS)


class Progress:
    """Tells people on standard error what is waited for, each thing once."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        """Write a line unless it was the last one."""
        if text and text != self._last:
            click.echo(f"… {text}", err=True)
            self._last = text


def one_group(seen: SetView, name: str) -> GroupView:
    """The group of this name; ends the command with those that there are."""
    found = seen.group(name)
    if found is None:
        fail(
            f"BrokerSet {seen.name} has no group {name!r}",
            f"its groups are {', '.join(each.name for each in seen.groups)}",
        )
    return found


def need_answers(seen: SetView) -> None:
    """End the command when the operator would not look at requests now."""
    if seen.paused:
        fail(
            f"BrokerSet {seen.name} is paused, so nothing would be done",
            f"`kubectl brokerset resume {seen.place}` first",
        )
    ready = seen.condition(names.READY)
    if ready is not None and ready.reason == names.REASON_INVALID:
        fail(
            f"the manifest of BrokerSet {seen.name} is not valid, so nothing would be done: {ready.message}",
            "correct the manifest first",
        )


def no_answer(seen: SetView | None, name: str, asked: str, seconds: float) -> NoReturn:
    """End the command because the operator has not looked at a request within the time-out."""
    ready = seen.condition(names.READY) if seen is not None else None
    state = f"; the set says: {ready.message}" if ready is not None and ready.status != "True" else ""
    fail(
        f"the operator did not answer within {seconds:.0f} s to {asked}{state}",
        "the request stays and is answered in status.requests. Does the operator run? "
        f"`kubectl get pods -A -l {names.OPERATOR_SELECTOR}`. "
        f"What it sees: `kubectl brokerset status {seen.place if seen is not None else name}`",
    )
