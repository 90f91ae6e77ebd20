"""Log lines: JSON for machines, or short readable lines for a terminal."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""Names of the levels, and the numbers that structlog compares."""


def configure_logs(level: str = "info", json: bool = True) -> None:
    """Send the log lines of this process from `level` on to standard error.

    Lines are written unbuffered, so that a crash loses none. Raises `ValueError` for an unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _json_line if json else _console_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _json_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    import orjson

    ordered = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return orjson.dumps({**ordered, **event}, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _console_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    moment = str(event.pop("timestamp", ""))[11:23]
    level = str(event.pop("level", "")).upper()
    phrase = event.pop("event", "")
    trace = event.pop("exception", None)
    fields = " ".join(f"{key}={_value(value)}" for key, value in event.items())
    line = f"{moment} {level:<7} {phrase}  {fields}".rstrip()
    return f"{line}\n{trace}" if trace else line


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(mark in text for mark in " \n\"'=") else text
