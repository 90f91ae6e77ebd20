"""Random operations on the storage, with power failures at any instant, against a naive model."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from brokerset_raft.configuration import Configuration
from brokerset_raft.messages import Entry, EntryKind, HardState, SnapshotMeta
from brokerset_raft.storage import Loaded, Storage
from brokerset_rig.examples import examples

SECTOR_BYTES = 512


class PowerFailure(Exception):
    """The machine is gone."""


class File:
    """What a process sees of a file, and how much of it is surely on the disk."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = b""


class CrashingDisk:
    """Fails before its n-th change; then what was not synced is lost, torn or kept by chance."""

    def __init__(self, random_source: random.Random) -> None:
        self.random = random_source
        self.changes_left = 1 << 60
        self.files: dict[str, File] = {}
        self.durable: dict[str, File] = {}

    def change(self) -> None:
        self.changes_left -= 1
        if self.changes_left < 0:
            raise PowerFailure

    def names(self) -> list[str]:
        return sorted(self.files)

    def file(self, name: str) -> File:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def read(self, name: str) -> bytes:
        return bytes(self.file(name).data)

    def read_at(self, name: str, position: int, size: int) -> bytes:
        return bytes(self.file(name).data[position : position + size])

    def size(self, name: str) -> int:
        return len(self.file(name).data)

    def write(self, name: str, data: bytes) -> None:
        self.change()
        self.files[name] = File(data)

    def append(self, name: str, data: bytes) -> None:
        self.change()
        self.files.setdefault(name, File()).data += data

    def truncate(self, name: str, size: int) -> None:
        self.change()
        del self.file(name).data[size:]

    def sync(self, name: str) -> None:
        self.change()
        self.file(name).synced = bytes(self.file(name).data)

    def rename(self, old: str, new: str) -> None:
        self.change()
        self.files[new] = self.files.pop(old)

    def delete(self, name: str) -> None:
        self.change()
        self.files.pop(name, None)

    def sync_folder(self) -> None:
        self.change()
        self.durable = dict(self.files)

    def lose_power(self) -> None:
        after: dict[str, File] = {}
        for name in sorted({*self.files, *self.durable}):
            file = self.random.choice([self.durable.get(name), self.files.get(name)])
            if file is not None:
                after[name] = File(self.torn(file))
                after[name].synced = bytes(after[name].data)
        self.files = after
        self.durable = dict(after)
        self.changes_left = 1 << 60

    def torn(self, file: File) -> bytes:
        data, synced = bytes(file.data), file.synced
        if data == synced:
            return data
        if not data.startswith(synced):
            return self.random.choice([synced, data])
        kept = bytearray(data[: self.random.randint(len(synced), len(data))])
        if self.random.random() < 0.2:  # the new length arrived, and of the end no sector did
            del kept[max(len(synced), len(kept) - len(kept) % SECTOR_BYTES) :]
            kept += bytes(self.random.randint(1, 2000))
        if self.random.random() < 0.5:
            # Sectors arrive in any order: some read as zeros, but never what was synced of them.
            for begin in range(0, len(kept), SECTOR_BYTES):
                if self.random.random() < 0.3:
                    lost = range(max(begin, len(synced)), min(begin + SECTOR_BYTES, len(kept)))
                    kept[lost.start : lost.stop] = bytes(len(lost))
        return bytes(kept)


@dataclass
class Model:
    """What must be there, and what may be."""

    hard_state: HardState = field(default_factory=HardState)
    entries: dict[int, Entry] = field(default_factory=dict)
    snapshots: list[SnapshotMeta] = field(default_factory=list)

    @property
    def last(self) -> int:
        return max([*self.entries, self.snapshots[-1].index if self.snapshots else 0])

    def copy(self) -> Model:
        return Model(self.hard_state, dict(self.entries), list(self.snapshots))

    def save(self, hard_state: HardState | None, entries: list[Entry]) -> None:
        if hard_state is not None:
            self.hard_state = hard_state
        for entry in entries:
            for index in [index for index in self.entries if index >= entry.index]:
                del self.entries[index]
            self.entries[entry.index] = entry

    def view(self) -> Loaded:
        meta = self.snapshots[-1] if self.snapshots else None
        begin = meta.index if meta is not None else 0
        entries = tuple(self.entries[index] for index in sorted(self.entries) if index > begin)
        return Loaded(self.hard_state, meta, entries)


