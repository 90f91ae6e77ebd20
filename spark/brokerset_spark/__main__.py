"""`python -m brokerset_spark`: see `commands.table`."""

import os

from brokerset_spark.commands.table import main

if __name__ == "__main__":
    main(prog_name=os.environ.get("BROKERSET_PROGRAM", "python -m brokerset_spark"))
