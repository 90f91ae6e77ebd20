"""Files of a migration while they are written: what was put in is what is there."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import xxhash

from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.migrate import output as module
from brokerset_spark.jobs.migrate.cloning import clone, copy_rest, opened, read_back
from brokerset_spark.jobs.migrate.copying import copy
from brokerset_spark.jobs.migrate.output import ALIGNMENT, Output
from brokerset_spark.jobs.migrate.selecting import Selection
from brokerset_spark.jobs.migrate.writing import blank_record
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.json_values import to_value
from brokerset_spark.stores.reading import Throttle

FREE = Throttle(0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("room", [0, 5_000_000])
def test_blocks_of_any_size_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, room: int
) -> None:
    """Shorter and longer than what is written at once; behind them zeros, and no room that is not used."""
    monkeypatch.setattr(module, "WRITEBACK_BYTES", 3 * ALIGNMENT)
    dice = random.Random(seed)
    blocks = [dice.randbytes(dice.choice((0, 1, 8, 700, ALIGNMENT, 200_000))) for _ in range(40)]
    wanted = b"".join(blocks)

    with Output(tmp_path / "part", room=room) as output:
        for block in blocks:
            output.put(memoryview(block))
        read_back(output, "x", FREE)
        output.finish(len(wanted) + 10_000_000, times_ns=(1, 2_000_000))
        output.publish(tmp_path / "whole")

    facts = (tmp_path / "whole").stat()
    assert (tmp_path / "whole").read_bytes() == wanted + bytes(10_000_000)
    assert output.described("x", 9)["digest"] == xxhash.xxh3_128_hexdigest(wanted)
    assert output.position == len(wanted)
    assert facts.st_mtime_ns == 2_000_000
    assert facts.st_blocks * 512 <= len(wanted) + 2 * ALIGNMENT
    assert not (tmp_path / "part").exists()


def test_holes_stay_holes(tmp_path: Path) -> None:
    """A file with data between holes, and a hole at its end, is copied as it is, and no larger."""
    source = tmp_path / "source"
    with source.open("wb") as stream:
        stream.truncate(40 << 20)
        for position in (0, 10 << 20, (20 << 20) + 5):
            stream.seek(position)
            stream.write(b"data" * 5_000)

    row = {"key": "k", "source": str(tmp_path), "staging": str(tmp_path / "s"), "rate": 0,
           "files": [{"from": "source", "to": "store/target"}]}  # fmt: skip
    (result,) = clone(row)

    target = tmp_path / "s" / "store" / "target"
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks + 8
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert result.row["files"][0]["digest"] == xxhash.xxh3_128_hexdigest(source.read_bytes())


def test_no_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """Room is reserved, not hoped for."""
    with pytest.raises(OSError, match="bytes are needed"):
        Output(tmp_path / "part", room=1 << 62)


@pytest.mark.parametrize("position", [0, ALIGNMENT, 299_999])
def test_what_reads_back_differently_is_never_published(tmp_path: Path, position: int) -> None:
    """A bit that flips between writing and reading back."""
    with Output(tmp_path / "part") as output:
        output.put(random.Random(1).randbytes(300_000))
        output.flush()
        os.pwrite(output.descriptor, bytes([os.pread(output.descriptor, 1, position)[0] ^ 1]), position)

        with pytest.raises(OSError, match="x reads back differently"):
            read_back(output, "x", FREE)


def test_a_source_that_becomes_shorter_is_told(tmp_path: Path) -> None:
    """Instead of a copy that ends too early."""
    (tmp_path / "source").write_bytes(b"x" * 1_000)
    with opened(tmp_path / "source") as reading, Output(tmp_path / "part") as output:
        copy_rest(reading, output, 1_000, FREE)
        os.truncate(tmp_path / "source", 1_000)
        with pytest.raises(OSError, match="the source ends at 1000 of 2000 bytes"):
            copy_rest(reading, output, 2_000, FREE)


def test_a_copied_log_that_reads_back_differently_is_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task fails, and there is no file of that name in the new store."""
    from brokerset_rig.replica_stores import Log, write_replica

    log = Log()
    log.fill(500)
    store = write_replica(tmp_path / "store", log, confirmed=log.end)
    first = sorted((store / "commitlog").iterdir())[0]
    size, path = log.file_size, f"commitlog/{first.name}"
    row = {
        "key": "copy", "source": str(store), "staging": str(tmp_path / "s"), "path": path,
        "target": f"store/{path}",
        "base": 0, "size": size, "start": 0, "end": size, "bound": size, "entries": False, "rate": 0,
        "scratch": None, "closes": False, "selection": to_value(Selection()),
    }  # fmt: skip
    (whole,) = copy(row)
    target = tmp_path / "s" / "store" / "commitlog" / first.name
    assert target.read_bytes() == first.read_bytes()
    assert whole.row["files"][0]["digest"] == xxhash.xxh3_128_hexdigest(first.read_bytes())
    target.unlink()
    real = Output.trim

    def flip(output: Output) -> None:
        real(output)
        os.pwrite(output.descriptor, b"\xff", 30_000)

    monkeypatch.setattr(Output, "trim", flip)

    with pytest.raises(OSError, match="reads back differently"):
        list(copy(row))
    assert not target.exists()


def test_shared_blocks_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system shares blocks (here a stand-in that copies), only what is new is written.

    What lies behind the last record becomes zeros all the same, and a DLedger's blank record stands there.
    """
    from brokerset_rig.replica_stores import Log, write_replica

    log = Log()
    log.fill(100)
    store = write_replica(tmp_path / "store", log, confirmed=log.end)
    (first,) = sorted((store / "commitlog").iterdir())
    whole = bytearray(first.read_bytes())
    whole[log.end + 8 :] = b"\xab" * (log.file_size - log.end - 8)  # left by an earlier log
    first.write_bytes(whole)
    written: list[tuple[int, int]] = []

    def share(target: int, request: int, source: int) -> None:
        assert request == 0x40049409
        os.pwrite(target, os.pread(source, 1 << 30, 0), 0)

    def write(descriptor: int, parts: list[memoryview], position: int) -> None:
        written.append((position, sum(map(len, parts))))
        os.pwritev(descriptor, parts, position)

    monkeypatch.setattr("brokerset_spark.jobs.migrate.output.fcntl.ioctl", share)
    monkeypatch.setattr(module, "write_all", write)
    migrated = migrate(LocalRunner(), str(store), str(tmp_path / "target"), MigrateOptions(to="dledger"))

    target = (tmp_path / "target" / "commitlog" / first.name).read_bytes()
    assert target[: log.end] == bytes(log.data)
    assert target[log.end :] == blank_record(log.file_size - log.end, ledger=False).ljust(
        log.file_size - log.end, b"\0"
    )
    assert (log.end, 8) in written
    assert all(position >= log.end for position, size in written if size > 8), "no record was written"
    assert migrated.counters["filesShared"] == 1
