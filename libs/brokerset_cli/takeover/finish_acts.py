"""What `adopt --finish` does to processes, controllers and name servers; each of it may be repeated."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from brokerset_cli import scaling
from brokerset_cli.down import stop_set
from brokerset_cli.folder import DataFolder
from brokerset_cli.output import CommandFailed
from brokerset_cli.rebuilding import plan_rebuild, propose, with_next_ids
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adoption import GONE_SECONDS_MAX, switchover
from brokerset_cli.takeover.adoption_journal import Finishing, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.finish_observation import ORDER_TOPICS, FinishObserver
from brokerset_cli.takeover.finish_plan import FinishFacts
from brokerset_cli.takeover.flow import OBSERVE_SECONDS, tell
from brokerset_client.controller_admin import ALIVE, ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.headers.controller import GetNextBrokerIdResponse


@dataclass
class FinishActs:
    """The acts of one call, and what it observes. Each act may be cut off, and is repeated then."""

    folder: DataFolder
    journal: Journal
    brokers: BrokerQueries
    observer: FinishObserver
    namesrv_port: int | None = None
    """Port of our first name server; 0 for a free one, None for the usual one or one near it."""

    async def observe(self) -> FinishFacts:
        """What decides what is next."""
        return await self.observer.facts()

    async def put_back(self) -> None:
        """Java brokers get back what a switchover changed, as in `adopt`."""
        if self.journal.changed:
            cluster = self.observer.java_cluster()
            async with ControllerAdmin(cluster.controllers) as admin:
                await switchover(self.brokers, self.journal, admin, cluster.name).put_back_all()

    async def seen_whole(self) -> Finishing:
        """What is to be remembered of what Java's controllers say, as long as they answer."""
        cluster, groups = self.observer.java_cluster(), self.observer.java
        next_ids = {}
        async with ControllerAdmin(cluster.controllers) as admin:
            leader = await admin.leader()
            for group in groups:
                header = headers.GetNextBrokerId(cluster_name=cluster.name, broker_name=group.name)
                answer = await self.brokers.request(leader, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
                given = GetNextBrokerIdResponse.from_ext(answer.ext).next_broker_id or 0
                next_ids[group.name] = max([given, *(each.broker_id + 1 for each in group.replicas)])
        java = {
            group.name: tuple(each.address for each in group.replicas if not each.ours) for group in groups
        }
        return Finishing(cluster.controllers, cluster.name_servers, java, next_ids)

    async def run_name_servers(self, facts: FinishFacts) -> None:
        """Let `up` run our controllers too; ours learn what Java's name servers say of ordered topics."""
        manifest = joined_set.stored_manifest(self.folder)
        assert manifest is not None, "the observation has read it"
        number = manifest.spec.controllers.replicas
        await scaling.run_own_controllers(self.folder, number, namesrv_port=self.namesrv_port)
        addresses = joined_set.name_servers_that_run(self.folder)
        entries = await self.observer.order_topics(replace(facts, name_servers=addresses))
        for address in addresses.split(";"):
            for key, value in sorted(entries.items()):
                header = headers.PutKVConfig(namespace=ORDER_TOPICS, key=key, value=value)
                await self.brokers.request(address, RequestCode.PUT_KV_CONFIG, header)
        tell(f"our name servers: {addresses}")
        if entries:
            tell(f"copied the settings of ordered topics: {', '.join(sorted(entries))}")

    def stop(self) -> None:
        """End everything that runs in the folder."""
        stop_set(self.folder)

    def start(self) -> None:
        """Start the set, and wait until it serves."""
        joined_set.start(self.folder)

    async def rebuild(self, names: list[str]) -> None:
        """Tell our controllers what the brokers of these groups hold; nothing of a group that lacks one."""
        memory, finishing = self.folder.memory(), self.journal.finishing
        next_ids = {} if finishing is None else finishing.next_ids
        answers = []
        for name in names:
            found = await self.observer.who_answers(memory, name)
            if len(found) >= len(memory.groups[name].numbers):  # else the longest log may be missing
                answers += found
        if not answers:
            return
        async with ControllerAdmin(joined_set.own_controllers(memory)) as admin:
            known = [group.broker_name for group in await admin.groups() if group.replicas]
            plan = plan_rebuild(answers, known)
            if plan.obstacles:
                raise CommandFailed(
                    f"our controllers cannot take the groups in: {'; '.join(plan.obstacles)}",
                    "correct that; then give the same command again",
                )
            for note in plan.notes:
                tell(f"Note: {note}")
            groups = with_next_ids(plan.groups, next_ids, memory.uid)
            await propose(admin, groups)
        for each in groups:
            ids = ", ".join(str(replica.broker_id) for replica in each.replicas)
            tell(f"{each.broker_name}: our controllers know the brokers {ids}, epoch {each.master_epoch}")

    async def leave_name_servers(self) -> None:
        """Our brokers use our name servers only, without a pause."""
        await scaling.use_own_name_servers(self.folder)

    async def forget(self) -> None:
        """Let Java's controllers forget our ids, if they answer: they would wait for them permanently."""
        finishing = self.journal.finishing
        if finishing is None:
            return
        cluster = self.observer.java_cluster()
        ours = joined_set.own_controllers(self.folder.memory()).split(";")
        theirs = [each for each in finishing.controllers.split(";") if each not in ours]
        if not theirs:  # ours have their ports by now
            return
        async with ControllerAdmin(theirs) as admin:
            try:
                for name, ids in sorted(finishing.ours.items()):
                    await self._forget_group(admin, cluster.name, name, ids)
            except (ClientError, CommandFailed) as error:
                tell(f"Java's controllers at {finishing.controllers} have not forgotten our brokers: {error}")

    @staticmethod
    async def _forget_group(admin: ControllerAdmin, cluster: str, group: str, ids: tuple[int, ...]) -> None:
        """Raises `CommandFailed` when ours are alive for the controllers for too long."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while True:
            states = await admin.groups([group])
            known = [each for state in states for each in state.replicas if each.broker_id in ids]
            living = [each.broker_id for each in known if each.standing == ALIVE]
            if not known:
                return
            if not living:
                state = replace(states[0], cluster_name=cluster)
                await admin.clean(state, [each.broker_id for each in known])
                tell(f"{group}: Java's controllers have forgotten {', '.join(map(str, ids))}")
                return
            if time.monotonic() >= deadline:
                raise CommandFailed(f"{group}/{living[0]} is alive for them")
            await asyncio.sleep(OBSERVE_SECONDS)
