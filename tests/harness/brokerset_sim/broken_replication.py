"""Deliberate bugs of replication, roles and leases, to see that the checkers of logs notice them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brokerset_broker.member.core import Member
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.gateway import forwarding
from brokerset_broker.member.gateway.gateway import Gateway
from brokerset_broker.member.gateway.switchover import SwitchOver
from brokerset_broker.member.ha import follower, following, leader, waiting
from brokerset_broker.member.ha.follower import Follower
from brokerset_broker.member.ha.following import Decision, Follow, FullResync, OwnLog, Truncate
from brokerset_broker.member.ha.in_sync import InSync, ReplicaState
from brokerset_broker.member.ha.leader import Leader
from brokerset_broker.member.ha.progress import Progress
from brokerset_broker.member.ha.replication import Replication
from brokerset_broker.member.ha.transfer import Chunk
from brokerset_broker.member.member_service import MemberService
from brokerset_broker.member.membership.membership import Membership
from brokerset_broker.requests.request_classes import REPEATABLE, RequestClass
from brokerset_broker.store.errors import PutStatus
from brokerset_controller.reliefs import Reliefs
from brokerset_controller.replicas import apply as rules
from brokerset_controller.replicas import election
from brokerset_formats.epochs import EpochEntry, EpochHistory
from brokerset_protocol.ha_packets import Ack
from brokerset_protocol.headers.controller import BrokerHeartbeatAnswer
from brokerset_sim import drills, group_checker, lease_checker, log_checker
from brokerset_sim.broken import Patch, Variant
from brokerset_sim.plan import Plan

# -- acknowledging and confirming ------------------------------------------------------------------


def _acknowledged_at_once() -> list[Patch]:
    return [(Leader, "is_acknowledged", lambda self, end: True)]


def _late_is_done() -> list[Patch]:
    expire = waiting.Waiters._expire

    def generous(self: waiting.Waiters) -> None:
        self.answer_up_to(max((end for end, _, _ in self._waiting), default=0))
        expire(self)

    return [(waiting.Waiters, "_expire", generous)]


def _deposed_says_done() -> list[Patch]:
    answer = Replication.answer_waiters

    def generous(self: Replication, status: PutStatus) -> None:
        answer(self, PutStatus.PUT_OK)

    return [(Replication, "answer_waiters", generous)]


def _committed_only() -> list[Patch]:
    return [(InSync, "electable", lambda self: self.committed)]


def _time_out_settles() -> list[Patch]:
    ended = InSync.ended

    def forgetful(self: InSync, now: float, wanted: frozenset[int], *, refused: bool) -> None:
        ended(self, now, wanted, refused=refused)
        if not refused:
            self.pending = ()

    return [(InSync, "ended", forgetful)]


def _refusal_settles() -> list[Patch]:
    ended = InSync.ended

    def forgetful(self: InSync, now: float, wanted: frozenset[int], *, refused: bool) -> None:
        ended(self, now, wanted, refused=refused)
        if refused:
            self.pending = ()

    return [(InSync, "ended", forgetful)]


def _minimum_ignored() -> list[Patch]:
    return [(InSync, "smallest", property(lambda self: 99 if self.known else 0))]


def _not_rounded() -> list[Patch]:
    confirm = Progress.confirm

    def blunt(self: Progress, members: frozenset[int], own: int, log_end: int, floor: int) -> int:
        reached = min([own, *(self.acknowledged(each) for each in members if each != self.own_id)])
        return max(confirm(self, members, own, log_end, floor), reached)

    return [(Progress, "confirm", blunt)]


def _old_acks_count() -> list[Patch]:
    acknowledge = Progress.acknowledge

    def faithful(self: Progress, broker_id: int, offset: int, now: float, log_end: int) -> str | None:
        return acknowledge(self, broker_id, max(offset, self.acknowledged(broker_id)), now, log_end)

    return [(Progress, "acknowledge", faithful)]


def _joins_too_early() -> list[Patch]:
    def states(self: Progress, confirmed: int, now: float, lag_seconds: float) -> tuple[ReplicaState, ...]:
        return tuple(
            ReplicaState(broker_id, replica.connected, replica.left)
            for broker_id, replica in sorted(self._replicas.items())
        )

    return [(Progress, "states", states)]


def _slaves_show_everything() -> list[Patch]:
    class Showing(follower._AcknowledgingLog):
        def received(self, size: int) -> None:
            super().received(size)
            self._inner.confirm(self._inner.received_end, partial=True)

    return [(follower, "_AcknowledgingLog", Showing)]


def _ends_at_once() -> list[Patch]:
    facts = Member._facts
    return [(Member, "_facts", lambda self: replace(facts(self), epoch_confirmed=True))]


# -- transfer and following ------------------------------------------------------------------------


def _across_epochs() -> list[Patch]:
    def long_chunk(
        history: EpochHistory, offset: int, log_end: int, segment_bytes: int, size_max: int
    ) -> Chunk | None:
        entry = history.find(offset) or (history.entries[0] if history.entries else None)
        if entry is None:
            return None
        file_end = (offset // segment_bytes + 1) * segment_bytes
        size = max(0, min(log_end, file_end, offset + size_max) - offset)
        return Chunk(offset, size, entry.epoch, entry.start_offset)

    return [(leader, "next_chunk", long_chunk)]


def _truncate_by_length() -> list[Patch]:
    def decide(own: OwnLog, master: EpochHistory, master_end: int) -> Decision:
        if own.empty:
            return FullResync()
        if own.end > master_end:
            return Truncate(master_end, master, needs_proof=False)
        return Follow(own.end, EpochHistory(tuple(e for e in master.entries if e.start_offset < own.end)))

    return [(following, "decide_following", decide)]


def _acknowledged_by_header() -> list[Patch]:
    take = Follower._on_header

    def hasty(self: Follower, session: Any, change: Any, header: Any) -> Any:
        waits = take(self, session, change, header)
        if header.size and not session.full_resync:
            session.acknowledged = header.offset + header.size
            session.link.send_ack(Ack(header.offset + header.size))
        return waits

    return [(Follower, "_on_header", hasty)]


def _slaves_epochs_in_memory() -> list[Patch]:
    def hasty(self: EpochFile, entries: tuple[EpochEntry, ...]) -> None:
        for entry in entries:
            self.history = self.history.append(entry.epoch, entry.start_offset) or self.history

    return [(EpochFile, "extend", hasty)]


# -- roles -----------------------------------------------------------------------------------------


def _epoch_in_memory() -> list[Patch]:
    def hasty(self: EpochFile, epoch: int, start_offset: int) -> bool:
        history = self.history.append(epoch, start_offset)
        self.history = history or self.history
        return history is not None

    return [(EpochFile, "append", hasty)]


def _new_master_drops_tail() -> list[Patch]:
    finish = Replication.finish_received

    async def careful(self: Replication) -> int:
        await finish(self)
        if not self._log_leads:
            await self._log.truncate(self._log.confirmed_offset, keep_copy=False)
        return self._log.max_offset

    return [(Replication, "finish_received", careful)]


def _handed_over_in_a_hurry() -> list[Patch]:
    async def nothing(self: SwitchOver, now: Any, target: int, deadline: float) -> None:
        return

    return [(SwitchOver, "_drain", nothing)]


def _unclear_is_repeated() -> list[Patch]:
    return [(forwarding, "REPEATABLE", REPEATABLE | {RequestClass.WRITE})]


def _cache_always_kept() -> list[Patch]:
    start = rules._start

    def careless(group: Any, event: Any) -> Any:
        return start(group, replace(event, lost_cache=False))

    return [(rules, "_start", careless)]


def _unclean_stop_trusted() -> list[Patch]:
    start = rules._start

    def trusting(group: Any, event: Any) -> Any:
        return start(group, replace(event, unclean=False))

    return [(rules, "_start", trusting)]


def _never_relieved() -> list[Patch]:
    return [(MemberService, "relieve", lambda self, epoch, needed, begin: False)]


def _relieved_at_will() -> list[Patch]:
    return [(Reliefs, "wait_seconds", lambda self, broker_name, now: 0.0)]


# -- leases ----------------------------------------------------------------------------------------


def _lease_from_reply() -> list[Patch]:
    take = Membership._heartbeat_answered

    def late(self: Membership, answer: BrokerHeartbeatAnswer, sent_at: float) -> None:
        take(self, answer, self._clock.monotonic())

    return [(Membership, "_heartbeat_answered", late)]


def _lease_not_checked() -> list[Patch]:
    return [(Gateway, "_guarded", lambda self, kind, handler: handler)]


def _lease_not_waited_for() -> list[Patch]:
    return [(election, "lease_in_the_way", lambda group, view: None)]


def _loss_before_rebuilding_ignored() -> list[Patch]:
    return [(election, "first_loss", lambda group, view, winner: None)]


_BUSY = Plan(
    controllers=1,
    brokers=(3,),
    seconds=10.0,
    pause_between=0.8,
    disk_checks=0.0,
    replicating=True,
    min_in_sync=2,
    clients=2,
    lanes=2,
    send_pause=0.02,
    faults={"kill master": 2, "pause broker": 1, "cut replication": 1, "break replication": 1},
)
_ALONE = replace(_BUSY, min_in_sync=1)
_REBOOTS = replace(_ALONE, faults={"reboot broker host": 2, "reboot master": 1, "break replication": 1})
_HEAVY = replace(_BUSY, clients=3, lanes=4, send_pause=0.01, record_bytes=700)
_DOUBTED = replace(_BUSY, clients=3, lanes=4, faults={}, drill="join in doubt")
_SHORTENED = replace(_ALONE, brokers=(2,), faults={}, drill="tail lost")
_EMPTIED = replace(_ALONE, faults={}, drill="everything lost")
_ROLLED_BACK = replace(_ALONE, controllers=3, brokers=(2,), faults={}, drill="rolled back")
_OUT_OF_REACH = replace(_BUSY, brokers=(2,), faults={}, drill="slaves out of reach")
_CUT_OFF = replace(_BUSY, controllers=3, faults={}, drill="cut off from slaves")
_MOVING = replace(
    _BUSY,
    admin={"elect": 3, "switch over": 2},
    admin_pause=0.4,
    faults={"cut off master": 2, "pause master": 1, "cut replication": 2},
)
_HANDING_OVER = replace(
    _MOVING,
    min_in_sync=1,
    acknowledges_alone=True,
    lanes=4,
    send_pause=0.01,
    late=0.1,
    admin={"switch over": 1},
    faults={"break replication": 1},
)
_DYING = replace(_BUSY, lanes=4, send_pause=0.01, pause_between=1.5, faults={"kill master": 1})
_LEASES = replace(
    _ALONE,
    controllers=3,
    late=0.3,
    faults={"cut off master": 3, "pause master": 2, "one way": 2, "split": 2},
)
_UNHEARD = replace(_LEASES, acknowledges_alone=True, faults={}, drill="controllers out of reach")
_WEAK = replace(_LEASES, acknowledges_alone=True, admin={"elect": 1}, admin_pause=0.4)

log = log_checker
_KEPT = (log.ACKED_KEPT, log.CONFIRMED_KEPT, log.ENOUGH_COPIES)
_HAS = (log.ACKED_BY_ALL, log.ACKED_KEPT, log.CONFIRMED_KEPT)

VARIANTS: tuple[Variant, ...] = (
    Variant("a master that hears no slave stays", _never_relieved, (drills.RELIEVED,), _CUT_OFF),
    Variant("masters are relieved all the time", _relieved_at_will, (drills.RELIEVED,), _CUT_OFF),
    Variant("a send is acknowledged before anybody else has it", _acknowledged_at_once, _KEPT, _BUSY),
    Variant("a send that waited for too long is acknowledged", _late_is_done, _KEPT, _OUT_OF_REACH),
    Variant("a deposed master acknowledges what still waits", _deposed_says_done, _KEPT, _MOVING),
    Variant("only the committed set counts", _committed_only, _HAS, _DOUBTED),
    Variant("a time-out settles a proposal", _time_out_settles, _HAS, _DOUBTED),
    Variant("a refusal settles a proposal", _refusal_settles, _HAS, _DOUBTED),
    Variant("minInSyncReplicas is ignored", _minimum_ignored, (log.ENOUGH_COPIES,), _OUT_OF_REACH),
    Variant("what is confirmed is not rounded down", _not_rounded, (log.CONFIRMED_WHOLE,), _HEAVY),
    Variant("what a replica had before its reboot still counts", _old_acks_count, _HAS, _SHORTENED),
    Variant("a replica joins before it has everything", _joins_too_early, _HAS, _REBOOTS),
    Variant(
        "slaves let consumers read what they received",
        _slaves_show_everything,
        (log.CONFIRMED,),
        _BUSY,
    ),
    Variant(
        "a new master says at once where its log ends",
        _ends_at_once,
        (log.ENDS_CURRENT,),
        replace(_DYING, send_pause=0.05),
    ),
    Variant("a piece goes across an epoch", _across_epochs, (log.ONE_EPOCH,), _MOVING),
    Variant("logs are compared by their lengths", _truncate_by_length, (log.ACK_TRUE,), _MOVING),
    Variant("a slave acknowledges before it has the bytes", _acknowledged_by_header, (log.ACK_TRUE,), _BUSY),
    Variant(
        "a slave acknowledges before the epoch is on its disk",
        _slaves_epochs_in_memory,
        (log.EPOCH_ON_DISK,),
        _MOVING,
    ),
    Variant(
        "a master appends before its epoch is on its disk",
        _epoch_in_memory,
        (group_checker.EPOCHS_GROW, log.EPOCH_ON_DISK),
        _BUSY,
    ),
    Variant("a new master drops what it does not know to be confirmed", _new_master_drops_tail, _HAS, _DYING),
    Variant(
        "a master hands over before its successor has everything",
        _handed_over_in_a_hurry,
        (log.ACKED_KEPT,),
        _HANDING_OVER,
    ),
    Variant(
        "an unclear forward is repeated",
        _unclear_is_repeated,
        (log.ONE_ANSWER,),
        replace(_BUSY, reset=0.1, pause_between=2.0),
    ),
    Variant(
        "a lost page cache counts as kept",
        _cache_always_kept,
        (group_checker.LOST_CACHE, *_HAS),
        _REBOOTS,
    ),
    Variant(
        "a replica that was not closed in order stays in sync", _unclean_stop_trusted, _HAS, _ROLLED_BACK
    ),
    Variant(
        "a first election takes every page cache for kept",
        _loss_before_rebuilding_ignored,
        (log.ACKED_KEPT,),
        _EMPTIED,
    ),
    Variant(
        "a lease counts from the answer", _lease_from_reply, (lease_checker.SERVED_WITH_LEASE,), _UNHEARD
    ),
    Variant(
        "a process that was stopped does not look at its lease",
        _lease_not_checked,
        (lease_checker.SERVED_WITH_LEASE,),
        _LEASES,
    ),
    Variant(
        "an election does not wait for the lease",
        _lease_not_waited_for,
        (lease_checker.ELECTED_AFTER_LEASE, log.OLD_MASTER),
        _WEAK,
    ),
)
