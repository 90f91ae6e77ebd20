"""Whether this broker takes writes and reads at all, and when a stored message counts as safe.

Whoever changes the role (a controller, an administrator, shutdown) sets it here, and every processor obeys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerset_broker.store.errors import PutStatus
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

BUSY_REMARK: Final = "[REJECTREQUEST]system busy, start flow control for a while"
"""What Java answers to a send before any processing, when the broker is no master."""

ENDS_TEXT: Final = (
    "does not know yet where its queues end: its replicas have not confirmed what it took over as master;"
    " try again"
)

WhenDurable = Callable[[int, Callable[[PutStatus], None]], None]
"""Calls back, later, when the log below an offset is as safe as the settings demand, or why it is not."""


class Admission:
    """The mutable switchboard that processors ask before they do anything."""

    __slots__ = (
        "_refusal",
        "ends_known",
        "name",
        "on_ends_known",
        "permission",
        "refuses_writes",
        "when_durable",
    )

    def __init__(self, name: str, permission: int) -> None:
        self.name = name
        """How the broker is called in refusals."""
        self.permission = permission
        """Bits of the whole broker: 4 read, 2 write."""
        self.refuses_writes = False
        """Whether `check_writes` would raise; for hot paths."""
        self.ends_known = True
        """Whether a pull that finds nothing may say so; a new master must confirm first what it took over."""
        self.on_ends_known: Callable[[], None] | None = None
        """Called when `ends_known` has become true."""
        self.when_durable: WhenDurable | None = None
        """How to wait before a send is acknowledged; `None` acknowledges what is in memory."""
        self._refusal = (int(ResponseCode.SYSTEM_BUSY), BUSY_REMARK)

    @property
    def writable(self) -> bool:
        """Whether the broker's permission has the write bit."""
        return self.permission & PERM_WRITE != 0

    def refuse_writes(self, code: int = ResponseCode.SYSTEM_BUSY, remark: str = BUSY_REMARK) -> None:
        """Answer every send with `code` from now on."""
        self._refusal = (int(code), remark)
        self.refuses_writes = True

    def accept_writes(self) -> None:
        """Take sends from now on."""
        self.refuses_writes = False

    def use(self, refusal: tuple[int, str] | None) -> None:
        """Take sends, or answer each with this code and remark; an empty remark stands for Java's."""
        if refusal is None:
            self.accept_writes()
        elif refusal[1]:
            self.refuse_writes(*refusal)
        else:
            self.refuse_writes()

    def know_ends(self, known: bool) -> None:
        """Let pulls that find nothing say so from now on, or wait."""
        before, self.ends_known = self.ends_known, known
        if known and not before and self.on_ends_known is not None:
            self.on_ends_known()

    def check_writes(self) -> None:
        """Raise `Rejected` if this broker takes no writes now."""
        if self.refuses_writes:
            raise Rejected(*self._refusal)

    def check_readable(self) -> None:
        """Raise `Rejected` if the broker may not be read."""
        if not self.permission & PERM_READ:
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self.name}] pulling message is forbidden"
            )
