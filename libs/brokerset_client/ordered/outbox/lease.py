"""Who sends the rows of an outbox: one owner at a time, by an epoch in a row of the database.

No clocks of different machines are compared. An owner counts up `beats`. A candidate that has seen the same
count for `lease_ms` of its own clock takes over, if the statement that does it still finds that count.
A paused owner may believe for a while that it still is one. So whatever must not happen then has the epoch in
its statement (`still`), or is fenced by the producer's epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Connection, insert, select, update

from brokerset_client.ordered.outbox.tables import OutboxTables

NOBODY: Final = "-"
"""The owner after a release, which no process may be called; an empty text is NULL in some databases."""


class LeaseRow(NamedTuple):
    """What the database says."""

    owner: str
    epoch: int
    beats: int


@dataclass(slots=True)
class LeaseWatch:
    """What a candidate has seen; pure. `now` is seconds of one monotonic clock."""

    lease_ms: int
    seen: LeaseRow | None = None
    since: float = 0.0

    own_epoch: int | None = None
    """The last one of this candidate: nobody else can be the owner with it."""

    def may_take(self, row: LeaseRow | None, now: float) -> bool:
        """Whether the lease is free, released, this candidate's own, or its owner was silent for too long."""
        if row is None or row.owner == NOBODY or row.epoch == self.own_epoch:
            return True
        if row != self.seen:
            self.seen, self.since = row, now
            return False
        return (now - self.since) * 1000 >= self.lease_ms


class LeaseTable:
    """Statements on the lease; each belongs to a transaction of the caller."""

    def __init__(self, tables: OutboxTables, name: str) -> None:
        self._table = tables.lease
        self.name = name

    def read(self, connection: Connection) -> LeaseRow | None:
        """The row; None before the first owner."""
        table = self._table
        row = connection.execute(
            select(table.c.owner, table.c.epoch, table.c.beats).where(table.c.name == self.name)
        ).first()
        return None if row is None else LeaseRow(str(row[0]), int(row[1]), int(row[2]))

    def take(self, connection: Connection, seen: LeaseRow | None, owner: str) -> int | None:
        """Become the owner, if the row is still as `seen`: the new epoch, or None.

        Raises `IntegrityError` if another candidate has written the first row.
        """
        table = self._table
        if seen is None:
            connection.execute(insert(table).values(name=self.name, owner=owner, epoch=1, beats=0))
            return 1
        changed = connection.execute(
            update(table)
            .where(
                table.c.name == self.name,
                table.c.owner == seen.owner,
                table.c.epoch == seen.epoch,
                table.c.beats == seen.beats,
            )
            .values(owner=owner, epoch=seen.epoch + 1, beats=0)
        )
        return seen.epoch + 1 if changed.rowcount == 1 else None

    def still(self, connection: Connection, epoch: int) -> bool:
        """Count a beat, and lock the row up to the end of the transaction; False: another one is owner."""
        table = self._table
        changed = connection.execute(
            update(table)
            .where(table.c.name == self.name, table.c.epoch == epoch, table.c.owner != NOBODY)
            .values(beats=table.c.beats + 1)
        )
        return changed.rowcount == 1

    def release(self, connection: Connection, epoch: int) -> None:
        """Let another one become owner at once."""
        table = self._table
        connection.execute(
            update(table).where(table.c.name == self.name, table.c.epoch == epoch).values(owner=NOBODY)
        )