class Run:
    """One node's life. `allowed` are all states that a crash right now may leave."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = CrashingDisk(self.random)
        self.model = Model()
        self.allowed: list[Model] = []
        self.states: dict[int, bytes] = {}
        self.floor = 0
        self.storage = Storage(self.disk, segment_bytes=3000)
        self.storage.load()

    def one(self) -> None:
        choice = self.random.random()
        if choice < 0.75:
            self.save()
        elif choice < 0.9 and self.model.last > self.snapshot_index:
            self.write_snapshot()
        else:
            self.install()

    @property
    def snapshot_index(self) -> int:
        return self.model.snapshots[-1].index if self.model.snapshots else 0

    def save(self) -> None:
        term = self.model.hard_state.term
        hard_state = None
        if self.random.random() < 0.3:
            term += self.random.randint(0, 2)
            hard_state = HardState(term, self.random.choice([None, 1, 2]))
        self.floor = max(self.floor, self.snapshot_index)
        first = self.random.randint(max(self.floor + 1, self.model.last - 3), self.model.last + 1)
        count = self.random.choice([0, 1, 1, 2, 5])
        entries = []
        for index in range(first, first + count):
            size = self.random.choice([0, 10, 100, 600, 1500])
            data = self.random.choice([self.random.randbytes(size), bytes(size)])
            entries.append(Entry(index, term, EntryKind.DATA, data))
        for done in range(len(entries) + 1):
            state = self.model.copy()
            state.save(hard_state, entries[:done])
            self.allowed.append(state)
        self.storage.save(hard_state, entries)
        self.model = self.allowed[-1]

    def meta(self, index: int, term: int) -> SnapshotMeta:
        data = self.states[index] = self.random.randbytes(self.random.choice([0, 50, 2000]))
        return SnapshotMeta(index, term, Configuration(), len(data), zlib.crc32(data))

    def write_snapshot(self) -> None:
        index = self.random.randint(self.snapshot_index + 1, self.model.last)
        meta = self.meta(index, self.model.entries[index].term)
        after = self.model.copy()
        after.snapshots.append(meta)
        self.allowed.append(after)
        self.storage.write_snapshot(meta, self.states[index])
        self.model = after
        self.allowed = [after]
        self.storage.drop_below(index)

    def install(self) -> None:
        index = self.random.randint(self.snapshot_index + 1, self.model.last + 5)
        known = self.model.entries.get(index)
        agrees = known is not None and self.random.random() < 0.5
        term = known.term if known is not None and agrees else self.model.hard_state.term + 1
        meta = self.meta(index, term)
        after = self.model.copy()
        after.snapshots.append(meta)
        if known is None or known.term != term:
            after.entries.clear()
        self.allowed.append(after)
        data = self.states[index]
        offset = 0
        while True:
            piece = data[offset : offset + 700]
            offset = self.storage.store_chunk(meta, offset, piece)
            if offset == len(data):
                break
        assert self.storage.install_partial(meta) == data
        self.model = after
        self.allowed = [after]
        self.storage.drop_below(index)

    def crash_and_check(self) -> None:
        while True:
            self.disk.lose_power()
            self.storage = Storage(self.disk, segment_bytes=3000)
            try:
                self.disk.changes_left = self.random.choice([1 << 60, self.random.randint(0, 8)])
                loaded = self.storage.load()
            except PowerFailure:
                continue
            break
        self.disk.changes_left = 1 << 60
        views = [state.view() for state in self.allowed]
        assert loaded in views, f"{loaded} is none of {views}"
        if loaded.snapshot is not None:
            assert self.storage.snapshot_data(loaded.snapshot) == self.states[loaded.snapshot.index]
        self.model = self.allowed[views.index(loaded)]
        self.model.entries = {entry.index: entry for entry in loaded.entries}


@examples(400)
@given(
    seed=st.integers(0, 1 << 32),
    crashes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
)
@example(seed=6085, crashes=[0, 0, 0, 0, 30])  # a sector was lost that held one bit of a vote
def test_what_was_synced_is_there_after_any_crash(seed: int, crashes: list[int]) -> None:
    """After a power failure at any instant all that was synced is loaded, and of the last save a prefix."""
    run = Run(seed)
    for changes in crashes:
        run.disk.changes_left = changes
        try:
            while True:
                run.allowed = [run.model]
                run.one()
        except PowerFailure:
            pass
        run.crash_and_check()
