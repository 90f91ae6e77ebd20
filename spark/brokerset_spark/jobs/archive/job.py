"""`archive`: plan, tasks, and the manifest.

A file is copied by one task, which reads the copy back; only then the driver writes its name into the
manifest, together with those of other files of the same seconds. So whatever ends a run, the next one goes
on, and the manifest names nothing that was not read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Final

from brokerset_formats.epochs import decode_epoch_file, encode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.archive.planning import (
    SETTINGS,
    ArchivePlan,
    archived_epochs,
    check_owner,
    check_target,
    is_log,
    log_end,
    plan_archive,
    sealed_files,
)
from brokerset_spark.jobs.archive.target import PIECE, ArchiveTarget
from brokerset_spark.jobs.report import Finding, JobFailed, Level, NoInput, Report
from brokerset_spark.jobs.running import Progress, Result, Row, Runner, quiet
from brokerset_spark.stores.archives import MANIFEST, ArchivedFile, ArchiveManifest, decode_manifest
from brokerset_spark.stores.folder import StoreFolder, read_all, read_bytes
from brokerset_spark.stores.layout import EPOCH_FILES, StoreFacts, look
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.owner import owner_of
from brokerset_spark.stores.places import is_object, is_remote, local_path
from brokerset_spark.stores.reading import Throttle
from brokerset_spark.stores.tail import bound_of

SAMPLE_BYTES: Final = 4096
"""Of a file, by which its log is told from others."""

SAMPLES_MAX: Final = 3
"""Files that are compared, while those of the archive are damaged."""

MANIFEST_SECONDS: Final = 10.0
"""How long files wait for their names in the manifest, which is written whole. What a run that is killed has
not named is copied again."""

OTHER_LOG: Final = (
    "the archive is of another log, or the store's file is damaged: verify it; give another target"
)

_TASK = "brokerset_spark.jobs.archive.job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """How an archive is made."""

    check: bool = False
    """Whether the files that the archive has are read again and compared with their SHA-256."""

    rate: int = 0
    """Bytes per second of one task; 0 for no limit."""


def archive(
    runner: Runner,
    url: str,
    target: str,
    options: ArchiveOptions | None = None,
    *,
    progress: Progress = quiet,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Copy the sealed files of a store's log that the archive has not yet, and read them back.

    NoInput if there is no store. JobFailed if the archive is of another group or log, or a copy reads back
    otherwise. NotServed for a target that is neither a path nor object storage.
    """
    options, begun = options or ArchiveOptions(), clock()
    _check_apart(url, target)
    there = ArchiveTarget(target)
    report = Report("archive", inputs={"store": url, "target": target})
    with closing(open_folder(url)) as folder:
        facts = look(folder)
        if facts.layout == "empty":
            raise NoInput(f"{url} has no commit log", "give the folder that storePathRootDir names")
        if facts.archive is not None:
            raise NoInput(f"{url} is an archive", "copy it with the tools of the storage")
        bound = bound_of(folder, facts, claims=False)
        cluster, broker, _ = owner_of(folder, facts)
        sizes = there.sizes()
        check_target(there.url, sizes)
        manifest = check_owner(_read_manifest(there), cluster, broker)
        lost = {each.path for each in manifest.files if sizes.get(each.path) != each.size}
        plan = plan_archive(sealed_files(facts, bound.offset), manifest, lost)
        damaged = _check_same_log(folder, there, plan, manifest)
        rows: list[Row] = []
        named = {each.path: each for each in manifest.files}
        for each in plan.wanted:
            known = named.get(each.path)
            row = {"url": url, "target": target, "path": each.path, "size": each.size, "rate": options.rate}
            rows.append(row | {"sha256": known.sha256 if known is not None else ""})
        done, total = 0, sum(each.size for each in plan.wanted)
        progress("files", 0, total)
        fresh: list[ArchivedFile] = []
        written = clock()
        try:
            for result in runner.run(f"{_TASK}:archive_file", rows):
                if result.row["path"] in named:
                    text = "the archive had lost it, or had another size of it; it is archived again"
                    report.add(Finding("archive-restored", Level.WARNING, text, target, result.row["path"]))
                fresh.append(ArchivedFile(**result.row))
                if clock() >= written + MANIFEST_SECONDS:
                    manifest = _with_files(there, manifest, fresh)
                    fresh, written = [], clock()
                done += result.row["size"]
                progress("files", done, total)
        finally:  # what is whole is named, also when a task fails
            manifest = _with_files(there, manifest, fresh)
        manifest = _archive_small_files(folder, facts, there, manifest, plan.end)
    report.bytes_read = done
    report.counters |= {"files.archived": len(plan.wanted), "files.known": len(plan.known), "bytes": done}
    _check(runner, report, there, manifest, damaged, options, progress)
    report.facts |= {"layout": facts.layout, "end": plan.end, "bound": bound.offset}
    report.seconds = clock() - begun
    return report


