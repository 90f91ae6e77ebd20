"""What a stream reads: groups of brokers, each from any of its replicas.

The key of a group in a stream's offset is `group:CLUSTER/BROKER`, so a checkpoint survives the loss of a
replica and new addresses. A store that does not say whose it is has its URL as key, as all stores had in
older checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from brokerset_spark.sources.options import Replicas
from brokerset_spark.sources.plan import expand, opened_store
from brokerset_spark.sources.replicas import (
    ADVICE,
    ReplicasGiven,
    StoreReach,
    group_replicas,
    observed,
    same_log,
)
from brokerset_spark.sources.stream_positions import SUFFIX, places

PAUSE_FACTOR: Final = 10
PAUSE_MAX_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A group, or a store that does not say whose it is."""

    key: str
    """In offsets of the stream."""

    urls: tuple[str, ...]
    """Its replicas that can be opened, the one that reaches furthest first."""


@dataclass(frozen=True, slots=True)
class StreamSources:
    """All that a stream can read now."""

    found: tuple[StreamSource, ...] = ()
    missing: tuple[OSError, ...] = ()
    """Stores that cannot be opened; whose they are is not known."""

    def keyed(self, offsets: Mapping[str, Any]) -> dict[str, Any]:
        """Offsets with the keys of these sources: those of older checkpoints are URLs of replicas."""
        found = dict(offsets)
        for source in self.found:
            for url in source.urls:
                if url != source.key and url in found:
                    place, mark = found.pop(url), found.pop(url + SUFFIX, None)
                    if source.key not in found:
                        found |= {source.key: place} | ({source.key + SUFFIX: mark} if mark else {})
        return found

    def covers(self, offsets: Mapping[str, Any]) -> bool:
        """Whether each group of a stream has a replica here."""
        return places(self.keyed(offsets)).keys() <= {each.key for each in self.found}

    def without(self, url: str, error: OSError) -> StreamSources:
        """The same, where this replica cannot be read now; it stays where it is the only one."""
        found = [
            replace(each, urls=tuple(other for other in each.urls if other != url) or each.urls)
            for each in self.found
        ]
        return StreamSources(tuple(found), (*self.missing, error))


@dataclass(slots=True)
class Pause:
    """Until stores that cannot be opened are tried again: a machine that does not answer takes minutes to say
    so, and must not do that to each batch of a stream that has other replicas."""

    until: float = 0.0
    """Of `time.monotonic`."""

    def begin(self, since: float) -> None:
        """After an attempt that began then: the longer it took, the longer the pause."""
        now = time.monotonic()
        self.until = now + min(PAUSE_MAX_SECONDS, PAUSE_FACTOR * (now - since))

    @property
    def over(self) -> bool:
        """Whether they may be tried."""
        return time.monotonic() >= self.until


def key_of(store: StoreReach) -> str:
    """The key of a store's group."""
    return f"group:{store.group[0]}/{store.group[1]}" if store.group is not None else store.url


def there_now(paths: tuple[str, ...]) -> tuple[list[str], list[OSError]]:
    """Stores behind paths and patterns, and what is missing of them."""
    urls: list[str] = []
    missing: list[OSError] = []
    for path in paths:
        try:
            urls += expand((path,))
        except OSError as error:
            missing.append(error)
    return list(dict.fromkeys(urls)), missing


def find_sources(paths: tuple[str, ...], mode: Replicas) -> StreamSources:
    """Groups among the stores.

    ReplicasGiven as for a query, and for replicas that do not say whose they are: their offsets would
    belong to one store.
    """
    urls, missing = there_now(paths)
    with ExitStack() as stack:
        opened = {}
        for url in urls:
            try:
                opened[url] = stack.enter_context(opened_store(url))
            except OSError as error:
                missing.append(error)
        if mode == "all":
            return StreamSources(tuple(StreamSource(url, (url,)) for url in opened), tuple(missing))
        stores = [observed(url, *each) for url, each in opened.items()]
        groups = group_replicas(
            stores,
            lambda one, other: same_log(opened[one.url], opened[other.url], min(one.end, other.end)),
            mode,
        )
    return StreamSources(tuple(_source(each) for each in groups), tuple(missing))


def _source(group: Sequence[StoreReach]) -> StreamSource:
    ordered = sorted(group, key=lambda each: (-each.end, each.first))
    named = next((each for each in ordered if each.group is not None), None)
    if named is None and len(ordered) > 1:
        raise ReplicasGiven(
            f"{ordered[0].url} and {ordered[1].url} are replicas of one log, and do not say of which group. "
            f"{ADVICE}"
        )
    return StreamSource(key_of(named or ordered[0]), tuple(each.url for each in ordered))
