"""What a module logs, whatever was configured before: loggers keep the settings of their first line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

import structlog
from structlog.testing import LogCapture
from structlog.typing import EventDict


@contextmanager
def lines_of(*modules: ModuleType) -> Iterator[list[EventDict]]:
    """The lines that these modules write to their `log`, of all levels, as they come."""
    capture = LogCapture()
    log = structlog.wrap_logger(
        None,
        processors=[capture],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=False,
    )
    with ExitStack() as patched:
        for module in modules:
            patched.enter_context(mock.patch.object(module, "log", log))
        yield capture.entries