def archive_file(row: Row) -> Iterator[Result]:
    """Copy one file and read the copy back.

    JobFailed if that has other bytes, or the store's file ended early.
    """
    there = ArchiveTarget(row["target"])
    throttle = Throttle(row["rate"])
    read = 0

    def pieces(folder: StoreFolder) -> Iterator[memoryview]:
        nonlocal read
        piece = memoryview(bytearray(PIECE))
        while read < row["size"]:
            count = folder.read_into(row["path"], read, piece[: min(PIECE, row["size"] - read)])
            if count == 0:
                raise JobFailed(
                    f"{row['url']}/{row['path']} ends at {read} of {row['size']} bytes",
                    "it was truncated while it was read, or has expired: start the job again",
                )
            throttle.took(count)
            read += count
            yield piece[:count]

    try:
        with closing(open_folder(row["url"])) as folder:
            written = there.write(row["path"], pieces(folder))
    except FileNotFoundError as error:
        raise JobFailed(
            f"{row['url']}/{row['path']} is gone: it expired before it was copied", "start the job again"
        ) from error
    found = there.digest(row["path"])
    if found != (row["size"], written):
        there.remove(row["path"])  # the manifest may name it, with this size
        raise JobFailed(
            f"{row['target']}/{row['path']} reads back as {found}, written was {(row['size'], written)}",
            "start the job again, which writes it again; if that happens twice, do not trust this storage",
        )
    if row["sha256"] not in ("", written):
        there.remove(row["path"])
        raise JobFailed(f"{row['url']}/{row['path']} has other bytes than when it was archived", OTHER_LOG)
    yield Result({"path": row["path"], "size": row["size"], "sha256": written})


def check_file(row: Row) -> Iterator[Result]:
    """Size and SHA-256 of a file of the archive, as they are read now."""
    found = ArchiveTarget(row["target"]).digest(row["path"])
    size, digest = found if found is not None else (-1, "")
    yield Result({"path": row["path"], "size": size, "sha256": digest})


def _check_apart(url: str, target: str) -> None:
    if is_remote(url) or is_object(target):
        return
    root, goal = Path(local_path(url)).resolve(), Path(local_path(target)).resolve()
    if goal.is_relative_to(root):
        raise JobFailed(f"{target} lies in the store {url}", "a foreign folder keeps brokers from starting")


def _check_same_log(
    folder: StoreFolder, there: ArchiveTarget, plan: ArchivePlan, manifest: ArchiveManifest
) -> dict[str, tuple[int, str]]:
    """Compare how the newest files begin that both have: their names and sizes are those of any log.

    JobFailed if one begins with other bytes, and is as it was archived. Sizes and SHA-256 of those that are
    not: damage of the archive says nothing of its log.
    """
    damaged: dict[str, tuple[int, str]] = {}
    for path in [each.path for each in reversed(plan.known[-SAMPLES_MAX:])]:
        try:
            ours = read_bytes(folder, path, 0, SAMPLE_BYTES)
        except FileNotFoundError:  # expired meanwhile
            continue
        if there.read_head(path, SAMPLE_BYTES) == ours:
            break
        found, known = there.digest(path) or (-1, ""), manifest.find(path)
        if known is not None and found == (known.size, known.sha256):
            raise JobFailed(f"{folder.url}/{path} begins with other bytes than in {there.url}", OTHER_LOG)
        damaged[path] = found
    return damaged


