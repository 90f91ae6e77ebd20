"""`python -m brokerset_spark`: see `commands.table`."""

import os
import signal
import sys
import traceback
from typing import NoReturn

from brokerset_spark import termination


def run() -> None:
    """Run the command that is asked for.

    Python's own exit code for an exception would be that of findings, so nothing gets through here: a module
    that cannot be loaded is a job that failed. The first process of a container ignores SIGTERM until it
    handles it, and loading takes seconds.
    """
    signal.signal(signal.SIGTERM, _stop)
    try:
        code = _run()
    except Exception as error:
        traceback.print_exc()
        advice = "see that the image has all of brokerset[spark], else report it with the log"
        termination.leave(termination.sentence("the job", (), f"{type(error).__name__}: {error}", advice))
        code = 2  # `EXIT_FAILED` of `jobs.report`, which may be what cannot be loaded
    sys.exit(code)


def _stop(number: int, _frame: object) -> NoReturn:
    advice = "if its time was over raise limits.deadlineSeconds; after an eviction nothing, it begins again"
    said = f"it was told to end ({signal.Signals(number).name}) before it began"
    termination.leave(termination.sentence("the job", (), said, advice))
    sys.exit(128 + number)


def _run() -> int:
    import click

    from brokerset_spark.commands import ending
    from brokerset_spark.commands.table import main

    try:
        ended = main(
            prog_name=os.environ.get("BROKERSET_PROGRAM", "python -m brokerset_spark"), standalone_mode=False
        )
    except click.ClickException as error:
        return ending.failed(error)
    except click.Abort:
        return 130  # `EXIT_INTERRUPTED` of `commands.options`
    return ended if isinstance(ended, int) else 0


if __name__ == "__main__":
    run()
