"""Whether the brokers of a group have the same log, byte for byte, below what is confirmed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from brokerset_bench.demo_faults import REPORT, brokers_of
from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.output import fail, write_columns
from brokerset_cli.replication_view import fetch_broker_facts
from brokerset_cli.scaling import running_state
from brokerset_cli.waiting import until
from brokerset_client.broker_facts import BrokerFacts

CONFIRMED_SECONDS_MAX: Final = 30.0
"""Longest time until all brokers know that everything up to now is confirmed."""

CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One broker's log."""

    name: str
    role: str
    start: int
    """Offset of its first byte."""

    confirmed: int
    log: Path
    """The folder of its files."""


def compare_logs(folder: DataFolder) -> None:
    """Compare the files of all brokers of the set's only group; ends the command when they differ."""
    state = running_state(folder)
    replicas = asyncio.run(_confirmed_logs(state))
    begin = max(replica.start for replica in replicas)
    end = min(replica.confirmed for replica in replicas)
    if end <= begin:
        fail(f"nothing is confirmed: the logs begin at {begin:,} and are confirmed up to {end:,}", REPORT)
    digests = {replica.name: digest(replica.log, begin, end) for replica in replicas}
    sum_column = f"SHA-256 of bytes {begin:,} to {end:,}"
    names = {name: name for name in ("role", "confirmed")}
    write_columns(replicas, {"process": "name", **names, sum_column: lambda replica: digests[replica.name]})
    if len(set(digests.values())) != 1:
        at = first_difference([replica.log for replica in replicas], begin, end)
        fail(f"the logs of {', '.join(digests)} differ from offset {at:,} on", REPORT)
    click.echo(f"All {len(replicas)} logs have the same {end - begin:,} bytes.")


async def _confirmed_logs(state: SetState) -> list[ReplicaLog]:
    """Wait until every broker knows that what is in the master's log now is confirmed."""
    brokers = brokers_of(state)
    goal = -1
    facts: dict[str, BrokerFacts] = {}

    async def all_confirmed() -> bool:
        nonlocal facts, goal
        facts = await fetch_broker_facts(process.address for process in brokers)
        if goal < 0:
            goal = max((each.max_offset or 0 for each in facts.values() if each.is_master), default=-1)
        confirmed = [each.confirmed_offset for each in facts.values()]
        reached = all(each is not None and each >= goal for each in confirmed)
        return goal >= 0 and len(confirmed) == len(brokers) and reached

    if await until(all_confirmed, CONFIRMED_SECONDS_MAX):
        return [_replica_log(process, facts[process.address]) for process in brokers]
    known = "; ".join(
        f"{p.name}: {facts[p.address].confirmed_offset if p.address in facts else 'says nothing'}"
        for p in brokers
    )
    fail(f"not confirmed everywhere up to {goal:,} after {CONFIRMED_SECONDS_MAX:g} s: {known}", REPORT)


def _replica_log(process: ProcessState, facts: BrokerFacts) -> ReplicaLog:
    store = Path(process.folder) / "store"
    ledger = facts.ledger
    log = store / "commitlog" if ledger is None else store / f"dledger-{ledger.member}" / "data"
    start = min((int(path.name) for path in _files(log)), default=0)
    return ReplicaLog(process.name, facts.role, start, facts.confirmed_offset or 0, log)


def _files(log: Path) -> list[Path]:
    return sorted(path for path in log.iterdir() if path.name.isdigit())


def digest(log: Path, begin: int, end: int) -> str:
    """SHA-256 of the log's bytes from one offset to another."""
    found = hashlib.sha256()
    for chunk in chunks(log, begin, end):
        found.update(chunk)
    return found.hexdigest()


def chunks(log: Path, begin: int, end: int) -> Iterator[bytes]:
    """The log's bytes between two offsets, in equal pieces. Raises `OSError` or `ValueError`."""
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
