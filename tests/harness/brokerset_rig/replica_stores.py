"""Stores of replicas made record by record, and the damage that they can take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from brokerset_formats.checkpoints import StoreCheckpoint
from brokerset_formats.dledger import BLANK as LEDGER_BLANK
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, MAGIC_BLANK, LedgerCheckpoint, LedgerEntry, LedgerUnit
from brokerset_formats.epochs import encode_epoch_file, history_of
from brokerset_formats.hosts import Host
from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import BLANK, BLANK_SIZE_MIN, Record, encode_record
from brokerset_formats.records import MAGIC_BLANK as RECORD_BLANK

HOST = Host(bytes([127, 0, 0, 1]), 10911)
FILE_SIZE = 65_536


@dataclass
class Log:
    """The bytes of a log from offset 0, with all its blank records."""

    file_size: int = FILE_SIZE
    entries: bool = False
    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    """Of the records; in a DLedger of the entries."""

    terms: list[int] = field(default_factory=list)
    queue_offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.data)

    def append(self, body: bytes, *, topic: str = "orders", queue_id: int = 0, term: int = 1) -> int:
        """Write one record, behind a blank one if it does not fit into the file; its offset."""
        queue_offset = self.queue_offsets.get((topic, queue_id), 0)
        size = len(self._record(body, topic, queue_id, queue_offset, 0, term))
        room = self.file_size - self.end % self.file_size
        if size + BLANK_SIZE_MIN > room:
            blank = LEDGER_BLANK.pack(MAGIC_BLANK, room) if self.entries else BLANK.pack(room, RECORD_BLANK)
            self.data += blank + bytes(room - len(blank))
        start = self.end
        self.data += self._record(body, topic, queue_id, queue_offset, start, term)
        self.starts.append(start)
        self.terms.append(term)
        self.queue_offsets[topic, queue_id] = queue_offset + 1
        return start

    def fill(self, count: int, *, size: int = 200, text: str = "", term: int = 1) -> None:
        """Many records."""
        for _ in range(count):
            body = f"{text}{len(self.starts)}".encode().ljust(size, b".")
            self.append(body, queue_id=len(self.starts) % 4, term=term)

    def copy(self, until: int | None = None) -> Log:
        """The same, or what lies before an offset at which a record begins."""
        until = self.end if until is None else until
        kept = sum(1 for start in self.starts if start < until)
        return Log(
            self.file_size, self.entries, self.data[:until], self.starts[:kept], self.terms[:kept],
            dict(self.queue_offsets),
        )  # fmt: skip

    def _record(
        self, body: bytes, topic: str, queue_id: int, queue_offset: int, offset: int, term: int
    ) -> bytes:
        record = encode_record(
            Record(
                queue_id=queue_id,
                queue_offset=queue_offset,
                offset=offset + (ENTRY_HEAD_SIZE if self.entries else 0),
                born_timestamp=1_700_000_000_000 + queue_offset,
                born_host=HOST,
                store_timestamp=1_700_000_000_001 + queue_offset,
                store_host=HOST,
                body=body,
                topic=topic,
                properties=encode_properties({"UNIQ_KEY": f"{offset:032X}"}),
            )
        )
        return LedgerEntry(len(self.starts), term, offset, record).encode() if self.entries else record


def write_replica(
    root: Path,
    log: Log,
    *,
    epochs: tuple[tuple[int, int], ...] = (),
    confirmed: int | None = None,
    broker_id: int = 1,
    name: str = "broker-a",
    expired: int = 0,
    file_size: int | None = None,
) -> Path:
    """A store folder with this log; `expired` files are gone from its beginning. `confirmed` goes into the checkpoint.

    With another `file_size` the same bytes lie in other files, as they would at a slave with other settings.
    """
    size = file_size or log.file_size
    folder = root / ("dledger-n0/data" if log.entries else "commitlog")
    folder.mkdir(parents=True)
    for base in range(expired * size, max(log.end, 1), size):
        (folder / f"{base:020d}").write_bytes(bytes(log.data[base : base + size]).ljust(size, b"\0"))
    if log.entries:
        _write_ledger(root / "dledger-n0", log, confirmed)
        return root
    if epochs:
        (root / "epochFileCheckpoint").write_bytes(encode_epoch_file(history_of(epochs)))
    (root / "brokerIdentity").write_bytes(BrokerIdentity("cluster", name, broker_id).encode())
    checkpoint = StoreCheckpoint(
        physic_msg_timestamp=1, logics_msg_timestamp=1, confirm_phy_offset=confirmed or 0
    )
    (root / "checkpoint").write_bytes(checkpoint.encode())
    return root


def write_replicas(
    folder: Path, *replicas: tuple[Log, tuple[tuple[int, int], ...], int | None]
) -> list[Path]:
    """Stores `a`, `b`, … below a folder: a log, its epochs, and what the store knows to be confirmed; ids from 1."""
    return [
        write_replica(folder / name, log, epochs=epochs, confirmed=confirmed, broker_id=number)
        for number, (name, (log, epochs, confirmed)) in enumerate(zip("abcdefg", replicas, strict=False), 1)
    ]


def _write_ledger(folder: Path, log: Log, confirmed: int | None) -> None:
    units = []
    for index, (start, term) in enumerate(zip(log.starts, log.terms, strict=True)):
        size = int.from_bytes(log.data[start + 4 : start + 8], "big")
        units.append(LedgerUnit(start, size, index, term))
    (folder / "index").mkdir()
    (folder / "index" / f"{0:020d}").write_bytes(
        b"".join(unit.encode() for unit in units).ljust(32 * 4096, b"\0")
    )
    committed = (
        len(units) - 1 if confirmed is None else sum(1 for unit in units if unit.position < confirmed) - 1
    )
    (folder / "checkpoint").write_bytes(LedgerCheckpoint(committed, len(units) - 1).encode())


def flip(root: Path, offset: int, bit: int = 1) -> Path:
    """Change one byte of the log, as a disk may; returns the file."""
    folder = next(iter([*root.glob("dledger-*/data"), root / "commitlog"]))
    path = max(each for each in folder.iterdir() if int(each.name) <= offset)
    data = bytearray(path.read_bytes())
    data[offset - int(path.name)] ^= bit
    path.write_bytes(data)
    return path


def wipe(root: Path, begin: int, end: int) -> None:
    """Zeros between two offsets."""
    for path in sorted((root / "commitlog").iterdir()):
        base, data = int(path.name), bytearray(path.read_bytes())
        low, high = max(begin - base, 0), min(end - base, len(data))
        if low < high:
            data[low:high] = bytes(high - low)
            path.write_bytes(data)
