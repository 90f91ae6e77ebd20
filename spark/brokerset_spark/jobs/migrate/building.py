"""The steps of a migration on the driver, one after the other; each asks the staging folder what is done
already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.epochs import EpochHistory
from brokerset_spark.jobs.dispatch import parse_delays
from brokerset_spark.jobs.migrate import (
    checking,
    cloning,
    copying,
    indexes,
    plan,
    queues,
    reporting,
    scanning,
    tallies,
    timers,
    writing,
)
from brokerset_spark.jobs.migrate import source as sources
from brokerset_spark.jobs.migrate.ledger import INDEX_FILE_SIZE, write_index, write_state
from brokerset_spark.jobs.migrate.options import MigrateOptions
from brokerset_spark.jobs.migrate.placing import EpochStarts, Moves, NewFile, Placer, RecordTooLong
from brokerset_spark.jobs.migrate.plan import LogEnd, Way
from brokerset_spark.jobs.migrate.scanning import Kept
from brokerset_spark.jobs.migrate.selecting import Selection
from brokerset_spark.jobs.migrate.small_files import SmallFiles
from brokerset_spark.jobs.migrate.source import Source, SourceFile
from brokerset_spark.jobs.migrate.staging import Staging
from brokerset_spark.jobs.migrate.tallies import Queue, Tallies
from brokerset_spark.jobs.report import Finding, JobFailed, Level, Report
from brokerset_spark.jobs.running import Progress, Row, Runner
from brokerset_spark.json_values import to_value
from brokerset_spark.kernels import Stop
from brokerset_spark.stores.ending import LogEnd as LogPlace
from brokerset_spark.stores.ending import LogWalk, StoreState
from brokerset_spark.stores.layout import COMMIT_LOG, DLEDGER_PREFIX, INDEX, QUEUES
from brokerset_spark.stores.reading import Throttle

QUEUES_PER_TASK: Final = 64
UNITS_PER_TASK: Final = 8_000_000


class Building:
    """Everything from the scan to the last small file."""

    def __init__(
        self,
        runner: Runner,
        source: Source,
        options: MigrateOptions,
        way: Way,
        selection: Selection,
        staging: Staging,
        report: Report,
        progress: Progress,
        rate: int,
        known_topics: set[str] | None,
    ) -> None:
        self._runner, self._source, self._options, self._way = runner, source, options, way
        self._selection, self._staging, self._report = selection, staging, report
        self._progress, self._rate, self._known_topics = progress, rate, known_topics
        self._tallies: Tallies = {}
        self._log = f"{DLEDGER_PREFIX}{options.ledger_id}/data" if way.ledger else COMMIT_LOG
        self._file_size = options.file_size or source.file_size

    def build(self) -> None:
        """Fill the staging folder. JobFailed, with everything that is done kept for another start."""
        scanned = self._take_log() if self._way.copies else self._scan()
        end = self._find_end(scanned)
        reporting.report_scan(self._report, self._source, self._tallies, scanned, end, len(self._read))
        without = sorted({topic for topic, _ in self._tallies if self._is_left_over(topic)})
        floors = sources.find_floors(self._source, self._tallies, self._selection, Throttle(self._rate))
        if self._way.copies:
            files, moved, base = self._copied(scanned, end), None, self._source.first
        else:
            at_zero = plan.starts_at_zero(self._tallies, floors, without)
            base = 0 if at_zero else self._file_size
            files, moved = self._write_log(scanned, base)
        self._log_end = files[-1].base + files[-1].used
        copies_queues = (
            self._way.copies
            and self._options.queue_file_size is None
            and sources.queues_are_whole(self._source, self._tallies, without)
        )
        if copies_queues:
            checked: list[dict[str, Any]] = []  # nothing but the copies is needed, and they were read back
            self._report.counters["queuesCompared"] = len(self._tallies)
            self._clone_tree("queues", QUEUES)
            firsts = {queue: tally.queue_offset_min for queue, tally in self._tallies.items()}
            ends = {queue: each.end for queue, each in self._source.queue_ends.items()}
        else:
            checked = self._check(files, without)
            firsts, ends = self._build_queues(checked, floors)
        self._make_index(checked, copies=copies_queues)
        if self._way.ledger:
            self._finish_ledger(checked)
        SmallFiles(
            self._source, self._options, self._way, self._selection, self._staging, self._report
        ).write(
            epochs=self._epochs(scanned, moved, base) if self._options.to == "controller" else None,
            end=self._log_end,
            last_stored=self._last_stored,
            firsts=firsts,
            ends=ends,
            clone=self._clone,
        )
        self._report.facts["newOffsets"] = [base, self._log_end]

    # -- the source ---------------------------------------------------------------------------------------

    def _files_in_bounds(self) -> list[SourceFile]:
        start, end = self._selection.start, self._selection.end
        return [
            each
            for each in self._source.files
            if each.bound > each.file.base and each.file.end > start and each.file.base < end
        ]

    def _scan(self) -> list[dict[str, Any]]:
        self._read = self._files_in_bounds()
        rows = [
            self._scan_row(each, "scan", scratch=f"scratch/scan-{number:05d}")
            for number, each in enumerate(self._read)
        ]
        return self._counted(self._run("scan", scanning.TASK, rows, self._sizes()))

    def _take_log(self) -> list[dict[str, Any]]:
        """Scan and copy: each file is read once."""
        self._read = self._files_in_bounds()
        rows = [
            self._scan_row(
                each, "copy", scratch=None, target=f"store/{each.file.path}", closes=self._way.closes
            )
            for each in self._read
        ]
        return self._counted(self._run("copy", copying.TASK, rows, self._sizes()))

    def _scan_row(self, each: SourceFile, kind: str, **more: Any) -> Row:
        return self._row(
            f"{kind}:{each.file.path}",
            source=self._source.folder.url,
            start=each.file.base,
            end=min(each.bound, max(self._selection.end, each.file.base)),
            bound=each.bound,
            selection=to_value(self._selection),
            **_facts_of(each),
            **more,
        )

    def _row(self, key: str, **values: Any) -> Row:
        """What a task is told, besides what all of them are."""
        return {"key": key, "staging": str(self._staging.root), "rate": self._rate, **values}

    def _sizes(self) -> list[int]:
        return [each.bound - each.file.base for each in self._read]

    def _counted(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for result in found:
            tallies.merge(self._tallies, result["tallies"])
        self._last_stored = max((result["lastStored"] for result in found), default=-1)
        return found

    def _find_end(self, scanned: list[dict[str, Any]]) -> LogEnd:
        facts, found = self._source.facts, plan.scan_end(scanned)
        bounded = self._source.has_ledger and not self._options.take_uncommitted
        followed, lost = LogPlace(found.offset, -1, found.stop), None
        if not bounded and not found.problem and found.offset < self._selection.end:
            entries = self._source.has_ledger
            log = facts.ledger if entries else facts.commit_log
            walk = LogWalk(self._source.folder, log, entries, crc=True)
            state: StoreState = "left" if facts.aborted else "closed"
            if not found.path:
                followed = replace(followed, stop=Stop.BLANK)
            followed = walk.follow(followed, state, throttle=Throttle(self._rate))
            lost = walk.find_lost(facts, followed, state, max(self._last_stored, 0))
        end = plan.find_log_end(
            found,
            until=self._selection.end,
            dispatched=self._source.dispatched,
            aborted=facts.aborted,
            committed=self._source.files[-1].bound if bounded else None,
            holes=followed.holes,
            behind=followed.behind,
            lost=lost,
            debris=followed.debris,
        )
        if end.problem:
            advice = (
                "run `brokerset store verify` to see what is damaged;"
                f" --until-offset {end.offset} takes what lies before"
            )
            raise JobFailed(end.problem, advice)
        if not any(tally.count for tally in self._tallies.values()):
            raise JobFailed(f"{self._source.root}: no record is left", "widen the times, offsets and topics")
        return end

    def _is_left_over(self, topic: str) -> bool:
        return sources.is_without_queue(self._source, topic, self._known_topics)

    # -- the log ------------------------------------------------------------------------------------------

    def _copied(self, scanned: list[dict[str, Any]], end: LogEnd) -> list[NewFile]:
        files: list[NewFile] = []
        for each, result in zip(self._read, scanned, strict=True):
            if each.file.base >= end.offset:
                self._staging.drop(result)  # closed, and without any record
                continue
            used = min(result["end"], each.file.end) - each.file.base
            closed = result["closed"] or self._way.closes
            files.append(NewFile(each.file.base, 0, used=used, count=result["records"], closed=closed))
        self._report.counters["filesShared"] = sum(each["shared"] for each in scanned)
        self._report.counters["bytesWritten"] = sum(
            file["size"] for each in scanned for file in each["files"]
        )
        return files

    def _write_log(self, scanned: list[dict[str, Any]], base: int) -> tuple[list[NewFile], EpochStarts]:
        moves, epochs, placer = self._place(scanned, base)
        files = placer.files
        if self._way.closes:
            files[-1].closed = True
        timers_found = timers.read_timers(self._source.folder)
        lost = timers_found.lost(moves)
        if lost and not self._options.drop_timers:
            raise JobFailed(
                f"{lost} messages wait in the timer wheel and are among those that are left out",
                "let them be delivered first, or give them up with --drop-timers",
            )
        if self._options.drop_timers:
            waiting = sum(int(timers_found.waiting(units).sum()) for _, units in timers_found.files)
            if waiting:
                text = f"{waiting} messages that wait in the timer wheel are given up"
                self._report.add(Finding("timers-dropped", Level.WARNING, text, str(self._source.root)))
        else:
            made = timers.write_timer_log(self._staging.root, self._source.root, timers_found, moves)
            self._staging.do("timers", {}, made)
        table = cloning.write_scratch(str(self._staging.root), "scratch/moves", [moves.old, moves.new])
        rows = [self._write_row(file, table["path"] if len(moves.old) else "") for file in files]
        results = self._run("write", writing.TASK, rows, [file.used for file in files])
        self._content = {row["key"]: result["content"] for row, result in zip(rows, results, strict=True)}
        counters = self._report.counters
        counters["bytesWritten"] = sum(file.used for file in files)
        counters["preparedLost"] = sum(each["lostPrepared"] for each in results)
        counters["propertyCrcsRenewed"] = sum(each["renewedCrcs"] for each in results)
        self._report.bytes_read += sum(each["bytesRead"] for each in results)
        text = (
            "all offsets of the log are new: message ids made of an offset (offsetMsgId, ORIGIN_MESSAGE_ID)"
            " do not find their message any more"
        )
        self._report.add(Finding("new-offsets", Level.INFO, text, str(self._source.root)))
        return files, epochs

    def _place(self, scanned: list[dict[str, Any]], base: int) -> tuple[Moves, EpochStarts, Placer]:
        """New offsets of all records, a source file at a time."""
        named = [timers.read_timers(self._source.folder).offsets]
        for number, result in enumerate(scanned):
            named.append(Kept.named(*self._scratch(number, result)))
        moves = Moves.wanted(np.concatenate(named))
        known = self._source.facts.epochs
        epochs = EpochStarts(
            [start for _, start in plan.join_terms(scanned)]
            + ([entry.start_offset for entry in known.entries] if known is not None else [])
        )
        placer = Placer(base, self._file_size, target_head=ENTRY_HEAD_SIZE if self._way.ledger else 0)
        for number, result in enumerate(scanned):
            kept = self._kept(number, result)
            if not len(kept.offsets):
                continue
            try:
                head = sources.entry_head(self._read[number])
                placed = placer.place(number, kept.offsets, kept.sizes, source_head=head)
            except RecordTooLong as error:
                advice = f"choose a file size of at least {error.size + ENTRY_HEAD_SIZE + 8}"
                raise JobFailed(str(error), advice) from error
            moves.learn(kept.offsets, placed)
            epochs.learn(kept.offsets, placed)
        epochs.close(placer.end)
        return moves, epochs, placer

    def _kept(self, number: int, result: dict[str, Any]) -> Kept:
        found = Kept.read(*self._scratch(number, result))
        Throttle(self._rate).took(found.offsets.nbytes + found.sizes.nbytes + found.prepared.nbytes)
        return found

    def _scratch(self, number: int, result: dict[str, Any]) -> tuple[Path, int]:
        """The file of a scan, and how many records it has."""
        return self._staging.root / f"scratch/scan-{number:05d}", result["records"] - result["leftOut"]

    def _write_row(self, file: NewFile, moves: str) -> Row:
        pieces = [
            {**_facts_of(self._read[each.source]), "start": each.start, "end": each.end, "count": each.count}
            for each in file.pieces
        ]
        return self._row(
            f"write:{file.base:020d}",
            source=self._source.folder.url,
            path=f"store/{self._log}/{file.base:020d}",
            size=self._file_size,
            ledger=self._way.ledger,
            term=self._options.term,
            selection=to_value(self._selection),
            moves=moves,
            pieces=pieces,
            **to_value(file, "base", "first_index", "used", "count", "closed"),
        )

    # -- reading back -------------------------------------------------------------------------------------

    def _check(self, files: list[NewFile], without: list[str]) -> list[dict[str, Any]]:
        """Read the new log back; nothing becomes visible unless it says the same as the old one."""
        rows = [
            self._row(
                f"check:{file.base:020d}",
                path=f"{self._log}/{file.base:020d}",
                base=file.base,
                size=self._file_size,
                start=file.base,
                used=file.used,
                ledger=self._way.ledger,
                digest=self._staging.files[f"{self._log}/{file.base:020d}"]["digest"],
                units=f"scratch/units-{number:05d}",
                keys=f"scratch/keys-{number:05d}" if self._options.index else None,
                ledgerUnits=f"scratch/ledger-{number:05d}",
                withoutQueue=without,
                delays=parse_delays(self._options.delay_levels),
            )
            for number, file in enumerate(files)
        ]
        results = self._run("check", checking.TASK, rows, [file.used for file in files])
        after: Tallies = {}
        for file, row, result in zip(files, rows, results, strict=True):
            tallies.merge(after, result["tallies"])
            written = (
                self._content.get(f"write:{file.base:020d}") if not self._way.copies else result["content"]
            )
            if not result["whole"] or result["count"] != file.count or written != result["content"]:
                raise JobFailed(
                    f"{row['path']} reads back differently: {result['count']} records up to"
                    f" {result['end']} where {file.count} up to {file.base + file.used} were written",
                    f"check the disk, remove {self._staging.root}, and start again",
                )
        found = tallies.differences(self._tallies, after)
        if found:
            advice = f"check the disk, remove {self._staging.root}, and start again"
            raise JobFailed(f"the new log differs from the old one: {'; '.join(found[:3])}", advice)
        self._report.counters["queuesCompared"] = len(after)
        self._report.bytes_read += sum(each["bytesRead"] for each in results)
        return results

    # -- queues and index ---------------------------------------------------------------------------------

    def _build_queues(
        self, checked: list[dict[str, Any]], floors: dict[Queue, int]
    ) -> tuple[dict[Queue, int], dict[Queue, int]]:
        """Consume queues of the new log; first and next queue offset of each."""
        slices: dict[Queue, list[Any]] = {queue: [] for queue in floors}
        for number, result in enumerate(checked):
            total = sum(group[3] for group in result["groups"])
            for topic, queue_id, first, count in result["groups"]:
                place = [f"scratch/units-{number:05d}", total, first, count]
                slices.setdefault((topic, queue_id), []).append(place)
        listed = [
            {"topic": queue[0], "queueId": queue[1], "slices": slices[queue], "floor": floors.get(queue, 0)}
            for queue in sorted(slices)
        ]
        sizes = {"fileSize": self._queue_file_size(), "mtimeMs": self._last_stored}
        rows = [
            self._row(f"queues:{number:05d}", queues=batch, **sizes)
            for number, batch in enumerate(plan.batches(listed, UNITS_PER_TASK, QUEUES_PER_TASK))
        ]
        results = self._run("queues", queues.TASK, rows, [len(row["queues"]) for row in rows])
        firsts = dict.fromkeys(self._source.queue_ends, 0)  # queues that lose all messages begin at 0 again
        ends = dict(firsts)
        faults: dict[str, queues.Faults] = {}
        replaced = messages = 0
        for topic, queue_id, first, end, count, older, wrong in (
            queue for result in results for queue in result["queues"]
        ):
            firsts[topic, queue_id], ends[topic, queue_id] = first, end
            replaced, messages = replaced + older, messages + count
            if wrong is not None:
                faults[f"{topic}/{queue_id}"] = queues.Faults(**wrong)
        problem = queues.describe_faults(faults)
        can_lay = all(each.can_lay for each in faults.values())
        if problem and not (can_lay and self._options.accept_queue_faults):
            accept = "; --accept-queue-faults takes it as it is, and `verify` will name it" if can_lay else ""
            raise JobFailed(
                f"{self._source.root}: {problem}: records are lost, or name a wrong topic, queue or offset",
                "run `brokerset store verify` to look closer; --drop-topic, --from-offset and --until-offset"
                f" leave out where it is{accept}",
            )
        self._report.counters["queueMessages"] = messages
        reporting.report_queues(self._report, str(self._source.root), problem, replaced)
        return firsts, ends

    def _queue_file_size(self) -> int:
        known = (file.size for queue in self._source.facts.queues for file in queue.log.files)
        return self._options.queue_file_size or next(known, queues.QUEUE_FILE_SIZE)

    def _make_index(self, checked: list[dict[str, Any]], *, copies: bool) -> None:
        if not self._options.index:
            text = "no index files are made: messages of before are not found by their keys"
            self._report.add(Finding("no-index", Level.INFO, text, str(self._source.root)))
            return
        if copies:
            self._clone_tree("index", INDEX)
            return
        sizes = [each.size for each in self._source.facts.index_files]
        given = (self._options.index_slots, self._options.index_units)
        found = indexes.find_sizes(sizes) if None in given else given
        if found is None or None in found:
            raise JobFailed(
                f"{self._source.root}/index has files of {sizes[0]} bytes, which do not tell slots and units",
                "give --index-slots and --index-units (maxHashSlotNum, maxIndexNum), or --no-index",
            )
        slots, units = found
        assert slots is not None
        assert units is not None
        counts = [(f"scratch/keys-{number:05d}", result["keyCount"]) for number, result in enumerate(checked)]
        rows = [
            self._row(f"index:{number:05d}", slices=slices, number=number, slots=slots, units=units)
            for number, slices in enumerate(indexes.cut_slices(counts, units - 1))
        ]
        self._run("index", indexes.TASK, rows, [sum(each[2] for each in row["slices"]) for row in rows])
        self._report.counters["keys"] = sum(count for _, count in counts)

    # -- the rest -----------------------------------------------------------------------------------------

    def _finish_ledger(self, checked: list[dict[str, Any]]) -> None:
        ledger = f"{DLEDGER_PREFIX}{self._options.ledger_id}"
        scratch = [f"scratch/ledger-{number:05d}" for number in range(len(checked))]
        row = {"scratch": [result["files"][-1]["digest"] for result in checked]}
        if (known := self._staging.known("ledger-index", row)) is None:
            self._staging.do(
                "ledger-index",
                row,
                write_index(self._staging.root, ledger, scratch, INDEX_FILE_SIZE, Throttle(self._rate)),
            )
        else:
            self._staging.take(known)
        last = sum(result["count"] for result in checked) - 1
        made = write_state(self._staging.root, ledger, term=self._options.term, last_index=last)
        self._staging.do("ledger-state", {}, made)
        self._report.counters["entries"] = last + 1

    def _epochs(self, scanned: list[dict[str, Any]], moved: EpochStarts | None, base: int) -> EpochHistory:
        found = plan.first_epochs(
            self._options,
            self._source.facts.epochs,
            plan.join_terms(scanned),
            moved.found if moved is not None else None,
            base,
            self._log_end,
        )
        self._report.facts["epochs"] = [[each.epoch, each.start_offset] for each in found.entries]
        return found

    def _run(self, label: str, task: str, rows: list[Row], sizes: list[int]) -> list[dict[str, Any]]:
        return self._staging.run(self._runner, label, task, rows, self._progress, sizes)

    def _clone_row(self, key: str, items: list[dict[str, Any]]) -> Row:
        return self._row(key, source=str(self._source.root), files=items)

    def _clone(self, key: str, paths: list[str]) -> None:
        """Copy files of the source as they are."""
        if paths:
            row = self._clone_row(key, [{"from": path, "to": f"store/{path}"} for path in paths])
            self._run(key, cloning.TASK, [row], [len(paths)])

    def _clone_tree(self, label: str, folder: str) -> None:
        paths = sources.tree(self._source, folder)
        rows = [
            self._clone_row(
                f"{label}:{first:06d}",
                [{"from": path, "to": f"store/{path}"} for path in paths[first : first + QUEUES_PER_TASK]],
            )
            for first in range(0, len(paths), QUEUES_PER_TASK)
        ]
        self._run(label, cloning.TASK, rows, [len(row["files"]) for row in rows])


def _facts_of(each: SourceFile) -> Row:
    file = each.file
    return {"path": file.path, "base": file.base, "size": file.size, "entries": each.entries}
