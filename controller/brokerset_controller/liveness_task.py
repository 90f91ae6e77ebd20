"""What a leading controller does unasked: finds silent brokers, asks them, elects new masters.

Every controller keeps its table of who was heard; only the leader acts on it. A node that has just become
leader asks everybody that it has not heard, before it judges anybody dead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Final

import structlog

from brokerset_controller.broker_probes import BrokerProbes
from brokerset_controller.liveness import Liveness, LiveView, ReplicaKey, Standing
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.measurements import Measurements
from brokerset_controller.replicas.decide_election import decide_failover
from brokerset_controller.replicas.describe import advice
from brokerset_controller.replicas.events import Applied, Event, Outcome
from brokerset_controller.replicas.state import Group
from brokerset_controller.worker_pool import WorkerPool
from brokerset_protocol.errors import Rejected
from brokerset_raft.engine import Engine, EngineStatus
from brokerset_runtime.clock import Clock
from brokerset_spec.controller_settings import ControllerSettings

log = structlog.get_logger(__name__)

JUDGED_AT_ONCE_MAX: Final = 256
"""Groups whose election is under way at the same time; more wait."""

LEASE_END_SECONDS_MIN: Final = 0.001
"""Shortest wait for the end of a lease: a rest that is lost in the clock's precision comes again at once."""

LEADERSHIP_CHECK_SECONDS: Final = 0.1
"""How often the own role is checked when nobody reports a change."""

Proposer = Callable[[Event], Awaitable[Outcome]]
"""Has an event agreed on and applied. Raises `Rejected` when it was not, or nobody knows."""


