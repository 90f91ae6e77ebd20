"""What jobs say of what is no store, of files that cannot be read, and of files that go while they read: one
clear sentence and the right exit code, and never a stack."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerset_rig.made_stores import unpack_fixture
from brokerset_rig.replica_stores import Log, write_replica
from brokerset_spark.commands.table import main
from brokerset_spark.jobs.report import EXIT_FAILED, EXIT_FINDINGS, EXIT_NO_INPUT
from brokerset_spark.stores.folder import LocalFolder

JOBS = ("verify", "inspect", "audit", "export")
Spoil = Callable[[str], None]


def call(job: str, store: object, target: Path) -> Result:
    """One job in this process, on one store."""
    arguments = [job, str(store), *([str(target)] if job == "export" else [])]
    return CliRunner().invoke(main, [*arguments, "--workers", "1"])


def is_one_sentence(result: Result) -> bool:
    """Neither a stack nor words for those who wrote the job."""
    return "Traceback" not in result.output and "error of its own" not in result.output


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of an audit goes into the folder at hand."""
    (tmp_path.parent / f"{tmp_path.name}-at").mkdir()
    monkeypatch.chdir(tmp_path.parent / f"{tmp_path.name}-at")


@pytest.fixture
def log() -> Log:
    made = Log()
    made.fill(500)
    return made


@pytest.fixture
def store(tmp_path: Path, log: Log) -> Path:
    """A store of several log files, closed."""
    return write_replica(tmp_path / "store", log)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kind", ["missing", "empty", "foreign", "file", "log", "above"])
def test_what_is_no_store_is_named(tmp_path: Path, store: Path, job: str, kind: str) -> None:
    """A path that does not exist, other folders, a file, the log itself, the folder above a store."""
    other = tmp_path / "other"
    if kind in ("empty", "foreign"):
        other.mkdir()
    if kind == "foreign":
        (other / "letter.txt").write_text("hello")
    if kind == "file":
        other.write_text("hello")
    path = {"log": store / "commitlog", "above": tmp_path}.get(kind, other)

    target = tmp_path.with_name(f"{tmp_path.name}-out")

    result = call(job, path, target)

    assert result.exit_code == EXIT_NO_INPUT, result.output
    assert str(path) in result.output
    assert is_one_sentence(result)
    assert not target.exists()


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("url", ["ftp://host/store", "http://host/other", "http://me:secret@host/store"])
def test_addresses_that_no_store_has_are_refused(tmp_path: Path, job: str, url: str) -> None:
    """They say how the address of a stream looks; nobody is asked anything."""
    result = call(job, url, tmp_path / "out")

    assert result.exit_code in (EXIT_FAILED, EXIT_NO_INPUT)
    assert "/store" in result.output
    assert is_one_sentence(result)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Makes files with a part in their path unreadable, also for root."""

    def spoil(part: str) -> None:
        real = os.open

        def refused(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if part in str(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", refused)

    return spoil


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_log_file_that_may_not_be_read_is_named(
    tmp_path: Path, store: Path, unreadable: Spoil, job: str, number: int
) -> None:
    """Whose file it is, and that the rights are to blame: neither damage nor a clean store."""
    file = sorted((store / "commitlog").iterdir())[number]
    unreadable(f"commitlog/{file.name}")

    result = call(job, store, tmp_path / "out")

    assert result.exit_code in (EXIT_NO_INPUT, EXIT_FAILED), result.output
    assert "Permission denied" in result.output
    assert f"commitlog/{file.name}" in result.output
    assert is_one_sentence(result)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("job", ["verify", "audit"])
@pytest.mark.parametrize("part", ["epochFileCheckpoint", "checkpoint"])
def test_a_small_file_that_may_not_be_read_is_named(
    tmp_path: Path, store: Path, unreadable: Spoil, job: str, part: str
) -> None:
    """It is not taken for one that is missing."""
    unreadable(f"/{part}")

    result = call(job, store, tmp_path / "out")

    assert result.exit_code in (EXIT_NO_INPUT, EXIT_FAILED), result.output
    assert f"/{part}" in result.output
    assert is_one_sentence(result)


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Deletes a file when so much of it was read once: it was listed, and its size is known."""

    def spoil(store: Path, path: str) -> None:
        real = LocalFolder.read_into
        least = 4096 if path.startswith("commitlog") else 20  # larger than what only looks at a head

        def reading(self: LocalFolder, asked: str, position: int, target: memoryview) -> int:
            if asked == path and len(target) > least:
                (store / path).unlink(missing_ok=True)
                self.close()
            return real(self, asked, position, target)

        monkeypatch.setattr(LocalFolder, "read_into", reading)

    return spoil


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_log_file_that_goes_while_it_is_read_is_named(
    tmp_path: Path, store: Path, vanishing: Callable[[Path, str], None], job: str, number: int
) -> None:
    """Whether it was the first one, which may have expired, or one in the middle, which cannot: it is in the
    report, or the job says that it could not do its work; it never passes for a clean store."""
    file = sorted((store / "commitlog").iterdir())[number]
    vanishing(store, f"commitlog/{file.name}")

    result = call(job, store, tmp_path / "out")

    assert not file.exists()
    assert is_one_sentence(result), result.output
    assert "check the path" not in result.output
    assert not (tmp_path / "out").exists()
    if (job, number) == ("audit", 0):
        assert "sound from 65,536" in result.output  # it has expired: what is left is looked at
        return
    assert file.name in result.output, result.output
    assert result.exit_code == (0 if job == "inspect" else EXIT_FINDINGS)
    assert job != "inspect" or "file-unreadable" in result.output


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_a_queue_or_index_file_that_goes_while_it_is_read_is_named(
    tmp_path: Path, vanishing: Callable[[Path, str], None], folder: str
) -> None:
    """The check cannot be finished, and says so; the broker may just have deleted it."""
    store = unpack_fixture(tmp_path, "killed") / "broker-0" / "store"
    file = max(each for each in (store / folder).rglob("*") if each.name.isdigit() and each.is_file())
    vanishing(store, str(file.relative_to(store)))

    result = call("verify", store, tmp_path / "out")

    assert not file.exists()
    assert result.exit_code in (EXIT_FINDINGS, EXIT_FAILED), result.output
    assert "check the path" not in result.output
    assert file.name in result.output
    assert is_one_sentence(result)
