"""Options of the jobs that read one store: which part of it, and how gently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from brokerset_spark.commands.options import ByteCount

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option("--start", type=click.IntRange(0), metavar="OFFSET", help="From this offset of the log on."),
    click.option("--end", type=click.IntRange(0), metavar="OFFSET", help="Up to this offset."),
    click.option(
        "--bound",
        type=click.IntRange(0),
        metavar="OFFSET",
        help=(
            "The confirmed offset of a running broker: nothing behind it is looked "
            "at. [default: from its checkpoint]"
        ),
    ),
    click.option(
        "--drop-cache", is_flag=True, help="Let the kernel forget what was read: for a serving broker."
    ),
    click.option(
        "--range",
        "range_bytes",
        type=ByteCount(),
        default=128 << 20,
        metavar="BYTES",
        show_default="128M",
        help="Log of one task.",
    ),
)


def range_options(function: F) -> F:
    """`--start`, `--end`, `--bound`, `--drop-cache`, `--range`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
