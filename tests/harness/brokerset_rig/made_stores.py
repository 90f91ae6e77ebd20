"""Small stores for tests: written record by record, or unpacked from those that the Java broker wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brokerset_formats.dledger import BLANK as LEDGER_BLANK
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_BLANK, LedgerEntry
from brokerset_formats.hosts import Host
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import BLANK, COMPUTE_CRC, Record, decode_record, encode_record
from brokerset_formats.records import MAGIC_BLANK as RECORD_BLANK
from brokerset_rig.archives import extract_archive

if TYPE_CHECKING:
    import pytest

FIXTURES: Final = Path(__file__).parents[2] / "peers" / "fixtures"
OWN: Final = Path(__file__).parents[2] / "java"
"""Stores that a script of ours had Java write."""

STORES: Final = (
    ("classic", "broker-0"),
    ("controller-mode", "broker-0"),
    ("controller-mode", "broker-1"),
    ("dledger", "broker-0"),
    ("dledger", "broker-1"),
    ("dledger-mixed", "broker-0"),
    ("killed", "broker-0"),
)
"""Archives and the folders of brokers in them."""

V4: Final = Host(bytes([10, 0, 0, 7]), 10911)
V6: Final = Host(bytes(range(16)), 10911)


def unpack_fixture(folder: Path, archive: str) -> Path:
    """Unpack one archive below a folder; gives the folder of its brokers. Sparse files stay sparse."""
    name = f"{archive}.tar.xz"
    with tarfile.open(next(place / name for place in (FIXTURES, OWN) if (place / name).exists())) as tar:
        extract_archive(tar, folder)
    return folder / archive if (folder / archive).is_dir() else folder


def unpacked_once(folders: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder of an archive, unpacked when it is asked for first; nobody may change it."""
    return cache(lambda archive: unpack_fixture(folders.mktemp(archive), archive))


def expected(folder: Path) -> dict[int, dict[str, Any]]:
    """What the Java broker itself gave out of an unpacked fixture, by offset of the log."""
    lines = (json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines())
    return {int(line["commitLogOffset"]): line for line in lines}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was written."""

    file: Path
    position: int
    offset: int
    """Of the record; in a DLedger 48 behind its entry."""

    data: bytes

    @property
    def record(self) -> Record:
        return decode_record(self.data)


def message(number: int, **changes: Any) -> Record:
    """A record that differs with its number; its offset is set when it is written."""
    record = Record(
        queue_id=number % 4,
        flag=number,
        queue_offset=number // 4,
        offset=0,
        born_timestamp=1_795_000_000_000 + number * 10,
        born_host=V6 if number % 5 == 1 else V4,
        store_timestamp=1_795_000_000_003 + number * 10,
        store_host=V6 if number % 7 == 2 else V4,
        body=b"body-%d " % number * (number % 9),
        topic=("orders", "payments", "näme", "%RETRY%group")[number % 4],
        properties=encode_properties({"KEYS": f"k-{number}", "TAGS": "AB"[number % 2], "n": str(number)}),
    )
    return replace(record, **{"body_crc": COMPUTE_CRC, **changes})


def write_log(
    store: Path, records: Iterable[Record], *, file_size: int = 4096, base: int = 0, entries: bool = False
) -> list[Place]:
    """Write a log as brokers do: whole files, made in advance, a blank record where one ends.

    With `entries` it is a DLedger's, every record in an entry of term 1.
    """
    folder = store / ("dledger-n0/data" if entries else "commitlog")
    folder.mkdir(parents=True, exist_ok=True)
    content: bytearray | None = None
    places: list[Place] = []
    for number, record in enumerate(records):
        head = ENTRY_HEAD_SIZE if entries else 0
        size = record.size + head
        if content is not None and size + 8 > file_size - len(content):
            free = file_size - len(content)
            content += LEDGER_BLANK.pack(MAGIC_BLANK, free) if entries else BLANK.pack(free, RECORD_BLANK)
            _write(folder, base, content, file_size)
            base, content = base + file_size, None
        if content is None:
            content = bytearray()
        position = len(content) + head
        data = encode_record(replace(record, offset=base + position))
        places.append(Place(folder / f"{base:020d}", position, base + position, data))
        content += LedgerEntry(number, 1, base + len(content), data).encode() if entries else data
    _write(folder, base, content or bytearray(), file_size)
    return places


def _write(folder: Path, base: int, content: bytearray, size: int) -> None:
    assert len(content) <= size, "the record is longer than a file"
    (folder / f"{base:020d}").write_bytes(bytes(content).ljust(size, b"\0"))


def damage(place: Place, position: int = 4, data: bytes = b"\xff\xff\xff\xff") -> None:
    """Write over a part of a record; at 4 is its magic, from 88 on its body."""
    with place.file.open("r+b") as file:
        file.seek(place.position + position)
        file.write(data)


@contextmanager
def locked_elsewhere(file: Path) -> Iterator[None]:
    """Another process holds the lock as a broker does."""
    program = (
        "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f,fcntl.LOCK_EX,1,0)\n"
        "print('held',flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
    finally:
        process.communicate(b"", timeout=10)
