"""What goes into an archive. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from brokerset_formats.epochs import END_UNBOUNDED, EpochEntry, EpochHistory
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.stores.archives import MANIFEST, ArchiveManifest
from brokerset_spark.stores.layout import LogFile, StoreFacts

SETTINGS: Final = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
"""Files of `config/` that a restored store needs."""

_OF_BROKERS: Final = frozenset({"checkpoint", "abort", "lock"})
_FOLDERS_OF_BROKERS: Final = ("consumequeue/", "batchconsumequeue/", "index/")
"""What brokers write beside their log, and an archive never has."""

ADVICE: Final = "give another target: one archive is for one group and one log"


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What is to be done."""

    wanted: tuple[LogFile, ...]
    """Files to be copied."""

    known: tuple[LogFile, ...]
    """Files that the archive has."""

    end: int
    """Up to where the log will be archived."""


def sealed_files(facts: StoreFacts, bound: int) -> tuple[LogFile, ...]:
    """Files of the log of which no byte is written any more, as everything in them is confirmed.

    `bound` is how far the store may be read. A checkpoint that confirms less is believed: what is behind
    may be truncated when the broker joins its group again.
    """
    if facts.checkpoint is not None and facts.checkpoint.confirm_phy_offset > 0 and not facts.ledger.files:
        bound = min(bound, facts.checkpoint.confirm_phy_offset)
    return tuple(file for log, _ in facts.logs for file in log.files if file.size and file.end <= bound)


def plan_archive(
    sealed: tuple[LogFile, ...], manifest: ArchiveManifest, lost: Container[str] = ()
) -> ArchivePlan:
    """Which files must be copied: also those that the archive has `lost`.

    JobFailed if it has another file under the same name.
    """
    wanted: list[LogFile] = []
    known: list[LogFile] = []
    for file in sealed:
        there = manifest.find(file.path)
        if there is not None and there.size != file.size:
            raise JobFailed(f"{file.path} has {file.size} bytes, and {there.size} in the archive", ADVICE)
        (wanted if there is None or file.path in lost else known).append(file)
    return ArchivePlan(tuple(wanted), tuple(known), sealed[-1].end if sealed else 0)


def log_end(manifest: ArchiveManifest) -> int:
    """Up to where an archive has the log; 0 if it has nothing of it."""
    return max((int(each.path[-20:]) + each.size for each in manifest.files if is_log(each.path)), default=0)


def is_log(path: str) -> bool:
    """Whether it is a file of the log, by its path in an archive."""
    return path[-20:].isdigit() and "/index/" not in path


def check_target(url: str, paths: Iterable[str]) -> None:
    """JobFailed if the target is a broker's store, whose log would be written over."""
    found = set(paths)
    if MANIFEST in found:
        return
    foreign = sorted(each for each in found if each in _OF_BROKERS or each.startswith(_FOLDERS_OF_BROKERS))
    if foreign:
        raise JobFailed(f"{url} is a store: it has {foreign[0]}", "give an empty place, or an archive")


def check_owner(manifest: ArchiveManifest, cluster: str | None, broker: str | None) -> ArchiveManifest:
    """The manifest with its owner; JobFailed if the archive is another group's."""
    for ours, theirs in ((cluster, manifest.cluster_name), (broker, manifest.broker_name)):
        if ours is not None and theirs is not None and ours != theirs:
            said = f"the archive is of {manifest.cluster_name}/{manifest.broker_name}"
            raise JobFailed(f"{said}, the store of {cluster}/{broker}", ADVICE)
    return replace(
        manifest,
        cluster_name=manifest.cluster_name or cluster,
        broker_name=manifest.broker_name or broker,
    )


def archived_epochs(history: EpochHistory, end: int, earlier: Sequence[tuple[int, int]] = ()) -> EpochHistory:
    """The epochs that begin in what is archived, also `earlier` ones that the store has no longer."""
    first = history.entries[0].epoch if history.entries else END_UNBOUNDED
    kept = [EpochEntry(epoch, start) for epoch, start in earlier if epoch < first]
    found = [*kept, *history.entries]
    return EpochHistory(tuple(each for each in found if each.start_offset < end))
