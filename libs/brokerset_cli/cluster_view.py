"""What `brokerset status` knows of controllers and replicas, and what is wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerset_cli.folder import SetState
from brokerset_cli.java_controllers import JavaController, java_problems, leader_of, probe_java
from brokerset_cli.readiness import broker_problems
from brokerset_cli.replication_view import (
    BrokerAnswer,
    is_fenced,
    master_facts,
    probe_brokers,
    replica_json,
    replication_problems,
)
from brokerset_cli.takeover.mix import GroupMix, Make, MixMember, decide_mix
from brokerset_client.broker_facts import BrokerFacts
from brokerset_client.controller_admin import ControllerAdmin, ControllerObservation
from brokerset_client.errors import ClientError
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState, ReplicaState

LEADER_SECONDS: Final = 1.0
"""An observation does not wait longer than this for a leader."""

NOT_KNOWN: Final = 0
"""A next id that the controllers do not give with the rest: Java's."""

NAMES_SHOWN: Final = 5
"""Names of groups that an error shows."""

STATUS_KEYS: Final = (
    "nodeId", "role", "term", "leaderId", "leading",
    "lastIndex", "commitIndex", "appliedIndex", "snapshotIndex", "logFormat",
)  # fmt: skip
GROUP_KEYS: Final = ("owner", "masterId", "advice")
REPLICA_KEYS: Final = ("nonce", "logEpoch", "maxOffset", "confirmOffset", "heardMsAgo")
"""What the wire leaves out when it is not known; for scripts every key is there, with null."""


@dataclass(frozen=True, slots=True)
class ControllersView:
    """The controllers, and the groups as they know them."""

    observed: tuple[ControllerObservation, ...]
    groups: tuple[GroupState, ...]
    leader: ControllerStatus | None
    """What the leader says; None without one. The groups are then an older state."""

    facts: Mapping[str, BrokerFacts] = field(default_factory=dict)
    """How the replicas replicate, by address; of those that say it."""

    brokers: Mapping[str, BrokerAnswer] = field(default_factory=dict)
    """What the replicas of either make answered, by address."""

    java: tuple[JavaController, ...] = ()
    """Java's controllers, when none of ours answered."""

    unlisted: str = ""
    """Why the groups are not known, and what to do; empty when they are."""

    @property
    def answered(self) -> bool:
        """Whether any of them answered."""
        return any(controller.status is not None for controller in self.observed) or bool(self.java)

    @property
    def make(self) -> Make:
        """Whose controllers they are."""
        if any(controller.status is not None for controller in self.observed):
            return Make.OURS
        return Make.JAVA if self.java else Make.UNKNOWN

    def mix(self, group: GroupState) -> GroupMix:
        """Which makes run a group together, and what that means."""
        nobody = BrokerAnswer(Make.UNKNOWN)
        members = []
        for replica in group.replicas:
            said = self.brokers.get(replica.address, nobody)
            in_sync = replica.broker_id in group.sync_state_set
            members.append(MixMember(replica.broker_id, said.make, said.version, in_sync, said.all_ack))
        return decide_mix(group.broker_name, self.make, members, group.master_id)


async def fetch_controllers_view(
    addresses: str, names: Sequence[str] = (), name_servers: str = ""
) -> ControllersView:
    """Ask every controller once; groups come from the leader, or from the one that knows most.

    `names`: the groups to ask Java's controllers about, which cannot list what they know, nor say who could:
    1005 and 1010 name neither brokers nor name servers. `name_servers`: who gave the names.
    """
    unlisted = ""
    async with ControllerAdmin(addresses, timeout=LEADER_SECONDS) as admin:
        observed = tuple(await admin.observe())
        answers = [
            (controller.address, controller.status)
            for controller in observed
            if controller.status is not None
        ]
        leading = [status for _, status in answers if status.leading]
        leader = max(leading, key=lambda status: status.term, default=None)
        groups: tuple[GroupState, ...] = ()
        java = () if answers else await probe_java([controller.address for controller in observed])
        listed = {controller.address for controller in observed}
        observed += tuple(
            ControllerObservation(each.address, None) for each in java if each.address not in listed
        )
        try:
            if java and names and leader_of(java) is not None:
                found = await admin.groups(names)
                groups = tuple(replace(group, next_broker_id=NOT_KNOWN) for group in found)
                unlisted = "" if groups else none_known(names, name_servers)
            elif leader is not None:
                groups = await admin.groups()
            elif answers:
                groups = await admin.groups_at(max(answers, key=lambda each: each[1].applied_index)[0])
        except ClientError as error:
            leader = None
            unlisted = f"Java's controllers do not tell their groups: {error}" if java else ""
    if java and leader_of(java) is None:
        unlisted = "the groups are not known, as only a controller of Java's that leads tells them"
    elif java and not names:
        unlisted = no_names(name_servers)
    brokers = await probe_brokers(
        replica.address for group in groups for replica in group.replicas if replica.address
    )
    facts = {address: each.facts for address, each in brokers.items() if each.facts is not None}
    return ControllersView(observed, groups, leader, facts, brokers, java, unlisted)


