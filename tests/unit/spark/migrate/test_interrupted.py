"""A migration that is killed, wherever that is, goes on and ends with the same target."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from brokerset_rig.made_stores import message, write_log
from brokerset_rig.store_reading import queue_problems, read_store
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import JobFailed, NoInput
from brokerset_spark.jobs.running import LocalRunner

pytestmark = pytest.mark.long

FILE_SIZE = 4096
CHILD = """
import os, signal, sys
from brokerset_rig.pure_kernels import use_pure_kernels
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.running import LocalRunner

source, target, rewrite, at = sys.argv[1], sys.argv[2], sys.argv[3] == "rewrite", int(sys.argv[4])
seen = 0
EVENTS = {"os.rename", "os.truncate", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "fcntl.lockf"}

def watch(event, arguments):
    global seen
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event in EVENTS or writes:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

layout = "dledger" if rewrite else "controller"
options = MigrateOptions(to=layout, rewrite=rewrite, index_slots=16, index_units=64)
use_pure_kernels()
sys.addaudithook(watch)
report = migrate(LocalRunner(), source, target, options)
print(report.facts["state"], report.facts.get("tasksDoneBefore", 0), seen)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three files with messages of two queues, no queues and no index."""
    return make_store(tmp_path / "source")


def make_store(root: Path, count: int = 40) -> Path:
    """A store with this many messages of 200 bytes, without queues and index."""
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{"t":{"topicName":"t"}}}')
    records = [
        message(
            number,
            queue_id=number % 2,
            queue_offset=number // 2,
            store_timestamp=1_700_000_000_000 + number * 1_000,
            body=b"%d" % number * 60,
            topic="t",
            properties=b"UNIQ_KEY\x01%032d\x02TAGS\x01A\x02" % number,
        )
        for number in range(count)
    ]
    write_log(root, records, file_size=FILE_SIZE)
    return root


def child(source: Path, target: Path, way: str, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(source), str(target), way, str(at)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def digest_of(target: Path) -> dict[str, bytes]:
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.stat().st_size < 1 << 20
    }


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("way", ["rewrite", "copy"])
def test_killed_anywhere_it_goes_on(source: Path, tmp_path: Path, way: str, every: int) -> None:
    """SIGKILL of a real process before things that it does to files; the next start finishes each time.

    The target appears whole or not at all, and is the same as that of a run that nobody disturbed.
    """
    smooth = child(source, tmp_path / "smooth", way, -1)
    assert smooth.returncode == 0, smooth.stderr
    total = int(smooth.stdout.split()[-1])
    wanted = digest_of(tmp_path / "smooth")
    assert total > 30
    resumed = 0

    for at in range(1, total + 1, every):
        target = tmp_path / f"target-{at}"
        killed = child(source, target, way, at)
        assert killed.returncode == -9, killed.stderr
        if target.exists():
            assert digest_of(target) == wanted

        again = child(source, target, way, -1)

        assert again.returncode == 0, (at, again.stderr)
        assert digest_of(target) == wanted, at
        assert not target.with_name(f"{target.name}.brokerset-staging").exists()
        state, before, _ = again.stdout.rsplit(maxsplit=2)
        resumed += state == "done" and int(before) > 0

    assert resumed * every > 40, "later starts used what earlier ones had done"
    assert queue_problems(tmp_path / "smooth") == []


def run(source: Path, target: Path, **given: object) -> object:
    options = MigrateOptions(**{"to": "controller", "index_slots": 16, "index_units": 64, **given})  # type: ignore[arg-type]
    return migrate(LocalRunner(), str(source), str(target), options)


def test_a_second_run_says_that_it_is_done(source: Path, tmp_path: Path) -> None:
    """The same inputs again change nothing, even when a broker has used the target since."""
    first = migrate(LocalRunner(), str(source), str(tmp_path / "target"), MigrateOptions(to="controller"))
    (tmp_path / "target" / "abort").write_text("1\n")
    before = digest_of(tmp_path / "target")

    second = migrate(LocalRunner(), str(source), str(tmp_path / "target"), MigrateOptions(to="controller"))

    assert (first.facts["state"], second.facts["state"]) == ("done", "already done")
    assert second.counters["recordsKept"] == first.counters["recordsKept"] == 40
    assert digest_of(tmp_path / "target") == before


def test_a_plan_writes_nothing(source: Path, tmp_path: Path) -> None:
    """`plan_only` tells the way and leaves no file behind."""
    before = sorted(tmp_path.rglob("*"))

    report = migrate(
        LocalRunner(),
        str(source),
        str(tmp_path / "target"),
        MigrateOptions(to="dledger", rewrite=True),
        plan_only=True,
    )

    assert (report.facts["state"], report.facts["way"]) == ("planned", "rewrite")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_target_with_other_things_in_it_is_refused(source: Path, tmp_path: Path) -> None:
    """Nobody's folder is written into, nor that of another migration."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    run(source, tmp_path / "target")

    with pytest.raises(JobFailed, match="exists and is not empty"):
        run(source, tmp_path / "full")
    with pytest.raises(JobFailed, match="result of another migration"):
        run(source, tmp_path / "target", file_size=8192)
    assert (tmp_path / "full" / "mine").read_text() == "x"


