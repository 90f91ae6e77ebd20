"""Rule 7: old pods are replaced one at a time; who leads hands over when the others are new, and goes last.

That a pod is replaced is written down one reconcile before it is deleted, so that no later one, whatever it
sees of the deletion, takes a second pod down. Brokers and controllers go the same way; a `Roll` says how they
differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Union

from brokerset_operator.model import names
from brokerset_operator.model.actions import DeletePod, MoveLeadership
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.facts import Broker, Facts, GroupFacts
from brokerset_operator.plan.live_settings import too_strict
from brokerset_operator.plan.pods import STALE_SECONDS, Keeper, Pod, is_old, is_slow, why_failing
from brokerset_operator.plan.scaling import never_starts
from brokerset_operator.plan.steps import Finding, Steps
from brokerset_operator.plan.workflow import Replacing

OLD: Final = "its template or its settings have changed"

Roll = Union["ControllerRoll", "BrokerRoll"]


def roll_controllers(facts: Facts) -> Steps:
    """Take the next step; brokers wait until all controllers are new and none is being replaced."""
    roll = ControllerRoll(facts)
    if not facts.controllers.own:
        return
    begun = (yield from go_on(roll)) or roll.begun
    if begun is not None or roll.old:
        yield steps.Takes(steps.CONTROLLERS)
    if begun is None and roll.old:
        yield from begin(roll)


def roll_brokers(facts: Facts) -> Steps:
    """Go on with what was begun, then begin the next step, in one group at a time, after the controllers."""
    rolls = [BrokerRoll(facts, group) for group in facts.groups.values()]
    for roll in rolls:
        # A group that is to go is not rolled, but it is drained by brokers that run.
        if (yield from go_on(roll)) is not None and not roll.group.dropped:
            yield steps.Takes(steps.BROKERS)
    later = steps.GoesOn(reasons.ROLLING, "brokers are replaced after the controllers")
    for roll in rolls:
        if roll.old:
            step = steps.Unless(steps.CONTROLLERS, tuple(begin(roll)), (later,))
            yield steps.Unless(steps.BROKERS, (steps.Takes(steps.BROKERS), step))


# -- one after the other ----------------------------------------------------------------------------------


def begin(roll: Roll) -> Steps:
    """Choose a pod, and write it down, or let it hand over."""
    followers = [pod for pod in roll.old if not roll.leads(pod)]
    pod = followers[0] if followers else roll.old[0]
    problem = roll.why_not_now(pod)
    if problem is not None:
        yield steps.GoesOn(reasons.ROLL_WAITS, f"{roll.called} old pods, but {problem}", steps.WAIT_SECONDS)
    elif followers:
        yield from _write_down(roll, pod)
    elif (question := roll.ask_first()) is not None:
        yield question
    elif roll.current > 1:
        yield from roll.hand_over(pod)
    else:
        yield from _write_down(roll, pod)


def go_on(roll: Roll) -> Finding[Replacing | None]:
    """Replace what is of no use, or go on with what was begun; returns what is being replaced now."""
    useless, begun = roll.useless, roll.begun
    if useless and roll.is_led:
        again = next((pod for pod in useless if begun is not None and pod.name == begun.pod), None)
        if begun is None or (again is not None and again.uid != begun.uid):
            return (yield from _write_down(roll, again or useless[0]))
    elif useless:
        # Nobody can be waited for: all at once.
        for pod in useless:
            if pod.broken is not None:
                yield DeletePod(pod.name, pod.uid, f"{OLD}, and it does not run: {pod.broken}")
                yield steps.GoesOn(reasons.ROLLING, f"{pod.name} is replaced: {pod.broken}")
    return None if begun is None else (yield from _go_on(roll, begun))


def _go_on(roll: Roll, begun: Replacing) -> Finding[Replacing | None]:
    ordinal = int(begun.pod.rpartition("-")[2])
    pod, now = roll.pods.get(ordinal), roll.facts.now
    if pod is None:
        if ordinal >= roll.current:
            yield roll.remember(None)
            return None
        yield steps.GoesOn(reasons.ROLLING, f"{begun.pod} is made again")
    elif pod.uid == begun.uid:
        return (yield from _take_down(roll, pod, begun))
    elif roll.is_back(pod, begun):
        yield roll.remember(None)
        yield steps.Again(steps.AT_ONCE_SECONDS)
        return None
    elif roll.is_old(pod) and not roll.serves(pod):
        return (yield from _write_down(roll, pod))  # the manifest has changed again meanwhile
    elif (why := why_failing(pod, now)) is not None:
        message = f"{pod.name} does not come back: {why}. Correct the manifest, or put it back"
        yield steps.GoesOn(reasons.ROLL_WAITS, message, steps.WAIT_SECONDS)
    else:
        yield steps.GoesOn(reasons.ROLLING, f"{pod.name} is new, and {roll.returning}")
    return begun


def _take_down(roll: Roll, pod: Pod, begun: Replacing) -> Finding[Replacing | None]:
    if pod.terminating:
        yield steps.GoesOn(reasons.ROLLING, f"{pod.name} ends")
        return begun
    problem = None if roll.is_old(pod) else "it is as wanted"
    if problem is None and not roll.is_useless(pod):
        problem = roll.why_keep(pod)
        if problem is None and roll.leads(pod) and roll.current > 1:
            yield from roll.hand_over(pod)
            return begun
    if problem is None:
        yield roll.deletion(pod)
        yield steps.GoesOn(reasons.ROLLING, f"{pod.name} is replaced")
    elif roll.facts.now - begun.since > STALE_SECONDS:
        yield roll.remember(None)
        yield steps.Waits(f"{pod.name} is not replaced now: {problem}")
        return None
    else:
        yield steps.GoesOn(reasons.ROLLING, f"{pod.name} is replaced later: {problem}")
    return begun


def _write_down(roll: Roll, pod: Pod) -> Finding[Replacing]:
    """A pod is taken down in the next reconcile."""
    replacing = roll.replacing(pod)
    yield roll.remember(replacing)
    yield steps.GoesOn(reasons.ROLLING, f"{pod.name} is replaced", steps.AT_ONCE_SECONDS)
    return replacing


# -- how they differ ---------------------------------------------------------------------------------------


class _Pods:
    """The pods of one StatefulSet."""

    facts: Facts
    resource: str
    keeper: Keeper | None
    current: int
    pods: Mapping[int, Pod]
    """By ordinal."""

    begun: Replacing | None
    """Which one is being replaced, as it was written down."""

    called: str
    returning: str
    """What a pod does that was made again, and is not back yet."""

    @property
    def old(self) -> list[Pod]:
        """Those that are to be replaced, the highest ordinal first."""
        return [pod for _, pod in sorted(self.pods.items(), reverse=True) if self.is_old(pod)]

    @property
    def useless(self) -> list[Pod]:
        """Old pods that do nobody any good: they would block the very change that mends them."""
        return [pod for _, pod in sorted(self.pods.items(), reverse=True) if self.is_useless(pod)]

    @property
    def is_led(self) -> bool:
        """Whether somebody leads, so that others can be waited for."""
        return self.facts.controllers.led

    def is_old(self, pod: Pod) -> bool:
        """Whether a pod differs from the newest template."""
        return is_old(pod, self.facts.templates.get(self.resource), self.keeper)

    def is_useless(self, pod: Pod) -> bool:
        """Whether taking an old pod down costs nothing."""
        return self.is_old(pod) and not pod.terminating and pod.broken is not None


class ControllerRoll(_Pods):
    """The set's controllers."""

    called = "controllers have"
    returning = "catches up"

    def __init__(self, facts: Facts) -> None:
        self.facts, self.known = facts, facts.controllers
        self.keeper, self.pods, self.current = self.known.keeper, self.known.pods, self.known.current
        self.resource = self.keeper.name if self.keeper is not None else ""
        self.begun = facts.workflow.controllers

    def leads(self, pod: Pod) -> bool:
        """Whether it leads the raft group."""
        return pod.ordinal == self.known.leader

    def why_not_now(self, pod: Pod | None = None) -> str | None:
        """Whichever goes, all the others must vote and have everything."""
        known = self.known
        if not known.led:
            return "no leader was confirmed"
        if known.keeper is None or known.keeper.deleting:
            return "their StatefulSet is being made again"
        if known.current != known.wanted or not known.whole:
            return "not every one votes and has everything"
        for ordinal in range(known.wanted):
            found = known.pods.get(ordinal)
            if found is None or found.terminating or not found.ready:
                return f"controller {ordinal} is not ready"
        return "a pod of them is still ending" if len(known.pods) != known.wanted else None

    def why_keep(self, pod: Pod) -> str | None:
        """The new pod of a changed manifest that is not ready harms nobody when it goes again."""
        spare = not pod.ready and self.known.led and pod.ordinal not in self.known.answering
        return None if spare else self.why_not_now(pod)

    def is_back(self, pod: Pod, begun: Replacing) -> bool:
        """Whether it votes, answers and has everything."""
        known, ordinal = self.known, pod.ordinal
        back = ordinal in known.voting and (ordinal in known.caught_up or ordinal == known.leader)
        return back and pod.ready and not pod.terminating and why_failing(pod, self.facts.now) is None

    def serves(self, pod: Pod) -> bool:
        """One that is ready is waited for."""
        return pod.ready or pod.terminating

    def ask_first(self) -> steps.GoesOn | None:
        """Nobody: it is no pause for clients."""
        return None

    def deletion(self, pod: Pod) -> DeletePod:
        """Take a pod down."""
        return DeletePod(pod.name, pod.uid, OLD)

    def replacing(self, pod: Pod) -> Replacing:
        """What is remembered of a pod that is to be taken down."""
        return Replacing(pod=pod.name, uid=pod.uid, since=self.facts.now)

    def remember(self, replacing: Replacing | None) -> steps.Remember:
        """In what is remembered of the set."""
        return steps.Remember(None, {"controllers": replacing})

    def hand_over(self, pod: Pod) -> Steps:
        """Let another controller lead, a new one if there is one."""
        able = sorted(self.known.voting & self.known.caught_up - {pod.ordinal})
        if not able:
            message = "no other controller has everything, to lead"
            yield steps.GoesOn(reasons.ROLL_WAITS, message, steps.WAIT_SECONDS)
            return
        new = [n for n in able if n in self.pods and not self.is_old(self.pods[n])]
        yield MoveLeadership((new or able)[0], f"{pod.name} is replaced: {OLD}")
        yield steps.GoesOn(reasons.ROLLING, f"controller {(new or able)[0]} takes the lead over")


