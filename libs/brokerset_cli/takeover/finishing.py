"""One call of `adopt --finish`: looks, plans, and acts on the step that is next."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

import click

from brokerset_cli.folder import DataFolder
from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adopt_plan import kinds, until_step
from brokerset_cli.takeover.adoption import (
    LOOK_SECONDS,
    STALL_SECONDS_MAX,
    tell,
)
from brokerset_cli.takeover.adoption_journal import Finishing, Journal
from brokerset_cli.takeover.finish_plan import (
    CLIENTS,
    LEAVE,
    NAME_SERVERS,
    OWN,
    WHOLE,
    FinishFacts,
    Standing,
    plan_finish,
    why_not_own,
)
from brokerset_cli.takeover.flow import Step, StepState, current

OWN_LOOK_SECONDS: Final = 0.05
"""Pause between two looks while nobody takes messages."""

STARTED_SECONDS_MAX: Final = 10.0
"""How long the thread that started the set may take to see that it serves, once all of it does."""


class Acts(Protocol):
    """What is done to the world; `FinishActs` does it. Each may be cut off, and is repeated then."""

    async def put_back(self) -> None:
        """Java brokers get back what a hand-over changed."""
        ...

    async def seen_whole(self) -> Finishing:
        """What is to be remembered of Java's controllers."""
        ...

    async def run_name_servers(self, facts: FinishFacts) -> None:
        """Our controllers run beside, and our brokers know their name servers."""
        ...

    def stop(self) -> None:
        """Everything in the folder has stopped."""
        ...

    def start(self) -> None:
        """Everything in the folder runs and serves; blocks until then."""
        ...

    async def rebuild(self, names: list[str]) -> None:
        """Our controllers know these groups."""
        ...

    async def leave_name_servers(self) -> None:
        """Our brokers use our name servers only."""
        ...

    async def forget(self) -> None:
        """Java's controllers have forgotten ours, or it is said why not."""
        ...


