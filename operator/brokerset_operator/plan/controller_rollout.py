"""Rule 7, for controllers: old pods are replaced one at a time, the leader's last."""

from __future__ import annotations

from brokerset_operator.model.actions import DeletePod, MoveLeadership
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import AT_ONCE_SECONDS, WAIT_SECONDS, Draft
from brokerset_operator.plan.facts import ControllerFacts
from brokerset_operator.plan.objects import Pod
from brokerset_operator.plan.pods import STALE_SECONDS, is_old, why_failing
from brokerset_operator.plan.rollout import OLD
from brokerset_operator.plan.workflow import Replacing


def roll_controllers(draft: Draft) -> bool:
    """Take the next step; return whether all controllers are new and none is being replaced."""
    known = draft.facts.controllers
    if not known.own:
        return True
    old = [pod for _, pod in sorted(known.pods.items(), reverse=True) if _is_old(draft, pod)]
    broken = [pod for pod in old if pod.broken is not None and not pod.terminating]
    if broken:
        _replace_broken(draft, known, broken)
    begun = draft.controller
    if begun is not None:
        if begun == draft.facts.workflow.controllers:
            _go_on(draft, known, begun)
        return False
    if not old:
        return True
    problem = why_not_now(known)
    if problem is not None:
        draft.goes_on(reasons.ROLL_WAITS, f"controllers have old pods, but {problem}", WAIT_SECONDS)
        return False
    slaves = [pod for pod in old if pod.ordinal != known.leader]
    _step(draft, known, slaves[0] if slaves else old[0])
    return False


def why_not_now(known: ControllerFacts) -> str | None:
    """Return why no controller must be taken down now; None when one can be spared."""
    if not known.led:
        return "no leader was confirmed"
    if known.keeper is None or known.keeper.deleting:
        return "their StatefulSet is being made anew"
    if known.current != known.wanted or not known.whole:
        return "not every one votes and has everything"
    for ordinal in range(known.wanted):
        pod = known.pods.get(ordinal)
        if pod is None or pod.terminating or not pod.ready:
            return f"controller {ordinal} is not ready"
    if len(known.pods) != known.wanted:
        return "a pod of them is still ending"
    return None


def _is_old(draft: Draft, pod: Pod) -> bool:
    keeper = draft.facts.controllers.keeper
    template = draft.templates.get(keeper.name) if keeper is not None else None
    return is_old(pod, template, keeper)


def _replace_broken(draft: Draft, known: ControllerFacts, broken: list[Pod]) -> None:
    """Replace old pods that do not run; all at once when nobody leads, for nobody can be waited for."""
    if not known.led:
        for pod in broken:
            draft.act(DeletePod(pod.name, pod.uid, f"{OLD}, and it does not run: {pod.broken}"))
            draft.goes_on(reasons.ROLLING, f"{pod.name} is replaced: {pod.broken}")
        return
    begun = draft.controller
    again = next((pod for pod in broken if begun is not None and pod.name == begun.pod), None)
    if begun is None or (again is not None and again.uid != begun.uid):
        _write_down(draft, again or broken[0])


def _step(draft: Draft, known: ControllerFacts, pod: Pod) -> None:
    if pod.ordinal == known.leader and known.wanted > 1:
        _hand_over(draft, known, pod)
    else:
        _write_down(draft, pod)


def _hand_over(draft: Draft, known: ControllerFacts, pod: Pod) -> None:
    able = sorted(known.voting & known.caught_up - {pod.ordinal})
    new = [n for n in able if n in known.pods and not _is_old(draft, known.pods[n])]
    if not able:
        draft.goes_on(reasons.ROLL_WAITS, "no other controller has everything, to lead", WAIT_SECONDS)
        return
    draft.act(MoveLeadership((new or able)[0], f"{pod.name} is replaced: {OLD}"))
    draft.goes_on(reasons.ROLLING, f"controller {(new or able)[0]} takes the lead over")


def _write_down(draft: Draft, pod: Pod) -> None:
    draft.controller = Replacing(pod=pod.name, uid=pod.uid, since=draft.facts.now)
    draft.goes_on(reasons.ROLLING, f"{pod.name} is replaced", AT_ONCE_SECONDS)


def _go_on(draft: Draft, known: ControllerFacts, begun: Replacing) -> None:
    ordinal = int(begun.pod.rpartition("-")[2])
    pod = known.pods.get(ordinal)
    failing = why_failing(pod, draft.facts.now) if pod is not None else None
    if pod is None:
        if ordinal >= known.current:
            draft.controller = None
        else:
            draft.goes_on(reasons.ROLLING, f"{begun.pod} is made anew")
    elif pod.uid == begun.uid:
        _take_down(draft, known, pod, begun)
    elif pod.ready and not pod.terminating and _is_back(known, ordinal) and failing is None:
        draft.controller = None
        draft.look(AT_ONCE_SECONDS)
    elif _is_old(draft, pod) and not pod.ready and not pod.terminating:
        _write_down(draft, pod)  # the manifest has changed again meanwhile
    elif failing is not None:
        message = f"{pod.name} does not come back: {failing}. Correct the manifest, or put it back"
        draft.goes_on(reasons.ROLL_WAITS, message, WAIT_SECONDS)
    else:
        draft.goes_on(reasons.ROLLING, f"{pod.name} is new, and catches up")


def _is_back(known: ControllerFacts, node_id: int) -> bool:
    """Whether a controller votes, answers and has everything."""
    return node_id in known.voting and (node_id in known.caught_up or node_id == known.leader)


def _take_down(draft: Draft, known: ControllerFacts, pod: Pod, begun: Replacing) -> None:
    if pod.terminating:
        draft.goes_on(reasons.ROLLING, f"{pod.name} ends")
        return
    if not _is_old(draft, pod):
        problem: str | None = "it is as wanted"
    elif pod.broken is not None:
        problem = None
    else:
        problem = why_not_now(known)
        if problem is None and pod.ordinal == known.leader and known.wanted > 1:
            _hand_over(draft, known, pod)
            return
        # The new pod of a changed manifest that is not ready harms nobody when it goes again.
        spare = not pod.ready and known.led and pod.ordinal not in known.answering
        problem = None if spare else problem
    if problem is None:
        draft.act(DeletePod(pod.name, pod.uid, OLD))
        draft.goes_on(reasons.ROLLING, f"{pod.name} is replaced")
    elif draft.facts.now - begun.since > STALE_SECONDS:
        draft.controller = None
        draft.waits(f"{pod.name} is not replaced now: {problem}")
    else:
        draft.goes_on(reasons.ROLLING, f"{pod.name} is replaced later: {problem}")
