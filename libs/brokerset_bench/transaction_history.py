"""Transactions of one run, and whether what their producer was promised still holds.

Events besides those of `event_log`:

* `half` {id, commits, broker}: a half message left; `commits` says what its producer wants.
* `halfAck` {id, broker}: the broker stored it.
* `giveUp` {id, why}: no acknowledgement came. From here on its producer wants it rolled back, and says so
  when it is asked.
* `end` {id, commits, broker}: the producer ended the transaction, unasked or asked.
* `endAck` {id, commits, broker}: the broker has done that.
* `asked` {id, broker}: the broker asked how the transaction ended.

A message that is there twice is counted, and is no violation: a commit whose answer was lost is made again
when the broker asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerset_bench.event_log import Broken, EventLog, MessageVerdict, Places, Subject


class TransactionHistory(EventLog):
    """Events of transactions, and what the producer needs to know of them while they run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(Subject.TRANSACTIONS, clock)
        self.wanted: dict[int, bool] = {}
        """By number, whether the producer wants it committed."""

        self._stored: set[int] = set()

    @property
    def owed(self) -> int:
        """Messages that were stored and are to be committed, and that the consumer has not got yet."""
        return sum(self.wanted[number] for number in self._stored if number not in self.seen)

    def is_stored(self, number: int) -> bool:
        """Whether the half message was acknowledged."""
        return number in self._stored

    def half(self, number: int, broker: str, *, commits: bool) -> None:
        """A half message leaves now."""
        self.wanted[number] = commits
        self.add("half", id=number, commits=commits, broker=broker)

    def half_acked(self, number: int, broker: str) -> None:
        """It was stored."""
        self._stored.add(number)
        self.add("halfAck", id=number, broker=broker)

    def given_up(self, number: int, why: str) -> None:
        """No acknowledgement came: it is to be rolled back."""
        self.wanted[number] = False
        self.add("giveUp", id=number, why=why)

    def ended(self, number: int, broker: str, *, commits: bool) -> None:
        """The producer ends it now."""
        self.add("end", id=number, commits=commits, broker=broker)

    def end_acked(self, number: int, broker: str, *, commits: bool) -> None:
        """The broker has ended it."""
        self.add("endAck", id=number, commits=commits, broker=broker)

    def asked(self, number: int, broker: str) -> None:
        """The broker asks how it ended."""
        self.add("asked", id=number, broker=broker)


@dataclass(slots=True)
class _Transaction:
    commits: bool
    stored: bool = False
    committed_at: float | None = None
    """When its producer first said so."""

    commit_acked: bool = False
    rolled_back: bool = False


@dataclass(slots=True)
class _Judge:
    verdict: MessageVerdict = field(default_factory=MessageVerdict)
    transactions: dict[int, _Transaction] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "half":
            self.transactions[int(event["id"])] = _Transaction(bool(event["commits"]))
            return
        if kind not in ("halfAck", "giveUp", "end", "endAck", "asked"):
            return
        one = self.transactions[int(event["id"])]
        match kind:
            case "halfAck":
                one.stored = True
            case "giveUp":
                one.commits = False
                one.rolled_back = True
                self.verdict.counts["failed"] += 1
            case "end" if event["commits"]:
                one.committed_at = float(event["t"]) if one.committed_at is None else one.committed_at
            case "end":
                one.rolled_back = True
            case "endAck" if event["commits"]:
                one.commit_acked = True
            case "asked":
                self.verdict.counts["asked"] += 1

    def finish(self, places: Places) -> None:
        verdict, found = self.verdict, places.judge(self.transactions)
        counts = verdict.counts
        for number, one in self.transactions.items():
            counts["halves"] += one.stored
            counts["committed"] += one.commit_acked
            counts["rolledBack"] += one.rolled_back and one.stored
            if one.commit_acked and not found[number] and places.scanned:
                verdict.broken(
                    Broken.LOST, f"the commit of {number} was acknowledged; it is nowhere at the end"
                )
            elif one.stored and one.commits and not found[number] and places.scanned:
                verdict.broken(
                    Broken.UNSETTLED,
                    f"half message {number} was acknowledged and is to be committed; it is nowhere",
                )
            self._judge_sight(number, one, places.first.get(number), found[number])

    def _judge_sight(self, number: int, one: _Transaction, seen: float | None, places: int) -> None:
        if seen is None and not places:
            return
        if one.committed_at is None:
            how = Broken.ROLLED_BACK_VISIBLE if one.rolled_back else Broken.HALF_VISIBLE
            self.verdict.broken(how, f"message {number} is visible, and nobody committed it")
        elif seen is not None and seen < one.committed_at:
            self.verdict.broken(
                Broken.HALF_VISIBLE,
                f"message {number} was consumed {one.committed_at - seen:.3f} s before its commit left",
            )


def check(events: Iterable[Mapping[str, Any]]) -> MessageVerdict:
    """Judge a history of transactions. Events of one time keep their order.

    Raises `KeyError`, `TypeError` or `ValueError` for an event that is none of those above.
    """
    judge = _Judge()
    places = Places(judge.verdict)
    for event in sorted(events, key=lambda event: float(event["t"])):
        judge.take(event)
        places.take(event)
    judge.finish(places)
    return judge.verdict
