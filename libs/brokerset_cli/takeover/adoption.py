"""One call of `adopt`: looks, plans, and acts on the step that is next."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import click

from brokerset_cli.down import stop_set
from brokerset_cli.folder import DataFolder
from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adopt_plan import (
    JOIN,
    LEAVE,
    Facts,
    GroupFacts,
    heir_of,
    kinds,
    plan_adoption,
    plan_return,
    until_step,
    why_not_leave,
)
from brokerset_cli.takeover.adoption_journal import ADOPTION, Journal
from brokerset_cli.takeover.broker_queries import Asker
from brokerset_cli.takeover.cluster_observation import (
    Cluster,
    look_at_disk,
    look_at_java,
    missing_tables,
    observe_groups,
)
from brokerset_cli.takeover.flow import Step, StepState, current
from brokerset_cli.takeover.java_switchover import HandOver
from brokerset_cli.takeover.obstacles import BrokerAnswers, Finding
from brokerset_cli.takeover.stop_command import run_stop_command
from brokerset_client.controller_admin import NOT_SERVED, ControllerAdmin
from brokerset_client.errors import RequestRefused
from brokerset_protocol import headers
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.codes import RequestCode
from brokerset_runtime.files import FileLock
from brokerset_spec.manifest import REPLICAS_MAX, BrokerSet, ManifestError

LOOK_SECONDS: Final = 0.5
"""Pause between two looks while something is waited for."""

STALL_SECONDS_MAX: Final = 300.0
"""When what is seen has not changed for so long, the command gives up; the same command goes on later."""

GONE_SECONDS_MAX: Final = 90.0
"""How long it may take until Java's master and controllers have noticed that our brokers are gone."""

STOP_COMMAND_SECONDS_MAX: Final = 300.0
"""Time-out of the command that stops a Java broker."""


