"""How old stores come into controller mode with persistent ids: what is seen decides what is next. Pure.

Source: RocketMQ's documents on persistent broker ids ("upgrade from 5.0.0, 5.1.0") and on the upgrade to
controller mode, with one step of our own: what was written before the upgrade becomes one epoch, number 0, on
every store. Brokers of both makes then see that a slave's log is the beginning of its master's, copy nothing
twice, and go on where it ends. Without it a Java slave that is behind its master waits for ever, and one of
ours does not follow, because nobody can know whose log it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_cli.takeover.steps import Step, StepState, current, in_order
from brokerset_cli.takeover.upgrade_acts import (
    Act,
    CutLog,
    Prepare,
    PutAside,
    SetPermission,
    TakeNote,
)
from brokerset_cli.takeover.upgrade_facts import (
    PERMISSION_WRITE,
    BrokerSeen,
    Comparison,
    Flow,
    Likeness,
    Presence,
    StoreSeen,
    World,
)
from brokerset_cli.takeover.upgrade_starting import in_sync, master_started, slaves_started, writable

STOP_BACK: Final = "start the old brokers again"
BACK: Final = "`--back`"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps as they stand, and what is ours to do now."""

    steps: tuple[Step, ...]
    act: Act | None
    leader: str
    """Name of the store whose broker leads first; empty while that is open."""

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return current(self.steps) is None


def plan_upgrade(world: World) -> Plan:
    """Derive every step from the world. Only the first step that is not done may come with an act."""
    leader, open_question = choose_leader(world)
    found: list[tuple[Step, Act | None]] = [_usable(world)]
    if world.flow is Flow.IDENTITY:
        found += [_old_controllers(world), _old_data(world)]
    found += [_controllers(world, leader), _noted(world)]
    if world.flow is Flow.CLASSIC:
        found.append(_read_only(world, leader))
    found += [
        _slaves_stopped(world, leader),
        _master_stopped(world, leader),
        _logs(world, leader, open_question),
        _epochs(world, leader),
        master_started(world, leader),
        slaves_started(world, leader),
        in_sync(world),
    ]
    if world.flow is Flow.CLASSIC:
        found.append(writable(world))
    steps = in_order([step for step, _ in found])
    now = current(steps)
    act = next((act for step, act in found if now is not None and step.name == now.name), None)
    return Plan(
        steps,
        act if now is not None and now.state is StepState.READY else None,
        leader.name if leader is not None else "",
    )


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


def _usable(world: World) -> tuple[Step, Act | None]:
    name, title = "stores", "the stores can be taken"
    problems = [each.store.problem for each in world.stores if each.store.problem]
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
        return Step(name, title, StepState.BLOCKED, "; ".join(problems), hint), None
    seen = ", ".join(f"{each.name} ({each.store.release or 'new'})" for each in world.stores)
    return Step(name, title, StepState.DONE, seen), None


def _old_controllers(world: World) -> tuple[Step, Act | None]:
    name, title = (
        "old-controllers",
        "the old controllers are stopped; brokers serve on, and do not switch any more",
    )
    back = "start the old controllers again"
    match world.old_controllers:
        case Presence.GONE:
            return Step(name, title, StepState.DONE, "none answers", back=back), None
        case Presence.OLD:
            return Step(
                name,
                title,
                StepState.YOURS,
                "they run",
                "stop all controllers of before 5.1.1; leave the brokers running",
                back,
            ), None
        case Presence.UNKNOWN:
            return Step(
                name, title, StepState.YOURS, "whether they run cannot be seen",
                "stop them, or see why their addresses neither answer nor refuse a connection; when their"
                " machines are switched off, say --old-controllers none", back,
            ), None  # fmt: skip


def _old_data(world: World) -> tuple[Step, Act | None]:
    name, title = "controller-data", "the old controllers' data is moved aside"
    if not world.old_data:
        return Step(name, title, StepState.DONE, "no given folder is in its place", back=BACK), None
    return Step(name, title, StepState.READY, ", ".join(world.old_data), back=BACK), PutAside(
        world.old_data[0]
    )


