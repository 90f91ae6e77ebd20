"""How requests have events agreed on, and know that this controller leads; engine errors become answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from brokerset_controller.engine_errors import TimedOut, not_leader, refused_by_engine
from brokerset_controller.measurements import Measurements, Status, timed
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock


class LeaderStatus(Protocol):
    """What requests need of `EngineStatus`."""

    @property
    def node_id(self) -> int:
        """This node."""

    @property
    def term(self) -> int:
        """Its term."""

    @property
    def leader_id(self) -> int | None:
        """Who leads, if that is known."""

    @property
    def leading(self) -> bool:
        """Whether this node leads, and has applied everything that was committed before it did."""


class AgreementEngine(Protocol):
    """What requests need of `brokerset_raft.engine.Engine`; a simulation may give another one."""

    @property
    def status(self) -> LeaderStatus:
        """What this node knows now."""

    async def propose(self, data: bytes, timeout: float | None = None) -> object:
        """Commit and apply; returns what the state machine returned for it on this node."""

    async def read_barrier(self, timeout: float | None = None) -> None:
        """Return when the state machine has all that was committed anywhere before this call."""


class Agreement:
    """Proposals and barriers of one controller. Deadlines are seconds of the loop's clock."""

    def __init__(
        self,
        *,
        engine: AgreementEngine,
        clock: Clock,
        measurements: Measurements,
        timeout: Callable[[], float],
        on_leading: Callable[[int, float], object],
    ) -> None:
        """`timeout` gives the seconds that a request may wait; `on_leading` hears the term, and the time on
        `clock`, before every decision of a controller that leads."""
        self._engine = engine
        self._clock = clock
        self._measurements = measurements
        self._timeout = timeout
        self._on_leading = on_leading

    @property
    def status(self) -> LeaderStatus:
        """This node of the controllers' group."""
        return self._engine.status

    def deadline(self) -> float:
        """When a request that begins now must have been answered."""
        return asyncio.get_running_loop().time() + self._timeout()

    def must_lead(self) -> int:
        """The term in which this controller leads. Raises `Rejected` (2007) if it does not."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        term = self._engine.status.term
        self._on_leading(term, self._clock.monotonic())
        return term

    def refusal(self) -> Rejected | None:
        """The answer (2007) of a controller that does not lead; None from one that does."""
        status = self._engine.status
        if status.leading:
            return None
        return not_leader(status.leader_id if status.leader_id != status.node_id else None)

    async def barrier(self, deadline: float | None = None) -> None:
        """Return when everything that was committed before is applied here, and this controller leads.

        Raises `Rejected`.
        """
        self.must_lead()
        with refused_by_engine():
            await self._engine.read_barrier(self._seconds(deadline))

    async def propose(self, data: bytes, deadline: float | None = None) -> object:
        """Have an entry agreed on and applied; returns what the state machine returned for it.

        Raises `Rejected` when it was not, and `TimedOut` when it may be applied yet.
        """
        since = self._clock.monotonic()
        try:
            with refused_by_engine():
                outcome = await self._engine.propose(data, self._seconds(deadline))
        except Rejected as rejected:
            status: Status = "timeout" if isinstance(rejected, TimedOut) else "failed"
            self._measurements.proposal_done(status, timed(self._clock.monotonic, since))
            raise
        self._measurements.proposal_done("success", timed(self._clock.monotonic, since))
        return outcome

    def _seconds(self, deadline: float | None) -> float:
        until = deadline if deadline is not None else self.deadline()
        return max(until - asyncio.get_running_loop().time(), 0.0)
