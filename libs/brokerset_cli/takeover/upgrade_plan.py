"""How old stores come into controller mode with persistent ids: what is seen decides what is next. Pure.

Source: RocketMQ's documents on persistent broker ids ("upgrade from 5.0.0, 5.1.0") and on the upgrade to
controller mode, with one step of our own: what was written before the upgrade becomes one epoch, number 0, on
every store. Brokers of both makes then see that a slave's log is the beginning of its master's, copy nothing
twice, and go on where it ends. Without it a Java slave that is behind its master waits, and one of
ours does not follow, because nobody can know whose log it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_cli.takeover import upgrade_dledger
from brokerset_cli.takeover.steps import (
    Standing,
    Step,
    blocked,
    current,
    done,
    in_order,
    ready,
    waiting,
    yours,
)
from brokerset_cli.takeover.upgrade_facts import (
    PERMISSION_WRITE,
    Act,
    BrokerSeen,
    Comparison,
    Likeness,
    Origin,
    Prepare,
    Presence,
    PutAside,
    SetPermission,
    StoreSeen,
    TakeNote,
    TruncateLog,
    World,
)
from brokerset_cli.takeover.upgrade_starting import in_sync, master_started, slaves_started, writable


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps as they stand; only the current one may come with an act."""

    steps: tuple[Step, ...]
    leader: str = ""
    """Name of the store whose broker leads first; empty while that is open."""

    @property
    def act(self) -> Act | None:
        """What is ours to do now."""
        step = current(self.steps)
        return step.act if step is not None and isinstance(step.act, Act) else None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return current(self.steps) is None


_TITLES: Final = {
    "stores": "the stores can be taken",
    "old-controllers": "the old controllers are stopped; brokers serve on, and do not switch any more",
    "controller-data": "the old controllers' data is moved aside",
    "controllers": "new controllers run, and do not know the group",
    "notes": "what only running brokers tell is written down: addresses, and who is master",
    "read-only": "the master takes no more sends, and its slaves have all it has",
    "slaves-stopped": "the old slaves are stopped",
    "master-stopped": "then the old master is stopped",
    "logs": "every slave's log is the beginning of its master's",
    "exchange": "the DLedgers are moved aside",
    "epochs": "old epochs are moved aside, and all that is there becomes the first one",
    "start-master": "the old master's broker starts first, with the new release, and is elected;"
    " from here on there is no way back",
    "start-slaves": "then the other brokers start",
    "in-sync": "all are in sync",
    "writable": "the master takes sends as it did before",
}
"""The steps in their order."""

_BACK: Final = {
    "old-controllers": "start the old controllers again",
    "controllers": "stop them",
    "slaves-stopped": "start the old brokers again",
    "master-stopped": "start the old brokers again",
    **dict.fromkeys(("controller-data", "notes", "read-only", "logs", "exchange", "epochs"), "`--back`"),
}
"""How a step is undone."""

_OF_ONE_FLOW: Final = {
    "old-controllers": Origin.IDENTITY,
    "controller-data": Origin.IDENTITY,
    "read-only": Origin.CLASSIC,
    "exchange": Origin.DLEDGER,
    "writable": Origin.CLASSIC,
}


def plan_upgrade(world: World) -> Plan:
    """Derive every step from the world."""
    leader, unknown = choose_leader(world)
    slaves = _stopped(world, [each for each in world.stores if each is not leader])
    standings = {
        "stores": _usable(world),
        "old-controllers": _old_controllers(world),
        "controller-data": _old_data(world),
        "controllers": _controllers(world, leader),
        "notes": _noted(world),
        "read-only": _read_only(world, leader),
        "slaves-stopped": slaves,
        "master-stopped": _stopped(world, [leader] if leader else []),
        "logs": _logs(world, leader, unknown),
        "exchange": upgrade_dledger.exchanged(world, leader),
        "epochs": _epochs(world, leader),
        "start-master": master_started(world, leader),
        "start-slaves": slaves_started(world, leader),
        "in-sync": in_sync(world),
        "writable": writable(world),
    }
    titles = _TITLES | (upgrade_dledger.TITLES if world.flow is Origin.DLEDGER else {})
    if leader is None and slaves.detail and any(each.locked for each in world.stores):
        # All of them count as slaves; who was master is named by its log later.
        titles["slaves-stopped"] = "the old brokers are stopped"
    steps = [
        Step(name, title, *standings[name], back=_BACK.get(name, ""))
        for name, title in titles.items()
        if _OF_ONE_FLOW.get(name, world.flow) is world.flow
    ]
    return Plan(in_order(steps), leader.name if leader is not None else "")


