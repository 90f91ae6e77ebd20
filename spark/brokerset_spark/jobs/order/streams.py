"""Whether the messages of a producer in a queue have the sequences that they must have. Pure.

A `Stream` takes runs of messages in the order of the log. It says what is wrong as `Anomaly`; what is
missing only when nothing more can fill it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

EPOCHS_KEPT: Final = 8
"""Epochs of a producer whose sequences are followed in a queue; of older ones only their records count."""

MISSING_KEPT: Final = 64
"""Ranges of an epoch's sequences that may still come late; of more the oldest counts as missing."""


class Run(NamedTuple):
    """Messages of one producer that follow each other in a queue: sequences grow by one."""

    partition_id: int
    epoch: int
    first: int
    last: int
    first_place: int
    """Queue offset of the first message."""

    last_place: int
    offset: int
    """Of the first message, in the log."""

    time: int
    key: str | None
    """Of the first message, for people; None if it has none, or was not kept."""

    @property
    def messages(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


class Kind(StrEnum):
    """What can be wrong with a producer's messages in a queue."""

    GAP = "order-gap"
    """Sequences that no message has."""

    REPEAT = "order-repeat"
    """Messages that are stored twice."""

    DISORDER = "order-disorder"
    """Messages that stand behind later ones."""

    FENCED = "order-fenced"
    """Messages of an epoch behind those of a newer one."""

    RESTART = "order-restart"
    """The queue begins again: its topic was deleted and made again."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something wrong, and the run that shows it."""

    kind: Kind
    run: Run
    first: int
    """The first sequence concerned."""

    count: int
    """Messages concerned."""

    newer_epoch: int = -1
    """Which epoch was there before; of FENCED only."""


class _Missing(NamedTuple):
    first: int
    end: int
    before: Run
    """The run that begins behind the gap."""


@dataclass(slots=True)
class _Epoch:
    """The sequences of one epoch so far."""

    floor: int
    """From which sequence on messages are known; those before may have expired."""

    following: int
    """The sequence behind the highest one."""

    missing: list[_Missing] = field(default_factory=list)
    forgotten: bool = False
    """Whether a gap is not remembered any more, so that a late message is not surely a repeated one."""


@dataclass(slots=True)
class Stream:
    """One producer in one queue. Memory: `EPOCHS_KEPT` times `MISSING_KEPT` ranges at most."""

    complete: bool
    """Whether everything that the queue ever had is read; else the first messages may have expired."""

    newest: int = -1
    """The highest epoch so far."""

    last_place: int = -1
    epochs: dict[int, _Epoch] = field(default_factory=dict)

    def take(self, run: Run) -> list[Anomaly]:
        """The next messages in the order of the log; what they show."""
        found: list[Anomaly] = []
        if run.first_place <= self.last_place:
            found += [*self.finish(), Anomaly(Kind.RESTART, run, run.first, 1)]
            self.epochs, self.newest, self.complete = {}, -1, True
        self.last_place = run.last_place
        if run.epoch < self.newest:
            found.append(Anomaly(Kind.FENCED, run, run.first, run.messages, self.newest))
        epoch = self.epochs.get(run.epoch)
        if epoch is None:
            if len(self.epochs) >= EPOCHS_KEPT and run.epoch < min(self.epochs):
                return found  # too old to be followed, and reported as fenced
            from_zero = self.complete or -1 < self.newest < run.epoch
            epoch = self.epochs[run.epoch] = _Epoch(*((0, 0) if from_zero else (run.first, run.first)))
            found += self._evicted()
        self.newest = max(self.newest, run.epoch)
        found += _follow(epoch, run)
        return found

    def finish(self) -> list[Anomaly]:
        """Nothing more comes: what is still missing."""
        return [each for epoch in self.epochs.values() for each in _gaps(epoch.missing)]

    def _evicted(self) -> list[Anomaly]:
        if len(self.epochs) <= EPOCHS_KEPT:
            return []
        return _gaps(self.epochs.pop(min(self.epochs)).missing)


def _gaps(missing: list[_Missing]) -> list[Anomaly]:
    return [Anomaly(Kind.GAP, each.before, each.first, each.end - each.first) for each in missing]


def _follow(epoch: _Epoch, run: Run) -> list[Anomaly]:
    found: list[Anomaly] = []
    if run.first > epoch.following:
        epoch.missing.append(_Missing(epoch.following, run.first, run))
    elif run.first < epoch.following:
        found += _late(epoch, run, min(run.last + 1, epoch.following))
    if len(epoch.missing) > MISSING_KEPT:
        found += _gaps([epoch.missing.pop(0)])
        epoch.forgotten = True
    epoch.following = max(epoch.following, run.last + 1)
    return found


def _late(epoch: _Epoch, run: Run, end: int) -> list[Anomaly]:
    """Judge the messages `[run.first, end)`, which stand behind later ones or are there already."""
    disordered, first_disordered, left = 0, run.first, []
    for each in epoch.missing:
        low, high = max(each.first, run.first), min(each.end, end)
        if low >= high:
            left.append(each)
            continue
        first_disordered = low if not disordered else first_disordered
        disordered += high - low
        left += [each._replace(end=low)] if each.first < low else []
        left += [each._replace(first=high)] if high < each.end else []
    epoch.missing = left
    unknown = max(0, min(end, epoch.floor) - run.first)
    repeated = end - run.first - disordered - unknown
    if epoch.forgotten:
        unknown, repeated = unknown + repeated, 0
    found = []
    if disordered + unknown:
        first = run.first if unknown else first_disordered
        found.append(Anomaly(Kind.DISORDER, run, first, disordered + unknown))
    if repeated:
        found.append(Anomaly(Kind.REPEAT, run, run.first, repeated))
    return found
