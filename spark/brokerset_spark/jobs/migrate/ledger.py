"""The files of a DLedger next to its data: index, `checkpoint`, `currterm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from brokerset_formats.dledger import INDEX_UNIT_SIZE, CurrentTerm, LedgerCheckpoint
from brokerset_spark.jobs.migrate.cloning import described, write_file
from brokerset_spark.stores.reading import Throttle

INDEX_FILE_SIZE: Final = 5 * 1024 * 1024 * INDEX_UNIT_SIZE
"""Bytes of an index file; DLedger has no setting for it."""


def write_index(
    staging: Path,
    ledger: str,
    scratch: list[str],
    file_size: int = INDEX_FILE_SIZE,
    throttle: Throttle | None = None,
) -> list[dict[str, Any]]:
    """Join the units that were read back into index files; gives what the journal needs."""
    files = []
    left = b""
    base = 0
    folder = staging / "store" / ledger / "index"

    def put(data: bytes) -> None:
        path = folder / f"{base:020d}"
        write_file(path, [data], size=file_size)
        files.append(described(str(staging), path, used=len(data), throttle=throttle))

    for name in scratch:
        read = (staging / name).read_bytes()
        if throttle is not None:
            throttle.took(len(read))
        left += read
        while len(left) >= file_size:
            put(left[:file_size])
            left = left[file_size:]
            base += file_size
    if left:
        put(left)
    return files


def write_state(staging: Path, ledger: str, *, term: int, last_index: int) -> list[dict[str, Any]]:
    """All entries are committed, and nobody was voted for."""
    folder = staging / "store" / ledger
    write_file(folder / "currterm", [CurrentTerm(term).encode()])
    write_file(folder / "checkpoint", [LedgerCheckpoint(last_index, last_index).encode()])
    return [described(str(staging), folder / name) for name in ("currterm", "checkpoint")]
