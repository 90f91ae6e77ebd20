"""What `spark.py` measures: one function for each case, by name.

A case does its work once on one part of a store and says how much there was. It runs in a process of its own; what it needs in memory is made by
its first, unmeasured run. Cases write only below `Work.scratch`, which is empty each time.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_spark.kernels import KERNELS, Stop
from brokerset_spark.kernels.contract import Bytes
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import LogFile, read_log
from brokerset_spark.stores.reading import Chunk, Outcome, read_range, split

PIECE = 4 << 20
"""Bytes that kernels get at once, as jobs do it."""

NOISE_BYTES = 32 << 20
"""So much is searched in vain."""


@dataclass(slots=True)
class Work:
    """What one process works on."""

    store: Path
    scratch: Path
    part: int
    parts: int
    workers: int = 1
    """Processes of a job."""

    closing: ExitStack = field(default_factory=ExitStack)
    """What is to be ended with this process."""

    kept: dict[str, Any] = field(default_factory=dict)
    """What a case wants to keep from run to run."""

    def files(self) -> list[LogFile]:
        """The log files of this part."""
        return list(read_log(LocalFolder(self.store), "commitlog").files[self.part :: self.parts])

    def data(self) -> tuple[Bytes, int]:
        """The first file of this part in memory, and the offset of its first byte."""
        if "data" not in self.kept:
            first = self.files()[0]
            self.kept["data"] = np.fromfile(self.store / first.path, np.uint8), first.base
        found: tuple[Bytes, int] = self.kept["data"]
        return found


@dataclass(frozen=True, slots=True)
class Amount:
    """What was worked on."""

    bytes: int
    """Of the commit log that was read (not of what was written)."""

    records: int = 0


Run = Callable[[Work], Amount]


@dataclass(frozen=True, slots=True)
class Case:
    """A case by its name."""

    name: str
    run: Run
    what: str
    processes: tuple[int, ...]
    is_job: bool
    """Whether one process starts the others itself."""

    goals: dict[str, float]
    """`mb`: MB/s of a core; `cp`: share of cp's speed, both of CPU time. By kind of store: `mb-1024`, `cp-100`."""


CASES: dict[str, Case] = {}


def case(
    name: str,
    what: str,
    *,
    processes: tuple[int, ...] = (1, 2),
    is_job: bool = False,
    **goals: float,
) -> Callable[[Run], Run]:
    """Add a function to the cases."""

    def add(run: Run) -> Run:
        named = {key.replace("_", "-"): value for key, value in goals.items()}
        CASES[name] = Case(name, run, what, processes, is_job, named)
        return run

    return add


@case("cp", "coreutils, from the page cache into a file")
def copy_files(work: Work) -> Amount:
    paths = [work.store / each.path for each in work.files()]
    subprocess.run(["cp", "--reflink=never", *map(str, paths), str(work.scratch)], check=True)
    return Amount(sum(path.stat().st_size for path in paths))


@case("sha256sum", "cat | sha256sum")
def hash_files(work: Work) -> Amount:
    paths = [str(work.store / each.path) for each in work.files()]
    with subprocess.Popen(["cat", *paths], stdout=subprocess.PIPE) as cat:
        subprocess.run(["sha256sum"], stdin=cat.stdout, check=True, stdout=subprocess.DEVNULL)
    assert cat.returncode == 0
    return Amount(sum(Path(path).stat().st_size for path in paths))


@case("cat", "the same through a process: on one file system cp copies inside the kernel")
def cat_files(work: Work) -> Amount:
    paths = [work.store / each.path for each in work.files()]
    with (work.scratch / "data").open("wb") as target:
        subprocess.run(["cat", *map(str, paths)], check=True, stdout=target)
    return Amount(sum(path.stat().st_size for path in paths))


@case("memcpy", "pieces of a file in memory to one place")
def copy_memory(work: Work) -> Amount:
    data, _ = work.data()
    out = work.kept.setdefault("out", np.empty(PIECE, np.uint8))
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        out[: len(piece)] = piece
    return Amount(len(data))


def in_pieces(work: Work, *, crc: bool = False) -> Iterator[tuple[Bytes, Any]]:
    """What is in memory, walked piece by piece."""
    data, base = work.data()
    position, stop = 0, Stop.RANGE_END
    while position < len(data) and stop in (Stop.RANGE_END, Stop.SHORT):
        end = min(position + PIECE, len(data))
        piece = data[position:end]
        found = KERNELS.walk(piece, 0, len(piece), base + position, final=False, crc=crc)
        stop = found.stop
        if found.position == 0:
            break
        position += found.position
        yield piece, found


@case("walk", "lengths and offsets of a file in memory")
def walk(work: Work) -> Amount:
    done = records = 0
    for _, found in in_pieces(work):
        done, records = done + found.position, records + len(found.starts)
    return Amount(done, records)


@case("check", "the same and the CRC of each body", mb_1024=3000, mb_100=2000)
def check(work: Work) -> Amount:
    done = records = 0
    for _, found in in_pieces(work, crc=True):
        done, records = done + found.position, records + len(found.starts)
    return Amount(done, records)


@case("heads", "walk, and the fixed fields as columns")
def heads(work: Work) -> Amount:
    done = records = 0
    for piece, found in in_pieces(work):
        taken = KERNELS.heads(piece, found.starts)
        done, records = done + found.position, records + len(taken.offset)
    return Amount(done, records)


