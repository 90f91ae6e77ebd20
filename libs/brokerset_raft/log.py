"""The raft log in memory: entries after a base, terms, slices by size, conflict search, configurations."""

from __future__ import annotations

from collections.abc import Sequence

from brokerset_raft.configuration import Configuration
from brokerset_raft.messages import Entry, EntryKind, SnapshotMeta


class RaftLog:
    """The entries that are not dropped yet, in order and without a gap, and what lies before them.

    After `compact` a few entries that the snapshot covers may stay, so that a follower that is a
    little behind needs no snapshot; so `first_index` may be at or below the snapshot's index.
    """

    def __init__(self, snapshot: SnapshotMeta | None, entries: Sequence[Entry]) -> None:
        """A log as the disk has it: the newest snapshot, and the entries that follow it.

        Entries that the snapshot covers are dropped. Raises `ValueError` when there is a gap.
        """
        self.snapshot = snapshot
        """The newest snapshot on the disk."""
        self._base_index = 0 if snapshot is None else snapshot.index
        self._base_term = 0 if snapshot is None else snapshot.term
        self._entries: list[Entry] = []
        self._configurations: list[tuple[int, Configuration]] = []
        fresh = [entry for entry in entries if entry.index > self._base_index]
        if fresh and fresh[0].index != self._base_index + 1:
            raise ValueError(
                f"the snapshot ends at {self._base_index} and the log starts at {fresh[0].index}: "
                "entries are missing"
            )
        self.append(fresh)

    @property
    def first_index(self) -> int:
        """Index of the first entry that is still here; `last_index + 1` when there is none."""
        return self._base_index + 1

    @property
    def last_index(self) -> int:
        """Index of the last entry, or of the snapshot, or 0."""
        return self._base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, or of the snapshot, or 0."""
        return self._entries[-1].term if self._entries else self._base_term

    def term(self, index: int) -> int | None:
        """Term of the entry at `index`; None when it is not known: dropped, or not there yet."""
        if index == self._base_index:
            return self._base_term
        if self._base_index < index <= self.last_index:
            return self._entries[index - self._base_index - 1].term
        return None

    def slice(self, first: int, last: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` to `last`, both included, of `bytes_max` data bytes at most, or one."""
        assert first >= self.first_index, f"entry {first} is dropped; the log starts at {self.first_index}"
        entries = self._entries[first - self._base_index - 1 : max(last - self._base_index, 0)]
        size = 0
        for count, entry in enumerate(entries):
            size += len(entry.data)
            if size > bytes_max and count > 0:
                return tuple(entries[:count])
        return tuple(entries)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries that directly follow the last one. Raises `ValueError` for any others."""
        for entry in entries:
            if entry.index != self.last_index + 1 or entry.term < self.last_term:
                raise ValueError(
                    f"entry {entry.index} of term {entry.term} cannot follow "
                    f"entry {self.last_index} of term {self.last_term}"
                )
            self._entries.append(entry)
            if entry.kind is EntryKind.CONFIGURATION:
                self._configurations.append((entry.index, Configuration.decode(entry.data)))

    def conflict(self, entries: Sequence[Entry]) -> int | None:
        """Index of the first of these entries that the log lacks or has with another term; None: has all."""
        for entry in entries:
            if self.term(entry.index) != entry.term:
                return entry.index
        return None

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on; the configuration in force may change back with them."""
        assert index >= self.first_index, f"cannot truncate at {index}: the log starts at {self.first_index}"
        del self._entries[index - self._base_index - 1 :]
        while self._configurations and self._configurations[-1][0] >= index:
            self._configurations.pop()

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """Largest index up to `index` whose term is at most `term`, with its term: where two logs may agree.

        Two logs cannot agree on an entry whose term is higher than the other's term at that place, so a whole
        term is skipped at once. Ends at the base, with its term.
        """
        index = min(index, self.last_index)
        while index > self._base_index:
            found = self._entries[index - self._base_index - 1].term
            if found <= term:
                return index, found
            index -= 1
        return self._base_index, self._base_term

    def compact(self, meta: SnapshotMeta, keep_entries: int = 0, keep_bytes: int = 0) -> None:
        """Take a newer snapshot; drop what it covers, but for the last few entries and bytes to keep."""
        if self.snapshot is not None and meta.index <= self.snapshot.index:
            return
        assert self.term(meta.index) == meta.term, f"snapshot {meta.index} does not lie in the log"
        self.snapshot = meta
        self._configurations = [pair for pair in self._configurations if pair[0] > meta.index]
        drop, size = meta.index - self._base_index, 0
        while drop > 0 and keep_entries > 0:
            size += len(self._entries[drop - 1].data)
            if size > keep_bytes:
                break
            drop, keep_entries = drop - 1, keep_entries - 1
        if drop > 0:
            self._base_term = self._entries[drop - 1].term
            self._base_index += drop
            del self._entries[:drop]

    def replace(self, meta: SnapshotMeta) -> None:
        """Drop everything: the state is now that of a snapshot which another node sent."""
        self.snapshot = meta
        self._base_index, self._base_term = meta.index, meta.term
        self._entries.clear()
        self._configurations.clear()

    @property
    def configuration_index(self) -> int:
        """Index of the last configuration entry that no snapshot covers, or 0."""
        return self._configurations[-1][0] if self._configurations else 0

    def configuration_at(self, index: int, initial: Configuration) -> Configuration:
        """The members as of `index`, which no snapshot covers; `initial` if nothing ever changed them."""
        for changed_index, configuration in reversed(self._configurations):
            if changed_index <= index:
                return configuration
        return initial if self.snapshot is None else self.snapshot.configuration
