"""What can be wrong with bytes or text that should have one of our formats."""

from __future__ import annotations


class FormatError(ValueError):
    """The data does not have the expected format: `reason` says why, `position` where (-1: not known).

    Whoever read the data knows its file or peer, and adds that when the error is reported.
    """

    def __init__(self, reason: str, position: int = -1) -> None:
        super().__init__(reason if position < 0 else f"{reason} (at byte {position})")
        self.reason = reason
        self.position = position