@case("tags", "walk, heads, one property, its Java hash")
def tags(work: Work) -> Amount:
    done = records = 0
    for piece, found in in_pieces(work):
        texts = KERNELS.find_property(piece, KERNELS.heads(piece, found.starts), b"TAGS")
        assert KERNELS.java_hashes(piece, texts).all()
        done, records = done + found.position, records + len(texts.starts)
    return Amount(done, records)


@case("entries", "walk, and rewrite as DLedger entries in memory")
def entries(work: Work) -> Amount:
    out = work.kept.setdefault("out", np.empty(PIECE * 2, np.uint8))
    done = records = 0
    for piece, found in in_pieces(work):
        sizes = found.sizes.astype(np.int64) + ENTRY_HEAD_SIZE
        positions = np.cumsum(sizes) - sizes
        KERNELS.to_entries(piece, found.starts, found.sizes, out, positions, 0, first_index=records, term=1)
        done, records = done + found.position, records + len(sizes)
    return Amount(done, records)


@case("resync", "search where no record is", processes=(1,))
def resync(work: Work) -> Amount:
    if "noise" not in work.kept:
        work.kept["noise"] = np.random.default_rng(1).integers(0, 256, NOISE_BYTES, np.uint8)
    noise = work.kept["noise"]
    for start in range(0, len(noise), PIECE):
        assert KERNELS.resync(noise[start : start + PIECE], 0, PIECE, start) < 0
    return Amount(len(noise))


def chunks(work: Work, *, crc: bool, piece: int = PIECE) -> Iterator[Chunk]:
    """The records of this part, read as jobs read them."""
    folder = LocalFolder(work.store)
    for wanted in split(tuple(work.files()), 1 << 28):
        outcome = Outcome(0, 0)
        yield from read_range(folder, wanted, outcome, crc=crc, piece=piece)
        assert outcome.stop in (Stop.BLANK, Stop.EMPTY, Stop.RANGE_END), outcome
    folder.close()


@case(
    "read",
    "read from the page cache and check, as jobs do",
    mb_1024=3000,
    mb_100=2000,
)
def read(work: Work) -> Amount:
    done = records = 0
    for chunk in chunks(work, crc=True):
        done, records = done + chunk.end - chunk.begin, records + len(chunk.starts)
    return Amount(done, records)


def rewrite_with(work: Work, *, crc: bool) -> Amount:
    """Records as entries into one file, as `migrate` writes it; neither synced nor read back, as `cp` is not."""
    from brokerset_spark.jobs.migrate.output import Output
    from brokerset_spark.jobs.migrate.selecting import PIECE as SMALL_PIECE
    from brokerset_spark.jobs.migrate.writing import Rewriter

    done = 0
    with Output(work.scratch / "data", eager=False) as output:
        log = Rewriter(output.put, base=0, ledger=True, term=1)
        for chunk in chunks(work, crc=crc, piece=SMALL_PIECE):
            log.put(chunk.data, chunk.starts, chunk.sizes)
            done += chunk.end - chunk.begin
        output.flush()
    return Amount(done, log.count)


@case(
    "rewrite",
    "read, rewrite as entries, write into a file",
    cp_1024=0.8,
    cp_100=0.8,
)
def rewrite(work: Work) -> Amount:
    return rewrite_with(work, crc=False)


@case("rewrite-crc", "the same and the CRC of each body", cp_1024=0.8, cp_100=0.6)
def rewrite_crc(work: Work) -> Amount:
    return rewrite_with(work, crc=True)


@case("sha256-python", "hashlib, for comparison", processes=(1,))
def hash_memory(work: Work) -> Amount:
    data, _ = work.data()
    hashlib.sha256(data.data).digest()
    return Amount(len(data))


def jobs() -> Any:
    """The functions of `spark_jobs`, which needs more packages than kernels do."""
    return import_module("spark_jobs")


def as_job(work: Work, name: str) -> Amount:
    """A job over the whole store."""
    module = jobs()
    run = module.runner(work.kept, work.closing, work.workers)
    return Amount(module.log_bytes(work.store), getattr(module, name)(work.store, work.scratch, run))


@case(
    "verify",
    "the job: log and queues against each other",
    is_job=True,
    mb_1024=3000,
    mb_100=2000,
)
def verify(work: Work) -> Amount:
    return as_job(work, "run_verify")


@case(
    "migrate-copy",
    "the job: into controller mode, files copied",
    is_job=True,
    cp_1024=0.8,
    cp_100=0.8,
)
def migrate_copy(work: Work) -> Amount:
    return as_job(work, "run_copy")


@case(
    "migrate-rewrite", "the job: into a DLedger, rewritten and read back, without key index",
    is_job=True, cp_1024=0.8, cp_100=0.6,
)  # fmt: skip
def migrate_rewrite(work: Work) -> Amount:
    return as_job(work, "run_rewrite")


@case("export", "the job: Parquet, Zstandard", is_job=True, mb_1024=300, mb_100=250)
def export(work: Work) -> Amount:
    return as_job(work, "run_export")


@case("frame", "all columns through Spark; the JVM counts", is_job=True, mb_1024=250, mb_100=200)
def frame(work: Work) -> Amount:
    module = jobs()
    return Amount(
        module.log_bytes(work.store), module.run_frame(work.kept, work.closing, work.store, work.workers)
    )