class Watch:
    """Scans and elections of one controller."""

    def __init__(
        self,
        *,
        settings: Callable[[], ControllerSettings],
        engine: Engine,
        machine: ReplicasMachine,
        liveness: Liveness,
        probes: BrokerProbes,
        clock: Clock,
        propose: Proposer,
        measurements: Measurements,
    ) -> None:
        """`settings` gives those in force; `propose` raises `Rejected` for what was not agreed on."""
        self._settings = settings
        self._engine = engine
        self._machine = machine
        self._liveness = liveness
        self._probes = probes
        self._clock = clock
        self._propose = propose
        self._measurements = measurements
        self._workers = WorkerPool(JUDGED_AT_ONCE_MAX)
        self._dirty: dict[str, None] = {}
        self._judging: dict[str, None] = {}
        self._masterless: dict[str, None] = {}
        self._lease_ends: dict[str, asyncio.TimerHandle] = {}
        self._led_term: int | None = None
        self._role_changed = asyncio.Event()

    # -- news ---------------------------------------------------------------------------------------------

    def role_changed(self, status: EngineStatus) -> None:
        """The engine's state is another; must be called on the loop's thread."""
        self._role_changed.set()

    def connection_closed(self, connection: Hashable) -> None:
        """A broker's connection ended: the leader asks at once whether the broker is still there."""
        suspected = self._liveness.closed(connection, self._clock.monotonic())
        if suspected and self._engine.status.leading:
            self._ask(suspected)

    def heard(self, broker_name: str) -> None:
        """A replica of the group gave a sign of life; this may be who a group without master waits for."""
        if broker_name in self._masterless:
            self.judge_soon(broker_name)

    def answered(self, broker_name: str) -> None:
        """A question about a replica of the group was answered."""
        self._judge_if_masterless(broker_name)

    def judge_soon(self, broker_name: str) -> None:
        """Have the group examined, and a master elected if it needs one and can have one."""
        if broker_name in self._dirty:
            return
        self._dirty[broker_name] = None
        if broker_name not in self._judging:
            self._workers.add(partial(self._judge, broker_name))

    def forget(self, broker_name: str) -> None:
        """The group is not known any more."""
        self._masterless.pop(broker_name, None)

    @property
    def masterless(self) -> int:
        """Groups without a living master, as far as this node knows."""
        return len(self._masterless)

    # -- tasks --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch, for as long as this task runs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._workers.run())
            group.create_task(self._follow_leadership())
            group.create_task(self._scan_silent())
            group.create_task(self._scan_masters())

    async def _follow_leadership(self) -> None:
        while True:
            self._role_changed.clear()
            status = self._engine.status
            if status.leading and self._led_term != status.term:
                self._led_term = status.term
                self._liveness.leads(status.term, self._clock.monotonic())
                log.info("leads the controllers", node=status.node_id, term=status.term)
                self._take_over()
            elif not status.leading and self._led_term is not None:
                self._led_term = None
                self._liveness.leads(None, self._clock.monotonic())
                self._masterless.clear()
                log.info(
                    "does not lead the controllers any more",
                    node=status.node_id,
                    term=status.term,
                    leader=status.leader_id,
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEADERSHIP_CHECK_SECONDS):
                    await self._role_changed.wait()

    def _take_over(self) -> None:
        asked = self._probes.ask_about(self._known_groups())
        if asked:
            log.info("asks brokers that it has not heard", replicas=asked)
        for group in list(self._known_groups()):
            self._judge_if_masterless(group.broker_name)

    async def _scan_silent(self) -> None:
        while True:
            await asyncio.sleep(self._settings().scan_not_active_broker_interval / 1000)
            suspected = self._liveness.silent(self._clock.monotonic())
            if suspected and self._engine.status.leading:
                self._ask(suspected)

    async def _scan_masters(self) -> None:
        while True:
            await asyncio.sleep(self._settings().scan_inactive_master_interval / 1000)
            if not self._engine.status.leading:
                continue
            without = [group for group in self._known_groups() if not self._has_living_master(group)]
            self._probes.ask_about(iter(without))
            for group in without:
                self.judge_soon(group.broker_name)

    # -- inner parts --------------------------------------------------------------------------------------

    def _known_groups(self) -> Iterator[Group]:
        return (group for _, group in sorted(self._machine.groups.items()) if group.known)

    def _ask(self, suspected: Iterable[ReplicaKey]) -> None:
        groups = self._machine.groups
        names = dict.fromkeys(key.broker_name for key in suspected)
        self._probes.ask_about(groups[name] for name in names if name in groups)

    def _has_living_master(self, group: Group) -> bool:
        if group.master_id is None:
            return False
        return self._liveness.view(group.broker_name, self._clock.monotonic()).fit(group.master_id)

    def _is_dead(self, broker_name: str, broker_id: int) -> bool:
        view = self._liveness.view(broker_name, self._clock.monotonic())
        return view.election_standing(broker_id) is Standing.DEAD

    def _judge_if_masterless(self, broker_name: str) -> None:
        group = self._machine.groups.get(broker_name)
        if group is not None and group.known and not self._has_living_master(group):
            self.judge_soon(broker_name)

    async def _judge(self, broker_name: str) -> None:
        self._judging[broker_name] = None
        try:
            while broker_name in self._dirty:
                del self._dirty[broker_name]
                await self._elect(broker_name)
        finally:
            del self._judging[broker_name]

    async def _elect(self, broker_name: str) -> None:
        for _ in range(self._settings().elect_master_max_retry_count):
            group = self._machine.groups.get(broker_name)
            status = self._engine.status
            if group is None or not status.leading:
                return
            self._liveness.leads(status.term, self._clock.monotonic())
            now = self._clock.monotonic()
            view = self._liveness.view(broker_name, now)
            unclean = self._settings().enable_elect_unclean_master
            decision = decide_failover(group, view, unclean_allowed=unclean)
            if decision is None or decision.event is None:
                self._note_masterless(group, advice(group, view))
                self._wait_for_lease(group, view)
                return
            try:
                outcome = await self._propose(decision.event)
            except Rejected as rejected:
                log.info("election not agreed on", broker=broker_name, reason=rejected.remark)
                return
            if isinstance(outcome, Applied):
                self._masterless.pop(broker_name, None)
                return

    def _wait_for_lease(self, group: Group, view: LiveView) -> None:
        """Examine a group again when the lease has ended that may hold up its election."""
        name = group.broker_name
        if name in self._lease_ends or view.lease_seconds <= 0 or self._has_living_master(group):
            return

        def ended() -> None:
            self._lease_ends.pop(name, None)
            self._judge_if_masterless(name)

        loop = asyncio.get_running_loop()
        wait = max(view.lease_seconds, LEASE_END_SECONDS_MIN)
        self._lease_ends[name] = loop.call_later(wait, ended)

    def _note_masterless(self, group: Group, why: str | None) -> None:
        name = group.broker_name
        if self._has_living_master(group) or not group.known:
            self._masterless.pop(name, None)
            return
        if group.master_id is not None and not self._is_dead(name, group.master_id):
            return  # it is being asked, and its answer leads here again
        if name not in self._masterless:
            self._masterless[name] = None
            self._measurements.election_done(group.cluster_name, name, "no_master_elected")
            log.warning("group has no living master", broker=name, master=group.master_id, advice=why)
