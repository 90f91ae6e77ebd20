"""What to ask controllers for a Subject, and what to say of it.

`decide_request` and `judge` see the same. A reconcile carries out the request, puts the answer into what was
observed, and judges that: what is said is what was agreed on, never what is hoped for.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from brokerset_operator.model import claim_reasons
from brokerset_operator.model.verdict import WAIT_SECONDS, Verdict
from brokerset_operator.ordered_subjects import reasons
from brokerset_operator.ordered_subjects.observed import (
    Create,
    Observed,
    Request,
    Scale,
    counted,
    is_scaling,
    newest,
    open_count,
    with_status,
)
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.subject_words import PartitionStatus

SCALING_SECONDS: Final = 1.0
"""Pause while partitions are on their way; with all brokers up that takes a fraction of it."""

REFUSED_SECONDS: Final = 10.0
"""Pause before controllers are asked again for what they have refused: what was in the way may be gone."""

DEFAULT_ROUTE_GROUPS: Final = 2
"""Broker groups that are chosen here, as many as controllers choose."""

PROBLEMS_SHOWN_MAX: Final = 8
"""Problems in one message; the others are counted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The condition Scaling."""

    scaling: bool
    reason: str
    message: str


def decide_request(observed: Observed) -> Request | None:
    """What controllers are to be asked now; None while that is nothing, or must wait."""
    spec, state = observed.wanted.spec, observed.state
    if conflict(observed) is not None:
        return None
    if state is None:
        route = spec.route or _chosen_route(observed)
        if observed.foreign_groups and not route:
            return None
        return Create(observed.wanted.subject, observed.wanted.order, spec.partitions, route)
    return None if is_scaling(state) else _missing(observed, state)


def _missing(observed: Observed, state: SubjectState) -> Scale | None:
    """What a subject lacks of what is wanted; the order of a route's groups says nothing."""
    spec, before = observed.wanted.spec, len(newest(state))
    wanted = before if spec.partitions is None else spec.partitions
    route = spec.route if set(spec.route) != set(state.route) else ()
    if wanted == before and not route:
        return None
    return Scale(state.name, before, wanted, route)


def _chosen_route(observed: Observed) -> tuple[str, ...]:
    """A route where controllers would also choose groups of other sets, and none where they choose well.

    The same groups each time: a request whose answer was lost is made again.
    """
    if not observed.foreign_groups:
        return ()
    name = observed.wanted.subject
    ranked = sorted(observed.with_master, key=lambda group: (zlib.crc32(f"{name} {group}".encode()), group))
    return tuple(sorted(ranked[:DEFAULT_ROUTE_GROUPS]))


def conflict(observed: Observed) -> Verdict | None:
    """Why nothing is asked for, whatever the subject lacks; None if nothing is in the way."""
    wanted, state, name = observed.wanted, observed.state, observed.set_name
    if state is not None:
        elsewhere = sorted(
            observed.foreign_groups.intersection(each.broker_group for each in state.partitions)
        )
        if elsewhere:
            text = (
                f"the subject {state.name} belongs to another set of the same controllers, and has partitions"
                f" on {', '.join(elsewhere)}; create another Subject, with another spec.subject"
            )
            return Verdict(False, claim_reasons.NAME_TAKEN, text)
        if state.order_strategy is not wanted.order:
            text = (
                f"the subject {state.name} is there already, and is {state.order_strategy}, not"
                f" {wanted.order}; delete it with `brokerset subject delete`, or create another Subject"
            )
            return Verdict(False, reasons.ORDER_DIFFERS, text)
    unknown = sorted(set(wanted.spec.route) - set(observed.set_groups))
    if unknown:
        have = ", ".join(observed.set_groups)
        text = f"BrokerSet {name} has no group {', '.join(unknown)}, only {have}; correct spec.route"
        return Verdict(False, reasons.GROUP_UNKNOWN, text)
    return None


def decide_deletion(observed: Observed) -> bool:
    """Whether the subject goes with its object: not when it is another one than the manifest's."""
    if observed.state is None or observed.wanted.spec.deletion_policy != "Delete":
        return False
    return (found := conflict(observed)) is None or found.reason == reasons.GROUP_UNKNOWN


def judge(observed: Observed, refusal: str | None = None) -> Verdict:
    """What to say of a subject, after the request; `refusal` is why controllers did not do it."""
    if (found := conflict(observed)) is not None:
        return found
    if refusal is not None:
        return Verdict(False, reasons.REFUSED_BY_CONTROLLERS, refusal, REFUSED_SECONDS, refusal)
    state = observed.state
    if state is None:
        text = f"no group of BrokerSet {observed.set_name} has a living master, so there is none to choose"
        return Verdict(False, claim_reasons.NO_MASTER, text, WAIT_SECONDS)
    progress = progress_of(observed)
    if progress.scaling:
        return Verdict(False, reasons.PARTITIONS_WAIT, progress.message, SCALING_SECONDS)
    if (missing := _missing(observed, state)) is not None:
        text = f"has {missing.before} partitions, and is about to get {missing.partitions}"
        return Verdict(False, reasons.PARTITIONS_WAIT, text, SCALING_SECONDS)
    return _judge_open(observed, state)


def _judge_open(observed: Observed, state: SubjectState) -> Verdict:
    places = [each.broker_group for each in newest(state)]
    leaving = sorted(set(places) - set(observed.set_groups))
    if leaving:
        text = (
            f"has partitions on {', '.join(leaving)}, which BrokerSet {observed.set_name} does not list any"
            f" more; give spec.route with groups that stay, of {', '.join(observed.set_groups)}"
        )
        return Verdict(False, reasons.GROUP_LEAVES, text, WAIT_SECONDS)
    if state.problems:
        return Verdict(False, reasons.IMPAIRED, _joined(state.problems), WAIT_SECONDS)
    return Verdict(
        True, claim_reasons.AS_WANTED, f"{len(places)} partitions take messages, on {counted(places)}"
    )


def progress_of(observed: Observed) -> Progress:
    """Whether partitions are on their way, and for whom they wait."""
    state = observed.state
    if state is None or not is_scaling(state):
        return Progress(False, reasons.SETTLED, "no partition is on its way")
    sealing = with_status(state, PartitionStatus.SEALING)
    text = f"{open_count(state)} of {len(newest(state))} partitions of generation {state.generation} are open"
    if sealing:
        places = counted(each.broker_group for each in sealing)
        text += f"; not yet closed are older ones on {places}"
    if state.problems:
        text += f": {_joined(state.problems)}"
    missing = None if conflict(observed) is not None else _missing(observed, state)
    if missing is not None:
        where = f" on {', '.join(missing.route)}" if missing.route else ""
        return Progress(True, reasons.NEXT_WAITS, f"{text}; then come {missing.partitions} partitions{where}")
    return Progress(True, reasons.SEALING if sealing else reasons.OPENING, text)


def _joined(problems: tuple[str, ...]) -> str:
    shown = "; ".join(problems[:PROBLEMS_SHOWN_MAX])
    more = len(problems) - PROBLEMS_SHOWN_MAX
    return f"{shown}; and {more} more" if more > 0 else shown
