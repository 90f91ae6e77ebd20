"""The migration as a whole: inspect, plan, scan, write, check, queues, index, small files, one rename."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from brokerset_spark.jobs.migrate import source as sources
from brokerset_spark.jobs.migrate.building import Building
from brokerset_spark.jobs.migrate.config_files import STAMP, stamp_offset, topic_names
from brokerset_spark.jobs.migrate.options import METADATA_TOPIC, MigrateOptions
from brokerset_spark.jobs.migrate.plan import Way, decide_way
from brokerset_spark.jobs.migrate.selecting import Selection
from brokerset_spark.jobs.migrate.small_files import check_kind
from brokerset_spark.jobs.migrate.source import Source
from brokerset_spark.jobs.migrate.staging import Staging, fingerprint, source_locked
from brokerset_spark.jobs.report import Finding, JobFailed, Level, Report
from brokerset_spark.jobs.running import Progress, Runner, quiet
from brokerset_spark.stores.folder import read_all
from brokerset_spark.stores.places import NotServed, local_path
from brokerset_spark.stores.reading import Throttle

JOB: Final = "migrate"
SPARE_BYTES: Final = 64 << 20
"""Free space that must be left."""


def migrate(
    runner: Runner,
    source: str,
    target: str,
    options: MigrateOptions,
    *,
    plan_only: bool = False,
    rate: int = 0,
    progress: Progress = quiet,
) -> Report:
    """Build a store in another layout from a store that no broker runs on; the source is never changed.

    With `plan_only` nothing is written, and the report says what would be done. `rate` is in bytes per
    second of each
    task. NoInput: there is no source, or a broker has it open. JobFailed: the options cannot be, the source
    is
    damaged or changed meanwhile, the target holds something else, or there is no room.
    """
    began = time.monotonic()
    problems = options.problems()
    if problems:
        raise JobFailed("; ".join(problems), "change the options")
    root, goal = _paths(source, target)
    report = Report(JOB, inputs={"source": str(root), "target": str(goal), "options": options.to_row()})
    with ExitStack() as holding:
        was_locked = holding.enter_context(source_locked(root))
        seen = sources.open_source(root, options, Throttle(rate))
        holding.callback(seen.folder.close)
        print_before = fingerprint(root)
        key = {"source": str(root), "fingerprint": print_before, "options": options.to_row()}
        staging = Staging(goal, key)
        done = staging.finished()
        if done is not None:
            staging.remove()
            report.counters.update(done["counters"])
            report.facts.update(done["facts"], state="already done", files=done["files"])
            report.seconds = time.monotonic() - began
            return report
        way = decide_way(seen.facts.layout, seen.file_size, options)
        check_kind(seen, way)
        start, end = sources.bounds(seen, options)
        selection = _selection(seen, options, way, start, end)
        known_topics = topic_names(read_all(seen.folder, "config/topics.json"))
        _report_plan(report, seen, options, way, start, end, was_locked)
        if plan_only:
            report.facts["state"] = "planned"
            report.facts["resumes"] = (staging.root / "manifest.json").exists()
            report.seconds = time.monotonic() - began
            return report
        _check_room(goal.parent, staging, seen)
        goal.parent.mkdir(parents=True, exist_ok=True)
        holding.callback(staging.close)
        staging.open()
        building = Building(
            runner, seen, options, way, selection, staging, report, progress, rate, known_topics
        )
        building.build()
        staging.check_files()
        if fingerprint(root) != print_before or _is_used(root, was_locked):
            raise JobFailed(
                f"{root} has changed meanwhile", f"stop whatever writes there and remove {staging.root}"
            )
        report.facts["state"] = "done"
        report.facts["tasksDoneBefore"] = staging.tasks_done_before
        report.facts["files"] = [staging.files[path] | {"path": path} for path in sorted(staging.files)]
        result = {
            "counters": report.counters,
            "facts": {k: v for k, v in report.facts.items() if k != "files"},
        }
        staging.publish(result)
    report.seconds = time.monotonic() - began
    return report


def _paths(source: str, target: str) -> tuple[Path, Path]:
    try:
        root, goal = Path(local_path(source)).resolve(), Path(local_path(target))
    except NotServed as error:
        raise JobFailed(str(error), "a migration reads and writes files of this machine") from error
    goal = goal.parent.resolve() / goal.name
    if not goal.name or goal.is_symlink() or (goal.exists() and not goal.is_dir()):
        raise JobFailed(f"{goal} cannot become a store", "name a folder that does not exist yet")
    if root == goal or root in goal.parents or goal in root.parents:
        raise JobFailed(
            f"{goal} lies in the source, or the source in it", "a store is never migrated in place"
        )
    return root, goal


def _selection(seen: Source, options: MigrateOptions, way: Way, start: int, end: int) -> Selection:
    """A rewrite leaves the metadata topic out, if the files in `config/` have all that it says."""
    if way.copies or METADATA_TOPIC not in {topic for topic, _ in seen.queue_ends}:
        return Selection.of(options, start, end)
    stamped = stamp_offset(read_all(seen.folder, STAMP))
    last = max(each.offset for (topic, _), each in seen.queue_ends.items() if topic == METADATA_TOPIC)
    if stamped <= last:
        raise JobFailed(
            f"{seen.root}: {STAMP} is complete up to {stamped}, and {METADATA_TOPIC} goes on to {last}",
            "start the broker once, stop it in order, then start again",
        )
    return Selection.of(options, start, end, also_drop=(METADATA_TOPIC,))


def _is_used(root: Path, was_locked: bool) -> bool:
    """Whether somebody made the lock file that was missing in the beginning."""
    return not was_locked and (root / "lock").exists()


def _report_plan(
    report: Report, seen: Source, options: MigrateOptions, way: Way, start: int, end: int, was_locked: bool
) -> None:
    facts = seen.facts
    total = sum(each.bound - each.file.base for each in seen.files)
    report.facts.update(
        layout=facts.layout,
        to=options.to,
        way="copy" if way.copies else "rewrite",
        reason=way.reason,
        sourceFiles=len(seen.files),
        sourceBytes=total,
        queues=len(facts.queues),
        fileSize=options.file_size or seen.file_size,
        fromOffset=max(start, seen.first),
        untilOffset=min(end, seen.files[-1].bound),
        keepsOffsets=way.copies,
        uncleanStop=facts.aborted,
    )
    if facts.aborted:
        text = "the broker of this store did not close it; queues and index are built from the log"
        report.add(Finding("unclean-store", Level.INFO, text, str(seen.root)))
    if not was_locked:
        text = "the store has no lock file, so a broker that starts meanwhile is only noticed at the end"
        report.add(Finding("no-lock", Level.INFO, text, str(seen.root)))


def _check_room(parent: Path, staging: Staging, seen: Source) -> None:
    """JobFailed if the disk cannot hold another copy, as far as that is known before anything was read."""
    while not parent.exists():
        parent = parent.parent
    needed = SPARE_BYTES
    for folder, _, names in os.walk(seen.root):
        needed += sum((Path(folder) / name).lstat().st_blocks * 512 for name in names)
    for folder, _, names in os.walk(staging.root):
        needed -= sum((Path(folder) / name).lstat().st_blocks * 512 for name in names)
    space = os.statvfs(parent)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        raise JobFailed(
            f"{parent} has {free:,} bytes left, and the new store needs about {needed:,}",
            "make room, or choose a target on another disk",
        )
