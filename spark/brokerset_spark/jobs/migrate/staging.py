"""The folder in which a target grows: locks, the journal of what is done, and the rename at the end.

    <target>.brokerset-staging/     manifest.json   what is being made, of what
                                    journal.jsonl   what is done: one line for each task, with sizes and
                                    digests
                                    scratch/        between tasks
                                    store/          becomes the target
    <target>.brokerset-migration.json               written right before the rename; stays

Whoever is killed goes on: what stands in the journal, and reads back with the same digest, is not done again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import xxhash

from brokerset_runtime.files import (
    FileLock,
    FileLocked,
    lock_file,
    lock_holder,
    sync_folder,
    write_atomically,
)
from brokerset_spark.jobs.migrate.cloning import PART, is_whole
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.running import Progress, Row, Runner

VERSION: Final = 1
_JOURNAL: Final = "journal.jsonl"
_MANIFEST: Final = "manifest.json"


def fingerprint(root: Path) -> str:
    """A digest of the names, sizes and times of all files of a store: whether anything changed."""
    rows = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            if relative != "lock":
                facts = path.lstat()
                rows.append((relative, facts.st_size, facts.st_mtime_ns))
    return xxhash.xxh3_128_hexdigest(orjson.dumps(sorted(rows)))


@contextlib.contextmanager
def source_locked(root: Path) -> Iterator[bool]:
    """Hold off brokers while a source is read; gives whether there was a lock file at all.

    The lock is shared and the file opened for reading only, so nothing is written into a source, and a broker
    that starts meanwhile is refused. NoInput if a broker has the store open.
    """
    path = root / "lock"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = lock_holder(path)
            who = f"process {holder}" if holder else "another process"
            raise NoInput(f"{root}: {who} has this store open", "stop the broker, then start again") from None
        yield True
    finally:
        os.close(descriptor)


class Staging:
    """The staging folder of one target."""

    def __init__(self, target: Path, key: dict[str, Any]) -> None:
        self.target = target
        self.root = target.with_name(f"{target.name}.brokerset-staging")
        self.record = target.with_name(f"{target.name}.brokerset-migration.json")
        self.key = {"version": VERSION, **key}
        self.resumed = False
        self._locks: list[FileLock] = []
        self._done: dict[str, dict[str, Any]] = {}
        self.tasks_done_before = 0
        self.files: dict[str, dict[str, Any]] = {}
        """What stands in `store/`, by path."""

    @property
    def store(self) -> Path:
        """What becomes the target."""
        return self.root / "store"

    def finished(self) -> dict[str, Any] | None:
        """What is known of a migration of the same inputs that has ended; None if there is none.

        JobFailed if the target holds anything else.
        """
        if not self.target.exists() or (self.target.is_dir() and not any(self.target.iterdir())):
            return None
        advice = "choose another target, or remove it"
        if self.record.exists():
            known: dict[str, Any] = orjson.loads(self.record.read_bytes())
            if known["key"] == self.key:
                return known
            raise JobFailed(
                f"{self.target} is the result of another migration, of {known['key']['source']}", advice
            )
        raise JobFailed(f"{self.target} exists and is not empty", advice)

    def open(self) -> None:
        """Make the folder, or go on in it. JobFailed if it belongs to another migration or process."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock(self.root / "lock")
        manifest = self.root / _MANIFEST
        if manifest.exists():
            known = orjson.loads(manifest.read_bytes())
            if known != self.key:
                same = (
                    known.get("source") == self.key["source"] and known.get("options") == self.key["options"]
                )
                what = (
                    "the source has changed since"
                    if same
                    else f"it holds another migration, of {known.get('source')}"
                )
                raise JobFailed(f"{self.root}: {what}", "remove that folder to start from scratch")
            self.resumed = True
        else:
            write_atomically(manifest, orjson.dumps(self.key))
        (self.root / "scratch").mkdir(exist_ok=True)
        self.store.mkdir(exist_ok=True)
        self._lock(self.store / "lock")
        self._remove_parts()
        self._read_journal()

    def _remove_parts(self) -> None:
        """Take away what attempts have left that did not come to their end."""
        for path in self.root.rglob(f"*{PART}"):
            path.unlink(missing_ok=True)

    def _lock(self, path: Path) -> None:
        try:
            self._locks.append(lock_file(path))
        except FileLocked as error:
            raise JobFailed(
                f"{error}: another migration makes this target", "wait for it, or end it"
            ) from error

    def _read_journal(self) -> None:
        path = self.root / _JOURNAL
        if not path.exists():
            return
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):  # killed while it was written
            os.truncate(path, whole)
        for line in raw[:whole].splitlines():
            entry = orjson.loads(line)
            self._done[entry["key"]] = entry

    def known(self, key: str, row: Row) -> dict[str, Any] | None:
        """The result of a task that was done with the same row and whose files are whole."""
        entry = self._done.get(key)
        if entry is None or entry["row"] != _digest(row):
            return None
        result: dict[str, Any] = entry["result"]
        if not all(is_whole(self.root, file) for file in result.get("files", ())):
            return None
        return result

    def note(self, key: str, row: Row, result: dict[str, Any]) -> None:
        """Put a result into the journal, on the disk."""
        line = orjson.dumps({"key": key, "row": _digest(row), "result": result})
        with open(self.root / _JOURNAL, "ab") as stream:
            stream.write(line + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def take(self, result: dict[str, Any]) -> None:
        """Remember the files of a result."""
        for file in result.get("files", ()):
            if file["path"].startswith("store/"):
                self.files[file["path"].removeprefix("store/")] = file

    def run(
        self,
        runner: Runner,
        label: str,
        task: str,
        rows: Sequence[Row],
        progress: Progress,
        sizes: Sequence[int],
    ) -> list[dict[str, Any]]:
        """Run what is not done yet; the results in the order of the rows, which have a `key` each."""
        results: dict[str, dict[str, Any]] = {}
        by_key = {row["key"]: (row, size) for row, size in zip(rows, sizes, strict=True)}
        assert len(by_key) == len(rows), "keys are unique"
        done, total = 0, sum(sizes)
        progress(label, done, total)
        missing = []
        for row in rows:
            known = self.known(row["key"], row)
            if known is None:
                missing.append(row)
                continue
            results[row["key"]] = known
            self.tasks_done_before += 1
            done += by_key[row["key"]][1]
        for result in runner.run(task, missing):
            row, size = by_key[result.row["key"]]
            self.note(row["key"], row, result.row)
            results[row["key"]] = result.row
            done += size
            progress(label, done, total)
        found = [results[row["key"]] for row in rows]
        for each in found:
            self.take(each)
        return found

    def do(self, key: str, row: Row, files: Sequence[dict[str, Any]]) -> None:
        """Note something that was done here, with the files that it made."""
        result = {"files": list(files)}
        self.note(key, row, result)
        self.take(result)

    def drop(self, result: dict[str, Any]) -> None:
        """Remove what a task put into `store/`, and is not needed after all."""
        for file in result["files"]:
            path = file["path"].removeprefix("store/")
            if self.files.pop(path, None) is not None:
                (self.store / path).unlink()

    def check_files(self) -> None:
        """Nothing may be in the target that no task made. JobFailed names it."""
        self._remove_parts()
        for folder, _, names in os.walk(self.store):
            for name in names:
                path = (Path(folder) / name).relative_to(self.store).as_posix()
                if path not in self.files and path != "lock":
                    text = f"{self.store}: {path} is there and no part of the migration made it"
                    raise JobFailed(text, "remove the staging folder")

    def publish(self, result: dict[str, Any]) -> None:
        """Make the target visible by one rename, and remove the rest."""
        for folder, _, _ in os.walk(self.store):
            sync_folder(Path(folder))
        files = [self.files[path] | {"path": path} for path in sorted(self.files)]
        record = {"key": self.key, **result, "files": files}
        write_atomically(self.record, orjson.dumps(record, option=orjson.OPT_INDENT_2))
        os.rename(self.store, self.target)
        sync_folder(self.target.parent)
        self.remove()

    def remove(self) -> None:
        """Remove what is left of the staging folder. JobFailed if another process works in it."""
        if self.root.exists() and not self._locks:
            self._lock(self.root / "lock")
        self.close()
        if self.root.exists():
            shutil.rmtree(self.root)
            sync_folder(self.root.parent)

    def close(self) -> None:
        """Give the locks back."""
        for lock in self._locks:
            lock.release()
        self._locks = []


def _digest(row: Row) -> str:
    """Of what decides about the result; how fast it is read does not."""
    counted = {name: value for name, value in row.items() if name != "rate"}
    return xxhash.xxh3_128_hexdigest(orjson.dumps(counted, option=orjson.OPT_SORT_KEYS))
