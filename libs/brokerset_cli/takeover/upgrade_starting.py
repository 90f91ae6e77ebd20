"""The second half of an upgrade: the new brokers start, the old master's first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from brokerset_cli.takeover.adopt_plan import GroupFacts, Replica
from brokerset_cli.takeover.steps import Standing, blocked, done, ready, waiting, yours
from brokerset_cli.takeover.upgrade_facts import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    SetPermission,
    StartBroker,
    StoreSeen,
    World,
)


def master_started(world: World, leader: StoreSeen | None) -> Standing:
    """The old master's broker runs and leads."""
    master = world.replicas.master if world.replicas is not None else None
    here = [each for each in world.stores if each.here]
    if master is not None:
        if all(_replica(world, each) is not None for each in here):
            return done(_leads(master))
        return _right_master(world, leader, master)
    early = [
        each.name for each in here if each is not leader and each.prepared and (each.locked or each.starting)
    ]
    if early and not _was_elected(world, leader):
        hint = (
            "stop these brokers: whoever comes first may be elected, and the others are truncated to its log"
        )
        return blocked(f"slaves run already: {', '.join(early)}", hint)
    if leader is None:
        return blocked("nobody saw which broker was master", "say so with --master PATH")
    if not leader.here:
        return yours(f"{leader.name} is on another host", "run this command there")
    if leader.locked or leader.starting:
        return waiting(f"{leader.name} runs, and is not elected yet; is it the new release?")
    if world.can_start:
        return ready(leader.name, StartBroker(leader.name))
    hint = (
        f"start the new broker on {leader.name}, with controller mode and the new controllers;"
        " leave the others stopped"
    )
    return yours(f"{leader.name} does not run", hint)


def _leads(master: Replica) -> str:
    return f"{master.broker_id} at {master.address} leads"


def _id_of(store: StoreSeen | None) -> int | None:
    return None if store is None or store.store.identity is None else store.store.identity.broker_id


def _was_elected(world: World, leader: StoreSeen | None) -> bool:
    """Whether this broker is in sync: then it led before, and nobody who is not can be elected meanwhile."""
    known = world.replicas.replicas if world.replicas is not None else ()
    own = _id_of(leader)
    return own is not None and any(one.in_sync and one.broker_id == own for one in known)


def _right_master(world: World, leader: StoreSeen | None, master: Replica) -> Standing:
    """Whether the one that was elected is the one that has everything."""
    wrong = [each.name for each in world.stores if each is not leader and _id_of(each) == master.broker_id]
    if _id_of(leader) == master.broker_id or (leader is not None and not leader.here and not wrong):
        return done(_leads(master))
    hint = (
        "stop it before it takes sends, clean the group at the controllers, remove its brokerIdentity,"
        " and start the old master's broker first"
    )
    who = wrong[0] if wrong else "a broker that has none of these stores"
    return blocked(f"{who} was elected, at {master.address}", hint)


def _replica(world: World, each: StoreSeen) -> Replica | None:
    """The living replica of a store, as the controllers know it."""
    known = world.replicas.replicas if world.replicas is not None else ()
    own = _id_of(each)
    return next((one for one in known if one.alive and one.broker_id == own), None)


def slaves_started(world: World, leader: StoreSeen | None) -> Standing:
    """All others have registered."""
    late: list[str] = []
    for each in world.stores:
        if each is leader or not each.here or _replica(world, each) is not None:
            continue
        if each.locked or each.starting:
            late.append(each.name)
        elif world.can_start:
            return ready(each.name, StartBroker(each.name))
        else:
            return yours(f"{each.name} does not run", f"start the new broker on {each.name}")
    return waiting(f"not registered yet: {', '.join(late)}") if late else done()


def in_sync(world: World) -> Standing:
    """All are in sync."""
    replicas = world.replicas.replicas if world.replicas is not None else ()
    whole = sum(each.alive and each.in_sync for each in replicas)
    own = [(each.name, _replica(world, each)) for each in world.stores if each.here]
    late = [name for name, found in own if found is None or not found.in_sync]
    if not late and whole >= len(world.stores):
        return done(f"{whole} in sync")
    text = f"; not yet: {', '.join(late)}" if late else ""
    return waiting(f"{whole} of {len(world.stores)} in sync{text}")


def bearer_of(stores: Sequence[StoreSeen], group: GroupFacts | None) -> Replica | None:
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
    return next((each for each in found if each.alive), group.master)


def writable(world: World) -> Standing:
    """A Java broker keeps what it is told in its settings file, and the new one may be started with that.

    What it allowed before is in a manifest. Without one we changed nothing, and change nothing.
    """
    bearer, value = bearer_of(world.stores, world.replicas), world.master_permission
    if bearer is None or value is None:
        return waiting("the master does not answer")
    noted = [(each.name, each.note.permission) for each in world.stores if each.note]
    owner, was = next(((name, was) for name, was in noted if was is not None), ("", None))
    if was is None:
        if not world.master_closed:
            return done(f"{bearer.address} has brokerPermission={value}; nothing was changed from here")
        hint = (
            "run this where the old master's store is, or set brokerPermission (6 if it took all sends) and"
            " startAcceptSendRequestTimeStamp=0 there with mqadmin updateBrokerConfig"
        )
        return yours(f"{bearer.address} turns sends away, and what it allowed before is not known here", hint)
    if value != was or world.master_closed:
        state = "turns sends away" if world.master_closed else f"has brokerPermission={value}"
        detail = f"{bearer.address} {state}; the old master had brokerPermission={was}"
        return ready(detail, SetPermission(bearer.address, was, None, owner, closes=False))
    detail = f"brokerPermission={was}, as before"
    if was != PERMISSION_READ | PERMISSION_WRITE:
        detail += (
            "; a broker of brokerset has this until it starts again: write it into its settings file, too"
        )
    return done(detail)
