"""The second half of an upgrade: the new brokers start, the old master's first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from brokerset_cli.takeover.steps import Step, StepState
from brokerset_cli.takeover.upgrade_acts import Act, SetPermission, StartBroker
from brokerset_cli.takeover.upgrade_facts import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    GroupSeen,
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


def bearer_of(stores: Sequence[StoreSeen], group: GroupSeen | None) -> ReplicaSeen | None:
    """Whose permission has to come back: that of the new broker on the store whose old broker was made
    read-only, whoever leads by now; the elected master's, as long as that one is not known.

    Of a store on another host the id may not be known here; its broker has the address that the old one had.
    """
    if group is None:
        return None
    taken = [each for each in stores if each.note is not None and each.note.permission is not None]
    ids = {each.store.identity.broker_id for each in taken if each.store.identity is not None}
    addresses = {each.note.address for each in taken if each.note is not None}
    found = [each for each in group.replicas if each.broker_id in ids]
    found = found or [each for each in group.replicas if each.address in addresses]
    return next((each for each in found if each.alive), group.living_master)


def writable(world: World) -> tuple[Step, Act | None]:
    """A Java broker keeps what it is told in its settings file, and the new one may be started with that.

    What it allowed before is in a manifest. Without one we changed nothing, and change nothing.
    """
    name, title = "writable", "the master takes sends as it did before"
    bearer, value = bearer_of(world.stores, world.replicas), world.master_permission
    if bearer is None or value is None:
        return Step(name, title, StepState.WAITING, "the master does not answer"), None
    owner = next((each for each in world.stores if each.note and each.note.permission is not None), None)
    was = owner.note.permission if owner is not None and owner.note is not None else None
    if owner is None or was is None:
        if not world.master_closed:
            detail = f"{bearer.address} has brokerPermission={value}; nothing was changed from here"
            return Step(name, title, StepState.DONE, detail), None
        hint = (
            "run this where the old master's store is, or set brokerPermission (6 if it took all sends) and"
            " startAcceptSendRequestTimeStamp=0 there with mqadmin updateBrokerConfig"
        )
        detail = f"{bearer.address} turns sends away, and what it allowed before is not known here"
        return Step(name, title, StepState.YOURS, detail, hint), None
    if value != was or world.master_closed:
        state = "turns sends away" if world.master_closed else f"has brokerPermission={value}"
        detail = f"{bearer.address} {state}; the old master had brokerPermission={was}"
        return Step(name, title, StepState.READY, detail), SetPermission(
            bearer.address, was, None, owner.name, closes=False
        )
    detail = f"brokerPermission={was}, as before"
    if was != PERMISSION_READ | PERMISSION_WRITE:
        detail += (
            "; a broker of brokerset has this until it starts again: write it into its settings file, too"
        )
    return Step(name, title, StepState.DONE, detail), None
