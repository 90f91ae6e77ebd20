"""Files of a store: whether those are there that must be, and only those, and whether the small ones can
be read."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from brokerset_formats import fastjson
from brokerset_formats.checkpoints import CHECKPOINT_SIZE
from brokerset_formats.epochs import decode_epoch_file
from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import Result
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.stores.archives import MANIFEST
from brokerset_spark.stores.folder import FileFacts, StoreFolder, read_all
from brokerset_spark.stores.layout import Log, StoreFacts

_NAME: Final = re.compile(r"\d{20}")
_NO_JSON: Final = ("timercheck",)
"""Files of `config/` that are binary."""

SMALL_MAX: Final = 64 << 20


def check_log_files(files: list[FileFacts], what: str) -> Iterator[Result]:
    """The files of one log folder, whatever it holds: names, sizes, and that each follows on the one
    before."""
    known: list[tuple[int, FileFacts]] = []
    for facts in files:
        name = facts.path.rpartition("/")[2]
        if _NAME.fullmatch(name):
            known.append((int(name), facts))
        else:
            yield finding(
                "file-foreign", f"{name} does not belong among the files of {what}: move it away", facts.path
            )
    if known and known[-1][1].size == 0:
        known.pop()  # Java deletes an empty last file when it starts
    size = _usual_size(known)
    for base, facts in known:
        if facts.size != size:
            text = f"{facts.size} bytes, where the files of {what} have {size}: "
            text += "its end is lost" if facts.size < size else "something was added to it"
            yield finding(
                "file-size", text, facts.path, base + min(facts.size, size), base + max(facts.size, size)
            )
    for (base, facts), (after, later) in itertools.pairwise(known):
        end = base + size
        if after > end:
            yield finding(
                "file-missing", f"{after - end} bytes of {what} are in no file", later.path, end, after
            )
        elif after < end:
            yield finding("file-overlap", f"{facts.path} has these bytes, too", later.path, after, end)


def usual_sizes(log: Log) -> Log:
    """The same files without what was added to them: what counts is the size that the others have."""
    size = _usual_size([(each.base, FileFacts(each.path, each.size, each.mtime_ms)) for each in log.files])
    return replace(log, files=tuple(replace(each, size=min(each.size, size)) for each in log.files))


def _usual_size(known: list[tuple[int, FileFacts]]) -> int:
    """What most files have; of several the one by which the names grow."""
    if not known:
        return 0
    counts = Counter(facts.size for _, facts in known)
    steps = Counter(after - base for (base, _), (after, _) in itertools.pairwise(known))
    return max(counts, key=lambda size: (counts[size] + steps.get(size, 0), size))


def check_archive(folder: StoreFolder, facts: StoreFacts) -> Iterator[Result]:
    """Whether an archive has the files that its manifest names, with their sizes."""
    for path, problem in facts.problems:
        if path == MANIFEST:
            yield finding("archive-manifest", problem, path)
    files = facts.archive.files if facts.archive is not None else ()
    folders = {each.path.rpartition("/")[0] for each in files}
    there = {each.path: each.size for path in sorted(folders) for each in folder.files(path)}
    for each in files:
        if each.path not in there:
            yield finding("archive-missing", "the archive's manifest names it", each.path)
        elif there[each.path] != each.size:
            text = f"it has {there[each.path]} bytes; archived were {each.size}"
            yield finding("archive-differs", text, each.path)


def check_small_files(folder: StoreFolder, facts: StoreFacts) -> Iterator[Result]:
    """Epoch file, checkpoint, identity, settings: whether they can be read."""
    for path in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
        data = read_all(folder, path)
        if data is not None:
            try:
                decode_epoch_file(data)
            except FormatError as error:
                yield _unreadable("epoch-file", path, error)
    for path, problem in facts.problems:
        if path == "brokerIdentity":
            yield finding("identity", problem, path)
    yield from _check_checkpoint(folder, facts)
    for file in folder.files("config"):
        name = file.path.rpartition("/")[2]
        if name in _NO_JSON or file.size > SMALL_MAX:
            continue
        data = read_all(folder, file.path)
        if data is None:
            continue
        try:
            fastjson.loads(data)
        except FormatError as error:
            yield _unreadable("config", file.path, error)


def _unreadable(code: str, path: str, error: FormatError) -> Result:
    found = finding(code, str(error), path, error.position if error.position >= 0 else None)
    if path.endswith(".bak"):
        return Result({**found.row, "level": Level.WARNING, "text": f"{error}; this is only the copy"})
    return found


def _check_checkpoint(folder: StoreFolder, facts: StoreFacts) -> Iterator[Result]:
    data = read_all(folder, "checkpoint")
    if data is None:
        if facts.layout != "empty" and facts.archive is None:
            yield finding(
                "checkpoint-missing", "there is none: the next start reads the whole log", "checkpoint"
            )
        return
    if facts.checkpoint is None:
        problem = dict(facts.problems).get("checkpoint", "it cannot be read")
        yield finding("checkpoint", problem, "checkpoint")
        return
    if len(data) < CHECKPOINT_SIZE:
        yield finding("checkpoint", f"{len(data)} bytes instead of {CHECKPOINT_SIZE}", "checkpoint")
    values = {
        "the log's time": facts.checkpoint.physic_msg_timestamp,
        "the queues' time": facts.checkpoint.logics_msg_timestamp,
        "the index's time": facts.checkpoint.index_msg_timestamp,
        "the master's flushed offset": facts.checkpoint.master_flushed_offset,
        "the confirmed offset": facts.checkpoint.confirm_phy_offset,
    }
    for number, (name, value) in enumerate(values.items()):
        if value < 0 and not (number >= 3 and value == -1):
            yield finding("checkpoint", f"{name} is {value}", "checkpoint", number * 8)