def logs_wanted(world: World) -> bool:
    """Whether logs are to be compared now: nobody changes them but the new master, who only appends."""
    here = [each for each in world.stores if each.here]
    leader, _ = choose_leader(world)
    leads = leader is not None and leader.prepared and leader.store.identity is not None
    if any((each.locked or each.starting) and not (leads and each is leader) for each in here):
        return False
    return not _all_prepared(world) or not any(each.store.identity is not None for each in here)


def choose_leader(world: World) -> tuple[StoreSeen | None, str]:
    """The store whose broker is to lead first, else why that is not known: named, once master, or longest."""
    if world.flow is Origin.DLEDGER:
        return upgrade_dledger.choose_member(world)
    stores = world.stores
    names = {each.note.leader for each in stores if each.here and each.note and each.note.leader}
    decided = [each for each in stores if each.name in names]
    if len(decided) == 1 and any(each.store.identity is not None for each in stores):
        return decided[0], ""
    if world.wanted_master:
        named = next((each for each in stores if each.name == world.wanted_master), None)
        return named, "" if named else f"no store is {world.wanted_master}"
    masters = decided or [each for each in stores if each.note and each.note.master]
    if len(masters) == 1:
        return masters[0], ""
    if len(stores) == 1 and stores[0].here:
        return stores[0], ""
    if masters:
        return None, f"several stores were a master's: {', '.join(each.name for each in masters)}"
    ends = [each.store.end for each in stores]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return None, "nobody saw which broker was master"
    longest = [each for each in stores if each.store.end == max(known)]
    if len(longest) == 1:
        return longest[0], ""
    return None, f"nobody saw which broker was master, and {len(longest)} logs are equally long"


# -- before anything stops --------------------------------------------------------------------------------


def _usable(world: World) -> Standing:
    problems = [
        each.store.problem
        for each in world.stores
        if each.store.problem and upgrade_dledger.state_of(each) != upgrade_dledger.BEGUN
    ]
    if world.flow is Origin.DLEDGER:
        problems += upgrade_dledger.problems(world)
    else:
        problems += [
            f"{each.name} has the log of a DLedger ({each.store.ledger}); take `brokerset upgrade dledger`"
            for each in world.stores
            if each.store.ledger
        ]
    problems += [
        f"{each.name} has the persistent id {each.store.identity.broker_id} already;"
        " brokers of 5.1.1 and later need no upgrade"
        for each in world.stores
        if each.store.identity is not None and not each.prepared
    ]
    problems += [
        f"{each.name} belongs to the group {each.note.group}, not to {world.group}"
        for each in world.stores
        if each.note is not None and each.note.group != world.group
    ]
    sizes = sorted({each.store.file_size for each in world.stores if each.store.file_size})
    if len(sizes) > 1:
        problems.append(
            f"their commit log files have different sizes ({sizes}): no log of one can go on in another"
        )
    if problems:
        hint = "give other stores with --store, or put these right; nothing was changed"
        return blocked("; ".join(problems), hint)
    return done(", ".join(f"{each.name} ({each.store.release or 'new'})" for each in world.stores))


def _old_controllers(world: World) -> Standing:
    match world.old_controllers:
        case Presence.GONE:
            return done("none answers")
        case Presence.OLD:
            hint = "stop all controllers of before 5.1.1; leave the brokers running"
            return yours("they run", hint)
        case Presence.UNKNOWN:
            hint = (
                "stop them, or see why their addresses neither answer nor refuse a connection; when their"
                " machines are switched off, say --old-controllers none"
            )
            return yours("whether they run cannot be seen", hint)


def _old_data(world: World) -> Standing:
    if not world.old_data:
        return done("no given folder is in its place")
    return ready(", ".join(world.old_data), PutAside(world.old_data[0]))


def _controllers(world: World, leader: StoreSeen | None) -> Standing:
    if world.controllers_problem:
        hint = (
            "start controllers of brokerset, or Java's of 5.1.1 or later, with empty folders;"
            " name them with --controllers"
        )
        return yours(world.controllers_problem, hint)
    known = world.replicas
    ours = any(each.store.identity is not None or each.claims_id for each in world.stores)
    elsewhere = leader is not None and not leader.here
    if known is not None and known.replicas and not ours and not elsewhere:
        ids = ", ".join(f"{each.broker_id} at {each.address}" for each in known.replicas)
        hint = "stop the brokers there and clean the group at these controllers, or use empty ones"
        return blocked(f"they know {world.group} with {ids}", hint)
    return done("they serve")


def _noted(world: World) -> Standing:
    members = max([len(world.brokers), *(each.members for each in world.brokers)])
    for each in world.stores:
        broker, note = _broker_of(world, each.name), each.note
        if broker is None or not each.here or each.prepared or not each.locked:
            continue
        known = None if note is None or note.members < members else (note.address, note.master)
        if known != (broker.address, broker.master):
            detail = f"{each.name} is {broker.address}, {'master' if broker.master else 'slave'}"
            levels = broker.delay_levels if world.flow is Origin.DLEDGER else ""
            return ready(detail, TakeNote(each.name, broker.address, broker.master, members, levels))
    notes = [each.note for each in world.stores if each.note is not None and each.note.address]
    detail = ", ".join(f"{each.address}{' (master)' if each.master else ''}" for each in notes)
    return done(detail or "no broker was seen running")


