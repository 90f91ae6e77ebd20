"""How a command that failed is told at the end of its process, for people and for Kubernetes."""

from __future__ import annotations

import click

from brokerset_spark import termination


def job_of(context: click.Context | None) -> tuple[str, tuple[str, ...]]:
    """Name of the command that runs, as `audit map`, and what its arguments name: stores, mostly."""
    words: list[str] = []
    each = context
    while each is not None and each.parent is not None:
        words.insert(0, each.info_name or "")
        each = each.parent
    places: list[str] = []
    if context is not None:
        arguments = (each for each in context.command.params if isinstance(each, click.Argument))
        for value in (context.params.get(argument.name or "") for argument in arguments):
            places += map(str, value) if isinstance(value, tuple) else [str(value)] if value else []
    return " ".join(words) or "the job", tuple(places)


def failed(error: click.ClickException) -> int:
    """Say what was wrong on standard error and in the termination message; returns the exit code."""
    error.show()
    job, places = job_of(getattr(error, "ctx", None))
    said = termination.sentence(job, places, error.format_message(), getattr(error, "advice", ""))
    termination.leave(said)
    return error.exit_code


def told_to_end(context: click.Context | None, signal_name: str) -> None:
    """Leave behind that somebody ended the job; at once, since letting workers go may take too long."""
    advice = "if its time was over raise limits.deadlineSeconds; after an eviction nothing, it begins again"
    termination.leave(termination.sentence(*job_of(context), f"it was told to end ({signal_name})", advice))
