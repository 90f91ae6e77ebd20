"""One call of `adopt`, forward or back: what it observes, and what it does on each step."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from brokerset_cli.down import stop_set
from brokerset_cli.folder import DataFolder
from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adopt_plan import (
    Facts,
    GroupFacts,
    heir_of,
    plan_adoption,
    plan_return,
    why_not_leave,
)
from brokerset_cli.takeover.adoption_journal import ADOPTION, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.cluster_observation import (
    Cluster,
    inspect_disk,
    inspect_java,
    missing_tables,
    observe_groups,
)
from brokerset_cli.takeover.flow import OBSERVE_SECONDS, Flow, tell
from brokerset_cli.takeover.java_switchover import Switchover
from brokerset_cli.takeover.obstacles import BrokerAnswers, Finding
from brokerset_cli.takeover.steps import Step
from brokerset_cli.takeover.stop_command import run_stop_command
from brokerset_client.controller_admin import NOT_SERVED, ControllerAdmin
from brokerset_client.errors import RequestRefused
from brokerset_protocol import headers
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.codes import RequestCode
from brokerset_runtime.files import FileLock
from brokerset_spec.manifest import REPLICAS_MAX, BrokerSet, ManifestError

GONE_SECONDS_MAX: Final = 90.0
"""How long it may take until Java's master and controllers have noticed that our brokers are gone."""

STOP_COMMAND_SECONDS_MAX: Final = 300.0
"""Time-out of the command that stops a Java broker."""