@pytest.mark.parametrize("target", ["source", "source/inner", "."])
def test_never_in_place(source: Path, tmp_path: Path, target: str) -> None:
    """Neither the source itself, nor inside, nor around it."""
    with pytest.raises(JobFailed, match="lies in the source, or the source in it"):
        run(source, tmp_path / target)


def test_a_running_broker_is_refused(source: Path, tmp_path: Path) -> None:
    """Whoever holds the store's lock as brokers do keeps a migration away, and is named."""
    (source / "lock").write_bytes(b"lock")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(source / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"

        with pytest.raises(NoInput, match=f"process {holder.pid} has this store open"):
            run(source, tmp_path / "target")
    finally:
        holder.communicate(b"\n", timeout=20)
    run(source, tmp_path / "target")


HOLD = """
import fcntl, sys
stream = open(sys.argv[1], "r+b")
fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.readline()
"""


class Meddling(LocalRunner):
    """Lets something happen while tasks run."""

    def __init__(self, meddle: Callable[[], None]) -> None:
        super().__init__()
        self._meddle = meddle

    def run(self, task, rows, reducer=""):  # type: ignore[no-untyped-def]
        yield from super().run(task, rows, reducer)
        self._meddle()


def test_brokers_are_held_off_meanwhile(source: Path, tmp_path: Path) -> None:
    """While a migration reads, a broker does not get the store's lock."""
    (source / "lock").write_bytes(b"lock")
    told: list[str] = []

    def try_lock() -> None:
        done = subprocess.run(
            [sys.executable, "-c", HOLD, str(source / "lock")],
            capture_output=True,
            text=True,
            input="\n",
            timeout=20,
        )
        told.append("locked" if "locked" in done.stdout else done.stderr.splitlines()[-1])

    migrate(Meddling(try_lock), str(source), str(tmp_path / "target"), MigrateOptions(to="controller"))

    assert told
    assert all("unavailable" in each for each in told)


def test_a_source_that_changes_meanwhile_is_noticed(source: Path, tmp_path: Path) -> None:
    """Then no target appears."""

    def write() -> None:
        (source / "new-file").write_text("x")

    with pytest.raises(JobFailed, match="has changed meanwhile"):
        migrate(Meddling(write), str(source), str(tmp_path / "target"), MigrateOptions(to="controller"))

    assert not (tmp_path / "target").exists()


def test_a_source_that_changed_since_is_not_mixed_with_the_old_one(source: Path, tmp_path: Path) -> None:
    """What was begun with another source is not gone on with."""
    assert child(source, tmp_path / "target", "copy", 25).returncode == -9
    (source / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{}}')

    with pytest.raises(JobFailed, match="the source has changed since"):
        run(source, tmp_path / "target")


def test_a_file_that_was_damaged_between_two_starts_is_made_again(source: Path, tmp_path: Path) -> None:
    """What the journal says is done counts only while its digest is right."""
    assert child(source, tmp_path / "target", "rewrite", 110).returncode == -9
    written = sorted((tmp_path / "target.brokerset-staging" / "store").glob("dledger-*/data/*"))
    data = bytearray(written[0].read_bytes())
    data[200] ^= 1
    written[0].write_bytes(data)

    again = child(source, tmp_path / "target", "rewrite", -1)

    assert again.returncode == 0, again.stderr
    assert int(again.stdout.split()[-2]) > 0, "the other files are used"
    before, after = read_store(source), read_store(tmp_path / "target")
    assert [each.content for each in before] == [each.content for each in after]


def test_damage_between_records_stops_the_migration(source: Path, tmp_path: Path) -> None:
    """No message is passed over in silence: file and offset are named; the part before can be taken."""
    path = source / "commitlog" / f"{0:020d}"
    stored = read_store(source)
    data = bytearray(path.read_bytes())
    data[stored[5].offset + 100] ^= 1
    path.write_bytes(data)

    with pytest.raises(JobFailed, match=f"no record can be read at {stored[5].offset}"):
        run(source, tmp_path / "target")
    run(source, tmp_path / "part", to="commitlog", until_offset=stored[5].offset)

    assert len(read_store(tmp_path / "part")) == 5


def test_a_lost_tail_is_noticed_by_the_queues(source: Path, tmp_path: Path) -> None:
    """A store that was closed in order has what its queues point to; else something is damaged."""
    run(source, tmp_path / "whole", to="commitlog", rewrite=True)
    last = sorted((tmp_path / "whole" / "commitlog").iterdir())[-1]
    stored = read_store(tmp_path / "whole")[-1]
    data = bytearray(last.read_bytes())
    data[stored.offset - int(last.name) :] = bytes(len(data) - stored.offset + int(last.name))
    last.write_bytes(data)

    with pytest.raises(JobFailed, match="queues point behind it"):
        run(tmp_path / "whole", tmp_path / "target")
    (tmp_path / "whole" / "abort").write_text("1\n")
    run(tmp_path / "whole", tmp_path / "killed")

    assert len(read_store(tmp_path / "killed")) == 39


def test_a_copy_that_reads_back_differently_is_never_shown(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit that flips between writing and reading back keeps the target away."""
    flipped: list[Path] = []

    def flip() -> None:
        for path in (tmp_path / "target.brokerset-staging" / "store" / "commitlog").glob("*"):
            if not flipped:
                data = bytearray(path.read_bytes())
                data[150] ^= 1
                path.write_bytes(data)
                flipped.append(path)

    with pytest.raises(JobFailed, match="reads back differently"):
        migrate(
            Meddling(flip),
            str(source),
            str(tmp_path / "target"),
            MigrateOptions(to="commitlog", rewrite=True),
        )
    assert flipped
    assert not (tmp_path / "target").exists()


def test_no_room_is_said_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's free space is compared with what the source takes."""
    monkeypatch.setattr("brokerset_spark.jobs.migrate.job.SPARE_BYTES", 1 << 60)

    with pytest.raises(JobFailed, match="bytes left, and the new store needs about"):
        run(source, tmp_path / "target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_the_record_beside_the_target_has_every_file(source: Path, tmp_path: Path) -> None:
    """Names, sizes and digests of all files, for whoever asks later."""
    run(source, tmp_path / "target", rewrite=True)

    record = orjson.loads((tmp_path / "target.brokerset-migration.json").read_bytes())
    names = {
        path.relative_to(tmp_path / "target").as_posix()
        for path in (tmp_path / "target").rglob("*")
        if path.is_file()
    }
    assert {each["path"] for each in record["files"]} | {"lock"} == names
    assert all(len(each["digest"]) == 32 for each in record["files"])