def no_names(name_servers: str) -> str:
    """What to do when nobody knows which groups Java's controllers have."""
    asked = f"; {name_servers}, asked for them, told none" if name_servers else ""
    return (
        "the groups are not known, as Java's controllers cannot list them: give the cluster's name servers "
        f"with --namesrv HOST:PORT{asked}"
    )


def none_known(names: Sequence[str], name_servers: str) -> str:
    """What to do when the name servers are another cluster's, or its brokers use no controllers."""
    more = ", …" if len(names) > NAMES_SHOWN else ""
    return (
        f"Java's controllers know none of the groups of {name_servers or 'the name servers'} "
        f"({', '.join(names[:NAMES_SHOWN])}{more}): give the name servers of their cluster with --namesrv "
        "HOST:PORT; brokers without controllers have no groups there"
    )


def controller_problems(view: ControllersView, state: SetState | None) -> list[str]:
    """What is wrong with the controllers and the groups, with what to do where it is known."""
    found = []
    names = process_names(state)
    if view.unlisted:
        found.append(view.unlisted)
    if view.java:
        known = {each.address for each in view.java}
        found += java_problems(
            view.java, [each.address for each in view.observed if each.address not in known]
        )
    for controller in () if view.java else view.observed:
        if controller.status is None:
            name = names.get(controller.address, "controller")
            found.append(f"{name} at {controller.address} gives no status: {controller.problem}")
    if view.java:
        pass  # what they know of members is theirs
    elif view.leader is None:
        answering = sum(controller.status is not None for controller in view.observed)
        found.append(
            f"no controller leads ({answering} of {len(view.observed)} answer): ids and masters cannot "
            "change until more than half of the voters run"
        )
    else:
        found += _member_problems(view.leader, state)
    for group in view.groups:
        if group.master_id is None and group.replicas:
            found.append(
                f"{group.broker_name} has no master: {group.advice or 'the controllers give no reason'}"
            )
        elif any(r.broker_id == group.master_id and r.standing == "dead" for r in group.replicas):
            found.append(
                f"{group.broker_name}/{group.master_id} is master and dead: "
                f"{group.advice or 'the controllers give no reason'}"
            )
    return found + replication_problems(view.groups, view.facts)


def _member_problems(leader: ControllerStatus, state: SetState | None) -> list[str]:
    members = {member.node_id for member in leader.members}
    found = [
        f"controller n{member.node_id} at {member.service_address} has no vote yet; "
        f"`brokerset controller members promote {member.node_id}` gives it one"
        for member in leader.members
        if not member.voter
    ]
    if state is not None:
        ours = {p.node_id: p for p in state.processes if p.kind == "controller"}
        advice = "`brokerset controller scale N` sets that right"
        found += [
            f"{p.name} runs and is no member of the controllers; {advice}"
            for n, p in ours.items()
            if n not in members
        ]
        found += [
            f"controller n{n} is a member and has no process here; {advice}"
            for n in sorted(members - set(ours))
        ]
    return found


async def broker_reasons(state: SetState | None) -> dict[str, list[str]]:
    """By address: what each broker that runs here says about why it does not serve."""
    mine = [p for p in (state.processes if state else ()) if p.kind == "broker" and p.alive and p.http_port]
    answers = await asyncio.gather(
        *(broker_problems(p.address.rpartition(":")[0], p.http_port) for p in mine)
    )
    return {p.address: problems for p, problems in zip(mine, answers, strict=True) if problems}


