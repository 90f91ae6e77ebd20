"""`python -m brokerset_operator`: an operator as a process of its own."""

from __future__ import annotations

import sys

# First: it keeps structlog from loading all of rich, about a tenth of the time to the first answer.
import brokerset_runtime  # noqa: F401  # isort: skip
from brokerset_operator.command_line import PROGRAM

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