class Finish:
    """One call of the command."""

    def __init__(
        self,
        folder: DataFolder,
        look: Callable[[], Awaitable[FinishFacts]],
        acts: Acts,
        *,
        yes: bool,
        clients_moved: bool,
    ) -> None:
        """`clients_moved`: the person says so with this call."""
        self._folder = folder
        self._journal = Journal(folder.path)
        self._look = look
        self._acts = acts
        self._yes = yes
        self._asked = False
        # Before they ran nobody could use our name servers, whatever is said.
        self._clients_moved = clients_moved and bool(joined_set.own_name_servers(folder.memory()))
        self._clients_said = clients_moved
        self._starting: _Started | None = None
        self._stopped_at: float | None = None
        self._without_master: set[str] = set()
        self.pauses: dict[str, float] = {}

    async def facts(self) -> FinishFacts:
        """What decides what is next."""
        facts = await self._look()
        # Until `up` has locked the folder nobody sees that it is about to run.
        return replace(facts, set_runs=facts.set_runs or self._is_starting(), asked=self._asked)

    async def go(self, last: str | None) -> tuple[Step, ...]:
        """Act on the current step until none is left, or it is the person's; returns the steps then."""
        with self._folder.hold():
            await self._acts.put_back()
            return await self._go(last)

    async def _go(self, last: str | None) -> tuple[Step, ...]:
        seen, since = "", time.monotonic()
        agreed: set[str] = set()
        while True:
            facts = await self.facts()
            self._note_pauses(facts)
            steps = self._until(plan_finish(facts), last)
            step = current(steps)
            if step is not None and step.name == CLIENTS and step.state is StepState.YOURS:
                if self._have_clients_moved(facts):
                    self._journal.clients_have_moved()
                    continue
                return steps
            if step is None or step.state in (StepState.YOURS, StepState.BLOCKED):
                await self._started()
                return steps
            now = f"{step.name}: {step.detail}" if step.detail else step.name
            if now != seen:
                seen, since = now, time.monotonic()
                if step.state is StepState.WAITING:
                    tell(f"waiting for {now}")
            if self._starting is not None and not facts.set_runs:
                self._starting.check()
            if time.monotonic() - since >= STALL_SECONDS_MAX:
                raise CommandFailed(
                    f"{now}: nothing has changed for {STALL_SECONDS_MAX:g} s",
                    f"see `brokerset status --data {self._folder.path}`; the same command goes on from here",
                )
            if step.state is StepState.READY:
                if step.name not in agreed:
                    agreed.add(step.name)
                    if self._ask(step, facts):
                        since = time.monotonic()
                        continue  # the person may have taken long to answer: it is looked at again
                await self._act(step, facts)
            pause = facts.standing is Standing.OWN or self._stopped_at is not None
            await asyncio.sleep(OWN_LOOK_SECONDS if pause else LOOK_SECONDS)

    def _until(self, steps: tuple[Step, ...], last: str | None) -> tuple[Step, ...]:
        try:
            return until_step(steps, last)
        except KeyError:
            fail(f"there is no step {last!r}", f"give --to one of: {kinds(steps)}")

    def _ask(self, step: Step, facts: FinishFacts) -> bool:
        """Ask whether to take a step, unless that was said before; whether anybody was asked."""
        begun = step.name == OWN and facts.past_guest
        if self._yes or step.name == WHOLE or begun:
            return False
        click.confirm(f"{step.name}: {step.title} Do it?", abort=True, err=True)
        return True

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

    async def _act(self, step: Step, facts: FinishFacts) -> None:
        if step.name == WHOLE:
            self._journal.finish(await self._acts.seen_whole())
        elif step.name == NAME_SERVERS:
            tell(f"{step.name}: {step.title}")
            await self._run_name_servers(facts)
        elif step.name == OWN:
            await self._own(facts)
        else:
            assert step.name == LEAVE, f"nobody acts on {step.name}"
            tell(f"{step.name}: {step.title}")
            await self._leave(facts)

    async def _run_name_servers(self, facts: FinishFacts) -> None:
        if not facts.set_runs:
            await self._start()
        await self._acts.run_name_servers(facts)
        self._asked = True

    # -- own ----------------------------------------------------------------------------------------------

    async def _own(self, facts: FinishFacts) -> None:
        """One piece of it; what comes next is seen by the next look, also of a later call."""
        if facts.standing is Standing.GUEST:
            await self._stop(facts)
        elif not facts.set_runs:
            tell("our brokers start under our own controllers")
            self._starting = _Started(self._acts.start)
        else:
            await self._acts.rebuild([each.name for each in facts.groups if each.complete])

    async def _stop(self, facts: FinishFacts) -> None:
        """Stop our brokers. They change over when it was looked once more who is in sync for Java's."""
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
        """Measure how long each group had no master, from the stop on; only of those that had to be told."""
        if facts.standing is not Standing.OWN:
            return
        for group in facts.groups:
            untold = facts.controllers_answer and not group.known
            if group.master_id is None and (untold or self._stopped_at is not None):
                self._without_master.add(group.name)
            elif group.master_id is not None and group.name in self._without_master:
                self._without_master.discard(group.name)
                self.pauses[group.name] = seconds = self._stopped_for()
                tell(f"{group.name}/{group.master_id} is master; nobody took messages for {seconds:.2f} s")

    def _stopped_for(self) -> float:
        """Seconds since our brokers were about to stop; by the clock of the day if another call did that."""
        if self._stopped_at is not None:
            return time.monotonic() - self._stopped_at
        remembered = self._journal.read()
        finishing = None if remembered is None else remembered.finishing
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
        except BaseException as error:  # told by whoever waits for it
            self._problem = error
        with suppress(RuntimeError):  # the command has ended
            self._loop.call_soon_threadsafe(self.done.set)

    def check(self) -> None:
        """Raise why it could not be started."""
        if self.done.is_set() and self._problem is not None:
            raise self._problem