def _read_manifest(there: ArchiveTarget) -> ArchiveManifest:
    text = there.read(MANIFEST)
    if text is None:
        return ArchiveManifest(None, None, ())
    try:
        return decode_manifest(text)
    except FormatError as error:
        advice = "give another target, or repair it; nothing was written"
        raise JobFailed(f"{there.url}/{MANIFEST}: {error}", advice) from error


def _with_files(
    there: ArchiveTarget, manifest: ArchiveManifest, files: list[ArchivedFile]
) -> ArchiveManifest:
    """The manifest with these files, written."""
    if files:
        manifest = manifest.with_files(files)
        _write(there, MANIFEST, manifest.encode())
    return manifest


def _write(there: ArchiveTarget, path: str, content: bytes) -> str:
    return there.write(path, iter((content,)))


def _archive_small_files(
    folder: StoreFolder, facts: StoreFacts, there: ArchiveTarget, manifest: ArchiveManifest, end: int
) -> ArchiveManifest:
    """Identity, settings, and the epochs of what is archived; they are replaced with each run that finds
    others."""
    content: dict[str, bytes] = {}
    for path in ("brokerIdentity", *(f"config/{name}" for name in SETTINGS)):
        found = read_all(folder, path)
        if found is not None:
            content[path] = found
    # A replica that is behind may not know the epochs of what another one has brought.
    if facts.epochs is not None and end >= log_end(manifest):
        history = archived_epochs(facts.epochs, end, _epochs_there(there))
        if history.entries:
            content[EPOCH_FILES[0]] = encode_epoch_file(history)
    before = manifest
    for path, text in content.items():
        wanted = ArchivedFile(path, len(text), sha256(text).hexdigest())
        if there.read(path) != text:
            _write(there, path, text)
        if manifest.find(path) != wanted:  # also if a run ended between the two
            manifest = manifest.with_files((wanted,))
    if manifest != before or there.read(MANIFEST) is None:
        _write(there, MANIFEST, manifest.encode())
    return manifest


def _epochs_there(there: ArchiveTarget) -> tuple[tuple[int, int], ...]:
    text = there.read(EPOCH_FILES[0])
    try:
        history = decode_epoch_file(text) if text is not None else None
    except FormatError as error:
        raise JobFailed(
            f"{there.url}/{EPOCH_FILES[0]}: {error}", "remove it: the store's is written"
        ) from error
    return tuple((each.epoch, each.start_offset) for each in history.entries) if history is not None else ()


def _check(
    runner: Runner,
    report: Report,
    there: ArchiveTarget,
    manifest: ArchiveManifest,
    damaged: dict[str, tuple[int, str]],
    options: ArchiveOptions,
    progress: Progress,
) -> None:
    """Whether the archive still has what its manifest names, and the log in it has no gap.

    `damaged`: what was found to be otherwise already.
    """
    found: dict[str, tuple[int, str]] = {path: (size, "") for path, size in there.sizes().items()}
    found |= damaged
    if options.check:
        rows: list[Row] = [{"target": there.url, "path": each.path} for each in manifest.files]
        done, total = 0, sum(each.size for each in manifest.files)
        progress("check", 0, total)
        for result in runner.run(f"{_TASK}:check_file", rows):
            found[result.row["path"]] = (result.row["size"], result.row["sha256"])
            done += max(0, result.row["size"])
            progress("check", done, total)
        report.bytes_read += done
        report.counters["files.checked"] = len(rows)
    for each in manifest.files:
        size, digest = found.get(each.path, (-1, ""))
        if size < 0:
            text = "the archive has lost it, and the store has it no longer"
            report.add(Finding("archive-missing", Level.ERROR, text, there.url, each.path))
        elif size != each.size or digest not in ("", each.sha256):
            text = f"it has {size} bytes and SHA-256 {digest or 'unread'}; "
            text += f"archived were {each.size} and {each.sha256}"
            report.add(Finding("archive-differs", Level.ERROR, text, there.url, each.path))
    logs = sorted(each.path for each in manifest.files if is_log(each.path))
    sizes = {each.path: each.size for each in manifest.files}
    for before, after in pairwise(logs):
        end, begin = int(before[-20:]) + sizes[before], int(after[-20:])
        if before[:-20] == after[:-20] and end < begin:
            text = f"the archive has nothing from {end} to {begin}: it expired before it was archived"
            report.add(Finding("archive-gap", Level.ERROR, text, there.url, after, end, begin))
