"""Whether the brokers of a group have the same log, byte for byte, below what is confirmed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.output import fail, write_table
from brokerset_cli.replication_view import BrokerFacts, look_at_brokers
from brokerset_cli.scaling import running_state

CONFIRMED_SECONDS_MAX: Final = 30.0
"""Longest time until all brokers know that everything up to now is confirmed."""

LOOK_SECONDS: Final = 0.05
REPORT: Final = "please report this, with the logs"
CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Copy:
    """One broker's log."""

    name: str
    role: str
    start: int
    """Offset of its first byte."""

    confirmed: int
    log: Path
    """The folder of its files."""


def compare_copies(folder: DataFolder) -> None:
    """Compare the files of all brokers of the set's only group; ends the command when they differ."""
    state = running_state(folder)
    copies = asyncio.run(_confirmed_copies(state))
    begin = max(copy.start for copy in copies)
    end = min(copy.confirmed for copy in copies)
    if end <= begin:
        fail(f"nothing is confirmed: the logs begin at {begin:,} and are confirmed up to {end:,}", REPORT)
    digests = {copy.name: digest(copy.log, begin, end) for copy in copies}
    write_table(
        ("process", "role", "confirmed", f"SHA-256 of bytes {begin:,} to {end:,}"),
        [(copy.name, copy.role, copy.confirmed, digests[copy.name]) for copy in copies],
    )
    if len(set(digests.values())) != 1:
        at = first_difference([copy.log for copy in copies], begin, end)
        fail(f"the logs of {', '.join(digests)} differ from offset {at:,} on", REPORT)
    click.echo(f"All {len(copies)} logs have the same {end - begin:,} bytes.")


async def _confirmed_copies(state: SetState) -> list[Copy]:
    """Wait until every broker knows that what is in the master's log now is confirmed."""
    brokers = [process for process in state.processes if process.kind == "broker"]
    addresses = [process.address for process in brokers]
    goal = -1
    facts: dict[str, BrokerFacts] = {}
    try:
        async with asyncio.timeout(CONFIRMED_SECONDS_MAX):
            while True:
                facts = await look_at_brokers(addresses)
                if goal < 0:
                    goal = max(
                        (each.max_offset or 0 for each in facts.values() if each.is_master), default=-1
                    )
                confirmed = [facts[a].confirmed_offset if a in facts else None for a in addresses]
                if goal >= 0 and all(each is not None and each >= goal for each in confirmed):
                    return [_copy(process, facts[process.address]) for process in brokers]
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        told = "; ".join(
            f"{p.name}: {facts[p.address].confirmed_offset if p.address in facts else 'says nothing'}"
            for p in brokers
        )
        fail(f"not confirmed everywhere up to {goal:,} after {CONFIRMED_SECONDS_MAX:g} s: {told}", REPORT)


def _copy(process: ProcessState, facts: BrokerFacts) -> Copy:
    log = Path(process.folder) / "store" / "commitlog"
    start = min((int(path.name) for path in _files(log)), default=0)
    return Copy(process.name, facts.role, start, facts.confirmed_offset or 0, log)


def _files(log: Path) -> list[Path]:
    return sorted(path for path in log.iterdir() if path.name.isdigit())


def digest(log: Path, begin: int, end: int) -> str:
    """SHA-256 of the log's bytes from one offset to another."""
    found = hashlib.sha256()
    for chunk in chunks(log, begin, end):
        found.update(chunk)
    return found.hexdigest()


def chunks(log: Path, begin: int, end: int) -> Iterator[bytes]:
    """The log's bytes between two offsets, always cut at the same places. Raises `OSError`, `ValueError`."""
    offset = begin
    for path in _files(log):
        start, size = int(path.name), path.stat().st_size
        with path.open("rb") as stream:
            while start <= offset < min(start + size, end):
                stream.seek(offset - start)
                room = CHUNK_BYTES - offset % CHUNK_BYTES
                chunk = stream.read(min(room, end - offset, start + size - offset))
                if not chunk:
                    raise ValueError(f"{path} ended before {offset - start + 1:,} bytes")
                yield chunk
                offset += len(chunk)
    if offset < end:
        raise ValueError(f"{log} has nothing at offset {offset:,}")


def first_difference(logs: list[Path], begin: int, end: int) -> int:
    """Offset of the first byte that is not the same in all; `end` when there is none."""
    offset = begin
    for parts in zip(*(chunks(log, begin, end) for log in logs), strict=False):
        if len(set(parts)) > 1:
            shortest = min(map(len, parts))
            differs = (len(set(column)) > 1 for column in zip(*parts, strict=False))
            return offset + next((n for n, differ in enumerate(differs) if differ), shortest)
        offset += len(parts[0])
    return offset
