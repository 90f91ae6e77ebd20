"""Carries out what the member machine decides: its inputs, its actions in order, its timer, its steps.

Every input goes the same way: tell the machine the time and the circumstances, hand it the input, do what it
says. Actions but `CarryOut` are done in the same turn of the loop; steps of a change of role are done by the
task `run`, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from brokerset_broker.member.core import (
    Action,
    Ask,
    CarryOut,
    Circumstances,
    LeaseChanged,
    Member,
    RoleTaken,
    Serve,
    Step,
    SwitchEnded,
    TakeInSync,
)
from brokerset_broker.member.role import GroupNews, Role, RoleState
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

STEPS_SHOWN_MIN = 4
"""A change of role with fewer steps only tells what belongs to the role, and is not logged."""


class StepFailed(Exception):
    """A step of a change of role cannot be done, for the reason that this says."""


class RoleOver(StepFailed):
    """The role that the steps lead to ended before it was taken, as happens; the next one is under way."""


class MemberEffects(Protocol):
    """What the machine's decisions do to the broker."""

    def circumstances(self) -> Circumstances:
        """What is decided elsewhere."""

    async def carry_out(self, step: Step, role: RoleState) -> None:
        """Do one step. Raises `StepFailed`; what else it raises ends the broker."""

    def ask(self, what: Ask) -> None:
        """Ask the controllers, soon."""

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        """The role that everybody sees is another one."""

    def take_in_sync(self, role: RoleState) -> None:
        """Another in-sync set is in force in the same epoch, or replication wanted to hear of it again."""

    def serve(self, service: Serve) -> None:
        """Treat requests like this."""

    def switch_ended(self, ended: SwitchEnded) -> None:
        """A change of role is over, or failed."""


