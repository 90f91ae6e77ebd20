"""The two tables of an outbox, for any database that SQLAlchemy knows."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

SUBJECT_MAX: Final = 127
"""Characters of a subject: RocketMQ's limit for topics."""

OWNER_MAX: Final = 128
"""Characters of an owner's name."""

_BIG = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts `INTEGER` primary keys only; they have 64 bits there."""


class OutboxTables:
    """The tables, in a `MetaData` of the application or one of their own; `name` begins both names."""

    def __init__(self, metadata: MetaData | None = None, name: str = "brokerset_outbox") -> None:
        self.metadata = metadata if metadata is not None else MetaData()
        self.name = name
        self.messages = Table(
            name,
            self.metadata,
            Column("id", _BIG, primary_key=True, autoincrement=True),
            Column("subject", String(SUBJECT_MAX), nullable=False),
            Column("logical", SmallInteger, nullable=False),
            Column("order_key", Text, nullable=True),
            Column("body", LargeBinary(2**24), nullable=False),
            Column("properties", Text, nullable=False),
            Column("created_ms", BigInteger, nullable=False),
            Column("problem", Text, nullable=True),
            Index(f"{name}_lanes", "subject", "logical", "id"),
            sqlite_autoincrement=True,  # an id is never used again, also after the last row was deleted
        )
        """Messages that are not confirmed yet. `problem`: why this one, and its logical partition, waits."""
        self.lease = Table(
            f"{name}_lease",
            self.metadata,
            Column("name", String(64), primary_key=True),
            Column("owner", String(OWNER_MAX), nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("beats", BigInteger, nullable=False),
        )
        """One row for each outbox: who sends."""
