"""One call of `adopt --finish`: what it does on each step, and for how long nobody took messages."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import click

from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.finish_acts import FinishActs
from brokerset_cli.takeover.finish_plan import (
    CLIENTS,
    LEAVE,
    OWN,
    WHOLE,
    FinishFacts,
    Owner,
    plan_finish,
    why_not_own,
)
from brokerset_cli.takeover.flow import OBSERVE_SECONDS, Flow, tell
from brokerset_cli.takeover.steps import Step

OWN_OBSERVE_SECONDS: Final = 0.05
"""Pause between two observations while nobody takes messages."""

STARTED_SECONDS_MAX: Final = 10.0
"""How long the thread that started the set may take to see that it serves, once all of it does."""


class Finish(Flow[FinishFacts]):
    """One call of the command."""

    def __init__(self, acts: FinishActs, *, yes: bool, clients_moved: bool) -> None:
        """`clients_moved`: the person says so with this call."""
        super().__init__(yes=yes)
        self._acts = acts
        self._folder = acts.folder
        self._journal = acts.journal
        self.status_command = f"`brokerset status --data {acts.folder.path}`"
        self._asked = False
        # Before they ran nobody could use our name servers, whatever is said.
        self._clients_moved = clients_moved and bool(joined_set.own_name_servers(acts.folder.memory()))
        self._clients_said = clients_moved
        self._starting: _Started | None = None
        self._stopped_at: float | None = None
        self._without_master: set[str] = set()
        self.pauses: dict[str, float] = {}
        """By group: for how many seconds nobody took messages."""

    async def observe(self) -> FinishFacts:
        facts = await self._acts.observe()
        if self._starting is not None and not facts.set_runs:
            self._starting.check()
        self._note_pauses(facts)
        # Until `up` has locked the folder nobody sees that it is about to run.
        return replace(facts, set_runs=facts.set_runs or self._is_starting(), asked=self._asked)

    def plan(self, facts: FinishFacts) -> tuple[Step, ...]:
        return plan_finish(facts)

    async def go(self, last: str | None) -> tuple[Step, ...]:
        """Put back what a switchover that was cut off has changed, then run the flow."""
        with self._folder.lock():
            await self._acts.put_back()
            steps = await self.run(last)
            await self._started()
            return steps

    def question(self, step: Step, facts: FinishFacts) -> str:
        begun = step.name == OWN and facts.past_joined
        return "" if step.name == WHOLE or begun else f"{step.name}: {step.title} Do it?"

    async def wait(self, step: Step, facts: FinishFacts, text: str, *, is_new: bool) -> bool:
        if step.name == CLIENTS and self._have_clients_moved(facts):
            self._journal.clients_have_moved()
            return True
        return await super().wait(step, facts, text, is_new=is_new)

    def pause(self, facts: FinishFacts) -> float:
        closed = facts.owner is Owner.OWN or self._stopped_at is not None
        return OWN_OBSERVE_SECONDS if closed else OBSERVE_SECONDS

    def _have_clients_moved(self, facts: FinishFacts) -> bool:
        if self._clients_moved:
            return True
        if self._clients_said:
            tell(
                "--clients-moved does not count yet: our name servers run since this call only, so no client "
                "can have used them"
            )
            return False
        if self._yes or not sys.stdin.isatty():
            return False
        return click.confirm(
            f"{CLIENTS}: Do all clients use namesrvAddr={facts.name_servers}?", default=False, err=True
        )

    async def act(self, step: Step, facts: FinishFacts) -> None:
        if step.name == WHOLE:
            self._journal.finish(await self._acts.seen_whole())
        elif step.name == OWN:
            await self._own(facts)
        else:
            tell(f"{step.name}: {step.title}")
            await (self._leave(facts) if step.name == LEAVE else self._run_name_servers(facts))

    async def _run_name_servers(self, facts: FinishFacts) -> None:
        if not facts.set_runs:
            await self._start()
        await self._acts.run_name_servers(facts)
        self._asked = True

    # -- own ----------------------------------------------------------------------------------------------

    async def _own(self, facts: FinishFacts) -> None:
        """One piece of it; what comes next is seen by the next observation, also of a later call."""
        if facts.owner is Owner.JOINED:
            await self._stop(facts)
        elif not facts.set_runs:
            tell("our brokers start under our own controllers")
            self._starting = _Started(self._acts.start)
        else:
            await self._acts.rebuild([each.name for each in facts.groups if each.complete])

    async def _stop(self, facts: FinishFacts) -> None:
        """Stop our brokers. They change over when it was observed once more who is in sync for Java's."""
        assert not why_not_own(facts), "the plan has seen all of ours in sync"
        if facts.stopped_for_own:
            if self._stopped_at is None:
                self._acts.stop()  # what an `up` that was killed has left behind
            joined_set.under_own_controllers(self._folder)
            return
        tell(f"{OWN}: our brokers leave Java's controllers")
        if facts.java_answers:
            self._journal.finish(await self._acts.seen_whole())  # ids may have been given since
        ours = {each.name: tuple(one.broker_id for one in each.replicas) for each in facts.groups}
        self._journal.begin_own(ours)
        tell("our brokers stop; nobody takes messages until our controllers have elected masters")
        self._stopped_at = time.monotonic()
        self._acts.stop()
        if not facts.java_answers:  # then nobody could have elected a Java broker meanwhile
            joined_set.under_own_controllers(self._folder)

    def _note_pauses(self, facts: FinishFacts) -> None:
        """Measure how long each group had no master, from the stop on; only of those that were unknown."""
        if facts.owner is not Owner.OWN:
            return
        for group in facts.groups:
            unknown = facts.controllers_answer and not group.known
            if group.master_id is None and (unknown or self._stopped_at is not None):
                self._without_master.add(group.name)
            elif group.master_id is not None and group.name in self._without_master:
                self._without_master.discard(group.name)
                self.pauses[group.name] = seconds = self._stopped_for()
                tell(f"{group.name}/{group.master_id} is master; nobody took messages for {seconds:.2f} s")

    def _stopped_for(self) -> float:
        """Seconds since our brokers were about to stop; by the clock of the day if another call did that."""
        if self._stopped_at is not None:
            return time.monotonic() - self._stopped_at
        finishing = self._journal.finishing
        return 0.0 if finishing is None else max(0.0, time.time() - finishing.own_since_ms / 1000)

    async def _start(self) -> None:
        """Start the set as it is, and wait until it serves."""
        self._starting = _Started(self._acts.start)
        try:
            await self._starting.done.wait()
            self._starting.check()
        finally:
            self._starting = None

    def _is_starting(self) -> bool:
        return self._starting is not None and not self._starting.done.is_set()

    async def _started(self) -> None:
        """Let the thread that started the set say that it serves."""
        if self._starting is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(STARTED_SECONDS_MAX):
                    await self._starting.done.wait()

    # -- leave --------------------------------------------------------------------------------------------

    async def _leave(self, facts: FinishFacts) -> None:
        await self._started()
        if facts.set_runs:  # else it is an ordinary set since an earlier call, and starts as one
            await self._acts.leave_name_servers()
        await self._acts.forget()
        self._journal.end()


class _Started:
    """A thread in which the set is started: that waits for brokers, which wait for what is done meanwhile.

    When the command ends sooner, `up` goes on by itself.
    """

    def __init__(self, start: Callable[[], None]) -> None:
        self.done = asyncio.Event()
        """Set when the set serves, or could not be started."""
        self._start = start
        self._problem: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._start()
        except BaseException as error:  # raised by whoever waits for it
            self._problem = error
        with suppress(RuntimeError):  # the command has ended
            self._loop.call_soon_threadsafe(self.done.set)

    def check(self) -> None:
        """Raise why it could not be started."""
        if self.done.is_set() and self._problem is not None:
            raise self._problem
