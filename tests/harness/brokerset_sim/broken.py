"""Deliberate bugs, to see that the checkers notice them; each replaces production code while it is on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerset_broker.member import core, role
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.membership import identity_folder, registration
from brokerset_broker.member.membership.membership import Membership
from brokerset_broker.member.membership.registration import ApplyId, Registration, Unanswered
from brokerset_controller.liveness import LiveView
from brokerset_controller.replicas import apply as rules
from brokerset_controller.replicas import decide_identity, election
from brokerset_controller.replicas.election import Choice, NoChoice
from brokerset_controller.replicas.events import (
    Applied,
    BrokerIdApplied,
    GroupRebuilt,
    MasterElected,
    Outcome,
    ReplicasCleaned,
    ReplicaStarted,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import Group, Replica
from brokerset_controller.service import ControllerService
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.commands import Command
from brokerset_raft import log_records, storage
from brokerset_raft.configuration import Configuration
from brokerset_raft.driver import RaftEngine
from brokerset_raft.engine import Role
from brokerset_raft.log_records import Scan
from brokerset_raft.messages import Entry, HardState, ReadReady, Ready
from brokerset_raft.node import Node
from brokerset_raft.storage import Storage
from brokerset_runtime import disk
from brokerset_runtime.disk import Disk
from brokerset_runtime.remoting import Connection
from brokerset_sim import group_checker, raft_checker, world
from brokerset_sim.plan import Plan

Patch = tuple[Any, str, object]
"""Where, which attribute, and what instead."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A bug, what it must be caught by, and runs in which it shows soon."""

    name: str
    patches: Callable[[], list[Patch]]
    caught_by: tuple[str, ...]
    plan: Plan
    seeds_max: int = 40
    """It must be caught within so many seeds."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Production code with the bug in it."""
        saved: list[Patch] = []
        try:
            for where, name, value in self.patches():
                saved.append((where, name, where.__dict__[name]))
                setattr(where, name, value)
            yield
        finally:
            for where, name, value in reversed(saved):
                setattr(where, name, value)


# -- raft ------------------------------------------------------------------------------------------