def _controllers(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    name, title = "controllers", "new controllers run, and do not know the group"
    back = "stop them"
    if world.controllers_problem:
        hint = (
            "start controllers of brokerset, or Java's of 5.1.1 or later, with empty folders;"
            " name them with --controllers"
        )
        return Step(name, title, StepState.YOURS, world.controllers_problem, hint, back), None
    known = world.replicas
    ours = any(each.store.identity is not None for each in world.stores)
    elsewhere = leader is not None and not leader.here
    if known is not None and known.replicas and not ours and not elsewhere:
        ids = ", ".join(f"{each.broker_id} at {each.address}" for each in known.replicas)
        return Step(
            name, title, StepState.BLOCKED, f"they know {world.group} with {ids}",
            "stop the brokers there and clean the group at these controllers, or use empty ones", back,
        ), None  # fmt: skip
    return Step(name, title, StepState.DONE, "they serve", back=back), None


def _noted(world: World) -> tuple[Step, Act | None]:
    name, title = "notes", "what only running brokers tell is written down: addresses, and who is master"
    for each in world.stores:
        broker = _broker_of(world, each.name)
        if broker is None or not each.here or each.prepared or not each.locked:
            continue
        note, members = each.note, len(world.brokers)
        if (
            note is None
            or (note.address, note.master) != (broker.address, broker.master)
            or note.members < members
        ):
            detail = f"{each.name} is {broker.address}, {'master' if broker.master else 'slave'}"
            return Step(name, title, StepState.READY, detail, back=BACK), TakeNote(
                each.name, broker.address, broker.master, members
            )
    noted = [each for each in world.stores if each.note is not None and each.note.address]
    detail = ", ".join(
        f"{each.note.address}{' (master)' if each.note.master else ''}" for each in noted if each.note
    )
    return Step(name, title, StepState.DONE, detail or "no broker was seen running", back=BACK), None


def _broker_of(world: World, store: str) -> BrokerSeen | None:
    """The broker of a store here; None when it is not seen. Brokers of other hosts may use the same path."""
    found = [each for each in world.brokers if each.store == store]
    if len(found) > 1:
        found = [each for each in found if each.local]
    return found[0] if len(found) == 1 else None


def _read_only(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    name, title = "read-only", "the master takes no more sends, and its slaves have all it has"
    master = next((each for each in world.brokers if each.master), None)
    if all(each.prepared for each in world.stores) or master is None or master.end is None:
        return Step(name, title, StepState.DONE, "the old master does not run", back=BACK), None
    owner = _owner(world, master, leader)
    if owner is not None and not owner.locked:
        return Step(name, title, StepState.DONE, "the old master does not run", back=BACK), None
    if master.permission is not None and (master.permission & PERMISSION_WRITE or not master.closed):
        if owner is None:
            return Step(
                name,
                title,
                StepState.YOURS,
                f"{master.address} takes sends",
                "run this on the master's host first, with its store",
                BACK,
            ), None
        noted = owner.note is not None and owner.note.permission is not None
        was = None if noted and not master.permission & PERMISSION_WRITE else master.permission
        act = SetPermission(
            master.address, master.permission & ~PERMISSION_WRITE, was, owner.name, closes=True
        )
        return Step(name, title, StepState.READY, f"{master.address} takes sends", back=BACK), act
    behind = [
        f"{each.address} by {master.end - each.end:,} bytes"
        for each in world.brokers
        if not each.master and each.end is not None and each.end < master.end
    ]
    if behind:
        detail = f"behind: {', '.join(behind)}; who does not move may be stopped, and copies the rest later"
        return Step(name, title, StepState.WAITING, detail, back=BACK), None
    return Step(name, title, StepState.DONE, f"all end at {master.end:,}", back=BACK), None


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


def _slaves_stopped(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    running = _running(world, [each for each in world.stores if each is not leader])
    name, title = "slaves-stopped", "the old slaves are stopped"
    if leader is None and running and any(each.locked for each in world.stores):
        # All of them count as slaves; who was master is named by its log later.
        title = "the old brokers are stopped"
    return _stopped(name, title, running)


def _master_stopped(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    return _stopped(
        "master-stopped", "then the old master is stopped", _running(world, [leader] if leader else [])
    )


def _stopped(name: str, title: str, running: list[str]) -> tuple[Step, Act | None]:
    if running:
        hint = "stop these brokers in order"
        if any(_BY_FACTS in each for each in running):
            hint += "; then write the facts of other hosts again, with --write-facts there"
        return Step(name, title, StepState.YOURS, ", ".join(running), hint, STOP_BACK), None
    return Step(name, title, StepState.DONE, back=STOP_BACK), None


_BY_FACTS: Final = "when its facts were written"


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


def _logs(world: World, leader: StoreSeen | None, open_question: str) -> tuple[Step, Act | None]:
    name, title = "logs", "every slave's log is the beginning of its master's"
    if _settled(world):
        detail = "brokers run now; compared before the epochs were written"
        return Step(name, title, StepState.DONE, detail, back=BACK), None
    if leader is None:
        return Step(
            name,
            title,
            StepState.BLOCKED,
            open_question,
            "say with --master PATH whose broker was master",
            BACK,
        ), None
    missing = _missing(world)
    if missing:
        return Step(name, title, StepState.BLOCKED, missing, _MISSING_HINT, BACK), None
    for each in world.stores:
        if each is leader:
            continue
        step = _compared(world, leader, each, name, title)
        if step is not None:
            return step
    found = [_same_part(leader, each) for each in world.stores if each is not leader]
    return Step(name, title, StepState.DONE, "; ".join([f"{leader.name} leads", *found]), back=BACK), None


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
    elected = world.replicas is not None and world.replicas.living_master is not None
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


def _compared(
    world: World, leader: StoreSeen, each: StoreSeen, name: str, title: str
) -> tuple[Step, Act | None] | None:
    """What stands against a store; None when its log is the beginning of the leader's."""
    found = world.comparisons.get(each.name, Comparison(Likeness.UNKNOWN, detail="it was not compared"))
    messages = f"{_messages(found.cut_messages)}, " if found.exact or found.cut_messages else ""
    which = "which {} does not have" if found.exact else "of which {} may have a part"
    cut = (
        f"would be cut from offset {found.common_end:,} on: {messages}{found.cut_bytes:,} bytes,"
        f" {which.format(leader.name)}"
    )
    match found.likeness:
        case Likeness.PREFIX:
            return None
        case Likeness.LONGER | Likeness.APART:
            if each.here and found.common_end > each.store.begin and each.name in world.accept_cut:
                return Step(name, title, StepState.READY, f"{each.name} {cut}", back=BACK), CutLog(
                    each.name, found.common_end
                )
            way = f"throw them away with --accept-cut {each.name} (a copy is kept)"
            if found.common_end <= each.store.begin:
                way = f"{_EMPTY.format(each.name)}, so that its broker copies all of the other log"
            elif not each.here:
                way = "run this where that store is, with --facts of this host, and --accept-cut there"
            if found.likeness is Likeness.LONGER:
                way = f"{_longer_leads(leader, each, found)}; or {way}"
            else:
                way = f"{way}; or take another master with --master"
            what = "has more than" if found.likeness is Likeness.LONGER else "differs from"
            detail = f"{each.name} {what} {leader.name}; {cut}{_in_brackets(found.detail)}"
            return Step(name, title, StepState.BLOCKED, detail, way, BACK), None
        case Likeness.NOTHING:
            detail = f"{each.name} and {leader.name} have no byte in common{_in_brackets(found.detail)}"
            hint = f"{_EMPTY.format(each.name)}: its broker copies all of the other; or take another master"
            return Step(name, title, StepState.BLOCKED, detail, hint, BACK), None
        case Likeness.UNKNOWN:
            detail = f"{each.name} could not be compared with {leader.name}{_in_brackets(found.detail)}"
            hint = (
                "run this on the master's host with --facts of this one and --write-facts,"
                " and give that file here with --facts"
            )
            return Step(name, title, StepState.BLOCKED, detail, hint, BACK), None


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


def _messages(count: int) -> str:
    return f"{count:,} message" if count == 1 else f"{count:,} messages"


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _epochs(world: World, leader: StoreSeen | None) -> tuple[Step, Act | None]:
    name = "epochs"
    title = "old epochs are moved aside, and all that is there becomes the first one"
    for each in world.stores:
        if each.here and not each.prepared:
            old = each.store.epochs
            detail = f"{each.name}: {len(old)} epochs" if old else f"{each.name} has none"
            return Step(name, title, StepState.READY, detail, back=BACK), Prepare(
                each.name, each.extent is None or each.extent.empty, leader.name if leader is not None else ""
            )
    return Step(name, title, StepState.DONE, back=BACK), None
