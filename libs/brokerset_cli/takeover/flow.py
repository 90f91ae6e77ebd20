"""The engine of all three flows: observes, plans, acts on the step that is next, and observes again."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Generic, TypeVar

import click

from brokerset_cli.output import CommandFailed, fail, write_table
from brokerset_cli.takeover.steps import Step, StepState, current, kinds, until_step

OBSERVE_SECONDS: Final = 0.5
"""Pause between two observations while something is waited for."""

STALL_SECONDS_MAX: Final = 300.0
"""When what is seen has not changed for so long, the command gives up; the same command goes on later."""

F = TypeVar("F")


class Flow(ABC, Generic[F]):
    """One call of a command that leads through steps. `F` are the facts from which they are planned.

    Whoever derives from it says how it observes, plans and acts. An act may be cut off anywhere, and is done
    again if the facts do not show that it was done.
    """

    asks_again: ClassVar[bool] = False
    """Whether a step that was agreed to is asked for once more when something else came in between."""

    def __init__(self, *, yes: bool) -> None:
        """`yes`: nobody is asked."""
        self._yes = yes
        self._agreed: set[object] = set()
        self.changed_at = self.acted_at = time.monotonic()
        """When what is seen changed, and when something was done or asked, last."""

    @abstractmethod
    async def observe(self) -> F:
        """What decides what is next."""

    @abstractmethod
    def plan(self, facts: F) -> tuple[Step, ...]:
        """The steps as they stand."""

    @abstractmethod
    async def act(self, step: Step, facts: F) -> None:
        """Do what a ready step says."""

    async def run(self, last: str | None = None) -> tuple[Step, ...]:
        """Go on until no step is left, or nothing more can be done in this call; returns the steps then.

        `last` is the step, or kind of steps, behind which it stops.
        """
        self.changed_at = self.acted_at = time.monotonic()
        seen: tuple[str, StepState | None] = "", None
        while True:
            facts = await self.observe()
            steps = self._until(self.plan(facts), last)
            step = current(steps)
            if step is None or step.state is StepState.BLOCKED:
                return steps
            text = f"{step.name}: {step.detail}" if step.detail else step.name
            if (text, step.state) != seen:
                self.changed_at = time.monotonic()
            is_new, seen = text != seen[0], (text, step.state)
            if step.state is StepState.READY:
                self._check_stall(text)
                if self._agree(step, facts):
                    continue  # the person may have taken long to answer: it is observed again
                await self.act(step, facts)
                self.acted_at = time.monotonic()
            elif not await self.wait(step, facts, text, is_new=is_new):
                return steps
            await asyncio.sleep(self.pause(facts))

    def _until(self, steps: tuple[Step, ...], last: str | None) -> tuple[Step, ...]:
        try:
            return until_step(steps, last)
        except KeyError:
            fail(f"there is no step {last!r}", f"give --to one of: {kinds(steps)}")

    def _agree(self, step: Step, facts: F) -> bool:
        """Ask whether to take a step, unless that was said before; whether anybody was asked."""
        key = step.act or step.name
        if key in self._agreed:
            return False
        self._agreed = {key} if self.asks_again else {*self._agreed, key}
        if not self.confirm(step, facts):
            return False
        self.changed_at = self.acted_at = time.monotonic()
        return True

    def confirm(self, step: Step, facts: F) -> bool:
        """Ask for a step, which ends the command when the answer is no; whether anybody was asked."""
        question = "" if self._yes else self.question(step, facts)
        if question:
            click.confirm(question, abort=True, err=True)
        return bool(question)

    def question(self, step: Step, facts: F) -> str:
        """What is asked before a step is taken; empty when nobody needs to be asked."""
        return f"{step.name}: {step.title} {step.detail}. Do it?"

    async def wait(self, step: Step, facts: F, text: str, *, is_new: bool) -> bool:
        """Something happens by itself, or is the person's; whether this call waits for it.

        `text` is what is seen of it, `is_new` whether that has changed.
        """
        if step.state is StepState.YOURS:
            return False
        if is_new:
            tell(f"waiting for {text}")
        self._check_stall(text)
        return True

    def _check_stall(self, text: str) -> None:
        if time.monotonic() - self.changed_at >= STALL_SECONDS_MAX:
            raise CommandFailed(
                f"{text}: nothing has changed for {STALL_SECONDS_MAX:g} s",
                f"see {self.status_command}; the same command goes on from here",
            )

    status_command = "`brokerset status`"
    """Where the person sees how things stand."""

    def pause(self, facts: F) -> float:
        """Seconds until it is observed again."""
        return OBSERVE_SECONDS


def tell(text: str) -> None:
    """Say what happens, next to the tables and the JSON."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def show(steps: Sequence[Step]) -> None:
    """Write the steps as a table, and below it what is to be done now."""
    write_table(
        ("step", "state", "what happens", "seen"),
        [(step.name, step.state.value, step.title, step.detail or None) for step in steps],
        empty="there is nothing to do",
    )
    for step in steps:
        if step.hint and step.state in (StepState.YOURS, StepState.BLOCKED):
            click.secho(f"{step.name}: ", bold=True, nl=False)
            click.echo(step.hint)
