"""Whether requests are served, held for a moment, passed on to the master or refused. Pure.

The codes of refusals are those after which clients try again (1, 2 and 14; Java's `retryResponseCodes`).
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from brokerset_broker.member.role import Role
from brokerset_broker.requests.admission import ENDS_TEXT
from brokerset_broker.requests.request_classes import RequestClass
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.replies import REJECTED

LEASE_HOLD_SECONDS: Final = 1.0
"""How long sends are held when the lease has run out: it mostly comes back, from another controller."""

IN_SYNC_HOLD_SECONDS: Final = 1.0
"""How long sends are held when too few replicas are in sync. A new master has none at first: the others need
some 50 ms to connect, and nobody shall be refused for that."""

NO_MASTER_HOLD_SECONDS: Final = 1.0
"""How long a slave holds what only a master can do while it knows of none."""

FENCED_TEXT: Final = "was taken out of service by an administrator; `brokerset unfence` lets it serve again"


class ModeKind(StrEnum):
    """What happens to requests of one class."""

    SERVE = "serve"
    HOLD = "hold"
    FORWARD = "forward"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Mode:
    """What happens to requests of one class, and what a held one is told in the end."""

    kind: ModeKind = ModeKind.SERVE
    code: int = 0
    """Of the refusal, which follows on a hold, too."""

    remark: str = ""
    not_here: bool = False
    """Whether the refusal means that another broker may be master, so that forwarders ask again."""


SERVE: Final = Mode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """One mode for each class of requests but the open ones."""

    writes: Mode = SERVE
    commits: Mode = SERVE
    locks: Mode = SERVE
    progress: Mode = SERVE
    ends: Mode = SERVE
    reads: Mode = SERVE
    forward_to: str | None = None
    """Address of the master, for `FORWARD`."""

    guard_reads: bool = False
    """Whether the lease is checked before each read, lock and question for progress that is served: a process
    that was stopped wakes up with requests in its buffers before any timer has run."""

    guard_writes: bool = False
    """Whether the lease is checked before each write that is served. Not needed when other replicas take part
    in each acknowledgement: they know a newer master."""

    for_ms: int | None = None
    """After so long time alone changes the decision: what is held is refused or served then. None: never."""

    def of(self, kind: RequestClass) -> Mode:
        """The mode of one class."""
        match kind:
            case RequestClass.WRITE:
                return self.writes
            case RequestClass.COMMIT:
                return self.commits
            case RequestClass.LOCK:
                return self.locks
            case RequestClass.PROGRESS:
                return self.progress
            case RequestClass.ENDS:
                return self.ends
            case RequestClass.READ:
                return self.reads
            case RequestClass.OPEN:
                return SERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """Everything that decides whether a broker serves."""

    role: Role
    epoch: int = 0
    lease_required: bool = False
    """Whether the controllers give leases."""

    lease_valid: bool = True
    """Whether the lease has not run out; True when none is required."""

    lease_is_short: bool = False
    """Whether a pause of the machine may end it for a moment: then reads wait for it, too. After a refusal
    consumers would rest 3 s."""

    lease_given_up: bool = False
    """Whether it has ended because this master hands over."""

    lease_lost_for_ms: int = 0
    enough_in_sync: bool = True
    not_enough_for_ms: int = 0
    needs_min: int = 1
    """`minInSyncReplicas`."""

    in_sync: int = 1
    """Replicas in sync, the master included."""

    epoch_confirmed: bool = True
    """Whether a master has confirmed everything that its log had when its epoch began. Before that it cannot
    tell what its predecessors acknowledged from what they did not (the same rule: Raft's reads, KIP-207)."""

    acknowledged_alone: bool = False
    """Whether the master acknowledges sends without any other replica: it is the only one in sync, or
    `allAckInSyncStateSet` is false and `inSyncReplicas` is 1."""

    switching: bool = False
    """A change of role is being carried out, or a switchover is asked for."""

    fenced: bool = False
    master_address: str | None = None
    no_master_for_ms: int = 0
    """Since when this slave has not known a master."""

    shutting_down: bool = False
    no_role_reason: str = ""
    """The diagnosis, when there is no role."""

    stopped_reason: str | None = None
    """Why nothing can be served although there is a role: the store is damaged, the disk is full."""

    name: str = "this broker"
    """How the broker is called in remarks."""


def decide_mode(facts: ServiceFacts) -> Modes:
    """What happens to each class of requests as things are."""
    if facts.shutting_down:
        return _nothing(f"{facts.name} shuts down")
    if facts.fenced:
        return _nothing(f"{facts.name} {FENCED_TEXT}")
    if facts.stopped_reason is not None:
        return _nothing(f"{facts.name} does not serve: {facts.stopped_reason}")
    match facts.role:
        case Role.NONE:
            return _without_role(facts)
        case Role.SLAVE:
            return _as_slave(facts)
        case Role.MASTER:
            return _as_master(facts)


def knows_ends(facts: ServiceFacts) -> bool:
    """Whether a pull that finds nothing may say so.

    A slave may: it says what it has. Whoever is about to be master, or is master of an epoch that is not
    confirmed, may not: clients take its word for the group's.
    """
    return not facts.switching and (facts.role is not Role.MASTER or facts.epoch_confirmed)


def _unavailable(remark: str) -> Mode:
    return Mode(ModeKind.REFUSE, ResponseCode.SERVICE_NOT_AVAILABLE, remark, not_here=True)


def _nothing(remark: str) -> Modes:
    mode = _unavailable(remark)
    return Modes(writes=mode, commits=mode, locks=mode, progress=mode, ends=mode, reads=mode)


def _hold(refusal: Mode, left_ms: int | None = None, *, then: Mode | None = None) -> Mode:
    """A hold for `left_ms` (None: until something changes); after it `then`, else the refusal."""
    if left_ms is not None and left_ms <= 0:
        return refusal if then is None else then
    return replace(refusal, kind=ModeKind.HOLD)


def _left_ms(seconds: float, passed_ms: int) -> int:
    """What is left of a hold."""
    return max(0, int(seconds * 1000) - passed_ms)


def _switching(facts: ServiceFacts) -> Mode:
    """Held until the change is over; each request by itself not longer than `HELD_SECONDS_MAX`."""
    return _hold(_unavailable(f"{facts.name} hands over to another master; try again"))


def _without_role(facts: ServiceFacts) -> Modes:
    refused = _unavailable(facts.no_role_reason or f"{facts.name} has no role yet")
    if not facts.switching:
        return _nothing(refused.remark)
    held = _switching(facts)
    return Modes(writes=held, commits=held, locks=held, progress=held, ends=held, reads=refused)


def _as_slave(facts: ServiceFacts) -> Modes:
    if facts.switching:
        held = _switching(facts)
        return Modes(writes=held, commits=held, locks=held, progress=held, ends=held)
    if facts.master_address:
        forward = Mode(ModeKind.FORWARD, ResponseCode.SYSTEM_BUSY, REJECTED, not_here=True)
        return Modes(
            writes=forward,
            commits=forward,
            locks=forward,
            progress=forward,
            ends=forward,
            forward_to=facts.master_address,
        )
    refusal = Mode(ModeKind.REFUSE, ResponseCode.SYSTEM_BUSY, REJECTED, not_here=True)
    left_ms = _left_ms(NO_MASTER_HOLD_SECONDS, facts.no_master_for_ms)
    held = _hold(refusal, left_ms)
    progress = _hold(refusal, left_ms, then=SERVE)
    return Modes(writes=held, commits=held, locks=held, progress=progress, ends=held, for_ms=left_ms or None)


def _as_master(facts: ServiceFacts) -> Modes:
    if not facts.lease_valid:
        return _without_lease(facts)
    ends = SERVE if facts.epoch_confirmed else _hold(_unavailable(f"{facts.name} {ENDS_TEXT}"))
    if facts.switching:
        held = _switching(facts)
        return Modes(
            writes=held,
            commits=held,
            locks=held,
            progress=held,
            ends=ends,
            guard_reads=facts.lease_required,
        )
    writes, for_ms = _by_in_sync(facts)
    return Modes(
        writes=writes,
        ends=ends,
        guard_reads=facts.lease_required,
        guard_writes=facts.lease_required and facts.acknowledged_alone,
        for_ms=for_ms,
    )


def _without_lease(facts: ServiceFacts) -> Modes:
    refused = _unavailable(f"{facts.name} has no lease any more, and another one may be master")
    if not facts.switching and not facts.acknowledged_alone:
        # What all in-sync replicas have to acknowledge needs no lease: whoever of them has heard of a
        # newer master acknowledges nothing to this one.
        writes, for_ms = _by_in_sync(facts)
        rest = refused
        if facts.lease_is_short:
            lease_ms = _left_ms(LEASE_HOLD_SECONDS, facts.lease_lost_for_ms)
            rest = _hold(refused, lease_ms)
            for_ms = min(filter(None, (for_ms, lease_ms)), default=None)
        return Modes(writes=writes, locks=rest, progress=rest, ends=rest, reads=rest, for_ms=for_ms)
    left_ms = _left_ms(LEASE_HOLD_SECONDS, facts.lease_lost_for_ms)
    held = _hold(refused, left_ms)
    if not facts.switching or not left_ms:
        return Modes(
            writes=held,
            commits=held,
            locks=refused,
            progress=refused,
            ends=refused,
            reads=refused,
            for_ms=left_ms or None,
        )
    # Given up on purpose, this broker is as good as a slave. One that slept over its lease is so only when
    # the change of role is done; until then reads wait, for after a refusal consumers would rest 3 s.
    reads = SERVE if facts.lease_given_up else held
    return Modes(writes=held, commits=held, locks=held, progress=held, ends=held, reads=reads, for_ms=left_ms)


def _by_in_sync(facts: ServiceFacts) -> tuple[Mode, int | None]:
    """What happens to writes of a master, as its in-sync set wants; and for how long, if that ends."""
    if facts.enough_in_sync:
        return SERVE, None
    refusal = Mode(
        ModeKind.REFUSE,
        ResponseCode.SYSTEM_ERROR,
        f"in-sync replicas not enough: [{facts.in_sync}] is less than minInSyncReplicas"
        f" [{facts.needs_min}]; nothing was stored",
    )
    left_ms = _left_ms(IN_SYNC_HOLD_SECONDS, facts.not_enough_for_ms)
    return _hold(refusal, left_ms), left_ms or None
