"""Which folders may be opened as a store, and the marks that a running store leaves in its folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import structlog

from brokerset_runtime.files import FileLock, FileLocked, lock_file, sync_folder
from brokerset_runtime.unsupported_messages import unsupported_in

log = structlog.get_logger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StoreUnusable(Exception):
    """The folder holds something that this store must not touch: `path` is what, `reason` why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def check_kind(root: Path, commit_log: Path, *, ledger: Path | None = None) -> None:
    """Refuse stores of kinds that are not served, by name, before anything in them is changed.

    `ledger` is the folder of this member's DLedger, in DLedger mode.
    """
    if "," in str(commit_log):
        raise StoreUnusable(commit_log, "a commit log on several paths is not supported; give one folder")
    for path in (root, commit_log):
        if path.exists() and not path.is_dir():
            raise StoreUnusable(path, "is no folder")
    for other in sorted(root.glob("dledger-*")):
        if ledger is None:
            raise StoreUnusable(
                other,
                "this is the log of a DLedger; start with enableDLegerCommitLog=true, or migrate the store",
            )
        if other != ledger:
            raise StoreUnusable(
                other, f"this is the log of another member than {ledger.name}; is dLegerSelfId right?"
            )
    for name, kind in (
        ("batchconsumequeue", "queues of inner batches (queue.type=BatchCQ)"),
        ("consumequeue_ext", "extended consume queues (enableConsumeQueueExt)"),
    ):
        for topic in sorted((root / name).glob("*")):
            raise StoreUnusable(topic, f"{kind} are not supported; remove the topic with a Java broker first")


def check_served(root: Path) -> None:
    """Refuse a store in which a Java broker left messages that nothing here would deliver.

    Call it when the checkpoint lacks our marks: then a Java broker was the last one to write to the store.
    """
    if pending := unsupported_in(root):
        raise StoreUnusable(
            root,
            f"a Java broker left {', '.join(pending)}, which brokers of brokerset do not deliver; start the"
            " Java broker again and let them be consumed, or set acceptUnservedMessages=true to leave them"
            " undelivered",
        )


def lock_store(root: Path) -> FileLock:
    """Take the store for this process; StoreUnusable names the lock and, where known, its holder."""
    try:
        return lock_file(root / "lock")
    except FileLocked as error:
        holder = f"process {error.holder_pid}" if error.holder_pid else "another process"
        raise StoreUnusable(error.path, f"{holder} has this store open; stop it first") from error


class AbortFile:
    """The file `abort`: it is there while the store is open, so after a crash it is still there.

    The boot id in it is a claim: the page cache of this boot has all that was written, and no sync failed.
    Without it the next start counts on the disk alone.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "abort"

    @property
    def exists(self) -> bool:
        """Whether the last process did not close the store."""
        return self._path.exists()

    @property
    def same_boot(self) -> bool:
        """Whether the machine has run on since and no sync failed: then what was written can be read."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = self._path.read_text().splitlines()
            return len(lines) > 1 and lines[1] != "" and lines[1] == boot_id()
        return False

    def write(self, *, claims_boot: bool) -> None:
        """Say that the store is open: process id as RocketMQ writes it, then the boot of the machine."""
        self._put(f"{os.getpid()}\n{boot_id() if claims_boot else ''}\n".encode())
        sync_folder(self._path.parent)

    def _put(self, content: bytes) -> None:
        """Replace the content in place: this needs no room on the disk once the file is there."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def void_boot(self) -> None:
        """Take the claim back: after a failed sync the kernel calls pages clean that no disk has."""
        try:
            self.write(claims_boot=False)
        except OSError as error:
            log.critical(
                "the disk failed, and that cannot be noted: start the broker again after a reboot only",
                file=str(self._path),
                error=str(error),
            )

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Around everything that syncs: when it fails, the claim is gone before anybody hears of it."""
        try:
            yield
        except OSError:
            self.void_boot()
            raise

    def remove(self) -> None:
        """Say that the store was closed in order."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        sync_folder(self._path.parent)


def boot_id() -> str:
    """The machine's current boot, empty where the system does not tell."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""
