"""A process that ends itself after a named step of its registration, for tests that look at what is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Final

CRASH_VARIABLE: Final = "BROKERSET_CRASH_AFTER"
"""Environment variable with the name of a step (`WriteTemp`, `ApplyId`, …)."""


def crash_point(environment: Mapping[str, str]) -> Callable[[str], None] | None:
    """What is to be told of every step that is done; None in normal processes."""
    wanted = environment.get(CRASH_VARIABLE)
    if not wanted:
        return None

    def step_done(name: str) -> None:
        if name == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return step_done
