"""How many handlers of one subscription may run: a fixed number, or as many as somebody waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class HandlerSlots(Protocol):
    """Asked before each handler; whoever takes a slot gives it back."""

    def take(self) -> bool:
        """Take a slot if there is one."""

    def give_back(self) -> None:
        """The handler has ended."""


class FixedSlots:
    """So many at the same time; whoever had to wait is woken when one is free."""

    def __init__(self, slots_max: int, wake: Callable[[], None]) -> None:
        self._free = slots_max
        self._wake = wake
        self._refused = False

    def take(self) -> bool:
        """Take a slot if there is one."""
        if not self._free:
            self._refused = True
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        """The handler has ended."""
        self._free += 1
        if self._refused:
            self._refused = False
            self._wake()


class WantedSlots:
    """For consumers that ask for messages: as many as are wanted at the moment."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wanted = 0
        self._wake = wake

    def want(self, count: int) -> None:
        """So many further messages are wanted from now on, instead of what was before."""
        self._wanted = count
        if count:
            self._wake()

    def take(self) -> bool:
        """Take a slot if there is one."""
        if not self._wanted:
            return False
        self._wanted -= 1
        return True

    def give_back(self) -> None:
        """A message that is handled makes no room for a further one: it has to be wanted."""
