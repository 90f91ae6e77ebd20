"""Rule 10: pods that do not end because their node is gone."""

from __future__ import annotations

from typing import Final

from brokerset_operator.model.actions import DeletePod
from brokerset_operator.plan import reasons
from brokerset_operator.plan.draft import WAIT_SECONDS, Draft
from brokerset_operator.plan.objects import Pod, items, part, read_pod

OVERDUE_SECONDS: Final = 30.0
"""How long after its time of grace a pod counts as stuck."""

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"


def free_stuck(draft: Draft) -> None:
    """Delete by force what surely does not run any more; tell people about the rest."""
    observed = draft.facts.observed
    for name in sorted(observed.pods):
        pod = read_pod(observed.pods[name])
        if pod is None or pod.gone_by is None:
            continue
        if observed.now - pod.gone_by <= OVERDUE_SECONDS:
            draft.look(WAIT_SECONDS)
            continue
        why = _why_surely_ended(draft, pod)
        if why is not None:
            draft.act(DeletePod(pod.name, pod.uid, why, force=True))
            continue
        draft.raise_condition(
            reasons.POD_STUCK,
            reasons.NODE_NOT_READY,
            f"{pod.name} does not end on node {pod.node}, where it may still write to its volume: bring the"
            f" node back, or, when it is surely off, delete it, or"
            f" `kubectl taint node {pod.node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute`",
        )
        draft.look(WAIT_SECONDS)


def _why_surely_ended(draft: Draft, pod: Pod) -> str | None:
    observed = draft.facts.observed
    if pod.node is None:
        return "it never had a node"
    node = observed.nodes.get(pod.node)
    if node is not None:
        taints = items(part(node, "spec"), "taints")
        if any(taint.get("key") == OUT_OF_SERVICE for taint in taints):
            return f"node {pod.node} is declared out of service"
        return None
    return f"node {pod.node} is gone" if pod.node in observed.missing_nodes else None
