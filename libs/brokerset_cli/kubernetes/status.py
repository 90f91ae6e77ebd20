"""`kubectl brokerset status`: a set as a tree of controllers, groups, brokers and pods."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import click

from brokerset_cli.kubernetes import names, tree
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Trouble
from brokerset_cli.kubernetes.options import kube_options
from brokerset_cli.kubernetes.sets import SetView, part, read_set
from brokerset_cli.options import json_option
from brokerset_cli.output import write_json, write_table
from brokerset_kube.kinds import BROKER_SET, POD

WATCH_SECONDS: Final = 2.0
"""Pause between two looks of `--watch`; each asks the API server twice."""


def observe_set(api: KubeApi, name: str) -> SetView:
    """A set with its pods. Raises `ApiFailed`."""
    given = api.broker_set(name)
    return read_set(given, api.objects(POD, f"{names.SET_LABEL}={name}"))


def observe_sets(api: KubeApi, *, all_namespaces: bool) -> list[SetView]:
    """All sets with their pods, by namespace and name. Raises `ApiFailed`."""
    sets = api.objects(BROKER_SET, all_namespaces=all_namespaces)
    pods = api.objects(POD, names.SET_LABEL, all_namespaces=all_namespaces) if sets else []

    def place(item: Any) -> tuple[object, object]:
        meta = part(item, "metadata")
        return meta.get("namespace"), part(meta, "labels").get(names.SET_LABEL)

    return [
        read_set(each, (pod for pod in pods if place(pod) == (meta.get("namespace"), meta.get("name"))))
        for each in sets
        for meta in [part(each, "metadata")]
    ]


@click.command(short_help="Show controllers, groups, brokers and pods as a tree.")
@click.argument("set_name", metavar="[SET]", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="The sets of all namespaces.")
@click.option("--watch", is_flag=True, help="Look again every two seconds until Ctrl-C.")
@kube_options
@json_option
def status(api: KubeApi, set_name: str | None, all_namespaces: bool, watch: bool, as_json: bool) -> None:
    """Show conditions, controllers, groups, brokers and pods of SET; without SET, all of a namespace.

    The exit code is 0 when every set shown is Ready, else 1; with --watch it is 0.
    """
    if set_name is not None and all_namespaces:
        raise click.UsageError("give either SET or --all-namespaces.")

    def observe() -> list[SetView]:
        if set_name is not None:
            return [observe_set(api, set_name)]
        return observe_sets(api, all_namespaces=all_namespaces)

    if watch:
        with suppress(KeyboardInterrupt):  # is how people end it
            _watch(observe, as_json=as_json, one=set_name is not None)
        return
    found = observe()
    _show(found, as_json=as_json, one=set_name is not None)
    if not all(each.ready for each in found):
        sys.exit(1)


def _show(found: list[SetView], *, as_json: bool, one: bool) -> None:
    if as_json:
        write_json(tree.as_json(found[0]) if one else [tree.as_json(each) for each in found])
    elif len(found) > 1:
        columns, rows = tree.summary(found)
        write_table(columns, rows)
    else:
        for text in _tree_of(found):
            click.echo(text)


def _tree_of(found: Iterable[SetView]) -> list[str]:
    return [text for each in found for text in tree.lines(each)] or [
        "no BrokerSets here; look at all with -A"
    ]


def _watch(observe: Callable[[], list[SetView]], *, as_json: bool, one: bool) -> None:
    """Look again and again; on a terminal each look takes the place of the one before."""

    def again() -> list[SetView] | str:
        try:
            return observe()
        except ApiFailed as error:
            # Clusters restart while people watch; anything else will not go away by itself.
            if error.trouble not in (Trouble.UNREACHABLE, Trouble.TIMEOUT):
                raise
            return f"{error.message}"

    if as_json or not sys.stdout.isatty():
        while True:
            found = again()
            if isinstance(found, str):
                click.echo(found, err=True)
            else:
                _show(found, as_json=as_json, one=one)
            time.sleep(WATCH_SECONDS)
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            found = again()
            text = found if isinstance(found, str) else "\n".join(_trees(found))
            live.update(Text.from_ansi(text), refresh=True)
            time.sleep(WATCH_SECONDS)


def _trees(found: list[SetView]) -> list[str]:
    return [
        line for n, each in enumerate(found) for line in ([""] if n else []) + tree.lines(each)
    ] or _tree_of([])
