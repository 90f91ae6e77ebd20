"""Replicas of one group among the stores of a query: each message is there once for each of them.

Who they are tells `brokerIdentity` (or the broker that gives a store out), and where that is missing the log:
two stores with the same record at the same offset are copies. Read is the one that reaches furthest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.sources.options import Replicas
from brokerset_spark.sources.plan import opened_store
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.layout import Log, StoreFacts
from brokerset_spark.stores.owner import owner_of
from brokerset_spark.stores.searching import declared_size
from brokerset_spark.stores.tail import bound_of

_LOG: Final = logging.getLogger("brokerset_spark")

SAMPLE_BYTES: Final = 4096
"""Of a record that two logs are compared by; the rest of a longer one is not looked at."""

ADVICE: Final = "Give one store of each group, or read all of them with replicas=all"


class ReplicasGiven(ValueError):
    """Several replicas of one group, where messages would be given several times, or which is right is not
    known."""


@dataclass(frozen=True, slots=True)
class StoreReach:
    """Whose a store is, as far as it says, and how far it reaches."""

    url: str
    group: tuple[str, str] | None
    """Cluster and broker name, if somebody says so."""

    first: int
    end: int
    """How far it can be read."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return self.end <= self.first


SameLog = Callable[[StoreReach, StoreReach], bool | None]
"""Whether two stores have the same log; None if they have no offset in common."""


def decide_replicas(
    stores: Sequence[StoreReach], same_log: SameLog, mode: Replicas
) -> tuple[list[str], list[str]]:
    """Which stores are read, in their order, and what is to be said about the others. Pure but for
    `same_log`.

    ReplicasGiven with `fail` for two replicas, else for two that say that they are of one group and have
    different logs: no choice among them is right.
    """
    if mode == "all":
        return [each.url for each in stores], []
    kept = group_replicas(stores, same_log, mode)
    chosen = [max(group, key=lambda each: (each.end, -each.first)) for group in kept]
    said = [
        _said(best, [each for each in group if each is not best])
        for best, group in zip(chosen, kept, strict=True)
        if len(group) > 1
    ]
    return [each.url for each in chosen], said


def group_replicas(stores: Sequence[StoreReach], same_log: SameLog, mode: Replicas) -> list[list[StoreReach]]:
    """Stores by their group, in their order; ReplicasGiven as `decide_replicas`."""
    kept: list[list[StoreReach]] = []
    for each in stores:
        for group in kept:
            if _are_replicas(group[0], each, same_log, mode):
                group.append(each)
                break
        else:
            kept.append([each])
    return kept


def _are_replicas(one: StoreReach, other: StoreReach, same_log: SameLog, mode: Replicas) -> bool:
    if one.group is not None and other.group is not None and one.group != other.group:
        return False
    same = same_log(one, other)
    named = one.group is not None and one.group == other.group
    if not named and not same:
        return False
    whose = "/".join(one.group or other.group or ("one log",))
    if mode == "fail":
        raise ReplicasGiven(f"{one.url} and {other.url} are replicas of {whose}. {ADVICE}")
    if same is False:
        raise ReplicasGiven(
            f"{one.url} and {other.url} both say that they are {whose}, and their logs differ: it is not "
            f"known which is right; `brokerset store audit` compares them. {ADVICE}"
        )
    if same is None and not one.empty and not other.empty:
        raise ReplicasGiven(
            f"{one.url} and {other.url} both say that they are {whose}, and their logs have nothing in "
            f"common ({one.first} to {one.end}, {other.first} to {other.end}). {ADVICE}"
        )
    return True


def _said(best: StoreReach, others: Sequence[StoreReach]) -> str:
    names = ", ".join(each.url for each in others)
    whose = "/".join(best.group) if best.group else "one group"
    text = f"{best.url} and {names} are replicas of {whose}"
    text += f": only {best.url} is read, which reaches to {best.end}"
    earlier = min(each.first for each in others)
    if earlier < best.first:
        text += f"; it begins at {best.first}, and what others have before, from {earlier} on, is left out"
    return f"{text} (replicas=all reads all of them)"


def one_of_each(urls: Sequence[str], mode: Replicas) -> list[str]:
    """The stores to read, one replica of each group, with a warning for the others.

    ReplicasGiven as `decide_replicas`. OSError as from stores.
    """
    if len(urls) < 2 or mode == "all":
        return list(urls)
    with ExitStack() as stack:
        opened = {url: stack.enter_context(opened_store(url)) for url in urls}
        stores = [observed(url, *opened[url]) for url in urls]
        found, said = decide_replicas(
            stores,
            lambda one, other: same_log(opened[one.url], opened[other.url], min(one.end, other.end)),
            mode,
        )
    for text in said:
        _LOG.warning("%s", text)
    return found


def observed(url: str, folder: StoreFolder, facts: StoreFacts) -> StoreReach:
    """Whose a store is, and how far it can be read."""
    cluster, broker, _ = owner_of(folder, facts)
    group = (cluster, broker) if cluster and broker else None
    return StoreReach(url, group, facts.first, bound_of(folder, facts, claims=False).offset)


def same_log(
    one: tuple[StoreFolder, StoreFacts], other: tuple[StoreFolder, StoreFacts], end: int
) -> bool | None:
    """Whether the first and the newest record that begins a file of `one` is in `other`, below `end`; None if
    nothing is there to compare."""
    found: bool | None = None
    for entries in (False, True):
        mine, theirs = (each.ledger if entries else each.commit_log for _, each in (one, other))
        bases = [file.base for file in mine.files if file.base < end and theirs.at(file.base) is not None]
        for base in dict.fromkeys((*bases[:1], *bases[-1:])):
            a, b = _sample(one[0], mine, base, end, entries), _sample(other[0], theirs, base, end, entries)
            if not a.any() and not b.any():
                continue
            if not np.array_equal(a, b):
                return False
            found = True
    return found


def _sample(folder: StoreFolder, log: Log, offset: int, end: int, entries: bool) -> Bytes:
    file = log.at(offset)
    assert file is not None, "the offset is in a file"
    room = min(SAMPLE_BYTES, end - offset, file.end - offset)
    data = np.empty(room, np.uint8)
    data = data[: folder.read_into(file.path, offset - file.base, data.data)]
    return data[: declared_size(data, 0, entries)] if len(data) > 8 else data
