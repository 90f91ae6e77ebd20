"""What every process needs from its surroundings: clock, network, settings, logging, metrics, supervision."""

from __future__ import annotations

import sys


def _load_structlog_without_rich() -> None:
    """Load structlog while `rich` looks absent.

    structlog imports all of rich for its coloured tracebacks whenever rich is installed. That is most of
    the time that a broker process needs to start, and log lines here never use it (see `logs.py`).
    """
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]  # None means "cannot be imported"
    if "structlog" in modules or "rich" in modules:
        return
    modules["rich"] = None
    try:
        import structlog  # noqa: F401
    finally:
        del modules["rich"]


_load_structlog_without_rich()
