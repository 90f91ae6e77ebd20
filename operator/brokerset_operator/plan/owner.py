"""Which installation of the operator looks after a BrokerSet: one, as two would undo each other's work.

An installation is named after its Lease, `<namespace>/<name>`: its processes share it, and upgrades keep it.
The one that looks after a set is in `status.operator`, written before anything else is; an annotation of the
set says who shall. Any other writes nothing but a refusal: the condition `OperatorConflict`, which the owner
carries over for as long as it is renewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.plan import reasons
from brokerset_operator.plan.conditions import Verdict, condition
from brokerset_operator.plan.objects import items, part, seconds, text, time_text

OPERATOR: Final = "operator"
"""Field of the status: the installation that looks after the set."""

REFUSED: Final = "refused"
"""Field of the status: which other one does not, and when it said so last."""

RENEWED_SECONDS: Final = 600.0
"""How often an installation says again that it leaves a set alone."""

BELIEVED_SECONDS: Final = 1800.0
"""How long that is believed: whoever has said it may be gone, and cannot take it back."""


class Decision(Enum):
    """What an installation does about a set."""

    WORK = "work"
    """It looks after the set."""

    CLAIM = "claim"
    """It writes down that it looks after the set, and then does."""

    LEAVE = "leave"
    """Another one looks after the set, as its annotation asks for."""

    REFUSE = "refuse"
    """Another one has the set, or shall have it and has not taken it: people are told."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What a BrokerSet says about that; empty: nothing."""

    marked: str
    """By its status."""

    wished: str
    """By its annotation."""

    def is_other(self, mine: str) -> bool:
        """Whether it is another installation than this one; a set that says nothing is for everybody."""
        return (self.wished or self.marked or mine) != mine

    def decide(self, mine: str, exists: bool | None) -> Decision:
        """What the installation `mine` does; `exists`: whether the marked one does, None when nobody knows.

        One that does not exist any more gives up its sets; one of which nothing is known keeps them.
        """
        if not self.is_other(mine) or (not self.wished and exists is False):
            return Decision.WORK if self.marked == mine else Decision.CLAIM
        return Decision.LEAVE if self.wished == self.marked else Decision.REFUSE


def read_owner(live: Mapping[str, Any]) -> Owner:
    """What a BrokerSet says."""
    marked = text(part(live, "status").get(OPERATOR))
    wished = text(part(part(live, "metadata"), "annotations").get(names.OPERATOR))
    return Owner(marked or "", (wished or "").strip())


def claimed(status: Mapping[str, Any], mine: str) -> dict[str, Any]:
    """The status of a set that an installation takes, with what an earlier one has said."""
    kept = {key: value for key, value in status.items() if key not in (OPERATOR, REFUSED)}
    if (conditions := _others(status)) or "conditions" in status:
        kept["conditions"] = conditions
    return {**kept, OPERATOR: mine}


def refused(live: Mapping[str, Any], mine: str, message: str, now: float) -> dict[str, Any] | None:
    """The status of a set that an installation leaves alone; None when it says so, or another one does."""
    status = part(live, "status")
    said_by = text(part(status, REFUSED).get(OPERATOR))
    age = _age(status, now)
    if age is not None and age < (RENEWED_SECONDS if said_by == mine else BELIEVED_SECONDS):
        return None
    generation = int(part(live, "metadata").get("generation") or 1)
    verdict: Verdict = ("True", reasons.OTHER_OPERATOR, message)
    conflict = condition(status, reasons.OPERATOR_CONFLICT, verdict, generation=generation, now=now)
    return {
        **status,
        "conditions": [*_others(status), conflict],
        REFUSED: {OPERATOR: mine, "seen": time_text(now)},
    }


def refusal_text(mine: str, owner: Owner, exists: bool | None) -> str:
    """Why an installation leaves a set alone, and what to do."""
    asks = f"annotate the BrokerSet with {names.OPERATOR}={mine}"
    if owner.wished:
        return (
            f"the annotation {names.OPERATOR} names the operator {owner.wished}, which has not taken the set"
            f" over yet; the operator {mine} leaves it alone meanwhile. If there is no such operator, {asks}"
        )
    namespace, _, name = owner.marked.partition("/")
    gone = f"; if it is gone for good: kubectl delete lease -n {namespace} {name}" if exists else ""
    return (
        f"the operator {owner.marked} looks after this set, so the operator {mine} leaves it alone. Let only"
        f" one of them look after this namespace (watchNamespaces). To hand the set over {asks}{gone}"
    )


def believed(status: Mapping[str, Any], mine: str, now: float) -> bool:
    """Whether another installation has said lately that it leaves the set alone."""
    age = _age(status, now)
    return age is not None and age < BELIEVED_SECONDS and part(status, REFUSED).get(OPERATOR) != mine


def _age(status: Mapping[str, Any], now: float) -> float | None:
    seen = seconds(part(status, REFUSED).get("seen"))
    return None if seen is None else now - seen


def _others(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(one) for one in items(status, "conditions") if one.get("type") != reasons.OPERATOR_CONFLICT]
