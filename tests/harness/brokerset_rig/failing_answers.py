"""An answer that fails, for loops that answer many."""

from __future__ import annotations

import asyncio
from typing import Any

from brokerset_broker.store.errors import PutStatus


class Answers:
    """Answers in the order in which they were given, and what the loop was told of those that failed."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: self.reported.append(str(context["exception"]))
        )

    def take(self, value: PutStatus | bool) -> None:
        """Takes the answer."""
        self.given.append(value)

    def fail(self, value: PutStatus | bool) -> None:
        """Fails at it."""
        raise ValueError(f"at {value}")
