"""`python -m brokerset_spark`: see `commands.table`."""

import os
import sys
import traceback


def run() -> None:
    """Run the command that is asked for.

    Python's own exit code for an exception would be that of findings, so nothing gets through here: a module
    that cannot be loaded is a job that failed.
    """
    try:
        from brokerset_spark.commands.table import main

        main(prog_name=os.environ.get("BROKERSET_PROGRAM", "python -m brokerset_spark"))
    except Exception:
        traceback.print_exc()
        sys.exit(2)  # `EXIT_FAILED` of `jobs.report`, which may be what cannot be loaded


if __name__ == "__main__":
    run()
