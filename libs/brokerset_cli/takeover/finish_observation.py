"""Observes a set on its way out of Java's cluster: asks controllers and name servers of both, and brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from brokerset_cli.folder import DataFolder
from brokerset_cli.output import CommandFailed
from brokerset_cli.rebuilding import ask_broker
from brokerset_cli.replication_view import fetch_broker_facts
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica, plan_adoption
from brokerset_cli.takeover.adoption import Adoption
from brokerset_cli.takeover.adoption_journal import Finishing, Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.cluster_observation import Cluster
from brokerset_cli.takeover.finish_plan import FinishFacts, Owner, OwnGroup
from brokerset_cli.takeover.steps import current
from brokerset_client.broker_facts import BrokerFacts
from brokerset_client.controller_admin import ALIVE, BrokerObservation, ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_client.instance import readable
from brokerset_protocol import headers
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_spec.set_memory import SetMemory

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace in which Java's name servers keep which queues an ordered topic has."""


def owner_of(memory: SetMemory) -> Owner:
    """Whose the brokers of a folder are."""
    if memory.joined_cluster_of is None:
        return Owner.ORDINARY
    return Owner.JOINED if memory.joined_cluster_of.controllers else Owner.OWN


@dataclass(slots=True)
class FinishObserver:
    """Gathers the facts of one call."""

    folder: DataFolder
    journal: Journal
    brokers: BrokerQueries
    java: tuple[GroupFacts, ...] = ()
    """What Java's controllers said last; empty when they did not answer."""

    def java_cluster(self) -> Cluster:
        """Where Java's controllers and name servers are; what of it nobody remembers any more is empty."""
        memory = self.folder.memory()
        finishing = self.journal.finishing
        manifest = joined_set.stored_manifest(self.folder)
        if manifest is None:
            raise CommandFailed(
                f"the manifest of the set in {self.folder.path} is gone", "restore its manifest.json"
            )
        controllers = finishing.controllers if finishing is not None else ""
        name_servers = finishing.name_servers if finishing is not None else ""
        if memory.joined_cluster_of is not None:
            controllers = memory.joined_cluster_of.controllers or controllers
            name_servers = memory.joined_cluster_of.name_servers
        return Cluster(manifest.spec.cluster_name, name_servers, controllers, {})

    async def facts(self) -> FinishFacts:
        """What decides what is next."""
        memory, remembered = self.folder.memory(), self.journal.read()
        finishing = None if remembered is None else remembered.finishing
        java, state = self.java_cluster(), self.folder.read_state()
        facts = FinishFacts(
            owner=owner_of(memory),
            folder=str(self.folder.path),
            set_runs=self.folder.running_pid() is not None,
            serving=state is not None and state.alive and state.phase == "running",
            stopping=state is not None and state.alive and state.phase == "stopping",
            changed=() if remembered is None else tuple(each.address for each in remembered.changed),
            whole_seen=finishing is not None,
            clients_moved=remembered is not None and remembered.clients_moved,
            own_begun=finishing is not None and finishing.own_since_ms > 0,
            name_servers=joined_set.name_servers_that_run(self.folder),
            java_name_servers=java.name_servers,
            java_controllers=java.controllers,
            remembered=remembered is not None,
        )
        if facts.owner is not Owner.JOINED:
            return await self._under_ours(facts, memory)
        facts = await self._under_javas(facts, memory, java)
        groups = [
            replace(each, java=await self._living_java(each, memory, finishing)) for each in facts.groups
        ]
        facts = replace(facts, groups=tuple(groups))
        if not facts.name_servers or not facts.set_runs:
            return facts
        return replace(
            facts,
            missing=await self._missing(memory),
            order_topics=tuple(sorted(await self.order_topics(facts))),
        )

    # -- under Java's controllers -------------------------------------------------------------------------

    async def _under_javas(self, facts: FinishFacts, memory: SetMemory, java: Cluster) -> FinishFacts:
        self.java = ()
        async with ControllerAdmin(java.controllers) as admin:
            try:
                seen = await Adoption(self.folder, self.brokers, admin, java, host=memory.host).observe()
            except ClientError:
                return replace(facts, groups=await self._as_brokers_say(memory))
        unknown = not all(group.replicas for group in seen.groups)
        if unknown and facts.whole_seen:  # controllers that lost, or forgot, a group know nothing about it
            return replace(facts, groups=await self._as_brokers_say(memory))
        self.java = seen.groups
        groups = tuple(_as_java_says(each, memory) for each in seen.groups)
        return replace(facts, groups=groups, java_answers=True, adoption=current(plan_adoption(seen)))

    async def _as_brokers_say(self, memory: SetMemory) -> tuple[OwnGroup, ...]:
        """The groups as our masters know them, while no controllers of Java's answer."""
        found = []
        for name, addresses in joined_set.own_brokers(memory).items():
            answers = await self.who_answers(memory, name)
            facts = await fetch_broker_facts(addresses)
            found.append(as_brokers_say(name, _wanted(memory, name), answers, facts))
        return tuple(found)

    async def who_answers(self, memory: SetMemory, group: str) -> list[BrokerObservation]:
        """Our brokers of a group that have an id and say who they are (1007)."""
        async with ControllerAdmin(joined_set.own_controllers(memory) or memory.host) as admin:
            answers = await asyncio.gather(
                *(ask_broker(admin, address) for address in joined_set.own_brokers(memory).get(group, ()))
            )
        return [
            each
            for each in answers
            if isinstance(each, BrokerObservation)
            and each.broker_name == group
            and each.identity.owner_uid == memory.uid
            and each.identity.replica_id is not None
        ]

    async def _living_java(
        self, group: OwnGroup, memory: SetMemory, finishing: Finishing | None
    ) -> tuple[str, ...]:
        """Java brokers of a group that its controllers hear, or that listen where one was known to be."""
        heard = [
            each.address
            for facts in self.java
            if facts.name == group.name
            for each in facts.replicas
            if not each.ours and (each.alive or each.answers)
        ]
        known = () if finishing is None else finishing.java.get(group.name, ())
        ours = {address for addresses in joined_set.own_brokers(memory).values() for address in addresses}
        others = [address for address in known if address not in ours and address not in heard]
        answers = await asyncio.gather(*map(self.brokers.answers, others))
        return tuple(sorted([*heard, *(one for one, there in zip(others, answers, strict=True) if there)]))

    async def _missing(self, memory: SetMemory) -> tuple[str, ...]:
        """Brokers of ours that a name server of ours does not know (106), in words."""
        found: dict[str, None] = {}
        for name_server in joined_set.name_servers_that_run(self.folder).split(";"):
            try:
                table = (await self.brokers.cluster_info([name_server])).broker_addr_table
            except ClientError:
                found[f"anybody at our name server {name_server}, which does not answer"] = None
                continue
            known = {address for data in table.values() for address in data.broker_addrs.values()}
            for group, addresses in joined_set.own_brokers(memory).items():
                found |= dict.fromkeys(f"{group} at {each}" for each in addresses if each not in known)
        return tuple(found)

    async def order_topics(self, facts: FinishFacts) -> dict[str, str]:
        """What Java's name servers say of ordered topics (219), and one of ours does not.

        Nothing once clients have moved: ours are in force then.
        """
        if facts.clients_moved:
            return {}
        wanted: dict[str, str] = {}
        for address in facts.java_name_servers.split(";"):
            table = await self._order_topics_at(address)
            if table is not None:
                wanted = table
                break
        lacking: dict[str, str] = {}
        for address in facts.name_servers.split(";") if wanted else ():
            has = await self._order_topics_at(address)
            for key, value in wanted.items():
                if has is not None and has.get(key) != value:
                    lacking[key] = value
        return lacking

    async def _order_topics_at(self, name_server: str) -> dict[str, str] | None:
        """The entries of one name server; None when it does not answer."""
        header = headers.GetKVListByNamespace(namespace=ORDER_TOPICS)
        try:
            answer = await self.brokers.ask(name_server, RequestCode.GET_KVLIST_BY_NAMESPACE, header)
            if answer.code != ResponseCode.SUCCESS:
                return {}
            return dict(readable(KVTable.from_json, answer.body).table)
        except ClientError:
            return None

    # -- under our controllers ----------------------------------------------------------------------------

    async def _under_ours(self, facts: FinishFacts, memory: SetMemory) -> FinishFacts:
        states: tuple[GroupState, ...] | None = None
        if facts.set_runs:
            async with ControllerAdmin(joined_set.own_controllers(memory)) as admin:
                try:
                    states = await admin.groups()
                except ClientError:
                    states = None
        known = {each.broker_name: each for each in states or () if each.replicas}
        groups = []
        for name in sorted(memory.groups):
            wanted = _wanted(memory, name)
            if name in known:
                groups.append(as_ours_say(known[name], wanted))
                continue
            answered = await self.who_answers(memory, name) if states is not None else []
            groups.append(OwnGroup(name, wanted, answered=len(answered)))
        return replace(facts, groups=tuple(groups), controllers_answer=states is not None)