class Adoption(Flow[Facts]):
    """One call of the command."""

    def __init__(
        self,
        folder: DataFolder,
        brokers: BrokerQueries,
        admin: ControllerAdmin,
        cluster: Cluster,
        *,
        host: str,
        replicas: int | None = None,
        stop_with: str | None = None,
        yes: bool = True,
        back: bool = False,
    ) -> None:
        """`replicas`: brokers of ours for each group, as asked for; `back`: the cluster is given back."""
        super().__init__(yes=yes)
        self._folder = folder
        self._journal = Journal(folder.path)
        self._brokers = brokers
        self._admin = admin
        self._cluster = cluster
        self._host = host
        self._replicas = replicas
        self._stop_with = stop_with
        self._back = back
        self._stopped: set[str] = set()
        self._lock: FileLock | None = None
        self._answers: tuple[BrokerAnswers, ...] = ()
        self.findings: list[Finding] = []
        self.pauses: dict[str, float] = {}
        """By group: for how many seconds nobody took messages."""

    # -- what is there ------------------------------------------------------------------------------------

    async def inspect(self, earlier: Sequence[Finding], accepted: Sequence[str]) -> None:
        """Find everything that stands against it; what is found once it has begun is a warning."""
        groups = await self._groups()
        self._answers, found = await inspect_java(self._brokers, self._cluster, groups, accepted)
        found = [*earlier, *joined_set.folder_findings(self._folder), *found]
        if self._journal.read() is None:
            found += await self._controller_findings(groups)
            found += joined_set.host_findings(self._host, self._answers)
            found += inspect_disk(self._folder.path, self._answers, self._wanted(groups))
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
        answer = await self._brokers.ask(leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
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
            # One that does not answer takes nothing, and gets its settings when it is back.
            if await self._brokers.answers(each.address):
                read_only[each.group] = each.address
        return await observe_groups(
            self._brokers,
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

    async def observe(self) -> Facts:
        groups = await self._groups()
        return Facts(
            groups,
            self._wanted(groups),
            tuple(each.text for each in self.findings if each.blocks),
            self._folder.path.exists() and self._folder.running_pid() is not None,
            joined_set.joined_cluster_of(self._folder) is not None,
            self._stop_with is not None,
            frozenset(self._stopped),
        )

    def plan(self, facts: Facts) -> tuple[Step, ...]:
        return plan_return(facts) if self._back else plan_adoption(facts)

    # -- going on -----------------------------------------------------------------------------------------

    async def go(self, last: str | None) -> tuple[Step, ...]:
        """Put back what a switchover that was cut off has changed, then run the flow."""
        self._keep_others_out()
        try:
            for each in await self._switchover().put_back_all():
                tell(f"{each.address} is to get back {_settings_text(each.settings)} when it answers again")
            return await self.run(last)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _keep_others_out(self) -> None:
        """Another call would put back what this one's switchover has just changed."""
        if self._lock is None and self._folder.owner() is not None:
            self._lock = self._folder.lock()

    async def act(self, step: Step, facts: Facts) -> None:
        tell(f"{step.name}: {step.title}")
        group = step.name.partition(":")[2]
        match step.kind:
            case "join":
                self._join(facts)
            case "leave":
                await self._leave(facts)
            case "retire":
                await self._stop_java(step, facts)
            case _:
                await self._switch(next(each for each in facts.groups if each.name == group))
        self._keep_others_out()  # the first step makes the folder

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

    async def _switch(self, group: GroupFacts) -> None:
        switchover = self._switchover()
        left = await switchover.put_back_all() if group.read_only else ()
        if any(each.address == group.read_only for each in left):
            raise CommandFailed(
                f"{group.read_only} does not get its settings back",
                "see why it does not answer, or stop it; then give the same command again",
            )
        master, heir = group.master, heir_of(group, ours=not self._back)
        if group.read_only or master is None or heir is None or master.ours is not self._back:
            return  # it is observed again
        tell(f"{group.name}: from {master.address} to {heir.address}")
        way = switchover.to_java if self._back else switchover.to_ours
        seconds = await way(group, master, heir)
        self.pauses[group.name] = seconds
        tell(
            f"{group.name}/{heir.broker_id} at {heir.address} is master; nobody took messages for "
            f"{seconds:.2f} s"
        )

    def _switchover(self) -> Switchover:
        return switchover(self._brokers, self._journal, self._admin, self._cluster.name)

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
        self._stopped.add(step.name)  # from now on it is waited for

    async def _leave(self, facts: Facts) -> None:
        """Stop our brokers, let the controllers forget them, and delete the folder."""
        self._nothing_to_put_back()
        stop_set(self._folder)
        tell("our brokers have stopped")
        for group in facts.groups:
            await self._gone(group.name)
        now = await self.observe()
        if problem := why_not_leave(now):
            fail(
                f"{problem}, now that our brokers have stopped: nothing was cleaned, and {self._folder.path} "
                "is kept",
                "see to the Java brokers, then give the same command again; `brokerset up --detach --data "
                f"{self._folder.path}` starts ours again",
            )
        for group in now.groups:
            if ids := [each.broker_id for each in group.ours]:
                await self._admin.clean(await _state(self._admin, self._cluster.name, group.name), ids)
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
            await asyncio.sleep(OBSERVE_SECONDS)


def switchover(brokers: BrokerQueries, journal: Journal, admin: ControllerAdmin, cluster: str) -> Switchover:
    """A switchover at the controllers of a cluster."""

    async def elect(group: str, broker_id: int) -> None:
        await admin.elect(await _state(admin, cluster, group), broker_id)

    async def master(group: str) -> str | None:
        info = (await admin.sync_states([group])).get(group)
        return None if info is None else info.master_address

    async def missing(one: str, other: str) -> list[str]:
        return await missing_tables(brokers, one, other)

    return Switchover(brokers, journal, elect, master, missing, tell)


async def _state(admin: ControllerAdmin, cluster: str, group: str) -> GroupState:
    """A group as a request about it needs it."""
    state = next((each for each in await admin.groups([group]) if each.broker_name == group), None)
    if state is None:
        raise CommandFailed(f"the controllers do not know {group} any more", "see `brokerset status`")
    return replace(state, cluster_name=cluster)


def _settings_text(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
