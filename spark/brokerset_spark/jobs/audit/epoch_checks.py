"""What the epochs of several replicas say of each other. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from brokerset_spark.jobs.audit.controller_view import ControllerView
from brokerset_spark.jobs.audit.epoch_facts import EPOCH_BACKUP, EPOCH_FILE
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.audit.truncations import cut_between, histories
from brokerset_spark.jobs.report import Finding, Level


def check_epochs(maps: Sequence[ReplicaMap], view: ControllerView | None) -> Iterator[Finding]:
    """Findings `epoch-file`, `-order`, `-start`, `-missing`, `-ahead`, `-boundary`."""
    for each in maps:
        yield from _files(each, maps)
        yield from _boundaries(each)
        if view is not None and not each.is_ledger and each.epochs.history.last_epoch > view.master_epoch:
            yield Finding(
                "epoch-ahead",
                Level.ERROR,
                f"{each.name} has epoch {each.epochs.history.last_epoch}, the controllers only know of "
                f"{view.master_epoch}: they lost their data, or the store belongs to another group",
                each.url,
                EPOCH_FILE,
                each.epochs.history.last_start,
            )
    yield from _starts(maps)
    yield from _missing(maps)


def _files(each: ReplicaMap, maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    used = each.epochs.source
    for name, problem in each.epochs.problems:
        saved = name == EPOCH_FILE and used == EPOCH_BACKUP
        yield Finding(
            "epoch-file",
            Level.WARNING if saved else Level.ERROR,
            f"{each.name}: {name} cannot be read: {problem}"
            + ("; its backup is used, which lacks the newest change" if saved else ""),
            each.url,
            name,
        )
    if used == EPOCH_BACKUP and not each.epochs.problems:
        yield Finding(
            "epoch-file",
            Level.WARNING,
            f"{each.name}: {EPOCH_FILE} is missing or empty; its backup is used, which lacks the newest "
            "change",
            each.url,
            EPOCH_FILE,
        )
    others = any(other.epochs.pairs for other in maps if other is not each)
    if (
        used == "none"
        and not each.epochs.problems
        and others
        and each.last > each.first
        and not each.is_ledger
    ):
        yield Finding(
            "epoch-file",
            Level.ERROR,
            f"{each.name} has a log up to {each.last:,} and no epochs: it would follow any master without "
            "cutting what differs. Let it be rebuilt from another replica",
            each.url,
            EPOCH_FILE,
        )
    if each.epochs.disorder:
        yield Finding(
            "epoch-order",
            Level.ERROR,
            f"{each.name}: the epochs are out of order: {each.epochs.disorder}",
            each.url,
            used,
        )


def _boundaries(each: ReplicaMap) -> Iterator[Finding]:
    for start in each.bad_boundaries:
        epoch = next(epoch for epoch, begin in each.epochs.pairs if begin == start)
        yield Finding(
            "epoch-boundary",
            Level.ERROR,
            f"{each.name}: epoch {epoch} starts at {start:,}, where no record begins: the epoch file was "
            "changed, or belongs to another log",
            each.url,
            each.epochs.source,
            start,
        )


def _starts(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    told: dict[int, dict[int, int]] = {}  # epoch -> number of the replica -> start
    for number, each in enumerate(maps):
        for place, (epoch, start) in enumerate(each.epochs.pairs):
            if each.epochs.source == "terms" and place == 0:
                continue  # the log may begin in the middle of the term
            told.setdefault(epoch, {})[number] = start
    for epoch, starts in sorted(told.items()):
        if len(set(starts.values())) < 2:
            continue
        votes = Counter(starts.values()).most_common()
        alone = [number for number, start in starts.items() if start != votes[0][0]]
        sole = alone[0] if len(alone) == 1 and votes[0][1] > votes[1][1] else None
        text = ", ".join(f"{start:,} on {maps[number].name}" for number, start in starts.items())
        yield Finding(
            "epoch-start",
            Level.ERROR,
            f"epoch {epoch} starts at different offsets: {text}. A replica with the wrong one is cut in "
            "the wrong "
            "place when it follows",
            "" if sole is None else maps[sole].url,
            EPOCH_FILE,
            min(starts.values()) if sole is None else starts[sole],
        )


def _missing(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    for number, each in enumerate(maps):
        known = {epoch for epoch, _ in each.epochs.pairs}
        if not known:
            continue
        lacking: dict[tuple[int, int], list[str]] = {}
        for other_number, other in enumerate(maps):
            if other_number == number:
                continue
            point = cut_between(maps, number, other_number).point
            if point is None:
                continue
            _, history = histories(each, other)
            for entry in history.entries:
                if entry.epoch in known or entry.start_offset >= point:
                    continue
                if history.end_of(entry.epoch) <= each.first:
                    continue  # expired with its data
                lacking.setdefault((entry.epoch, entry.start_offset), []).append(other.name)
        for (epoch, start), holders in sorted(lacking.items()):
            yield Finding(
                "epoch-missing",
                Level.WARNING,
                f"{each.name} does not know epoch {epoch}, which starts at {start:,} on "
                f"{', '.join(holders)}, though "
                "its log goes on behind it. Java slaves skip an epoch that fits into one packet",
                each.url,
                each.epochs.source,
                start,
            )
