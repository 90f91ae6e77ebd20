"""The member of a group as a state machine: role, epoch, lease, in-sync set, and what is served. Pure.

Something happens: the shell calls `observe` with the time and what else it sees, then the input's method, and
then carries out what `take_actions` returns, in that order. At most one `CarryOut` is on its way; the shell
answers it with `step_ended`, whatever came of it. Nothing here waits, reads a clock or a file, or logs.

**A master switch, from news to service.** `received` takes what a controller said. `role.decide_role` says
whether that is another role. `plan_switch` lists the steps to it; each is one `CarryOut`, and the next one
follows when it is done. Between `HOLD_WRITES` and `SERVE` requests are held. At `TAKE_ROLE` the new role is
the one that everybody sees. A step that fails leaves the broker without a role, by `plan_failure`, so that
the same news counts as news again. News that come meanwhile wait; only the newest of them counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from brokerset_broker.member.lease import Lease, MemberLease
from brokerset_broker.member.refused_mastership import RefusedMastership, SetsKnown
from brokerset_broker.member.role import (
    GivenBack,
    GroupNews,
    Role,
    RoleState,
    decide_role,
    is_switch,
    registered,
    stood_down,
)
from brokerset_broker.member.service_mode import (
    ModeKind,
    Modes,
    ServiceFacts,
    decide_mode,
    knows_ends,
)
from brokerset_protocol.codes import ResponseCode

LEASE_MISSING_SECONDS: Final = 1.0
"""A lease that is missing for longer is shown as a problem; a new master gets its first one sooner."""


class Step(StrEnum):
    """What a change of role consists of; `DESIGN.md` says why in this order."""

    HOLD_WRITES = "HoldWrites"
    """Let sends wait; none is appended from here to `SERVE`, not even one that was admitted before."""

    STOP_SERVICES = "StopServices"
    """End what only a master does: services drain, then they append nothing any more."""

    STOP_METADATA = "StopMetadata"
    """Change no metadata any more."""

    CLOSE_REPLICAS = "CloseReplicas"
    ANSWER_WAITERS = "AnswerWaiters"
    STOP_FOLLOWING = "StopFollowing"
    FINISH_RECEIVED = "FinishReceived"
    """Dispatch all that was received, drop a record that is not whole."""

    BEGIN_EPOCH = "BeginEpoch"
    """The epoch is on the disk before anything is appended in it."""

    APPLY_METADATA = "ApplyMetadata"
    """Everything in the log is history now."""

    TAKE_ROLE = "TakeRole"
    """From here on identity queries, polls and heartbeats see the new role."""

    TAKE_IN_SYNC = "TakeInSync"
    ACCEPT_REPLICAS = "AcceptReplicas"
    WRITE_SNAPSHOT = "WriteSnapshot"
    """All metadata, the first records of the epoch."""

    START_SERVICES = "StartServices"
    FOLLOW = "Follow"
    FOLLOW_METADATA = "FollowMetadata"
    """Apply metadata as it is confirmed."""

    SERVE = "Serve"
    """Serve, forward or refuse, as role, lease and in-sync set allow."""

    TELL_NAME_SERVERS = "TellNameServers"
    GIVE_BACK = "GiveBack"
    """Propose the in-sync set of before the election that this broker could not follow."""


OWN_STEPS: Final = frozenset({Step.HOLD_WRITES, Step.TAKE_ROLE, Step.SERVE})
"""Steps that change nothing outside of this machine and of what it has served."""


def plan_switch(before: RoleState, after: RoleState) -> tuple[Step, ...]:
    """The steps from one role to another; few when only what belongs to the role changes."""
    if after.role is Role.MASTER:
        if before.role is Role.MASTER and before.epoch == after.epoch:
            return (Step.TAKE_ROLE, Step.TAKE_IN_SYNC)
        return (
            Step.HOLD_WRITES,
            *_leave_mastership(before),
            Step.STOP_FOLLOWING,
            Step.FINISH_RECEIVED,
            Step.BEGIN_EPOCH,
            Step.APPLY_METADATA,
            Step.TAKE_ROLE,
            Step.TAKE_IN_SYNC,
            Step.ACCEPT_REPLICAS,
            Step.WRITE_SNAPSHOT,
            Step.START_SERVICES,
            Step.SERVE,
            Step.TELL_NAME_SERVERS,
        )
    follows = after.role is Role.SLAVE and after.master_id is not None
    if follows and _same_master(before, after):
        return (Step.TAKE_ROLE, Step.FOLLOW, Step.FOLLOW_METADATA, Step.SERVE)
    was_master = before.role is Role.MASTER
    return (
        Step.HOLD_WRITES,
        *_leave_mastership(before),
        *((Step.ANSWER_WAITERS,) if was_master else ()),
        Step.STOP_FOLLOWING,
        *(() if was_master else (Step.FINISH_RECEIVED,)),
        Step.TAKE_ROLE,
        *((Step.FOLLOW,) if follows else ()),
        Step.FOLLOW_METADATA,
        Step.SERVE,
        Step.TELL_NAME_SERVERS,
    )


def plan_failure(*, gives_back: bool) -> tuple[Step, ...]:
    """The steps to no role, after one on the way to another role has failed."""
    return (
        Step.STOP_SERVICES,
        Step.CLOSE_REPLICAS,
        Step.ANSWER_WAITERS,
        Step.TAKE_ROLE,
        Step.FOLLOW_METADATA,
        Step.SERVE,
        *((Step.GIVE_BACK,) if gives_back else ()),
    )


def _leave_mastership(before: RoleState) -> tuple[Step, ...]:
    if before.role is not Role.MASTER:
        return ()
    return (Step.STOP_SERVICES, Step.STOP_METADATA, Step.CLOSE_REPLICAS)


def _same_master(before: RoleState, after: RoleState) -> bool:
    return (before.role, before.epoch, before.master_id) == (after.role, after.epoch, after.master_id)


class Ask(Enum):
    """What is to be asked of the controllers."""

    HEARTBEAT = "a heartbeat to each at once, for a lease"
    STATE = "who is master (GET_REPLICA_INFO, 1004), soon"
    STATE_LATER = "the same, after `RETRY_SECONDS`"
    ELECTION = "an election (ELECT_MASTER, 1002)"
    CONFIRMATION = "whether this process still has its identity (REGISTER_BROKER, 1003)"


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Do one step of a change to `role`, and say how it ended: `Member.step_ended`."""

    step: Step
    role: RoleState