def process_names(state: SetState | None) -> dict[str, str]:
    """Names of the processes that run here, by address."""
    return {process.address: process.name for process in (state.processes if state else ())}


def replica_role(group: GroupState, broker_id: int) -> str:
    """What a replica is in its group."""
    if group.master_id == broker_id:
        return "master"
    return "slave" if group.master_id is not None else "none"


def replica_state(group: GroupState, replica: ReplicaState) -> str:
    """Whether a replica lives, and takes part."""
    if replica.standing != "alive":
        return f"{replica.standing}, fenced" if is_fenced(group, replica) else replica.standing
    if replica.stuck:
        return "stuck"
    return "fenced" if is_fenced(group, replica) else "alive"


def view_json(view: ControllersView, names: Mapping[str, str]) -> dict[str, Any]:
    """The controllers' part of `status --json`."""
    return {
        "controllers": [_controller_json(controller, names, view.java) for controller in view.observed],
        "controllersMake": view.make.value,
        "leaderId": view.leader.node_id if view.leader is not None else None,
        "term": view.leader.term if view.leader is not None else None,
        "members": [member.to_object() for member in view.leader.members] if view.leader is not None else [],
        "groupsUnlisted": view.unlisted or None,
        "groups": [
            {**_group_json(group, names, view.facts), "mix": view.mix(group).to_json()}
            for group in view.groups
        ],
    }


def _controller_json(
    controller: ControllerObservation, names: Mapping[str, str], java: Sequence[JavaController]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "address": controller.address,
        "process": names.get(controller.address),
        "answers": controller.status is not None,
        "make": Make.UNKNOWN.value if controller.status is None else Make.OURS.value,
        "problem": controller.problem,
        **dict.fromkeys(STATUS_KEYS),
        **(_without_members(controller.status) if controller.status is not None else {}),
    }
    for each in java:
        if each.address == controller.address:
            role = "leader" if each.leads else "follower"
            found |= {
                "answers": True,
                "make": Make.JAVA.value,
                "problem": None,
                "role": role,
                "leading": each.leads,
            }
    return found


def _without_members(status: ControllerStatus) -> dict[str, object]:
    return {key: value for key, value in status.to_object().items() if key != "members"}


def _group_json(
    group: GroupState, names: Mapping[str, str], facts: Mapping[str, BrokerFacts]
) -> dict[str, Any]:
    found: dict[str, Any] = {**dict.fromkeys(GROUP_KEYS), **group.to_object()}
    if group.next_broker_id == NOT_KNOWN:
        found["nextBrokerId"] = None
    master = master_facts(group, facts)
    found["minInSyncReplicas"] = master.min_in_sync if master is not None else None
    found["confirmedOffset"] = master.confirmed_offset if master is not None else None
    found["replicas"] = [
        {
            **dict.fromkeys(REPLICA_KEYS),
            **replica.to_object(),
            **replica_json(replica, facts, master),
            "process": names.get(replica.address),
            "role": replica_role(group, replica.broker_id),
            "inSync": replica.broker_id in group.sync_state_set,
            "fenced": is_fenced(group, replica),
        }
        for replica in group.replicas
    ]
    return found


def group_lines(group: GroupState, master: BrokerFacts | None = None) -> list[str]:
    """One line about a group, and one for each election that may have lost something."""
    in_sync = ", ".join(map(str, group.sync_state_set)) or "nobody"
    who = f"master {group.master_id}" if group.master_id is not None else "no master"
    owner = f", set {group.owner[:8]}" if group.owner else ""
    least = f", at least {master.min_in_sync}" if master is not None and master.min_in_sync else ""
    following = f"; next id {group.next_broker_id}" if group.next_broker_id != NOT_KNOWN else ""
    return [
        f"{group.broker_name}: {who}, epoch {group.master_epoch}; in sync: {in_sync} "
        f"(epoch {group.sync_state_set_epoch}{least}){following}{owner}",
        *(
            f"  possible loss: epoch {loss.master_epoch}, replica {loss.broker_id}, from offset "
            f"{loss.from_offset}: {loss.reason}"
            for loss in group.losses
        ),
    ]