def _vote_not_persisted() -> list[Patch]:
    save = Storage.save

    def forgetful(self: Storage, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        save(self, None if hard_state is None else HardState(hard_state.term, None), entries)

    return [(Storage, "save", forgetful)]


def _message_before_sync() -> list[Patch]:
    take = RaftEngine._take_ready

    def hasty(self: RaftEngine, node: Node, ready: Ready) -> None:
        for message in ready.messages:
            self._transport.send(message)
        take(self, node, replace(ready, messages=()))

    return [(RaftEngine, "_take_ready", hasty)]


def _old_term_counted() -> list[Patch]:
    return [(Node, "_may_count", lambda self, index: True)]


def _half_is_enough() -> list[Patch]:
    return [(Configuration, "majority", property(lambda self: max(1, (len(self.voters) + 1) // 2)))]


def _changes_overlap() -> list[Patch]:
    return [(Node, "_check_change", lambda self, wanted: None)]


def _torn_tail_stays() -> list[Patch]:
    scan = log_records.scan_segment

    def trusting(content: bytes, *, sequence: int, last: bool) -> Scan:
        found = scan(content, sequence=sequence, last=last)
        return replace(found, end=len(content)) if last else found

    return [(log_records, "scan_segment", trusting)]


def _read_counts_as_durable() -> list[Patch]:
    """A start syncs what can be read of the last segment, and does not write it again."""
    real = disk.replace_file

    def trusting(folder: Disk, name: str, data: bytes) -> None:
        if name in folder.names() and folder.read(name) == data:
            folder.sync(name)
        else:
            real(folder, name, data)

    return [(storage, "replace_file", trusting)]


def _new_leader_serves_at_once() -> list[Patch]:
    return [
        (Node, "is_serving", lambda self, applied: self.role is Role.LEADER),
        (Node, "_has_committed_own", lambda self: True),
    ]


def _read_without_barrier() -> list[Patch]:
    async def no_barrier(self: ControllerService, deadline: float | None = None) -> None:
        self._must_lead()

    return [(ControllerService, "_barrier", no_barrier)]


def _reads_unconfirmed() -> list[Patch]:
    def start(self: Node, request_id: int) -> None:
        self._reads_ready += (ReadReady(request_id, self.commit_index),)

    return [(Node, "_start_read", start)]


# -- rules -----------------------------------------------------------------------------------------


def _id_used_again() -> list[Patch]:
    clean = rules._clean

    def generous(group: Group, event: ReplicasCleaned) -> tuple[Group, Outcome]:
        after, outcome = clean(group, event)
        return replace(after, next_broker_id=max(after.replicas, default=0) + 1), outcome

    return [(rules, "_clean", generous)]


def _id_for_two() -> list[Patch]:
    accept = rules._apply_broker_id

    def generous(group: Group | None, event: BrokerIdApplied) -> tuple[Group | None, Outcome]:
        if group is not None and event.broker_id in group.replicas:
            return rules._with(group, Replica(event.broker_id, event.address, event.check_code)), Applied()
        return accept(group, event)

    return [(rules, "_apply_broker_id", generous)]


def _guards_skipped() -> list[Patch]:
    def alter(group: Group, event: SyncStateSetAltered) -> tuple[Group, Outcome]:
        return (
            replace(group, sync_state_set=event.new_set, sync_state_set_epoch=group.sync_state_set_epoch + 1),
            Applied(),
        )

    def elect(group: Group, event: MasterElected) -> tuple[Group, Outcome]:
        chosen = replace(
            group,
            master_id=event.master_id,
            master_epoch=max(event.new_epoch, group.master_epoch + 1),
            sync_state_set=frozenset((event.master_id,)),
            sync_state_set_epoch=group.sync_state_set_epoch + 1,
            suspects=frozenset(),
        )
        return chosen, Applied()

    return [(rules, "_alter", alter), (rules, "_elect", elect)]


def _nonces_ignored() -> list[Patch]:
    decide = decide_identity._decide_start

    def trusting(group: Group, known: Replica, header: Any, start: Any, *rest: Any) -> Any:
        tried = (*start.tried, known.nonce) if known.nonce is not None else start.tried
        return decide(group, known, header, replace(start, tried=tried), *rest)

    return [(decide_identity, "_decide_start", trusting)]


def _elected_from_outside() -> list[Patch]:
    def choose(
        group: Group, view: LiveView, *, unclean_allowed: bool, requester: int | None = None
    ) -> Choice | NoChoice:
        blocked = election.master_in_the_way(group, view)
        if blocked is not None:
            return blocked
        alive = [broker_id for broker_id in group.replicas if view.alive(broker_id)]
        return Choice(max(alive), "the newest") if alive else NoChoice("nobody lives")

    def elect(group: Group, event: MasterElected) -> tuple[Group, Outcome]:
        accepted = replace(group, sync_state_set=group.sync_state_set | {event.master_id})
        return honest(accepted, event)

    honest = rules._elect
    return [(election, "choose_master", choose), (rules, "_elect", elect)]


def _lost_cache_ignored() -> list[Patch]:
    start = rules._start

    def careless(group: Group, event: ReplicaStarted) -> tuple[Group, Outcome]:
        return start(group, replace(event, lost_cache=False))

    return [(rules, "_start", careless)]


def _restart_keeps_mastership() -> list[Patch]:
    start = rules._start

    def lenient(group: Group, event: ReplicaStarted) -> tuple[Group, Outcome]:
        after, outcome = start(group, event)
        return replace(after, master_id=group.master_id, master_epoch=group.master_epoch), outcome

    return [(rules, "_start", lenient)]


def _rebuilt_from_zero() -> list[Patch]:
    rebuild = rules._rebuild

    def forgetful(group: Group | None, event: GroupRebuilt) -> tuple[Group | None, Outcome]:
        return rebuild(group, GroupRebuilt(replace(event.group, master_epoch=0)))

    return [(rules, "_rebuild", forgetful)]


# -- brokers ---------------------------------------------------------------------------------------


def _identity_written_in_place() -> list[Patch]:
    def in_place(disk: Disk, name: str, data: bytes) -> None:
        disk.write(name, data)
        disk.sync_folder()
        disk.sync(name)

    return [(identity_folder, "replace_file", in_place)]


def _time_out_burns_id() -> list[Patch]:
    feed = Registration.feed

    def impatient(self: Registration, result: registration.Result) -> None:
        if isinstance(result, Unanswered) and isinstance(self.step, ApplyId):
            self.step = registration.DeleteTemp()
            return
        feed(self, result)

    return [(Registration, "feed", impatient)]


def _boot_ignored() -> list[Patch]:
    begin = Registration._begin

    def careless(self: Registration, *arguments: Any) -> None:
        self._closed_cleanly = True
        begin(self, *arguments)

    return [(Registration, "_begin", careless)]


def _answers_hide_epochs() -> list[Patch]:
    answer = Membership.epoch_cache

    def hiding(self: Membership, connection: Connection, command: Command) -> Command:
        reply = answer(self, connection, command)
        body = replace(EpochEntryCache.from_json(reply.body), epoch_list=())
        ext = {name: value for name, value in reply.ext.items() if name != "groupEpoch"}
        return command.reply(ext=ext, body=body.to_json())

    return [(Membership, "epoch_cache", hiding)]


def _epoch_not_written() -> list[Patch]:
    def hasty(self: EpochFile, epoch: int, start_offset: int) -> bool:
        history = self.history.append(epoch, start_offset)
        self.history = history or self.history
        return history is not None

    return [(EpochFile, "append", hasty)]


def _masters_nonce_ignored() -> list[Patch]:
    decide = role.decide_role

    def trusting(now: role.RoleState, received: role.GroupNews, *own: Any) -> role.Verdict:
        return decide(now, replace(received, master_nonce=None), *own)

    return [(core, "decide_role", trusting)]


def _first_master_is_kept() -> list[Patch]:
    decide = role.decide_role

    def faithful(now: role.RoleState, received: role.GroupNews, own_id: int, *own: Any) -> role.Verdict:
        if now.role is role.Role.SLAVE and received.master_id != own_id:
            return role.NOTHING
        return decide(now, received, own_id, *own)

    return [(core, "decide_role", faithful)]


_QUIESCENT = Plan(controllers=3, brokers=(2,), seconds=10.0, pause_between=0.5, disk_checks=0.0)
_RAFT = replace(
    _QUIESCENT,
    snapshot_entries=25,
    faults={"power controller": 3, "isolate leader": 3, "split": 2, "kill controller": 1, "kill broker": 1},
    admin={"read": 2, "clean": 1, "transfer": 1},
)
_CHECKED = replace(_RAFT, disk_checks=1.0)
_ROUGH = replace(_RAFT, lost=0.1, late=0.2, doubled=0.1)
_BROKERS = replace(
    _QUIESCENT,
    brokers=(3,),
    faults={"kill broker": 3, "reboot broker host": 3, "pause broker": 1},
    admin={"read": 1, "clean": 2, "clean dead": 2},
)
_ELECTING = replace(_BROKERS, admin={"elect": 3}, admin_pause=0.8, faults={"kill broker": 1})
_DEPOSED = replace(_QUIESCENT, drill="deposed controller")
_COPIES = replace(
    _QUIESCENT,
    brokers=(2,),
    seconds=14.0,
    faults={"copy broker": 3, "one way": 2, "pause broker": 4, "kill broker": 1, "isolate": 2},
)
_CLAIMS = replace(
    _QUIESCENT,
    brokers=(4,),
    lost=0.15,
    late=0.2,
    reset=0.1,
    faults={"crash broker at a write": 3, "crash broker after a step": 2, "kill broker": 2},
)

_LOST = replace(
    _BROKERS,
    rebuild=True,
    faults={"roll back broker": 1, "kill broker": 2, "empty broker": 1, "reboot broker host": 1},
)

VARIANTS: tuple[Variant, ...] = (
    Variant("a vote is not persisted", _vote_not_persisted, (raft_checker.SYNCED_BEFORE_SENT,), _CHECKED),
    Variant(
        "a message leaves before the sync",
        _message_before_sync,
        (raft_checker.SYNCED_BEFORE_SENT,),
        _CHECKED,
    ),
    Variant(
        "an entry of an old term is counted",
        _old_term_counted,
        (raft_checker.OWN_TERM, raft_checker.LEADER_COMPLETENESS, raft_checker.STATE_MACHINE_SAFETY),
        replace(_ROUGH, controllers=5, disk_checks=1.0, pause_between=0.3, append_bytes=1),
        seeds_max=80,
    ),
    Variant(
        "half of an even number is a majority",
        _half_is_enough,
        (raft_checker.COMMITTED_BY_MAJORITY, raft_checker.LEADER_PER_TERM, raft_checker.OWN_TERM),
        replace(_CHECKED, controllers=4),
    ),
    Variant(
        "two changes of the members at a time",
        _changes_overlap,
        (raft_checker.ONE_CHANGE, raft_checker.COMMITTED_BY_MAJORITY, raft_checker.LEADER_PER_TERM),
        replace(
            _RAFT,
            late=0.5,
            doubled=0.1,
            pause_between=0.5,
            faults={"cut off controller": 3, "isolate leader": 1},
            admin={"add controller": 3, "remove controller": 3},
            admin_pause=0.05,
        ),
    ),
    Variant(
        "a torn tail is not cut",
        _torn_tail_stays,
        (world.PROCESS_DIED, raft_checker.NEVER_FORGOTTEN, raft_checker.SYNCED_BEFORE_SENT),
        replace(
            _RAFT,
            brokers=(3,),
            seconds=14.0,
            pause_between=0.4,
            faults={"crash controller at a write": 3, "kill broker": 2},
        ),
    ),
    Variant(
        "what can be read after a failed sync counts as durable",
        _read_counts_as_durable,
        (raft_checker.NEVER_FORGOTTEN, raft_checker.SYNCED_BEFORE_SENT),
        replace(_CHECKED, brokers=(3,), pause_between=0.4, faults={"fail sync": 4, "kill broker": 2}),
        seeds_max=80,
    ),
    Variant(
        "a new leader serves before its own entry is committed",
        _new_leader_serves_at_once,
        (group_checker.READS, group_checker.REPLIES),
        replace(
            _ROUGH,
            admin={"read": 4, "read states": 4, "transfer": 3},
            faults={"isolate leader": 3, "kill controller": 2, "kill broker": 3},
        ),
        seeds_max=80,
    ),
    Variant(
        "a read without a barrier",
        _read_without_barrier,
        (group_checker.READS,),
        _DEPOSED,
    ),
    Variant(
        "a read that no majority confirmed",
        _reads_unconfirmed,
        (group_checker.READS,),
        _DEPOSED,
    ),
    Variant("a cleaned id is given again", _id_used_again, (group_checker.ID_ONCE,), _BROKERS),
    Variant(
        "an id for two check codes",
        _id_for_two,
        (group_checker.ID_FOR_EVER, group_checker.ID_ONCE),
        replace(_CLAIMS, java_brokers=2),
    ),
    Variant(
        "guards are checked only when it is decided",
        _guards_skipped,
        (group_checker.IN_SYNC_SET, group_checker.ELECTED_IN_SYNC),
        replace(_BROKERS, brokers=(4,), lost=0.1, doubled=0.3, late=0.3, reset=0.05),
    ),
    Variant(
        "the nonce is not compared",
        _nonces_ignored,
        (group_checker.INCARNATION,),
        replace(
            _BROKERS, faults={"copy broker": 3, "roll back broker": 3, "kill broker": 4, "pause broker": 1}
        ),
    ),
    Variant(
        "a master from outside the in-sync set",
        _elected_from_outside,
        (group_checker.ELECTED_IN_SYNC,),
        _BROKERS,
    ),
    Variant(
        "the controllers ignore a lost page cache", _lost_cache_ignored, (group_checker.LOST_CACHE,), _BROKERS
    ),
    Variant("the broker ignores a lost page cache", _boot_ignored, (group_checker.LOST_CACHE,), _BROKERS),
    Variant(
        "a restarted master stays master", _restart_keeps_mastership, (group_checker.NEW_PROCESS,), _BROKERS
    ),
    Variant(
        "a broker takes any mastership of its id",
        _masters_nonce_ignored,
        (group_checker.ONE_MASTER, group_checker.NEW_PROCESS),
        _COPIES,
    ),
    Variant(
        "the identity is written in place",
        _identity_written_in_place,
        (group_checker.IDENTITY_FILES,),
        replace(_CLAIMS, lost=0.0, late=0.0, reset=0.0, faults={"crash broker at a write": 1}),
    ),
    Variant("a slave keeps its first master", _first_master_is_kept, (world.PROGRESS,), _ELECTING),
    Variant(
        "a rebuilt group begins with epoch 0",
        _rebuilt_from_zero,
        (group_checker.EPOCHS_GROW,),
        _LOST,
    ),
    Variant(
        "brokers do not tell epochs for rebuilding",
        _answers_hide_epochs,
        (group_checker.EPOCHS_GROW,),
        _LOST,
    ),
    Variant(
        "a master acts before its epoch is on its disk",
        _epoch_not_written,
        (group_checker.EPOCHS_GROW,),
        _BROKERS,
    ),
    Variant("a time-out burns the id", _time_out_burns_id, (group_checker.ID_USED,), _CLAIMS),
)
