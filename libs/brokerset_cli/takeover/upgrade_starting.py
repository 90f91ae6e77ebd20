"""The second half of an upgrade: the new brokers start, the old master's first. Pure."""

from __future__ import annotations

from brokerset_cli.takeover.steps import Step, StepState
from brokerset_cli.takeover.upgrade_acts import Act, SetPermission, StartBroker
from brokerset_cli.takeover.upgrade_facts import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    ReplicaSeen,
    StoreSeen,
    World,
)


def master_started(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    """The old master's broker runs and leads."""
    name = "start-master"
    title = (
        "the old master's broker starts first, with the new release, and is elected;"
        " from here on there is no way back"
    )
    master = world.replicas.living_master if world.replicas is not None else None
    if _all_joined(world) and master is not None:
        return Step(name, title, StepState.DONE, f"{master.broker_id} at {master.address} leads"), None
    early = [
        each
        for each in world.stores
        if each is not leader and each.here and each.prepared and (each.locked or each.starting)
    ]
    if master is not None:
        return _right_master(world, leader, master, name, title), None
    if early:
        names = ", ".join(each.name for each in early)
        hint = "stop these brokers: whoever comes first may be elected, and the others are cut to its log"
        return Step(name, title, StepState.BLOCKED, f"slaves run already: {names}", hint), None
    if leader is None:
        return Step(
            name, title, StepState.BLOCKED, "nobody saw which broker was master", "say so with --master PATH"
        ), None
    if not leader.here:
        return Step(
            name, title, StepState.YOURS, f"{leader.name} is on another host", "run this command there"
        ), None
    if leader.locked or leader.starting:
        detail = f"{leader.name} runs, and is not elected yet; is it the new release?"
        return Step(name, title, StepState.WAITING, detail), None
    if world.can_start:
        return Step(name, title, StepState.READY, leader.name), StartBroker(leader.name)
    hint = (
        f"start the new broker on {leader.name}, with controller mode and the new controllers;"
        " leave the others stopped"
    )
    return Step(name, title, StepState.YOURS, f"{leader.name} does not run", hint), None


def _right_master(world: World, leader: StoreSeen | None, master: ReplicaSeen, name: str, title: str) -> Step:
    """Whether the one that was elected is the one that has everything."""
    own = (
        leader.store.identity.broker_id if leader is not None and leader.store.identity is not None else None
    )
    wrong = [
        each.name
        for each in world.stores
        if each is not leader
        and each.store.identity is not None
        and each.store.identity.broker_id == master.broker_id
    ]
    if own == master.broker_id or (leader is not None and not leader.here and not wrong):
        return Step(name, title, StepState.DONE, f"{master.broker_id} at {master.address} leads")
    hint = (
        "stop it before it takes sends, clean the group at the controllers, remove its brokerIdentity,"
        " and start the old master's broker first"
    )
    who = wrong[0] if wrong else "a broker that has none of these stores"
    return Step(name, title, StepState.BLOCKED, f"{who} was elected, at {master.address}", hint)


def _all_joined(world: World) -> bool:
    own = [each for each in world.stores if each.here]
    return all(_replica(world, each) is not None for each in own)


def _replica(world: World, each: StoreSeen) -> ReplicaSeen | None:
    if world.replicas is None or each.store.identity is None:
        return None
    found = world.replicas.replica(each.store.identity.broker_id)
    return found if found is not None and found.alive else None


def slaves_started(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    """All others have registered."""
    name, title = "start-slaves", "then the other brokers start"
    waiting: list[str] = []
    for each in world.stores:
        if each is leader or not each.here or _replica(world, each) is not None:
            continue
        if each.locked or each.starting:
            waiting.append(each.name)
        elif world.can_start:
            return Step(name, title, StepState.READY, each.name), StartBroker(each.name)
        else:
            hint = f"start the new broker on {each.name}"
            return Step(name, title, StepState.YOURS, f"{each.name} does not run", hint), None
    if waiting:
        return Step(name, title, StepState.WAITING, f"not registered yet: {', '.join(waiting)}"), None
    return Step(name, title, StepState.DONE), None


def in_sync(world: World) -> tuple[Step, Act | None]:
    """All are in sync."""
    name, title = "in-sync", "all are in sync"
    replicas = world.replicas.replicas if world.replicas is not None else ()
    whole = [each for each in replicas if each.alive and each.in_sync]
    late = [each.name for each in world.stores if each.here and not _whole(world, each)]
    wanted = len(world.stores)
    if late or len(whole) < wanted:
        detail = f"{len(whole)} of {wanted} in sync"
        return Step(
            name, title, StepState.WAITING, detail + (f"; not yet: {', '.join(late)}" if late else "")
        ), None
    return Step(name, title, StepState.DONE, f"{len(whole)} in sync"), None


def _whole(world: World, each: StoreSeen) -> bool:
    found = _replica(world, each)
    return found is not None and found.in_sync


def writable(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    """A Java broker keeps what it is told in its settings file, and the new one may be started with that."""
    name, title = "writable", "the master takes sends again"
    master = world.replicas.living_master if world.replicas is not None else None
    if master is None or world.master_permission is None:
        return Step(name, title, StepState.WAITING, "the master does not answer"), None
    was = next(
        (each.note.permission for each in world.stores if each.note and each.note.permission is not None),
        None,
    )
    meant = world.master_permission & PERMISSION_WRITE or (was is not None and not was & PERMISSION_WRITE)
    if meant and not world.master_closed:
        return Step(name, title, StepState.DONE), None
    if leader is None:
        return Step(name, title, StepState.YOURS, "it refuses them", "set its brokerPermission to 6"), None
    value = was if was is not None else PERMISSION_READ | PERMISSION_WRITE
    return Step(name, title, StepState.READY, f"{master.address} refuses them"), SetPermission(
        master.address, value, None, leader.name
    )