class Adoption:
    """One call of the command."""

    def __init__(
        self,
        folder: DataFolder,
        asker: Asker,
        admin: ControllerAdmin,
        cluster: Cluster,
        *,
        host: str,
        replicas: int | None,
        stop_with: str | None,
        yes: bool,
    ) -> None:
        self._folder = folder
        self._journal = Journal(folder.path)
        self._asker = asker
        self._admin = admin
        self._cluster = cluster
        self._host = host
        self._replicas = replicas
        self._stop_with = stop_with
        self._yes = yes
        self._stopped: set[str] = set()
        self._lock: FileLock | None = None
        self._answers: tuple[BrokerAnswers, ...] = ()
        self.findings: list[Finding] = []
        self.pauses: dict[str, float] = {}

    # -- what is there ------------------------------------------------------------------------------------

    async def look_well(self, earlier: Sequence[Finding], accepted: Sequence[str]) -> None:
        """Look for everything that stands against it; what is found once it has begun is a warning."""
        groups = await self._groups()
        self._answers, found = await look_at_java(self._asker, self._cluster, groups, accepted)
        found = [*earlier, *joined_set.folder_findings(self._folder), *found]
        if self._journal.read() is None:
            found += await self._controller_findings(groups)
            found += joined_set.host_findings(self._host, self._answers)
            found += look_at_disk(self._folder.path, self._answers, self._wanted(groups))
        else:
            found = [Finding(each.name, each.text, False) for each in found]
        if self._wanted(groups) == 1:
            text = "one broker of ours for each group: without Java's there is no copy of its messages"
            found.append(Finding("one-copy", text, False))
        self.findings = found

    async def _controller_findings(self, groups: Sequence[GroupFacts]) -> list[Finding]:
        """Whether the controllers are Java's, and know persistent ids (1012)."""
        if not groups:
            return []
        header = headers.GetNextBrokerId(cluster_name=self._cluster.name, broker_name=groups[0].name)
        leader = await self._admin.leader()
        answer = await self._asker.ask(leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        if answer.code in NOT_SERVED:
            text = (
                f"the controllers at {self._cluster.controllers} are older than RocketMQ 5.1.1; "
                "`brokerset upgrade identity` leads to ids that stay"
            )
            return [Finding("controllers-too-old", text)]
        try:
            await self._admin.groups()
        except RequestRefused:
            return []
        text = (
            f"the controllers at {self._cluster.controllers} are brokerset's, there is nothing to take over; "
            "see `brokerset status`"
        )
        return [Finding("controllers", text)]

    async def _groups(self) -> tuple[GroupFacts, ...]:
        adoption = self._journal.read()
        names = sorted(adoption.groups if adoption is not None else self._cluster.masters)
        manifest = joined_set.stored_manifest(self._folder)
        replicas = joined_set.replicas_of(self._folder)
        needs = manifest.min_in_sync_of(replicas) if manifest is not None and replicas else 1
        read_only = {}
        for each in self._journal.changed:
            if await self._asker.answers(
                each.address
            ):  # else it takes nothing, and gets them when it is back
                read_only[each.group] = each.address
        return await observe_groups(
            self._asker,
            self._admin,
            names,
            joined_set.our_addresses(self._folder),
            counted=None if adoption is None else adoption.groups,
            needs=needs,
            read_only=read_only,
        )

    def _wanted(self, groups: Sequence[GroupFacts]) -> int:
        """Brokers of ours for each group: as it is, as it was asked for, or as many as Java has."""
        known = joined_set.replicas_of(self._folder)
        adoption = self._journal.read()
        if known is not None:
            return known
        if adoption is not None:
            return adoption.replicas
        most = max((sum(each.alive for each in group.theirs) for group in groups), default=1)
        return self._replicas or min(max(1, most), REPLICAS_MAX)

    async def facts(self) -> Facts:
        """What decides what is next."""
        groups = await self._groups()
        return Facts(
            groups,
            self._wanted(groups),
            tuple(each.text for each in self.findings if each.blocks),
            self._folder.path.exists() and self._folder.running_pid() is not None,
            joined_set.joined_cluster_of(self._folder) is not None,
        )

    def plan(self, facts: Facts, *, back: bool) -> tuple[Step, ...]:
        """The steps as they stand."""
        if back:
            return plan_return(facts)
        return plan_adoption(facts, stop_with=self._stop_with is not None)

    # -- going on -----------------------------------------------------------------------------------------

    async def go(self, *, back: bool, last: str | None) -> tuple[Step, ...]:
        """Act on the current step until none is left, or it is the person's; returns the steps then."""
        self._hold()
        try:
            return await self._go(back=back, last=last)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _hold(self) -> None:
        """Keep other calls out: one of them would put back what this one's hand-over has just changed."""
        if self._lock is not None or self._folder.owner() is None:
            return
        self._lock = self._folder.hold()

    async def _go(self, *, back: bool, last: str | None) -> tuple[Step, ...]:
        left = await self._hand_over().put_back_all()
        for each in left:
            tell(f"{each.address} is to get back {_settings_text(each.settings)} when it answers again")
        seen, since = "", time.monotonic()
        agreed: set[str] = set()
        while True:
            facts = await self.facts()
            if back and not facts.folder:
                return ()
            steps = self._until(self.plan(facts, back=back), last)
            step = current(steps)
            if step is None or step.state in (StepState.YOURS, StepState.BLOCKED):
                return steps
            waiting = step.state is StepState.WAITING or step.name in self._stopped
            now = f"{step.name}: {step.detail}" if step.detail else step.name
            if now != seen and waiting:
                tell(f"waiting for {now}")
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since >= STALL_SECONDS_MAX:
                raise CommandFailed(
                    f"{now}: nothing has changed for {STALL_SECONDS_MAX:g} s",
                    "see `brokerset status`; the same command goes on from here",
                )
            if not waiting and step.name not in agreed:
                agreed.add(step.name)
                if self._ask(step):
                    since = time.monotonic()
                    continue  # the person may have taken long to answer: it is looked at again
            if not waiting:
                tell(f"{step.name}: {step.title}")
                await self._act(step, facts, back=back)
                self._hold()  # the first step makes the folder
                if step.name in self._stopped:
                    since = time.monotonic()  # the command that stops a broker may take long
            await asyncio.sleep(LOOK_SECONDS)

    def _until(self, steps: tuple[Step, ...], last: str | None) -> tuple[Step, ...]:
        try:
            return until_step(steps, last)
        except KeyError:
            fail(f"there is no step {last!r}", f"give --to one of: {kinds(steps)}")

    def _ask(self, step: Step) -> bool:
        """Ask whether to take a step, unless that was said before; whether anybody was asked."""
        if self._yes:
            return False
        click.confirm(f"{step.name}: {step.title} {step.detail}. Do it?", abort=True, err=True)
        return True

    async def _act(self, step: Step, facts: Facts, *, back: bool) -> None:
        kind, _, rest = step.name.partition(":")
        if kind == JOIN:
            self._join(facts)
        elif kind == LEAVE:
            await self._leave(facts)
        elif kind == "retire":
            await self._stop_java(step, facts)
        else:
            await self._switch(next(group for group in facts.groups if group.name == rest), back=back)

    def _join(self, facts: Facts) -> None:
        settings: Mapping[str, str] = next((each.settings for each in self._answers if each.settings), {})
        living = {group.name: tuple(r.broker_id for r in group.theirs if r.alive) for group in facts.groups}
        manifest = self._manifest(facts, settings)
        try:
            joined_set.join(self._folder, self._cluster, manifest, self._host, living)
        except CommandFailed:
            if self._folder.owner() is None or self._folder.running_pid() is None:
                raise
            # A call that was cut off had started it, and it had not locked the folder yet: it runs.
            tell(f"what an earlier call has started runs in {self._folder.path}")
        tell(f"they are seen with: brokerset status --data {self._folder.path}")

    def _manifest(self, facts: Facts, settings: Mapping[str, str]) -> BrokerSet:
        try:
            return joined_set.make_manifest(
                self._cluster.name, [group.name for group in facts.groups], facts.wanted, settings
            )
        except ManifestError as error:
            fail("; ".join(map(str, error.problems)), "nothing was started")

    async def _switch(self, group: GroupFacts, *, back: bool) -> None:
        hand_over = self._hand_over()
        left = await hand_over.put_back_all() if group.read_only else ()
        if any(each.address == group.read_only for each in left):
            raise CommandFailed(
                f"{group.read_only} does not get its settings back",
                "see why it does not answer, or stop it; then give the same command again",
            )
        master, heir = group.master, heir_of(group, ours=not back)
        if group.read_only or master is None or heir is None or master.ours is not back:
            return  # looked at again
        tell(f"{group.name}: from {master.address} to {heir.address}")
        way = hand_over.to_java if back else hand_over.to_ours
        seconds = await way(group, master, heir)
        self.pauses[group.name] = seconds
        tell(
            f"{group.name}/{heir.broker_id} at {heir.address} is master; nobody took messages for "
            f"{seconds:.2f} s"
        )

    def _hand_over(self) -> HandOver:
        async def elect(group: str, broker_id: int) -> None:
            await self._admin.elect(await self._state(group), broker_id)

        async def master(group: str) -> str | None:
            info = (await self._admin.sync_states([group])).get(group)
            return None if info is None else info.master_address

        async def missing(one: str, other: str) -> list[str]:
            return await missing_tables(self._asker, one, other)

        return HandOver(self._asker, self._journal, elect, master, missing, tell)

    async def _state(self, group: str) -> GroupState:
        """A group as a request about it needs it."""
        state = next((each for each in await self._admin.groups([group]) if each.broker_name == group), None)
        if state is None:
            raise CommandFailed(f"the controllers do not know {group} any more", "see `brokerset status`")
        return replace(state, cluster_name=self._cluster.name)

    async def _stop_java(self, step: Step, facts: Facts) -> None:
        """Run the person's command that stops a Java broker."""
        assert self._stop_with is not None, "without it the step is the person's"
        _, group, broker_id = step.name.split(":")
        facts_of = next(each for each in facts.groups if each.name == group)
        java = next(each for each in facts_of.replicas if each.broker_id == int(broker_id))
        command = self._stop_with
        for name, value in (("address", java.address), ("group", group), ("id", broker_id)):
            command = command.replace("{" + name + "}", shlex.quote(value))
        tell(f"running: {command}")
        await run_stop_command(command, STOP_COMMAND_SECONDS_MAX, tell)
        self._stopped.add(step.name)

    async def _leave(self, facts: Facts) -> None:
        """Stop our brokers, let the controllers forget them, and delete the folder."""
        self._nothing_to_put_back()
        stop_set(self._folder)
        tell("our brokers have stopped")
        for group in facts.groups:
            await self._gone(group.name)
        now = await self.facts()
        if problem := why_not_leave(now):
            fail(
                f"{problem}, now that our brokers have stopped: nothing was cleaned, and {self._folder.path} "
                "is kept",
                "see to the Java brokers, then give the same command again; `brokerset up --detach --data "
                f"{self._folder.path}` starts ours again",
            )
        for group in now.groups:
            if ids := [each.broker_id for each in group.ours]:
                await self._admin.clean(await self._state(group.name), ids)
                tell(f"{group.name}: the controllers have forgotten {', '.join(map(str, ids))}")
        self._folder.purge()
        tell(f"{self._folder.path} is deleted")

    def _nothing_to_put_back(self) -> None:
        """The journal goes with the folder, so nothing may be left in it."""
        for each in self._journal.changed:
            fail(
                f"{each.group}: {each.address} has not got back {_settings_text(each.settings)}, and only "
                f"{self._folder.path} knows of it: nothing was stopped",
                "start it, then give the same command again; if it is lost for good, take it out of "
                f"{self._folder.path / ADOPTION}",
            )

    async def _gone(self, name: str) -> None:
        """Wait until the controllers and the Java master of a group have noticed that ours are gone."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while True:
            now = next(each for each in await self._groups() if each.name == name)
            rest = [each for each in now.ours if each.alive or each.in_sync]
            if not rest:
                return
            if time.monotonic() >= deadline:
                raise CommandFailed(
                    f"{name}/{rest[0].broker_id} has stopped, and is alive or in sync for the controllers",
                    "the Java master takes it out of the in-sync set; see its log, then repeat this",
                )
            await asyncio.sleep(LOOK_SECONDS)


def _settings_text(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def tell(text: str) -> None:
    """Say what happens, beside the tables and the JSON."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)
