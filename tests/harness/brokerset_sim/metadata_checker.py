"""Judges the metadata of a broker group from outside: what clients were told is stored, and what tables say.

Each key (a topic, a group, an offset) is a register. A change of it begins when its client asks and ends when
its client is told; one that a client was never told of (no answer, or a refusal, which may come too late) has
no end: it may come about at any time. What a key may be: the value of each change that no other one has
surely replaced, that is, one that began after it had ended, and was told. A change that an election was
recorded to have lost, maybe, replaces nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from brokerset_sim.history import Violation

KEPT = "13 metadata that a client was told is stored survives"
TABLES_SAME = "13 replicas have the same metadata"

Key = tuple[str, ...]
"""("topic", name), ("group", name) or ("offset", topic, group, queue)."""


@dataclass(slots=True, eq=False)
class Change:
    """What one client wants."""

    number: int
    keys: tuple[Key, ...]
    value: int | None
    """None: it shall be gone."""

    begun: float
    ended: float | None = None
    """When its client was told that it is stored."""

    epoch: int = 0
    """Of the master that said so."""

    end: int = 0
    """Its records lie below this offset of the log."""

    lost: bool = False

    @property
    def counts(self) -> bool:
        """Whether it must not be lost."""
        return self.ended is not None and not self.lost


@dataclass(frozen=True, slots=True)
class _Promise:
    epoch: int
    end: int


class MetadataChecker:
    """The checker of one group."""

    def __init__(self, name: str, counts: Counter[str], *, echo_seconds: float = 0.0) -> None:
        """Within `echo_seconds` a request may be carried out once more: the network has doubled it."""
        self.name = name
        self._counts = counts
        self._echo_seconds = echo_seconds
        self._changes: dict[Key, list[Change]] = {}
        self._deletions: dict[str, list[Change]] = {}
        self._promises: dict[int, _Promise] = {}
        self._client_answered: dict[int, Change] = {}
        self._losses: list[tuple[int, int]] = []

    # -- clients ------------------------------------------------------------------------------------------

    def begin(self, number: int, key: Key, value: int | None, now: float) -> Change:
        """A client asks for a change; a topic that is deleted takes its offsets along."""
        keys = [key]
        if key[0] == "topic" and value is None:
            keys += [other for other in self._changes if other[0] == "offset" and other[1] == key[1]]
        change = Change(number, tuple(keys), value, now)
        for each in keys:
            self._of(each).append(change)
        if len(keys) > 1 or (key[0] == "topic" and value is None):
            self._deletions.setdefault(key[1], []).append(change)
        return change

    def _of(self, key: Key) -> list[Change]:
        found = self._changes.get(key)
        if found is None:
            found = self._changes[key] = [Change(0, (key,), None, -1.0, -1.0)]
            if key[0] == "offset":
                found += [each for each in self._deletions.get(key[1], ()) if each.ended is None]
        return found

    def promised(self, number: int, epoch: int, end: int) -> None:
        """A broker says that a change is stored, in records below `end`; the first who says so counts."""
        self._promises.setdefault(number, _Promise(epoch, end))

    def client_answered(self, change: Change, now: float) -> None:
        """A client was told that its change is stored."""
        promise = self._promises.get(change.number)
        if promise is None:
            raise Violation(KEPT, f"{self.name}: {change} was told, and no master said so")
        change.ended, change.epoch, change.end = now, promise.epoch, promise.end
        change.lost = any(self._may_lose(change, *loss) for loss in self._losses)
        self._client_answered[change.number] = change
        self._counts["metadata told"] += 1

    # -- losses -------------------------------------------------------------------------------------------

    def loss_recorded(self, epoch: int, from_offset: int) -> None:
        """The election of `epoch` may have lost what lies at and behind `from_offset`."""
        self._losses.append((epoch, from_offset))
        for change in self._client_answered.values():
            if self._may_lose(change, epoch, from_offset):
                change.lost = True

    @staticmethod
    def _may_lose(change: Change, epoch: int, from_offset: int) -> bool:
        return change.epoch < epoch and change.end > from_offset

    # -- tables -------------------------------------------------------------------------------------------

    def check(self, who: str, value: Callable[[Key], int | None], keys: Iterable[Key] | None = None) -> None:
        """A master's tables: of all keys, or of some."""
        for key in list(self._changes) if keys is None else keys:
            found = value(key)
            allowed = self._allowed(key)
            if found not in allowed:
                raise Violation(
                    KEPT,
                    f"{self.name}: {who} has {found} for {key}; it may be {allowed}: {self._changes[key]}",
                )
        if keys is None:
            self._counts["metadata of a master checked"] += 1

    def _allowed(self, key: Key) -> list[int | None]:
        changes = self._changes[key]
        newest = max((each.begun for each in changes if each.counts), default=-1.0)
        echo = self._echo_seconds
        return [each.value for each in changes if each.ended is None or each.ended + echo >= newest]

    def same(self, who: str, tables: Mapping[str, object], other: str, others: Mapping[str, object]) -> None:
        """Two replicas that have applied everything have the same tables."""
        self._counts["metadata compared"] += 1
        for name, table in tables.items():
            if others[name] != table:
                raise Violation(
                    TABLES_SAME, f"{self.name}: {name} of {who} are {table}, of {other} {others[name]}"
                )