def _broker_of(world: World, store: str) -> BrokerSeen | None:
    """The broker of a store here; None when it is not seen. Brokers of other hosts may use the same path."""
    found = [each for each in world.brokers if each.store == store]
    if len(found) > 1:
        found = [each for each in found if each.local]
    return found[0] if len(found) == 1 else None


def _read_only(world: World, leader: StoreSeen | None) -> Standing:
    gone = done("the old master does not run")
    master = next((each for each in world.brokers if each.master), None)
    if all(each.prepared for each in world.stores) or master is None or master.end is None:
        return gone
    owner = _owner(world, master, leader)
    if owner is not None and not owner.locked:
        return gone
    if master.permission is not None and (master.permission & PERMISSION_WRITE or not master.closed):
        detail = f"{master.address} takes sends"
        if owner is None:
            return yours(detail, "run this on the master's host first, with its store")
        noted = owner.note is not None and owner.note.permission is not None
        was = None if noted and not master.permission & PERMISSION_WRITE else master.permission
        value = master.permission & ~PERMISSION_WRITE
        return ready(detail, SetPermission(master.address, value, was, owner.name, closes=True))
    behind = [
        f"{each.address} by {master.end - each.end:,} bytes"
        for each in world.brokers
        if not each.master and each.end is not None and each.end < master.end
    ]
    if behind:
        return waiting(
            f"behind: {', '.join(behind)}; who does not move may be stopped, and copies the rest later"
        )
    return done(f"all end at {master.end:,}")


def _owner(world: World, master: BrokerSeen, leader: StoreSeen | None) -> StoreSeen | None:
    """The store here that the running master has; None when it is on another host.

    The store that is to lead may be another one. It is taken only when nobody saw whose broker the master is.
    """
    for each in world.stores:
        noted = each.note is not None and each.note.address == master.address
        if each.here and (noted or _broker_of(world, each.name) == master):
            return each
    seen = leader is not None and (
        _broker_of(world, leader.name) is not None or bool(leader.note and leader.note.address)
    )
    return leader if leader is not None and leader.here and not seen else None


# -- the old brokers stop ---------------------------------------------------------------------------------


_BY_FACTS: Final = "when its facts were written"


def _stopped(world: World, stores: list[StoreSeen]) -> Standing:
    running = ", ".join(_running(world, stores))
    if not running:
        return done()
    hint = "stop these brokers in order"
    if _BY_FACTS in running:
        hint += "; then write the facts of other hosts again, with --write-facts there"
    return yours(running, hint)


def _running(world: World, stores: list[StoreSeen]) -> list[str]:
    """Those whose old broker still runs: its store is locked, or its port open.

    On a prepared store a new one may run, unless another store is not prepared yet and no id was given here.
    """
    found = []
    for each in stores:
        expected = each.prepared and (_all_prepared(world) or each.store.identity is not None)
        if expected or not (each.locked or each.port_open):
            continue
        what = []
        if each.locked:
            what.append(f"locked by process {each.store.locked_by}" if each.store.locked_by else "locked")
        if each.port_open and each.note:
            what.append(f"{each.note.address} is open")
        if not each.here:
            what.append(_BY_FACTS)
        found.append(f"{each.name} ({', '.join(what)})")
    return found


def _all_prepared(world: World) -> bool:
    return all(each.prepared for each in world.stores if each.here)


# -- the files --------------------------------------------------------------------------------------------


def _logs(world: World, leader: StoreSeen | None, unknown: str) -> Standing:
    if _settled(world):
        return done("brokers run now; compared before the epochs were written")
    missing = _missing(world)
    if world.flow is Origin.DLEDGER and not missing:
        return upgrade_dledger.logs(world, leader, unknown)
    if leader is None:
        return blocked(unknown, "say with --master PATH whose broker was master")
    if missing:
        return blocked(missing, _MISSING_HINT)
    others = [each for each in world.stores if each is not leader]
    for each in others:
        against = _compared(world, leader, each)
        if against is not None:
            return against
    return done("; ".join([f"{leader.name} leads", *(_same_part(leader, each) for each in others)]))


def _same_part(leader: StoreSeen, each: StoreSeen) -> str:
    """What was compared of a store whose log is the beginning of the leader's."""
    extent = each.extent
    if extent is None or extent.empty:
        return f"{each.name} is empty"
    return (
        f"{each.name} is the same from {max(leader.store.begin, extent.begin):,} to {extent.end:,}, its end"
    )