class MemberShell:
    """The one place where inputs enter the machine and actions leave it."""

    def __init__(self, member: Member, effects: MemberEffects, clock: Clock) -> None:
        self.member = member
        self._effects = effects
        self._clock = clock
        self._step: CarryOut | None = None
        self._step_given = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._timer: asyncio.TimerHandle | None = None
        self._advancing = False
        self.last_switch_ms: dict[str, float] = {}
        """How long each step of the last complete change of role took, by its name."""

        self._took: dict[str, float] = {}
        self._problem = ""
        self._role_over = False
        """Whether the step that failed last did so because its role was over."""

        self._broken: Exception | None = None

    # -- inputs -------------------------------------------------------------------------------------------

    def received(self, group: GroupNews, *, may_elect: bool = False, asked: bool = False) -> None:
        """A controller said what is in force in the group."""
        self._input(lambda: self.member.received(group, may_elect=may_elect, asked=asked))

    def registered(self, broker_id: int, group_epoch: int | None) -> None:
        """The controllers know this start."""
        self._input(lambda: self.member.registered(broker_id, group_epoch))

    def mastership_ended(self, epoch: int) -> None:
        """The mastership of this epoch is over, and nobody is known to lead a newer one."""
        self._input(lambda: self.member.mastership_ended(epoch))

    def lost_identity(self) -> None:
        """Another process has this broker's identity."""
        if self.member.role.role is not Role.NONE:
            log.error("overtaken: this broker serves nothing any more")
        self._input(self.member.lost_identity)

    def lease_granted(self, sent_at: float, lease_ms: int, epoch: int) -> None:
        """A controller granted a lease."""
        self._input(lambda: self.member.lease_granted(sent_at, lease_ms, epoch))

    def epoch_known(self, epoch: int) -> None:
        """A controller knows of a master of this epoch."""
        self._input(lambda: self.member.epoch_known(epoch))

    def give_up_lease(self, *, asking: bool = False) -> None:
        """Do not serve until a lease comes that a later heartbeat asked for; while `asking`, none counts."""
        self._input(lambda: self.member.give_up_lease(asking=asking))

    def fence(self, fenced: bool) -> None:
        """A controller said whether an administrator took this broker out of service."""
        if fenced is not self.member.fenced:
            log.info("fenced" if fenced else "no longer fenced", broker_id=self.member.broker_id)
        self._input(lambda: self.member.fence(fenced))

    def in_sync_changed(self, *, enough: bool, epoch_confirmed: bool) -> None:
        """What replication says about the in-sync set."""
        self._input(lambda: self.member.in_sync_changed(enough=enough, epoch_confirmed=epoch_confirmed))

    def hand_over(self, on: bool) -> None:
        """A switchover is tried, or that is over."""
        self._input(lambda: self.member.hand_over(on))

    def close(self) -> None:
        """What is served changes no more."""
        self.member.close()
        self._stop_timer()

    def tick(self) -> None:
        """Check the time, and what others decided."""
        self._input(self.member.tick)

    def may_serve(self) -> bool:
        """Whether this broker is master, and certain that nobody else is. Ask each time."""
        return self.member.may_serve(self._clock.monotonic())

    # -- what follows -------------------------------------------------------------------------------------

    def _input(self, give: Callable[[], object]) -> None:
        self.member.observe(self._clock.monotonic(), self._effects.circumstances())
        give()
        self._advance()

    def _advance(self) -> None:
        """Do what the machine says, in its order; an input that comes of it has its turn in the same loop."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while actions := self.member.take_actions():
                for action in actions:
                    self._act(action)
        except Exception as error:  # the rest of the actions is lost: `run` ends the broker
            self._broken = error
            self._step_given.set()
            raise
        finally:
            self._advancing = False
        if not self.member.switching:
            self._settled.set()
        self._set_timer()

    def _act(self, action: Action) -> None:
        effects = self._effects
        match action:
            case Serve():
                effects.serve(action)
            case CarryOut():
                self._settled.clear()
                self._step = action
                self._step_given.set()
            case RoleTaken(before, after):
                self._log_role(before, after)
                effects.role_taken(before, after)
                if after.role is Role.NONE:  # the reason why is told to clients
                    self._observed_tick()
            case TakeInSync(role):
                effects.take_in_sync(role)
            case Ask():
                effects.ask(action)
            case SwitchEnded():
                self._log_switch(action)
                effects.switch_ended(action)
            case LeaseChanged(serves):
                note = log.info if serves else log.warning
                note("serves with a lease" if serves else "has no lease", epoch=self.member.role.epoch)

    def _observed_tick(self) -> None:
        self.member.observe(self._clock.monotonic(), self._effects.circumstances())
        self.member.tick()

    def _set_timer(self) -> None:
        self._stop_timer()
        deadline = self.member.deadline()
        if deadline is not None:
            seconds = max(0.0, deadline - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(seconds, self.tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def settled(self) -> None:
        """Wait until no change of role is on its way."""
        await self._settled.wait()

    # -- steps --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry out steps, one after the other, until cancelled."""
        try:
            while True:
                await self._step_given.wait()
                self._step_given.clear()
                if self._broken is not None:
                    raise self._broken
                while self._step is not None:
                    given, self._step = self._step, None
                    await self._carry_out(given)
        finally:
            self._stop_timer()

    async def _carry_out(self, given: CarryOut) -> None:
        began = self._clock.monotonic()
        problem = ""
        try:
            await self._effects.carry_out(given.step, given.role)
        except StepFailed as failed:
            problem = str(failed) or "it failed"
            self._role_over = isinstance(failed, RoleOver)
        if not self.member.failing:
            self._took[given.step.value] = round(1000 * (self._clock.monotonic() - began), 3)
        self._input(lambda: self.member.step_ended(problem))

    # -- what people read ---------------------------------------------------------------------------------

    def _log_role(self, before: RoleState, after: RoleState) -> None:
        if (before.role, before.epoch, before.master_id) == (after.role, after.epoch, after.master_id):
            return
        log.info(
            "role changed",
            role=after.role,
            before=before.role,
            epoch=after.epoch,
            master_id=after.master_id,
            master_address=after.master_address,
            broker_id=self.member.broker_id,
        )

    def _log_switch(self, ended: SwitchEnded) -> None:
        took, self._took = self._took, {}
        after, before, self._problem = ended.after, self._problem, ended.problem
        if ended.problem:
            news = log.info if self._role_over else log.error
            note = log.debug if before == ended.problem else news  # it is tried again each second
            note(
                "a change of role failed, requests are refused",
                step=ended.step,
                problem=ended.problem,
                role=after.role,
                epoch=after.epoch,
                steps_ms=took,
            )
        elif len(took) >= STEPS_SHOWN_MIN:
            self.last_switch_ms = took
            total = round(sum(took.values()), 3)
            log.info("role switched", role=after.role, epoch=after.epoch, total_ms=total, steps_ms=took)