def _wanted(memory: SetMemory, group: str) -> int:
    return len(memory.groups[group].numbers)


def _as_java_says(group: GroupFacts, memory: SetMemory) -> OwnGroup:
    master = group.master
    return OwnGroup(
        group.name,
        _wanted(memory, group.name) if group.name in memory.groups else 1,
        group.ours,
        master.broker_id if master is not None and master.ours else None,
        java_in_sync=tuple(each.address for each in group.replicas if each.in_sync and not each.ours),
    )


def as_brokers_say(
    name: str, wanted: int, answers: Sequence[BrokerObservation], facts: dict[str, BrokerFacts]
) -> OwnGroup:
    """A group as its own brokers describe it: in sync is who is connected to the master, which counts it in.

    Nobody can change the set while no controllers answer, so a member that has gone is still in it.
    """
    leaders = [each for each in answers if each.identity.master_epoch is not None]
    master = max(leaders, key=lambda each: each.identity.master_epoch or 0, default=None)
    said = None if master is None else facts.get(master.address)
    in_sync: set[int] = set()
    if master is not None and said is not None and said.is_master:
        connected = {each.broker_id for each in said.replicas if each.in_sync}
        in_sync = set(said.in_sync) & {*connected, master.identity.replica_id or 0}
    replicas = tuple(
        Replica(
            each.identity.replica_id or 0,
            each.address,
            True,
            each.identity.replica_id in in_sync,
            True,
            True,
            each.identity.log_offset,
        )
        for each in answers
    )
    return OwnGroup(name, wanted, replicas, None if master is None else master.identity.replica_id)


def as_ours_say(state: GroupState, wanted: int) -> OwnGroup:
    """A group as our controllers describe it."""
    replicas = tuple(
        Replica(
            each.broker_id,
            each.address,
            each.standing == ALIVE,
            each.broker_id in state.sync_state_set,
            True,
            each.standing == ALIVE,
            each.max_offset,
        )
        for each in state.replicas
    )
    living = {each.broker_id for each in replicas if each.alive}
    master = state.master_id if state.master_id in living else None
    return OwnGroup(state.broker_name, wanted, replicas, master, known=True)
