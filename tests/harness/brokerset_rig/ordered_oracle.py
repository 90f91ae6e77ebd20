"""Judges what consumers of an ordered subject did, from the outside: nothing of the product's own books is read.

Consumers write one line when they begin a message and one when they have handled it, all into one file, so that the
order of the lines is the order of what happened. What a handler would write elsewhere carries its fencing token, and
is refused when a higher one was seen for its key: so is a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Message = tuple[str, int]
"""Key, and number among those of its key, from 0."""

SHOWN_MAX = 10
"""Problems of a kind that are written out."""


@dataclass(frozen=True, slots=True)
class Act:
    """One line of a consumer."""

    what: str
    """`begin` or `end`."""

    key: str
    number: int
    """Of the message among those of its key, from 0."""

    token: int
    """Ownership epoch of the handler."""

    session: str


def read_act(line: str) -> Act:
    """The act in a line that `write_act` made."""
    what, key, number, token, session = line.split()
    return Act(what, key, int(number), int(token), session)


def write_act(act: Act) -> str:
    """One line, with its end."""
    return f"{act.what} {act.key} {act.number} {act.token} {act.session}\n"


@dataclass(slots=True)
class Verdict:
    """What was found."""

    handled: int = 0
    """Messages that were handled at least once."""

    repeated: int = 0
    """Further handlings: allowed, as a handler that ended may not have been acknowledged."""

    refused: int = 0
    """Late acts of owners that had been replaced, refused by their tokens."""

    disordered: int = 0
    """First handlings after that of a later message of the key, where no order is promised."""

    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> None:
        """Count a problem, and write out the first ones of its kind."""
        self.kinds[kind] += 1
        if self.kinds[kind] <= SHOWN_MAX:
            self.problems.append(f"{kind}: {text}")


def judge(acts: Iterable[Act], sent: Mapping[str, int]) -> Verdict:
    """Compare the acts with what was sent: by key the number of messages, which have the numbers from 0 on.

    * lost: a message that was sent is never handled
    * disorder: the first handlings of a key are not in the order of its messages
    * overtaken: a message begins although an earlier one of its key is not handled (Strict)
    * doubled: a message begins while another one of its key is being handled by a newer or the same owner
    """
    verdict = Verdict()
    tokens: dict[str, int] = {}
    done: dict[str, set[int]] = {key: set() for key in sent}
    running: dict[str, Act] = {}
    for act in acts:
        if act.key not in done:
            verdict.add("unknown", f"{act.key} was never sent")
            continue
        if act.token < tokens.get(act.key, 0):
            verdict.refused += 1
            continue
        tokens[act.key] = act.token
        handled = done[act.key]
        if act.what == "begin":
            other = running.get(act.key)
            if other is not None and other.token == act.token and other.number != act.number:
                verdict.add("doubled", f"{act} begins while {other} runs")
            running[act.key] = act
            if act.number > len(handled):
                verdict.add("overtaken", f"{act} begins, {len(handled)} of its key are handled")
            continue
        running.pop(act.key, None)
        if act.number in handled:
            verdict.repeated += 1
        elif act.number != len(handled):
            verdict.add("disorder", f"{act} is handled, {len(handled)} of its key were before")
            handled.add(act.number)
        else:
            handled.add(act.number)
    for key, count in sent.items():
        missing = sorted(set(range(count)) - done[key])
        if missing:
            verdict.add("lost", f"{len(missing)} of {count} of {key}, the first is {missing[0]}")
    verdict.handled = sum(len(each) for each in done.values())
    return verdict


def judge_unordered(
    acts: Iterable[Act], sent: Mapping[str, int], unconfirmed: Collection[Message] = ()
) -> Verdict:
    """Compare the acts of a Shared group, or of a BestTried subject, with what was sent: none is lost.

    Messages may have another order, which is counted. Those whose sends failed may be handled or not.
    """
    verdict = Verdict()
    handled: set[Message] = set()
    highest: dict[str, int] = {}
    for act in acts:
        if act.what != "end":
            continue
        message = act.key, act.number
        if act.number >= sent.get(act.key, 0):
            verdict.add("unknown", f"{act.key} {act.number} was never sent")
        elif message in handled:
            verdict.repeated += 1
        else:
            handled.add(message)
            if act.number < highest.get(act.key, 0):
                verdict.disordered += 1
            highest[act.key] = max(act.number, highest.get(act.key, 0))
    for key, count in sent.items():
        for number in range(count):
            if (key, number) not in handled and (key, number) not in unconfirmed:
                verdict.add("lost", f"{key} {number}")
    verdict.handled = len(handled)
    return verdict


def judge_stored(queues: Iterable[Sequence[tuple[str, int]]], sent: Mapping[str, int]) -> Verdict:
    """Compare what the queues of a subject hold, each as keys and numbers in queue order, with what was sent."""
    verdict = Verdict()
    seen: dict[str, set[int]] = {key: set() for key in sent}
    for queue in queues:
        last: dict[str, int] = {}
        for key, number in queue:
            if number in seen.setdefault(key, set()):
                verdict.add("stored twice", f"{key} {number}")
            if number < last.get(key, -1):
                verdict.add("stored in disorder", f"{key} {number} after {last[key]}")
            seen[key].add(number)
            last[key] = number
    for key, numbers in seen.items():
        if missing := set(range(sent.get(key, 0))) - numbers:
            verdict.add("not stored", f"{len(missing)} of {key}, the first is {min(missing)}")
    verdict.handled = sum(len(each) for each in seen.values())
    return verdict
