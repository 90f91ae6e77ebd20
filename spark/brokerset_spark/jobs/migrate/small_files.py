"""The small files of a target: checkpoint, epochs, identity, configuration and progress, timers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from brokerset_formats import fastjson
from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.epochs import EpochHistory, encode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.migrate import source as sources
from brokerset_spark.jobs.migrate import timers
from brokerset_spark.jobs.migrate.cloning import described, write_file
from brokerset_spark.jobs.migrate.config_files import FOLDER, ConfigChange, unread
from brokerset_spark.jobs.migrate.options import MigrateOptions
from brokerset_spark.jobs.migrate.plan import Way
from brokerset_spark.jobs.migrate.selecting import Selection
from brokerset_spark.jobs.migrate.source import Source
from brokerset_spark.jobs.migrate.staging import Staging
from brokerset_spark.jobs.migrate.tallies import Queue
from brokerset_spark.jobs.report import Finding, JobFailed, Level, Report
from brokerset_spark.stores.folder import read_all

_HOLDS_OFFSETS: Final = {
    "batchconsumequeue": "queues of inner batches (queue.type=BatchCQ)",
    "consumequeue_ext": "extended consume queues (enableConsumeQueueExt)",
}
"""Folders with offsets of the log that a rewrite would make wrong."""

_COMPACTION: Final = "compaction"
_LMQ_PREFIX: Final = "%LMQ%"


def check_kind(source: Source, way: Way) -> None:
    """JobFailed for stores with something that cannot be rewritten; copied it can be."""
    if way.copies:
        return
    found = [kind for folder, kind in _HOLDS_OFFSETS.items() if sources.tree(source, folder)]
    if any(topic.startswith(_LMQ_PREFIX) for topic, _ in source.queue_ends):
        found.append("light message queues (enableLmq)")
    if source.folder.folders(_COMPACTION):
        found.append("compaction topics")
    if found:
        raise JobFailed(
            f"{source.root}: {', '.join(found)} cannot be rewritten",
            "delete these topics with the broker first, or choose a migration that copies files",
        )


class SmallFiles:
    """Writes them."""

    def __init__(
        self,
        source: Source,
        options: MigrateOptions,
        way: Way,
        selection: Selection,
        staging: Staging,
        report: Report,
    ) -> None:
        self._source, self._options, self._way = source, options, way
        self._selection, self._staging, self._report = selection, staging, report

    def write(
        self,
        *,
        epochs: EpochHistory | None,
        end: int,
        last_stored: int,
        firsts: Mapping[Queue, int],
        ends: Mapping[Queue, int],
        clone: Callable[[str, list[str]], None],
    ) -> None:
        """All of them; `clone` copies files of the source as they are."""
        made = [
            self._put("checkpoint", _checkpoint(last_stored, end, self._options, epochs is not None).encode())
        ]
        if epochs is not None:
            made.append(self._put("epochFileCheckpoint", encode_epoch_file(epochs)))
        if epochs is not None and self._options.identity is not None:
            made.append(self._put("brokerIdentity", self._options.identity.encode()))
        self._staging.do("small-files", {}, made)
        self._write_config(end, firsts, ends, clone)
        self._copy_others(clone)

    def _put(self, name: str, data: bytes) -> dict[str, Any]:
        path = self._staging.store / name
        write_file(path, [data])
        return described(str(self._staging.root), path)

    def _write_config(
        self,
        end: int,
        firsts: Mapping[Queue, int],
        ends: Mapping[Queue, int],
        clone: Callable[[str, list[str]], None],
    ) -> None:
        """Unchanged files with their times and backups; of changed ones no backup, which would be the old
        content."""
        cut_behind = self._selection.end < sources.NO_END
        change = ConfigChange(
            self._selection.chooses, ends if cut_behind else {}, None if self._way.copies else end
        )
        source = self._source
        unchanged, made = [], []
        listed = sources.tree(source, FOLDER)
        changed_names = set()
        for path in listed:
            name = path.rpartition("/")[2]
            data = read_all(source.folder, path)
            if data is None or path.endswith((".bak", ".tmp")):
                continue
            if self._options.drop_timers and path == timers.CHECK and not self._way.copies:
                new = data[:8] + bytes(8) + data[16:]  # nothing of the timer log is left
            else:
                new = self._changed(change, path, name, data)
            if new == data:
                unchanged.append(path)
            else:
                changed_names.add(path)
                made.append(self._put(path, new))
        unchanged += [
            path
            for path in listed
            if path.endswith(".bak") and path.removesuffix(".bak") not in changed_names
        ]
        self._staging.do("config-changed", {}, made)
        clone("config", sorted(unchanged))
        counters = self._report.counters
        counters["topicsDropped"] = change.topics_dropped
        counters["offsetsDropped"] = change.offsets_dropped
        counters["offsetsLowered"] = change.offsets_lowered
        if self._selection.start > source.first:
            self._report_unread(firsts)

    def _changed(self, change: ConfigChange, path: str, name: str, data: bytes) -> bytes:
        if path.count("/") > 1:
            return data
        try:
            return change.change(name, data)
        except FormatError as error:
            raise JobFailed(f"{self._source.root}/{path}: {error}", "repair or remove that file") from error

    def _report_unread(self, firsts: Mapping[Queue, int]) -> None:
        """Say whether groups lose messages that they have not consumed."""
        data = read_all(self._source.folder, f"{FOLDER}/consumerOffset.json")
        content = fastjson.loads(data) if data else {}
        lost = unread(content.get("offsetTable") or {}, firsts)
        if lost:
            text = (
                f"in {lost} queues a group has not consumed all messages that are left out;"
                " it goes on with the first that is there"
            )
            self._report.add(Finding("unread-dropped", Level.WARNING, text, str(self._source.root)))

    def _copy_others(self, clone: Callable[[str, list[str]], None]) -> None:
        """Whatever else lies in the store. A rewrite takes nothing whose content it does not know."""
        files, folders = sources.other_entries(self._source)
        left = [name for name in folders if name not in (FOLDER, timers.LOG)]
        if self._way.copies:
            paths = [path for name in [*left, timers.LOG] for path in sources.tree(self._source, name)]
            clone("others", sorted([*files, *paths]))
            return
        wheel = [path for path in files if path == timers.WHEEL and not self._options.drop_timers]
        clone("others", wheel)
        unknown = [path for path in files if path != timers.WHEEL]
        unknown += [name for name in left if not sources.is_idle(self._source, name)]
        if unknown:
            text = f"not taken over, because their content may name old offsets: {', '.join(sorted(unknown))}"
            self._report.add(Finding("left-out", Level.INFO, text, str(self._source.root)))


def _checkpoint(last_stored: int, end: int, options: MigrateOptions, in_group: bool) -> StoreCheckpoint:
    """Everything is on the disk."""
    return StoreCheckpoint(
        physic_msg_timestamp=last_stored,
        logics_msg_timestamp=last_stored,
        index_msg_timestamp=last_stored if options.index else 0,
        confirm_phy_offset=end if in_group else 0,
    )
