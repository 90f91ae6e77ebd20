"""`python -m brokerset_controller`: a controller as a process of its own."""

from __future__ import annotations

import gc
import sys

gc.disable()  # loading makes little garbage; looking for it took a tenth of the time

# First: it keeps structlog from loading all of rich, about a tenth of the time to the first answer.
import brokerset_runtime  # noqa: F401, E402  # isort: skip
from brokerset_controller.command_line import PROGRAM  # noqa: E402

gc.enable()

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
