"""Options that every verb has: which cluster, which namespace, as whom."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import click

from brokerset_cli.kubernetes.kube_api import KubeApi

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("-n", "--namespace", metavar="NS", help="Namespace. [default: that of the context]"),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig. [default: the current one]"),
    click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Kubeconfig. [default: as kubectl finds it]",
    ),
    click.option("--as", "as_user", metavar="USER", help="Act as this user, if you may."),
)


def kube_options(function: F) -> F:
    """`--namespace`, `--context`, `--kubeconfig`, `--as`; the function gets them as `api: KubeApi`."""

    @functools.wraps(function)
    def wrapped(
        *args: Any,
        namespace: str | None,
        context: str | None,
        kubeconfig: str | None,
        as_user: str | None,
        **more: Any,
    ) -> Any:
        with closing(KubeApi(namespace, context, kubeconfig, as_user)) as api:
            return function(*args, api=api, **more)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # click's decorators add options and return the function


def timeout_option(default: int, help_text: str) -> Callable[[F], F]:
    """`--timeout SECONDS`; 0 asks and does not wait."""
    return click.option(
        "--timeout",
        "timeout_seconds",
        type=click.IntRange(0, 3600),
        metavar="SECONDS",
        default=default,
        show_default=True,
        help=help_text,
    )
