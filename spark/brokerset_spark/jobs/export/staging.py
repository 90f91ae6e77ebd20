"""The folder next to the target in which an export grows, and the steps that make it visible.

What is in it, in the order in which it comes: `lock`; `plan.json`; `data/<task>-<attempt>/…`, the files;
`results/<task>.json`, which attempt counts; `commit.json`, from which moment on the export is finished
whatever happens; `tree/`, the new target.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from brokerset_runtime.files import sync_folder, write_atomically
from brokerset_spark.jobs.export.writing import DATA
from brokerset_spark.jobs.report import JobFailed

ENDING: Final = ".brokerset-staging"
LOCK: Final = "lock"
PLAN: Final = "plan.json"
RESULTS: Final = "results"
COMMIT: Final = "commit.json"
TREE: Final = "tree"
MANIFEST: Final = "_manifest.json"
SUCCESS: Final = "_SUCCESS"

_LOCK_ATTEMPTS: Final = 10
"""How often the lock may be deleted by another export between being opened and being locked."""


class Staging:
    """One staging folder, locked by this process."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(target.name + ENDING)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep others out of it; JobFailed if another export is at work."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = self._lock()
        try:
            try:
                yield
            finally:
                if self.folder.exists() and os.listdir(self.folder) == [LOCK]:
                    shutil.rmtree(self.folder)
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        """A locked descriptor of the file that has the name now: another export may just have deleted it."""
        for _ in range(_LOCK_ATTEMPTS):
            self.folder.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(descriptor), os.stat(self.folder / LOCK)):
                        return descriptor
                except BlockingIOError:
                    os.close(descriptor)
                    break
                except OSError:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
        advice = "wait until it has ended, or choose another target"
        raise JobFailed(f"another export writes {self.target}", advice)

    def plan(self) -> dict[str, Any] | None:
        """The plan of an export that was begun here."""
        return _read(self.folder / PLAN)

    def begin(self, plan: dict[str, Any]) -> None:
        """Start from scratch: whatever an export with another plan left is deleted."""
        self.discard()
        (self.folder / DATA).mkdir()
        (self.folder / RESULTS).mkdir()
        write_atomically(self.folder / PLAN, orjson.dumps(plan))

    def discard(self) -> None:
        """Delete everything but the lock, which is still held: there is nothing to go on with.

        The decision goes last: until then whoever comes next finishes what is left to do.
        """
        for each in sorted(self.folder.iterdir(), key=lambda path: path.name == COMMIT):
            if each.name != LOCK:
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def results(self) -> dict[int, dict[str, Any]]:
        """Results of tasks that were done before, as far as their files are all there."""
        found: dict[int, dict[str, Any]] = {}
        for path in sorted((self.folder / RESULTS).glob("*.json")):
            result = _read(path)
            if result is not None and self._is_there(result):
                found[int(result["task"])] = result
        return found

    def _is_there(self, result: dict[str, Any]) -> bool:
        folder = self.folder / DATA / result["attempt"]
        return all(_size(folder / each["path"]) == each["bytes"] for each in result["files"])

    def keep(self, result: dict[str, Any]) -> None:
        """Note which attempt of a task counts."""
        write_atomically(self.folder / RESULTS / f"{result['task']:06d}.json", orjson.dumps(result))

    def commit(self, moves: list[tuple[str, str, int]], manifest: dict[str, Any], *, append: bool) -> None:
        """Decide: `moves` are paths below the staging folder, paths below the target, and sizes."""
        write_atomically(
            self.folder / COMMIT, orjson.dumps({"moves": moves, "manifest": manifest, "append": append})
        )

    def finish(self) -> dict[str, Any] | None:
        """Carry out what was decided, if anything was, also from the middle on; the manifest."""
        decided = _read(self.folder / COMMIT)
        if decided is None:
            return None
        manifest: dict[str, Any] = decided["manifest"]
        text = orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"
        if decided["append"]:
            self._move(decided["moves"], self.target)
            write_atomically(self.target / MANIFEST, text)
        elif _read(self.target / MANIFEST) != manifest:
            tree = self.folder / TREE
            tree.mkdir(exist_ok=True)
            self._move(decided["moves"], tree)
            write_atomically(tree / MANIFEST, text)
            write_atomically(tree / SUCCESS, b"")
            self._show(tree)
        self.discard()
        return manifest

    def _show(self, tree: Path) -> None:
        try:
            os.rename(tree, self.target)  # an empty folder may be in the way, nothing else
        except OSError as error:
            advice = "move what is there away and start the export again: it only has to be renamed"
            raise JobFailed(f"{self.target} cannot be made: {error.strerror}", advice) from error
        sync_folder(self.target.parent)

    def _move(self, moves: list[list[Any]], root: Path) -> None:
        folders = {root}
        for source, path, size in moves:
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            folders |= {target.parent, target.parent.parent}
            try:
                os.rename(self.folder / source, target)
            except FileNotFoundError:
                if _size(target) != size:  # else it was moved before
                    advice = f"delete {self.folder} and start again"
                    raise JobFailed(f"{self.folder / source} is gone", advice) from None
        for folder in sorted(folders):
            sync_folder(folder)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a finished export; None without one. JobFailed if it is none of ours."""
    found = _read(path)
    if found is None:
        return None
    if found.get("job") != "export" or not isinstance(found.get("files"), list) or "range" not in found:
        raise JobFailed(
            f"{path} is not the manifest of an export", "name the _manifest.json of an export's folder"
        )
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError as error:
        raise JobFailed(
            f"{path} is damaged: {error}", "delete it if it is of no use, and start again"
        ) from error
    if not isinstance(found, dict):
        raise JobFailed(f"{path} holds no JSON object", "delete it if it is of no use, and start again")
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