def _settled(world: World) -> bool:
    """Whether brokers run on what was prepared: logs grow from now on, and brokers compare them."""
    if not _all_prepared(world):
        return False
    known = any(each.store.identity is not None for each in world.stores)
    elected = world.replicas is not None and world.replicas.master is not None
    running = any(each.locked or each.starting for each in world.stores if each.here)
    return known or elected or running


_MISSING_HINT: Final = (
    "give the other stores with --store, or, when they are on other hosts, the files that --write-facts wrote"
    " there with --facts; --members N if the group has fewer brokers by now, or nobody saw how many"
)


def _missing(world: World) -> str:
    wanted = world.members or max((each.note.members for each in world.stores if each.note), default=0)
    if not wanted and len(world.stores) == 1:
        return (
            f"nobody saw how many brokers {world.group} has; {world.stores[0].name} may lack what others have"
        )
    if len(world.stores) >= wanted:
        return ""
    return f"{world.group} has {wanted} brokers, and {len(world.stores)} of their stores can be seen"


_EMPTY: Final = "move all but config and upgrade-backup out of {}"
"""How a store is emptied: without config it is none, and the manifest is still wanted."""


def _compared(world: World, leader: StoreSeen, each: StoreSeen) -> Standing | None:
    """What stands against a store; None when its log is the beginning of the leader's."""
    found = world.comparisons.get(each.name, Comparison(Likeness.UNKNOWN, detail="it was not compared"))
    more = f" ({found.detail})" if found.detail else ""
    match found.likeness:
        case Likeness.PREFIX:
            return None
        case Likeness.LONGER | Likeness.APART:
            return _truncated(world, leader, each, found, more)
        case Likeness.NOTHING:
            detail = f"{each.name} and {leader.name} have no byte in common{more}"
            hint = f"{_EMPTY.format(each.name)}: its broker copies all of the other; or take another master"
        case Likeness.UNKNOWN:
            detail = f"{each.name} could not be compared with {leader.name}{more}"
            hint = (
                "run this on the master's host with --facts of this one and --write-facts,"
                " and give that file here with --facts"
            )
    return blocked(detail, hint)


def _truncated(world: World, leader: StoreSeen, each: StoreSeen, found: Comparison, more: str) -> Standing:
    """The end of its log would go: what that is, and whether it was accepted."""
    messages = ""
    if found.exact or found.cut_messages:
        messages = f"{found.cut_messages:,} message{'' if found.cut_messages == 1 else 's'}, "
    which = f"which {leader.name} does not have" if found.exact else f"of which {leader.name} may have a part"
    cut = f"would be cut from offset {found.common_end:,} on: {messages}{found.cut_bytes:,} bytes, {which}"
    if each.here and found.common_end > each.store.begin and each.name in world.accept_cut:
        return ready(f"{each.name} {cut}", TruncateLog(each.name, found.common_end))
    way = f"throw them away with --accept-cut {each.name} (a copy is kept)"
    if found.common_end <= each.store.begin:
        way = f"{_EMPTY.format(each.name)}, so that its broker copies all of the other log"
    elif not each.here:
        way = "run this where that store is, with --facts of this host, and --accept-cut there"
    if found.likeness is Likeness.LONGER:
        what, way = "has more than", f"{_longer_leads(leader, each, found)}; or {way}"
    else:
        what, way = "differs from", f"{way}; or take another master with --master"
    return blocked(f"{each.name} {what} {leader.name}; {cut}{more}", way)


def _longer_leads(leader: StoreSeen, each: StoreSeen, found: Comparison) -> str:
    """How a log that has more may lead, with what is known of it; what was not compared is not promised."""
    if not found.exact:
        path = each.name if each.here else each.name.partition(":")[2]
        return (
            f"take this one as master: run this on its own host, with --master {path} and --facts of the"
            f" other one; that compares all of {leader.name} with it before anything is changed"
        )
    way = f"take this one as master with --master {each.name}"
    if each.store.begin > leader.store.begin:
        return (
            f"{way}: it has all that {leader.name} has from {each.store.begin:,} to {found.common_end:,},"
            f" byte by byte, but not what {leader.name} has before that"
        )
    return (
        f"{way}, which loses no message: all of {leader.name}, from {leader.store.begin:,} to"
        f" {found.common_end:,}, was compared byte by byte, and is in it"
    )


def _epochs(world: World, leader: StoreSeen | None) -> Standing:
    for each in world.stores:
        if each.here and not each.prepared:
            old = each.store.epochs
            detail = f"{each.name}: {len(old)} epochs" if old else f"{each.name} has none"
            empty = each.extent is None or each.extent.empty
            return ready(detail, Prepare(each.name, empty, leader.name if leader is not None else ""))
    return done()