@dataclass(frozen=True, slots=True)
class RoleTaken:
    """The role is another one now, or another set, address or process belongs to it."""

    before: RoleState
    after: RoleState


@dataclass(frozen=True, slots=True)
class TakeInSync:
    """What is in force in the same epoch, for replication; for a slave that asked, also what it knows."""

    role: RoleState


class Refusal(NamedTuple):
    """Why nothing may be appended."""

    code: int
    remark: str


@dataclass(frozen=True, slots=True)
class Serve:
    """Treat requests like this from now on."""

    modes: Modes
    knows_ends: bool
    """Whether a pull that finds nothing may say so."""

    refusal: Refusal | None
    """What sends are told that are past the gateway already; None while they are served. A slave's has no
    remark: Java's is used."""


@dataclass(frozen=True, slots=True)
class SwitchEnded:
    """A change of role is over; `problem` says why it failed at `step`."""

    after: RoleState
    step: Step | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """This master serves with a lease now, or has none any more."""

    serves: bool


Action = Ask | CarryOut | RoleTaken | TakeInSync | Serve | SwitchEnded | LeaseChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the machine is told before each input, because others decide it."""

    needs_min: int = 1
    """`minInSyncReplicas`."""

    acknowledges_alone: bool = False
    """Whether a master acknowledges sends without any other replica, as the settings say."""

    stopped_reason: str | None = None
    """Why nothing can be served although there is a role: the disk has failed."""

    no_role_reason: str = ""
    name: str = "this broker"


@dataclass(frozen=True, slots=True)
class _News:
    """What a controller said, and what the asker wants if it changes nothing."""

    group: GroupNews
    may_elect: bool = False
    asked: bool = False
    """Whether replication waits for the answer of the controllers, changed or not."""


@dataclass(slots=True)
class _Switch:
    """A change of role on its way."""

    before: RoleState
    after: RoleState
    steps: tuple[Step, ...]
    news: _News | None
    at: int = 0
    failed: str = ""
    given_back: tuple[frozenset[int], ...] = field(default=())


class Member:
    """The machine. Times are seconds of one monotonic clock that runs while the machine sleeps."""

    def __init__(
        self, nonce: str, *, poll_seconds: float, heartbeat_seconds: float, lease: MemberLease | None = None
    ) -> None:
        """`nonce` is of this start; `poll_seconds` is how often controllers are asked. They give the lease,
        unless there is another one."""
        self.nonce = nonce
        self.broker_id: int | None = None
        """The persistent id; None until the controllers know this start."""

        self.role = RoleState()
        """The role that everybody sees, and what belongs to it."""

        self.fenced = False
        """Whether an administrator took this broker out of service, as the controllers said last."""

        self.overtaken = False
        """Whether another process has this broker's identity."""

        self.lease: MemberLease = Lease() if lease is None else lease
        self.led_epoch = -1
        """The last epoch in which this broker took the role of the master: since then replicas may have
        followed it, and messages may be confirmed, so no set of before is given back in it."""

        self.refused_mastership = RefusedMastership(poll_seconds)
        self._heartbeat_seconds = heartbeat_seconds
        self._sets = SetsKnown()
        self._given_back: dict[int, tuple[GivenBack, ...]] = {}
        """What was proposed without leading, by master epoch; of the newest one only."""

        self._now = 0.0
        self._sees = Circumstances()
        self._switch: _Switch | None = None
        self._waiting: _News | None = None
        self.hands_over = False
        """Whether a switchover is tried: sends are held."""

        self._holds = False
        self._closing = False
        self._enough = False
        self._epoch_confirmed = False
        self._served = False
        self._no_lease_since: float | None = None
        self._not_enough_since: float | None = None
        self._no_master_since: float | None = None
        self._modes_end_at: float | None = None
        self._actions: list[Action] = []

    # -- what the shell sees ------------------------------------------------------------------------------

    def take_actions(self) -> tuple[Action, ...]:
        """What is to be done, in this order; it is handed out once."""
        actions, self._actions = tuple(self._actions), []
        return actions

    @property
    def switching(self) -> bool:
        """Whether a change of role is on its way."""
        return self._switch is not None

    @property
    def failing(self) -> bool:
        """Whether a step of the change on its way has failed, and what is left leads to no role."""
        return self._switch is not None and bool(self._switch.failed)

    @property
    def holds_writes(self) -> bool:
        """Whether sends are held because of a change of role."""
        return self._holds

    def deadline(self) -> float | None:
        """When `tick` is due, if nothing happens before: a lease ends, or a hold. Never when closed."""
        if self._closing:
            return None
        times = [] if self._modes_end_at is None else [self._modes_end_at]
        if self._served and self.lease.required:
            times.append(self.lease.ends_at)
        return min(times, default=None)

    def may_serve(self, now: float) -> bool:
        """Whether this broker is master, and certain that nobody else is. Ask each time: a process that was
        stopped wakes up with all its timers late."""
        return self.role.role is Role.MASTER and self.lease.valid(now, self.role.epoch)

    def lease_missing(self, now: float) -> bool:
        """Whether this master is without a lease for longer than it takes to get one."""
        since = self._no_lease_since
        if since is None or self.role.role is not Role.MASTER or self.may_serve(now):
            return False
        return now - since >= LEASE_MISSING_SECONDS

    def heartbeat_pause_seconds(self, now: float) -> float:
        """Until the next heartbeat."""
        assert isinstance(self.lease, Lease), "heartbeats to controllers"
        epoch = self.role.epoch if self.role.role is Role.MASTER else None
        return self.lease.pause_seconds(now, epoch, self._heartbeat_seconds)

    def cannot_lead(self, now: float) -> bool:
        """Whether the controllers are to know that this broker should not be elected."""
        return self.refused_mastership.is_reported(now)

    @property
    def to_give_back(self) -> tuple[frozenset[int], ...]:
        """In-sync sets to propose at `GIVE_BACK`, in turn until one is not refused."""
        return self._switch.given_back if self._switch is not None else ()

    # -- inputs -------------------------------------------------------------------------------------------

    def observe(self, now: float, sees: Circumstances) -> None:
        """What holds at the input that follows."""
        self._now, self._sees = now, sees

    def tick(self) -> None:
        """Time has passed, or something else may have changed what is served."""
        self._check_lease()
        self._refresh()

    def registered(self, broker_id: int, group_epoch: int | None) -> None:
        """The controllers know this start. `group_epoch` is None with RocketMQ's, which give no leases."""
        self.broker_id = broker_id
        self.overtaken = False
        if isinstance(self.lease, Lease):
            self.lease.required = group_epoch is not None
        self.role = registered(self.role, group_epoch)
        self._check_lease()
        self._refresh()

    def received(self, group: GroupNews, *, may_elect: bool = False, asked: bool = False) -> None:
        """A controller said what is in force in the group.

        `may_elect`: an election is asked for if there is no master. `asked`: replication wants to hear of it,
        changed or not.
        """
        if self.broker_id is None or self.overtaken:
            return
        self._sets.note(group)
        news = _News(group, may_elect, asked)
        if self._switch is None:
            self._decide(news)
        else:
            self._waiting = _newer(self._waiting, news)

    def lost_identity(self) -> None:
        """The controllers say that another process has this broker's identity: serve nothing."""
        self.overtaken = True
        self._waiting = None
        self._stand_down()

    def mastership_ended(self, epoch: int) -> None:
        """The mastership of this epoch is over, and nobody is known to lead a newer one."""
        self._waiting = None
        if self._switch is None and (self.role.role, self.role.epoch) == (Role.MASTER, epoch):
            self._begin(replace(stood_down(self.role), role=Role.SLAVE), None)

    def step_ended(self, problem: str = "") -> None:
        """The step that was to be carried out is done, or failed for this reason."""
        switch = self._switch
        assert switch is not None, "a step ends that nobody began"
        if problem and not switch.failed:
            self._fail(switch, problem)
        else:
            switch.at += 1
        self._go_on()

    def gives_back(self, members: frozenset[int]) -> GivenBack:
        """This set is about to be proposed, at `GIVE_BACK`; from now on it may be in force."""
        assert self._switch is not None, "only a change that failed gives a set back"
        after = self._switch.after
        proposed = GivenBack(members, after.set_epoch)
        before = self._given_back.get(after.epoch, ())
        self._given_back = {after.epoch: tuple(dict.fromkeys((*before, proposed)))}
        return proposed

    def set_made(self, members: frozenset[int], set_epoch: int, epoch: int) -> None:
        """The set that this broker proposed as master of `epoch` is in force; replication knows it."""
        role = self.role
        if role.role is Role.MASTER and role.epoch == epoch and role.set_epoch < set_epoch:
            self.role = replace(role, sync_state_set=members, set_epoch=set_epoch)

    def in_sync_changed(self, *, enough: bool, epoch_confirmed: bool) -> None:
        """Replication: whether enough replicas are in sync, and whether all that this epoch began with is
        confirmed."""
        self._enough, self._epoch_confirmed = enough, epoch_confirmed
        self._not_enough_since = None if enough else self._not_enough_since or self._now
        self._refresh()

    def lease_granted(self, sent_at: float, lease_ms: int, epoch: int) -> None:
        """A controller that leads granted a lease in its answer to a heartbeat that was sent then."""
        assert isinstance(self.lease, Lease), "controllers grant what they give"
        if self.lease.granted(sent_at, lease_ms, epoch):
            self._check_lease()

    def epoch_known(self, epoch: int) -> None:
        """A controller knows of a master of `epoch`: no lease of an older one counts any more."""
        assert isinstance(self.lease, Lease), "controllers end what they give"
        if self.lease.overtaken(epoch):
            self._check_lease()

    def give_up_lease(self, *, asking: bool = False) -> None:
        """Do not serve until a lease comes that a later heartbeat asked for.

        `asking`: a successor is being asked for, so that no heartbeat counts before this is called again.
        """
        assert isinstance(self.lease, Lease), "what controllers gave is given up"
        self.lease.give_up(math.inf if asking else self._now)
        self._check_lease()

    def fence(self, fenced: bool) -> bool:
        """A controller said whether an administrator took this broker out; whether that is news."""
        if fenced is self.fenced:
            return False
        self.fenced = fenced
        self._refresh()
        return True

    def hand_over(self, on: bool) -> None:
        """A switchover is tried, or that is over: sends are held meanwhile."""
        self.hands_over = on
        self._refresh()

    def close(self) -> None:
        """The broker shuts down: what is served changes no more."""
        self._closing = True

    # -- changes of role ----------------------------------------------------------------------------------

    def _decide(self, news: _News) -> None:
        assert self.broker_id is not None
        verdict = decide_role(self.role, news.group, self.broker_id, self.nonce)
        if verdict.suspect:
            self._actions.append(Ask.CONFIRMATION)
            return
        news = replace(news, may_elect=news.may_elect and verdict.elect)
        change = verdict.change
        if change is not None and is_switch(self.role, change):
            self._begin(change, news)
            return
        if change is not None:
            self._take(change)
            self._actions.append(TakeInSync(change))
        self._settled(news)

    def _settled(self, news: _News) -> None:
        """What was said has had its effect."""
        if news.may_elect:
            self._actions.append(Ask.ELECTION)
        elif news.asked and self.role.role is Role.SLAVE and self.role.epoch == news.group.epoch:
            self._actions.append(TakeInSync(self.role))

    def _begin(self, after: RoleState, news: _News | None) -> None:
        if after.role is Role.MASTER:
            self._actions.append(Ask.HEARTBEAT)  # the lease may come while the switch is under way
            after = replace(after, given_back=self._given_back.get(after.epoch, ()))
        self._switch = _Switch(self.role, after, plan_switch(self.role, after), news)
        self._go_on()

    def _go_on(self) -> None:
        """Do the steps that are this machine's own, up to one that the shell carries out, or to the end."""
        switch = self._switch
        assert switch is not None
        while switch.at < len(switch.steps):
            step = switch.steps[switch.at]
            if step not in OWN_STEPS:
                self._actions.append(CarryOut(step, switch.after))
                return
            match step:
                case Step.HOLD_WRITES:
                    self._holds = True
                    self._refresh()
                case Step.TAKE_ROLE:
                    self._take(switch.after)
                case Step.SERVE:
                    self._holds = False
                    self._refresh()
            switch.at += 1
        self._end(switch)

    def _end(self, switch: _Switch) -> None:
        self._switch = None
        if not switch.failed:
            self.refused_mastership.took(switch.after.role)
            self._actions.append(SwitchEnded(switch.after))
        waiting, self._waiting = self._waiting, None
        if self.overtaken:
            self._stand_down()
        elif waiting is not None:
            self._decide(waiting)
        elif switch.news is not None:
            self._settled(switch.news)

    def _fail(self, switch: _Switch, problem: str) -> None:
        """Go on to no role at all, so that the same news counts as news again."""
        wanted, step = switch.after, switch.steps[switch.at]
        reason = f"{step}: {problem}"
        gives_back: tuple[frozenset[int], ...] = ()
        if wanted.role is Role.MASTER:
            if self.refused_mastership.failed(wanted.epoch, self._now):
                self._actions.append(Ask.STATE_LATER)
            gives_back = self._sets_to_give_back(wanted)
        switch.after = RoleState(epoch=wanted.epoch, set_epoch=wanted.set_epoch, reason=reason)
        switch.failed, switch.at = reason, 0
        switch.given_back = gives_back
        switch.news = None
        self._holds = True
        gave_up = wanted.role is Role.MASTER and self.refused_mastership.gives_up
        switch.steps = plan_failure(gives_back=gave_up)
        self._actions.append(SwitchEnded(wanted, step, problem))

    def _sets_to_give_back(self, wanted: RoleState) -> tuple[frozenset[int], ...]:
        """The sets of before the election, as nothing was acknowledged since: others can lead with them.

        RocketMQ's controllers do not take the mastership from who lives.
        """
        if not self.refused_mastership.gives_up or not self.lease.required or self.broker_id is None:
            return ()
        if wanted.epoch == self.led_epoch:
            return ()
        return self._sets.before(wanted, self.broker_id)

    def _stand_down(self) -> None:
        if self._switch is None and self.role.role is not Role.NONE:
            self._begin(stood_down(self.role), None)

    def _take(self, role: RoleState) -> None:
        """Make this the role that everybody sees."""
        before, self.role = self.role, role
        leads = role.role is Role.MASTER
        if leads and role.epoch != self.led_epoch:  # what is missing is missing since now, and is waited for
            self.led_epoch = role.epoch
            self._no_lease_since = self._now
            self._not_enough_since = None if self._enough else self._now
        searches = role.role is Role.SLAVE and role.master_id is None
        self._no_master_since = (self._no_master_since or self._now) if searches else None
        self._actions.append(RoleTaken(before, role))
        self._check_lease()
        if leads and (before.role, before.epoch) != (role.role, role.epoch):
            self._actions.append(Ask.HEARTBEAT)
        if not self._holds:
            self._refresh()

    # -- service ------------------------------------------------------------------------------------------

    def _check_lease(self) -> None:
        serves = self.may_serve(self._now)
        if serves or self.role.role is not Role.MASTER:
            self._no_lease_since = None
        elif self._no_lease_since is None:
            self._no_lease_since = self._now
        if serves is not self._served:
            self._served = serves
            if serves or self.role.role is Role.MASTER:
                self._actions.append(LeaseChanged(serves))
            self._refresh()

    def _refresh(self) -> None:
        """Decide again what is served."""
        if self._closing:
            return
        facts = self._facts()
        modes = decide_mode(facts)
        self._modes_end_at = None if modes.for_ms is None else self._now + modes.for_ms / 1000
        if self._actions and isinstance(self._actions[-1], Serve):
            self._actions.pop()
        self._actions.append(Serve(modes, knows_ends(facts), self._refusal(modes)))

    def _refusal(self, modes: Modes) -> Refusal | None:
        writes = modes.writes
        if writes.kind is ModeKind.SERVE:
            return None
        if self.role.role is Role.SLAVE and not self._holds:
            return Refusal(ResponseCode.SYSTEM_BUSY, "")
        return Refusal(writes.code or ResponseCode.SERVICE_NOT_AVAILABLE, writes.remark)

    def _facts(self) -> ServiceFacts:
        role, sees = self.role, self._sees
        leads = role.role is Role.MASTER
        return ServiceFacts(
            role=role.role,
            epoch=role.epoch,
            lease_required=self.lease.required,
            lease_valid=not leads or self.may_serve(self._now),
            lease_is_short=self.lease.is_short,
            lease_given_up=self.lease.given_up,
            lease_lost_for_ms=self._ms_since(self._no_lease_since),
            enough_in_sync=self._enough,
            not_enough_for_ms=self._ms_since(self._not_enough_since),
            needs_min=sees.needs_min,
            in_sync=len(role.sync_state_set),
            epoch_confirmed=self._epoch_confirmed,
            acknowledged_alone=sees.acknowledges_alone,
            switching=self._holds or self.hands_over,
            fenced=self.fenced,
            master_address=role.master_address if role.role is Role.SLAVE else None,
            no_master_for_ms=self._ms_since(self._no_master_since),
            stopped_reason=sees.stopped_reason,
            no_role_reason=sees.no_role_reason,
            name=sees.name,
        )

    def _ms_since(self, moment: float | None) -> int:
        return 0 if moment is None else int(1000 * (self._now - moment))


def _newer(one: _News | None, other: _News) -> _News:
    """Of two things that controllers said the one with the higher epochs, the later one of equals."""
    if one is None:
        return other
    before, after = (((each.group.epoch or 0), each.group.set_epoch) for each in (one, other))
    newest = other if after >= before else one
    return replace(newest, asked=one.asked or other.asked)