class BrokerRoll(_Pods):
    """The brokers of one group."""

    returning = "comes into sync"

    def __init__(self, facts: Facts, group: GroupFacts) -> None:
        self.facts, self.group = facts, group
        self.keeper, self.resource, self.current = group.keeper, group.resource, group.current
        self.pods = {n: broker.pod for n, broker in group.brokers.items() if broker.pod is not None}
        self.begun = group.work.replacing
        self.called = f"{group.name} has"

    @property
    def old(self) -> list[Pod]:
        """None that is leaving; a fenced one, which is in nobody's way, comes first."""
        limit = min(self.current, self.group.wanted)
        found = [pod for pod in super().old if pod.ordinal < limit]
        return sorted(found, key=lambda pod: not self._broker(pod).fenced)

    @property
    def useless(self) -> list[Pod]:
        """None that goes anyway."""
        return [pod for pod in super().useless if pod.ordinal < max(self.current, 1)]

    @property
    def is_led(self) -> bool:
        """Whether the group has its master, and the controllers say so."""
        return self.group.master is not None and self.facts.led

    def is_useless(self, pod: Pod) -> bool:
        """Whether it does not run, or has been out of sync for long while there is a master."""
        broker = self._broker(pod)
        idle = not broker.in_sync and not broker.master and not broker.fenced and self.is_led
        slow = idle and is_slow(pod, self.facts.now)
        return super().is_useless(pod) or (slow and self.is_old(pod) and not pod.terminating)

    def leads(self, pod: Pod) -> bool:
        """Whether it is the group's master."""
        return self._broker(pod).master

    def why_not_now(self, pod: Pod) -> str | None:
        """The group must be whole, and enough of it stay in sync."""
        facts, group = self.facts, self.group
        if not facts.led:
            return "the controllers do not answer"
        if group.contested is not None:
            return group.contested
        if group.keeper is None or group.keeper.deleting:
            return f"StatefulSet {group.resource} is being made again"
        if group.virgin:
            return None if never_starts(facts, group) else f"{group.name} gets its first master"
        if group.master is None or group.state is None:
            return f"{group.name} has no living master"
        if group.current != group.wanted:
            return f"{group.name} is being scaled"
        for ordinal in range(group.current):
            broker = group.brokers.get(ordinal)
            if broker is None or broker.pod is None or broker.pod.terminating:
                return f"pod {group.resource}-{ordinal} is not there"
            if not broker.fenced and not broker.settled:
                return f"{broker.pod.name} is not in sync"
            if broker.ordinal != pod.ordinal and not broker.pod.ready:
                return f"{broker.pod.name} is not ready"
        if (strict := too_strict(facts, group)) is not None:
            return strict
        if any(ordinal >= group.current for ordinal in group.brokers):
            return f"a pod of {group.name} is still ending"
        staying = len(group.living_in_sync - {self._broker(pod).broker_id})
        least = max(1, min(facts.manifest.min_in_sync_of(group.current), group.current - 1))
        if group.current > 1 and staying < least:
            return f"only {staying} of {group.name} would stay in sync, and {least} must: unfence the others"
        return None

    def why_keep(self, pod: Pod) -> str | None:
        """One that has become master is kept too."""
        if self.leads(pod) and self.current > 1:
            return "it has become master"
        return self.why_not_now(pod)

    def is_back(self, pod: Pod, begun: Replacing) -> bool:
        """Whether the pod's broker does what the old one's did; its very own registration is waited for.

        Not without end: a pod that was made again at the address of the old one, just when its replacement
        was noted, had the start that is remembered. Controllers tell of a dead process for much less long.
        """
        broker, now = self._broker(pod), self.facts.now
        if self.group.virgin:
            return True
        if broker.replica is None or not pod.ready or pod.terminating or why_failing(pod, now) is not None:
            return False
        other = broker.replica.broker_id != begun.broker_id
        started = other or broker.replica.incarnation > (begun.incarnation or 0)
        return (started or now - begun.since > STALE_SECONDS) and (broker.in_sync or broker.fenced)

    def serves(self, pod: Pod) -> bool:
        """One that is in sync is waited for."""
        return self._broker(pod).in_sync or self._broker(pod).master

    def ask_first(self) -> steps.GoesOn | None:
        """With `supervised` a person says that the master may be touched, for this master epoch."""
        facts, group = self.facts, self.group
        if facts.manifest.spec.update.strategy != "supervised" or group.state is None:
            return None
        epoch = group.state.master_epoch
        given = (facts.meta.annotations.get(names.APPROVE) or "").replace(" ", "").split(",")
        if f"{group.name}/{epoch}" in given or f"{group.resource}/{epoch}" in given:
            return None
        return steps.GoesOn(
            reasons.WAITING_FOR_APPROVAL,
            f"all slaves of {group.name} are new: to let its master hand over and be replaced, annotate the"
            f" BrokerSet with {names.APPROVE}={group.name}/{epoch}",
            steps.WAIT_SECONDS,
        )

    def hand_over(self, pod: Pod) -> Steps:
        """Let the best slave become master."""
        name, target = self.group.name, self.group.successor(self.current)
        if target is None:
            message = f"{name}: nobody is in sync to take over from its old master"
            yield steps.GoesOn(reasons.ROLL_WAITS, message, steps.WAIT_SECONDS)
            return
        why = f"the master, broker {self._broker(pod).broker_id}, is replaced: {OLD}"
        yield self.group.switch_over(target, why)
        yield steps.GoesOn(reasons.ROLLING, f"the master of {name} hands over to broker {target.broker_id}")

    def deletion(self, pod: Pod) -> DeletePod:
        """Nothing happens in another master epoch, unless the pod does not run anyway."""
        state = self.group.state if pod.broken is None else None
        epoch = state.master_epoch if state is not None else None
        return DeletePod(
            pod.name, pod.uid, OLD, group=None if state is None else self.group.name, epoch=epoch
        )

    def replacing(self, pod: Pod) -> Replacing:
        """With the broker's start: the new one's is a later one."""
        broker = self._broker(pod)
        started = broker.replica.incarnation if broker.replica is not None else 0
        return Replacing(
            pod=pod.name,
            uid=pod.uid,
            since=self.facts.now,
            broker_id=broker.broker_id,
            incarnation=None if broker.broker_id is None else started,
        )

    def remember(self, replacing: Replacing | None) -> steps.Remember:
        """In what is remembered of the group."""
        return steps.remember(self.group, replacing=replacing)

    def _broker(self, pod: Pod) -> Broker:
        return self.group.brokers[pod.ordinal]
