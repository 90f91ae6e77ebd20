"""A snapshot that comes in pieces: which piece is accepted, and what is being stored or installed."""

from __future__ import annotations

from brokerset_raft.messages import ChunkReceived, SnapshotChunk, SnapshotMeta


class Receiving:
    """The follower's side of a snapshot transfer; one piece at a time is with the shell."""

    def __init__(self) -> None:
        self._chunk: ChunkReceived | None = None
        self._handed = False
        self._stored: tuple[SnapshotMeta, int] | None = None

    @property
    def busy(self) -> bool:
        """Whether a piece is with the shell, or waits to be handed to it."""
        return self._chunk is not None

    @property
    def installing(self) -> bool:
        """Whether that is the last piece: from now on the log must not change, for it will be replaced."""
        chunk = self._chunk
        return chunk is not None and chunk.offset + len(chunk.data) == chunk.meta.size

    @property
    def has_chunk(self) -> bool:
        """Whether `take` returns a piece."""
        return self._chunk is not None and not self._handed

    def take(self) -> ChunkReceived | None:
        """The piece that the shell has not got yet."""
        if not self.has_chunk:
            return None
        self._handed = True
        return self._chunk

    def accept(self, source: int, piece: SnapshotChunk) -> int | None:
        """Take a piece that follows what is stored; else returns how much is stored. Not while busy."""
        meta = piece.meta
        stored = self._stored[1] if self._stored is not None and self._stored[0] == meta else 0
        if piece.offset != stored:
            return stored
        end = piece.offset + len(piece.data)
        if end == meta.size or (piece.data and end < meta.size):
            self._chunk = ChunkReceived(source, meta, piece.offset, piece.data)
            self._handed = False
        return None

    def stored(self, meta: SnapshotMeta, next_offset: int) -> int | None:
        """The piece is stored, or all was in vain and `next_offset` is 0; returns who is to be told."""
        chunk = self._chunk
        if chunk is None or chunk.meta != meta or next_offset >= meta.size > 0:
            return None
        self._chunk = None
        self._stored = (meta, next_offset)
        return chunk.source

    def installed(self) -> int | None:
        """The whole snapshot is in force; returns who is to be told."""
        chunk, self._chunk, self._stored = self._chunk, None, None
        return None if chunk is None else chunk.source
